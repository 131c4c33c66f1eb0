import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import {
  checkGraph,
  type Dim,
  decodeModel,
  type Graph,
  GraphBuilder,
  inferTypes,
  openSession,
  prune,
  type Tensor,
  upgradeOpset,
} from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'

const fixtures = join(import.meta.dirname, '../fixtures/onnx')
const file = (name: string) => join(fixtures, name, 'onnx/model.onnx')
const exported = readdirSync(fixtures).filter((name) => existsSync(file(name)))
const read = (name: string) => decodeModel(readFileSync(file(name)), file(name))

const ints = (shape: number[], ...values: number[]): Tensor => ({
  dtype: 'int64',
  shape,
  data: BigInt64Array.from(values, BigInt),
})

/** Sizes of 2 sequences of 5 tokens for the symbols of a fixture, whatever it calls them. */
function feedsFor(graph: Graph): Record<string, Tensor> {
  return Object.fromEntries(
    graph.inputs.map((name) => {
      const count = 10
      const values = Array.from({ length: count }, (_, i) =>
        name === 'input_ids' ? (i % 7) + 3 : name === 'position_ids' ? i % 5 : name === 'token_type_ids' ? 0 : 1,
      )
      return [name, ints([2, 5], ...values)]
    }),
  )
}

/** Runs a graph with all its values as outputs and checks each one's element type and shape against `types`. */
async function checkTypes(graph: Graph, feeds: Record<string, Tensor>): Promise<number> {
  const values = graph.nodes.flatMap((node) => node.outputs.filter((name) => name !== ''))
  // ONNX Runtime's Node binding cannot return every element type.
  const seen = values.filter((name) => graph.types.get(name)?.dtype !== 'bfloat16')
  const session = await openSession({ ...graph, outputs: seen }, { threads: 1, optimization: 'disabled' })
  try {
    const results = await session.run(feeds)
    const sizes = new Map<string, number>()
    for (const [name, tensor] of [...Object.entries(feeds), ...Object.entries(results)]) {
      const type = graph.types.get(name)
      expect(type, `${name} is typed`).toBeDefined()
      expect({ name, dtype: tensor.dtype, rank: tensor.shape.length }).toEqual({
        name,
        dtype: type?.dtype,
        rank: type?.shape.length,
      })
      type?.shape.forEach((d, axis) => {
        const size = tensor.shape[axis] as number
        const known = typeof d === 'number' ? d : (sizes.get(d) ?? size)
        expect({ name, axis, size }).toEqual({ name, axis, size: known })
        if (typeof d === 'string') sizes.set(d, size)
      })
    }
    return seen.length
  } finally {
    await session.release()
  }
}

describe('types of exported encoders', () => {
  for (const name of exported)
    test(`${name}: every value has the type that it has at run time, in the inputs' own symbols`, async () => {
      const graph = inferTypes(upgradeOpset(read(name)))
      checkGraph(graph)
      const symbols = new Set(graph.inputs.flatMap((input) => graph.types.get(input)?.shape ?? []))
      for (const node of graph.nodes)
        for (const output of node.outputs) {
          const type = graph.types.get(output)
          expect(output === '' || type !== undefined, `${output} of ${node.op} is typed`).toBe(true)
          // The sizes of an attention's past are its own.
          if (node.op === 'GroupQueryAttention') continue
          for (const d of type?.shape ?? [])
            for (const symbol of typeof d === 'string' ? d.split('*') : [])
              expect([...symbols, ...'0123456789'], `${output} of ${node.op}`).toContain(symbol)
        }
      const fake = graph.nodes.find((node) => node.op === 'GroupQueryAttention')
      if (fake === undefined) expect(await checkTypes(graph, feedsFor(graph))).toBeGreaterThan(10)
    })

  test('inferring again changes nothing', () => {
    const once = inferTypes(read('tiny-bert-plain'))
    expect(inferTypes(once)).toEqual(once)
  })
})

/** A graph of two inputs `x` [batch, sequence, 24] and `ids` [batch, sequence], to which `build` adds nodes. */
function typed(build: (g: GraphBuilder, x: string, ids: string) => string): { graph: Graph; shape: Dim[] } {
  const g = new GraphBuilder()
  const [x, ids] = [g.input('x', 'float32', ['batch', 'sequence', 24]), g.input('ids', 'int64', ['batch', 'sequence'])]
  g.output(build(g, x, ids), 'y')
  const built = g.build()
  // as a file is read: inner types are not known
  const given = [...built.inputs, ...built.initializers.keys()]
  const types = new Map([...built.types].filter(([name]) => given.includes(name)))
  const graph = inferTypes({ ...built, types })
  return { graph, shape: graph.types.get('y')?.shape ?? [] }
}

const i64 = (g: GraphBuilder, ...values: number[]) => g.constant(values, 'int64')
const unknown = (rank: number) => ({
  types: [{ dtype: 'float32' as const, shape: Array.from({ length: rank }, (_, i) => `?${i}`) }],
})
const size = (g: GraphBuilder, x: string, axis: number) =>
  g.gather(g.one('Shape', [x]), g.constant([axis], 'int64', []))

describe('sizes that the graph computes', () => {
  test('heads: Reshape to Concat(batch, sequence, 4, size / 4)', () => {
    const { shape } = typed((g, x) => {
      const parts = [
        size(g, x, 0),
        size(g, x, 1),
        g.constant([4], 'int64', []),
        g.div(size(g, x, 2), g.constant([4], 'int64', [])),
      ]
      return g.one(
        'Reshape',
        [
          x,
          g.concat(
            parts.map((p) => g.unsqueeze(p, [0])),
            0,
          ),
        ],
        unknown(4),
      )
    })
    expect(shape).toEqual(['batch', 'sequence', 4, 6])
  })

  test('products fold, and divide again', () => {
    const flat = typed((g, x) => g.one('Reshape', [x, i64(g, -1, 24)], unknown(2)))
    expect(flat.shape).toEqual(['batch*sequence', 24])
    const back = typed((g, x) => {
      const rows = g.one('Reshape', [x, i64(g, -1, 24)], unknown(2))
      const shape = g.concat([g.unsqueeze(size(g, x, 0), [0]), i64(g, -1, 12, 2)], 0)
      return g.one('Reshape', [rows, shape], unknown(4))
    })
    expect(back.shape).toEqual(['batch', 'sequence', 12, 2])
    const reduced = typed((g, x) =>
      g.one(
        'Expand',
        [g.scalar(1), g.one('ReduceProd', [g.one('Shape', [x])], { types: [{ dtype: 'int64', shape: [1] }] })],
        unknown(1),
      ),
    )
    expect(reduced.shape).toEqual(['24*batch*sequence'])
  })

  test("torch's Expand: Where(shape = -1, ones, shape)", () => {
    const { shape } = typed((g, x, ids) => {
      const parts = [size(g, ids, 0), g.constant([-1], 'int64', []), size(g, ids, 1), g.constant([24], 'int64', [])]
      const target = g.concat(
        parts.map((p) => g.unsqueeze(p, [0])),
        0,
      )
      const ones = g.one('ConstantOfShape', [i64(g, 4)], {
        attributes: { value: { t: ints([1], 1) } },
        types: [{ dtype: 'int64', shape: [4] }],
      })
      const minus = g.mul(ones, g.constant([-1], 'int64', []))
      const chosen = g.where(g.equal(target, minus), ones, target)
      return g.one('Expand', [g.unsqueeze(x, [1]), chosen], unknown(4))
    })
    expect(shape).toEqual(['batch', 1, 'sequence', 24])
  })

  test('positions cut to the sequence, ranges, sums and differences', () => {
    const table = (g: GraphBuilder) =>
      g.initializer('positions', { dtype: 'float32', shape: [1, 64], data: new Float32Array(64) })
    const cut = typed((g, _, ids) =>
      g.one('Slice', [table(g), i64(g, 0), g.unsqueeze(size(g, ids, 1), [0]), i64(g, 1)], unknown(2)),
    )
    expect(cut.shape).toEqual([1, 'sequence'])
    const rest = typed((g, x) => g.one('Slice', [x, i64(g, 1), i64(g, 2 ** 40), i64(g, 1)], unknown(3)))
    expect(rest.shape).toEqual(['batch', 'sequence - 1', 24])
    const range = typed((g, _, ids) => {
      const [from, one] = [g.constant([3], 'int64', []), g.constant([1], 'int64', [])]
      const values = g.one('Range', [from, g.add(size(g, ids, 1), g.constant([5], 'int64', [])), one], {
        types: [{ dtype: 'int64', shape: ['?'] }],
      })
      return g.cast(values, 'float32')
    })
    expect(range.shape).toEqual(['sequence + 2'])
    const both = typed((g, x) => g.one('Concat', [x, x], { attributes: { axis: { i: 1 } }, ...unknown(3) }))
    expect(both.shape).toEqual(['batch', '2*sequence', 24])
  })

  test('constants settle: a scale from a known size is an initializer, and the nodes behind it are gone', () => {
    const { graph } = typed((g, x) => {
      const width = g.cast(size(g, x, 2), 'float32')
      return g.div(x, g.sqrt(width))
    })
    expect(graph.nodes.map((node) => node.op)).toContain('Div')
    const divisor = graph.nodes.find((node) => node.op === 'Div')?.inputs[1] as string
    expect(graph.initializers.get(divisor)).toEqual({
      dtype: 'float32',
      shape: [],
      data: Float32Array.of(Math.sqrt(24)),
    })
  })

  test('an output that is settled keeps its node', () => {
    const { graph } = typed((g, x) => size(g, x, 2))
    expect(graph.initializers.has('y')).toBe(false)
    expect(graph.nodes.at(-1)?.outputs).toEqual(['y'])
  })

  test('what grows beyond bounds gets a symbol of its own', () => {
    const { shape } = typed((g, x) => {
      let n = g.mul(size(g, x, 0), size(g, x, 1))
      for (let i = 0; i < 12; i++) n = g.mul(n, g.add(n, size(g, x, 0)))
      return g.one('Expand', [g.scalar(1), g.unsqueeze(n, [0])], unknown(1))
    })
    expect(shape).toEqual([expect.stringMatching(/^unknown_\d+$/)])
  })

  test('readers of an Identity read its input; outputs stay', () => {
    const { graph } = typed((g, x) => g.exp(g.one('Identity', [g.one('Identity', [x])])))
    expect(graph.nodes.map((node) => node.op)).toEqual(['Exp', 'Identity'])
    expect(graph.nodes[0]?.inputs).toEqual(['x'])
  })
})

describe('sizes that only look settled', () => {
  const int = (g: GraphBuilder, n: number) => g.constant([n], 'int64', [])
  const filled = (g: GraphBuilder, n: string) => g.one('ConstantOfShape', [g.unsqueeze(n, [0])], unknown(1))

  test('a size less 1 is not known to be true', () => {
    const { shape } = typed((g, x) =>
      filled(g, g.where(g.cast(g.sub(size(g, x, 0), int(g, 1)), 'bool'), int(g, 5), int(g, 6))),
    )
    expect(shape).toEqual([expect.stringMatching(/^unknown_/)])
    expect(typed((g, x) => filled(g, g.where(g.cast(size(g, x, 2), 'bool'), int(g, 5), int(g, 6)))).shape).toEqual([5])
  })

  test('a quotient of what may be below 0 is no size', () => {
    const { shape } = typed((g, x) => {
      const half = g.div(g.sub(size(g, x, 0), int(g, 5)), int(g, 2))
      return filled(g, g.where(g.one('Less', [half, int(g, 0)]), int(g, 1), int(g, 2)))
    })
    expect(shape).toEqual([expect.stringMatching(/^unknown_/)])
  })

  test('numbers that an element type cannot hold are not settled', () => {
    const toUint8 = { attributes: { to: { i: 2 } } }
    const { graph } = typed((g) => {
      const wide = g.one('Cast', [i64(g, 200)], toUint8)
      return g.cast(g.add(wide, wide), 'float32')
    })
    expect(graph.nodes.map(({ op }) => op)).toContain('Add')
  })

  test('a slice from so many places before the end on, up to the start, and backwards', () => {
    const table = (g: GraphBuilder) =>
      g.initializer('table', { dtype: 'float32', shape: [64], data: new Float32Array(64) })
    const cut = (from: (g: GraphBuilder, n: string) => string, to: (g: GraphBuilder, n: string) => string) =>
      typed((g, x) => {
        const n = g.unsqueeze(size(g, x, 0), [0])
        return g.one('Slice', [table(g), from(g, n), to(g, n)], unknown(1))
      }).shape
    expect(
      cut(
        (g, n) => g.neg(n),
        (g) => i64(g, 2 ** 62),
      ),
    ).toEqual(['batch'])
    expect(
      cut(
        (g) => i64(g, 0),
        (g, n) => g.neg(n),
      ),
    ).toEqual(['64 - batch'])
    expect(
      cut(
        (_, n) => n,
        (g) => i64(g, 0),
      ),
    ).toEqual([0])
  })

  test('a sequence and the same without its first place broadcast to the longer one', () => {
    const rest = (g: GraphBuilder, ids: string) =>
      g.one('Slice', [ids, i64(g, 1), i64(g, 2 ** 40), i64(g, 1)], unknown(2))
    const sum = (swap: boolean) =>
      typed((g, _, ids) => {
        const [a, b] = [g.cast(ids, 'float32'), g.cast(rest(g, ids), 'float32')]
        return g.one('Add', swap ? [b, a] : [a, b], unknown(2))
      }).shape
    expect([sum(false), sum(true)]).toEqual([
      ['batch', 'sequence'],
      ['batch', 'sequence'],
    ])
  })

  test('a new size takes no symbol that is left in a sum only', () => {
    const { graph } = typed((g, x) => g.one('Compress', [x, g.constant([1, 0], 'bool')], unknown(1)))
    const given = [...graph.types].filter(([name]) => graph.inputs.includes(name) || graph.initializers.has(name))
    const types = new Map(given).set('rest', { dtype: 'float32', shape: ['unknown_0 + 1'] })
    expect(inferTypes({ ...graph, types }).types.get(graph.outputs[0] as string)?.shape).toEqual(['unknown_1'])
  })
})

describe('If', () => {
  /** y = if Equal(size of axis `axis` of x, 24) then Neg(x) else Exp(x), both branches calling their value `inner`. */
  function conditional(axis: number): Graph {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', ['rows', 24])
    const condition = g.equal(size(g, x, axis), g.constant([24], 'int64', []))
    const branch = (op: string) => ({
      g: {
        outputs: ['inner'],
        initializers: new Map(),
        types: new Map(),
        nodes: [{ op, domain: '', name: op, inputs: ['x'], outputs: ['inner'], attributes: {} }],
      },
    })
    for (const [name, other] of [
      ['y', 'Exp'],
      ['z', 'Sqrt'],
    ] as const)
      g.output(
        g.one('If', [condition], {
          outputs: [name],
          attributes: { then_branch: branch('Neg'), else_branch: branch(other) },
          types: [{ dtype: 'float32', shape: ['rows', 24] }],
        }) && name,
      )
    return g.build()
  }

  test('a condition that known sizes settle leaves the branch that it takes', async () => {
    const graph = prune(inferTypes(conditional(1)))
    expect(graph.nodes.map((node) => node.op)).toEqual(['Neg', 'Identity', 'Neg', 'Identity'])
    checkGraph(graph)
    expect(await checkTypes(graph, { x: { dtype: 'float32', shape: [2, 24], data: new Float32Array(48) } })).toBe(4)
  })

  test('a condition that is known only when the graph runs is refused, by name', () => {
    expect(() => inferTypes(conditional(0))).toThrow(InputError)
    expect(() => inferTypes(conditional(0))).toThrow(/node "If" \(If\): its condition "Equal_out" is known only when/)
  })
})

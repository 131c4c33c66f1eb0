import fc from 'fast-check'
import { expect, test } from 'vitest'
import { type Dim, GraphBuilder, inferTypes, openSession, type Tensor } from '../../src/onnx/index.ts'
import { sizeOf } from './shape-cases/sizes.ts'

let symbols = 0
const unknown = (rank: number) => ({
  types: [{ dtype: 'float32' as const, shape: Array.from({ length: rank }, (): Dim => `open${symbols++}`) }],
})
const unknownInts = (shape: Dim[]) => ({ types: [{ dtype: 'int64' as const, shape }] })

/** Draws the arithmetic that exporters make of shapes: int64 scalars and vectors from the sizes of x. */
class Arithmetic {
  readonly scalars: string[] = []
  readonly g: GraphBuilder
  private readonly gen: fc.GeneratorValue
  constructor(g: GraphBuilder, gen: fc.GeneratorValue) {
    this.g = g
    this.gen = gen
  }

  int(min: number, max: number): number {
    return this.gen(fc.integer, { min, max })
  }

  pick<T>(from: T[]): T {
    return from[this.int(0, from.length - 1)] as T
  }

  scalar(): string {
    return this.int(0, 4) === 0 ? this.constant(this.pick([-2, -1, 0, 1, 1, 2, 2, 3, 4])) : this.pick(this.scalars)
  }

  constant = (n: number) => this.g.constant([n], 'int64', [])

  vector(length: number): string {
    return this.g.concat(
      Array.from({ length }, () => this.g.unsqueeze(this.scalar(), [0])),
      0,
    )
  }

  step(): string {
    const { g } = this
    const op = this.pick([
      'Add',
      'Sub',
      'Mul',
      'Div',
      'Max',
      'Min',
      'Where',
      'Gather',
      'Slice',
      'Reduce',
      'Cast',
      'If0',
    ])
    const binary = () => g.one(op, [this.scalar(), this.scalar()])
    switch (op) {
      case 'Where': {
        const comparison = this.pick(['Equal', 'Less', 'Greater', 'LessOrEqual', 'GreaterOrEqual'])
        return g.where(g.one(comparison, [this.scalar(), this.scalar()]), this.scalar(), this.scalar())
      }
      case 'If0':
        return g.where(g.cast(this.scalar(), 'bool'), this.scalar(), this.scalar())
      case 'Gather':
        return g.gather(this.vector(3), this.constant(this.int(-3, 2)))
      case 'Slice': {
        const [from, to] = [this.int(-4, 4), this.int(-4, 4)]
        const part = g.slice(this.vector(3), 0, from, to)
        return g.one('ReduceSum', [part], { ...unknownInts([]), attributes: { keepdims: { i: 0 } } })
      }
      case 'Reduce':
        return g.one(this.pick(['ReduceProd', 'ReduceSum', 'ReduceMax', 'ReduceMin']), [this.vector(2)], {
          ...unknownInts([]),
          attributes: { keepdims: { i: 0 } },
        })
      case 'Cast': {
        const narrow = this.pick(['int32', 'float32', 'uint8'] as const)
        const [a, b] = [this.scalar(), this.scalar()]
        const wide = (value: string) =>
          narrow === 'uint8' ? this.g.one('Cast', [value], toUint8) : g.cast(value, narrow)
        return g.cast(g.mul(wide(a), wide(b)), 'int64')
      }
      default:
        return binary()
    }
  }
}
const toUint8 = { attributes: { to: { i: 2 } } }

/** Whether a slice's bounds lie within the dimension and in order, as symbolic ones are taken to. */
function isOrdered({ start, end }: Record<string, Tensor>, size: number): boolean {
  const [from, to] = [start, end].map((bound) => Number((bound as Tensor).data[0])) as [number, number]
  return from >= 0 && from <= to && to <= size
}

async function checkShapes(g: GraphBuilder, feeds: Record<string, Tensor>, symbols: Record<string, number>) {
  const graph = g.build()
  const typed = inferTypes(graph)
  const session = await openSession(typed, { threads: 1 }).catch(() => undefined)
  // a size below 0, a division by 0
  if (session === undefined) return 0
  try {
    const results = await session.run(feeds).catch(() => undefined)
    if (results === undefined) return 0
    const named = new Map(Object.entries(symbols))
    for (const output of graph.outputs) {
      if (output === 'cut' && !isOrdered(results, symbols.sequence as number)) continue
      const [found, { dtype, shape }] = [results[output] as Tensor, typed.types.get(output)!]
      expect(found.dtype).toBe(dtype)
      expect(found.shape.length).toBe(shape.length)
      shape.forEach((dim, axis) => {
        const size = found.shape[axis] as number
        expect(sizeOf(dim, named) ?? size, `[${shape.join(', ')}] is [${found.shape.join(', ')}]`).toBe(size)
        if (typeof dim === 'string') named.set(dim, size)
      })
    }
    return graph.outputs.length
  } finally {
    await session.release()
  }
}

test('sizes computed from sizes are what ONNX Runtime computes', async () => {
  let compared = 0
  await fc.assert(
    fc.asyncProperty(fc.gen(), async (gen) => {
      const g = new GraphBuilder(18)
      const a = new Arithmetic(g, gen)
      const [batch, sequence] = [a.int(1, 4), a.int(1, 6)]
      const x = g.input('x', 'float32', ['batch', 'sequence', 4])
      const shape = g.one('Shape', [x])
      for (let axis = 0; axis < 3; axis++) a.scalars.push(g.gather(shape, a.constant(axis)))
      for (let n = a.int(1, 7); n > 0; n--) a.scalars.push(a.step())
      for (let n = a.int(1, 3); n > 0; n--) {
        const last = a.scalars.at(-n) as string
        const size = a.int(0, 2) === 0 ? g.max(last, a.constant(0)) : last
        // without elements, whatever the size
        g.output(
          g.one('ConstantOfShape', [g.concat([g.unsqueeze(size, [0]), g.constant([0], 'int64')], 0)], unknown(2)),
        )
      }
      const bounds = [g.output(a.vector(1), 'start'), g.output(a.vector(1), 'end')]
      g.output(g.one('Slice', [x, ...bounds, g.constant([1], 'int64')], { ...unknown(3), outputs: ['cut'] }))
      const data = new Float32Array(batch * sequence * 4)
      compared += await checkShapes(
        g,
        { x: { dtype: 'float32', shape: [batch, sequence, 4], data } },
        { batch, sequence },
      )
    }),
    { numRuns: 200, seed: 4 },
  )
  expect(compared).toBeGreaterThan(100)
}, 120_000)

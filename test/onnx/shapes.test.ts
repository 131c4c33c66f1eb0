import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  type Attribute,
  type Dim,
  type DType,
  GraphBuilder,
  openSession,
  shapeRules,
  type Tensor,
} from '../../src/onnx/index.ts'

/** What a case draws from, and the graph that it fills. */
class Draw {
  readonly g = new GraphBuilder(23)
  readonly feeds: Record<string, Tensor> = {}
  readonly gen: fc.GeneratorValue
  constructor(gen: fc.GeneratorValue) {
    this.gen = gen
  }

  int(min: number, max: number): number {
    return this.gen(fc.integer, { min, max })
  }

  flag(): boolean {
    return this.gen(fc.boolean)
  }

  pick<T>(...from: T[]): T {
    return from[this.int(0, from.length - 1)] as T
  }

  shape(minRank = 1, maxRank = 4): number[] {
    return Array.from({ length: this.int(minRank, maxRank) }, () => this.int(1, 4))
  }

  /** A graph input of run-time shape `shape`; some sizes above 1 are declared by a symbol, one symbol a size. */
  input(shape: number[], dtype: DType = 'float32', values?: number[]): string {
    const declared = shape.map((d): Dim => (d > 1 && this.flag() ? `s${d}` : d))
    const name = `x${Object.keys(this.feeds).length}`
    const count = shape.reduce((a, b) => a * b, 1)
    const numbers = values ?? Array.from({ length: count }, (_, i) => ((i * 7) % 5) / 4 + 0.25)
    const data =
      dtype === 'int64'
        ? BigInt64Array.from(numbers, (v) => BigInt(Math.trunc(v)))
        : dtype === 'bool'
          ? Uint8Array.from(numbers, (v) => (v > 0.8 ? 1 : 0))
          : Float32Array.from(numbers)
    this.feeds[name] = { dtype, shape, data }
    return this.g.input(name, dtype, declared)
  }

  /** An int64 vector of fixed length whose values are known only at run time. */
  vector(values: number[]): string {
    const name = `x${Object.keys(this.feeds).length}`
    this.feeds[name] = { dtype: 'int64', shape: [values.length], data: BigInt64Array.from(values, BigInt) }
    return this.g.input(name, 'int64', [values.length])
  }

  ints(values: number[]): string {
    return this.g.constant(values, 'int64')
  }

  /** `shape`, or a shape that broadcasts to it: leading sizes dropped, others replaced by 1. */
  broadcastable(shape: number[]): number[] {
    return shape.map((d) => (this.flag() ? d : 1)).slice(this.int(0, shape.length))
  }

  axis(rank: number): number {
    return this.int(-rank, rank - 1)
  }

  axes(rank: number): number[] {
    return Array.from({ length: rank }, (_, i) => i)
      .filter(() => this.flag())
      .map((i) => (this.flag() ? i : i - rank))
  }
}

type Case = (d: Draw) => string[]

const i = (n: number): Attribute => ({ i: n })

const unary =
  (op: string, dtype: DType = 'float32', domain = ''): Case =>
  (d) =>
    d.g.node(op, [d.input(d.shape(domain === '' ? 0 : 1), dtype)], { domain })

const binary =
  (op: string, dtype: DType = 'float32'): Case =>
  (d) => {
    const full = d.shape()
    const other = d.broadcastable(full)
    return d.g.node(
      op,
      (d.flag() ? [full, other] : [other, full]).map((s) => d.input(s, dtype)),
    )
  }

const reduce =
  (op: string): Case =>
  (d) => {
    const shape = d.shape()
    const axes = d.axes(shape.length)
    const attributes = { keepdims: i(d.int(0, 1)), ...(d.flag() ? { noop_with_empty_axes: i(d.int(0, 1)) } : {}) }
    const x = d.input(shape)
    return d.g.node(op, axes.length === 0 ? [x] : [x, d.ints(axes)], { attributes })
  }

/** Shapes of a matrix product's two sides, transposed where asked. */
function matrices(d: Draw, transA: boolean, transB: boolean, batched: boolean): [number[], number[]] {
  const [m, k, n] = [d.int(1, 4), d.int(1, 4), d.int(1, 4)]
  const batch = batched ? d.shape(0, 2) : []
  const batchB = batched && d.flag() ? batch.map((b) => (d.flag() ? b : 1)) : batch
  return [
    [...batch, ...(transA ? [k, m] : [m, k])],
    [...batchB, ...(transB ? [n, k] : [k, n])],
  ]
}

const cases: Record<string, Case> = {
  ...Object.fromEntries(
    ['Neg', 'Sqrt', 'Exp', 'Log', 'Erf', 'Tanh', 'Sigmoid', 'Softplus', 'Relu', 'Abs', 'Reciprocal', 'Identity']
      .concat(['Sign', 'Sin', 'Cos', 'Floor', 'Ceil', 'Round', 'Clip', 'Gelu', 'HardSigmoid'])
      .map((op) => [op, unary(op)]),
  ),
  Not: unary('Not', 'bool'),
  FastGelu: unary('FastGelu', 'float32', 'com.microsoft'),
  QuickGelu: unary('QuickGelu', 'float32', 'com.microsoft'),
  BiasGelu: (d) => {
    const shape = d.shape()
    return d.g.node('BiasGelu', [d.input(shape), d.input([shape.at(-1) as number])], { domain: 'com.microsoft' })
  },
  ...Object.fromEntries(
    ['Softmax', 'LogSoftmax'].map((op): [string, Case] => [
      op,
      (d) => {
        const shape = d.shape()
        return d.g.node(op, [d.input(shape)], { attributes: { axis: i(d.axis(shape.length)) } })
      },
    ]),
  ),
  ...Object.fromEntries(['Add', 'Sub', 'Mul', 'Div', 'Pow'].map((op) => [op, binary(op)])),
  ...Object.fromEntries(
    ['Max', 'Min', 'Sum'].map((op): [string, Case] => [
      op,
      (d) => {
        const full = d.shape()
        const shapes = [full, ...Array.from({ length: d.int(0, 2) }, () => d.broadcastable(full))]
        return d.g.node(
          op,
          (d.flag() ? shapes : shapes.reverse()).map((s) => d.input(s)),
        )
      },
    ]),
  ),
  Mod: (d) => {
    const full = d.shape()
    const divisor = d.broadcastable(full)
    const three = divisor.reduce((a, b) => a * b, 1)
    return d.g.node('Mod', [d.input(full, 'int64'), d.input(divisor, 'int64', Array(three).fill(3))])
  },
  And: binary('And', 'bool'),
  Or: binary('Or', 'bool'),
  ...Object.fromEntries(['Equal', 'Less', 'Greater', 'LessOrEqual', 'GreaterOrEqual'].map((op) => [op, binary(op)])),
  ...Object.fromEntries(
    ['ReduceSum', 'ReduceMean', 'ReduceMax', 'ReduceMin', 'ReduceL2', 'ReduceSumSquare'].map((op) => [op, reduce(op)]),
  ),
  MatMul: (d) => {
    const [a, b] = matrices(d, false, false, true)
    const kind = d.int(0, 3)
    // a vector on either side is a row on the left, a column on the right, and vanishes from the result
    if (kind === 1) return d.g.node('MatMul', [d.input(a.slice(-1)), d.input(b)])
    if (kind === 2) return d.g.node('MatMul', [d.input(a), d.input(b.slice(-2, -1))])
    return d.g.node('MatMul', [d.input(a), d.input(b)])
  },
  FusedMatMul: (d) => {
    const [transA, transB] = [d.flag(), d.flag()]
    const [a, b] = matrices(d, transA, transB, true)
    return [d.g.fusedMatmul(d.input(a), d.input(b), { transA, transB, alpha: 0.5 })]
  },
  Gemm: (d) => {
    const [transA, transB] = [d.flag(), d.flag()]
    const [a, b] = matrices(d, transA, transB, false)
    const out = [a[transA ? 1 : 0] as number, b[transB ? 0 : 1] as number]
    const c = d.flag() ? d.input(d.broadcastable(out)) : null
    return [d.g.gemm(d.input(a), d.input(b), c, { transA, transB })]
  },
  Transpose: (d) => {
    const shape = d.shape()
    const perm = d.gen(() =>
      fc.shuffledSubarray(
        shape.map((_, at) => at),
        { minLength: shape.length },
      ),
    )
    return d.g.node('Transpose', [d.input(shape)], d.flag() ? { attributes: { perm: { ints: perm } } } : {})
  },
  LayerNormalization: (d) => {
    const shape = d.shape()
    const axis = d.axis(shape.length)
    const rest = shape.slice(axis < 0 ? axis + shape.length : axis)
    return d.g.node('LayerNormalization', [d.input(shape), d.input(rest), d.input(rest)], {
      outputs: d.int(1, 3),
      attributes: { axis: i(axis), epsilon: { f: 1e-5 } },
    })
  },
  ...Object.fromEntries(
    ['RMSNormalization', 'SimplifiedLayerNormalization'].map((op): [string, Case] => [
      op,
      (d) => {
        const shape = d.shape()
        const attributes = { axis: i(-1), epsilon: { f: 1e-5 } }
        const outputs = op === 'RMSNormalization' ? 1 : d.int(1, 2)
        return d.g.node(op, [d.input(shape), d.input(shape.slice(-1))], { attributes, outputs })
      },
    ]),
  ),
  Cast: (d) => [d.g.cast(d.input(d.shape(0)), d.pick<DType>('int64', 'float64', 'bool', 'float16', 'uint8'))],
  Where: (d) => {
    const full = d.shape()
    return d.g.node('Where', [d.input(full, 'bool'), d.input(d.broadcastable(full)), d.input(d.broadcastable(full))])
  },
  Gather: (d) => {
    const shape = d.shape()
    const indices = d.shape(0, 2)
    const zeros = Array(indices.reduce((a, b) => a * b, 1)).fill(0)
    return [d.g.gather(d.input(shape), d.input(indices, 'int64', zeros), d.axis(shape.length))]
  },
  GatherElements: (d) => {
    const shape = d.shape()
    const axis = d.axis(shape.length)
    const indices = shape.map((size) => d.int(1, size))
    const zeros = Array(indices.reduce((a, b) => a * b, 1)).fill(0)
    return d.g.node('GatherElements', [d.input(shape), d.input(indices, 'int64', zeros)], {
      attributes: { axis: i(axis) },
    })
  },
  ScatterElements: (d) => {
    const shape = d.shape()
    const part = shape.map((size) => d.int(1, size))
    const zeros = Array(part.reduce((a, b) => a * b, 1)).fill(0)
    return d.g.node('ScatterElements', [d.input(shape), d.input(part, 'int64', zeros), d.input(part)], {
      attributes: { axis: i(d.axis(shape.length)), reduction: { s: 'add' } },
    })
  },
  ScatterND: (d) => {
    const shape = d.shape()
    return d.g.node('ScatterND', [d.input(shape), d.input([1, 1], 'int64', [0]), d.input([1, ...shape.slice(1)])])
  },
  CumSum: (d) => {
    const shape = d.shape()
    return d.g.node('CumSum', [d.input(shape), d.g.constant([d.axis(shape.length)], 'int64', [])])
  },
  Trilu: (d) => d.g.node('Trilu', [d.input(d.shape(2))], { attributes: { upper: i(d.int(0, 1)) } }),
  Concat: (d) => {
    const shape = d.shape()
    const axis = d.axis(shape.length)
    const at = axis < 0 ? axis + shape.length : axis
    const parts = Array.from({ length: d.int(1, 3) }, () => shape.map((size, j) => (j === at ? d.int(1, 3) : size)))
    return [
      d.g.concat(
        parts.map((part) => d.input(part)),
        axis,
      ),
    ]
  },
  Unsqueeze: (d) => {
    const shape = d.shape(0, 3)
    const axes = d.axes(shape.length + 2).slice(0, 2)
    // two new axes at any of the places of the result's rank
    const unique = axes.length === 2 ? axes : [0, -1]
    return [d.g.unsqueeze(d.input(shape), unique)]
  },
  Squeeze: (d) => {
    const shape = d.shape(2)
    const at = d.int(0, shape.length - 1)
    shape[at] = 1
    const x = d.input(shape)
    return d.flag() ? [d.g.squeeze(x, [d.flag() ? at : at - shape.length])] : d.g.node('Squeeze', [x])
  },
  Shape: (d) => {
    const shape = d.shape(0)
    const attributes: Record<string, Attribute> = {}
    if (d.flag()) attributes.start = i(d.int(-5, 5))
    if (d.flag()) attributes.end = i(d.int(-5, 5))
    return d.g.node('Shape', [d.input(shape)], { attributes })
  },
  Reshape: (d) => {
    const shape = d.shape()
    const x = d.input(shape)
    const total = shape.reduce((a, b) => a * b, 1)
    const target = d.pick(
      [-1],
      [0, -1],
      [total, 1],
      [1, -1, 1],
      shape.map(() => 0),
      [...shape.slice(0, -1).map(() => 0), -1],
    )
    if (!d.flag()) return d.g.node('Reshape', [x, d.ints(target)])
    // a shape known only at run time: so many unknown sizes
    return d.g.node('Reshape', [x, d.vector(target)])
  },
  Expand: (d) => {
    const full = d.shape()
    const x = d.input(d.broadcastable(full))
    return d.g.node('Expand', [x, d.ints(full)])
  },
  Slice: (d) => {
    const shape = d.shape()
    const count = d.int(1, shape.length)
    const many = (draw: () => number) => d.ints(Array.from({ length: count }, draw))
    const [starts, ends] = [many(() => d.int(-6, 6)), many(() => d.int(-6, 6))]
    const x = d.input(shape)
    if (d.flag()) return d.g.node('Slice', [x, starts, ends])
    const axes = d.gen(() =>
      fc.shuffledSubarray(
        shape.map((_, at) => at),
        { minLength: count, maxLength: count },
      ),
    )
    const steps = d.flag() ? [many(() => d.pick(-2, -1, 1, 2, 3))] : []
    return d.g.node('Slice', [x, starts, ends, d.ints(axes), ...steps])
  },
  Split: (d) => {
    const shape = d.shape()
    const at = d.int(0, shape.length - 1)
    const parts = d.int(1, 3)
    const attributes = { axis: i(d.flag() ? at : at - shape.length) }
    if (d.flag()) {
      const sizes = Array.from({ length: parts }, () => d.int(1, 3))
      shape[at] = sizes.reduce((a, b) => a + b, 0)
      return d.g.node('Split', [d.input(shape), d.ints(sizes)], { outputs: parts, attributes })
    }
    shape[at] = 2 * parts - (parts > 1 ? d.int(0, 1) : 0)
    return d.g.node('Split', [d.input(shape)], {
      outputs: parts,
      attributes: { ...attributes, num_outputs: i(parts) },
    })
  },
  ConstantOfShape: (d) => {
    const value: Tensor = { dtype: 'int64', shape: [1], data: BigInt64Array.of(3n) }
    return d.g.node('ConstantOfShape', [d.ints(d.shape())], d.flag() ? { attributes: { value: { t: value } } } : {})
  },
  Range: (d) => {
    const [start, delta] = [d.int(-3, 3), d.pick(-2, -1, 1, 2, 3)]
    const limit = start + delta * d.int(0, 3) + d.int(0, 1)
    return d.g.node(
      'Range',
      [start, limit, delta].map((v) => d.g.constant([v], 'int64', [])),
    )
  },
}

describe('shape rules', () => {
  test('every rule has a case here', () => {
    expect(Object.keys(shapeRules).sort()).toEqual(Object.keys(cases).sort())
  })

  for (const [op, build] of Object.entries(cases))
    test(`${op}: the shape that the rule gives is the shape that ONNX Runtime returns`, async () => {
      await fc.assert(
        fc.asyncProperty(fc.gen(), async (gen) => {
          const d = new Draw(gen)
          const outputs = build(d)
          for (const output of outputs) d.g.output(output)
          const session = await openSession(d.g.build(), { threads: 1 })
          try {
            const results = await session.run(d.feeds)
            const sizes = new Map<string, number>()
            for (const output of outputs) {
              const declared = d.g.type(output)
              const found = results[output] as Tensor
              expect(found.dtype).toBe(declared.dtype)
              expect(found.shape.length, `rank of [${declared.shape.join()}]`).toBe(declared.shape.length)
              declared.shape.forEach((dim, axis) => {
                const size = found.shape[axis] as number
                if (typeof dim === 'number') expect(size, `${declared.shape.join()} is ${found.shape.join()}`).toBe(dim)
                else if (dim.startsWith('s') && !dim.startsWith('size')) expect(`s${size}`).toBe(dim)
                else expect(sizes.get(dim) ?? size).toBe(size)
                if (typeof dim === 'string') sizes.set(dim, size)
              })
            }
          } finally {
            await session.release()
          }
        }),
        { numRuns: 40, seed: 20 },
      )
    })
})

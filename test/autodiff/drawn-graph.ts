import fc from 'fast-check'
import type { Attribute, Dim, GraphBuilder } from '../../src/onnx/index.ts'
import type { Input } from './finite-differences.ts'

const i = (n: number): Attribute => ({ i: n })
export const count = (shape: number[]) => shape.reduce((a, b) => a * b, 1)

/** Whether a shape broadcasts to another one. */
const fits = (s: number[], to: number[]) =>
  s.length <= to.length && s.every((d, k) => d === 1 || d === to[k + to.length - s.length])

/** A value and its shape at run time. */
interface Made {
  value: string
  shape: number[]
}

/** A graph drawn node by node, whose values are read once, several times, or twice by one node. */
export class DrawnGraph {
  readonly values: Made[]
  readonly g: GraphBuilder
  readonly dim: (size: number) => Dim
  private readonly gen: fc.GeneratorValue

  constructor(g: GraphBuilder, x: string[], inputs: Input[], dim: (size: number) => Dim, gen: fc.GeneratorValue) {
    this.g = g
    this.dim = dim
    this.gen = gen
    this.values = x.map((value, k) => ({ value, shape: inputs[k]!.shape }))
  }

  int = (min: number, max: number): number => this.gen(fc.integer, { min, max })
  flag = (): boolean => this.int(0, 1) === 1
  pick = <T>(from: readonly T[]): T => from[this.int(0, from.length - 1)] as T
  find = (wanted: (shape: number[]) => boolean): Made | undefined => {
    const all = this.values.filter(({ shape }) => wanted(shape))
    return all.length === 0 ? undefined : this.pick(all)
  }

  /** Values stay of the order of 1. */
  tame = (v: string) => this.g.tanh(v)
  positive = (v: string) => this.g.exp(this.tame(v))
  number = (n: number) => this.g.scalar(n, this.g.type(this.values[0]!.value).dtype)
  ints = (...n: number[]) => this.g.constant(n, 'int64')
  /** What a node's shape is, where it does not follow from its inputs'. */
  typed = (shape: number[]) => ({
    types: [{ dtype: this.g.type(this.values[0]!.value).dtype, shape: shape.map(this.dim) }],
  })

  /** Adds a node, or nothing where no value fits the operator drawn, and returns the operator's name. */
  step(): string {
    const op = this.pick(Object.keys(operators))
    const { value: x, shape } = this.pick(this.values)
    const axis = shape.length === 0 ? 0 : this.int(0, shape.length - 1)
    const made = operators[op]!({ d: this, op, x, shape, axis, signed: this.flag() ? axis : axis - shape.length })
    this.values.push(...made)
    return made.length > 0 ? op : ''
  }
}

interface Drawn {
  d: DrawnGraph
  op: string
  x: string
  shape: number[]
  /** An axis of x; 0 for a scalar. */
  axis: number
  /** The same, perhaps counted from the end. */
  signed: number
}

type Operator = (drawn: Drawn) => Made[]

const all = (ops: string[], operator: Operator): Record<string, Operator> =>
  Object.fromEntries(ops.map((op) => [op, operator]))

/** For operators that need an axis. */
const along =
  (operator: Operator): Operator =>
  (drawn) =>
    drawn.shape.length === 0 ? [] : operator(drawn)

const unary =
  (make: (d: DrawnGraph, x: string, op: string) => string): Operator =>
  ({ d, op, x, shape }) => [{ value: make(d, x, op), shape }]

/** Of x and a value that broadcasts to it, in any order. */
const binary =
  (make: (d: DrawnGraph, a: string, b: string, op: string) => string): Operator =>
  ({ d, op, x, shape }) => {
    const y = d.find((s) => fits(s, shape))!.value
    return [{ value: d.flag() ? make(d, x, y, op) : make(d, y, x, op), shape }]
  }

const reduction = along(({ d, op, x, shape, axis, signed }) => {
  const keep = d.flag()
  const to = keep ? shape.map((e, k) => (k === axis ? 1 : e)) : shape.filter((_, k) => k !== axis)
  return [{ value: d.g.reduceWithAxes(op, op === 'ReduceProd' ? d.tame(x) : x, [signed], keep), shape: to }]
})

/** A slice's length, element by element. */
function sliceLength(size: number, start: number, end: number, step: number): number {
  const at = (n: number) => (n < 0 ? n + size : n)
  const first = step > 0 ? Math.max(0, at(start)) : Math.min(size - 1, at(start))
  let n = 0
  for (let k = first; k >= 0 && k < size && (step > 0 ? k < at(end) : k > at(end)); k += step) n++
  return n
}

const operators: Record<string, Operator> = {
  ...all(
    ['Tanh', 'Sigmoid', 'Softplus', 'Sin', 'Identity', 'Neg'],
    unary(({ g }, x, op) => g.one(op, [x])),
  ),
  Exp: unary((d, x) => d.positive(x)),
  Log: unary((d, x) => d.g.log(d.g.add(d.positive(x), d.number(0.5)))),
  Sqrt: unary((d, x) => d.g.sqrt(d.positive(x))),
  ConstantPow: unary((d, x) => d.g.pow(d.positive(x), d.number(d.pick([0, 1, 2, 3, 0.5, -1])))),
  ...all(
    ['Add', 'Sub', 'Mul'],
    binary(({ g }, a, b, op) => g.one(op, [a, b])),
  ),
  Div: binary((d, a, b) => d.g.div(a, d.positive(b))),
  Pow: binary((d, a, b) => d.g.pow(d.positive(a), d.tame(b))),
  Where: (drawn) => {
    const { d, shape } = drawn
    const size = shape.at(-1)
    const mask = Array.from({ length: size ?? 1 }, (_, k) => k % 2)
    const condition = d.g.constant(mask, 'bool', size === undefined ? [] : [size])
    return binary((_, a, b) => d.g.where(condition, a, b))(drawn)
  },
  ...all(['ReduceSum', 'ReduceMean', 'ReduceSumSquare', 'ReduceProd', 'ReduceLogSumExp', 'ReduceMax'], reduction),
  ...all(
    ['Softmax', 'LogSoftmax'],
    along(({ d, op, x, shape, signed }) => [{ value: d.g.one(op, [x], { attributes: { axis: i(signed) } }), shape }]),
  ),
  LayerNormalization: ({ d, op, x, shape }) => {
    const scale = d.find((s) => s.length === 1 && s[0] === shape.at(-1))?.value
    if (scale === undefined || shape.length < 2 || shape.at(-1) === 1) return []
    const inputs = [d.g.mul(x, d.number(3)), scale, scale]
    return [{ value: d.g.one(op, inputs, { attributes: { axis: i(-1), epsilon: { f: 0.5 } } }), shape }]
  },
  CumSum: along(({ d, op, x, shape, signed }) => {
    const attributes = { exclusive: i(d.int(0, 1)), reverse: i(d.int(0, 1)) }
    return [{ value: d.g.one(op, [x, d.g.constant([signed], 'int64', [])], { attributes }), shape }]
  }),
  Trilu: ({ d, op, x, shape }) =>
    shape.length < 2 ? [] : [{ value: d.g.one(op, [x], { attributes: { upper: i(d.int(0, 1)) } }), shape }],

  MatMul: along(({ d, x, shape }) => {
    const batch = shape.slice(0, -2)
    const y = d.find(
      (s) => s.length > 0 && s.at(s.length === 1 ? 0 : -2) === shape.at(-1) && fits(s.slice(0, -2), batch),
    )
    if (y === undefined) return []
    const [rows, columns] = [shape.slice(0, -1).slice(batch.length), y.shape.slice(1).slice(-1)]
    return [{ value: d.tame(d.g.matmul(x, y.value)), shape: [...batch, ...rows, ...columns] }]
  }),
  Gemm: ({ d, x, shape }) => {
    const [transA, transB] = [d.flag(), d.flag()]
    const [m, terms] = transA ? [shape[1], shape[0]] : [shape[0], shape[1]]
    const y = d.find((s) => s.length === 2 && s[transB ? 1 : 0] === terms)
    if (shape.length !== 2 || y === undefined) return []
    const to = [m as number, y.shape[transB ? 0 : 1] as number]
    const c = d.find((s) => s.length > 0 && fits(s, to))?.value
    return [{ value: d.tame(d.g.gemm(x, y.value, c, { transA, transB, alpha: 0.5, beta: d.pick([1, 2]) })), shape: to }]
  },
  Einsum: along(({ d, op, x, shape }) => {
    const y = d.find((s) => s.length === 2 && s[0] === shape.at(-1))
    if (y === undefined) return []
    const product = d.g.one(op, [x, y.value], { attributes: { equation: { s: '...i,ij->j...' } } })
    return [{ value: d.tame(product), shape: [y.shape[1] as number, ...shape.slice(0, -1)] }]
  }),
  // softmax(x·yᵀ)·z, whose probabilities other nodes may read too
  Attention: ({ d, x, shape }) => {
    const { g } = d
    const rank = shape.length
    const likeX = (s: number[]) => s.slice(0, -2).join() === shape.slice(0, -2).join() && s.at(-1) === shape.at(-1)
    const y = d.find((s) => s.length === rank && likeX(s))
    if (rank < 2 || y === undefined) return []
    const z = d.find((s) => s.length === rank && s.slice(0, -1).join() === y.shape.slice(0, -1).join()) as Made
    const axes = shape.map((_, k) => k)
    const p = g.softmax(g.matmul(x, g.transpose(y.value, [...axes.slice(0, -2), rank - 1, rank - 2])), -1)
    const made = { value: g.matmul(p, z.value), shape: [...shape.slice(0, -1), z.shape.at(-1) as number] }
    return d.flag() ? [made] : [{ value: p, shape: [...shape.slice(0, -1), y.shape.at(-2) as number] }, made]
  },

  Transpose: ({ d, x, shape }) => {
    const perm = shape.map((_, k) => k)
    for (let k = perm.length - 1; k > 0; k--) perm.push(...perm.splice(d.int(0, k), 1))
    return [{ value: d.g.transpose(x, perm), shape: perm.map((k) => shape[k] as number) }]
  },
  Reshape: ({ d, op, x, shape }) => [
    { value: d.g.one(op, [x, d.ints(-1)], d.typed([count(shape)])), shape: [count(shape)] },
  ],
  Flatten: along(({ d, op, x, shape, axis, signed }) => {
    const to = [count(shape.slice(0, axis)), count(shape.slice(axis))]
    return [{ value: d.g.one(op, [x], { attributes: { axis: i(signed) }, ...d.typed(to) }), shape: to }]
  }),
  Unsqueeze: ({ d, x, shape }) => (shape.length > 3 ? [] : [{ value: d.g.unsqueeze(x, [0]), shape: [1, ...shape] }]),
  Squeeze: along(({ d, x, shape, axis, signed }) =>
    shape[axis] === 1 ? [{ value: d.g.squeeze(x, [signed]), shape: shape.filter((_, k) => k !== axis) }] : [],
  ),
  Expand: ({ d, op, x, shape }) => {
    if (shape.length > 3) return []
    const by = [2, ...shape.map((e) => (e === 1 ? 3 : 1))]
    const to = by.map((n, k) => n * (shape[k - 1] ?? 1))
    return [{ value: d.g.one(op, [x, d.ints(...by)], d.typed(to)), shape: to }]
  },
  Tile: along(({ d, op, x, shape, axis }) => {
    const repeats = shape.map((_, k) => (k === axis ? 2 : 1))
    const to = shape.map((e, k) => e * (repeats[k] as number))
    return count(to) > 60 ? [] : [{ value: d.g.one(op, [x, d.ints(...repeats)], d.typed(to)), shape: to }]
  }),
  Pad: along(({ d, op, x, shape, axis }) => {
    const [before, after] = [
      shape.map((_, k) => (k === axis ? 1 : 0)),
      shape.map((e, k) => (k !== axis ? 0 : e > 1 ? -1 : 1)),
    ]
    const to = shape.map((e, k) => e + (before[k] as number) + (after[k] as number))
    return [{ value: d.g.one(op, [x, d.ints(...before, ...after)], d.typed(to)), shape: to }]
  }),
  Concat: along(({ d, x, shape, axis, signed }) => {
    const y = d.find((s) => s.length === shape.length && s.every((e, k) => k === axis || e === shape[k])) as Made
    const to = shape.map((e, k) => (k === axis ? 2 * e + (y.shape[axis] as number) : e))
    return [{ value: d.g.concat([x, y.value, x], signed), shape: to }]
  }),
  // one or both of the parts are read
  Split: along(({ d, op, x, shape, axis, signed }) => {
    const size = shape[axis] as number
    if (size < 2) return []
    const first = d.int(1, size - 1)
    const sizes = [first, size - first]
    const parts = d.g.node(op, [x, d.ints(...sizes)], { attributes: { axis: i(signed) }, outputs: 2 })
    const unread = d.int(0, 2)
    return parts.flatMap((value, part) =>
      part === unread ? [] : [{ value, shape: shape.map((e, k) => (k === axis ? (sizes[part] as number) : e)) }],
    )
  }),
  Slice: along(({ d, op, x, shape, axis, signed }) => {
    const size = shape[axis] as number
    const step = d.pick([1, 1, 2, -1, -2])
    const [start, end] =
      step > 0
        ? [d.int(-size - 1, size - 1), d.pick([d.int(-size, size + 1), 2 ** 62])]
        : [d.pick([size - 1, -1, 2 ** 62]), d.pick([-size - 1, 0])]
    const length = sliceLength(size, start, end, step)
    if (length === 0) return []
    const to = shape.map((e, k) => (k === axis ? length : e))
    const bounds = [start, end, signed, step].map((n) => d.ints(n))
    return [{ value: d.g.one(op, [x, ...bounds], d.typed(to)), shape: to }]
  }),
  Gather: along(({ d, x, shape, axis, signed }) => {
    const size = shape[axis] as number
    const index = [d.int(-size, size - 1), d.int(0, size - 1), d.int(0, size - 1)]
    const one = d.flag()
    const at = one ? d.g.constant(index.slice(0, 1), 'int64', []) : d.ints(...index)
    return [
      {
        value: d.g.gather(x, at, signed),
        shape: [...shape.slice(0, axis), ...(one ? [] : [3]), ...shape.slice(axis + 1)],
      },
    ]
  }),
}

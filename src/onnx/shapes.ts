import type { Attribute, Dim, DType, Graph, Node, ValueType } from './graph.ts'

/** What a shape rule may look at: the node's attributes, the types of its inputs, and those inputs that are constants. */
export interface ShapeContext {
  op: string
  attributes: Record<string, Attribute>
  inputs: (ValueType | undefined)[]
  /** The integers of input `i` where it is a constant of integers. */
  constant(i: number): number[] | undefined
  /** A name for a dimension that nothing known equals. */
  fresh(): string
  /** How many outputs the node has. */
  outputs: number
}

type ShapeRule = (ctx: ShapeContext) => ValueType[]

/** Integer attribute `name`, or the default. */
export function intAttribute(attributes: Record<string, Attribute>, name: string, otherwise: number): number {
  const a = attributes[name]
  return a !== undefined && 'i' in a ? a.i : otherwise
}

/** Float attribute `name`, or the default. */
export function floatAttribute(attributes: Record<string, Attribute>, name: string, otherwise: number): number {
  const a = attributes[name]
  return a !== undefined && 'f' in a ? a.f : otherwise
}

/** Integer-list attribute `name`, or undefined. */
export function intsAttribute(attributes: Record<string, Attribute>, name: string): number[] | undefined {
  const a = attributes[name]
  return a !== undefined && 'ints' in a ? a.ints : undefined
}

/** The axis as an index from 0; ONNX counts negative axes from the end. */
export function normalAxis(axis: number, rank: number): number {
  const normal = axis < 0 ? axis + rank : axis
  if (normal < 0 || normal >= rank) throw new RangeError(`axis ${axis} is outside a shape of ${rank} dimensions`)
  return normal
}

/** Numpy broadcasting over shapes whose equal symbols are equal sizes; a symbol wins over 1, a number over a symbol. */
export function broadcast(a: Dim[], b: Dim[]): Dim[] {
  const rank = Math.max(a.length, b.length)
  const out: Dim[] = []
  for (let i = 0; i < rank; i++) {
    const x = a[i - rank + a.length] ?? 1
    const y = b[i - rank + b.length] ?? 1
    if (x === y || y === 1) out.push(x)
    else if (x === 1) out.push(y)
    else if (typeof x === 'number' && typeof y === 'number')
      throw new RangeError(`shapes [${a.join(', ')}] and [${b.join(', ')}] do not broadcast`)
    else out.push(typeof x === 'number' ? x : y)
  }
  return out
}

function need(ctx: ShapeContext, i: number): ValueType {
  const type = ctx.inputs[i]
  if (type === undefined) throw new TypeError(`${ctx.op}: the type of input ${i} is not known`)
  return type
}

const same: ShapeRule = (ctx) => [need(ctx, 0)]
const elementwise: ShapeRule = (ctx) => [
  { dtype: need(ctx, 0).dtype, shape: ctx.inputs.map((_, i) => need(ctx, i).shape).reduce(broadcast) },
]
const comparison: ShapeRule = (ctx) => [{ dtype: 'bool', shape: broadcast(need(ctx, 0).shape, need(ctx, 1).shape) }]

function reduced(shape: Dim[], axes: number[] | undefined, keep: boolean): Dim[] {
  const drop = new Set((axes ?? shape.map((_, i) => i)).map((axis) => normalAxis(axis, shape.length)))
  return keep ? shape.map((d, i) => (drop.has(i) ? 1 : d)) : shape.filter((_, i) => !drop.has(i))
}

const reduction: ShapeRule = (ctx) => {
  const x = need(ctx, 0)
  const axes = intsAttribute(ctx.attributes, 'axes') ?? ctx.constant(1)
  const all = axes === undefined && intAttribute(ctx.attributes, 'noop_with_empty_axes', 0) === 1
  return [
    {
      dtype: x.dtype,
      shape: all ? x.shape : reduced(x.shape, axes, intAttribute(ctx.attributes, 'keepdims', 1) === 1),
    },
  ]
}

const matmul = (transA: boolean, transB: boolean, a: ValueType, b: ValueType): ValueType => {
  const swap = (shape: Dim[], yes: boolean): Dim[] =>
    yes ? [...shape.slice(0, -2), shape.at(-1) as Dim, shape.at(-2) as Dim] : shape
  const x = swap(a.shape, transA)
  const y = swap(b.shape, transB)
  if (x.length < 2 || y.length < 2) {
    const batch = broadcast(x.slice(0, -2), y.slice(0, -2))
    const rows = x.length >= 2 ? [x.at(-2) as Dim] : []
    const columns = y.length >= 2 ? [y.at(-1) as Dim] : []
    return { dtype: a.dtype, shape: [...batch, ...rows, ...columns] }
  }
  return { dtype: a.dtype, shape: [...broadcast(x.slice(0, -2), y.slice(0, -2)), x.at(-2) as Dim, y.at(-1) as Dim] }
}

const dtypes: DType[] = []
dtypes[1] = 'float32'
dtypes[2] = 'uint8'
dtypes[3] = 'int8'
dtypes[6] = 'int32'
dtypes[7] = 'int64'
dtypes[9] = 'bool'
dtypes[10] = 'float16'
dtypes[11] = 'float64'
dtypes[16] = 'bfloat16'

/** The number by which ONNX's TensorProto.DataType names an element type. */
export function dtypeNumber(dtype: DType): number {
  return dtypes.indexOf(dtype)
}

/** The element type behind a TensorProto.DataType number; an error for one that graphs here do not use. */
export function dtypeFromNumber(n: number): DType {
  const dtype = dtypes[n]
  if (dtype === undefined) throw new TypeError(`ONNX element type ${n} is not supported`)
  return dtype
}

/** ONNX operator -> types of its outputs. One table serves the graph builder and the reading of graphs made elsewhere. */
export const shapeRules: Record<string, ShapeRule> = {
  ...Object.fromEntries(
    [
      'Neg',
      'Sqrt',
      'Exp',
      'Log',
      'Erf',
      'Tanh',
      'Sigmoid',
      'Softplus',
      'Relu',
      'Abs',
      'Reciprocal',
      'Identity',
      'Softmax',
    ]
      .concat([
        'LogSoftmax',
        'Clip',
        'Gelu',
        'FastGelu',
        'QuickGelu',
        'Not',
        'Sign',
        'Sin',
        'Cos',
        'Floor',
        'Ceil',
        'Round',
      ])
      .concat(['BiasGelu', 'ScatterElements', 'ScatterND', 'CumSum', 'Trilu', 'HardSigmoid', 'RMSNormalization'])
      .map((op) => [op, same]),
  ),
  ...Object.fromEntries(
    ['Add', 'Sub', 'Mul', 'Div', 'Pow', 'Max', 'Min', 'Sum', 'Mod', 'And', 'Or'].map((op) => [op, elementwise]),
  ),
  ...Object.fromEntries(['Equal', 'Less', 'Greater', 'LessOrEqual', 'GreaterOrEqual'].map((op) => [op, comparison])),
  ...Object.fromEntries(
    ['ReduceSum', 'ReduceMean', 'ReduceMax', 'ReduceMin', 'ReduceL2', 'ReduceSumSquare'].map((op) => [op, reduction]),
  ),
  MatMul: (ctx) => [matmul(false, false, need(ctx, 0), need(ctx, 1))],
  FusedMatMul: (ctx) => [
    matmul(
      intAttribute(ctx.attributes, 'transA', 0) === 1,
      intAttribute(ctx.attributes, 'transB', 0) === 1,
      need(ctx, 0),
      need(ctx, 1),
    ),
  ],
  Gemm: (ctx) => [
    matmul(
      intAttribute(ctx.attributes, 'transA', 0) === 1,
      intAttribute(ctx.attributes, 'transB', 0) === 1,
      need(ctx, 0),
      need(ctx, 1),
    ),
  ],
  Transpose: (ctx) => {
    const x = need(ctx, 0)
    const perm = intsAttribute(ctx.attributes, 'perm') ?? x.shape.map((_, i) => x.shape.length - 1 - i)
    return [{ dtype: x.dtype, shape: perm.map((axis) => x.shape[axis] as Dim) }]
  },
  LayerNormalization: (ctx) => {
    const x = need(ctx, 0)
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', -1), x.shape.length)
    const stat: ValueType = { dtype: 'float32', shape: x.shape.map((d, i) => (i >= axis ? 1 : d)) }
    return [x, stat, stat].slice(0, ctx.outputs)
  },
  SimplifiedLayerNormalization: (ctx) => {
    const x = need(ctx, 0)
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', -1), x.shape.length)
    const stat: ValueType = { dtype: 'float32', shape: x.shape.map((d, i) => (i >= axis ? 1 : d)) }
    return [x, stat].slice(0, ctx.outputs)
  },
  Cast: (ctx) => [{ dtype: dtypeFromNumber(intAttribute(ctx.attributes, 'to', 1)), shape: need(ctx, 0).shape }],
  Where: (ctx) => [
    {
      dtype: need(ctx, 1).dtype,
      shape: broadcast(need(ctx, 0).shape, broadcast(need(ctx, 1).shape, need(ctx, 2).shape)),
    },
  ],
  Gather: (ctx) => {
    const x = need(ctx, 0)
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', 0), x.shape.length)
    return [{ dtype: x.dtype, shape: [...x.shape.slice(0, axis), ...need(ctx, 1).shape, ...x.shape.slice(axis + 1)] }]
  },
  GatherElements: (ctx) => [{ dtype: need(ctx, 0).dtype, shape: need(ctx, 1).shape }],
  Concat: (ctx) => {
    const x = need(ctx, 0)
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', 0), x.shape.length)
    const sizes = ctx.inputs.map((_, i) => need(ctx, i).shape[axis] as Dim)
    const total = sizes.every((d) => typeof d === 'number') ? sizes.reduce((a, b) => a + b, 0) : ctx.fresh()
    return [{ dtype: x.dtype, shape: x.shape.map((d, i) => (i === axis ? total : d)) }]
  },
  Unsqueeze: (ctx) => {
    const x = need(ctx, 0)
    const axes = intsAttribute(ctx.attributes, 'axes') ?? ctx.constant(1) ?? []
    const rank = x.shape.length + axes.length
    const at = new Set(axes.map((axis) => normalAxis(axis, rank)))
    const rest = [...x.shape]
    return [{ dtype: x.dtype, shape: Array.from({ length: rank }, (_, i) => (at.has(i) ? 1 : (rest.shift() as Dim))) }]
  },
  Squeeze: (ctx) => {
    const x = need(ctx, 0)
    const axes = intsAttribute(ctx.attributes, 'axes') ?? ctx.constant(1)
    const drop =
      axes === undefined
        ? new Set(x.shape.flatMap((d, i) => (d === 1 ? [i] : [])))
        : new Set(axes.map((axis) => normalAxis(axis, x.shape.length)))
    return [{ dtype: x.dtype, shape: x.shape.filter((_, i) => !drop.has(i)) }]
  },
  Shape: (ctx) => {
    const rank = need(ctx, 0).shape.length
    const start = sliceBound(intAttribute(ctx.attributes, 'start', 0), rank)
    const end = sliceBound(intAttribute(ctx.attributes, 'end', rank), rank)
    return [{ dtype: 'int64', shape: [Math.max(0, end - start)] }]
  },
  Reshape: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const target = ctx.constant(1)
    if (target === undefined) return [{ dtype, shape: unknownSizes(ctx, need(ctx, 1)) }]
    const copyZeros = intAttribute(ctx.attributes, 'allowzero', 0) === 0
    const dims = target.map((d, i): Dim => (d === 0 && copyZeros ? (shape[i] as Dim) : d))
    return [{ dtype, shape: dims.map((d) => (d === -1 ? remainder(shape, dims, ctx) : d)) }]
  },
  Expand: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    return [{ dtype, shape: broadcast(shape, ctx.constant(1) ?? unknownSizes(ctx, need(ctx, 1))) }]
  },
  Slice: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const starts = ctx.constant(1)
    const ends = ctx.constant(2)
    const axes = ctx.inputs[3] === undefined ? starts?.map((_, i) => i) : ctx.constant(3)
    const steps = ctx.inputs[4] === undefined ? starts?.map(() => 1) : ctx.constant(4)
    if (axes === undefined) return [{ dtype, shape: shape.map(() => ctx.fresh()) }]
    const out = [...shape]
    axes.forEach((axis, i) => {
      const at = normalAxis(axis, shape.length)
      const size = shape[at] as Dim
      const [start, end, step] = [starts?.[i], ends?.[i], steps?.[i]]
      out[at] =
        typeof size === 'number' && start !== undefined && end !== undefined && step !== undefined
          ? sliceLength(size, start, end, step)
          : ctx.fresh()
    })
    return [{ dtype, shape: out }]
  },
  Split: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', 0), shape.length)
    const size = shape[axis] as Dim
    const sizes = intsAttribute(ctx.attributes, 'split') ?? ctx.constant(1)
    const chunk = typeof size === 'number' && ctx.inputs[1] === undefined ? Math.ceil(size / ctx.outputs) : undefined
    return Array.from({ length: ctx.outputs }, (_, i) => {
      const part =
        sizes?.[i] ?? (chunk === undefined ? ctx.fresh() : Math.max(0, Math.min(chunk, (size as number) - i * chunk)))
      return { dtype, shape: shape.map((d, j) => (j === axis ? part : d)) }
    })
  },
  ConstantOfShape: (ctx) => {
    const value = ctx.attributes.value
    const dtype = value !== undefined && 't' in value ? value.t.dtype : 'float32'
    return [{ dtype, shape: ctx.constant(0) ?? unknownSizes(ctx, need(ctx, 0)) }]
  },
  Range: (ctx) => {
    const [start, limit, delta] = [ctx.constant(0)?.[0], ctx.constant(1)?.[0], ctx.constant(2)?.[0]]
    const length =
      start === undefined || limit === undefined || delta === undefined
        ? ctx.fresh()
        : Math.max(0, Math.ceil((limit - start) / delta))
    return [{ dtype: need(ctx, 0).dtype, shape: [length] }]
  },
}

/** As many new sizes as the shape vector behind `shape` has elements. */
function unknownSizes(ctx: ShapeContext, shape: ValueType): Dim[] {
  const rank = shape.shape[0]
  if (typeof rank !== 'number') throw new TypeError(`${ctx.op}: the number of dimensions is not known`)
  return Array.from({ length: rank }, () => ctx.fresh())
}

/** The size that Reshape's -1 stands for: what is left of `shape` once the other sizes are divided out. */
function remainder(shape: Dim[], dims: Dim[], ctx: ShapeContext): Dim {
  const symbols = shape.filter((d) => typeof d === 'string')
  let numbers = shape.reduce<number>((product, d) => (typeof d === 'number' ? product * d : product), 1)
  for (const d of dims) {
    if (d === -1) continue
    if (typeof d === 'number') numbers /= d
    else {
      const at = symbols.indexOf(d)
      if (at < 0) return ctx.fresh()
      symbols.splice(at, 1)
    }
  }
  if (symbols.length === 0) return Number.isInteger(numbers) ? numbers : ctx.fresh()
  return symbols.length === 1 && numbers === 1 ? (symbols[0] as Dim) : ctx.fresh()
}

function sliceBound(bound: number, size: number): number {
  return Math.min(size, Math.max(0, bound < 0 ? bound + size : bound))
}

/** How many elements `[start, end)` in steps of `step` takes of a dimension; bounds as ONNX's Slice reads them. */
export function sliceLength(size: number, start: number, end: number, step = 1): number {
  if (step > 0) return Math.max(0, Math.ceil((sliceBound(end, size) - sliceBound(start, size)) / step))
  const down = (bound: number) => Math.min(size - 1, Math.max(-1, bound < 0 ? bound + size : bound))
  return Math.max(0, Math.ceil((down(end) - down(start)) / step))
}

/** Integer constants larger than this are data, and no shape depends on them. */
const MAX_SHAPE_CONSTANT = 64

/**
 * Types of a node's outputs, from the shape rules. `fresh` names dimensions that nothing known equals.
 *
 * @throws Error when the operator has no rule, or when an input's type is missing or does not fit.
 */
export function inferNodeTypes(node: Node, graph: Graph, fresh: () => string): ValueType[] {
  const rule = Object.hasOwn(shapeRules, node.op) ? shapeRules[node.op] : undefined
  if (rule === undefined) throw new Error(`No shape rule for ${node.op}: pass the types of its outputs`)
  return rule({
    op: node.op,
    attributes: node.attributes,
    inputs: node.inputs.map((name) => (name === '' ? undefined : graph.types.get(name))),
    constant: (i) => {
      const tensor = graph.initializers.get(node.inputs[i] ?? '')
      return tensor === undefined || !('data' in tensor) || tensor.data.length > MAX_SHAPE_CONSTANT
        ? undefined
        : Array.from(tensor.data as ArrayLike<number | bigint>, Number)
    },
    fresh,
    outputs: node.outputs.length,
  })
}

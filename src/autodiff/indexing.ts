import {
  type Attribute,
  type Dim,
  type GraphBuilder,
  intAttribute,
  normalAxis,
  stringAttribute,
} from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { dtypeOf, integers, num, once, product, scatterAdd, zeros } from './formulas.ts'
import type { Gradient, GradientRule, RuleContext } from './rule.ts'

const int64 = (g: GraphBuilder, value: number): string => g.constant([value], 'int64', [])

/** The product of sizes as an int64 scalar. */
function count(g: GraphBuilder, dims: Dim[]): string {
  const numbers = dims.filter((d) => typeof d === 'number').reduce((a, b) => a * b, 1)
  return dims
    .filter((d) => typeof d === 'string')
    .map((d) => g.reshape(g.sizeOf(d), []))
    .reduce((n, d) => g.mul(n, d), int64(g, numbers))
}

/** Indices counted from 0, as int64. */
function nonNegative(g: GraphBuilder, index: string, sizes: string): string {
  const i = g.cast(index, 'int64')
  return g.where(g.one('Less', [i, int64(g, 0)]), g.add(i, sizes), i)
}

/**
 * GatherND's indices as rows of x seen as [rows, inner]: with `batch` leading axes in common and indices (i₁, ..., iₖ)
 * into the next k axes of sizes D₁, ..., Dₖ, row = b·D₁⋯Dₖ + Σ iⱼ·Dⱼ₊₁⋯Dₖ for the b-th place of the batch. `inner` is the number of inner axes.
 */
function rowsOf(g: GraphBuilder, x: string, indices: string, batch: number): { rows: string; inner: number } {
  const [shape, index] = [g.shape(x), g.shape(indices)]
  const depth = index.at(-1) as number
  const indexed = shape.slice(batch, batch + depth)
  const strides = indexed.map((_, j) => g.unsqueeze(count(g, indexed.slice(j + 1)), [0]))
  const places = nonNegative(g, indices, g.shapeValue(indexed))
  const row = g.reduceSum(g.mul(places, strides.length === 1 ? (strides[0] as string) : g.concat(strides, 0)), [-1])
  const inner = shape.length - batch - depth
  if (batch === 0) return { rows: row, inner }
  const lead = index.slice(0, batch)
  const start = g.one('Range', [int64(g, 0), count(g, lead), int64(g, 1)], {
    types: [{ dtype: 'int64', shape: [product(lead) ?? g.freshSymbol()] }],
  })
  const offset = g.mul(start, count(g, indexed))
  const ones = index.slice(batch, -1).map(() => 1)
  return { rows: g.add(row, g.reshape(offset, [...lead, ...ones])), inner }
}

/** A value as a matrix: its first `rows` axes, and the others. */
const matrix = (g: GraphBuilder, value: string, rows: number): string =>
  g.one('Flatten', [value], { attributes: { axis: { i: rows } } })

/** Zeros shaped as x with `updates` added where GatherND with these indices took them. */
function scatterRows(g: GraphBuilder, x: string, indices: string, updates: string, batch: number): string {
  const { rows, inner } = rowsOf(g, x, indices, batch)
  const lead = g.shape(rows).length
  const table = matrix(g, zeros(g, x), g.shape(x).length - inner)
  const flat = matrix(g, updates, lead)
  const at = g.expand(matrix(g, rows, lead), g.shape(flat))
  return g.reshape(scatterAdd(g, table, at, flat, 0), g.shape(x))
}

/** data with `updates` at `indices`:  d data = dy but 0 there (dy where they add up), d updates = dy there */
const scatter =
  (op: string, gather: string): GradientRule =>
  ({ dy, node, x: [, indices, updates], g }) => {
    const reduction = stringAttribute(node.attributes, 'reduction', 'none')
    if (reduction !== 'none' && reduction !== 'add')
      throw new InputError(`No gradient for: ${op} with reduction ${reduction} (node "${node.name}")`)
    const axis = node.attributes.axis === undefined ? {} : { axis: node.attributes.axis }
    return [
      () => (reduction === 'add' ? dy : g.one(op, [dy, indices, zeros(g, updates)], { attributes: axis })),
      null,
      () => g.one(gather, [dy, indices], { attributes: axis }),
    ]
  }

/** What Pad added is cut off again by negative pads; its constant was put wherever dx has nothing. */
const pad: GradientRule = ({ dy, node, x, g }) => {
  const mode = stringAttribute(node.attributes, 'mode', 'constant')
  if (mode !== 'constant') throw new InputError(`No gradient for: Pad in mode ${mode} (node "${node.name}")`)
  const [data, pads, value, axes = ''] = x
  const dx = once(() =>
    g.one('Pad', axes === '' ? [dy, g.neg(pads)] : [dy, g.neg(pads), '', axes], { types: [g.type(data)] }),
  )
  const sum = (d: string) =>
    g.reduceSum(
      d,
      g.shape(d).map((_, i) => i),
    )
  return [dx, null, value === '' ? null : () => g.reshape(g.sub(sum(dy), sum(dx())), g.shape(value))]
}

/** dy as [r₀, d₀, r₁, d₁, ...], r the repeats, summed over the repeats. */
const tile: GradientRule = ({ dy, x: [x, repeats], g }) => [
  () => {
    const shape = g.shape(x)
    if (shape.length === 0) return dy
    const times = g.constantOf(repeats)
    const view = shape.flatMap((d, i): Dim[] => [times === undefined ? g.freshSymbol() : Number(times.data[i]), d])
    const pairs = g.concat([g.unsqueeze(repeats, [1]), g.unsqueeze(g.shapeValue(shape), [1])], 1)
    const flat = g.reshape(pairs, [2 * shape.length])
    const split = g.one('Reshape', [dy, flat], { types: [{ dtype: dtypeOf(g, dy), shape: view }] })
    return g.reduceSum(
      split,
      shape.map((_, i) => 2 * i),
    )
  },
]

/** DepthToSpace and SpaceToDepth undo each other. */
function spread({ dy, node, x: [x], g }: RuleContext): string {
  const block = intAttribute(node.attributes, 'blocksize', 1)
  const types = [g.type(x)]
  const attributes = { blocksize: { i: block } }
  if (node.op === 'SpaceToDepth') return g.one('DepthToSpace', [dy], { attributes, types })
  if (stringAttribute(node.attributes, 'mode', 'DCR') === 'DCR')
    return g.one('SpaceToDepth', [dy], { attributes, types })
  // CRD, column, row, depth: [n, c, h, b, w, b] -> [n, c, b, b, h, w]
  const [n, , h, w] = g.shape(x) as [Dim, Dim, Dim, Dim]
  const apart = g.reshape(dy, [n, g.shape(dy)[1] as Dim, h, block, w, block])
  return g.reshape(g.transpose(apart, [0, 1, 3, 5, 2, 4]), g.shape(x))
}

/** The gradient of a slice in its place among zeros; bounds are read at run time where they, or sizes, are symbols. */
function padSlice(ctx: RuleContext): string {
  const { dy, x, g } = ctx
  const { dtype, shape } = g.type(x[0])
  const rank = (ctx.g.shape(x[1])[0] ?? 0) as number
  const axes = (integers(ctx, 'axes', 3) ?? Array.from({ length: rank }, (_, i) => i)).map((axis) =>
    normalAxis(axis, shape.length),
  )
  const steps = integers(ctx, 'steps', 4) ?? axes.map(() => 1)
  const stepped = axes.filter((_, i) => steps[i] !== 1)
  const spread = stepped.reduce((d, axis) => {
    const i = axes.indexOf(axis)
    return spreadSteps(g, d, sliceStart(ctx, i, shape[axis] as Dim, steps[i] as number), {
      axis,
      size: shape[axis] as Dim,
      step: steps[i] as number,
    })
  }, dy)
  if (stepped.length === axes.length) return spread
  const before = shape.map((d, axis) => {
    const i = axes.indexOf(axis)
    return i < 0 || steps[i] !== 1 ? g.constant([0], 'int64') : sliceStart(ctx, i, d, 1)
  })
  const after = shape.map((d, axis) =>
    g.sub(g.sub(g.shapeValue([d]), before[axis] as string), g.shapeValue([g.shape(spread)[axis] as Dim])),
  )
  return g.one('Pad', [spread, g.concat([...before, ...after], 0)], { types: [{ dtype, shape }] })
}

/** Where the i-th sliced axis, of this size, begins, as an int64 vector of one element. */
function sliceStart({ g, x }: RuleContext, i: number, size: Dim, step: number): string {
  const vector = (v: number) => g.constant([v], 'int64')
  const whole = g.shapeValue([size])
  const last = step > 0 ? whole : g.sub(whole, vector(1))
  const constant = g.constantOf(x[1])
  if (constant === undefined) {
    const start = g.cast(g.slice(x[1], 0, i, i + 1), 'int64')
    const counted = g.where(g.one('Less', [start, vector(0)]), g.add(start, whole), start)
    return g.max(g.one('Min', [counted, last]), vector(0))
  }
  const start = Number(constant.data[i])
  return start >= 0 ? g.one('Min', [vector(start), last]) : g.max(g.add(whole, vector(start)), vector(0))
}

/** `d` along `axis` in steps from `start` on, zeros between: the axis grows to `size`. */
function spreadSteps(
  g: GraphBuilder,
  d: string,
  start: string,
  { axis, size, step }: { axis: number; size: Dim; step: number },
): string {
  const shape = g.shape(d)
  const length = shape[axis] as Dim
  const scalar = (value: string) => g.reshape(value, [])
  const steps = g.constant([step], 'int64')
  const end = g.add(start, g.mul(g.shapeValue([length]), steps))
  const places = g.one('Range', [start, end, steps].map(scalar), { types: [{ dtype: 'int64', shape: [length] }] })
  const index = g.expand(
    g.reshape(
      places,
      shape.map((_, i) => (i === axis ? length : 1)),
    ),
    shape,
  )
  const out = g.expand(
    num(g, 0, d),
    shape.map((other, i) => (i === axis ? size : other)),
  )
  return g.one('ScatterElements', [out, index, d], { attributes: { axis: { i: axis } } })
}

/** The rotation by −θ: the same with the sines, input `sines`, negated. Cosines and sines are constants. */
function rotateBack({ dy, node, g }: RuleContext, sines: number): (Gradient | null)[] {
  const inputs = node.inputs.map((input, i) => (i === 0 ? dy : i === sines ? g.neg(input) : input))
  const refuse = () => {
    throw new InputError(`No gradient for: the cosines and sines of RotaryEmbedding (node "${node.name}")`)
  }
  return node.inputs.map((_, i) =>
    i === 0
      ? () => g.one('RotaryEmbedding', inputs, { domain: node.domain, attributes: node.attributes })
      : i === sines || i === sines - 1
        ? refuse
        : null,
  )
}

/** Moving, repeating and picking elements. */
export const indexingGradients: Record<string, GradientRule> = {
  ScatterElements: scatter('ScatterElements', 'GatherElements'),
  ScatterND: scatter('ScatterND', 'GatherND'),
  // dx[index] += dy
  GatherND: ({ dy, node, x: [x, indices], g }) => [
    () => scatterRows(g, x, indices, dy, intAttribute(node.attributes, 'batch_dims', 0)),
  ],
  // dy in its place, zeros around it and between
  Slice: (ctx) => [() => padSlice(ctx)],
  Pad: pad,
  Tile: tile,
  DepthToSpace: (ctx) => [() => spread(ctx)],
  SpaceToDepth: (ctx) => [() => spread(ctx)],
  // The same triangle of dy.
  Trilu: ({ dy, node, x: [, k], g }) => [() => g.one('Trilu', k ? [dy, k] : [dy], { attributes: node.attributes })],
  // y_j = Σ x_i over i ≤ j:  dx_i = Σ dy_j over j ≥ i, the sum from the other end
  CumSum: ({ dy, node, x: [, axis], g }) => {
    const reverse: Attribute = { i: intAttribute(node.attributes, 'reverse', 0) === 1 ? 0 : 1 }
    return [() => g.one('CumSum', [dy, axis], { attributes: { ...node.attributes, reverse } })]
  },
  // Reversing twice is the identity.
  ReverseSequence: ({ dy, node, x: [, lengths], g }) => [
    () => g.one('ReverseSequence', [dy, lengths], { attributes: node.attributes }),
  ],
  // dy where the values came from
  TopK: ({ dy, node, x: [x], y: [, indices], g }) => [
    () => {
      const axis = normalAxis(intAttribute(node.attributes, 'axis', -1), g.shape(x).length)
      return scatterAdd(g, x, indices, dy, axis)
    },
  ],
  // y = R·x with a rotation R for each pair:  dx = Rᵀ·dy, the rotation by −θ
  RotaryEmbedding: (ctx) => rotateBack(ctx, 2),
  'com.microsoft:RotaryEmbedding': (ctx) => rotateBack(ctx, 3),
}

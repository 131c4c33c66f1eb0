import { intAttribute, intsAttribute, stringAttribute } from '../attributes.ts'
import { addDims, floorDivideDims, multiplyDims } from '../dims.ts'
import type { Attribute, Dim, ValueType } from '../graph.ts'
import { all, need, type ShapeContext, type ShapeRule } from './rule.ts'

/** How a window moves over the spatial axes. */
export interface Window {
  kernel: number[]
  strides: number[]
  dilations: number[]
  /** Elements added before and after each axis. */
  before: number[]
  after: number[]
}

/**
 * The window of a convolution or pooling over axes of these sizes, its padding settled.
 *
 * @throws Error where `auto_pad` asks for the size of an axis that is a symbol.
 */
export function windowOf(attributes: Record<string, Attribute>, kernel: number[], sizes: Dim[]): Window {
  const ones = kernel.map(() => 1)
  const strides = intsAttribute(attributes, 'strides') ?? ones
  const dilations = intsAttribute(attributes, 'dilations') ?? ones
  const pads = intsAttribute(attributes, 'pads') ?? kernel.flatMap(() => [0, 0])
  const mode = stringAttribute(attributes, 'auto_pad', 'NOTSET')
  if (mode === 'NOTSET')
    return { kernel, strides, dilations, before: pads.slice(0, kernel.length), after: pads.slice(kernel.length) }
  if (mode === 'VALID') return { kernel, strides, dilations, before: kernel.map(() => 0), after: kernel.map(() => 0) }
  // SAME: ⌈size / stride⌉ results; an odd element of padding goes to the end (UPPER) or the start (LOWER)
  const total = kernel.map((k, i) => {
    const [size, stride] = [sizes[i], strides[i] as number]
    if (typeof size !== 'number') throw new Error(`auto_pad ${mode} needs the sizes of the axes that it pads`)
    const extent = (k - 1) * (dilations[i] as number) + 1
    return Math.max(0, (Math.ceil(size / stride) - 1) * stride + extent - size)
  })
  const half = total.map((t) => Math.floor(t / 2))
  const rest = total.map((t, i) => t - (half[i] as number))
  const upper = mode === 'SAME_UPPER'
  return { kernel, strides, dilations, before: upper ? half : rest, after: upper ? rest : half }
}

/** ⌊(size + padding − d·(k − 1) − 1) / stride⌋ + 1, or ⌈ ⌉ in `ceil_mode` (for a window that begins within the axis). */
function steps(ctx: ShapeContext, size: Dim, w: Window, axis: number): Dim {
  const at = (list: number[]) => list[axis] as number
  const extent = (at(w.kernel) - 1) * at(w.dilations) + 1
  const room = addDims(size, at(w.before) + at(w.after) - extent)
  if (room === undefined) return ctx.fresh()
  if (intAttribute(ctx.attributes, 'ceil_mode', 0) === 1) {
    if (typeof room !== 'number' || typeof size !== 'number') return ctx.fresh()
    const count = Math.ceil(room / at(w.strides)) + 1
    return (count - 1) * at(w.strides) >= size + at(w.before) ? count - 1 : count
  }
  const whole = at(w.strides) === 1 ? room : floorDivideDims(room, at(w.strides))
  return (whole === undefined ? undefined : addDims(whole, 1)) ?? ctx.fresh()
}

function numbers(dims: Dim[]): number[] {
  if (!dims.every((d) => typeof d === 'number')) throw new TypeError('the size of the kernel is not known')
  return dims
}

const convolution: ShapeRule = (ctx) => {
  const { dtype, shape } = need(ctx, 0)
  const weight = need(ctx, 1).shape
  const w = windowOf(ctx.attributes, numbers(weight.slice(2)), shape.slice(2))
  const spatial = shape.slice(2).map((size, axis) => steps(ctx, size, w, axis))
  return [{ dtype, shape: [shape[0] as Dim, weight[0] as Dim, ...spatial] }]
}

/** (size − 1)·stride + output padding + d·(k − 1) + 1 − padding */
const transposed: ShapeRule = (ctx) => {
  const { dtype, shape } = need(ctx, 0)
  const weight = need(ctx, 1).shape
  const kernel = numbers(weight.slice(2))
  const channels = multiplyDims(weight[1] as Dim, intAttribute(ctx.attributes, 'group', 1)) ?? ctx.fresh()
  const given = intsAttribute(ctx.attributes, 'output_shape')
  const same = stringAttribute(ctx.attributes, 'auto_pad', 'NOTSET').startsWith('SAME')
  const extra = intsAttribute(ctx.attributes, 'output_padding') ?? kernel.map(() => 0)
  const { strides, dilations, before, after } = windowOf({ ...ctx.attributes, auto_pad: { s: 'NOTSET' } }, kernel, [])
  const spatial = shape.slice(2).map((size, i): Dim => {
    if (given !== undefined) return given.at(i - kernel.length) as number
    const stride = strides[i] as number
    if (same) return multiplyDims(size, stride) ?? ctx.fresh()
    const extent = ((kernel[i] as number) - 1) * (dilations[i] as number) + 1
    const more = (extra[i] as number) + extent - stride - (before[i] as number) - (after[i] as number)
    const spread = multiplyDims(size, stride)
    return (spread === undefined ? undefined : addDims(spread, more)) ?? ctx.fresh()
  })
  return [{ dtype, shape: [shape[0] as Dim, channels, ...spatial] }]
}

const pooling: ShapeRule = (ctx) => {
  const { dtype, shape } = need(ctx, 0)
  const kernel = intsAttribute(ctx.attributes, 'kernel_shape') ?? []
  const w = windowOf(ctx.attributes, kernel, shape.slice(2))
  const out = [...shape.slice(0, 2), ...shape.slice(2).map((size, axis) => steps(ctx, size, w, axis))]
  const types: ValueType[] = [
    { dtype, shape: out },
    { dtype: 'int64', shape: out },
  ]
  return types.slice(0, ctx.outputs)
}

const global: ShapeRule = (ctx) => {
  const { dtype, shape } = need(ctx, 0)
  return [{ dtype, shape: shape.map((d, axis) => (axis < 2 ? d : 1)) }]
}

/** Convolutions and poolings. */
export const windowShapes: Record<string, ShapeRule> = {
  Conv: convolution,
  ConvTranspose: transposed,
  ...all(['MaxPool', 'AveragePool', 'LpPool'], pooling),
  ...all(['GlobalAveragePool', 'GlobalMaxPool'], global),
}

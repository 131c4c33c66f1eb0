import { type Attribute, elementCount, intAttribute, intsAttribute, normalAxis, type Tensor } from '../onnx/index.ts'
import { integers, type NodeContext } from './values.ts'

type Attributes = Record<string, Attribute>

/** A list of integers that is an attribute in older operator sets and an input in newer ones. */
function given(attributes: Attributes, name: string, input: Tensor | undefined): number[] | undefined {
  return intsAttribute(attributes, name) ?? (input === undefined ? undefined : integers(input))
}

/** Reshape's target: 0 copies a size unless `allowzero`, -1 stands for what is left. */
export function reshapeShape(from: readonly number[], target: readonly number[], attributes: Attributes): number[] {
  const copies = intAttribute(attributes, 'allowzero', 0) === 0
  const shape = target.map((d, i) => (d === 0 && copies ? from[i]! : d))
  const known = elementCount(shape.filter((d) => d !== -1))
  return shape.map((d) => (d === -1 ? (known === 0 ? 0 : elementCount(from) / known) : d))
}

export function squeezeShape(from: readonly number[], attributes: Attributes, input: Tensor | undefined): number[] {
  const axes = given(attributes, 'axes', input)?.map((axis) => normalAxis(axis, from.length))
  return from.filter((d, i) => (axes === undefined ? d !== 1 : !axes.includes(i)))
}

export function unsqueezeShape(from: readonly number[], attributes: Attributes, input: Tensor | undefined): number[] {
  const axes = given(attributes, 'axes', input) ?? []
  const rank = from.length + axes.length
  const added = new Set(axes.map((axis) => normalAxis(axis, rank)))
  const rest = [...from]
  return Array.from({ length: rank }, (_, i) => (added.has(i) ? 1 : rest.shift()!))
}

/** Flatten: the axes before `axis` become one, and those from there on. */
export function flatShape(from: readonly number[], attributes: Attributes): number[] {
  const axis = intAttribute(attributes, 'axis', 1)
  const at = axis < 0 ? axis + from.length : axis
  return [elementCount(from.slice(0, at)), elementCount(from.slice(at))]
}

/** The axes of a reduction, and the shape that it leaves. */
export function reducedAxes(
  attributes: Attributes,
  from: readonly number[],
  input: Tensor | undefined,
): { axes: Set<number>; shape: number[] } {
  const named = given(attributes, 'axes', input) ?? []
  const none = named.length === 0 && intAttribute(attributes, 'noop_with_empty_axes', 0) === 1
  const all = named.length === 0 && !none
  const axes = new Set(all ? from.map((_, i) => i) : named.map((axis) => normalAxis(axis, from.length)))
  const keep = intAttribute(attributes, 'keepdims', 1) === 1
  return { axes, shape: keep ? from.map((d, i) => (axes.has(i) ? 1 : d)) : from.filter((_, i) => !axes.has(i)) }
}

/** Slice's starts, ends, axes and steps, its inputs after the first. */
export function sliceInputs(attributes: Attributes, inputs: (Tensor | undefined)[]) {
  const [starts, ends, axes] = ['starts', 'ends', 'axes'].map((name, i) => given(attributes, name, inputs[i]))
  const steps = inputs[3] === undefined ? undefined : integers(inputs[3])
  return { starts: starts ?? [], ends: ends ?? [], axes, steps }
}

/** The sizes of Split's parts: named, or as equal as they can be. */
export function splitSizes(ctx: NodeContext, size: number, input: Tensor | undefined): number[] {
  const named = given(ctx.attributes, 'split', input)
  if (named !== undefined) return named
  const part = Math.ceil(size / ctx.outputs)
  return Array.from({ length: ctx.outputs }, (_, i) => Math.max(0, Math.min(part, size - i * part)))
}

/** Pad with a constant: how much comes before and after each axis, and the shape that it makes. */
export function padded(
  attributes: Attributes,
  from: readonly number[],
  pads: Tensor | undefined,
  axesInput: Tensor | undefined,
): { before: number[]; after: number[]; shape: number[] } {
  const { mode } = attributes
  if (mode !== undefined && 's' in mode && mode.s !== 'constant')
    throw new TypeError(`padding by "${mode.s}" is not supported`)
  const amounts = given(attributes, 'pads', pads) ?? []
  const axes = axesInput === undefined ? from.map((_, i) => i) : integers(axesInput)
  const before = from.map(() => 0)
  const after = from.map(() => 0)
  axes.forEach((axis, i) => {
    const at = normalAxis(axis, from.length)
    before[at] = amounts[i]!
    after[at] = amounts[i + axes.length]!
  })
  if ([...before, ...after].some((n) => n < 0)) throw new TypeError('padding by a negative amount is not supported')
  return { before, after, shape: from.map((d, i) => d + before[i]! + after[i]!) }
}

import {
  type Attribute,
  type Dim,
  type GraphBuilder,
  intAttribute,
  intsAttribute,
  type Window,
  windowOf,
} from '../onnx/index.ts'
import { equalShares, num, once, scatterAdd, sizeOfAxes, zeros } from './formulas.ts'
import type { GradientRule, RuleContext } from './rule.ts'

const ints = (values: number[]): Attribute => ({ ints: values })

/** A value whose spatial axes are cut, or filled with zeros, at their ends to the sizes of `like`. */
function fitEnds(g: GraphBuilder, value: string, like: string): string {
  const [from, to] = [g.shape(value), g.shape(like)]
  if (from.every((d, axis) => axis < 2 || d === to[axis])) return value
  const more = from.map((d, axis) =>
    axis < 2 ? g.constant([0], 'int64') : g.sub(g.shapeValue([to[axis] as Dim]), g.shapeValue([d])),
  )
  const none = from.map(() => g.constant([0], 'int64'))
  return g.one('Pad', [value, g.concat([...none, ...more], 0)], { types: [g.type(like)] })
}

/**
 * dx of y = x ⋆ W: each dy spread by the kernel to where it came from. Padding before the axes is cut off by the operator;
 * what lies past the last window is filled in, or cut off, afterwards.
 */
function spreadByKernel(g: GraphBuilder, dy: string, kernel: string, x: string, w: Window, group: number): string {
  const pads = ints([...w.before, ...w.kernel.map(() => 0)])
  const attributes = { strides: ints(w.strides), dilations: ints(w.dilations), pads, group: { i: group } }
  return fitEnds(g, g.one('ConvTranspose', [dy, kernel], { attributes }), x)
}

const conv: GradientRule = ({ dy, node, x: [x, kernel], g }) => {
  const shape = g.shape(kernel)
  const group = intAttribute(node.attributes, 'group', 1)
  const window = once(() => windowOf(node.attributes, shape.slice(2) as number[], g.shape(x).slice(2)))
  const swap = (value: string) =>
    g.transpose(
      value,
      g.shape(value).map((_, axis) => (axis < 2 ? 1 - axis : axis)),
    )
  return [
    () => spreadByKernel(g, dy, kernel, x, window(), group),
    () => {
      if (group !== 1) throw new Error(`No gradient for: the kernel of a grouped Conv (node "${node.name}")`)
      // dW = x ⋆ dy over the batch, strides and dilations exchanged
      const { strides, dilations, before, after } = window()
      const attributes = { strides: ints(dilations), dilations: ints(strides), pads: ints([...before, ...after]) }
      const spatial = g.shape(dy).slice(2)
      const known = spatial.every((d) => typeof d === 'number')
      const size = [...shape.slice(0, 2).toReversed(), ...shape.slice(2).map(() => g.freshSymbol())]
      const types = known ? {} : { types: [{ ...g.type(kernel), shape: size }] }
      const found = g.one('Conv', [swap(x), swap(dy)], { attributes, ...types })
      return fitEnds(g, swap(found), kernel)
    },
    () =>
      g.reduceSum(
        dy,
        g.shape(dy).flatMap((_, axis) => (axis === 1 ? [] : [axis])),
      ),
  ]
}

/** Each dy in equal parts for the elements of its window: 1/n, n the elements that are no padding unless that counts. */
const averagePool: GradientRule = ({ dy, node, x: [x], g }) => {
  const { attributes } = node
  if (intAttribute(attributes, 'ceil_mode', 0) === 1)
    throw new Error(`No gradient for: AveragePool with ceil_mode (node "${node.name}")`)
  const [, channels, ...spatial] = g.shape(x) as [Dim, Dim, ...Dim[]]
  if (typeof channels !== 'number') throw new Error(`No gradient for: AveragePool over "${channels}" channels`)
  const window = windowOf(attributes, intsAttribute(attributes, 'kernel_shape') ?? [], spatial)
  const ones = (dims: Dim[]) => g.expand(num(g, 1, dy), dims)
  const counts = () => {
    const { kernel, strides, dilations, before, after } = window
    if (intAttribute(attributes, 'count_include_pad', 0) === 1)
      return num(
        g,
        kernel.reduce((a, b) => a * b, 1),
        dy,
      )
    const pads = ints([...before, ...after])
    return g.one('Conv', [ones([1, 1, ...spatial]), ones([1, 1, ...kernel])], {
      attributes: { strides: ints(strides), dilations: ints(dilations), pads },
    })
  }
  return [() => spreadByKernel(g, g.div(dy, counts()), ones([channels, 1, ...window.kernel]), x, window, channels)]
}

/** dy for the place that each maximum came from, which the operator tells as an index into the whole of x. */
function maxPool({ dy, node, x: [x], g }: RuleContext): string {
  if (intAttribute(node.attributes, 'storage_order', 0) === 1)
    throw new Error(`No gradient for: MaxPool with storage_order (node "${node.name}")`)
  const indices = g.withOutputs(node, 2)[1] as string
  const flat = (value: string) => g.one('Flatten', [value], { attributes: { axis: { i: 0 } } })
  return g.reshape(scatterAdd(g, flat(zeros(g, x)), flat(indices), flat(dy), 1), g.shape(x))
}

/** Convolutions and poolings: y = x ⋆ W. */
export const windowGradients: Record<string, GradientRule> = {
  Conv: conv,
  AveragePool: averagePool,
  MaxPool: (ctx) => [() => maxPool(ctx)],
  // d mean(x) = Σdx / n over the spatial axes
  GlobalAveragePool: ({ dy, x: [x], g }) => [
    () => g.expand(g.div(dy, sizeOfAxes(g, g.shape(x).slice(2), dy)), g.shape(x)),
  ],
  // The largest take the gradient, equals in equal parts.
  GlobalMaxPool: (ctx) => {
    const axes = ctx.g.shape(ctx.x[0]).flatMap((_, axis) => (axis < 2 ? [] : [axis]))
    return equalShares({ ...ctx, node: { ...ctx.node, attributes: { axes: ints(axes) } } })
  },
}

import { elementCount, intAttribute, intsAttribute, stringAttribute } from '../onnx/index.ts'
import { strided, stridesOf } from './index-maps.ts'
import type { Operator, OperatorContext } from './operator.ts'
import { product } from './products.ts'
import { type Float, uploadIndices } from './values.ts'

/** Where a window stands at each of its places: indices into the spatial axes, taken as one; -1 in the padding. */
interface Windows {
  /** How many places there are along each spatial axis. */
  places: number[]
  /** [places, elements of the window] */
  from: Int32Array
  /** How many elements a window has. */
  size: number
}

/** The windows of a convolution or pooling node over spatial axes of these sizes. */
function windowsOf(ctx: OperatorContext, spatial: number[], kernel: number[]): Windows {
  const ones = spatial.map(() => 1)
  const strides = intsAttribute(ctx.attributes, 'strides') ?? ones
  const dilations = intsAttribute(ctx.attributes, 'dilations') ?? ones
  if (intAttribute(ctx.attributes, 'ceil_mode', 0) === 1) throw new TypeError('ceil_mode is not supported')
  const reach = kernel.map((k, i) => (k - 1) * dilations[i]! + 1)
  const auto = stringAttribute(ctx.attributes, 'auto_pad', 'NOTSET')
  const given = intsAttribute(ctx.attributes, 'pads') ?? spatial.map(() => 0).concat(spatial.map(() => 0))
  const padding = spatial.map((size, i): [number, number] => {
    if (auto === 'NOTSET') return [given[i]!, given[i + spatial.length]!]
    if (auto === 'VALID') return [0, 0]
    const total = Math.max(0, (Math.ceil(size / strides[i]!) - 1) * strides[i]! + reach[i]! - size)
    const less = Math.floor(total / 2)
    return auto === 'SAME_UPPER' ? [less, total - less] : [total - less, less]
  })
  const places = spatial.map(
    (size, i) => Math.floor((size + padding[i]![0] + padding[i]![1] - reach[i]!) / strides[i]!) + 1,
  )
  const own = stridesOf(spatial)
  const shape = [...places, ...kernel]
  const outer = stridesOf(shape)
  const rank = spatial.length
  const from = strided(shape, outer).from.map((at) => {
    let index = 0
    for (let i = 0; i < rank; i++) {
      const place = Math.floor(at / outer[i]!) % places[i]!
      const element = Math.floor(at / outer[i + rank]!) % kernel[i]!
      const position = place * strides[i]! + element * dilations[i]! - padding[i]![0]
      if (position < 0 || position >= spatial[i]!) return -1
      index += position * own[i]!
    }
    return index
  })
  return { places, from, size: elementCount(kernel) }
}

/** The elements under every window, [rows · channels, places, elements], with `outside` where the padding is. */
function under(ctx: OperatorContext, { places, from, size }: Windows, outside: number): Float {
  const { tf } = ctx
  const x = ctx.float(0)
  const [rows, channels, ...spatial] = x.shape as [number, number, ...number[]]
  const inner = elementCount(spatial)
  const flat = tf.reshape(x, [rows * channels, inner])
  const padded = tf.concat([flat, tf.fill([rows * channels, 1], outside)], 1)
  const indices = from.map((index) => (index < 0 ? inner : index))
  return tf.reshape(tf.gather(padded, uploadIndices(tf, indices), 1), [rows * channels, elementCount(places), size])
}

const kernelOf = (ctx: OperatorContext): number[] => {
  const kernel = intsAttribute(ctx.attributes, 'kernel_shape')
  if (kernel === undefined) throw new TypeError('kernel_shape is missing')
  return kernel
}

/** A pooling node: every window becomes one number. */
const pool =
  (outside: number, f: (ctx: OperatorContext, columns: Float, windows: Windows) => Float): Operator =>
  (ctx) => {
    if (ctx.outputs > 1) throw new TypeError('the indices of the largest are not supported')
    const [rows, channels, ...spatial] = ctx.float(0).shape as [number, number, ...number[]]
    const windows = windowsOf(ctx, spatial, kernelOf(ctx))
    return ctx.tf.reshape(f(ctx, under(ctx, windows, outside), windows), [rows, channels, ...windows.places])
  }

const globally =
  (f: (ctx: OperatorContext, x: Float, axes: number[]) => Float): Operator =>
  (ctx) => {
    const x = ctx.float(0)
    return f(ctx, x, x.shape.map((_, axis) => axis).slice(2))
  }

/**
 * Convolutions and pooling, for float32: the elements under each window are gathered, and multiplied or reduced. (The wasm backend
 * has no kernel for the gradient of a convolution's filter.)
 */
export const windowOperators: Record<string, Operator> = {
  Conv: (ctx) => {
    const { tf } = ctx
    const [x, w] = [ctx.float(0), ctx.float(1)]
    const [rows, channels, ...spatial] = x.shape as [number, number, ...number[]]
    const groups = intAttribute(ctx.attributes, 'group', 1)
    const filters = w.shape[0]! / groups
    const windows = windowsOf(ctx, spatial, w.shape.slice(2))
    const count = elementCount(windows.places)
    const perFilter = (channels / groups) * windows.size
    // [groups, rows · places, channels · elements] · [groups, filters, channels · elements]ᵀ
    const columns = tf.reshape(under(ctx, windows, 0), [rows, groups, channels / groups, count, windows.size])
    const left = tf.reshape(tf.transpose(columns, [1, 0, 3, 2, 4]), [groups, rows * count, perFilter])
    const y = product(tf, left, tf.reshape(w, [groups, filters, perFilter]), { transB: true })
    const byFilter = tf.transpose(tf.reshape(y, [groups, rows, count, filters]), [1, 0, 3, 2])
    const out = tf.reshape(byFilter, [rows, groups * filters, ...windows.places])
    if (ctx.x[2] === undefined) return out
    return tf.add(out, tf.reshape(ctx.float(2), [1, groups * filters, ...spatial.map(() => 1)]))
  },
  AveragePool: pool(0, (ctx, columns, { places, from, size }) => {
    const all = intAttribute(ctx.attributes, 'count_include_pad', 0) === 1
    const share = Float32Array.from({ length: elementCount(places) }, (_, place) => {
      const window = from.subarray(place * size, (place + 1) * size)
      return 1 / (all ? size : window.filter((index) => index >= 0).length)
    })
    return ctx.tf.mul(ctx.tf.sum(columns, 2), ctx.tf.tensor1d(share))
  }),
  MaxPool: pool(Number.NEGATIVE_INFINITY, (ctx, columns) => ctx.tf.max(columns, 2)),
  GlobalAveragePool: globally(({ tf }, x, axes) => tf.mean(x, axes, true)),
  GlobalMaxPool: globally(({ tf }, x, axes) => tf.max(x, axes, true)),
}

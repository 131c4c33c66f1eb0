import { elementCount, intAttribute, intsAttribute, normalAxis, type Tensor } from '../onnx/index.ts'
import { scatterReduction } from './host.ts'
import {
  broadcastShape,
  elementsMap,
  type IndexMap,
  placesMap,
  rowsOf,
  sliceMap,
  sliceRanges,
  strided,
  stridesOf,
  triangle,
} from './index-maps.ts'
import { axisOf, type Operator, type OperatorContext } from './operator.ts'
import { stretched } from './products.ts'
import { flatShape, padded, reshapeShape, sliceInputs, splitSizes, squeezeShape, unsqueezeShape } from './shapes.ts'
import { download, type Float, int64, integers, type Tfjs, uploadCondition, uploadIndices } from './values.ts'

const reshape =
  (shapeOf: (ctx: OperatorContext, from: number[]) => number[]): Operator =>
  (ctx) =>
    ctx.tf.reshape(ctx.float(0), shapeOf(ctx, ctx.float(0).shape))

/** The elements at the places of the map, whose gradients add up where they are taken from several times. */
function taken(tf: Tfjs, x: Float, { shape, from }: IndexMap): Float {
  const flat = tf.reshape(x, [elementCount(x.shape)])
  return tf.reshape(tf.gather(flat, uploadIndices(tf, from)), shape)
}

/** The rows `indices` along `axis`, in a shape of their own. */
function gathered(
  tf: Tfjs,
  x: Float,
  indices: { shape: number[]; data: ArrayLike<number | bigint> },
  axis: number,
): Float {
  const rows = rowsOf(indices.data, x.shape[axis]!)
  return tf.reshape(tf.gather(x, uploadIndices(tf, rows), axis), [
    ...x.shape.slice(0, axis),
    ...indices.shape,
    ...x.shape.slice(axis + 1),
  ])
}

/**
 * `data` with `updates` at the places of the map (later ones win), or added there. `tf.scatterND` has no gradient; taking every
 * element from where it ends up coming from, and summing by segments, have one.
 */
function scattered(ctx: OperatorContext, { from }: IndexMap): Float {
  const { tf } = ctx
  const [data, updates] = [ctx.float(0), ctx.float(2)]
  const size = elementCount(data.shape)
  const flat = tf.reshape(updates, [from.length])
  if (scatterReduction(ctx) === 'add')
    return tf.add(data, tf.reshape(tf.unsortedSegmentSum(flat, uploadIndices(tf, from), size), data.shape))
  const source = Int32Array.from({ length: size }, (_, i) => i)
  from.forEach((at, i) => {
    source[at] = size + i
  })
  const both = tf.concat([tf.reshape(data, [size]), flat])
  return tf.reshape(tf.gather(both, uploadIndices(tf, source)), data.shape)
}

/** Where the k largest (or smallest) numbers along an axis are, in their order; the first among equals first. */
function topIndices(x: Tensor, axis: number, k: number, largest: boolean): Tensor {
  const strides = stridesOf(x.shape)
  const shape = x.shape.map((size, i) => (i === axis ? k : size))
  const indices = int64(new Array<number>(elementCount(shape)).fill(0), shape)
  const own = stridesOf(shape)
  const starts = (steps: number[]) =>
    strided(
      shape.map((size, i) => (i === axis ? 1 : size)),
      steps,
    ).from
  const to = starts(own)
  starts(strides).forEach((start, row) => {
    const at = (i: number): number => Number(x.data[start + i * strides[axis]!])
    const order = Array.from({ length: x.shape[axis]! }, (_, i) => i)
    order.sort((a, b) => (largest ? at(b) - at(a) : at(a) - at(b)) || a - b)
    for (let i = 0; i < k; i++) (indices.data as BigInt64Array)[to[row]! + i * own[axis]!] = BigInt(order[i]!)
  })
  return indices
}

/** DepthToSpace and back: channels become places in blocks of b × b. */
const blocks =
  (toSpace: boolean): Operator =>
  ({ tf, float, attributes }) => {
    const x = float(0)
    const b = intAttribute(attributes, 'blocksize', 1)
    const [n, c, h, w] = x.shape as [number, number, number, number]
    if (!toSpace) {
      const split = tf.transpose(tf.reshape(x, [n, c, h / b, b, w / b, b]), [0, 3, 5, 1, 2, 4])
      return tf.reshape(split, [n, c * b * b, h / b, w / b])
    }
    const { mode } = attributes
    const columnsFirst = mode !== undefined && 's' in mode && mode.s === 'CRD'
    const channels = c / (b * b)
    const split = tf.reshape(x, columnsFirst ? [n, channels, b, b, h, w] : [n, b, b, channels, h, w])
    const perm = columnsFirst ? [0, 1, 4, 2, 5, 3] : [0, 3, 4, 1, 5, 2]
    return tf.reshape(tf.transpose(split, perm), [n, channels, h * b, w * b])
  }

/** The first elements of each row in the reverse order, the rest as they are. */
const reverseSequence: Operator = ({ tf, float, host, attributes }) => {
  const { shape } = float(0)
  const [batch, time] = [intAttribute(attributes, 'batch_axis', 1), intAttribute(attributes, 'time_axis', 0)]
  const lengths = integers(host(1))
  const own = stridesOf(shape)
  const { from } = strided(shape, own)
  return taken(tf, float(0), {
    shape,
    from: from.map((at) => {
      const place = (axis: number): number => Math.floor(at / own[axis]!) % shape[axis]!
      const [t, length] = [place(time), lengths[place(batch)]!]
      return t < length ? at + (length - 1 - 2 * t) * own[time]! : at
    }),
  })
}

/** Moving, repeating and picking elements. */
export const indexing: Record<string, Operator> = {
  Reshape: reshape((ctx, from) => reshapeShape(from, integers(ctx.host(1)), ctx.attributes)),
  Squeeze: reshape((ctx, from) => squeezeShape(from, ctx.attributes, ctx.optionalHost(1))),
  Unsqueeze: reshape((ctx, from) => unsqueezeShape(from, ctx.attributes, ctx.optionalHost(1))),
  Flatten: reshape((ctx, from) => flatShape(from, ctx.attributes)),
  Transpose: ({ tf, float, attributes }) =>
    tf.transpose(
      float(0),
      intsAttribute(attributes, 'perm') ??
        float(0)
          .shape.map((_, i) => i)
          .toReversed(),
    ),
  Expand: ({ tf, float, host }) => stretched(tf, float(0), broadcastShape(float(0).shape, integers(host(1)))),
  Tile: ({ tf, float, host }) =>
    integers(host(1)).reduce(
      (y, repeats, axis) =>
        repeats === 1
          ? y
          : tf.concat(
              Array.from({ length: repeats }, () => y),
              axis,
            ),
      float(0),
    ),
  Concat: (ctx) =>
    ctx.tf.concat(
      ctx.x.map((_, i) => ctx.float(i)),
      axisOf(ctx, ctx.float(0).rank),
    ),
  Split: (ctx) => {
    const x = ctx.float(0)
    const axis = axisOf(ctx, x.rank)
    return ctx.tf.split(x, splitSizes(ctx, x.shape[axis]!, ctx.optionalHost(1)), axis)
  },
  Slice: ({ tf, x, float, optionalHost, attributes }) => {
    const { shape } = float(0)
    const inputs = sliceInputs(
      attributes,
      x.slice(1).map((_, i) => optionalHost(i + 1)),
    )
    const ranges = sliceRanges(shape, inputs.starts, inputs.ends, inputs.axes, inputs.steps)
    // `tf.stridedSlice` has no gradient
    if (ranges.some(({ step }) => step !== 1)) return taken(tf, float(0), sliceMap(shape, ranges))
    return tf.slice(
      float(0),
      ranges.map(({ start }) => start),
      ranges.map(({ length }) => length),
    )
  },
  Pad: ({ tf, x, float, optionalHost, attributes }) => {
    const { before, after } = padded(attributes, float(0).shape, optionalHost(1), optionalHost(3))
    const value = x[2] === undefined ? 0 : Number(download(float(2)).data[0])
    return tf.pad(
      float(0),
      before.map((n, axis): [number, number] => [n, after[axis]!]),
      value,
    )
  },
  Trilu: ({ tf, float, optionalHost, attributes }) => {
    const { shape } = float(0)
    const k = optionalHost(1)
    const data = triangle(shape, intAttribute(attributes, 'upper', 1) === 1, k === undefined ? 0 : integers(k)[0]!)
    return tf.where(uploadCondition(tf, { dtype: 'bool', shape, data }), float(0), tf.zerosLike(float(0)))
  },
  CumSum: ({ tf, float, host, attributes }) =>
    tf.cumsum(
      float(0),
      normalAxis(integers(host(1))[0]!, float(0).rank),
      intAttribute(attributes, 'exclusive', 0) === 1,
      intAttribute(attributes, 'reverse', 0) === 1,
    ),
  Gather: (ctx) => gathered(ctx.tf, ctx.float(0), ctx.host(1), axisOf(ctx, ctx.float(0).rank)),
  DepthToSpace: blocks(true),
  SpaceToDepth: blocks(false),
  ReverseSequence: reverseSequence,
  GatherElements: (ctx) =>
    taken(ctx.tf, ctx.float(0), elementsMap(ctx.float(0).shape, ctx.host(1), axisOf(ctx, ctx.float(0).rank))),
  GatherND: ({ tf, float, host, attributes }) => {
    if (intAttribute(attributes, 'batch_dims', 0) !== 0) throw new TypeError('batch_dims is not supported')
    return taken(tf, float(0), placesMap(float(0).shape, host(1)))
  },
  ScatterElements: (ctx) =>
    scattered(ctx, elementsMap(ctx.float(0).shape, ctx.host(1), axisOf(ctx, ctx.float(0).rank))),
  ScatterND: (ctx) => scattered(ctx, placesMap(ctx.float(0).shape, ctx.host(1))),
  TopK: (ctx) => {
    const x = ctx.float(0)
    const axis = axisOf(ctx, x.rank, -1)
    const largest = intAttribute(ctx.attributes, 'largest', 1) === 1
    const indices = topIndices(download(x), axis, integers(ctx.host(1))[0]!, largest)
    return [taken(ctx.tf, x, elementsMap(x.shape, indices, axis)), indices]
  },
}

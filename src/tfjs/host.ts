import { dtypeFromNumber, elementCount, intAttribute, intsAttribute, normalAxis, type Tensor } from '../onnx/index.ts'
import { arithmeticInput, hostArithmetic, plusOf } from './host-arithmetic.ts'
import { castTensor, emptyTensor, type HostOperator, isBig, moved, type Numbers, need } from './host-tensors.ts'
import {
  broadcastShape,
  elementsMap,
  expandMap,
  gatherMap,
  type IndexMap,
  placesMap,
  sliceMap,
  sliceRanges,
  stridesOf,
  tileMap,
  transposeMap,
  triangle,
} from './index-maps.ts'
import { flatShape, padded, reshapeShape, sliceInputs, splitSizes, squeezeShape, unsqueezeShape } from './shapes.ts'
import { int64, integers, type NodeContext, reshaped } from './values.ts'

const reshape =
  (shapeOf: (ctx: Parameters<HostOperator>[0]) => number[]): HostOperator =>
  (ctx) =>
    reshaped(need(ctx.x, 0), shapeOf(ctx))

const axisOf = ({ attributes }: NodeContext, rank: number, otherwise = 0): number =>
  normalAxis(intAttribute(attributes, 'axis', otherwise), rank)

/** The value of a Constant node. */
function constant({ attributes, node }: NodeContext): Tensor {
  const { value, value_int, value_ints, value_float, value_floats } = attributes
  if (value !== undefined && 't' in value) return value.t
  if (value_int !== undefined && 'i' in value_int) return int64([value_int.i], [])
  if (value_ints !== undefined && 'ints' in value_ints) return int64(value_ints.ints)
  const float = (numbers: number[], shape: number[]): Tensor => ({
    dtype: 'float32',
    shape,
    data: Float32Array.from(numbers),
  })
  if (value_float !== undefined && 'f' in value_float) return float([value_float.f], [])
  if (value_floats !== undefined && 'floats' in value_floats)
    return float(value_floats.floats, [value_floats.floats.length])
  throw new TypeError(`the Constant "${node.name}" holds no tensor of numbers`)
}

function filled(value: Tensor | undefined, shape: number[]): Tensor {
  const out = emptyTensor(value?.dtype ?? 'float32', shape)
  if (value !== undefined) (out.data as Float32Array).fill((value.data as Float32Array)[0]!)
  return out
}

/** Which of the elements along the last axis is the largest (or smallest); the first among equals unless `last`. */
export function argBest(x: Tensor, axis: number, better: (a: number, b: number) => boolean, last: boolean): Tensor {
  const shape = x.shape.map((d, i) => (i === axis ? 1 : d))
  const own = stridesOf(x.shape)
  const starts = sliceMap(
    x.shape,
    x.shape.map((length, i) => ({ start: 0, length: i === axis ? 1 : length, step: 1 })),
  )
  const out = emptyTensor('int64', shape)
  starts.from.forEach((start, row) => {
    let best = 0
    for (let k = 1; k < x.shape[axis]!; k++) {
      const [value, found] = [Number(x.data[start + k * own[axis]!]), Number(x.data[start + best * own[axis]!])]
      if (better(value, found) || (last && value === found)) best = k
    }
    ;(out.data as BigInt64Array)[row] = BigInt(best)
  })
  return out
}

export const argOperator =
  (better: (a: number, b: number) => boolean): HostOperator =>
  (ctx) => {
    const x = need(ctx.x, 0)
    const axis = axisOf(ctx, x.shape.length)
    const found = argBest(x, axis, better, intAttribute(ctx.attributes, 'select_last_index', 0) === 1)
    if (intAttribute(ctx.attributes, 'keepdims', 1) === 1) return found
    return reshaped(
      found,
      x.shape.filter((_, i) => i !== axis),
    )
  }

/** ONNX operator -> its value on tensors that stay here. */
export const hostOperators: Record<string, HostOperator> = {
  Constant: constant,
  Identity: ({ x }) => need(x, 0),
  Cast: ({ x, attributes }) => castTensor(need(x, 0), dtypeFromNumber(intAttribute(attributes, 'to', 1))),
  CastLike: ({ x }) => castTensor(need(x, 0), need(x, 1).dtype),
  ...hostArithmetic,

  Reshape: reshape(({ x, attributes }) => reshapeShape(need(x, 0).shape, integers(need(x, 1)), attributes)),
  Squeeze: reshape(({ x, attributes }) => squeezeShape(need(x, 0).shape, attributes, x[1])),
  Unsqueeze: reshape(({ x, attributes }) => unsqueezeShape(need(x, 0).shape, attributes, x[1])),
  Flatten: reshape(({ x, attributes }) => flatShape(need(x, 0).shape, attributes)),
  Expand: ({ x }) =>
    moved(need(x, 0), expandMap(need(x, 0).shape, broadcastShape(need(x, 0).shape, integers(need(x, 1))))),
  Transpose: ({ x, attributes }) => {
    const { shape } = need(x, 0)
    const perm = intsAttribute(attributes, 'perm') ?? shape.map((_, i) => i).toReversed()
    return moved(need(x, 0), transposeMap(shape, perm))
  },
  Slice: ({ x, attributes }) => {
    const { starts, ends, axes, steps } = sliceInputs(attributes, x.slice(1))
    return moved(need(x, 0), sliceMap(need(x, 0).shape, sliceRanges(need(x, 0).shape, starts, ends, axes, steps)))
  },
  Split: (ctx) => {
    const x = need(ctx.x, 0)
    const axis = axisOf(ctx, x.shape.length)
    let start = 0
    return splitSizes(ctx, x.shape[axis]!, ctx.x[1]).map((length) => {
      const ranges = x.shape.map((size, i) => ({
        start: i === axis ? start : 0,
        length: i === axis ? length : size,
        step: 1,
      }))
      start += length
      return moved(x, sliceMap(x.shape, ranges))
    })
  },
  Concat: (ctx) => {
    const parts = ctx.x.map((_, i) => need(ctx.x, i))
    const axis = axisOf(ctx, parts[0]!.shape.length)
    const size = parts.reduce((sum, { shape }) => sum + shape[axis]!, 0)
    const out = emptyTensor(
      parts[0]!.dtype,
      parts[0]!.shape.map((d, i) => (i === axis ? size : d)),
    )
    const outer = elementCount(out.shape.slice(0, axis))
    const inner = elementCount(out.shape.slice(axis + 1))
    let start = 0
    for (const { shape, data } of parts) {
      const width = shape[axis]! * inner
      for (let o = 0; o < outer; o++)
        (out.data as Float32Array).set(
          (data as Float32Array).subarray(o * width, (o + 1) * width),
          o * size * inner + start,
        )
      start += width
    }
    return out
  },
  Tile: ({ x }) => moved(need(x, 0), tileMap(need(x, 0).shape, integers(need(x, 1)))),
  Pad: (ctx) => {
    const x = need(ctx.x, 0)
    const { before, shape } = padded(ctx.attributes, x.shape, ctx.x[1], ctx.x[3])
    const out = filled(ctx.x[2] ?? emptyTensor(x.dtype, [1]), shape)
    const ranges = x.shape.map((length, axis) => ({ start: before[axis]!, length, step: 1 }))
    sliceMap(shape, ranges).from.forEach((at, i) => {
      ;(out.data as Numbers)[at] = (x.data as Numbers)[i]!
    })
    return out
  },
  Gather: (ctx) => {
    const x = need(ctx.x, 0)
    return moved(x, gatherMap(x.shape, need(ctx.x, 1), axisOf(ctx, x.shape.length)))
  },
  GatherElements: (ctx) => {
    const x = need(ctx.x, 0)
    return moved(x, elementsMap(x.shape, need(ctx.x, 1), axisOf(ctx, x.shape.length)))
  },
  GatherND: ({ x, attributes }) => {
    if (intAttribute(attributes, 'batch_dims', 0) !== 0) throw new TypeError('batch_dims is not supported')
    return moved(need(x, 0), placesMap(need(x, 0).shape, need(x, 1)))
  },
  ScatterElements: (ctx) => {
    const x = need(ctx.x, 0)
    return scattered(ctx, elementsMap(x.shape, need(ctx.x, 1), axisOf(ctx, x.shape.length)))
  },
  ScatterND: (ctx) => scattered(ctx, placesMap(need(ctx.x, 0).shape, need(ctx.x, 1))),

  ConstantOfShape: ({ x, attributes }) => {
    const { value } = attributes
    return filled(value !== undefined && 't' in value ? value.t : undefined, integers(need(x, 0)))
  },
  Range: ({ x }) => {
    const [start, limit, step] = [need(x, 0), need(x, 1), need(x, 2)]
    const [from, to, by] = [start, limit, step].map((t) => Number(t.data[0])) as [number, number, number]
    const out = emptyTensor(start.dtype, [Math.max(0, Math.ceil((to - from) / by))])
    const big = isBig(start)
    for (let i = 0; i < out.data.length; i++) (out.data as Numbers)[i] = big ? BigInt(from + i * by) : from + i * by
    return out
  },
  CumSum: (ctx) => {
    const x = arithmeticInput(need(ctx.x, 0), 'CumSum')
    const axis = normalAxis(integers(need(ctx.x, 1))[0]!, x.shape.length)
    const exclusive = intAttribute(ctx.attributes, 'exclusive', 0) === 1
    const reverse = intAttribute(ctx.attributes, 'reverse', 0) === 1
    const out = emptyTensor(x.dtype, x.shape)
    const [source, target] = [x.data as Numbers, out.data as Numbers]
    const [length, stride] = [x.shape[axis]!, stridesOf(x.shape)[axis]!]
    const plus = plusOf(x)
    const first = sliceMap(
      x.shape,
      x.shape.map((size, i) => ({ start: 0, length: i === axis ? Math.min(1, size) : size, step: 1 })),
    )
    for (const start of first.from) {
      let sum: number | bigint = isBig(x) ? 0n : 0
      for (let k = 0; k < length; k++) {
        const at = start + (reverse ? length - 1 - k : k) * stride
        const next = plus(sum, source[at]!)
        target[at] = exclusive ? sum : next
        sum = next
      }
    }
    return out
  },
  Trilu: ({ x, attributes }) => {
    const data = need(x, 0)
    const kept = triangle(
      data.shape,
      intAttribute(attributes, 'upper', 1) === 1,
      x[1] === undefined ? 0 : integers(x[1])[0]!,
    )
    const out = emptyTensor(data.dtype, data.shape)
    kept.forEach((keep, i) => {
      if (keep) (out.data as Numbers)[i] = (data.data as Numbers)[i]!
    })
    return out
  },
  OneHot: (ctx) => {
    const [indices, depth, values] = [need(ctx.x, 0), integers(need(ctx.x, 1))[0]!, need(ctx.x, 2)]
    const rank = indices.shape.length + 1
    const axis = axisOf(ctx, rank, -1)
    const shape = [...indices.shape.slice(0, axis), depth, ...indices.shape.slice(axis)]
    const inner = elementCount(indices.shape.slice(axis))
    const out = filled({ ...values, shape: [1] }, shape)
    integers(indices).forEach((index, i) => {
      const row = index < 0 ? index + depth : index
      if (row < 0 || row >= depth) return
      const at = (Math.floor(i / inner) * depth + row) * inner + (i % inner)
      ;(out.data as Numbers)[at] = (values.data as Numbers)[1]!
    })
    return out
  },
  NonZero: ({ x }) => {
    const data = need(x, 0)
    const own = stridesOf(data.shape)
    const places = Array.from(data.data as ArrayLike<number | bigint>, (v, i) => (Number(v) !== 0 ? i : -1)).filter(
      (i) => i >= 0,
    )
    return int64(
      data.shape.flatMap((size, axis) => places.map((at) => Math.floor(at / own[axis]!) % size)),
      [data.shape.length, places.length],
    )
  },

  ArgMax: argOperator((a, b) => a > b),
  ArgMin: argOperator((a, b) => a < b),
}

/** The data with the updates at the places of the map; later ones win, or add up. */
function scattered(ctx: Parameters<HostOperator>[0], { from }: IndexMap): Tensor {
  const data = need(ctx.x, 0)
  const reduction = scatterReduction(ctx)
  const out = emptyTensor(data.dtype, data.shape)
  const [target, updates] = [out.data as Numbers, need(ctx.x, 2).data as Numbers]
  ;(out.data as Float32Array).set(data.data as Float32Array)
  const plus = plusOf(data)
  from.forEach((at, i) => {
    target[at] = reduction === 'add' ? plus(target[at]!, updates[i]!) : updates[i]!
  })
  return out
}

export function scatterReduction({ attributes, node }: NodeContext): 'none' | 'add' {
  const { reduction } = attributes
  const name = reduction !== undefined && 's' in reduction ? reduction.s : 'none'
  if (name !== 'none' && name !== 'add') throw new TypeError(`${node.op} with reduction "${name}" is not supported`)
  return name
}

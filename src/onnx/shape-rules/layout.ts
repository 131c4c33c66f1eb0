import { intAttribute, intsAttribute, normalAxis } from '../attributes.ts'
import { addDims, divideDims, multiplyDims, productOfDims } from '../dims.ts'
import type { Dim } from '../graph.ts'
import {
  all,
  broadcast,
  need,
  type ShapeContext,
  type ShapeRule,
  same,
  sizesFrom,
  sliceLength,
  symbolicSliceLength,
} from './rule.ts'

/** The axes of Squeeze and Unsqueeze: an attribute before opset 13, an input from there on. */
function axesOf(ctx: ShapeContext): number[] | undefined {
  const axes = intsAttribute(ctx.attributes, 'axes') ?? ctx.constant(1)
  if (axes === undefined && ctx.inputs[1] !== undefined) throw new TypeError(`${ctx.op}: its axes are not known`)
  return axes
}

/** The size that Reshape's -1 stands for: what is left of `shape` once the other sizes are divided out. */
function remainder(shape: Dim[], dims: Dim[], ctx: ShapeContext): Dim {
  const left = [...shape]
  const rest = dims.filter((d) => {
    if (d === -1) return false
    const at = left.indexOf(d)
    if (at >= 0) left.splice(at, 1)
    return at < 0
  })
  const [whole, part] = [productOfDims(left), productOfDims(rest)]
  return (whole === undefined || part === undefined ? undefined : divideDims(whole, part)) ?? ctx.fresh()
}

/** Sizes of DepthToSpace (`scale` divides the channels) and SpaceToDepth. */
const blocks =
  (toSpace: boolean): ShapeRule =>
  (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const block = intAttribute(ctx.attributes, 'blocksize', 1)
    const [n, c, h, w] = shape as [Dim, Dim, Dim, Dim]
    const by = (d: Dim, k: number, more: boolean) => (more ? multiplyDims(d, k) : divideDims(d, k)) ?? ctx.fresh()
    return [{ dtype, shape: [n, by(c, block * block, !toSpace), by(h, block, toSpace), by(w, block, toSpace)] }]
  }

/** Operators that move, pick, repeat or put together elements. */
export const layoutShapes: Record<string, ShapeRule> = {
  ...all(['ScatterElements', 'ScatterND', 'Trilu', 'ReverseSequence'], same),
  Transpose: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const perm = intsAttribute(ctx.attributes, 'perm') ?? shape.map((_, i) => shape.length - 1 - i)
    if (perm.length !== shape.length) throw new RangeError('perm does not fit the rank')
    return [{ dtype, shape: perm.map((axis) => shape[normalAxis(axis, shape.length)] as Dim) }]
  },
  Unsqueeze: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const axes = axesOf(ctx) ?? []
    const rank = shape.length + axes.length
    const at = new Set(axes.map((axis) => normalAxis(axis, rank)))
    const rest = [...shape]
    return [{ dtype, shape: Array.from({ length: rank }, (_, i) => (at.has(i) ? 1 : (rest.shift() as Dim))) }]
  },
  Squeeze: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const axes = axesOf(ctx)
    const drop =
      axes === undefined
        ? new Set(shape.flatMap((d, i) => (d === 1 ? [i] : [])))
        : new Set(axes.map((axis) => normalAxis(axis, shape.length)))
    return [{ dtype, shape: shape.filter((_, i) => !drop.has(i)) }]
  },
  Flatten: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const axis = intAttribute(ctx.attributes, 'axis', 1)
    const at = axis === shape.length ? axis : normalAxis(axis, Math.max(1, shape.length))
    const sides = [shape.slice(0, at), shape.slice(at)]
    return [{ dtype, shape: sides.map((side) => productOfDims(side) ?? ctx.fresh()) }]
  },
  Reshape: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const copyZeros = intAttribute(ctx.attributes, 'allowzero', 0) === 0
    const dims = sizesFrom(ctx, 1).map((d, i): Dim => (d === 0 && copyZeros ? (shape[i] as Dim) : d))
    return [{ dtype, shape: dims.map((d) => (d === -1 ? remainder(shape, dims, ctx) : d)) }]
  },
  Expand: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    return [{ dtype, shape: broadcast(shape, sizesFrom(ctx, 1)) }]
  },
  Tile: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const repeats = ctx.dims(1)
    return [
      {
        dtype,
        shape: shape.map((d, i) => {
          const times = repeats?.[i]
          return (times === undefined ? undefined : multiplyDims(d, times)) ?? ctx.fresh()
        }),
      },
    ]
  },
  Concat: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', 0), shape.length)
    const total = ctx.inputs
      .map((_, i) => need(ctx, i).shape[axis] as Dim)
      .reduce<Dim | undefined>((sum, d) => (sum === undefined ? undefined : addDims(sum, d)), 0)
    return [{ dtype, shape: shape.map((d, i) => (i === axis ? (total ?? ctx.fresh()) : d)) }]
  },
  Split: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', 0), shape.length)
    const size = shape[axis] as Dim
    const sizes = intsAttribute(ctx.attributes, 'split') ?? ctx.dims(1)
    const even = sizes === undefined && ctx.inputs[1] === undefined
    const chunk = !even ? undefined : typeof size === 'number' ? Math.ceil(size / ctx.outputs) : undefined
    const part = (i: number): Dim | undefined => {
      if (chunk !== undefined) return Math.max(0, Math.min(chunk, (size as number) - i * chunk))
      return sizes?.[i] ?? (even ? divideDims(size, ctx.outputs) : undefined)
    }
    return Array.from({ length: ctx.outputs }, (_, i) => {
      const length = part(i) ?? ctx.fresh()
      return { dtype, shape: shape.map((d, j) => (j === axis ? length : d)) }
    })
  },
  Slice: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const [starts, ends] = [
      intsAttribute(ctx.attributes, 'starts') ?? ctx.dims(1),
      intsAttribute(ctx.attributes, 'ends') ?? ctx.dims(2),
    ]
    const given = intsAttribute(ctx.attributes, 'axes') ?? ctx.constant(3)
    const axes = given ?? (ctx.inputs[3] === undefined ? starts?.map((_, i) => i) : undefined)
    const steps = ctx.inputs[4] === undefined ? axes?.map(() => 1) : ctx.constant(4)
    if (axes === undefined) return [{ dtype, shape: shape.map(() => ctx.fresh()) }]
    const length = (size: Dim, i: number): Dim | undefined => {
      const [start, end, step] = [starts?.[i], ends?.[i], steps?.[i]]
      if (start === undefined || end === undefined || step === undefined) return undefined
      if (typeof size === 'number' && typeof start === 'number' && typeof end === 'number')
        return sliceLength(size, start, end, step)
      return step === 1 ? symbolicSliceLength(size, start, end) : undefined
    }
    const out = [...shape]
    axes.forEach((axis, i) => {
      const at = normalAxis(axis, shape.length)
      out[at] = length(shape[at] as Dim, i) ?? ctx.fresh()
    })
    return [{ dtype, shape: out }]
  },
  Pad: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const pads = intsAttribute(ctx.attributes, 'pads') ?? ctx.dims(1)
    const given = ctx.constant(3)
    if (given === undefined && ctx.inputs[3] !== undefined) throw new TypeError('Pad: its axes are not known')
    const axes = (given ?? shape.map((_, i) => i)).map((axis) => normalAxis(axis, shape.length))
    const out = [...shape]
    axes.forEach((axis, i) => {
      const [before, after] = [pads?.[i], pads?.[i + axes.length]]
      const sum = before === undefined || after === undefined ? undefined : addDims(before, after)
      out[axis] = (sum === undefined ? undefined : addDims(shape[axis] as Dim, sum)) ?? ctx.fresh()
    })
    return [{ dtype, shape: out }]
  },
  Gather: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', 0), shape.length)
    return [{ dtype, shape: [...shape.slice(0, axis), ...need(ctx, 1).shape, ...shape.slice(axis + 1)] }]
  },
  GatherElements: (ctx) => [{ dtype: need(ctx, 0).dtype, shape: need(ctx, 1).shape }],
  GatherND: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const index = need(ctx, 1).shape
    const depth = index.at(-1)
    if (typeof depth !== 'number') throw new TypeError('GatherND: the length of an index is not known')
    const batch = intAttribute(ctx.attributes, 'batch_dims', 0)
    return [{ dtype, shape: [...index.slice(0, -1), ...shape.slice(batch + depth)] }]
  },
  Compress: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    if (ctx.attributes.axis === undefined) return [{ dtype, shape: [ctx.fresh()] }]
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', 0), shape.length)
    return [{ dtype, shape: shape.map((d, i) => (i === axis ? ctx.fresh() : d)) }]
  },
  DepthToSpace: blocks(true),
  SpaceToDepth: blocks(false),
}

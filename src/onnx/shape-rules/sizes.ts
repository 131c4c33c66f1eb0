import { intAttribute } from '../attributes.ts'
import { divideDims, subtractDims } from '../dims.ts'
import { dtypeFromNumber } from '../dtypes.ts'
import type { Dim } from '../graph.ts'
import { need, type ShapeRule, sizesFrom, sliceBound } from './rule.ts'

/** Operators whose results are about sizes and places: shapes, ranges, filled tensors. */
export const sizeShapes: Record<string, ShapeRule> = {
  Shape: (ctx) => {
    const rank = need(ctx, 0).shape.length
    const start = sliceBound(intAttribute(ctx.attributes, 'start', 0), rank)
    const end = sliceBound(intAttribute(ctx.attributes, 'end', rank), rank)
    return [{ dtype: 'int64', shape: [Math.max(0, end - start)] }]
  },
  Size: () => [{ dtype: 'int64', shape: [] }],
  ConstantOfShape: (ctx) => {
    const value = ctx.attributes.value
    const dtype = value !== undefined && 't' in value ? value.t.dtype : 'float32'
    return [{ dtype, shape: sizesFrom(ctx, 0) }]
  },
  Range: (ctx) => {
    const [start, limit, delta] = [0, 1, 2].map((i) => ctx.dims(i)?.[0])
    const length = (): Dim | undefined => {
      if (start === undefined || limit === undefined || typeof delta !== 'number') return undefined
      if (typeof start === 'number' && typeof limit === 'number') return Math.max(0, Math.ceil((limit - start) / delta))
      const span = subtractDims(limit, start)
      return span === undefined ? undefined : divideDims(span, delta)
    }
    return [{ dtype: need(ctx, 0).dtype, shape: [length() ?? ctx.fresh()] }]
  },
  NonZero: (ctx) => [{ dtype: 'int64', shape: [need(ctx, 0).shape.length, ctx.fresh()] }],
  OneHot: (ctx) => {
    const { shape } = need(ctx, 0)
    const axis = intAttribute(ctx.attributes, 'axis', -1)
    const at = axis < 0 ? axis + shape.length + 1 : axis
    const depth = ctx.dims(1)?.[0] ?? ctx.fresh()
    return [{ dtype: need(ctx, 2).dtype, shape: [...shape.slice(0, at), depth, ...shape.slice(at)] }]
  },
  EyeLike: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const to = intAttribute(ctx.attributes, 'dtype', 0)
    return [{ dtype: to === 0 ? dtype : dtypeFromNumber(to), shape }]
  },
}

import { intAttribute, normalAxis } from '../attributes.ts'
import type { ValueType } from '../graph.ts'
import { all, need, type ShapeContext, type ShapeRule, same } from './rule.ts'

/** The type of a statistic over the axes from attribute `axis` on. */
function statistic(ctx: ShapeContext): ValueType {
  const { shape } = need(ctx, 0)
  const axis = normalAxis(intAttribute(ctx.attributes, 'axis', -1), shape.length)
  return { dtype: 'float32', shape: shape.map((d, i) => (i >= axis ? 1 : d)) }
}

/** Normalisations; their results have the input's type. */
export const normalisationShapes: Record<string, ShapeRule> = {
  ...all(['RMSNormalization', 'GroupNormalization', 'InstanceNormalization', 'LpNormalization'], same),
  ...all(['MeanVarianceNormalization', 'LRN', 'BatchNormalization'], same),
  LayerNormalization: (ctx) => [need(ctx, 0), statistic(ctx), statistic(ctx)].slice(0, ctx.outputs),
  SimplifiedLayerNormalization: (ctx) => [need(ctx, 0), statistic(ctx)].slice(0, ctx.outputs),
}

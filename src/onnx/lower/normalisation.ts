import { floatAttribute } from '../attributes.ts'
import { type Lowering, type LoweringContext, range, refuse, UNFUSED } from './lowering.ts'

/** γ∘(x − mean x)/√(var x + ε) + β over the last axis; β is optional. */
function layerNorm(ctx: LoweringContext, x: string, gamma: string, beta: string, epsilon: number): string {
  return ctx.g.one('LayerNormalization', beta === '' ? [x, gamma] : [x, gamma, beta], {
    attributes: { axis: { i: -1 }, epsilon: { f: epsilon } },
  })
}

/** The statistics of a fused normalisation exist for training in ONNX Runtime, and no export has them. */
function refuseStatistics(ctx: LoweringContext): void {
  if (ctx.asked(1) || ctx.asked(2)) refuse(ctx.node, 'its outputs mean and inv_std_var are read', UNFUSED)
}

/** input + skip (+ bias) */
function skipSum(ctx: LoweringContext, bias: string): string {
  const sum = ctx.g.add(ctx.x(0), ctx.x(1))
  return bias === '' ? sum : ctx.g.add(sum, bias)
}

/** s = input + skip + bias;  outputs LayerNorm(s; γ, β), –, –, s */
export const skipLayerNormalization: Lowering = (ctx) => {
  refuseStatistics(ctx)
  const sum = skipSum(ctx, ctx.x(4))
  return [layerNorm(ctx, sum, ctx.x(2), ctx.x(3), floatAttribute(ctx.node.attributes, 'epsilon', 1e-12)), '', '', sum]
}

/** s = input + skip + bias;  outputs γ∘s/√(mean s² + ε), –, –, s */
export const skipSimplifiedLayerNormalization: Lowering = (ctx) => {
  refuseStatistics(ctx)
  const sum = skipSum(ctx, ctx.x(3))
  const y = ctx.g.one('SimplifiedLayerNormalization', [sum, ctx.x(2)], {
    attributes: { axis: { i: -1 }, epsilon: { f: floatAttribute(ctx.node.attributes, 'epsilon', 1e-12) } },
  })
  return [y, '', '', sum]
}

/** The tables and vectors of an embedding layer, as float values. */
export interface EmbeddingTables {
  word: string
  position: string
  /** '' where the model has no segments. */
  segment: string
  gamma: string
  beta: string
}

/**
 * e = word[input_ids] + position[position_ids, or 0, 1, …] + segment[segment_ids];
 * outputs LayerNorm(e; γ, β), Σ mask (the number of tokens), e
 */
export function embedLayerNorm(
  ctx: LoweringContext,
  tables: EmbeddingTables,
  inputs: { ids: string; segmentIds: string; positionIds: string; mask: string },
): string[] {
  const { g } = ctx
  const length = g.shape(inputs.ids)[1]
  if (length === undefined) refuse(ctx.node, 'input_ids is no matrix [batch, sequence]', UNFUSED)
  const positions = inputs.positionIds === '' ? range(ctx, length) : inputs.positionIds
  let sum = g.add(g.gather(tables.word, inputs.ids), g.gather(tables.position, positions))
  if (tables.segment !== '' && inputs.segmentIds !== '') sum = g.add(sum, g.gather(tables.segment, inputs.segmentIds))
  const y = layerNorm(ctx, sum, tables.gamma, tables.beta, floatAttribute(ctx.node.attributes, 'epsilon', 1e-12))
  const tokens = () =>
    inputs.mask === '' ? refuse(ctx.node, 'its output mask_index is read, but it has no mask', UNFUSED) : inputs.mask
  return [y, ctx.asked(1) ? g.reduceSum(g.cast(tokens(), 'int32'), [1]) : '', sum]
}

export const embedLayerNormalization: Lowering = (ctx) => {
  const { x } = ctx
  return embedLayerNorm(
    ctx,
    { word: x(2), position: x(3), segment: x(4), gamma: x(5), beta: x(6) },
    { ids: x(0), segmentIds: x(1), mask: x(7), positionIds: x(8) },
  )
}

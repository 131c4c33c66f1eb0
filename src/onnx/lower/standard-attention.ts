import { floatAttribute, intAttribute } from '../attributes.ts'
import { attend, causalBias, causalMask, joinHeads, LOWEST, maskOf, refusePast, splitHeads } from './attention.ts'
import { type Lowering, type LoweringContext, refuse, refuseInputs, UNFUSED } from './lowering.ts'

/** Attention of opset 23 on: inputs [batch, heads, length, D] or [batch, length, heads·D], a mask of booleans or a bias. */
export const standardAttention: Lowering = (ctx) => {
  const { g, node, x } = ctx
  const { attributes } = node
  refusePast(ctx, 4, 2)
  refusePast(ctx, 5, 2)
  refuseInputs(ctx, { 6: 'nonpad_kv_seqlen' })
  for (const side of ['left_window_size', 'right_window_size'])
    if (intAttribute(attributes, side, -1) >= 0) refuse(node, `the attribute ${side} is not supported`, UNFUSED)
  const joined = g.shape(x(0)).length === 3
  const counts = ['q_num_heads', 'kv_num_heads', 'kv_num_heads'].map((name) => intAttribute(attributes, name, 0))
  const [query, key, value] = counts.map((count, i) => (joined ? splitHeads(ctx, x(i), count) : x(i))) as [
    string,
    string,
    string,
  ]
  const heads = { query, key, value }
  const isCausal = intAttribute(attributes, 'is_causal', 0) === 1
  const biases = isCausal ? [causalBias(ctx, heads)] : []
  if (x(3) !== '') biases.push(biasOf(ctx, x(3)))
  const attended = attend(ctx, heads, {
    scale: floatAttribute(attributes, 'scale', 0),
    softcap: floatAttribute(attributes, 'softcap', 0),
    biases,
  })
  const y = x(3) === '' ? attended : zeroWhereMasked(ctx, attended, x(3), isCausal ? causalMask(ctx, heads) : undefined)
  return [joined ? joinHeads(ctx, y) : y, key, value]
}

/** A mask of booleans, or of numbers to add, as a bias without infinities: of a row of them, softmax makes NaN. */
function biasOf(ctx: LoweringContext, mask: string): string {
  const { g } = ctx
  if (g.type(mask).dtype === 'bool') return maskOf(ctx, mask)
  return ctx.shared(`finite:${mask}`, () => g.max(mask, g.scalar(LOWEST)))
}

/**
 * 0 for queries to which the mask, together with the causal one, leaves no key. What softmax gives there, the mean of the
 * values, is not what the operator does.
 */
function zeroWhereMasked(ctx: LoweringContext, y: string, mask: string, causal?: string): string {
  const { g } = ctx
  const seesKeys = ctx.shared(`sees:${mask}:${causal}`, () => {
    const allowed = g.type(mask).dtype === 'bool' ? mask : g.one('Greater', [mask, g.scalar(Number.NEGATIVE_INFINITY)])
    const both = causal === undefined ? allowed : g.one('And', [allowed, causal])
    return g.one('Greater', [g.reduceMax(g.cast(both, 'float32'), [-1], true), g.scalar(0)])
  })
  return g.where(seesKeys, y, g.scalar(0))
}

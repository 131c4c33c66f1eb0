import { floatAttribute, intAttribute, intsAttribute } from '../attributes.ts'
import type { GraphBuilder } from '../builder.ts'
import type { Dim } from '../graph.ts'
import {
  fixedSize,
  type Lowering,
  type LoweringContext,
  range,
  refuse,
  refuseAttributes,
  refuseInputs,
  split,
  UNFUSED,
} from './lowering.ts'

/** The lowest float32: added to a score, it leaves that key no weight. */
export const LOWEST = -3.4028234663852886e38

/** Queries [batch, heads, S, D], keys [batch, key heads, T, D] and values [batch, key heads, T, E]. */
export interface Heads {
  query: string
  key: string
  value: string
}

export interface AttentionOptions {
  /** The factor of the scores; 1/√D where it is 0 or absent. */
  scale?: number
  /** Scores become c·tanh(scores/c) where c > 0. */
  softcap?: number
  /** Added to the scores, of shapes that broadcast to [batch, heads, S, T]. */
  biases: string[]
}

/**
 * softmax(scale·Q·Kᵀ + biases)·V as [batch, heads, S, E] (Vaswani et al. 2017). Where there are fewer key heads than
 * query heads, each serves a group of neighbouring query heads (Ainslie et al. 2023).
 */
export function attend(ctx: LoweringContext, heads: Heads, options: AttentionOptions): string {
  const { g } = ctx
  const [, queryHeads, , width] = g.shape(heads.query)
  const [, keyHeads] = g.shape(heads.key)
  const groups =
    fixedSize(ctx.node, 'the number of heads', queryHeads) / fixedSize(ctx.node, 'the number of key heads', keyHeads)
  if (!Number.isInteger(groups)) refuse(ctx.node, `${queryHeads} heads are no groups of ${keyHeads}`, UNFUSED)
  const scale = options.scale || 1 / Math.sqrt(fixedSize(ctx.node, 'the width of a head', width))
  let scores = g.fusedMatmul(heads.query, repeatHeads(g, heads.key, groups), { transB: true, alpha: scale })
  if (options.softcap) {
    const cap = g.scalar(options.softcap)
    scores = g.mul(g.tanh(g.div(scores, cap)), cap)
  }
  const types = [g.type(scores)]
  const biased = options.biases.reduce((sum, bias) => g.one('Add', [sum, bias], { types }), scores)
  return g.matmul(g.softmax(biased, -1), repeatHeads(g, heads.value, groups))
}

/** [batch, heads, T, D], every head `times` times in a row. */
function repeatHeads(g: GraphBuilder, x: string, times: number): string {
  if (times === 1) return x
  const [batch, heads, length, width] = g.shape(x) as [Dim, number, Dim, Dim]
  const repeated = g.expand(g.unsqueeze(x, [2]), [batch, heads, times, length, width])
  return g.reshape(repeated, [batch, heads * times, length, width])
}

/** [batch, length, heads·D] as [batch, heads, length, D]. */
export function splitHeads(ctx: LoweringContext, x: string, heads: number): string {
  const { g } = ctx
  const [batch, length, width] = g.shape(x) as [Dim, Dim, Dim]
  const size = fixedSize(ctx.node, 'the hidden size', width)
  if (heads < 1 || size % heads !== 0) refuse(ctx.node, `${size} columns are no ${heads} heads`, UNFUSED)
  return g.transpose(g.reshape(x, [batch, length, heads, size / heads]), [0, 2, 1, 3])
}

/** [batch, heads, length, D] as [batch, length, heads·D]. */
export function joinHeads(ctx: LoweringContext, x: string): string {
  const { g } = ctx
  const [batch, heads, length, width] = g.shape(x) as [Dim, number, Dim, number]
  return g.reshape(g.transpose(x, [0, 2, 1, 3]), [batch, length, heads * width])
}

/** 0 where `allowed`, `filter` elsewhere; made once for each mask and filter. */
function bias(ctx: LoweringContext, allowed: string, filter: number): string {
  return ctx.shared(`bias:${allowed}:${filter}`, () => ctx.g.where(allowed, ctx.g.scalar(0), ctx.g.scalar(filter)))
}

/** The bias of a mask whose true elements take part. */
export const maskOf = (ctx: LoweringContext, allowed: string): string => bias(ctx, allowed, LOWEST)

/** The bias of {@link causalMask}. */
export const causalBias = (ctx: LoweringContext, heads: Heads, window?: number): string =>
  maskOf(ctx, causalMask(ctx, heads, window))

/**
 * Booleans [S, T]: query i sees the keys j ≤ i, and of those the last `window` ones (all where `window` is undefined).
 */
export function causalMask(ctx: LoweringContext, heads: Heads, window?: number): string {
  const { g } = ctx
  const [S, T] = [g.shape(heads.query)[2] as Dim, g.shape(heads.key)[2] as Dim]
  return ctx.shared(`causal:${S}:${T}:${window}`, () => {
    const [i, j] = [g.unsqueeze(range(ctx, S), [1]), range(ctx, T)]
    const past = g.one('LessOrEqual', [j, i])
    if (window === undefined) return past
    return g.one('And', [past, g.one('Greater', [g.add(j, g.scalar(window, 'int64')), i])])
  })
}

/**
 * The bias of a `mask_index` or `key_padding_mask` input, by its form: lengths [batch], ends and starts [2·batch], or a
 * mask of 0 and 1, [batch, T] or [batch, S, T].
 */
function maskBias(ctx: LoweringContext, mask: string, heads: Heads, filter: number): string {
  const { g } = ctx
  const { dtype, shape } = g.type(mask)
  const [batch, , T] = g.shape(heads.key) as [Dim, Dim, Dim]
  const allowed = ctx.shared(`mask:${mask}:${batch}:${T}`, () => {
    if (shape.length === 1 && shape[0] === batch) return within(ctx, T, mask)
    if (shape.length === 1 && typeof batch === 'number' && shape[0] === 2 * batch) {
      const [ends, starts] = split(g, mask, 0, [batch, batch]) as [string, string]
      return within(ctx, T, ends, starts)
    }
    if (shape.length !== 2 && shape.length !== 3)
      refuse(ctx.node, `a mask of shape [${shape.join(', ')}] for a batch of ${batch} is not supported`, UNFUSED)
    return g.unsqueeze(g.one('Greater', [mask, g.scalar(0, dtype)]), shape.length === 2 ? [1, 2] : [1])
  })
  return bias(ctx, allowed, filter)
}

/** [batch, 1, 1, T]: whether a position lies before the end, and from the start on, of its text. */
function within(ctx: LoweringContext, T: Dim, ends: string, starts?: string): string {
  const { g } = ctx
  const column = (bounds: string) => g.unsqueeze(g.cast(bounds, 'int64'), [1])
  const positions = range(ctx, T)
  const before = g.one('Less', [positions, column(ends)])
  const inside =
    starts === undefined ? before : g.one('And', [before, g.one('GreaterOrEqual', [positions, column(starts)])])
  return g.unsqueeze(inside, [1, 2])
}

/**
 * Keys and values of earlier runs are none here: an input of the graph that could bring them is taken to have length 0,
 * anything else is refused.
 */
export function refusePast(ctx: LoweringContext, input: number, lengthAxis: number): void {
  const past = ctx.x(input)
  if (past === '') return
  const length = ctx.g.shape(past)[lengthAxis]
  if (length === 0 || (ctx.isInput(past) && typeof length === 'string')) return
  refuse(
    ctx.node,
    `it reads past keys and values, "${past}" of length ${length}`,
    'Export the model for feature extraction, without a key-value cache (optimum: --task feature-extraction).',
  )
}

/** The biases that the masks of Attention and MultiHeadAttention stand for. */
function maskBiases(ctx: LoweringContext, heads: Heads, mask: string, added: string): string[] {
  const { attributes } = ctx.node
  return [
    ...(mask === '' ? [] : [maskBias(ctx, mask, heads, floatAttribute(attributes, 'mask_filter_value', -10000))]),
    ...(intAttribute(attributes, 'unidirectional', 0) === 1 ? [causalBias(ctx, heads)] : []),
    ...(added === '' ? [] : [added]),
  ]
}

/**
 * [Q, K, V] = x·W + b, and attention over them (com.microsoft Attention). The product keeps the packed weights as they
 * are; a Split makes the three parts.
 */
export function packedAttention(
  ctx: LoweringContext,
  inputs: { x: string; weights: string; bias: string; mask: string; added: string },
): string[] {
  const { g, node } = ctx
  refuseAttributes(node, ['do_rotary', 'past_present_share_buffer'])
  const heads = intAttribute(node.attributes, 'num_heads', 0)
  const columns = fixedSize(node, 'the width of the weights', g.shape(inputs.weights)[1])
  const sizes = intsAttribute(node.attributes, 'qkv_hidden_sizes') ?? [columns / 3, columns / 3, columns / 3]
  const product = g.matmul(inputs.x, inputs.weights)
  const parts = split(g, inputs.bias === '' ? product : g.add(product, inputs.bias), 2, sizes)
  const [query, key, value] = parts.map((part) => splitHeads(ctx, part, heads)) as [string, string, string]
  const y = attend(
    ctx,
    { query, key, value },
    {
      scale: floatAttribute(node.attributes, 'scale', 0),
      biases: maskBiases(ctx, { query, key, value }, inputs.mask, inputs.added),
    },
  )
  const present = () => g.concat([g.unsqueeze(key, [0]), g.unsqueeze(value, [0])], 0)
  return [joinHeads(ctx, y), ctx.asked(1) ? present() : '']
}

export const attention: Lowering = (ctx) => {
  const { x } = ctx
  refusePast(ctx, 4, 3)
  refuseInputs(ctx, { 6: 'past_sequence_length' })
  return packedAttention(ctx, { x: x(0), weights: x(1), bias: x(2), mask: x(3), added: x(5) })
}

/** com.microsoft MultiHeadAttention: projected queries, keys and values, apart or packed, with their projections' bias. */
export const multiHeadAttention: Lowering = (ctx) => {
  const { g, node, x } = ctx
  refusePast(ctx, 6, 2)
  refusePast(ctx, 7, 2)
  refuseInputs(ctx, { 8: 'past_sequence_length', 9: 'cache_indirection' })
  const heads = intAttribute(node.attributes, 'num_heads', 0)
  const unbiased = projections(ctx, heads)
  const biases = x(3) === '' ? undefined : biasHeads(ctx, x(3), unbiased)
  const [query, key, value] = unbiased.map((part, i) =>
    biases === undefined ? part : g.add(part, biases[i] as string),
  ) as [string, string, string]
  const y = attend(
    ctx,
    { query, key, value },
    {
      scale: floatAttribute(node.attributes, 'scale', 0),
      biases: maskBiases(ctx, { query, key, value }, x(4), x(5)),
    },
  )
  return [joinHeads(ctx, y), key, value]
}

/** Queries, keys and values of MultiHeadAttention as [batch, heads, length, D]. */
function projections(ctx: LoweringContext, heads: number): string[] {
  const { g, x } = ctx
  // [batch, length, heads, n, D]: n matrices side by side in every head
  const unpack = (packed: string, n: number) =>
    split(g, packed, 3, Array<number>(n).fill(1)).map((part) => g.transpose(g.squeeze(part, [3]), [0, 2, 1, 3]))
  const toHeads = (value: string) => (g.shape(value).length === 4 ? value : splitHeads(ctx, value, heads))
  if (g.shape(x(0)).length === 5) return unpack(x(0), 3)
  if (x(1) === '') refuse(ctx.node, 'it has no key', UNFUSED)
  if (g.shape(x(1)).length === 5) return [toHeads(x(0)), ...unpack(x(1), 2)]
  return [toHeads(x(0)), toHeads(x(1)), toHeads(x(2))]
}

/** The parts of a bias [q + k + v] as [heads, 1, D], for values [batch, heads, length, D]. */
function biasHeads(ctx: LoweringContext, bias: string, parts: string[]): string[] {
  const { g, node } = ctx
  const shapes = parts.map((part) => {
    const [, heads, , width] = g.shape(part)
    return [fixedSize(node, 'the number of heads', heads), fixedSize(node, 'the width of a head', width)] as const
  })
  const sizes = shapes.map(([heads, width]) => heads * width)
  return split(g, bias, 0, sizes).map((part, i) => {
    const [heads, width] = shapes[i] as readonly [number, number]
    return g.reshape(part, [heads, 1, width])
  })
}

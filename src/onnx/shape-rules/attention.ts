import { intAttribute, intsAttribute } from '../attributes.ts'
import { addDims, divideDims, multiplyDims } from '../dims.ts'
import type { Dim, ValueType } from '../graph.ts'
import { all, need, type ShapeContext, type ShapeRule, same } from './rule.ts'

const orFresh = (ctx: ShapeContext, d: Dim | undefined): Dim => d ?? ctx.fresh()

/** Heads and width of a head of a [batch, heads, sequence, width] or [batch, sequence, heads·width] input. */
function heads(ctx: ShapeContext, i: number, count: number): { batch: Dim; heads: Dim; sequence: Dim; width: Dim } {
  const { shape } = need(ctx, i)
  if (shape.length === 4) {
    const [batch, h, sequence, width] = shape as [Dim, Dim, Dim, Dim]
    return { batch, heads: h, sequence, width }
  }
  const [batch, sequence, size] = shape as [Dim, Dim, Dim]
  return { batch, heads: count, sequence, width: orFresh(ctx, divideDims(size, count)) }
}

/** Attention of opset 23: Y, present key, present value, and the product of queries and keys. */
const attention: ShapeRule = (ctx) => {
  const { dtype, shape } = need(ctx, 0)
  const [queryHeads, keyHeads] = ['q_num_heads', 'kv_num_heads'].map((n) => intAttribute(ctx.attributes, n, 1))
  const q = heads(ctx, 0, queryHeads as number)
  const k = heads(ctx, 1, keyHeads as number)
  const v = heads(ctx, 2, keyHeads as number)
  const past = ctx.inputs[4]?.shape[2]
  const total = past === undefined ? k.sequence : orFresh(ctx, addDims(past, k.sequence))
  const y = shape.length === 4 ? [q.batch, q.heads, q.sequence, v.width] : [q.batch, q.sequence]
  if (shape.length === 3) y.push(orFresh(ctx, multiplyDims(q.heads, v.width)))
  return [
    { dtype, shape: y },
    { dtype: need(ctx, 1).dtype, shape: [k.batch, k.heads, total, k.width] },
    { dtype: need(ctx, 2).dtype, shape: [v.batch, v.heads, total, v.width] },
    { dtype, shape: [q.batch, q.heads, q.sequence, total] },
  ].slice(0, ctx.outputs)
}

/** com.microsoft Attention and QAttention: one weight [width, q + k + v]; a present of keys and values. */
const packedAttention =
  (pastInput: number): ShapeRule =>
  (ctx) => {
    const x = need(ctx, 0)
    const [batch, sequence] = x.shape as [Dim, Dim]
    const columns = need(ctx, 1).shape[1] as Dim
    const count = intAttribute(ctx.attributes, 'num_heads', 1)
    const size = intsAttribute(ctx.attributes, 'qkv_hidden_sizes')?.[2] ?? orFresh(ctx, divideDims(columns, 3))
    const past = ctx.inputs[pastInput]?.shape[3] ?? 0
    const present = [2, batch, count, orFresh(ctx, addDims(past, sequence)), orFresh(ctx, divideDims(size, count))]
    const dtype = x.dtype === 'int8' || x.dtype === 'uint8' ? need(ctx, 3).dtype : x.dtype
    return [
      { dtype, shape: [batch, sequence, size] },
      { dtype, shape: present },
    ].slice(0, ctx.outputs)
  }

/** com.microsoft MultiHeadAttention: separate projections, or [batch, sequence, heads, 3, width] packed in the query. */
const multiHead: ShapeRule = (ctx) => {
  const { dtype, shape } = need(ctx, 0)
  const count = intAttribute(ctx.attributes, 'num_heads', 1)
  const [batch, sequence] = shape as [Dim, Dim]
  const value = ctx.inputs[2]?.shape
  const width = (): Dim => {
    if (shape.length === 5) return orFresh(ctx, multiplyDims(count, shape[4] as Dim))
    if (value?.length === 4) return orFresh(ctx, multiplyDims(count, value[3] as Dim))
    return value?.[2] ?? (shape[2] as Dim)
  }
  const out = width()
  const length = ctx.inputs[1]?.shape.at(value?.length === 4 ? 2 : 1) ?? sequence
  const past = ctx.inputs[6]?.shape[2] ?? 0
  const present: ValueType = {
    dtype,
    shape: [batch, count, orFresh(ctx, addDims(past, length)), orFresh(ctx, divideDims(out, count))],
  }
  return [{ dtype, shape: [batch, sequence, out] }, present, present].slice(0, ctx.outputs)
}

/** com.microsoft GroupQueryAttention: fewer key than query heads, all projections perhaps packed in the query. */
const groupQuery: ShapeRule = (ctx) => {
  const { dtype, shape } = need(ctx, 0)
  const [batch, sequence, size] = shape as [Dim, Dim, Dim]
  const [count, groups] = ['num_heads', 'kv_num_heads'].map((n) => intAttribute(ctx.attributes, n, 1)) as [
    number,
    number,
  ]
  const packed = ctx.inputs[1] === undefined
  const width = orFresh(ctx, divideDims(size, packed ? count + 2 * groups : count))
  const present: ValueType = { dtype, shape: [batch, groups, ctx.fresh(), width] }
  return [{ dtype, shape: [batch, sequence, orFresh(ctx, multiplyDims(count, width))] }, present, present].slice(
    0,
    ctx.outputs,
  )
}

/** com.microsoft SkipLayerNormalization: the result, mean, inverse deviation, and the sum that was normalised. */
const skipNormalisation: ShapeRule = (ctx) => {
  const x = need(ctx, 0)
  const statistic: ValueType = { dtype: 'float32', shape: [...x.shape.slice(0, -1), 1] }
  return [x, statistic, statistic, x].slice(0, ctx.outputs)
}

/** com.microsoft EmbedLayerNormalization: hidden states, mask index, and the sum of the embeddings. */
const embedding: ShapeRule = (ctx) => {
  const [batch, sequence] = need(ctx, 0).shape as [Dim, Dim]
  const words = need(ctx, 2)
  const dtype = words.dtype === 'int8' || words.dtype === 'uint8' ? 'float32' : words.dtype
  const hidden: ValueType = { dtype, shape: [batch, sequence, words.shape[1] as Dim] }
  return [hidden, { dtype: 'int32' as const, shape: [batch] }, hidden].slice(0, ctx.outputs)
}

/** Attention, and the fused operators of ONNX Runtime around it. */
export const attentionShapes: Record<string, ShapeRule> = {
  Attention: attention,
  RotaryEmbedding: same,
  'com.microsoft:RotaryEmbedding': same,
  'com.microsoft:Attention': packedAttention(4),
  QAttention: packedAttention(8),
  MultiHeadAttention: multiHead,
  GroupQueryAttention: groupQuery,
  ...all(['SkipLayerNormalization', 'SkipSimplifiedLayerNormalization'], skipNormalisation),
  ...all(['EmbedLayerNormalization', 'QEmbedLayerNormalization'], embedding),
}

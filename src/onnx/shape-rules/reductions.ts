import { intAttribute, intsAttribute, normalAxis } from '../attributes.ts'
import type { Dim } from '../graph.ts'
import { all, need, type ShapeRule, same } from './rule.ts'

function reduced(shape: Dim[], axes: number[] | undefined, keep: boolean): Dim[] {
  const drop = new Set((axes ?? shape.map((_, i) => i)).map((axis) => normalAxis(axis, shape.length)))
  return keep ? shape.map((d, i) => (drop.has(i) ? 1 : d)) : shape.filter((_, i) => !drop.has(i))
}

const reduction: ShapeRule = (ctx) => {
  const { dtype, shape } = need(ctx, 0)
  const given = intsAttribute(ctx.attributes, 'axes') ?? ctx.constant(1)
  if (given === undefined && ctx.inputs[1] !== undefined) throw new TypeError(`${ctx.op}: its axes are not known`)
  const axes = given?.length === 0 ? undefined : given
  if (axes === undefined && intAttribute(ctx.attributes, 'noop_with_empty_axes', 0) === 1) return [{ dtype, shape }]
  return [{ dtype, shape: reduced(shape, axes, intAttribute(ctx.attributes, 'keepdims', 1) === 1) }]
}

const argument: ShapeRule = (ctx) => {
  const axis = intAttribute(ctx.attributes, 'axis', 0)
  const keep = intAttribute(ctx.attributes, 'keepdims', 1) === 1
  return [{ dtype: 'int64', shape: reduced(need(ctx, 0).shape, [axis], keep) }]
}

/** Reductions, and what runs along an axis and keeps the shape. */
export const reductionShapes: Record<string, ShapeRule> = {
  ...all(['ReduceSum', 'ReduceMean', 'ReduceMax', 'ReduceMin', 'ReduceProd', 'ReduceL1', 'ReduceL2'], reduction),
  ...all(['ReduceSumSquare', 'ReduceLogSum', 'ReduceLogSumExp'], reduction),
  ...all(['ArgMax', 'ArgMin'], argument),
  ...all(['Softmax', 'LogSoftmax', 'Hardmax', 'CumSum'], same),
  TopK: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    const axis = normalAxis(intAttribute(ctx.attributes, 'axis', -1), shape.length)
    const out = shape.map((d, i) => (i === axis ? (ctx.dims(1)?.[0] ?? ctx.fresh()) : d))
    return [
      { dtype, shape: out },
      { dtype: 'int64', shape: out },
    ]
  },
}

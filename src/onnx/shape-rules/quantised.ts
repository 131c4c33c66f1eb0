import { intAttribute } from '../attributes.ts'
import { dtypeFromNumber } from '../dtypes.ts'
import { productShape } from './products.ts'
import { all, broadcast, need, type ShapeRule, same } from './rule.ts'

/** Operators on quantised tensors, standard ones and ONNX Runtime's. */
export const quantisedShapes: Record<string, ShapeRule> = {
  QuantizeLinear: (ctx) => {
    const to = intAttribute(ctx.attributes, 'output_dtype', 0)
    return [{ dtype: ctx.inputs[2]?.dtype ?? (to === 0 ? 'uint8' : dtypeFromNumber(to)), shape: need(ctx, 0).shape }]
  },
  DequantizeLinear: (ctx) => {
    const to = intAttribute(ctx.attributes, 'output_dtype', 0)
    return [{ dtype: to === 0 ? need(ctx, 1).dtype : dtypeFromNumber(to), shape: need(ctx, 0).shape }]
  },
  DynamicQuantizeLinear: (ctx) => [
    { dtype: 'uint8', shape: need(ctx, 0).shape },
    { dtype: 'float32', shape: [] },
    { dtype: 'uint8', shape: [] },
  ],
  QLinearMatMul: (ctx) => [{ dtype: need(ctx, 7).dtype, shape: productShape(need(ctx, 0).shape, need(ctx, 3).shape) }],
  MatMulIntegerToFloat: (ctx) => [
    { dtype: need(ctx, 2).dtype, shape: productShape(need(ctx, 0).shape, need(ctx, 1).shape) },
  ],
  DynamicQuantizeMatMul: (ctx) => [
    { dtype: need(ctx, 0).dtype, shape: productShape(need(ctx, 0).shape, need(ctx, 1).shape) },
  ],
  MatMulNBits: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    return [{ dtype, shape: [...shape.slice(0, -1), intAttribute(ctx.attributes, 'N', 1)] }]
  },
  ...all(['QLinearAdd', 'QLinearMul'], (ctx) => [
    { dtype: need(ctx, 0).dtype, shape: broadcast(need(ctx, 0).shape, need(ctx, 3).shape) },
  ]),
  ...all(['QLinearSigmoid', 'QLinearLeakyRelu', 'QLinearSoftmax'], same),
}

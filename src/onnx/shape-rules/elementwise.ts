import { intAttribute } from '../attributes.ts'
import { dtypeFromNumber } from '../dtypes.ts'
import { all, broadcast, need, type ShapeRule, same } from './rule.ts'

const broadcasting: ShapeRule = (ctx) => [
  { dtype: need(ctx, 0).dtype, shape: ctx.inputs.map((_, i) => need(ctx, i).shape).reduce(broadcast) },
]
const comparison: ShapeRule = (ctx) => [{ dtype: 'bool', shape: broadcast(need(ctx, 0).shape, need(ctx, 1).shape) }]
const test: ShapeRule = (ctx) => [{ dtype: 'bool', shape: need(ctx, 0).shape }]

/** Operators that map elements to elements. */
export const elementwiseShapes: Record<string, ShapeRule> = {
  ...all(['Neg', 'Abs', 'Sign', 'Sqrt', 'Exp', 'Log', 'Erf', 'Reciprocal', 'Identity', 'Not', 'Clip'], same),
  ...all(['Floor', 'Ceil', 'Round', 'BitwiseNot', 'PRelu'], same),
  ...all(['Sin', 'Cos', 'Tan', 'Asin', 'Acos', 'Atan', 'Sinh', 'Cosh', 'Tanh', 'Asinh', 'Acosh', 'Atanh'], same),
  ...all(['Sigmoid', 'Softplus', 'Softsign', 'Relu', 'LeakyRelu', 'ThresholdedRelu', 'Elu', 'Selu', 'Celu'], same),
  ...all(['HardSigmoid', 'HardSwish', 'Mish', 'Swish', 'Shrink', 'Gelu', 'FastGelu', 'QuickGelu', 'BiasGelu'], same),
  ...all(['Add', 'Sub', 'Mul', 'Div', 'Pow', 'Max', 'Min', 'Sum', 'Mean', 'Mod', 'And', 'Or', 'Xor'], broadcasting),
  ...all(['BitShift', 'BitwiseAnd', 'BitwiseOr', 'BitwiseXor'], broadcasting),
  ...all(['Equal', 'Less', 'Greater', 'LessOrEqual', 'GreaterOrEqual'], comparison),
  ...all(['IsNaN', 'IsInf'], test),
  Cast: (ctx) => [{ dtype: dtypeFromNumber(intAttribute(ctx.attributes, 'to', 1)), shape: need(ctx, 0).shape }],
  CastLike: (ctx) => [{ dtype: need(ctx, 1).dtype, shape: need(ctx, 0).shape }],
  Where: (ctx) => [
    {
      dtype: need(ctx, 1).dtype,
      shape: broadcast(need(ctx, 0).shape, broadcast(need(ctx, 1).shape, need(ctx, 2).shape)),
    },
  ],
  Dropout: (ctx) => {
    const { dtype, shape } = need(ctx, 0)
    return [
      { dtype, shape },
      { dtype: 'bool' as const, shape },
    ].slice(0, ctx.outputs)
  },
}

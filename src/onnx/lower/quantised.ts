import { packedAttention, refusePast } from './attention.ts'
import { type Lowering, type LoweringContext, refuse } from './lowering.ts'
import { embedLayerNorm } from './normalisation.ts'

const FLOAT_MODEL =
  'Train the float model and quantise it afterwards, or quantise dynamically (onnxruntime.quantization.quantize_dynamic) or in QDQ form (quant_format=QuantFormat.QDQ).'

/** A quantised tensor with what makes it float: scale and zero point, one for the tensor or one for each column. */
interface Quantised {
  tensor: string
  scale: string
  /** '' where it is 0. */
  zeroPoint: string
}

/** (weight − zero point)·scale by columns: a node that ONNX Runtime folds when a session is made. */
function dequantised(ctx: LoweringContext, { tensor, scale, zeroPoint }: Quantised): string {
  const { g } = ctx
  return ctx.shared(`dequantised:${tensor}:${scale}:${zeroPoint}`, () => {
    const { shape } = g.type(tensor)
    const single = (value: string) => g.shape(value).every((d) => d === 1)
    const name = `${tensor}_dequantized`
    if (zeroPoint === '' || single(zeroPoint) === single(scale))
      return g.one('DequantizeLinear', zeroPoint === '' ? [tensor, scale] : [tensor, scale, zeroPoint], {
        ...(single(scale) ? {} : { attributes: { axis: { i: 1 } } }),
        types: [{ dtype: 'float32', shape }],
        name,
      })
    return g.mul(g.sub(g.cast(tensor, 'float32'), g.cast(zeroPoint, 'float32')), scale, name)
  })
}

/** A quantised operand as float: an activation is float already, a constant is dequantised. */
function operand(ctx: LoweringContext, { tensor, scale, zeroPoint }: Quantised): string {
  const { dtype } = ctx.g.type(tensor)
  if (dtype === 'float32') return tensor
  if (ctx.isConstant(tensor)) return dequantised(ctx, { tensor, scale, zeroPoint })
  refuse(ctx.node, `its input "${tensor}" is ${dtype}, but no constant and no quantised activation`, FLOAT_MODEL)
}

/** Inputs `at`, `at + 1` and `at + 2` as a tensor, its scale and its zero point. */
const triple = ({ x }: LoweringContext, at: number): Quantised => ({
  tensor: x(at),
  scale: x(at + 1),
  zeroPoint: x(at + 2),
})

/** a·b (+ bias) */
function product(ctx: LoweringContext, a: Quantised, b: Quantised, bias: string): string[] {
  const { g } = ctx
  const y = g.matmul(operand(ctx, a), operand(ctx, b))
  return [bias === '' ? y : g.add(y, bias)]
}

/** Straight-through: q = x, scale 1, zero point 0. */
export const dynamicQuantizeLinear: Lowering = ({ x, g }) => [x(0), g.scalar(1), g.scalar(0)]

/** Straight-through for activations: q = x. A constant keeps its rounding. */
export const quantizeLinear: Lowering = (ctx) => (ctx.isConstant(ctx.x(0)) ? null : [ctx.x(0)])

/** (q − zero point)·scale for integers, which stays; x itself where the activation was not quantised. */
export const dequantizeLinear: Lowering = ({ x, g }) => (g.type(x(0)).dtype === 'float32' ? [x(0)] : null)

export const dynamicQuantizeMatMul: Lowering = (ctx) =>
  product(ctx, { tensor: ctx.x(0), scale: '', zeroPoint: '' }, triple(ctx, 1), ctx.x(4))

export const matMulIntegerToFloat: Lowering = (ctx) => {
  const { x } = ctx
  const a = { tensor: x(0), scale: x(2), zeroPoint: x(4) }
  return product(ctx, a, { tensor: x(1), scale: x(3), zeroPoint: x(5) }, x(6))
}

export const qLinearMatMul: Lowering = (ctx) => product(ctx, triple(ctx, 0), triple(ctx, 3), '')

/** f(a, b) of two tensors with their scales and zero points. */
export const qLinearBinary =
  (op: 'Add' | 'Mul'): Lowering =>
  (ctx) => [ctx.g.one(op, [operand(ctx, triple(ctx, 0)), operand(ctx, triple(ctx, 3))])]

/** Attention whose weights are integers: see `packedAttention`. */
export const qAttention: Lowering = (ctx) => {
  const { x } = ctx
  refusePast(ctx, 8, 3)
  const input = operand(ctx, { tensor: x(0), scale: x(3), zeroPoint: x(6) })
  const weights = operand(ctx, { tensor: x(1), scale: x(4), zeroPoint: x(7) })
  return packedAttention(ctx, { x: input, weights, bias: x(2), mask: x(5), added: '' })
}

/** EmbedLayerNormalization whose tables are integers. */
export const qEmbedLayerNormalization: Lowering = (ctx) => {
  const { x } = ctx
  const table = (i: number, scale: number, zeroPoint: number) =>
    x(i) === '' ? '' : dequantised(ctx, { tensor: x(i), scale: x(scale), zeroPoint: x(zeroPoint) })
  return embedLayerNorm(
    ctx,
    {
      word: table(2, 8, 13),
      position: table(3, 9, 14),
      segment: table(4, 10, 15),
      gamma: table(5, 11, 16),
      beta: table(6, 12, 17),
    },
    { ids: x(0), segmentIds: x(1), mask: x(7), positionIds: '' },
  )
}

/** Integer arithmetic from end to end, whose activations no rule can pass through. */
export const integerArithmetic: Lowering = ({ node }) =>
  refuse(node, `${node.op} computes on quantised activations`, FLOAT_MODEL)

import { floatAttribute } from '../onnx/index.ts'
import type { Operator } from './operator.ts'
import { download, type Float, hostTruth, type NodeContext, type Tfjs, upload, uploadCondition } from './values.ts'

const unary =
  (f: (tf: Tfjs, x: Float, ctx: NodeContext) => Float): Operator =>
  (ctx) =>
    f(ctx.tf, ctx.float(0), ctx)

const alphaOf = ({ attributes }: NodeContext, otherwise: number): number =>
  floatAttribute(attributes, 'alpha', otherwise)

/** min(x, 0): what functions that bend at 0 do their exponential on, so that it cannot overflow above. */
const below = (tf: Tfjs, x: Float): Float => tf.minimum(x, 0)

/** √x whose gradient at 0 is 0, where tfjs's own is infinite: the root of 1 stands in, behind a condition that drops it. */
export function root(tf: Tfjs, x: Float): Float {
  const isZero = hostTruth(download(x), (v) => v === 0)
  if (!(isZero.data as Uint8Array).includes(1)) return tf.sqrt(x)
  const zero = uploadCondition(tf, isZero)
  return tf.where(zero, tf.zerosLike(x), tf.sqrt(tf.where(zero, tf.onesLike(x), x)))
}

/** |x| whose gradient at 0 is 0, where tfjs's own is -1. */
export const magnitude = (tf: Tfjs, x: Float): Float => tf.mul(x, tf.sign(x))

/** x where `test` holds, 0 elsewhere. */
const where = (tf: Tfjs, x: Float, test: (v: number) => boolean): Float =>
  tf.where(uploadCondition(tf, hostTruth(download(x), test)), x, tf.zerosLike(x))

/** ½ x (1 + erf(x/√2)) */
const gelu = (tf: Tfjs, x: Float): Float => tf.mul(tf.mul(x, 0.5), tf.add(tf.erf(tf.mul(x, Math.SQRT1_2)), 1))

/** ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))) */
function tanhGelu(tf: Tfjs, x: Float): Float {
  const cubic = tf.mul(x, tf.add(tf.mul(tf.mul(x, x), 0.044715), 1))
  return tf.mul(tf.mul(x, 0.5), tf.add(tf.tanh(tf.mul(cubic, Math.sqrt(2 / Math.PI))), 1))
}

const hardSigmoid = (tf: Tfjs, x: Float, alpha: number, beta: number): Float =>
  tf.clipByValue(tf.add(tf.mul(x, alpha), beta), 0, 1)

/** Functions of one number, for float32. */
export const activations: Record<string, Operator> = {
  Neg: unary((tf, x) => tf.neg(x)),
  Abs: unary(magnitude),
  Sqrt: unary(root),
  Exp: unary((tf, x) => tf.exp(x)),
  Log: unary((tf, x) => tf.log(x)),
  Reciprocal: unary((tf, x) => tf.reciprocal(x)),
  Floor: unary((tf, x) => tf.floor(x)),
  Ceil: unary((tf, x) => tf.ceil(x)),
  Round: unary((tf, x) => tf.round(x)),
  Sign: unary((tf, x) => tf.sign(x)),
  Sin: unary((tf, x) => tf.sin(x)),
  Cos: unary((tf, x) => tf.cos(x)),
  Tan: unary((tf, x) => tf.tan(x)),
  // the wasm backend has no kernel for sinh: (e^x − e^−x)/2, and (e^x + e^−x)/2, whose own gradient would be a sinh
  Sinh: unary((tf, x) => tf.mul(tf.sub(tf.expm1(x), tf.expm1(tf.neg(x))), 0.5)),
  Cosh: unary((tf, x) => tf.mul(tf.add(tf.exp(x), tf.exp(tf.neg(x))), 0.5)),
  Asin: unary((tf, x) => tf.asin(x)),
  Acos: unary((tf, x) => tf.acos(x)),
  Atan: unary((tf, x) => tf.atan(x)),
  Asinh: unary((tf, x) => tf.asinh(x)),
  Acosh: unary((tf, x) => tf.acosh(x)),
  Atanh: unary((tf, x) => tf.atanh(x)),
  Erf: unary((tf, x) => tf.erf(x)),
  Tanh: unary((tf, x) => tf.tanh(x)),
  Sigmoid: unary((tf, x) => tf.sigmoid(x)),
  Softplus: unary((tf, x) => tf.softplus(x)),

  Relu: unary((tf, x) => tf.relu(x)),
  LeakyRelu: unary((tf, x, ctx) => tf.add(tf.relu(x), tf.mul(below(tf, x), alphaOf(ctx, 0.01)))),
  ThresholdedRelu: unary((tf, x, ctx) => where(tf, x, (v) => v > alphaOf(ctx, 1))),
  PRelu: ({ tf, float }) => tf.add(tf.relu(float(0)), tf.mul(below(tf, float(0)), float(1))),
  // α(eˣ − 1) below 0
  Elu: unary((tf, x, ctx) => tf.add(tf.relu(x), tf.mul(tf.expm1(below(tf, x)), alphaOf(ctx, 1)))),
  // α(e^(x/α) − 1) below 0
  Celu: unary((tf, x, ctx) => {
    const alpha = alphaOf(ctx, 1)
    return tf.add(tf.relu(x), tf.mul(tf.expm1(tf.mul(below(tf, x), 1 / alpha)), alpha))
  }),
  // γ·elu(x)
  Selu: unary((tf, x, ctx) => {
    const elu = tf.add(tf.relu(x), tf.mul(tf.expm1(below(tf, x)), alphaOf(ctx, 1.6732632423543772)))
    return tf.mul(elu, floatAttribute(ctx.attributes, 'gamma', 1.0507009873554805))
  }),
  HardSigmoid: unary((tf, x, ctx) =>
    hardSigmoid(tf, x, alphaOf(ctx, 0.2), floatAttribute(ctx.attributes, 'beta', 0.5)),
  ),
  HardSwish: unary((tf, x) => tf.mul(x, hardSigmoid(tf, x, 1 / 6, 0.5))),
  Softsign: unary((tf, x) => tf.div(x, tf.add(magnitude(tf, x), 1))),
  Mish: unary((tf, x) => tf.mul(x, tf.tanh(tf.softplus(x)))),
  Swish: unary((tf, x, ctx) => tf.mul(x, tf.sigmoid(tf.mul(x, alphaOf(ctx, 1))))),
  // moved towards 0 by a constant, and 0 near it
  Shrink: unary((tf, x, { attributes }) => {
    const lambda = floatAttribute(attributes, 'lambd', 0.5)
    const { data, shape } = download(x)
    const bias = floatAttribute(attributes, 'bias', 0)
    const towards = Float32Array.from(data as Float32Array, (v) => (v > lambda ? -bias : v < -lambda ? bias : 0))
    const kept = where(tf, x, (v) => Math.abs(v) > lambda)
    return tf.add(kept, upload(tf, { dtype: 'float32', shape, data: towards }))
  }),

  Gelu: unary((tf, x, { attributes: { approximate } }) => {
    const tanh = approximate !== undefined && 's' in approximate && approximate.s === 'tanh'
    return tanh ? tanhGelu(tf, x) : gelu(tf, x)
  }),
  BiasGelu: ({ tf, float }) => gelu(tf, tf.add(float(0), float(1))),
  FastGelu: ({ tf, x, float }) => tanhGelu(tf, x[1] === undefined ? float(0) : tf.add(float(0), float(1))),
  QuickGelu: unary((tf, x, ctx) => tf.mul(x, tf.sigmoid(tf.mul(x, alphaOf(ctx, 1.702))))),
}

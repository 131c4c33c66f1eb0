import { elementCount, floatAttribute, intAttribute, intsAttribute } from '../onnx/index.ts'
import { magnitude, root } from './activations.ts'
import { axisOf, type Operator, type OperatorContext } from './operator.ts'
import type { Float, Tfjs } from './values.ts'

const epsilonOf = (ctx: OperatorContext): number => floatAttribute(ctx.attributes, 'epsilon', 1e-5)

const trailingAxes = (ctx: OperatorContext, rank: number): number[] => {
  const first = axisOf(ctx, rank, -1)
  return Array.from({ length: rank - first }, (_, i) => first + i)
}

/** (x − μ)·r over some axes, with μ and r = 1/√(mean (x − μ)² + ε). */
function standardised(tf: Tfjs, x: Float, axes: number[], epsilon: number): { y: Float; mean: Float; r: Float } {
  const mean = tf.mean(x, axes, true)
  const centred = tf.sub(x, mean)
  const r = tf.rsqrt(tf.add(tf.mean(tf.mul(centred, centred), axes, true), epsilon))
  return { y: tf.mul(centred, r), mean, r }
}

/** A value for each channel, axis 1 of x. */
const perChannel = (tf: Tfjs, value: Float, x: Float): Float =>
  tf.reshape(
    value,
    x.shape.map((_, axis) => (axis === 1 ? value.size : 1)),
  )

/** y = x·r∘γ, r = 1/√(mean x² + ε); a further output r. */
const rmsNormalization: Operator = (ctx) => {
  const { tf } = ctx
  const x = ctx.float(0)
  const squares = tf.mean(tf.mul(x, x), trailingAxes(ctx, x.rank), true)
  const r = tf.rsqrt(tf.add(squares, epsilonOf(ctx)))
  return [tf.mul(tf.mul(x, r), ctx.float(1)), r].slice(0, ctx.outputs)
}

/** Softmax along any axis; `tf.softmax` knows the last one. */
function alongLast(ctx: OperatorContext, f: (x: Float) => Float): Float {
  const x = ctx.float(0)
  const axis = axisOf(ctx, x.rank, -1)
  if (axis === x.rank - 1) return f(x)
  const perm = x.shape.map((_, i) => (i === axis ? x.rank - 1 : i === x.rank - 1 ? axis : i))
  return ctx.tf.transpose(f(ctx.tf.transpose(x, perm)), perm)
}

/** Normalisations and the softmax family, for float32. */
export const normalisations: Record<string, Operator> = {
  Softmax: (ctx) => alongLast(ctx, (x) => ctx.tf.softmax(x)),
  LogSoftmax: (ctx) => alongLast(ctx, (x) => ctx.tf.logSoftmax(x)),
  // y = (x − μ)·r∘γ + β; further outputs μ and r
  LayerNormalization: (ctx) => {
    const { tf } = ctx
    const x = ctx.float(0)
    const { y, mean, r } = standardised(tf, x, trailingAxes(ctx, x.rank), epsilonOf(ctx))
    const scaled = tf.mul(y, ctx.float(1))
    return [ctx.x[2] === undefined ? scaled : tf.add(scaled, ctx.float(2)), mean, r].slice(0, ctx.outputs)
  },
  SimplifiedLayerNormalization: rmsNormalization,
  RMSNormalization: rmsNormalization,
  // per channel, over the axes after it
  InstanceNormalization: (ctx) => {
    const { tf } = ctx
    const x = ctx.float(0)
    const axes = x.shape.map((_, axis) => axis).slice(2)
    const { y } = standardised(tf, x, axes, epsilonOf(ctx))
    return tf.add(tf.mul(y, perChannel(tf, ctx.float(1), x)), perChannel(tf, ctx.float(2), x))
  },
  // over groups of channels; γ and β have a value for each channel (before opset 21, for each group)
  GroupNormalization: (ctx) => {
    const { tf } = ctx
    const x = ctx.float(0)
    const [rows, channels] = x.shape as [number, number]
    const groups = intAttribute(ctx.attributes, 'num_groups', 1)
    const size = elementCount(x.shape.slice(1)) / groups
    const grouped = tf.reshape(x, [rows, groups, size])
    const { y } = standardised(tf, grouped, [2], epsilonOf(ctx))
    const byChannel = (value: Float): Float =>
      value.size === channels
        ? value
        : tf.reshape(tf.mul(tf.reshape(value, [groups, 1]), tf.ones([groups, channels / groups])), [channels])
    const scale = perChannel(tf, byChannel(ctx.float(1)), x)
    return tf.add(tf.mul(tf.reshape(y, x.shape), scale), perChannel(tf, byChannel(ctx.float(2)), x))
  },
  MeanVarianceNormalization: (ctx) => {
    const { tf } = ctx
    const x = ctx.float(0)
    const axes = intsAttribute(ctx.attributes, 'axes') ?? [0, 2, 3]
    const centred = tf.sub(x, tf.mean(x, axes, true))
    return tf.div(centred, tf.add(tf.sqrt(tf.mean(tf.mul(centred, centred), axes, true)), 1e-9))
  },
  // inference: mean and variance are given
  BatchNormalization: (ctx) => {
    const { tf } = ctx
    const [x, scale, bias, mean, variance] = [0, 1, 2, 3, 4].map((i) => ctx.float(i)) as [Float, ...Float[]]
    if (ctx.outputs > 1 || intAttribute(ctx.attributes, 'training_mode', 0) === 1)
      throw new TypeError('BatchNormalization in training mode is not supported')
    const r = tf.rsqrt(tf.add(variance!, epsilonOf(ctx)))
    const y = tf.mul(tf.sub(x, perChannel(tf, mean!, x)), perChannel(tf, tf.mul(r, scale!), x))
    return tf.add(y, perChannel(tf, bias!, x))
  },
  // x / ‖x‖ of order 1 or 2 along an axis
  LpNormalization: (ctx) => {
    const { tf } = ctx
    const x = ctx.float(0)
    const axis = axisOf(ctx, x.rank, -1)
    const norm =
      intAttribute(ctx.attributes, 'p', 2) === 1
        ? tf.sum(magnitude(tf, x), axis, true)
        : root(tf, tf.sum(tf.mul(x, x), axis, true))
    return tf.div(x, norm)
  },
}

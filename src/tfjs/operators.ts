import { type DType, dtypeFromNumber, floatAttribute, intAttribute } from '../onnx/index.ts'
import { activations, magnitude, root } from './activations.ts'
import { argBest, hostOperators } from './host.ts'
import { castTensor } from './host-tensors.ts'
import { broadcastShape, elementsMap } from './index-maps.ts'
import { indexing } from './indexing.ts'
import { normalisations } from './normalisations.ts'
import { axisOf, type Operator } from './operator.ts'
import { einsum, product, productOptions, stretched } from './products.ts'
import { reducedAxes } from './shapes.ts'
import {
  download,
  type Float,
  hostTruth,
  onHost,
  type Tfjs,
  upload,
  uploadCondition,
  uploadIndices,
  type Value,
} from './values.ts'
import { windowOperators } from './windows.ts'

const fold =
  (f: (tf: Tfjs, a: Float, b: Float) => Float): Operator =>
  ({ tf, x, float }) =>
    x.map((_, i) => float(i)).reduce((a, b) => f(tf, a, b))

/** tfjs's gradient of `maximum` and `minimum` does not sum over broadcast axes: equal shapes first. */
const equalShapes =
  (f: (tf: Tfjs, a: Float, b: Float) => Float) =>
  (tf: Tfjs, a: Float, b: Float): Float => {
    const shape = broadcastShape(a.shape, b.shape)
    return f(tf, stretched(tf, a, shape), stretched(tf, b, shape))
  }
const maximum = equalShapes((tf, a, b) => tf.maximum(a, b))
const minimum = equalShapes((tf, a, b) => tf.minimum(a, b))

/** Comparisons have no gradient: they are made here, and their truth values stay here. */
const comparison =
  (op: string): Operator =>
  (ctx) =>
    hostOperators[op]!({ ...ctx, x: [download(ctx.float(0)), download(ctx.float(1))] })

const reduction =
  (f: (tf: Tfjs, x: Float, axes: number[]) => Float): Operator =>
  (ctx) => {
    const x = ctx.float(0)
    const { axes, shape } = reducedAxes(ctx.attributes, x.shape, ctx.optionalHost(1))
    return axes.size === 0
      ? f(ctx.tf, x, [])
      : ctx.tf.reshape(
          f(
            ctx.tf,
            x,
            [...axes].sort((a, b) => a - b),
          ),
          shape,
        )
  }

/** (x − zero point)·scale, per tensor, per row of an axis, or per block of one. */
const dequantizeLinear: Operator = (ctx) => {
  const { tf } = ctx
  const scale = ctx.float(1)
  const float = (value: Value): Float => (onHost(value) ? upload(tf, castTensor(value, 'float32')) : value)
  const x = float(ctx.x[0]!)
  const axis = scale.size > 1 || scale.rank > 1 ? axisOf(ctx, x.rank, 1) : 0
  const block = intAttribute(ctx.attributes, 'block_size', 0)
  const along = (value: Float): Float => {
    if (block > 0) {
      const rows = Int32Array.from({ length: x.shape[axis]! }, (_, i) => Math.floor(i / block))
      return tf.gather(value, uploadIndices(tf, rows), axis)
    }
    if (value.size === 1) return tf.reshape(value, [])
    return tf.reshape(
      value,
      x.shape.map((_, i) => (i === axis ? value.size : 1)),
    )
  }
  const zero = ctx.x[2]
  return tf.mul(zero === undefined ? x : tf.sub(x, along(float(zero))), along(scale))
}

/** aᵇ; squares, which exports of norms are full of, as products. */
const power: Operator = ({ tf, x, float }) => {
  const exponent = x[1]!
  const b = onHost(exponent) ? castTensor(exponent, 'float32') : undefined
  if (b?.data.length === 1 && b.data[0] === 2 && b.shape.length <= float(0).rank) return tf.mul(float(0), float(0))
  return tf.pow(float(0), b === undefined ? float(1) : upload(tf, b))
}

/** a − b·n, n being the quotient towards 0, which has no slope. */
const remainder: Operator = ({ tf, float, attributes }) => {
  if (intAttribute(attributes, 'fmod', 0) !== 1) throw new TypeError('Mod of float32 without fmod is not supported')
  const quotient = download(tf.div(float(0), float(1)))
  const whole = { ...quotient, data: (quotient.data as Float32Array).map(Math.trunc) }
  return tf.sub(float(0), tf.mul(float(1), upload(tf, whole)))
}

/** The product along some axes, number by number: the gradient of `tf.prod` does not run in Node. */
function productAlong(tf: Tfjs, x: Float, axes: number[]): Float {
  const along = (y: Float, axis: number): Float => tf.split(y, y.shape[axis]!, axis).reduce((a, b) => tf.mul(a, b))
  return axes.reduce(along, x)
}

const castFloat = (x: Float, to: DType): Value => (to === 'float32' ? x : castTensor(download(x), to))

const argument =
  (better: (a: number, b: number) => boolean): Operator =>
  (ctx) => {
    const x = download(ctx.float(0))
    const axis = axisOf(ctx, x.shape.length)
    const found = argBest(x, axis, better, intAttribute(ctx.attributes, 'select_last_index', 0) === 1)
    const keep = intAttribute(ctx.attributes, 'keepdims', 1) === 1
    return keep ? found : { ...found, shape: x.shape.filter((_, i) => i !== axis) }
  }

/**
 * ONNX operator -> tfjs expression, for nodes with a float32 input. Gradients are tfjs's own; where an operator of tfjs has none,
 * or another one than the limit from the side of ONNX, the expression is made of others that have it.
 */
export const operators: Record<string, Operator> = {
  Add: fold((tf, a, b) => tf.add(a, b)),
  Sum: fold((tf, a, b) => tf.add(a, b)),
  Sub: fold((tf, a, b) => tf.sub(a, b)),
  Mul: fold((tf, a, b) => tf.mul(a, b)),
  Div: fold((tf, a, b) => tf.div(a, b)),
  Max: fold(maximum),
  Min: fold(minimum),
  Mean: (ctx) => ctx.tf.div(operators.Sum!(ctx) as Float, ctx.x.length),
  Pow: power,
  Mod: remainder,
  ...activations,
  Clip: ({ tf, x, float }) => {
    const above = x[1] === undefined ? float(0) : maximum(tf, float(0), float(1))
    return x[2] === undefined ? above : minimum(tf, above, float(2))
  },

  MatMul: ({ tf, float }) => product(tf, float(0), float(1)),
  FusedMatMul: (ctx) => product(ctx.tf, ctx.float(0), ctx.float(1), productOptions(ctx)),
  Gemm: (ctx) => {
    const y = product(ctx.tf, ctx.float(0), ctx.float(1), productOptions(ctx))
    if (ctx.x[2] === undefined) return y
    const beta = floatAttribute(ctx.attributes, 'beta', 1)
    return ctx.tf.add(y, beta === 1 ? ctx.float(2) : ctx.tf.mul(ctx.float(2), beta))
  },
  Einsum: ({ tf, x, float, attributes }) => {
    const { equation } = attributes
    if (equation === undefined || !('s' in equation)) throw new TypeError('Einsum without an equation')
    return einsum(
      tf,
      equation.s,
      x.map((_, i) => float(i)),
    )
  },

  ...normalisations,
  ...windowOperators,
  ...indexing,
  DequantizeLinear: dequantizeLinear,

  ReduceSum: reduction((tf, x, axes) => tf.sum(x, axes)),
  ReduceMean: reduction((tf, x, axes) => tf.mean(x, axes)),
  ReduceMax: reduction((tf, x, axes) => tf.max(x, axes)),
  ReduceMin: reduction((tf, x, axes) => tf.min(x, axes)),
  ReduceProd: reduction(productAlong),
  ReduceL1: reduction((tf, x, axes) => tf.sum(magnitude(tf, x), axes)),
  ReduceL2: reduction((tf, x, axes) => root(tf, tf.sum(tf.mul(x, x), axes))),
  ReduceSumSquare: reduction((tf, x, axes) => tf.sum(tf.mul(x, x), axes)),
  ReduceLogSum: reduction((tf, x, axes) => tf.log(tf.sum(x, axes))),
  ReduceLogSumExp: reduction((tf, x, axes) => tf.logSumExp(x, axes)),

  Identity: ({ float }) => float(0),
  // inference: nothing is dropped
  Dropout: ({ tf, float, outputs }) =>
    outputs === 1 ? float(0) : [float(0), castTensor(download(tf.onesLike(float(0))), 'bool')],
  Where: ({ tf, float, host }) => tf.where(uploadCondition(tf, host(0)), float(1), float(2)),
  Cast: ({ float, attributes }) => castFloat(float(0), dtypeFromNumber(intAttribute(attributes, 'to', 1))),
  CastLike: ({ x, float }) => {
    const like = x[1]!
    return castFloat(float(0), onHost(like) ? like.dtype : 'float32')
  },
  Equal: comparison('Equal'),
  Less: comparison('Less'),
  LessOrEqual: comparison('LessOrEqual'),
  Greater: comparison('Greater'),
  GreaterOrEqual: comparison('GreaterOrEqual'),
  IsNaN: ({ float }) => hostTruth(download(float(0)), Number.isNaN),
  IsInf: ({ float, attributes }) => {
    const positive = intAttribute(attributes, 'detect_positive', 1) === 1
    const negative = intAttribute(attributes, 'detect_negative', 1) === 1
    return hostTruth(
      download(float(0)),
      (v) => (positive && v === Number.POSITIVE_INFINITY) || (negative && v === Number.NEGATIVE_INFINITY),
    )
  },
  NonZero: (ctx) => hostOperators.NonZero!({ ...ctx, x: [download(ctx.float(0))] }),
  // the values, of which there are two, are the floats
  OneHot: (ctx) => hostOperators.OneHot!({ ...ctx, x: [ctx.host(0), ctx.host(1), download(ctx.float(2))] }),
  // the place of the largest: no gradient
  Hardmax: (ctx) => {
    const x = download(ctx.float(0))
    const axis = axisOf(ctx, x.shape.length, -1)
    const data = new Float32Array(x.data.length)
    for (const at of elementsMap(
      x.shape,
      argBest(x, axis, (a, b) => a > b, false),
      axis,
    ).from)
      data[at] = 1
    return { ...x, data }
  },
  ArgMax: argument((a, b) => a > b),
  ArgMin: argument((a, b) => a < b),
  Range: (ctx) => hostOperators.Range!({ ...ctx, x: [0, 1, 2].map((i) => download(ctx.float(i))) }),
}

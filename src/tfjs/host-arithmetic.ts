import type { DType, Tensor } from '../onnx/index.ts'
import { emptyTensor, type HostOperator, isBig, moved, type Numbers, need } from './host-tensors.ts'
import { broadcastShape, expandMap } from './index-maps.ts'
import { reducedAxes } from './shapes.ts'
import { reshaped } from './values.ts'

function expanded(x: Tensor, shape: number[]): Numbers {
  const same = x.shape.length === shape.length && x.shape.every((d, i) => d === shape[i])
  return (same ? x.data : moved(x, expandMap(x.shape, shape)).data) as Numbers
}

/** f element by element over tensors that broadcast. */
function elementwise(dtype: DType, inputs: Tensor[], f: (...values: never[]) => number | bigint): Tensor {
  const shape = inputs.map((t) => t.shape).reduce(broadcastShape)
  const out = emptyTensor(dtype, shape)
  const target = out.data as Numbers
  const call = f as (...values: (number | bigint)[]) => number | bigint
  const [a, b, c] = inputs.map((t) => expanded(t, shape))
  for (let i = 0; i < target.length; i++)
    target[i] = c ? call(a![i]!, b![i]!, c[i]!) : b ? call(a![i]!, b[i]!) : call(a![i]!)
  return out
}

/** Arithmetic of one element type each: truth values and small integers, float64, int64. */
interface Arithmetic {
  integer: (a: number, b: number) => number
  float?: (a: number, b: number) => number
  big: (a: bigint, b: bigint) => bigint
}

const operation =
  ({ integer, float = integer, big }: Arithmetic): HostOperator =>
  ({ x, node }) =>
    x
      .map((_, i) => arithmeticInput(need(x, i), node.op))
      .reduce((a, b) => elementwise(a.dtype, [a, b], isBig(a) ? big : a.dtype === 'float64' ? float : integer))

/** Bits of half precision are stored here, but nothing is computed on them. */
export function arithmeticInput(tensor: Tensor, op: string): Tensor {
  if (tensor.dtype === 'float16' || tensor.dtype === 'bfloat16')
    throw new TypeError(`${op} of ${tensor.dtype}: the TensorFlow.js engine computes in float32 only`)
  return tensor
}

const unary =
  (numbers: (a: number) => number, big: (a: bigint) => bigint): HostOperator =>
  ({ x, node }) => {
    const a = arithmeticInput(need(x, 0), node.op)
    return elementwise(a.dtype, [a], isBig(a) ? big : numbers)
  }

/** A function of real numbers: float64 only, since integers have none. */
const real =
  (f: (a: number) => number): HostOperator =>
  ({ x, node }) => {
    const a = need(x, 0)
    if (a.dtype !== 'float64') throw new TypeError(`${node.op} of ${a.dtype} is not supported`)
    return elementwise('float64', [a], f)
  }

const comparison =
  (f: (a: number | bigint, b: number | bigint) => boolean): HostOperator =>
  ({ x }) =>
    elementwise('bool', [need(x, 0), need(x, 1)], (a: number | bigint, b: number | bigint) => (f(a, b) ? 1 : 0))

const logic =
  (f: (a: number, b: number) => boolean): HostOperator =>
  ({ x }) =>
    elementwise('bool', [need(x, 0), need(x, 1)], (a: number, b: number) => (f(a, b) ? 1 : 0))

/** Folds the elements along the reduced axes. */
const reduction =
  (fold: Arithmetic, start: number): HostOperator =>
  (ctx) => {
    const x = arithmeticInput(need(ctx.x, 0), ctx.node.op)
    const { axes, shape } = reducedAxes(ctx.attributes, x.shape, ctx.x[1])
    const keptShape = x.shape.map((d, axis) => (axes.has(axis) ? 1 : d))
    const to = expandMap(keptShape, x.shape).from
    const out = emptyTensor(x.dtype, keptShape)
    const target = out.data as Numbers
    const seen = new Uint8Array(target.length)
    const big = isBig(x)
    const combine = (big ? fold.big : fold.integer) as (a: number | bigint, b: number | bigint) => number | bigint
    for (let i = 0; i < target.length; i++) target[i] = big ? BigInt(start) : start
    const source = x.data as Numbers
    for (let i = 0; i < source.length; i++) {
      const at = to[i]!
      target[at] = seen[at] ? combine(target[at]!, source[i]!) : source[i]!
      seen[at] = 1
    }
    return reshaped(out, shape)
  }

/** a ÷ b towards zero, as C divides integers. */
const divide: Arithmetic = { integer: (a, b) => Math.trunc(a / b), float: (a, b) => a / b, big: (a, b) => a / b }
/** The remainder with the divisor's sign (ONNX's Mod for integers). */
const modulo: Arithmetic = {
  integer: (a, b) => ((a % b) + b) % b,
  big: (a, b) => ((a % b) + b) % b,
}
const add: Arithmetic = { integer: (a, b) => a + b, big: (a, b) => a + b }
const multiply: Arithmetic = { integer: (a, b) => Math.imul(a, b), float: (a, b) => a * b, big: (a, b) => a * b }
// biome-ignore lint/complexity/useMathMinMax: Math.max takes no BigInt
const largest: Arithmetic = { integer: Math.max, big: (a, b) => (a > b ? a : b) }
// biome-ignore lint/complexity/useMathMinMax: Math.min takes no BigInt
const smallest: Arithmetic = { integer: Math.min, big: (a, b) => (a < b ? a : b) }

/** The sum of two elements of tensors like `x`. */
export const plusOf = (x: Tensor) =>
  (isBig(x) ? add.big : add.integer) as (a: number | bigint, b: number | bigint) => number | bigint

/** Arithmetic, comparisons, logic and reductions, element by element. */
export const hostArithmetic: Record<string, HostOperator> = {
  Add: operation(add),
  Sub: operation({ integer: (a, b) => a - b, big: (a, b) => a - b }),
  Mul: operation(multiply),
  Div: operation(divide),
  Mod: operation(modulo),
  Pow: operation({ integer: (a, b) => a ** b, big: (a, b) => a ** b }),
  Max: operation(largest),
  Min: operation(smallest),
  BitwiseAnd: operation({ integer: (a, b) => a & b, big: (a, b) => a & b }),
  BitwiseOr: operation({ integer: (a, b) => a | b, big: (a, b) => a | b }),
  BitShift: (ctx) => {
    const { direction } = ctx.attributes
    const left = direction !== undefined && 's' in direction && direction.s === 'LEFT'
    return operation(
      left
        ? { integer: (a, b) => a << b, big: (a, b) => a << b }
        : { integer: (a, b) => a >>> b, big: (a, b) => a >> b },
    )(ctx)
  },
  Neg: unary(
    (a) => -a,
    (a) => -a,
  ),
  Abs: unary(Math.abs, (a) => (a < 0n ? -a : a)),
  Sign: unary(Math.sign, (a) => (a > 0n ? 1n : a < 0n ? -1n : 0n)),
  Floor: real(Math.floor),
  Ceil: real(Math.ceil),
  Sqrt: real(Math.sqrt),
  Exp: real(Math.exp),
  Log: real(Math.log),
  Reciprocal: real((a) => 1 / a),
  Clip: (ctx) => {
    const [x, low, high] = ctx.x
    const above = low === undefined ? need([x], 0) : (hostArithmetic.Max!({ ...ctx, x: [x, low] }) as Tensor)
    return high === undefined ? above : hostArithmetic.Min!({ ...ctx, x: [above, high] })
  },

  Equal: comparison((a, b) => a === b),
  Less: comparison((a, b) => a < b),
  LessOrEqual: comparison((a, b) => a <= b),
  Greater: comparison((a, b) => a > b),
  GreaterOrEqual: comparison((a, b) => a >= b),
  And: logic((a, b) => a !== 0 && b !== 0),
  Or: logic((a, b) => a !== 0 || b !== 0),
  Xor: logic((a, b) => (a !== 0) !== (b !== 0)),
  Not: ({ x }) => elementwise('bool', [need(x, 0)], (a: number) => (a === 0 ? 1 : 0)),
  Where: ({ x }) =>
    elementwise(
      need(x, 1).dtype,
      [need(x, 0), need(x, 1), need(x, 2)],
      (condition: number, a: number | bigint, b: number | bigint) => (condition !== 0 ? a : b),
    ),

  ReduceSum: reduction(add, 0),
  ReduceProd: reduction(multiply, 1),
  ReduceMax: reduction(largest, 0),
  ReduceMin: reduction(smallest, 0),
}

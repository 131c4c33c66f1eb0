import {
  type Dim,
  type DType,
  floatAttribute,
  type GraphBuilder,
  intAttribute,
  intsAttribute,
  type Node,
  normalAxis,
} from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import type { Gradient, RuleContext } from './rule.ts'

/** `make`, called at most once. */
export function once<T>(make: () => T): () => T {
  let value: { made: T } | undefined
  return () => {
    value ??= { made: make() }
    return value.made
  }
}

export const dtypeOf = (g: GraphBuilder, value: string): DType => g.type(value).dtype

/** The constant `value` in the element type of `like`. */
export function num(g: GraphBuilder, value: number, like: string): string {
  const dtype = dtypeOf(g, like)
  return dtype === 'float32' || dtype === 'float64' ? g.scalar(value, dtype) : g.cast(g.scalar(value), dtype)
}

export const zeros = (g: GraphBuilder, like: string): string => g.expand(num(g, 0, like), g.shape(like))

export const product = (dims: Dim[]): number | undefined =>
  dims.every((d) => typeof d === 'number') ? dims.reduce((a, b) => a * b, 1) : undefined

/** The number of elements along dimensions of these sizes, in the element type of `like`: a scalar. */
export function sizeOfAxes(g: GraphBuilder, dims: Dim[], like: string): string {
  const numbers = dims.filter((d) => typeof d === 'number').reduce((a, b) => a * b, 1)
  return dims
    .filter((d) => typeof d === 'string')
    .map((d) => g.reshape(g.cast(g.sizeOf(d), dtypeOf(g, like)), []))
    .reduce((n, size) => g.mul(n, size), num(g, numbers, like))
}

export const axisOf = (node: Node, rank: number): number => normalAxis(intAttribute(node.attributes, 'axis', 0), rank)

export const softmaxAxis = (node: Node, rank: number): number =>
  normalAxis(intAttribute(node.attributes, 'axis', -1), rank)

/** The axes from attribute `axis` to the last. */
export function trailingAxes(node: Node, rank: number): number[] {
  const first = softmaxAxis(node, rank)
  return Array.from({ length: rank - first }, (_, i) => first + i)
}

export function sameElements({ dy, x: [x], g }: RuleContext): Gradient[] {
  return [() => g.reshape(dy, g.shape(x))]
}

/** `make(y)` where y is not 0, and 0 where it is; `make` sees 1 there. */
export function zeroWhereZero(g: GraphBuilder, y: string, make: (safe: string) => string): string {
  const isZero = g.equal(y, num(g, 0, y))
  return g.where(isZero, num(g, 0, y), make(g.where(isZero, num(g, 1, y), y)))
}

/** b∘aᵇ⁻¹∘dy, simpler for squares; 0 where b = 0, where aᵇ⁻¹ may be infinite. */
export function powerGradient(g: GraphBuilder, dy: string, base: string, exponent: string): string {
  const constant = g.constantOf(exponent)
  const b = constant?.data.length === 1 ? Number(constant.data[0]) : undefined
  if (b === 2) return g.mul(dy, g.mul(base, num(g, 2, base)))
  const one = num(g, 1, base)
  // a¹⁻¹ in place of a⁰⁻¹
  const isNeverZero = constant !== undefined && !Array.from<number | bigint>(constant.data).some((v) => Number(v) === 0)
  const safe = isNeverZero ? exponent : g.where(g.equal(exponent, num(g, 0, base)), one, exponent)
  return g.mul(dy, g.mul(exponent, g.pow(base, g.sub(safe, one))))
}

/** ln a, and 0 where a is not positive. */
export function logOfPositive(g: GraphBuilder, a: string): string {
  const positive = g.one('Greater', [a, num(g, 0, a)])
  return g.log(g.where(positive, a, num(g, 1, a)))
}

/** dy for the first input that equals the result, 0 for the others. */
export function firstEqual({ dy, node, y: [y], g }: RuleContext): Gradient[] {
  const isResult = node.inputs.map((input) => once(() => g.equal(input, y)))
  const earlier = (i: number) =>
    isResult
      .slice(0, i)
      .map((mask) => mask())
      .reduce((a, b) => g.one('Or', [a, b]))
  const mask = (i: number) => (i === 0 ? isResult[0]!() : g.one('And', [isResult[i]!(), g.one('Not', [earlier(i)])]))
  return node.inputs.map((_, i) => () => g.where(mask(i), dy, num(g, 0, dy)))
}

interface ProductOptions {
  transA: boolean
  transB: boolean
  alpha: number
}

export function productOptions(node: Node): ProductOptions {
  return {
    transA: intAttribute(node.attributes, 'transA', 0) === 1,
    transB: intAttribute(node.attributes, 'transB', 0) === 1,
    alpha: floatAttribute(node.attributes, 'alpha', 1),
  }
}

/**
 * Y = α·op(A)·op(B):  d op(A) = α·dY·op(B)ᵀ,  d op(B) = α·op(A)ᵀ·dY, each transposed back where op transposes. Vectors
 * are matrices of one row (A) or one column (B).
 */
export function productGradients({ dy, x, g }: RuleContext, { transA, transB, alpha }: ProductOptions): Gradient[] {
  const [rankA, rankB] = [g.shape(x[0]).length, g.shape(x[1]).length]
  const a = rankA === 1 ? g.unsqueeze(x[0], [0]) : x[0]
  const b = rankB === 1 ? g.unsqueeze(x[1], [1]) : x[1]
  const missing = [...(rankA === 1 ? [-2] : []), ...(rankB === 1 ? [-1] : [])]
  const d = missing.length > 0 ? g.unsqueeze(dy, missing) : dy
  const back = (gradient: string, matrix: string, input: string) => {
    const summed = g.sumTo(gradient, g.shape(matrix))
    return matrix === input ? summed : g.reshape(summed, g.shape(input))
  }
  return [
    () => {
      const da = transA
        ? multiply(g, b, d, { transA: transB, transB: true, alpha })
        : multiply(g, d, b, { transA: false, transB: !transB, alpha })
      return back(da, a, x[0])
    },
    () => {
      if (!transA && g.shape(b).length === 2 && g.shape(a).length > 2) {
        // One product over all rows, instead of one for each matrix of the batch and a sum.
        const [rowsA, rowsD] = [flattenRows(g, a), flattenRows(g, d)]
        const db = transB
          ? multiply(g, rowsD, rowsA, { transA: true, transB: false, alpha })
          : multiply(g, rowsA, rowsD, { transA: true, transB: false, alpha })
        return back(db, b, x[1])
      }
      const db = transB
        ? multiply(g, d, a, { transA: true, transB: transA, alpha })
        : multiply(g, a, d, { transA: !transA, transB: false, alpha })
      return back(db, b, x[1])
    },
  ]
}

/** [..., k] as [rows, k]. */
function flattenRows(g: GraphBuilder, value: string): string {
  const shape = g.shape(value)
  return g.reshape(value, [product(shape.slice(0, -1)) ?? g.freshSymbol(), shape.at(-1) as Dim])
}

/** α·op(a)·op(b) without a Transpose where a kernel takes the flags: Gemm for matrices, FusedMatMul for batches of float32. */
export function multiply(g: GraphBuilder, a: string, b: string, options: ProductOptions): string {
  const [rankA, rankB] = [g.shape(a).length, g.shape(b).length]
  if (rankA === 2 && rankB === 2) return g.gemm(a, b, null, options)
  if (dtypeOf(g, a) === 'float32') return g.fusedMatmul(a, b, options)
  const y = g.matmul(options.transA ? swapLast(g, a) : a, options.transB ? swapLast(g, b) : b)
  return options.alpha === 1 ? y : g.mul(y, num(g, options.alpha, y))
}

function swapLast(g: GraphBuilder, value: string): string {
  const axes = g.shape(value).map((_, i) => i)
  return g.transpose(value, [...axes.slice(0, -2), axes.length - 1, axes.length - 2])
}

/** Zeros shaped as `like`, with `updates` added at `indices` along `axis`. */
export function scatterAdd(g: GraphBuilder, like: string, indices: string, updates: string, axis: number): string {
  // ScatterND with a reduction would lose updates: its threads race. ScatterElements is exact.
  return g.one('ScatterElements', [zeros(g, like), indices, updates], {
    attributes: { axis: { i: axis }, reduction: { s: 'add' } },
  })
}

/** The integers of a constant input or attribute, or undefined. */
export function integers(ctx: RuleContext, attribute: string, input: number): number[] | undefined {
  const given = intsAttribute(ctx.node.attributes, attribute)
  if (given !== undefined || !ctx.x[input]) return given
  const tensor = ctx.g.constantOf(ctx.x[input])
  if (tensor === undefined)
    throw new InputError(
      `No gradient for: ${ctx.node.op} with ${attribute} that are no constant (node "${ctx.node.name}")`,
    )
  return Array.from(tensor.data as ArrayLike<number | bigint>, Number)
}

/** The axes over which a reduction goes, from its attribute or its second input; all where neither is given. */
export function reducedAxes(ctx: RuleContext): number[] {
  const rank = ctx.g.shape(ctx.x[0]).length
  const axes = integers(ctx, 'axes', 1)
  if (axes !== undefined && axes.length > 0) return axes.map((axis) => normalAxis(axis, rank))
  const none = intAttribute(ctx.node.attributes, 'noop_with_empty_axes', 0) === 1
  return none ? [] : Array.from({ length: rank }, (_, i) => i)
}

/** A reduction's result (or its gradient) with the reduced axes as dimensions of size 1. */
export function kept(ctx: RuleContext, value: string): string {
  if (intAttribute(ctx.node.attributes, 'keepdims', 1) === 1) return value
  const axes = new Set(reducedAxes(ctx))
  return ctx.g.reshape(
    value,
    ctx.g.shape(ctx.x[0]).map((d, i) => (axes.has(i) ? 1 : d)),
  )
}

/** dy in equal parts for the elements that equal the result of a reduction. */
export function equalShares(ctx: RuleContext): Gradient[] {
  const { g, dy, x, y } = ctx
  return [
    () => {
      const mask = g.cast(g.equal(x[0], kept(ctx, y[0])), dtypeOf(g, dy))
      return g.mul(mask, g.div(kept(ctx, dy), g.reduceSum(mask, reducedAxes(ctx), true)))
    },
  ]
}

/** Π x / xᵢ for each element of a reduction; where elements are 0, the product of the others without a division by 0. */
export function productOfOthers(ctx: RuleContext): string {
  const { g, x } = ctx
  const axes = reducedAxes(ctx)
  const [zero, one] = [num(g, 0, x[0]), num(g, 1, x[0])]
  const isZero = g.equal(x[0], zero)
  const safe = g.where(isZero, one, x[0])
  const rest = g.reduceWithAxes('ReduceProd', safe, axes, true)
  const zeros = g.reduceSum(g.cast(isZero, dtypeOf(g, x[0])), axes, true)
  const atZero = g.where(g.equal(zeros, one), rest, zero)
  return g.where(isZero, atZero, g.where(g.equal(zeros, zero), g.div(rest, safe), zero))
}

/** dy − Σ y∘dy along the softmax axis. */
export function centred({ dy, node, y, g }: RuleContext): string {
  return g.sub(dy, g.reduceSum(g.mul(dy, y[0]), [softmaxAxis(node, g.shape(dy).length)], true))
}

/**
 * The same in attention, where O = α·P·V is all that reads the probabilities P: with dP = α·dO·Vᵀ and
 * Σ P∘dP = Σ O∘dO =: r along the last axis, dP − r = [α·dO, −r]·[V, 1]ᵀ. This spares passes over matrices as large as P:
 * O has a head's width of columns where P has the sequence length. (The sum is that of FlashAttention's backward pass,
 * Dao et al. 2022, appendix B.2.)
 */
export function attentionCentred({ node, g, onlyUse, gradientOf }: RuleContext): string | undefined {
  const p = node.outputs[0] as string
  const use = onlyUse(p)
  if (use === undefined || !['MatMul', 'FusedMatMul'].includes(use.op) || use.inputs[0] !== p) return undefined
  const { transA, transB, alpha } = productOptions(use)
  const [v, o] = [use.inputs[1] as string, use.outputs[0] as string]
  const [shapeP, shapeV, dO] = [g.shape(p), g.shape(v), gradientOf(o)]
  const rank = shapeP.length
  const sameBatch = shapeV.length === rank && shapeV.slice(0, -2).every((d, i) => d === shapeP[i])
  if (v === p || transA || !sameBatch || rank < 2 || softmaxAxis(node, rank) !== rank - 1 || dO === null)
    return undefined
  const r = g.mul(g.reduceSum(g.mul(o, dO), [rank - 1], true), num(g, -1 / alpha, dO))
  const ones = g.expand(
    num(g, 1, v),
    shapeV.map((d, i) => (i === rank - (transB ? 2 : 1) ? 1 : d)),
  )
  const left = g.concat([dO, r], rank - 1)
  const right = g.concat([v, ones], rank - (transB ? 2 : 1))
  return multiply(g, left, right, { transA: false, transB: !transB, alpha })
}

export function rmsGradients({ dy, node, x: [x, scale], g }: RuleContext, rms: () => string): Gradient[] {
  const axes = trailingAxes(node, g.shape(dy).length)
  const r = once(rms)
  return [
    () => {
      const scaled = g.mul(dy, scale)
      const along = g.reduceMean(g.mul(scaled, x), axes, true)
      return g.mul(g.sub(scaled, g.mul(x, g.mul(along, g.mul(r(), r())))), r())
    },
    () => g.mul(dy, g.mul(x, r())),
  ]
}

/** 1/√(mean x² + ε) of RMSNormalization, which has no output for it. */
export function inverseRms({ dy, node, x: [x], g }: RuleContext): string {
  const axes = trailingAxes(node, g.shape(dy).length)
  const epsilon = num(g, floatAttribute(node.attributes, 'epsilon', 1e-5), dy)
  return g.reciprocal(g.sqrt(g.add(g.reduceMean(g.mul(x, x), axes, true), epsilon)))
}

export function geluGradient(g: GraphBuilder, dy: string, x: string): string {
  // t = x/√2: Φ(x) = ½ + ½·erf(t), x∘φ(x) = t/(√π·e^(t²)).
  const t = g.mul(x, num(g, Math.SQRT1_2, x))
  const cdf = g.one('HardSigmoid', [g.erf(t)], { attributes: { alpha: { f: 0.5 }, beta: { f: 0.5 } } })
  const density = g.mul(g.div(t, g.exp(g.mul(t, t))), num(g, 1 / Math.sqrt(Math.PI), x))
  return g.mul(dy, g.add(cdf, density))
}

export function tanhGeluGradient(g: GraphBuilder, dy: string, x: string): string {
  // y = x∘s, s = σ(2u), u = √(2/π)·(x + 0.044715·x³):  y' = s + x∘s∘(1 − s)∘2u'
  const c = 2 * Math.sqrt(2 / Math.PI)
  const square = g.mul(x, x)
  const twoU = g.mul(x, g.add(g.mul(square, num(g, c * 0.044715, x)), num(g, c, x)))
  const slope = g.add(g.mul(square, num(g, 3 * c * 0.044715, x)), num(g, c, x))
  const s = g.sigmoid(twoU)
  const xs = g.mul(x, s)
  return g.mul(dy, g.add(s, g.mul(g.sub(xs, g.mul(xs, s)), slope)))
}

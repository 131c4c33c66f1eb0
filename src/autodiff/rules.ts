import { type Dim, floatAttribute, intAttribute, intsAttribute } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { activationGradients } from './activations.ts'
import { einsumGradient } from './einsum.ts'
import {
  attentionCentred,
  axisOf,
  centred,
  dtypeOf,
  equalShares,
  firstEqual,
  geluGradient,
  inverseRms,
  kept,
  logOfPositive,
  num,
  once,
  powerGradient,
  product,
  productGradients,
  productOfOthers,
  productOptions,
  reducedAxes,
  rmsGradients,
  sameElements,
  scatterAdd,
  sizeOfAxes,
  softmaxAxis,
  tanhGeluGradient,
  trailingAxes,
  zeros,
  zeroWhereZero,
} from './formulas.ts'
import { indexingGradients } from './indexing.ts'
import { normalisationGradients } from './normalisations.ts'
import type { GradientRule, Values } from './rule.ts'
import { windowGradients } from './windows.ts'

/** ONNX operator -> gradients of its inputs. y is the node's output, dy its gradient, ∘ the elementwise product. */
export const gradients: Record<string, GradientRule> = {
  ...activationGradients,
  ...indexingGradients,
  ...normalisationGradients,
  ...windowGradients,
  Einsum: einsumGradient,
  // d(a + b) = da + db
  Add: ({ dy }) => [() => dy, () => dy],
  Sum: ({ dy, node }) => node.inputs.map(() => () => dy),
  // d(a − b) = da − db
  Sub: ({ dy, x: [, b], g }) => [() => dy, () => g.neg(g.sumTo(dy, g.shape(b)))],
  // d(a∘b) = b∘da + a∘db
  Mul: ({ dy, x: [a, b], g }) => [() => g.mul(dy, b), () => g.mul(dy, a)],
  // d(a/b) = da/b − (y/b)∘db
  Div: ({ dy, x: [, b], y: [y], g }) => {
    const dyByB = once(() => g.div(dy, b))
    return [dyByB, () => g.neg(g.sumTo(g.mul(dyByB(), y), g.shape(b)))]
  },
  // d(−x) = −dx
  Neg: ({ dy, g }) => [() => g.neg(dy)],
  // d(aᵇ) = b∘aᵇ⁻¹∘da + y∘ln(a)∘db, the second for positive a only
  Pow: ({ dy, x: [a, b], y: [y], g }) => {
    const [base, exponent] = [a, g.cast(b, dtypeOf(g, a))]
    return [() => powerGradient(g, dy, base, exponent), () => g.mul(dy, g.mul(y, logOfPositive(g, base)))]
  },
  // d√x = dx/(2y); 0 where y = 0, where the slope is infinite
  Sqrt: ({ dy, y: [y], g }) => [() => zeroWhereZero(g, y, (safe) => g.div(g.mul(dy, num(g, 0.5, dy)), safe))],
  // d(eˣ) = y∘dx
  Exp: ({ dy, y: [y], g }) => [() => g.mul(dy, y)],
  // d ln x = dx/x
  Log: ({ dy, x: [x], g }) => [() => g.div(dy, x)],
  // d sin x = cos x∘dx
  Sin: ({ dy, x: [x], g }) => [() => g.mul(dy, g.one('Cos', [x]))],
  // d cos x = −sin x∘dx
  Cos: ({ dy, x: [x], g }) => [() => g.neg(g.mul(dy, g.one('Sin', [x])))],
  // d erf x = 2/√π · exp(−x²)∘dx
  Erf: ({ dy, x: [x], g }) => [() => g.div(g.mul(dy, num(g, 2 / Math.sqrt(Math.PI), dy)), g.exp(g.mul(x, x)))],
  // d tanh x = (1 − y²)∘dx
  Tanh: ({ dy, y: [y], g }) => [() => g.mul(dy, g.sub(num(g, 1, dy), g.mul(y, y)))],
  // d σ(x) = y∘(1 − y)∘dx
  Sigmoid: ({ dy, y: [y], g }) => [
    () => {
      const dyY = g.mul(dy, y)
      return g.sub(dyY, g.mul(dyY, y))
    },
  ],
  // d ln(1 + eˣ) = σ(x)∘dx
  Softplus: ({ dy, x: [x], g }) => [() => g.mul(dy, g.sigmoid(x))],
  // d max(x, 0) = [x > 0]∘dx
  Relu: ({ dy, y: [y], g }) => [() => g.where(g.one('Greater', [y, num(g, 0, dy)]), dy, num(g, 0, dy))],
  // d|x| = sign(x)∘dx
  Abs: ({ dy, x: [x], g }) => [() => g.mul(dy, g.one('Sign', [x]))],
  // d(1/x) = −y²∘dx
  Reciprocal: ({ dy, y: [y], g }) => [() => g.neg(g.mul(dy, g.mul(y, y)))],
  // The largest (smallest) takes the gradient; among equals the first.
  Max: firstEqual,
  Min: firstEqual,
  // y = min(max(x, low), high): within the bounds x takes the gradient, bounds included, and beyond them the bound does
  Clip: ({ dy, x: [x, low, high], y: [y], g }) => {
    const zero = num(g, 0, dy)
    const isLow = () => {
      const below = g.one('Less', [x, low])
      return high ? g.one('And', [below, g.one('LessOrEqual', [low, high])]) : below
    }
    return [
      () => g.where(g.equal(x, y), dy, zero),
      low ? () => g.where(isLow(), dy, zero) : null,
      high ? () => g.where(g.one('Greater', [low ? g.max(x, low) : x, high]), dy, zero) : null,
    ]
  },
  // d where(c, a, b) = [c]∘da + [not c]∘db
  Where: ({ dy, x: [condition], g }) => [
    null,
    () => g.where(condition, dy, num(g, 0, dy)),
    () => g.where(condition, num(g, 0, dy), dy),
  ],
  Identity: ({ dy }) => [() => dy],
  Cast: ({ dy, x: [x], g }) => [() => g.cast(dy, dtypeOf(g, x))],
  // Steps have slope 0.
  Floor: () => [],
  Ceil: () => [],
  Round: () => [],
  Sign: () => [],
  Hardmax: () => [],

  // Y = α·op(A)·op(B) + β·C: see `productGradients`; dC = β·dY
  MatMul: (ctx) => productGradients(ctx, { transA: false, transB: false, alpha: 1 }),
  FusedMatMul: (ctx) => {
    const { attributes } = ctx.node
    if (intAttribute(attributes, 'transBatchA', 0) === 1 || intAttribute(attributes, 'transBatchB', 0) === 1)
      throw new InputError(`No gradient for: FusedMatMul with transBatchA or transBatchB (node "${ctx.node.name}")`)
    return productGradients(ctx, productOptions(ctx.node))
  },
  Gemm: (ctx) => {
    const beta = floatAttribute(ctx.node.attributes, 'beta', 1)
    return [
      ...productGradients(ctx, productOptions(ctx.node)),
      () => {
        const dc = ctx.g.sumTo(ctx.dy, ctx.g.shape(ctx.x[2]))
        return beta === 1 ? dc : ctx.g.mul(dc, num(ctx.g, beta, dc))
      },
    ]
  },

  // d(xᵀ) = (dx)ᵀ : the inverse permutation
  Transpose: ({ dy, node, g }) => {
    const axes = g.shape(dy).map((_, i) => i)
    const perm = intsAttribute(node.attributes, 'perm') ?? axes.toReversed()
    const inverse = axes.map((axis) => perm.indexOf(axis))
    return [() => g.transpose(dy, inverse)]
  },
  // The same elements in the input's shape.
  Reshape: sameElements,
  Squeeze: sameElements,
  Unsqueeze: sameElements,
  Flatten: sameElements,
  // Broadcasting, which the walk undoes.
  Expand: ({ dy }) => [() => dy],
  // Each input takes its part of dy.
  Concat: ({ dy, node, g }) => {
    const axis = axisOf(node, g.shape(dy).length)
    const sizes = node.inputs.map((input) => g.shape(input)[axis] as Dim)
    const parts = once(() =>
      g.node('Split', [dy, g.shapeValue(sizes)], {
        attributes: { axis: { i: axis } },
        outputs: node.inputs.length,
        types: node.inputs.map((input) => g.type(input)),
      }),
    )
    const start = (i: number) => (sizes as number[]).slice(0, i).reduce((a, b) => a + b, 0)
    const known = sizes.every((size) => typeof size === 'number')
    return node.inputs.map((_, i) => () => (known ? g.slice(dy, axis, start(i), start(i + 1)) : (parts()[i] as string)))
  },
  // The parts' gradients side by side, zeros for those without.
  Split: ({ dys, node, x: [x], y, g }) => [
    () => {
      const parts = node.outputs.includes('') ? g.withOutputs(node, node.outputs.length) : y
      return g.concat(
        dys.map((dy, i) => dy ?? zeros(g, parts[i] as string)),
        axisOf(node, g.shape(x).length),
      )
    },
  ],
  // dx[index] += dy : rows that are taken several times add up
  Gather: ({ dy, node, x: [x, indices], g }) => [
    () => {
      const [table, index] = [g.shape(x), g.shape(indices)]
      const axis = axisOf(node, table.length)
      const count = product(index) ?? g.freshSymbol()
      const flat = g.reshape(
        indices,
        table.map((_, i) => (i === axis ? count : 1)),
      )
      const rows = g.reshape(dy, [...table.slice(0, axis), count, ...table.slice(axis + 1)])
      return scatterAdd(g, x, g.expand(flat, g.shape(rows)), rows, axis)
    },
  ],
  GatherElements: ({ dy, node, x: [x, indices], g }) => [
    () => scatterAdd(g, x, indices, dy, axisOf(node, g.shape(x).length)),
  ],

  // d Σx = Σdx
  ReduceSum: (ctx) => [() => ctx.g.expand(kept(ctx, ctx.dy), ctx.g.shape(ctx.x[0]))],
  // d mean(x) = Σdx / n
  ReduceMean: (ctx) => [
    () => {
      const { g, dy, x } = ctx
      const shape = g.shape(x[0])
      const n = sizeOfAxes(
        g,
        reducedAxes(ctx).map((axis) => shape[axis] as Dim),
        dy,
      )
      return g.expand(g.div(kept(ctx, dy), n), shape)
    },
  ],
  // The largest take the gradient, equals in equal parts.
  ReduceMax: equalShares,
  ReduceMin: equalShares,
  // d‖x‖ = (x/y)∘dx; 0 where y = 0
  ReduceL2: (ctx) => [
    () => {
      const { g, dy, x, y } = ctx
      return g.mul(
        x[0],
        zeroWhereZero(g, kept(ctx, y[0]), (safe) => g.div(kept(ctx, dy), safe)),
      )
    },
  ],
  // d Σ|x| = Σ sign x∘dx
  ReduceL1: (ctx) => [() => ctx.g.mul(ctx.g.one('Sign', [ctx.x[0]]), kept(ctx, ctx.dy))],
  // d ln Σx = Σdx / eʸ
  ReduceLogSum: (ctx) => [
    () => ctx.g.expand(ctx.g.div(kept(ctx, ctx.dy), ctx.g.exp(kept(ctx, ctx.y[0]))), ctx.g.shape(ctx.x[0])),
  ],
  // d ln Σeˣ = Σ eˣ⁻ʸ∘dx
  ReduceLogSumExp: (ctx) => [() => ctx.g.mul(kept(ctx, ctx.dy), ctx.g.exp(ctx.g.sub(ctx.x[0], kept(ctx, ctx.y[0]))))],
  // d Πx = Σ (product of the others)∘dx
  ReduceProd: (ctx) => [() => ctx.g.mul(kept(ctx, ctx.dy), productOfOthers(ctx))],
  // d Σx² = 2 Σ x∘dx
  ReduceSumSquare: (ctx) => [() => ctx.g.mul(ctx.x[0], ctx.g.mul(kept(ctx, ctx.dy), num(ctx.g, 2, ctx.dy)))],
  // dx = y∘(dy − Σ y∘dy)
  Softmax: (ctx) => [() => ctx.g.mul(attentionCentred(ctx) ?? centred(ctx), ctx.y[0])],
  // dx = dy − eʸ·Σdy
  LogSoftmax: ({ dy, node, y: [y], g }) => [
    () => g.sub(dy, g.mul(g.exp(y), g.reduceSum(dy, [softmaxAxis(node, g.shape(dy).length)], true))),
  ],

  // y = c·r∘γ + β, c = x − μ, r = 1/√(mean c² + ε):
  // dx = r·(v − mean v), v = dy∘γ − c·r²·mean(dy∘γ∘c);  dγ = Σ dy∘c·r;  dβ = Σ dy
  LayerNormalization: ({ dy, node, x: [x, scale], g }) => {
    const axes = trailingAxes(node, g.shape(dy).length)
    const [, mean, r] = g.withOutputs(node, 3).map((value) => g.cast(value, dtypeOf(g, dy))) as Values
    const c = once(() => g.sub(x, mean))
    return [
      () => {
        const scaled = g.mul(dy, scale)
        const along = g.mul(g.reduceMean(g.mul(scaled, c()), axes, true), g.mul(r, r))
        const v = g.sub(scaled, g.mul(c(), along))
        return g.mul(g.sub(v, g.reduceMean(v, axes, true)), r)
      },
      () => g.mul(dy, g.mul(c(), r)),
      () => dy,
    ]
  },
  // y = x·r∘γ, r = 1/√(mean x² + ε):  dx = r·(dy∘γ − x·r²·mean(dy∘γ∘x));  dγ = Σ dy∘x·r
  SimplifiedLayerNormalization: (ctx) =>
    rmsGradients(ctx, () => {
      // ONNX Runtime takes the output for larger than it is where several axes are normalised, and lends out its memory as such
      if (trailingAxes(ctx.node, ctx.g.shape(ctx.dy).length).length > 1) return inverseRms(ctx)
      return ctx.g.cast(ctx.g.withOutputs(ctx.node, 2)[1] as string, dtypeOf(ctx.g, ctx.dy))
    }),
  RMSNormalization: (ctx) => rmsGradients(ctx, () => inverseRms(ctx)),
  // Quantised weights stay as they are, and so do their scales.
  DequantizeLinear: ({ node }) => [
    null,
    () => {
      throw new InputError(`No gradient for: the scale of DequantizeLinear (node "${node.name}")`)
    },
  ],

  // d(x∘Φ(x)) = (Φ(x) + x∘φ(x))∘dx, Φ and φ the standard normal distribution and density
  Gelu: ({ dy, node, x: [x], g }) => {
    const { approximate } = node.attributes
    const tanh = approximate !== undefined && 's' in approximate && approximate.s === 'tanh'
    return [() => (tanh ? tanhGeluGradient(g, dy, x) : geluGradient(g, dy, x))]
  },
  // gelu(x + b), exact (BiasGelu) or by its tanh form (FastGelu, whose b is optional)
  BiasGelu: ({ dy, x: [x, b], g }) => {
    const d = once(() => geluGradient(g, dy, g.add(x, b)))
    return [d, d]
  },
  FastGelu: ({ dy, x: [x, b], g }) => {
    const d = once(() => tanhGeluGradient(g, dy, b ? g.add(x, b) : x))
    return [d, d]
  },
}

/** Operators whose rule takes the gradients of all their outputs; others are differentiated through the first only. */
export const severalOutputs: ReadonlySet<string> = new Set(['Split'])

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

/** What a rule may look at: the node, its values, and the gradients of its outputs. */
export interface RuleContext {
  node: Node
  /** The node's inputs. */
  x: string[]
  /** The node's outputs. */
  y: string[]
  /** The gradient of the first output. */
  dy: string
  /** The gradients of all outputs; `null` where none arrives. Only rules in `severalOutputs` need to look here. */
  dys: (string | null)[]
  /** Where the rule puts its nodes. */
  g: GraphBuilder
  /** The one node through which all of a value's gradient arrives; undefined where there are several, or a seed. */
  onlyUse(value: string): Node | undefined
  /** The gradient of a value that the walk has already passed, `null` if it has none. */
  gradientOf(value: string): string | null
}

/**
 * The gradient of one input, made only if it is wanted. It may have the shape to which the input was broadcast: the walk
 * sums it back to the input's own shape.
 */
export type Gradient = () => string

/** An operator's inputs' gradients, in order. `null`, or nothing: no gradient flows there. */
export type GradientRule = (ctx: RuleContext) => (Gradient | null)[]

/** ONNX operator -> gradients of its inputs. y is the node's output, dy its gradient, ∘ the elementwise product. */
export const gradients: Record<string, GradientRule> = {
  // d(a + b) = da + db
  Add: ({ dy }) => [() => dy, () => dy],
  Sum: ({ dy, x }) => x.map(() => () => dy),
  // d(a − b) = da − db
  Sub: ({ dy, x: [, b], g }) => [() => dy, () => g.neg(g.sumTo(dy, g.shape(b as string)))],
  // d(a∘b) = b∘da + a∘db
  Mul: ({ dy, x: [a, b], g }) => [() => g.mul(dy, b as string), () => g.mul(dy, a as string)],
  // d(a/b) = da/b − (y/b)∘db
  Div: ({ dy, x: [, b], y: [y], g }) => {
    const dyByB = once(() => g.div(dy, b as string))
    return [dyByB, () => g.neg(g.sumTo(g.mul(dyByB(), y as string), g.shape(b as string)))]
  },
  // d(−x) = −dx
  Neg: ({ dy, g }) => [() => g.neg(dy)],
  // d(aᵇ) = b∘aᵇ⁻¹∘da + y∘ln(a)∘db, the second for positive a only
  Pow: ({ dy, x: [a, b], y: [y], g }) => {
    const [base, exponent] = [a as string, g.cast(b as string, dtypeOf(g, a as string))]
    return [() => powerGradient(g, dy, base, exponent), () => g.mul(dy, g.mul(y as string, logOfPositive(g, base)))]
  },
  // d√x = dx/(2y); 0 where y = 0, where the slope is infinite
  Sqrt: ({ dy, y: [y], g }) => [() => zeroWhereZero(g, y as string, (safe) => g.div(g.mul(dy, num(g, 0.5, dy)), safe))],
  // d(eˣ) = y∘dx
  Exp: ({ dy, y: [y], g }) => [() => g.mul(dy, y as string)],
  // d ln x = dx/x
  Log: ({ dy, x: [x], g }) => [() => g.div(dy, x as string)],
  // d sin x = cos x∘dx
  Sin: ({ dy, x: [x], g }) => [() => g.mul(dy, g.one('Cos', [x as string]))],
  // d cos x = −sin x∘dx
  Cos: ({ dy, x: [x], g }) => [() => g.neg(g.mul(dy, g.one('Sin', [x as string])))],
  // d erf x = 2/√π · exp(−x²)∘dx
  Erf: ({ dy, x: [x], g }) => [
    () => g.div(g.mul(dy, num(g, 2 / Math.sqrt(Math.PI), dy)), g.exp(g.mul(x as string, x as string))),
  ],
  // d tanh x = (1 − y²)∘dx
  Tanh: ({ dy, y: [y], g }) => [() => g.mul(dy, g.sub(num(g, 1, dy), g.mul(y as string, y as string)))],
  // d σ(x) = y∘(1 − y)∘dx
  Sigmoid: ({ dy, y: [y], g }) => [
    () => {
      const dyY = g.mul(dy, y as string)
      return g.sub(dyY, g.mul(dyY, y as string))
    },
  ],
  // d ln(1 + eˣ) = σ(x)∘dx
  Softplus: ({ dy, x: [x], g }) => [() => g.mul(dy, g.sigmoid(x as string))],
  // d max(x, 0) = [x > 0]∘dx
  Relu: ({ dy, y: [y], g }) => [() => g.where(g.one('Greater', [y as string, num(g, 0, dy)]), dy, num(g, 0, dy))],
  // d|x| = sign(x)∘dx
  Abs: ({ dy, x: [x], g }) => [() => g.mul(dy, g.one('Sign', [x as string]))],
  // d(1/x) = −y²∘dx
  Reciprocal: ({ dy, y: [y], g }) => [() => g.neg(g.mul(dy, g.mul(y as string, y as string)))],
  // The largest (smallest) takes the gradient; among equals the first.
  Max: firstEqual,
  Min: firstEqual,
  // d clip(x) = dx within the bounds, bounds included; beyond them the bound takes the gradient
  Clip: ({ dy, x: [x, low, high], y: [y], g }) => {
    const [input, zero] = [x as string, num(g, 0, dy)]
    return [
      () => g.where(g.equal(input, y as string), dy, zero),
      low ? () => g.where(g.one('Less', [input, low]), dy, zero) : null,
      high ? () => g.where(g.one('Greater', [input, high]), dy, zero) : null,
    ]
  },
  // d where(c, a, b) = [c]∘da + [not c]∘db
  Where: ({ dy, x: [condition], g }) => [
    null,
    () => g.where(condition as string, dy, num(g, 0, dy)),
    () => g.where(condition as string, num(g, 0, dy), dy),
  ],
  Identity: ({ dy }) => [() => dy],
  Cast: ({ dy, x: [x], g }) => [() => g.cast(dy, dtypeOf(g, x as string))],
  // Steps have slope 0.
  Floor: () => [],
  Ceil: () => [],
  Round: () => [],
  Sign: () => [],

  // Y = α·op(A)·op(B) + β·C: see `productGradients`; dC = β·dY
  MatMul: (ctx) => productGradients(ctx, { transA: false, transB: false, alpha: 1 }),
  FusedMatMul: (ctx) => {
    const { attributes } = ctx.node
    if (intAttribute(attributes, 'transBatchA', 0) === 1 || intAttribute(attributes, 'transBatchB', 0) === 1)
      throw new Error(`No gradient for: FusedMatMul with transBatchA or transBatchB (node "${ctx.node.name}")`)
    return productGradients(ctx, productOptions(ctx.node))
  },
  Gemm: (ctx) => {
    const beta = floatAttribute(ctx.node.attributes, 'beta', 1)
    return [
      ...productGradients(ctx, productOptions(ctx.node)),
      () => {
        const dc = ctx.g.sumTo(ctx.dy, ctx.g.shape(ctx.x[2] as string))
        return beta === 1 ? dc : ctx.g.mul(dc, num(ctx.g, beta, dc))
      },
    ]
  },

  // d(xᵀ) = (dx)ᵀ : the inverse permutation
  Transpose: ({ dy, node, g }) => {
    const rank = g.shape(dy).length
    const perm = intsAttribute(node.attributes, 'perm') ?? Array.from({ length: rank }, (_, i) => rank - 1 - i)
    return [
      () =>
        g.transpose(
          dy,
          perm.map((_, axis) => perm.indexOf(axis)),
        ),
    ]
  },
  // The same elements in the input's shape.
  Reshape: sameElements,
  Squeeze: sameElements,
  Unsqueeze: sameElements,
  Flatten: sameElements,
  // Broadcasting, which the walk undoes.
  Expand: ({ dy }) => [() => dy],
  // Each input takes its part of dy.
  Concat: ({ dy, node, x, g }) => {
    const axis = axisOf(node, g.shape(dy).length)
    const sizes = x.map((input) => g.shape(input)[axis] as Dim)
    const parts = once(() =>
      g.node('Split', [dy, g.shapeValue(sizes)], {
        attributes: { axis: { i: axis } },
        outputs: x.length,
        types: x.map((input) => g.type(input)),
      }),
    )
    const start = (i: number) => (sizes as number[]).slice(0, i).reduce((a, b) => a + b, 0)
    const known = sizes.every((size) => typeof size === 'number')
    return x.map((_, i) => () => (known ? g.slice(dy, axis, start(i), start(i + 1)) : (parts()[i] as string)))
  },
  // The parts' gradients side by side, zeros for those without.
  Split: ({ dys, node, y, g }) => [
    () =>
      g.concat(
        dys.map((dy, i) => dy ?? zeros(g, y[i] as string)),
        axisOf(node, g.shape(y[0] as string).length),
      ),
  ],
  // dy in its place, zeros around it
  Slice: (ctx) => [() => padSlice(ctx)],
  // dx[index] += dy : rows that are taken several times add up
  Gather: ({ dy, node, x: [x, indices], g }) => [
    () => {
      const [table, index] = [g.shape(x as string), g.shape(indices as string)]
      const axis = axisOf(node, table.length)
      const count = product(index) ?? g.freshSymbol()
      const flat = g.reshape(
        indices as string,
        table.map((_, i) => (i === axis ? count : 1)),
      )
      const rows = g.reshape(dy, [...table.slice(0, axis), count, ...table.slice(axis + 1)])
      return scatterAdd(g, x as string, g.expand(flat, g.shape(rows)), rows, axis)
    },
  ],
  GatherElements: ({ dy, node, x: [x, indices], g }) => [
    () => scatterAdd(g, x as string, indices as string, dy, axisOf(node, g.shape(x as string).length)),
  ],

  // d Σx = Σdx
  ReduceSum: (ctx) => [() => ctx.g.expand(kept(ctx, ctx.dy), ctx.g.shape(ctx.x[0] as string))],
  // d mean(x) = Σdx / n
  ReduceMean: (ctx) => [
    () => {
      const { g, dy, x } = ctx
      const shape = g.shape(x[0] as string)
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
        x[0] as string,
        zeroWhereZero(g, kept(ctx, y[0] as string), (safe) => g.div(kept(ctx, dy), safe)),
      )
    },
  ],
  // d Σx² = 2 Σ x∘dx
  ReduceSumSquare: (ctx) => [() => ctx.g.mul(ctx.x[0] as string, ctx.g.mul(kept(ctx, ctx.dy), num(ctx.g, 2, ctx.dy)))],
  // dx = y∘(dy − Σ y∘dy)
  Softmax: (ctx) => [() => ctx.g.mul(attentionCentred(ctx) ?? centred(ctx), ctx.y[0] as string)],
  // dx = dy − eʸ·Σdy
  LogSoftmax: ({ dy, node, y: [y], g }) => [
    () => g.sub(dy, g.mul(g.exp(y as string), g.reduceSum(dy, [softmaxAxis(node, g.shape(dy).length)], true))),
  ],

  // y = x̂∘γ + β, x̂ = (x − μ)·r, r = 1/√(variance + ε):
  // dx = r·(v − mean v), v = dy∘γ − x̂·mean(dy∘γ∘x̂);  dγ = Σ dy∘x̂;  dβ = Σ dy
  LayerNormalization: ({ dy, node, x: [x, scale], g }) => {
    const axes = trailingAxes(node, g.shape(dy).length)
    const statistics = once(() =>
      g
        .withOutputs(node, 3)
        .slice(1)
        .map((stat) => g.cast(stat, dtypeOf(g, dy))),
    )
    const normal = once(() => {
      const [mean, r] = statistics()
      return g.mul(g.sub(x as string, mean as string), r as string)
    })
    return [
      () => {
        const scaled = g.mul(dy, scale as string)
        const v = g.sub(scaled, g.mul(normal(), g.reduceMean(g.mul(scaled, normal()), axes, true)))
        return g.mul(g.sub(v, g.reduceMean(v, axes, true)), statistics()[1] as string)
      },
      () => g.mul(dy, normal()),
      () => dy,
    ]
  },
  // y = x·r∘γ, r = 1/√(mean x² + ε):  dx = r·(dy∘γ − x·r²·mean(dy∘γ∘x));  dγ = Σ dy∘x·r
  SimplifiedLayerNormalization: (ctx) =>
    rmsGradients(ctx, () => ctx.g.cast(ctx.g.withOutputs(ctx.node, 2)[1] as string, dtypeOf(ctx.g, ctx.dy))),
  RMSNormalization: (ctx) => rmsGradients(ctx, () => inverseRms(ctx)),

  // d(x∘Φ(x)) = (Φ(x) + x∘φ(x))∘dx, Φ and φ the standard normal distribution and density
  Gelu: (ctx) => [
    () =>
      ctx.node.attributes.approximate !== undefined && (ctx.node.attributes.approximate as { s: string }).s === 'tanh'
        ? tanhGeluGradient(ctx.g, ctx.dy, ctx.x[0] as string)
        : geluGradient(ctx.g, ctx.dy, ctx.x[0] as string),
  ],
  // gelu(x + b), exact (BiasGelu) or by its tanh form (FastGelu, whose b is optional)
  BiasGelu: ({ dy, x: [x, b], g }) => {
    const d = once(() => geluGradient(g, dy, g.add(x as string, b as string)))
    return [d, d]
  },
  FastGelu: ({ dy, x: [x, b], g }) => {
    const d = once(() => tanhGeluGradient(g, dy, b ? g.add(x as string, b) : (x as string)))
    return [d, d]
  },
  // d(x∘σ(αx)) = (s + α·y∘(1 − s))∘dx, s = σ(αx)
  QuickGelu: ({ dy, node, x: [x], y: [y], g }) => [
    () => {
      const alpha = num(g, floatAttribute(node.attributes, 'alpha', 1.702), dy)
      const s = g.sigmoid(g.mul(x as string, alpha))
      const ay = g.mul(y as string, alpha)
      return g.mul(dy, g.add(s, g.sub(ay, g.mul(ay, s))))
    },
  ],
}

/** Operators whose rule takes the gradients of all their outputs; others are differentiated through the first only. */
export const severalOutputs: ReadonlySet<string> = new Set(['Split'])

function once<T>(make: () => T): () => T {
  let value: { made: T } | undefined
  return () => {
    value ??= { made: make() }
    return value.made
  }
}

const dtypeOf = (g: GraphBuilder, value: string): DType => g.type(value).dtype

/** The constant `value` in the element type of `like`. */
function num(g: GraphBuilder, value: number, like: string): string {
  const dtype = dtypeOf(g, like)
  return dtype === 'float32' || dtype === 'float64' ? g.scalar(value, dtype) : g.cast(g.scalar(value), dtype)
}

const zeros = (g: GraphBuilder, like: string): string => g.expand(num(g, 0, like), g.shape(like))

const product = (dims: Dim[]): number | undefined =>
  dims.every((d) => typeof d === 'number') ? dims.reduce((a, b) => a * b, 1) : undefined

/** The number of elements along dimensions of these sizes, in the element type of `like`: a scalar. */
function sizeOfAxes(g: GraphBuilder, dims: Dim[], like: string): string {
  const numbers = dims.filter((d) => typeof d === 'number').reduce((a, b) => a * b, 1)
  return dims
    .filter((d) => typeof d === 'string')
    .map((d) => g.reshape(g.cast(g.sizeOf(d), dtypeOf(g, like)), []))
    .reduce((n, size) => g.mul(n, size), num(g, numbers, like))
}

const axisOf = (node: Node, rank: number): number => normalAxis(intAttribute(node.attributes, 'axis', 0), rank)

const softmaxAxis = (node: Node, rank: number): number => normalAxis(intAttribute(node.attributes, 'axis', -1), rank)

/** The axes from attribute `axis` to the last. */
function trailingAxes(node: Node, rank: number): number[] {
  const first = softmaxAxis(node, rank)
  return Array.from({ length: rank - first }, (_, i) => first + i)
}

function sameElements({ dy, x: [x], g }: RuleContext): Gradient[] {
  return [() => g.reshape(dy, g.shape(x as string))]
}

/** `make(y)` where y is not 0, and 0 where it is; `make` sees 1 there. */
function zeroWhereZero(g: GraphBuilder, y: string, make: (safe: string) => string): string {
  const isZero = g.equal(y, num(g, 0, y))
  return g.where(isZero, num(g, 0, y), make(g.where(isZero, num(g, 1, y), y)))
}

function powerGradient(g: GraphBuilder, dy: string, base: string, exponent: string): string {
  const constant = g.constantOf(exponent)
  const b = constant?.data.length === 1 ? Number(constant.data[0]) : undefined
  if (b === 2) return g.mul(dy, g.mul(base, num(g, 2, base)))
  return g.mul(dy, g.mul(exponent, g.pow(base, g.sub(exponent, num(g, 1, base)))))
}

function logOfPositive(g: GraphBuilder, a: string): string {
  const positive = g.one('Greater', [a, num(g, 0, a)])
  return g.log(g.where(positive, a, num(g, 1, a)))
}

function firstEqual({ dy, x, y: [y], g }: RuleContext): Gradient[] {
  const isResult = x.map((input) => once(() => g.equal(input, y as string)))
  const earlier = (i: number) =>
    isResult
      .slice(0, i)
      .map((mask) => mask())
      .reduce((a, b) => g.one('Or', [a, b]))
  const mask = (i: number) => (i === 0 ? isResult[0]!() : g.one('And', [isResult[i]!(), g.one('Not', [earlier(i)])]))
  return x.map((_, i) => () => g.where(mask(i), dy, num(g, 0, dy)))
}

interface ProductOptions {
  transA: boolean
  transB: boolean
  alpha: number
}

function productOptions(node: Node): ProductOptions {
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
function productGradients({ dy, x, g }: RuleContext, { transA, transB, alpha }: ProductOptions): Gradient[] {
  const [rankA, rankB] = [g.shape(x[0] as string).length, g.shape(x[1] as string).length]
  const a = rankA === 1 ? g.unsqueeze(x[0] as string, [0]) : (x[0] as string)
  const b = rankB === 1 ? g.unsqueeze(x[1] as string, [1]) : (x[1] as string)
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
      return back(da, a, x[0] as string)
    },
    () => {
      if (!transA && g.shape(b).length === 2 && g.shape(a).length > 2) {
        // One product over all rows, instead of one for each matrix of the batch and a sum.
        const [rowsA, rowsD] = [flattenRows(g, a), flattenRows(g, d)]
        const db = transB
          ? multiply(g, rowsD, rowsA, { transA: true, transB: false, alpha })
          : multiply(g, rowsA, rowsD, { transA: true, transB: false, alpha })
        return back(db, b, x[1] as string)
      }
      const db = transB
        ? multiply(g, d, a, { transA: true, transB: transA, alpha })
        : multiply(g, a, d, { transA: !transA, transB: false, alpha })
      return back(db, b, x[1] as string)
    },
  ]
}

/** [..., k] as [rows, k]. */
function flattenRows(g: GraphBuilder, value: string): string {
  const shape = g.shape(value)
  return g.reshape(value, [product(shape.slice(0, -1)) ?? g.freshSymbol(), shape.at(-1) as Dim])
}

/** α·op(a)·op(b) without a Transpose where a kernel takes the flags: Gemm for matrices, FusedMatMul for batches of float32. */
function multiply(g: GraphBuilder, a: string, b: string, options: ProductOptions): string {
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

function scatterAdd(g: GraphBuilder, like: string, indices: string, updates: string, axis: number): string {
  // ScatterND with a reduction would lose updates: its threads race. ScatterElements is exact.
  return g.one('ScatterElements', [zeros(g, like), indices, updates], {
    attributes: { axis: { i: axis }, reduction: { s: 'add' } },
  })
}

/** The integers of a constant input or attribute, or undefined. */
function integers(ctx: RuleContext, attribute: string, input: number): number[] | undefined {
  const given = intsAttribute(ctx.node.attributes, attribute)
  if (given !== undefined || !ctx.x[input]) return given
  const tensor = ctx.g.constantOf(ctx.x[input])
  if (tensor === undefined)
    throw new Error(`No gradient for: ${ctx.node.op} with ${attribute} that are no constant (node "${ctx.node.name}")`)
  return Array.from(tensor.data as ArrayLike<number | bigint>, Number)
}

/** The axes over which a reduction goes, from its attribute or its second input; all where neither is given. */
function reducedAxes(ctx: RuleContext): number[] {
  const rank = ctx.g.shape(ctx.x[0] as string).length
  const axes = integers(ctx, 'axes', 1)
  if (axes !== undefined && axes.length > 0) return axes.map((axis) => normalAxis(axis, rank))
  const none = intAttribute(ctx.node.attributes, 'noop_with_empty_axes', 0) === 1
  return none ? [] : Array.from({ length: rank }, (_, i) => i)
}

/** A reduction's result (or its gradient) with the reduced axes as dimensions of size 1. */
function kept(ctx: RuleContext, value: string): string {
  if (intAttribute(ctx.node.attributes, 'keepdims', 1) === 1) return value
  const axes = new Set(reducedAxes(ctx))
  return ctx.g.reshape(
    value,
    ctx.g.shape(ctx.x[0] as string).map((d, i) => (axes.has(i) ? 1 : d)),
  )
}

function equalShares(ctx: RuleContext): Gradient[] {
  const { g, dy, x, y } = ctx
  return [
    () => {
      const mask = g.cast(g.equal(x[0] as string, kept(ctx, y[0] as string)), dtypeOf(g, dy))
      return g.mul(mask, g.div(kept(ctx, dy), g.reduceSum(mask, reducedAxes(ctx), true)))
    },
  ]
}

/** dy − Σ y∘dy along the softmax axis. */
function centred({ dy, node, y, g }: RuleContext): string {
  return g.sub(dy, g.reduceSum(g.mul(dy, y[0] as string), [softmaxAxis(node, g.shape(dy).length)], true))
}

/**
 * The same in attention, where O = α·P·V is all that reads the probabilities P: with dP = α·dO·Vᵀ and
 * Σ P∘dP = Σ O∘dO =: r along the last axis, dP − r = [α·dO, −r]·[V, 1]ᵀ. This spares passes over matrices as large as P:
 * O has a head's width of columns where P has the sequence length. (The sum is that of FlashAttention's backward pass,
 * Dao et al. 2022, appendix B.2.)
 */
function attentionCentred({ node, y: [p], g, onlyUse, gradientOf }: RuleContext): string | undefined {
  const use = onlyUse(p as string)
  if (use === undefined || !['MatMul', 'FusedMatMul'].includes(use.op) || use.inputs[0] !== p) return undefined
  const { transA, transB, alpha } = productOptions(use)
  const [v, o] = [use.inputs[1] as string, use.outputs[0] as string]
  const [shapeP, shapeV, dO] = [g.shape(p as string), g.shape(v), gradientOf(o)]
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

function padSlice(ctx: RuleContext): string {
  const { dy, node, x, g } = ctx
  const { dtype, shape } = g.type(x[0] as string)
  const starts = integers(ctx, 'starts', 1) ?? []
  const axes = (integers(ctx, 'axes', 3) ?? starts.map((_, i) => i)).map((axis) => normalAxis(axis, shape.length))
  if ((integers(ctx, 'steps', 4) ?? []).some((step) => step !== 1))
    throw new Error(`No gradient for: Slice with steps (node "${node.name}")`)
  const vector = (v: number) => g.constant([v], 'int64')
  const before = shape.map((d, axis) => {
    const start = starts[axes.indexOf(axis)] ?? 0
    const size = g.shapeValue([d])
    return start >= 0 ? g.one('Min', [vector(start), size]) : g.max(g.add(size, vector(start)), vector(0))
  })
  const after = shape.map((d, axis) =>
    g.sub(g.sub(g.shapeValue([d]), before[axis] as string), g.shapeValue([g.shape(dy)[axis] as Dim])),
  )
  return g.one('Pad', [dy, g.concat([...before, ...after], 0)], { types: [{ dtype, shape }] })
}

function rmsGradients({ dy, node, x: [x, scale], g }: RuleContext, rms: () => string): Gradient[] {
  const axes = trailingAxes(node, g.shape(dy).length)
  const r = once(rms)
  return [
    () => {
      const scaled = g.mul(dy, scale as string)
      const along = g.reduceMean(g.mul(scaled, x as string), axes, true)
      return g.mul(g.sub(scaled, g.mul(x as string, g.mul(along, g.mul(r(), r())))), r())
    },
    () => g.mul(dy, g.mul(x as string, r())),
  ]
}

function inverseRms({ dy, node, x: [x], g }: RuleContext): string {
  const axes = trailingAxes(node, g.shape(dy).length)
  const epsilon = num(g, floatAttribute(node.attributes, 'epsilon', 1e-5), dy)
  return g.reciprocal(g.sqrt(g.add(g.reduceMean(g.mul(x as string, x as string), axes, true), epsilon)))
}

function geluGradient(g: GraphBuilder, dy: string, x: string): string {
  // t = x/√2: Φ(x) = ½ + ½·erf(t), x∘φ(x) = t/(√π·e^(t²)).
  const t = g.mul(x, num(g, Math.SQRT1_2, x))
  const cdf = g.one('HardSigmoid', [g.erf(t)], { attributes: { alpha: { f: 0.5 }, beta: { f: 0.5 } } })
  const density = g.mul(g.div(t, g.exp(g.mul(t, t))), num(g, 1 / Math.sqrt(Math.PI), x))
  return g.mul(dy, g.add(cdf, density))
}

function tanhGeluGradient(g: GraphBuilder, dy: string, x: string): string {
  // y = x∘s, s = σ(2u), u = √(2/π)·(x + 0.044715·x³):  y' = s + x∘s∘(1 − s)∘2u'
  const c = 2 * Math.sqrt(2 / Math.PI)
  const square = g.mul(x, x)
  const twoU = g.mul(x, g.add(g.mul(square, num(g, c * 0.044715, x)), num(g, c, x)))
  const slope = g.add(g.mul(square, num(g, 3 * c * 0.044715, x)), num(g, c, x))
  const s = g.sigmoid(twoU)
  const xs = g.mul(x, s)
  return g.mul(dy, g.add(s, g.mul(g.sub(xs, g.mul(xs, s)), slope)))
}

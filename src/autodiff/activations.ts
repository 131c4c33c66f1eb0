import { floatAttribute, type GraphBuilder, type Node } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { dtypeOf, num, once } from './formulas.ts'
import type { GradientRule } from './rule.ts'

/** `make`'s slope times dy. */
const slope =
  (make: (ctx: { x: string; y: string; g: GraphBuilder; node: Node }) => string): GradientRule =>
  ({ dy, x: [x], y: [y], g, node }) => [() => g.mul(dy, make({ x, y, g, node }))]

/** dy where `condition`, and `otherwise` elsewhere. */
const piecewise =
  (
    condition: (g: GraphBuilder, x: string, node: Node) => string,
    otherwise: (ctx: { dy: string; x: string; y: string; g: GraphBuilder; node: Node }) => string,
  ): GradientRule =>
  ({ dy, x: [x], y: [y], g, node }) => [() => g.where(condition(g, x, node), dy, otherwise({ dy, x, y, g, node }))]

const positive = (g: GraphBuilder, x: string): string => g.one('Greater', [x, num(g, 0, x)])

const alpha = (node: Node, otherwise: number): number => floatAttribute(node.attributes, 'alpha', otherwise)

/** x² + c, or c − x². */
const squarePlus = (g: GraphBuilder, x: string, c: number): string => g.add(g.mul(x, x), num(g, c, x))
const oneMinusSquare = (g: GraphBuilder, x: string): string => g.sub(num(g, 1, x), g.mul(x, x))

/** x∘σ(αx), with s = σ(αx): s + α·y∘(1 − s) */
function swishSlope(g: GraphBuilder, x: string, y: string, scale: number): string {
  const a = num(g, scale, x)
  const s = g.sigmoid(scale === 1 ? x : g.mul(x, a))
  const ay = scale === 1 ? y : g.mul(y, a)
  return g.add(s, g.sub(ay, g.mul(ay, s)))
}

/** Functions of one number: trigonometry and activations. */
export const activationGradients: Record<string, GradientRule> = {
  // d tan x = (1 + y²)∘dx
  Tan: slope(({ y, g }) => squarePlus(g, y, 1)),
  // d sinh x = cosh x∘dx
  Sinh: slope(({ x, g }) => g.one('Cosh', [x])),
  // d cosh x = sinh x∘dx
  Cosh: slope(({ x, g }) => g.one('Sinh', [x])),
  // d asin x = dx/√(1 − x²)
  Asin: slope(({ x, g }) => g.reciprocal(g.sqrt(oneMinusSquare(g, x)))),
  // d acos x = −dx/√(1 − x²)
  Acos: slope(({ x, g }) => g.neg(g.reciprocal(g.sqrt(oneMinusSquare(g, x))))),
  // d atan x = dx/(1 + x²)
  Atan: slope(({ x, g }) => g.reciprocal(squarePlus(g, x, 1))),
  // d asinh x = dx/√(x² + 1)
  Asinh: slope(({ x, g }) => g.reciprocal(g.sqrt(squarePlus(g, x, 1)))),
  // d acosh x = dx/√(x² − 1)
  Acosh: slope(({ x, g }) => g.reciprocal(g.sqrt(squarePlus(g, x, -1)))),
  // d atanh x = dx/(1 − x²)
  Atanh: slope(({ x, g }) => g.reciprocal(oneMinusSquare(g, x))),

  // α·x below 0
  LeakyRelu: piecewise(positive, ({ dy, g, node }) => g.mul(dy, num(g, alpha(node, 0.01), dy))),
  // x above α, else 0
  ThresholdedRelu: piecewise(
    (g, x, node) => g.one('Greater', [x, num(g, alpha(node, 1), x)]),
    ({ dy, g }) => num(g, 0, dy),
  ),
  // y = α·(eˣ − 1) below 0, where y' = y + α
  Elu: piecewise(positive, ({ dy, y, g, node }) => g.mul(dy, g.add(y, num(g, alpha(node, 1), y)))),
  // y = α·(e^(x/α) − 1) below 0, where y' = y/α + 1
  Celu: piecewise(positive, ({ dy, y, g, node }) =>
    g.mul(dy, g.add(g.mul(y, num(g, 1 / alpha(node, 1), y)), num(g, 1, y))),
  ),
  // y = γ·x above 0, γα·(eˣ − 1) below, where y' = y + γα
  Selu: slope(({ x, y, g, node }) => {
    const gamma = floatAttribute(node.attributes, 'gamma', 1.0507009873554805)
    const below = g.add(y, num(g, gamma * alpha(node, 1.6732632423543772), y))
    return g.where(positive(g, x), num(g, gamma, x), below)
  }),
  // α·x + β, cut to [0, 1]
  HardSigmoid: slope(({ y, g, node }) => {
    const inside = g.one('And', [positive(g, y), g.one('Less', [y, num(g, 1, y)])])
    return g.where(inside, num(g, alpha(node, 0.2), y), num(g, 0, y))
  }),
  // y = x∘h, h = x/6 + ½ cut to [0, 1]:  y' = h + x/6 where 0 < h < 1
  HardSwish: slope(({ x, g }) => {
    const h = g.one('HardSigmoid', [x], { attributes: { alpha: { f: 1 / 6 }, beta: { f: 0.5 } } })
    const inside = g.one('Less', [g.one('Abs', [x]), num(g, 3, x)])
    return g.where(inside, g.add(h, g.mul(x, num(g, 1 / 6, x))), h)
  }),
  // d(x/(1 + |x|)) = dx/(1 + |x|)²
  Softsign: ({ dy, x: [x], g }) => [
    () => {
      const d = g.add(g.one('Abs', [x]), num(g, 1, x))
      return g.div(dy, g.mul(d, d))
    },
  ],
  // y = x∘t, t = tanh(softplus x):  y' = t + x∘(1 − t²)∘σ(x)
  Mish: slope(({ x, g }) => {
    const t = g.tanh(g.softplus(x))
    return g.add(t, g.mul(g.mul(x, oneMinusSquare(g, t)), g.sigmoid(x)))
  }),
  // x∘σ(αx)
  Swish: slope(({ x, y, g, node }) => swishSlope(g, x, y, alpha(node, 1))),
  QuickGelu: slope(({ x, y, g, node }) => swishSlope(g, x, y, alpha(node, 1.702))),
  // x moved towards 0 by a constant, and 0 near it
  Shrink: piecewise(
    (g, x, node) => g.one('Greater', [g.one('Abs', [x]), num(g, floatAttribute(node.attributes, 'lambd', 0.5), x)]),
    ({ dy, g }) => num(g, 0, dy),
  ),
  // y = x above 0, s∘x below:  dx = s∘dy and ds = x∘dy there
  PRelu: ({ dy, x: [x, s], g }) => {
    const below = once(() => g.one('Less', [x, num(g, 0, x)]))
    return [() => g.where(below(), g.mul(dy, s), dy), () => g.where(below(), g.mul(dy, x), num(g, 0, dy))]
  },
  // y = a − b·n, n whole (the quotient towards 0):  da = dy, db = −n∘dy
  Mod: ({ dy, x: [a, b], y: [y], g }) => [() => dy, () => g.mul(dy, g.one('Round', [g.div(g.sub(y, a), b)]))],
  // d mean(a, b, ...) = (da + db + ...)/n
  Mean: ({ dy, node, g }) => {
    const share = once(() => g.mul(dy, num(g, 1 / node.inputs.length, dy)))
    return node.inputs.map(() => share)
  },
  CastLike: ({ dy, x: [x], g }) => [() => g.cast(dy, dtypeOf(g, x))],
  // At inference the identity.
  Dropout: ({ dy, node, x: [, , training], g }) => {
    const on = training ? g.constantOf(training)?.data[0] : 0
    if (on !== 0) throw new InputError(`No gradient for: Dropout in training mode (node "${node.name}")`)
    return [() => dy]
  },
}

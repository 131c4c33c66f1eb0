import { type Dim, floatAttribute, type GraphBuilder, intAttribute, intsAttribute, normalAxis } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { num, once, product, zeroWhereZero } from './formulas.ts'
import type { GradientRule, RuleContext } from './rule.ts'

/** c = x − μ and r = 1/√(mean c² + ε) over `axes`. */
function standardised(g: GraphBuilder, x: string, axes: number[], epsilon: number): { c: string; r: string } {
  const c = g.sub(x, g.reduceMean(x, axes, true))
  const variance = g.reduceMean(g.mul(c, c), axes, true)
  return { c, r: g.reciprocal(g.sqrt(g.add(variance, num(g, epsilon, x)))) }
}

/** y = c·r:  dx = r·(v − mean v), v = dy − c·r²·mean(dy∘c) */
function throughStandardised(g: GraphBuilder, dy: string, { c, r }: { c: string; r: string }, axes: number[]): string {
  const along = g.mul(g.reduceMean(g.mul(dy, c), axes, true), g.mul(r, r))
  const v = g.sub(dy, g.mul(c, along))
  return g.mul(g.sub(v, g.reduceMean(v, axes, true)), r)
}

const epsilonOf = ({ node }: RuleContext): number => floatAttribute(node.attributes, 'epsilon', 1e-5)

/** All axes but the channels', which is the second. */
const otherAxes = (g: GraphBuilder, x: string): number[] => g.shape(x).flatMap((_, axis) => (axis === 1 ? [] : [axis]))

/** A value for each channel, in a shape that broadcasts to `x`. */
const perChannel = (g: GraphBuilder, value: string, x: string): string =>
  g.reshape(
    value,
    g.shape(x).map((d, axis) => (axis === 1 ? d : 1)),
  )

/**
 * Groups of channels are normalised together: x is seen as [batch, groups, rest]. The scale γ and the bias are per channel
 * (from opset 21 on) or per group.
 */
const group: GradientRule = (ctx) => {
  const { dy, node, x, g } = ctx
  const [batch, channels] = g.shape(x[0]) as [Dim, Dim, ...Dim[]]
  const groups = intAttribute(node.attributes, 'num_groups', 1)
  const rest = product(g.shape(x[0]).slice(1))
  const view: Dim[] = [batch, groups, rest === undefined ? g.freshSymbol() : rest / groups]
  const grouped = (value: string) => g.reshape(value, view)
  const each = g.shape(x[1])[0] === channels
  const normal = once(() => standardised(g, grouped(x[0]), [2], epsilonOf(ctx)))
  /** Sums of a grouped value for each element of γ. */
  const sums = (value: string) =>
    each ? g.reduceSum(g.reshape(value, g.shape(x[0])), otherAxes(g, x[0])) : g.reduceSum(value, [0, 2])
  return [
    () => {
      const scaled = each ? grouped(g.mul(dy, perChannel(g, x[1], dy))) : g.mul(grouped(dy), g.unsqueeze(x[1], [1]))
      return g.reshape(throughStandardised(g, scaled, normal(), [2]), g.shape(x[0]))
    },
    () => sums(g.mul(grouped(dy), g.mul(normal().c, normal().r))),
    () => sums(grouped(dy)),
  ]
}

/** Normalisations by statistics that the operator does not give out. */
export const normalisationGradients: Record<string, GradientRule> = {
  // y = c·r∘γ + β for each item and channel
  InstanceNormalization: (ctx) => {
    const { dy, x, g } = ctx
    const spatial = otherAxes(g, x[0]).slice(1)
    const normal = once(() => standardised(g, x[0], spatial, epsilonOf(ctx)))
    return [
      () => throughStandardised(g, g.mul(dy, perChannel(g, x[1], dy)), normal(), spatial),
      () => g.reduceSum(g.mul(dy, g.mul(normal().c, normal().r)), otherAxes(g, dy)),
      () => g.reduceSum(dy, otherAxes(g, dy)),
    ]
  },
  GroupNormalization: group,
  // y = (x − μ)/σ
  MeanVarianceNormalization: ({ dy, node, x: [x], g }) => {
    const axes = intsAttribute(node.attributes, 'axes') ?? [0, 2, 3]
    return [() => throughStandardised(g, dy, standardised(g, x, axes, 1e-9), axes)]
  },
  // At inference, with statistics given: y = (x − μ)·r∘γ + β, r = 1/√(σ² + ε):
  // dx = dy∘γ·r;  dγ = Σ dy∘(x − μ)·r;  dβ = Σ dy;  dμ = −Σ dy∘γ·r;  dσ² = −½ Σ dy∘γ∘(x − μ)·r³
  BatchNormalization: (ctx) => {
    const { dy, node, x, g } = ctx
    if (intAttribute(node.attributes, 'training_mode', 0) === 1)
      throw new InputError(`No gradient for: BatchNormalization in training mode (node "${node.name}")`)
    const [gamma, , mean = '', variance = ''] = x.slice(1)
    const r = once(() => g.reciprocal(g.sqrt(g.add(variance, num(g, epsilonOf(ctx), variance)))))
    const centred = once(() => g.sub(x[0], perChannel(g, mean, dy)))
    const sum = (value: string) => g.reduceSum(value, otherAxes(g, dy))
    const scale = once(() => g.mul(gamma as string, r()))
    return [
      () => g.mul(dy, perChannel(g, scale(), dy)),
      () => g.mul(sum(g.mul(dy, centred())), r()),
      () => sum(dy),
      () => g.neg(g.mul(sum(dy), scale())),
      () => g.mul(sum(g.mul(dy, centred())), g.mul(g.mul(scale(), g.mul(r(), r())), num(g, -0.5, dy))),
    ]
  },
  // y = x/‖x‖:  dx = (dy − ∂‖x‖·Σ dy∘y)/‖x‖, ∂‖x‖ = y (p = 2) or sign x (p = 1); 0 where ‖x‖ = 0
  LpNormalization: ({ dy, node, x: [x], y: [y], g }) => {
    const axis = normalAxis(intAttribute(node.attributes, 'axis', -1), g.shape(x).length)
    const two = intAttribute(node.attributes, 'p', 2) === 2
    const norm = () => {
      const sum = g.reduceSum(two ? g.mul(x, x) : g.one('Abs', [x]), [axis], true)
      return two ? g.sqrt(sum) : sum
    }
    return [
      () => {
        const along = g.reduceSum(g.mul(dy, y), [axis], true)
        const across = g.sub(dy, g.mul(two ? y : g.one('Sign', [x]), along))
        return g.mul(
          across,
          zeroWhereZero(g, norm(), (safe) => g.reciprocal(safe)),
        )
      },
    ]
  },
}

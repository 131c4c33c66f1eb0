import type { GraphBuilder } from '../../onnx/index.ts'
import type { QueryRows } from '../data/query-file.ts'

export interface LossSettings {
  loss: 'logistic' | 'hinge'
  /** Temperature τ of the logistic loss. */
  tau: number
  /** Margin m of the hinge loss. */
  margin: number
}

/** The settings of a loss that is built in; undefined for a module's. */
export function builtInLoss(settings: { loss: string; tau: number; margin: number }): LossSettings | undefined {
  const { loss, tau, margin } = settings
  return loss === 'logistic' || loss === 'hinge' ? { loss, tau, margin } : undefined
}

/** Names of the loss's own graph inputs and outputs. */
export const lossValues = {
  /** float32 [pairs, nodes]: row p is +1 at the preferred node of pair p, -1 at the other one. */
  pairs: 'pairs',
  /** float32 [pairs, dimension]: the query embedding of each pair, of unit length. */
  queries: 'pair_queries',
  /** float32 [pairs]: each pair's share of the batch's loss; see `pairWeights`. */
  weights: 'pair_weights',
  /** Output, scalar: Σ weight · ℓ(d). */
  loss: 'loss',
  /** Output, [pairs]: d = s(preferred) - s(other). */
  differences: 'differences',
} as const

/**
 * Adds the pairwise ranking loss on node embeddings `[nodes, dimension]` of unit length to a graph (CANOPY, the preference
 * loss; s is the cosine with the frozen query embedding):
 *
 *   d_p = s(preferred) - s(other) = (P · E)_p · q_p
 *   L = Σ_p weight_p · ℓ(d_p),   ℓ(d) = softplus(-d/τ)  or  max(0, m - d)
 *
 * One dense matrix P of +1 and -1 does the indexing, so that the gradient at the embeddings is a Gemm too: the same sum in
 * the same order every time. Equal rows of P·E, and so pairs of one node with itself, give exactly d = 0.
 */
export function addLoss(g: GraphBuilder, embeddings: string, settings: LossSettings): void {
  const [nodes, dimension] = g.shape(embeddings) as [number | string, number]
  const pairs = g.input(lossValues.pairs, 'float32', ['pair_count', nodes])
  const queries = g.input(lossValues.queries, 'float32', ['pair_count', dimension])
  const weights = g.input(lossValues.weights, 'float32', ['pair_count'])
  const contrast = g.gemm(pairs, embeddings)
  const d = g.reduceSum(g.mul(contrast, queries), [1])
  const losses =
    settings.loss === 'logistic'
      ? g.softplus(g.mul(d, g.scalar(-1 / settings.tau)))
      : g.relu(g.sub(g.scalar(settings.margin), d))
  g.output(g.reduceSum(g.mul(losses, weights), [0]), lossValues.loss)
  g.output(d, lossValues.differences)
}

/** ℓ(d), outside a graph. */
export function pairLoss(d: number, settings: LossSettings): number {
  if (settings.loss === 'hinge') return Math.max(0, settings.margin - d)
  const x = -d / settings.tau
  return Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)))
}

/** ℓ′(d). */
function pairSlope(d: number, settings: LossSettings): number {
  if (settings.loss === 'hinge') return d < settings.margin ? -1 : 0
  return -1 / settings.tau / (1 + Math.exp(d / settings.tau))
}

/** A pair, by the places of its nodes among the embeddings and of its question among the query embeddings. */
export interface WeightedPair {
  preferred: number
  other: number
  question: number
  /** Share of the batch's loss. */
  weight: number
}

/**
 * The loss outside a graph, with its gradient at the embeddings. Memory grows with the nodes, not with nodes times pairs, so
 * that an item of any size can be trained.
 *
 * @param embeddings unit node embeddings `[nodes, dimension]`
 * @returns `slope`: dL/d(embeddings), `[nodes, dimension]`
 */
export function lossAtEmbeddings(
  embeddings: Float32Array,
  queries: QueryRows,
  pairs: readonly WeightedPair[],
  dimension: number,
  settings: LossSettings,
): { loss: number; differences: Float32Array; slope: Float32Array } {
  const slope = new Float64Array(embeddings.length)
  const differences = new Float32Array(pairs.length)
  let loss = 0
  pairs.forEach(({ preferred, other, question, weight }, p) => {
    const [at, to, query] = [preferred * dimension, other * dimension, queries(question)]
    let d = 0
    for (let k = 0; k < dimension; k++) d += (embeddings[at + k]! - embeddings[to + k]!) * query[k]!
    differences[p] = d
    loss += weight * pairLoss(d, settings)
    const factor = weight * pairSlope(d, settings)
    for (let k = 0; k < dimension; k++) {
      const change = factor * query[k]!
      slope[at + k]! += change
      slope[to + k]! -= change
    }
  })
  return { loss, differences, slope: Float32Array.from(slope) }
}

/** What the loss is averaged over, a decision node or an item: its weight ω and the kind weights w of its pairs. */
export interface WeightedGroup {
  omega: number
  /** w(kind) of each pair. */
  pairs: number[]
}

/**
 * Each pair's share of the batch's loss, group by group:
 *
 *   L = Σᵢ ωᵢ [Σₚ w(kindₚ) ℓ(dₚ) / Σₚ w(kindₚ)] / Σᵢ ωᵢ  =  Σᵢₚ share_ip · ℓ(d_ip)
 *
 * The sums run over the whole batch, so micro-batches only split the outer sum. A group whose weights are all zero counts
 * neither above nor below the line.
 */
export function pairWeights(groups: WeightedGroup[]): number[][] {
  const sums = groups.map(({ pairs }) => pairs.reduce((sum, w) => sum + w, 0))
  const total = groups.reduce((sum, { omega }, i) => sum + (sums[i]! > 0 ? omega : 0), 0)
  return groups.map(({ omega, pairs }, i) =>
    pairs.map((w) => (total > 0 && sums[i]! > 0 ? (omega * w) / sums[i]! / total : 0)),
  )
}

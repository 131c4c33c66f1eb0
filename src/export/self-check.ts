import type { Embedder } from '../encoder/index.ts'
import { accuracyOf, type ScoredTree } from '../eval/index.ts'
import { type Hierarchy, type RenderOptions, renderNode } from '../hierarchy/index.ts'
import { refine } from '../refine/index.ts'

/** A held-out item with its question and gold leaves, over which the exported encoder is compared with the trained one. */
export interface CheckInstance {
  benchmark: string
  question: string
  hierarchy: Hierarchy
  /** [leaves] */
  gold: boolean[]
}

/** How closely the written files give what was trained. */
export interface SelfCheck {
  /** Texts compared, and how many of them were cut at the maximum length. */
  texts: number
  truncated: number
  /** Smallest cosine between the two embeddings of a text. */
  minCosine: number
  /** Largest difference of one number of the unit-length embeddings. */
  maxDifference: number
  /** Refinement on the held-out items by both encoders; absent without instances. */
  refinement?: {
    instances: number
    trained: RefinementFigures
    exported: RefinementFigures
    /** Items of which both keep the same ranges, as a share. */
    sameKept: number
  }
}

export interface RefinementFigures {
  decisionAccuracy: number
  prunedItemRate: number
  droppedItemRate: number
}

/** The least cosine and the largest difference that rounding explains in fp32. */
export const FP32_BOUNDS = { minCosine: 0.99999, maxDifference: 1e-3 } as const

/**
 * Embeds the same node texts by the trained packed graph and by the written files (padded batches), and refines held-out items
 * with both. At least one text is longer than the encoder takes, so that cutting is compared too.
 *
 * @param trained the checkpoint with its adapter
 * @param exported the written folder
 * @param query f0
 */
export async function selfCheck(options: {
  trained: Embedder
  exported: Embedder
  query: Embedder
  instances: readonly CheckInstance[]
  rendering: RenderOptions
  signal?: AbortSignal | undefined
}): Promise<SelfCheck> {
  const { trained, exported, query, instances, rendering } = options
  const run = options.signal === undefined ? {} : { signal: options.signal }
  const place = instances.map(({ hierarchy }) => hierarchy.nodes.map((node) => renderNode(hierarchy, node, rendering)))
  const texts = [...new Set([...place.flat(), ...builtInTexts(trained)])]
  const a = await trained.embedTexts(texts, 'node', run)
  const b = await exported.embedTexts(texts, 'node', run)
  const check: SelfCheck = {
    texts: texts.length,
    truncated: a.truncated.filter(Boolean).length,
    ...compare(a.embeddings, b.embeddings, trained.dimension),
  }
  if (instances.length === 0) return check

  const queries = await query.embedTexts(
    instances.map((instance) => instance.question),
    'query',
    run,
  )
  const row = new Map(texts.map((text, i) => [text, i]))
  const scoredBy = (embeddings: Float32Array, same: Int32Array): ScoredTree[] =>
    instances.map(({ benchmark, hierarchy, gold }, i) => {
      const rows = (place[i] as string[]).map((text) => row.get(text) as number)
      const scores = rows.map((r) => cosine(queries.embeddings, i, embeddings, r, trained.dimension))
      return { benchmark, nodes: hierarchy.nodes, gold, scores, same: rows.map((r) => same[r] as number) }
    })
  const byTrained = scoredBy(a.embeddings, a.same)
  const byExported = scoredBy(b.embeddings, b.same)
  const kept = (tree: ScoredTree): string => {
    const scores = new Map(tree.nodes.map((node, i) => [node, tree.scores[i] as number]))
    return refine(tree.nodes[0]!, (node) => scores.get(node) as number)
      .map(({ from, to }) => `${from}-${to}`)
      .join()
  }
  return {
    ...check,
    refinement: {
      instances: instances.length,
      trained: figures(byTrained, kept),
      exported: figures(byExported, kept),
      sameKept: byTrained.filter((tree, i) => kept(tree) === kept(byExported[i]!)).length / instances.length,
    },
  }
}

/** What is wrong with a check, in sentences; none when the export may be used. */
export function failures(
  check: SelfCheck,
  bounds: { minCosine: number; maxDifference: number } = FP32_BOUNDS,
): string[] {
  const wrong: string[] = []
  // negated comparisons, so that NaN fails
  if (!(check.minCosine >= bounds.minCosine))
    wrong.push(`the smallest cosine to the trained encoder is ${check.minCosine.toFixed(7)}, below ${bounds.minCosine}`)
  if (!(check.maxDifference <= bounds.maxDifference))
    wrong.push(
      `the largest difference to the trained encoder is ${check.maxDifference.toExponential(2)}, above ${bounds.maxDifference}`,
    )
  return wrong
}

function figures(trees: ScoredTree[], kept: (tree: ScoredTree) => string): RefinementFigures {
  const several = trees.filter((tree) => tree.nodes.length > 1)
  const share = (holds: (tree: ScoredTree) => boolean): number => several.filter(holds).length / several.length
  const rootOf = (tree: ScoredTree): string => `${tree.nodes[0]!.from}-${tree.nodes[0]!.to}`
  const leavesOf = (ranges: string): number =>
    ranges.split(',').reduce((sum, range) => {
      const [from, to] = range.split('-').map(Number)
      return sum + (to! - from!)
    }, 0)
  return {
    decisionAccuracy: accuracyOf(trees).decisionAccuracy,
    prunedItemRate: share((tree) => kept(tree) !== rootOf(tree)),
    droppedItemRate: share((tree) => leavesOf(kept(tree)) < tree.nodes[0]!.to - tree.nodes[0]!.from),
  }
}

function compare(a: Float32Array, b: Float32Array, dimension: number): { minCosine: number; maxDifference: number } {
  let minCosine = 1
  let maxDifference = 0
  for (let i = 0; i < a.length / dimension; i++) {
    const c = cosine(a, i, b, i, dimension)
    minCosine = Number.isNaN(c) ? Number.NaN : Math.min(minCosine, c)
    const [na, nb] = [norm(a, i, dimension), norm(b, i, dimension)]
    for (let k = i * dimension; k < (i + 1) * dimension; k++)
      maxDifference = Math.max(maxDifference, Math.abs(a[k]! / na - b[k]! / nb))
  }
  return { minCosine, maxDifference }
}

function norm(rows: Float32Array, row: number, dimension: number): number {
  let squares = 0
  for (let k = row * dimension; k < (row + 1) * dimension; k++) squares += rows[k]! ** 2
  return Math.max(Math.sqrt(squares), 1e-12)
}

function cosine(a: Float32Array, i: number, b: Float32Array, j: number, dimension: number): number {
  let dot = 0
  for (let k = 0; k < dimension; k++) dot += a[i * dimension + k]! * b[j * dimension + k]!
  return dot / (norm(a, i, dimension) * norm(b, j, dimension))
}

/** Short, accented, odd and over-long texts, so that every export is compared on them, with held-out data or without. */
function builtInTexts(encoder: Embedder): string[] {
  const sentence = 'The ferry left the harbour at dawn, before the fog had lifted from the water.'
  const long = Array.from({ length: Math.ceil(encoder.profile.maxLength / 8) }, (_, i) => `${i}. ${sentence}`)
  return [
    'a',
    sentence,
    'Harbours\nThe ferry left at dawn. It carried 33.5 tonnes of salt and one piano.',
    'Crème brûlée, naïve façades, Ærø, Łódź and 東京 — “quoted”, 50 % off; e.g. No. 5.',
    long.join(' '),
  ]
}

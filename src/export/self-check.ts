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

/** How close two encoders' embeddings of the same texts lie. */
export interface Closeness {
  /** Smallest cosine between the two embeddings of a text. */
  minCosine: number
  /** Largest difference of one number of the unit-length embeddings. */
  maxDifference: number
}

/** A closeness and what it has to keep. */
export interface Comparison extends Closeness {
  bounds: Closeness
}

/** How closely the written files give what was trained. */
export interface SelfCheck extends Comparison {
  /** Texts compared, and how many of them were cut at the maximum length. */
  texts: number
  truncated: number
  /**
   * The same for the written graph computed in float32, without the rounding of its activations: what is left is what became of
   * the adapter. Absent for a graph that computes in float32 anyway.
   */
  unrounded?: Comparison
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

/**
 * The least cosine and the largest difference that rounding explains when computing in float32, by the coarsest type that weights
 * with an update in them are stored in. Half a unit in the last place of merged weights is 2⁻¹², of bfloat16 2⁻⁹; measured with
 * all-MiniLM-L6-v2 are differences of 1.4e-7 and, with merged halves, 1.4e-4, and without one of the 36 modules of an adapter of
 * six steps 2.4e-4 to 4.4e-3.
 */
export const MERGED_BOUNDS: Record<FloatType, Closeness> = {
  float32: { minCosine: 0.999999, maxDifference: 1e-4 },
  float16: { minCosine: 0.99999, maxDifference: 1e-3 },
  bfloat16: { minCosine: 0.9994, maxDifference: 8e-3 },
}

export type FloatType = 'float32' | 'float16' | 'bfloat16'

/** What a graph that computes in half precision, or rounds to integers, is compared with beside the trained one. */
export interface Rounding {
  /** The encoder without the adapter, as its file has it, and as training computes it. */
  frozen: { file: Embedder; trained: Embedder }
  /** The written graph as training would compute it. */
  exported: Embedder
  /** The coarsest type of its float weights. */
  weights: FloatType
}

/**
 * Embeds the same node texts by the trained packed graph and by the written files (padded batches), and refines held-out items
 * with both. At least one text is longer than the encoder takes, so that cutting is compared too.
 *
 * @param trained the checkpoint with its adapter
 * @param exported the written folder
 * @param query f0
 * @param rounding for a graph that computes in half precision or rounds to integers. The export rounds as the file does, so that
 *   it may differ from the trained graph by {@link ROUNDING} times what the frozen file differs from the frozen graph by, and by
 *   what fp32 explains; computed in float32 only by what its weights' type explains, which a lost or misplaced update is not.
 */
export async function selfCheck(options: {
  trained: Embedder
  exported: Embedder
  query: Embedder
  rounding?: Rounding | undefined
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
    bounds: MERGED_BOUNDS.float32,
  }
  if (options.rounding !== undefined) {
    const { frozen, exported: graph, weights } = options.rounding
    const { embeddings } = await graph.embedTexts(texts, 'node', run)
    check.bounds = await roundingBounds(frozen, texts, run)
    check.unrounded = { ...compare(a.embeddings, embeddings, trained.dimension), bounds: MERGED_BOUNDS[weights] }
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

/**
 * How much more than the frozen encoder a trained one may lose by the file's rounding: the ranges of a statically quantised graph
 * were measured without the adapter. (1 - cosine grows with the square of a difference.)
 */
const ROUNDING = 3

/** However coarse a file rounds: below this an export is another encoder. */
const LEAST_COSINE = 0.9

async function roundingBounds(
  { file, trained }: Rounding['frozen'],
  texts: string[],
  run: { signal?: AbortSignal },
): Promise<Closeness> {
  const [own, exact] = [await file.embedTexts(texts, 'node', run), await trained.embedTexts(texts, 'node', run)]
  const rounding = compare(own.embeddings, exact.embeddings, file.dimension)
  const least = MERGED_BOUNDS.float32
  return {
    minCosine: Math.max(LEAST_COSINE, least.minCosine - ROUNDING ** 2 * (1 - rounding.minCosine)),
    maxDifference: least.maxDifference + ROUNDING * rounding.maxDifference,
  }
}

/** What is wrong with a check, in sentences; none when the export may be used. */
export function failures(check: SelfCheck): string[] {
  const wrong: string[] = []
  const compared = (found: Comparison, how: string): void => {
    const { minCosine, maxDifference, bounds } = found
    // negated comparisons, so that NaN fails
    if (!(minCosine >= bounds.minCosine))
      wrong.push(
        `${how}the smallest cosine to the trained encoder is ${minCosine.toFixed(7)}, below ${Number(bounds.minCosine.toPrecision(6))}`,
      )
    if (!(maxDifference <= bounds.maxDifference))
      wrong.push(
        `${how}the largest difference to the trained encoder is ${maxDifference.toExponential(2)}, above ${Number(bounds.maxDifference.toPrecision(3))}`,
      )
  }
  compared(check, '')
  if (check.unrounded !== undefined) compared(check.unrounded, 'computed in float32, ')
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

function compare(a: Float32Array, b: Float32Array, dimension: number): Closeness {
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

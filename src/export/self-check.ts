import { type Embedded, type Embedder, type EncodedInput, type EncoderInput, encoderInput } from '../encoder/index.ts'
import { judgeDecisions, type ScoredTree, scoreOf } from '../eval/index.ts'
import { type Hierarchy, type Item, type RenderOptions, renderNode } from '../hierarchy/index.ts'
import { decisionNodes } from '../preferences/index.ts'
import { refine } from '../refine/index.ts'
import { type Closeness, type Comparison, compare, cosine, type FloatType, MERGED_BOUNDS } from './closeness.ts'

/** A held-out item with its question and gold leaves, over which the exported encoder is compared with the trained one. */
export interface CheckInstance {
  benchmark: string
  question: string
  hierarchy: Hierarchy
  /** The dataset's, in which pictures and videos lie. */
  folder?: string
  /** [leaves] */
  gold: boolean[]
}

/** How closely the written files give what was trained. */
export interface SelfCheck extends Comparison {
  /** Inputs compared, by what they are of, and how many of them were cut at the maximum length. */
  compared: Record<Item['modality'], number>
  truncated: number
  /** Whether both leave the same tokens of an over-long text. */
  cutAlike: boolean
  /**
   * The same without rounding: for an ONNX folder's graph computed in float32, without that of its activations; for weights in whole
   * numbers the float32 graph that they are rounded from. What is left is what became of the encoder and the adapter. Absent for a
   * graph that computes in float32 anyway, and where the folder holds the float32 graph, too.
   */
  unrounded?: Comparison
  /** Refinement on the held-out items by both encoders; absent without instances. */
  refinement?: Refinement
}

/** What two encoders do with the same items. */
export interface Refinement {
  instances: number
  decisions: number
  trained: RefinementFigures
  exported: RefinementFigures
  /** Items of which both keep the same ranges, as a share. */
  sameKept: number
  /** Decisions that only the trained encoder makes right, and that only the exported one does. */
  lost: number
  gained: number
}

/** Shares; NaN where there is no decision, or no item of several leaves. */
export interface RefinementFigures {
  decisionAccuracy: number
  prunedItemRate: number
  droppedItemRate: number
}

/** Opens an encoder, which is closed after its use. */
type Open = () => Promise<Embedder>

/** What a graph that computes in half precision, or rounds to integers, is compared with beside the trained one. */
export interface Rounding {
  /** The encoder without the adapter, as its file has it, and as training computes it. */
  frozen: { file: Open; trained: Open }
  /** The written graph as training would compute it. */
  exported: Open
  /** The coarsest type of its float weights. */
  weights: FloatType
}

/** What the trained encoder gives, to compare any number of written graphs with. */
export interface Reference {
  inputs: EncoderInput[]
  /** How many of the inputs are of which modality. */
  compared: SelfCheck['compared']
  trained: Embedded
  dimension: number
  instances: readonly CheckInstance[]
  /** [instances][nodes] -> index of the node's input. */
  place: number[][]
  /** f0's embeddings of the instances' questions. */
  questions: Float32Array
  /** An over-long text, and the tokens that the trained encoder leaves of it. */
  cut: { text: string; ids: Int32Array }
  signal: AbortSignal | undefined
}

/** Over-long texts are embedded, too, where an encoder cuts them at this many tokens or fewer; else their tokens are compared. */
const MOST_TOKENS = 2048

/**
 * Embeds by the trained packed graph what written graphs are then compared on: the nodes of held-out items, and built-in texts, one of
 * which is longer than the encoder takes, so that cutting is compared too; for an encoder that reads pictures one of those.
 *
 * @param picture a picture's file, which has to be there until the last comparison
 * @param trained the checkpoint with its adapter
 * @param query f0
 */
export async function referenceOf(options: {
  trained: Open
  query: Open
  instances: readonly CheckInstance[]
  rendering: RenderOptions
  picture: string
  signal?: AbortSignal | undefined
}): Promise<Reference> {
  const { instances, rendering, picture, signal } = options
  const index = new Map<string, number>()
  const inputs: EncoderInput[] = []
  const compared: SelfCheck['compared'] = { text: 0, table: 0, image: 0, video: 0 }
  const add = (input: EncoderInput, modality: Item['modality'] = 'text'): number => {
    const key = JSON.stringify(input)
    const known = index.get(key)
    if (known !== undefined) return known
    const at = inputs.push(input) - 1
    index.set(key, at)
    compared[modality]++
    return at
  }
  const byTrained = await using(options.trained, async (encoder) => {
    const { multimodal, maxLength } = encoder.reader
    const place = instances.map(({ hierarchy, folder }) =>
      hierarchy.nodes.map((node) =>
        add(
          multimodal
            ? encoderInput(hierarchy, node, rendering, folder)
            : { text: renderNode(hierarchy, node, rendering) },
          hierarchy.item.modality,
        ),
      ),
    )
    for (const text of builtInTexts) add({ text })
    if (multimodal) add({ text: 'A red square', images: [picture] }, 'image')
    const text = longText(maxLength)
    const ids = await idsOf(encoder, text)
    if (ids.length <= MOST_TOKENS) add({ text })
    const trained = await encoder.embed(inputs, 'node', running(signal))
    return { trained, place, dimension: encoder.dimension, cut: { text, ids } }
  })
  const questions = await using(options.query, async (encoder) => {
    const asked = instances.map(({ question }) => ({ text: question }))
    return (await encoder.embed(asked, 'query', running(signal))).embeddings
  })
  return { inputs, compared, ...byTrained, instances, questions, signal }
}

async function idsOf(encoder: Embedder, text: string): Promise<Int32Array> {
  const [encoded] = await encoder.reader.encode([{ text }], 'node')
  return (encoded as EncodedInput).sequence.ids
}

/**
 * Embeds the reference's inputs by written files (padded batches), and refines the held-out items by both encoders.
 *
 * @param exported the written folder
 * @param bounds what the written files have to keep; for a graph that rounds see `rounding`
 * @param rounding for a graph that computes in half precision or rounds to integers. The export rounds as the file does, so that
 *   it may differ from the trained graph by {@link ROUNDING} times what the frozen file differs from the frozen graph by, and by
 *   what fp32 explains; computed in float32 only by what its weights' type explains, which a lost or misplaced update is not.
 */
export async function selfCheck(
  reference: Reference,
  exported: Open,
  options: { bounds?: Closeness; rounding?: Rounding | undefined } = {},
): Promise<SelfCheck> {
  const { inputs, trained, dimension, instances, cut, signal } = reference
  const { bounds = MERGED_BOUNDS.float32, rounding } = options
  const embedded = (open: Open): Promise<Embedded> =>
    using(open, (encoder) => encoder.embed(inputs, 'node', running(signal)))
  const { own, ids } = await using(exported, async (encoder) => ({
    own: await encoder.embed(inputs, 'node', running(signal)),
    ids: await idsOf(encoder, cut.text),
  }))
  const check: SelfCheck = {
    compared: reference.compared,
    truncated: trained.truncated.filter(Boolean).length,
    cutAlike: ids.length === cut.ids.length && ids.every((id, i) => id === cut.ids[i]),
    ...compare(trained.embeddings, own.embeddings, dimension),
    bounds,
  }
  if (rounding !== undefined) {
    const [file, exact] = [await embedded(rounding.frozen.file), await embedded(rounding.frozen.trained)]
    check.bounds = roundingBounds(compare(file.embeddings, exact.embeddings, dimension))
    check.unrounded = await comparison(reference, rounding.exported, MERGED_BOUNDS[rounding.weights])
  }
  if (instances.length === 0) return check
  return { ...check, refinement: refinementOf(scoredTrees(reference, trained), scoredTrees(reference, own)) }
}

/** How closely a graph gives the reference's embeddings. */
export async function comparison(
  { inputs, trained, dimension, signal }: Reference,
  open: Open,
  bounds: Closeness,
): Promise<Comparison> {
  const { embeddings } = await using(open, (encoder) => encoder.embed(inputs, 'node', running(signal)))
  return { ...compare(trained.embeddings, embeddings, dimension), bounds }
}

async function using<T>(open: Open, use: (encoder: Embedder) => Promise<T>): Promise<T> {
  const encoder = await open()
  try {
    return await use(encoder)
  } finally {
    await encoder.close()
  }
}

const running = (signal: AbortSignal | undefined): { signal?: AbortSignal } => (signal === undefined ? {} : { signal })

function scoredTrees(
  { instances, place, questions, dimension }: Reference,
  { embeddings, same }: Pick<Embedded, 'embeddings' | 'same'>,
): ScoredTree[] {
  return instances.map(({ benchmark, hierarchy, gold }, i) => {
    const rows = place[i] as number[]
    const scores = rows.map((row) => cosine(questions, i, embeddings, row, dimension))
    return { benchmark, nodes: hierarchy.nodes, gold, scores, same: rows.map((row) => same[row] as number) }
  })
}

function keptRanges(tree: ScoredTree): string {
  const scores = new Map(tree.nodes.map((node, i) => [node, tree.scores[i] as number]))
  return refine(tree.nodes[0]!, (node) => scores.get(node) as number)
    .map(({ from, to }) => `${from}-${to}`)
    .join()
}

/**
 * How much more than the frozen encoder a trained one may lose by the file's rounding: the ranges of a statically quantised graph
 * were measured without the adapter. (1 - cosine grows with the square of a difference.)
 */
const ROUNDING = 3

/** However coarse a file rounds: below this an export is another encoder. */
const LEAST_COSINE = 0.9

function roundingBounds(rounding: Closeness): Closeness {
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
  if (!check.cutAlike) wrong.push('an over-long text is cut otherwise than by the trained encoder')
  compared(check, '')
  if (check.unrounded !== undefined) compared(check.unrounded, 'computed in float32, ')
  return wrong
}

/** What two encoders do with the same trees, which each has scored. */
export function refinementOf(byTrained: readonly ScoredTree[], byExported: readonly ScoredTree[]): Refinement {
  const kept = { trained: byTrained.map(keptRanges), exported: byExported.map(keptRanges) }
  const right = { trained: byTrained.flatMap(decisionsRight), exported: byExported.flatMap(decisionsRight) }
  const decisions = right.trained.length
  const same = kept.trained.filter((ranges, i) => ranges === kept.exported[i]).length
  return {
    instances: byTrained.length,
    decisions,
    trained: figures(byTrained, kept.trained, right.trained),
    exported: figures(byExported, kept.exported, right.exported),
    sameKept: same / byTrained.length,
    lost: right.trained.filter((correct, i) => correct && !right.exported[i]).length,
    gained: right.trained.filter((correct, i) => !correct && right.exported[i]).length,
  }
}

/** Whether each decision of a tree comes out right. */
function decisionsRight({ nodes, gold, scores }: ScoredTree): boolean[] {
  const decisions = decisionNodes(nodes[0]!, (leaf) => gold[leaf] ?? false)
  return judgeDecisions(decisions, scoreOf(nodes, scores)).map(({ correct }) => correct)
}

function figures(trees: readonly ScoredTree[], kept: readonly string[], right: readonly boolean[]): RefinementFigures {
  const several = trees.flatMap(({ nodes }, i) =>
    nodes.length > 1 ? [{ root: nodes[0]!, ranges: kept[i] as string }] : [],
  )
  const leavesOf = (ranges: string): number =>
    ranges.split(',').reduce((sum, range) => {
      const [from, to] = range.split('-').map(Number)
      return sum + (to! - from!)
    }, 0)
  return {
    decisionAccuracy: right.filter(Boolean).length / right.length,
    prunedItemRate: several.filter(({ root, ranges }) => ranges !== `${root.from}-${root.to}`).length / several.length,
    droppedItemRate:
      several.filter(({ root, ranges }) => leavesOf(ranges) < root.to - root.from).length / several.length,
  }
}

const SENTENCE = 'The ferry left the harbour at dawn, before the fog had lifted from the water.'

/** Short, accented and odd texts, so that every export is compared on them, with held-out data or without. */
const builtInTexts = [
  'a',
  SENTENCE,
  'Harbours\nThe ferry left at dawn. It carried 33.5 tonnes of salt and one piano.',
  'Crème brûlée, naïve façades, Ærø, Łódź and 東京 — “quoted”, 50 % off; e.g. No. 5.',
]

/** A text of more tokens than an encoder takes. */
const longText = (maxLength: number): string =>
  Array.from({ length: Math.ceil(maxLength / 8) }, (_, i) => `${i}. ${SENTENCE}`).join(' ')

import type { TableFormatName } from '../hierarchy/index.ts'
import type { LevelAccuracy, LevelMedian } from './levels.ts'
import type { LookCount } from './looks.ts'
import type { MeasuredMargin } from './margin-text.ts'
import type { InstanceSums } from './metrics.ts'
import type { Overlap } from './overlap.ts'
import type { EncoderName, ModelEncoder, ScoredInstance } from './scored.ts'

/** What was counted on the way, by benchmark. */
export interface BenchmarkCounts {
  questions: number
  /** Questions of which it is known what was retrieved. */
  questionsWithRetrieved: number
  goldItems: number
  /** Gold items with one leaf: nothing can be decided there. */
  oneLeafItems: number
  /** Gold items none of whose annotations has a place; they count as tokens and nowhere else. */
  itemsWithoutGold: number
  /** Annotations that have no place in their item. */
  droppedAnnotations: number
  otherItems: number
  /** Gold items that an encoder of text cannot read (images, videos): left out. */
  goldItemsNotText: number
  /** The same of other retrieved items. */
  otherItemsNotText: number
  /** Gold items whose picture or video cannot be read: left out. */
  goldItemsUnreadable: number
  /** The same of other retrieved items. */
  otherItemsUnreadable: number
  decisionNodes: number
  /** Pairs of two nodes with one token sequence, left out of pair accuracy. */
  droppedPairs: number
  nodes: number
  truncatedNodes: number
}

/** Everything about an evaluation that is not a metric; with {@link Estimates} it makes all its files. */
export interface Evaluation {
  schema: 'canopy-evaluation/1'
  split: string
  datasets: { name: string; hash: string }[]
  encoders: Partial<Record<'query' | 'frozen' | 'fine-tuned', { name: string; fingerprint: string }>>
  rendering: string
  segmenter: string
  /** How nodes became text; absent where their scores came from elsewhere. */
  title?: boolean
  /** How tables became text, for the encoder (where there was one) and for counting tokens. */
  tableFormat: TableFormatName
  branching: number
  /** What counts tokens: a tokenizer (the node encoder's own, without special tokens), the file of scores, or white space. */
  tokens: 'tokenizer' | 'given' | 'words'
  /** Name of that tokenizer. */
  tokenizer: string
  seed: string
  resamples: number
  clusters: Record<string, number>
  counts: Record<string, BenchmarkCounts>
  /** Benchmarks that stand in no pooled figure and no mean: variants. */
  apart: string[]
  /** Whose scores the flat selectors of the selection table use. */
  selectedBy: 'fine-tuned' | 'frozen'
  scoreByLevel: Record<string, Partial<Record<ModelEncoder, LevelMedian[]>>>
  /** `pooled` stands among the benchmarks. */
  accuracyByLevel: Record<string, Partial<Record<EncoderName, LevelAccuracy[]>>>
  /** Null: it is not known what the encoder was trained on. Absent: nothing was trained. */
  overlap?: Overlap | null
  /** How many different configurations, this one included, had seen the split when this one first did. */
  looks?: number
  /** What refinement keeps at another margin than 0, where one was picked or stated; every other figure is of margin 0. */
  margin?: MeasuredMargin
  notes: string[]
}

export function noCounts(): BenchmarkCounts {
  return {
    questions: 0,
    questionsWithRetrieved: 0,
    goldItems: 0,
    oneLeafItems: 0,
    itemsWithoutGold: 0,
    droppedAnnotations: 0,
    otherItems: 0,
    goldItemsNotText: 0,
    otherItemsNotText: 0,
    goldItemsUnreadable: 0,
    otherItemsUnreadable: 0,
    decisionNodes: 0,
    droppedPairs: 0,
    nodes: 0,
    truncatedNodes: 0,
  }
}

/** Counts an instance and what was measured on it. */
export function addCounts(counts: BenchmarkCounts, instance: ScoredInstance, measured: InstanceSums): void {
  if (instance.role === 'other') {
    counts.otherItems++
    return
  }
  counts.goldItems++
  if (!instance.gold.includes(true)) {
    counts.itemsWithoutGold++
    return
  }
  if (instance.root.children.length === 0) counts.oneLeafItems++
  counts.decisionNodes += measured.decisions.length
  counts.droppedPairs += measured.droppedPairs
  counts.nodes += instance.nodes.length
  counts.truncatedNodes += instance.truncated.filter(Boolean).length
}

/** How often the split was looked at, as a sentence. */
export function looksText({ configuration, repetitions }: LookCount): string {
  const again = repetitions > 1 ? `, evaluated ${repetitions} times` : ''
  return `this is configuration ${configuration} of this run that was evaluated on the split${again}`
}

export function overlapText(overlap: Overlap | null | undefined): string {
  if (overlap === undefined) return 'nothing was trained'
  if (overlap === null) return 'unknown (no training-data.json beside the adapter)'
  const { of, examples } = overlap
  const counts = `${overlap.questions} of ${of.questions} questions, ${overlap.items} of ${of.items} gold items, ${overlap.sources} of ${of.sources} sources`
  return examples.length === 0
    ? counts
    : `${counts} (${examples.map((source) => JSON.stringify(source)).join(', ')}${overlap.sources > examples.length ? ', …' : ''})`
}

/** What is said under every table that shows variants; undefined where there is none. */
export function apartText({ apart }: Pick<Evaluation, 'apart'>): string | undefined {
  if (apart.length === 0) return undefined
  return `Shown apart, and in no pooled figure and no mean: ${apart.join(', ')} (questions of a kind of their own; permuted among themselves).`
}

/** What counts tokens, as a phrase. */
export function tokensText({ tokens, tokenizer }: Pick<Evaluation, 'tokens' | 'tokenizer'>): string {
  if (tokens === 'given') return 'as the file of scores counts them'
  if (tokens === 'words') return 'counted as words, which are what stands between white space'
  return `counted by the tokenizer of ${tokenizer}, without special tokens`
}

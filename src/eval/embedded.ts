import { join } from 'node:path'
import type { Dataset } from '../data/index.ts'
import {
  beyondSkipping,
  type EncoderInput,
  encoderInput,
  type InputReader,
  stoppedBy,
  UnreadableError,
} from '../encoder/index.ts'
import {
  buildHierarchy,
  type GoldEntry,
  type Hierarchy,
  readsAsText,
  type TableFormatName,
} from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import {
  countItemTokens,
  entriesByItem,
  firstWithin,
  type ItemTokens,
  type PlacedQuestion,
  type ScoredQuestion,
  sourceOf,
  unscoredInstance,
} from './items.ts'
import { type ScoredInstance, tableRow } from './scored.ts'
import type { Survey } from './survey.ts'

/** What an evaluation needs of an encoder; an `Embedder` has it. */
export interface NodeEmbedder {
  /** Identifies encoder, adapter, prompts and length. */
  readonly fingerprint: string
  /** Says whether pictures and videos can be read, and whether these can. */
  readonly reader: Pick<InputReader, 'multimodal' | 'encode'>
  /** Embeddings [inputs, dim] of one side; `same[i]`: the first input with the token sequence of input i. */
  embed(
    inputs: readonly EncoderInput[],
    side: 'query' | 'node',
    options?: { signal?: AbortSignal },
  ): Promise<{ embeddings: Float32Array; truncated: ArrayLike<boolean>; same: Int32Array }>
}

/** The encoders of an evaluation. */
export interface EvaluatedEncoders {
  /** f0, which embeds the questions of every row. */
  query: NodeEmbedder
  /** The node encoder of the row `frozen`: f0 again. */
  frozen: NodeEmbedder
  /** The trained node encoder; without one, `fine-tuned` and `permuted` are absent. */
  fineTuned?: NodeEmbedder | undefined
  /** Names of the encoders for the tables. */
  names: { query: string; frozen: string; fineTuned?: string | undefined }
}

export interface EmbeddedOptions extends EvaluatedEncoders {
  split: string
  /** Whether nodes carry their item's title (and a table's caption). */
  title: boolean
  tableFormat: TableFormatName
  branching: number
  countTokens: (text: string) => number
  /** Score what was retrieved beside the gold items, too. */
  retrieved: boolean
  /** Nodes that are embedded at once. */
  batchNodes: number
  /** What a picture or a video that cannot be read does: throw, or leave its item out. */
  onError: 'stop' | 'skip'
  /** Told of an item that could not be read, once for each batch that names it, and why: a sentence without a full stop. */
  onUnreadable: (item: string, reason: string) => void
  signal?: AbortSignal | undefined
}

interface PendingItem {
  hierarchy: Hierarchy
  tokens: ItemTokens
  /** Where its nodes' inputs start in the batch. */
  offset: number
}

/** Why an item has no part in the evaluation. */
type LeftOut = 'notText' | 'unreadable'

interface PendingQuestion extends PlacedQuestion {
  /** `entries`: the question's gold in the item; none for an item that was only retrieved. */
  items: { entries: GoldEntry[]; item: PendingItem }[]
  leftOut: Pick<ScoredQuestion, LeftOut>
}

/**
 * The questions of all datasets in file order, their items scored by encoders, in batches of whole questions. Images and videos are
 * left out and counted where an encoder reads text alone.
 *
 * @throws InputError for a picture or a video that cannot be read, unless such are to be left out and counted too
 */
export async function* embeddedQuestions(
  datasets: readonly Dataset[],
  survey: Survey,
  options: EmbeddedOptions,
): AsyncIterable<ScoredQuestion> {
  const { split, batchNodes, signal } = options
  const readItem = createItemReader(options)
  for (const [index, dataset] of datasets.entries()) {
    let pending: PendingQuestion[] = []
    let items = new Map<string, PendingItem | LeftOut>()
    let inputs: EncoderInput[] = []
    for await (const { question, line } of dataset.questions(split)) {
      signal?.throwIfAborted()
      const retrieved = question.retrieved !== undefined && options.retrieved
      const place = { file: join(dataset.folder, 'questions.jsonl'), line }
      const leftOut = { notText: { gold: 0, other: 0 }, unreadable: { gold: 0, other: 0 } }
      const waiting: PendingQuestion = { question, dataset: index, place, items: [], retrieved, leftOut }
      for (const [id, entries] of entriesByItem(question, retrieved)) {
        let item = items.get(id)
        if (item === undefined) {
          const found = await readItem(dataset, id)
          if (typeof found === 'string') item = found
          else {
            item = { hierarchy: found.hierarchy, tokens: found.tokens, offset: inputs.length }
            inputs.push(...found.inputs)
          }
          items.set(id, item)
        }
        if (typeof item === 'string') leftOut[item][entries.length === 0 ? 'other' : 'gold']++
        else waiting.items.push({ entries, item })
      }
      pending.push(waiting)
      if (inputs.length >= batchNodes || pending.length >= batchNodes) {
        yield* scoreBatch(pending, inputs, survey, options)
        pending = []
        items = new Map()
        inputs = []
      }
    }
    yield* scoreBatch(pending, inputs, survey, options)
  }
}

/** Reads items: their trees, and what the encoders are given for every node. */
function createItemReader(options: EmbeddedOptions) {
  const { frozen, fineTuned, title, tableFormat, branching, countTokens, onError, onUnreadable, signal } = options
  const multimodal = frozen.reader.multimodal && (fineTuned?.reader.multimodal ?? true)
  return async (
    dataset: Dataset,
    id: string,
  ): Promise<(Pick<PendingItem, 'hierarchy' | 'tokens'> & { inputs: EncoderInput[] }) | LeftOut> => {
    const item = await dataset.item(id)
    const isText = readsAsText(item)
    if (!isText && !multimodal) return 'notText'
    const hierarchy = buildHierarchy(item, branching)
    try {
      const inputs = hierarchy.nodes.map((node) =>
        encoderInput(hierarchy, node, { title, tableFormat }, dataset.folder),
      )
      // what it shows is looked at now, and remembered: a fault is this item's, not the batch's
      if (!isText) await frozen.reader.encode(inputs, 'node', signal === undefined ? {} : { signal })
      return { hierarchy, tokens: countItemTokens(hierarchy, countTokens, tableFormat), inputs }
    } catch (error) {
      if (!(error instanceof UnreadableError)) throw beyondSkipping(error, onError)
      if (onError === 'stop') throw stoppedBy(id, error)
      onUnreadable(id, error.message.replace(/\.$/, ''))
      return 'unreadable'
    }
  }
}

async function* scoreBatch(
  pending: readonly PendingQuestion[],
  inputs: readonly EncoderInput[],
  survey: Survey,
  { query, frozen, fineTuned, names, signal }: EmbeddedOptions,
): AsyncIterable<ScoredQuestion> {
  const run = signal === undefined ? {} : { signal }
  const partnerOf = ({ question }: PendingQuestion): string | undefined =>
    fineTuned === undefined ? undefined : survey.rows.get(tableRow(question))?.partners?.get(question.question)
  const asking = pending.filter(({ items }) => items.length > 0)
  const queries = [
    ...new Set(
      asking.flatMap((waiting) => [waiting.question.question, partnerOf(waiting)].filter((t) => t !== undefined)),
    ),
  ]
  const asked =
    queries.length === 0
      ? undefined
      : await query.embed(
          queries.map((text) => ({ text })),
          'query',
          run,
        )
  const frozenNodes = asked && (await frozen.embed(inputs, 'node', run))
  const tunedNodes = asked && (await fineTuned?.embed(inputs, 'node', run))
  const dimension = (asked?.embeddings.length ?? 0) / queries.length
  for (const [name, nodes] of [
    [names.frozen, frozenNodes],
    [names.fineTuned, tunedNodes],
  ] as const) {
    if (nodes !== undefined && nodes.embeddings.length !== inputs.length * dimension) {
      throw new InputError(
        `The query encoder ${names.query} gives embeddings of ${dimension} numbers, the node encoder ${name} of ${nodes.embeddings.length / inputs.length}; a cosine needs equal sizes, so give the query encoder that the node encoder was trained with.`,
      )
    }
  }
  const queryAt = new Map(
    queries.map((text, i) => [text, asked!.embeddings.subarray(i * dimension, (i + 1) * dimension)]),
  )

  for (const waiting of pending) {
    const { question, items, retrieved, leftOut } = waiting
    const partner = partnerOf(waiting)
    let droppedAnnotations = 0
    const instances = items.map(({ entries, item }): ScoredInstance => {
      const { hierarchy, offset, tokens } = item
      const { length } = hierarchy.nodes
      const { same, truncated } = (tunedNodes ?? frozenNodes)!
      const unscored = unscoredInstance(waiting, hierarchy, entries, tokens)
      droppedAnnotations += unscored.droppedAnnotations
      const own = queryAt.get(question.question)!
      const scores: ScoredInstance['scores'] = { frozen: cosines(own, frozenNodes!.embeddings, offset, length) }
      if (tunedNodes !== undefined) {
        scores['fine-tuned'] = cosines(own, tunedNodes.embeddings, offset, length)
        if (partner !== undefined) {
          scores.permuted = cosines(queryAt.get(partner)!, tunedNodes.embeddings, offset, length)
        }
      }
      return {
        ...unscored.instance,
        truncated: hierarchy.nodes.map((_, i) => truncated[offset + i]!),
        same: firstWithin(same.subarray(offset, offset + length)),
        scores,
      }
    })
    yield { question, source: sourceOf(question), retrieved, instances, droppedAnnotations, ...leftOut }
  }
}

/** cos(query, node) for `count` rows of `embeddings` [rows, dim] from `first`, in double precision. */
function cosines(query: Float32Array, embeddings: Float32Array, first: number, count: number): Float64Array {
  const dimension = query.length
  const scores = new Float64Array(count)
  let queryNorm = 0
  for (let d = 0; d < dimension; d++) queryNorm += query[d]! * query[d]!
  for (let i = 0; i < count; i++) {
    const row = (first + i) * dimension
    let dot = 0
    let norm = 0
    for (let d = 0; d < dimension; d++) {
      const x = embeddings[row + d]!
      dot += query[d]! * x
      norm += x * x
    }
    scores[i] = dot / Math.sqrt(queryNorm * norm)
  }
  return scores
}

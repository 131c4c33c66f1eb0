import { join } from 'node:path'
import type { Dataset } from '../data/index.ts'
import {
  buildHierarchy,
  type GoldEntry,
  type Hierarchy,
  readsAsText,
  renderNode,
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
export interface TextEmbedder {
  /** Identifies encoder, adapter, prompts and length. */
  readonly fingerprint: string
  /** Embeddings [texts, dim] of one side; `same[i]`: the first text with the token sequence of text i. */
  embedTexts(
    texts: string[],
    side: 'query' | 'node',
    options?: { signal?: AbortSignal },
  ): Promise<{ embeddings: Float32Array; truncated: ArrayLike<boolean>; same: Int32Array }>
}

/** The encoders of an evaluation. */
export interface EvaluatedEncoders {
  /** f0, which embeds the questions of every row. */
  query: TextEmbedder
  /** The node encoder of the row `frozen`: f0 again. */
  frozen: TextEmbedder
  /** The trained node encoder; without one, `fine-tuned` and `permuted` are absent. */
  fineTuned?: TextEmbedder | undefined
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
  signal?: AbortSignal | undefined
}

interface PendingItem {
  hierarchy: Hierarchy
  tokens: ItemTokens
  /** Where its nodes' texts start in the batch. */
  offset: number
}

interface PendingQuestion extends PlacedQuestion {
  /** `entries`: the question's gold in the item; none for an item that was only retrieved. */
  items: { entries: GoldEntry[]; item: PendingItem }[]
  notText: { gold: number; other: number }
}

/**
 * The questions of all datasets in file order, their items scored by encoders that read text, in batches of whole questions.
 * Images and videos are left out and counted.
 */
export async function* embeddedQuestions(
  datasets: readonly Dataset[],
  survey: Survey,
  options: EmbeddedOptions,
): AsyncIterable<ScoredQuestion> {
  const { split, title, tableFormat, branching, batchNodes, countTokens, signal } = options
  for (const [index, dataset] of datasets.entries()) {
    let pending: PendingQuestion[] = []
    let items = new Map<string, PendingItem | 'not text'>()
    let texts: string[] = []
    for await (const { question, line } of dataset.questions(split)) {
      signal?.throwIfAborted()
      const retrieved = question.retrieved !== undefined && options.retrieved
      const place = { file: join(dataset.folder, 'questions.jsonl'), line }
      const notText = { gold: 0, other: 0 }
      const waiting: PendingQuestion = { question, dataset: index, place, items: [], retrieved, notText }
      for (const [id, entries] of entriesByItem(question, retrieved)) {
        let item = items.get(id)
        if (item === undefined) {
          const found = await dataset.item(id)
          if (readsAsText(found)) {
            const hierarchy = buildHierarchy(found, branching)
            item = { hierarchy, tokens: countItemTokens(hierarchy, countTokens, tableFormat), offset: texts.length }
            for (const node of hierarchy.nodes) texts.push(renderNode(hierarchy, node, { title, tableFormat }))
          } else item = 'not text'
          items.set(id, item)
        }
        if (item === 'not text') notText[entries.length === 0 ? 'other' : 'gold']++
        else waiting.items.push({ entries, item })
      }
      pending.push(waiting)
      if (texts.length >= batchNodes || pending.length >= batchNodes) {
        yield* scoreBatch(pending, texts, survey, options)
        pending = []
        items = new Map()
        texts = []
      }
    }
    yield* scoreBatch(pending, texts, survey, options)
  }
}

async function* scoreBatch(
  pending: readonly PendingQuestion[],
  texts: string[],
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
  const asked = queries.length === 0 ? undefined : await query.embedTexts(queries, 'query', run)
  const frozenNodes = asked && (await frozen.embedTexts(texts, 'node', run))
  const tunedNodes = asked && (await fineTuned?.embedTexts(texts, 'node', run))
  const dimension = (asked?.embeddings.length ?? 0) / queries.length
  for (const [name, nodes] of [
    [names.frozen, frozenNodes],
    [names.fineTuned, tunedNodes],
  ] as const) {
    if (nodes !== undefined && nodes.embeddings.length !== texts.length * dimension) {
      throw new InputError(
        `The query encoder ${names.query} gives embeddings of ${dimension} numbers, the node encoder ${name} of ${nodes.embeddings.length / texts.length}; a cosine needs equal sizes, so give the query encoder that the node encoder was trained with.`,
      )
    }
  }
  const queryAt = new Map(
    queries.map((text, i) => [text, asked!.embeddings.subarray(i * dimension, (i + 1) * dimension)]),
  )

  for (const waiting of pending) {
    const { question, items, retrieved, notText } = waiting
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
    yield { question, source: sourceOf(question), retrieved, instances, droppedAnnotations, notText }
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

import {
  extentOf,
  frameTimes,
  type GoldEntry,
  goldLeaves,
  type Hierarchy,
  type Question,
  readsAsText,
  renderContent,
  renderHeader,
  type TableFormatName,
} from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { getOrMake } from './maps.ts'
import type { ScoredInstance } from './scored.ts'

/** A question with its items scored. */
export interface ScoredQuestion {
  question: Question
  /** Bootstrap cluster of the question. */
  source: string
  /** Whether it is known, and counted, what was retrieved. */
  retrieved: boolean
  instances: ScoredInstance[]
  droppedAnnotations: number
  /** Items that were left out because they are no text, and the encoder reads nothing else. */
  notText: { gold: number; other: number }
  /** Items that were left out because their picture or video cannot be read. */
  unreadable: { gold: number; other: number }
}

/** A question on its way to scores. */
export interface PlacedQuestion {
  question: Question
  /** Place of its dataset among those of the evaluation. */
  dataset: number
  /** Where it stands, for messages. */
  place: { file: string; line: number }
  retrieved: boolean
}

/** Tokens of an item as a reader sees it. */
export interface ItemTokens {
  /** What is repeated in front of every node and seen once: title, caption, column header. */
  headerTokens: number
  /** [leaves] */
  leafTokens: Int32Array
}

/** Bootstrap cluster of a question: its source; the question itself where none is known. */
export const sourceOf = ({ source, benchmark, id }: Question): string => source ?? `question\0${benchmark}\0${id}`

/** The gold entries of each item that a question names; none for an item that was only retrieved. Gold items come first. */
export function entriesByItem({ gold, retrieved: ids = [] }: Question, retrieved: boolean): Map<string, GoldEntry[]> {
  const entriesOf = new Map<string, GoldEntry[]>()
  for (const entry of gold) getOrMake(entriesOf, entry.item, (): GoldEntry[] => []).push(entry)
  if (retrieved) for (const id of ids) getOrMake(entriesOf, id, () => [])
  return entriesOf
}

/** What a picture, and each frame of a video, counts as where nobody says: 512 x 512 pixels in patches of 32 x 32. */
export const TOKENS_PER_PICTURE = 256

/** Counts a reader's tokens: text and tables as they are rendered, with title and header; pictures by their number. */
export function countItemTokens(
  hierarchy: Hierarchy,
  countTokens: (text: string) => number,
  tableFormat: TableFormatName,
): ItemTokens {
  const { item, leaves } = hierarchy
  const leaf = (at: number) => ({ from: at, to: at + 1, children: [] })
  if (readsAsText(item)) {
    return {
      headerTokens: countTokens(renderHeader(item, { title: true, tableFormat })),
      leafTokens: Int32Array.from(leaves, (_, at) => countTokens(renderContent(hierarchy, leaf(at), { tableFormat }))),
    }
  }
  const pictures = (at: number): number =>
    item.modality === 'image' ? 1 : frameTimes(...extentOf(hierarchy, leaf(at))).length
  return {
    headerTokens: item.title === undefined ? 0 : countTokens(item.title),
    leafTokens: Int32Array.from(leaves, (_, at) => TOKENS_PER_PICTURE * pictures(at)),
  }
}

/**
 * An instance before anything has been scored, and how many annotations have no place in the item.
 *
 * @throws InputError, with the question's place, for gold that does not fit the item
 */
export function unscoredInstance(
  { question, dataset, place, retrieved }: PlacedQuestion,
  hierarchy: Hierarchy,
  entries: readonly GoldEntry[],
  tokens: ItemTokens,
): { instance: Omit<ScoredInstance, 'truncated' | 'same' | 'scores'>; droppedAnnotations: number } {
  const { benchmark, variant, id } = question
  const { root, nodes, leaves, item } = hierarchy
  const marked = entries.map((entry) => placed(place, () => goldLeaves(hierarchy, entry)))
  return {
    instance: {
      benchmark,
      ...(variant !== undefined && { variant }),
      dataset,
      question: id,
      item: item.id,
      source: sourceOf(question),
      role: entries.length === 0 ? 'other' : 'gold',
      retrieved,
      root,
      nodes,
      gold: leaves.map((_, leaf) => marked.some(({ gold }) => gold[leaf])),
      ...tokens,
    },
    droppedAnnotations: marked.reduce((sum, { dropped }) => sum + dropped.length, 0),
  }
}

/** An error of `work` that names no file gets this place. */
function placed<T>(place: { file: string; line: number }, work: () => T): T {
  try {
    return work()
  } catch (error) {
    if (error instanceof InputError && error.file === undefined) throw new InputError(error.message, place, error)
    throw error
  }
}

/** [nodes]: the first node with the same key, as a place within this item's own nodes. */
export function firstWithin(keys: Int32Array): Int32Array {
  const first = new Map<number, number>()
  return keys.map((key, i) => getOrMake(first, key, () => i))
}

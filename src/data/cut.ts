import {
  buildHierarchy,
  type GoldEntry,
  type Item,
  leafExtents,
  renderContent,
  renderHeader,
  renderNode,
  splitsCharacter,
  type TableItem,
  type TextItem,
  trimSpan,
} from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'

/** How many tokens a whole text has for an encoder: prompt and special tokens included. */
export type CountTokens = (text: string) => number

/** Items that can be cut: a text between sentences, a table between rows. */
export type CuttableItem = TextItem | TableItem

/** A piece of a longer item, as an item of its own. */
export interface ItemPart {
  item: CuttableItem
  /** What it holds of the longer item, `[start, end)`: UTF-16 offsets of a text, rows of a table. */
  range: [number, number]
}

export const isCuttable = (item: Item): item is CuttableItem => item.modality === 'text' || item.modality === 'table'

/**
 * The id of a part: that of the item it was cut from and its range, `id#start-end` (UTF-16 offsets of a text, rows of a table). It
 * does not depend on the other parts.
 */
export const partId = (id: string, [start, end]: readonly [number, number]): string => `${id}#${start}-${end}`

/** The id of the item that an item with such an id was cut from; undefined for any other id. */
export function parentId(id: string): string | undefined {
  return /^(.+)#\d+-\d+$/s.exec(id)?.[1]
}

/** What of an item its parts share: items with equal ones come from one document. */
export const documentId = (id: string): string => parentId(id) ?? id

/** How many tokens an encoder reads for the root of an item's hierarchy, title and header included. */
export function rootTokens(item: CuttableItem, countTokens: CountTokens): number {
  const hierarchy = buildHierarchy(item)
  return countTokens(renderNode(hierarchy, hierarchy.root, { title: true }))
}

export interface CutResult {
  /** In reading order; none when the item stays as it is. */
  parts: ItemPart[]
  /** Ids of items that have more tokens still: they are one sentence or one row. */
  tooLong: string[]
}

/**
 * Cuts an item so that the root of each part, title and header included, has at most `maxTokens` tokens.
 *
 * A text is cut between sentences: before a Markdown heading where one is near, else at a blank line, else behind any sentence,
 * into parts of about equal length, never between a heading and what follows it unless nothing else fits. A table is cut between
 * rows; each part repeats title, caption and header. A sentence or row that is longer by itself is a part of its own and stays
 * too long.
 *
 * @param countTokens of a complete rendering
 * @throws InputError naming the item when title and header alone leave no room
 */
export function cutItem(item: CuttableItem, maxTokens: number, countTokens: CountTokens): CutResult {
  const around = countTokens('')
  const header = countTokens(renderHeader(item, { title: true }))
  if (header >= maxTokens) {
    throw new InputError(
      `the title${item.modality === 'table' ? ' and the header' : ''} of item "${item.id}" alone take ${header} of ${maxTokens} tokens, so no part of it fits; shorten them or raise the limit`,
    )
  }
  const hierarchy = buildHierarchy(item)
  const { leaves } = hierarchy
  // sums of the leaves' own tokens: exact where tokens never cross a blank, close elsewhere; parts are counted again, whole
  const before = new Float64Array(leaves.length + 1)
  for (const [i] of leaves.entries()) {
    const content = renderContent(hierarchy, { from: i, to: i + 1, children: [] })
    before[i + 1] = before[i]! + countTokens(content) - around
  }
  const total = before[leaves.length]!
  // a whole document is counted only where it may fit
  if (header + total <= 1.1 * maxTokens && rootTokens(item, countTokens) <= maxTokens) return { parts: [], tooLong: [] }
  if (leaves.length === 1) return { parts: [], tooLong: [item.id] }
  const strength = item.modality === 'text' ? boundaryStrengths(item.text, leaves) : undefined
  const parts: ItemPart[] = []
  const tooLong: string[] = []
  for (let from = 0; from < leaves.length; ) {
    let most = leaves.length
    for (;;) {
      const to = chooseEnd(from, most, before, maxTokens - header, strength)
      const range: [number, number] = [leaves[from]![0], leaves[to - 1]![1]]
      const part = item.modality === 'table' ? tablePart(item, range) : textPart(item, range, leaves)
      const fits = rootTokens(part.item, countTokens) <= maxTokens
      if (fits || to === from + 1) {
        parts.push(part)
        if (!fits) tooLong.push(part.item.id)
        from = to
        break
      }
      most = to - 1
    }
  }
  return { parts, tooLong }
}

/**
 * Where the part that begins with leaf `from` ends: of the leaf boundaries up to `most` whose content fits `room` tokens, the one
 * of greatest strength within reach, nearest to an equal share of what is left.
 */
function chooseEnd(
  from: number,
  most: number,
  before: Float64Array,
  room: number,
  strength: ((leaf: number) => number) | undefined,
): number {
  const rest = before[before.length - 1]! - before[from]!
  const share = rest / Math.ceil(rest / room)
  let best = from + 1
  let bestStrength = Number.NEGATIVE_INFINITY
  let bestDistance = Number.POSITIVE_INFINITY
  for (let to = from + 1; to <= most; to++) {
    const tokens = before[to]! - before[from]!
    if (tokens > room) break
    const isEnd = to === before.length - 1
    // only boundaries that leave a part of some length are worth looking for
    const own = tokens < share / 2 ? -2 : isEnd ? 2 : (strength?.(to) ?? 0)
    const distance = Math.abs(tokens - share)
    if (own > bestStrength || (own === bestStrength && distance < bestDistance)) {
      best = to
      bestStrength = own
      bestDistance = distance
    }
  }
  return best
}

const HEADING = /^#{1,6}[^\S\r\n]+\S/

/** Strength of the boundary before a leaf: 2 before a heading, 1 at a blank line, 0 between sentences, -1 behind a heading. */
function boundaryStrengths(text: string, leaves: readonly [number, number][]): (leaf: number) => number {
  const isHeading = ([start, end]: [number, number]): boolean => {
    const sentence = text.slice(start, end)
    const trimmed = sentence.trim()
    const opensLine =
      start === 0 || /[\r\n\u2028\u2029]/.test(sentence.slice(0, sentence.length - sentence.trimStart().length))
    return opensLine && HEADING.test(trimmed)
  }
  const isOnlyHeading = (leaf: [number, number]): boolean =>
    isHeading(leaf) && !/[\r\n]/.test(text.slice(...leaf).trim())
  return (leaf) => {
    if (isOnlyHeading(leaves[leaf - 1]!)) return -1
    if (isHeading(leaves[leaf]!)) return 2
    const sentence = text.slice(...leaves[leaf]!)
    const gap = sentence.slice(0, sentence.length - sentence.trimStart().length).replace(/\r\n?/g, '\n')
    return /\n\s*\n|\u2029/.test(gap) ? 1 : 0
  }
}

/**
 * The part of a text over `[start, end)`, white space before it left out. Sentences that the range cuts are cut with it.
 *
 * @param leaves of the whole text
 */
function textPart(item: TextItem, [start, end]: [number, number], leaves: readonly [number, number][]): ItemPart {
  const [from] = trimSpan(item.text, [start, end])
  const range: [number, number] = [from, end]
  const sentences: [number, number][] = []
  for (let i = firstBehind(leaves, from); i < leaves.length && leaves[i]![0] < end; i++) {
    const [a, b] = leaves[i]!
    const [s, e] = trimSpan(item.text, [Math.max(a, from), Math.min(b, end)])
    if (s < e) sentences.push([s - from, e - from])
  }
  return { item: { ...item, id: partId(item.id, range), text: item.text.slice(from, end), sentences }, range }
}

/** The first leaf that ends behind `offset`. */
function firstBehind(leaves: readonly [number, number][], offset: number): number {
  let low = 0
  let high = leaves.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (leaves[middle]![1] <= offset) low = middle + 1
    else high = middle
  }
  return low
}

function tablePart(item: TableItem, range: [number, number]): ItemPart {
  return { item: { ...item, id: partId(item.id, range), rows: item.rows.slice(...range) }, range }
}

/**
 * Cuts an item at ranges of the user's own, which may overlap and may leave something out: UTF-16 offsets of a text, rows of a
 * table.
 *
 * @throws InputError naming the item and the range: one that leaves the item, is empty, cuts a character in two or is there twice
 */
export function cutAtRanges(item: CuttableItem, ranges: readonly [number, number][]): ItemPart[] {
  const length = item.modality === 'text' ? item.text.length : item.rows.length
  const leaves = item.modality === 'text' ? leafExtents(item) : []
  const seen = new Set<string>()
  return ranges.map(([start, end]) => {
    const name = `the chunk [${start}, ${end}) of item "${item.id}"`
    if (start >= end || end > length) {
      const unit = item.modality === 'text' ? 'UTF-16 code units' : 'rows'
      throw new InputError(`${name} is no range within its ${length} ${unit}`)
    }
    if (item.modality === 'text') {
      if ([start, end].some((offset) => splitsCharacter(item.text, offset))) {
        throw new InputError(`${name} cuts a character in two; check the unit of the offsets`)
      }
      if (item.text.slice(start, end).trim() === '') throw new InputError(`${name} is white space only`)
    }
    const part = item.modality === 'table' ? tablePart(item, [start, end]) : textPart(item, [start, end], leaves)
    if (seen.has(part.item.id)) throw new InputError(`${name} is there twice, but for white space`)
    seen.add(part.item.id)
    return part
  })
}

/**
 * The gold of an item as the gold of its parts: every part that an annotation meets gets what it holds of it, so that an
 * annotation across a boundary becomes two.
 *
 * @param entry spans in UTF-16 offsets, in order; rows in order; or the whole item
 * @param onLost told of each annotation, or piece of one, that no part holds
 */
export function carryGold(
  item: CuttableItem,
  entry: GoldEntry,
  parts: readonly { id: string; range: readonly [number, number] }[],
  onLost: (annotation: string) => void,
): GoldEntry[] {
  if ('whole' in entry) return parts.map(({ id }) => ({ item: id, whole: true }))
  if ('rows' in entry) {
    for (const row of entry.rows) if (!parts.some(({ range }) => holds(range, row))) onLost(`row ${row}`)
    return parts.flatMap(({ id, range }): GoldEntry[] => {
      const rows = entry.rows.filter((row) => holds(range, row)).map((row) => row - range[0])
      return rows.length === 0 ? [] : [{ item: id, rows }]
    })
  }
  if (!('spans' in entry) || item.modality !== 'text') {
    throw new InputError(`the gold of item "${item.id}" cannot be carried over to its parts`)
  }
  for (const [start, end] of entry.spans) {
    let covered = start
    for (const { range } of [...parts].sort((a, b) => a.range[0] - b.range[0])) {
      if (range[0] > covered && item.text.slice(covered, Math.min(range[0], end)).trim() !== '') break
      covered = Math.max(covered, range[1])
    }
    if (covered < end && item.text.slice(covered, end).trim() !== '') onLost(`span [${start}, ${end}), in part`)
  }
  return parts.flatMap(({ id, range }): GoldEntry[] => {
    const spans = entry.spans.flatMap(([start, end]): [number, number][] => {
      const piece = trimSpan(item.text, [Math.max(start, range[0]), Math.max(start, range[0], Math.min(end, range[1]))])
      return piece[0] < piece[1] ? [[piece[0] - range[0], piece[1] - range[0]]] : []
    })
    return spans.length === 0 ? [] : [{ item: id, spans }]
  })
}

const holds = ([start, end]: readonly [number, number], row: number): boolean => start <= row && row < end

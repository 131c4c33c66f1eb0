import { InputError } from '../support/errors.ts'
import type { Hierarchy } from './hierarchy.ts'
import { locateQuote, trimSpan } from './text.ts'
import type { GoldEntry, Item, TableItem, TextItem, VideoItem } from './types.ts'
import { milliseconds } from './video.ts'

/** An annotation that marks no leaf, and why. */
export interface DroppedAnnotation {
  reason: string
  annotation: unknown
}

/** `gold[leaf]`: whether the leaf meets an annotation in more than zero length. */
export interface GoldLeaves {
  gold: boolean[]
  dropped: DroppedAnnotation[]
}

/**
 * The leaves of an item that a gold entry marks: those whose extent meets an annotation in more than zero length.
 * Annotations are clipped to the item, spans of text trimmed of white space; one that is then empty, or lies outside, is
 * dropped and reported, never taken for the whole item. A single point of time marks the leaf that contains it: on a boundary
 * the later one, at the item's end the last.
 *
 * @throws InputError for an entry of another modality, a span whose expected text is not what stands there, and a quote
 *   that is absent or stands in several places
 */
export function goldLeaves(hierarchy: Hierarchy, entry: GoldEntry): GoldLeaves {
  const { item, leaves } = hierarchy
  if ('whole' in entry) return { gold: leaves.map(() => true), dropped: [] }
  switch (item.modality) {
    case 'text':
      return textGold(item, leaves, entry)
    case 'table':
      return tableGold(item, entry)
    case 'video':
      return videoGold(item, leaves, entry)
    case 'image':
      throw otherKind(item, entry, 'whole')
  }
}

type Located = Exclude<GoldEntry, { whole: true }>

function otherKind(item: Item, entry: Located, expected: string): InputError {
  const given = ['spans', 'quotes', 'rows', 'times'].find((kind) => kind in entry)
  return new InputError(`Gold for the ${item.modality} item "${item.id}" gives ${given}; give ${expected}.`)
}

function tableGold(item: TableItem, entry: Located): GoldLeaves {
  if (!('rows' in entry)) throw otherKind(item, entry, 'rows or whole')
  const gold = item.rows.map(() => false)
  const dropped: DroppedAnnotation[] = []
  for (const row of entry.rows) {
    if (Number.isInteger(row) && row >= 0 && row < gold.length) gold[row] = true
    else dropped.push({ reason: 'row outside the table', annotation: row })
  }
  return { gold, dropped }
}

function videoGold(item: VideoItem, leaves: [number, number][], entry: Located): GoldLeaves {
  if (!('times' in entry)) throw otherKind(item, entry, 'times or whole')
  const gold = leaves.map(() => false)
  const dropped: DroppedAnnotation[] = []
  const first = leaves[0]![0]
  const last = leaves.at(-1)![1]
  for (const annotation of entry.times) {
    const [start, end] = [milliseconds(annotation[0]), milliseconds(annotation[1])]
    if (!Number.isFinite(start) || !Number.isFinite(end)) dropped.push({ reason: 'time that is no number', annotation })
    else if (end < start) dropped.push({ reason: 'time that ends before it starts', annotation })
    else if (start === end) {
      if (start < first || start > last) dropped.push({ reason: 'time outside the video', annotation })
      else markOverlapping(gold, leaves, start === last ? [last - 1, last] : [start, start + 1])
    } else if (start >= last || end <= first) dropped.push({ reason: 'time outside the video', annotation })
    else markOverlapping(gold, leaves, [Math.max(start, first), Math.min(end, last)])
  }
  return { gold, dropped }
}

function textGold(item: TextItem, leaves: [number, number][], entry: Located): GoldLeaves {
  const { text } = item
  const gold = leaves.map(() => false)
  const dropped: DroppedAnnotation[] = []
  if ('quotes' in entry) {
    for (const quote of entry.quotes) {
      const span = trimSpan(text, locateQuote(text, quote))
      markOverlapping(gold, leaves, span)
    }
    return { gold, dropped }
  }
  if (!('spans' in entry)) throw otherKind(item, entry, 'spans, quotes or whole')
  for (const annotation of entry.spans) {
    const [start, end, expected] = annotation
    if (expected !== undefined && text.slice(start, end) !== expected) {
      throw new InputError(
        `Span [${start}, ${end}) of item "${item.id}" expects ${JSON.stringify(expected)}, but the text there is ${JSON.stringify(text.slice(start, end))}; check the unit of the offsets.`,
      )
    }
    if (end < start) dropped.push({ reason: 'span ends before it starts', annotation })
    else if (start >= text.length || end <= 0) dropped.push({ reason: 'span outside the text', annotation })
    else {
      const span = trimSpan(text, [Math.max(0, start), Math.min(text.length, end)])
      if (span[0] < span[1]) markOverlapping(gold, leaves, span)
      else dropped.push({ reason: start === end ? 'empty span' : 'span of white space only', annotation })
    }
  }
  return { gold, dropped }
}

/** Marks the leaves `[a, b)` with max(a, start) < min(b, end); leaves are in order, so a binary search finds the first. */
function markOverlapping(gold: boolean[], leaves: [number, number][], [start, end]: [number, number]): void {
  let low = 0
  let high = leaves.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (leaves[middle]![1] <= start) low = middle + 1
    else high = middle
  }
  for (let leaf = low; leaf < leaves.length && leaves[leaf]![0] < end; leaf++) gold[leaf] = true
}

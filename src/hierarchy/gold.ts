import { InputError } from '../support/errors.ts'
import { type Hierarchy, unsupportedModality } from './hierarchy.ts'
import { locateQuote, trimSpan } from './text.ts'
import type { GoldEntry, TextItem } from './types.ts'

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
 * The leaves of an item that a gold entry marks: those whose extent meets an annotation in more than zero length. Spans of
 * text are clipped to the text and trimmed of white space; one that is then empty is dropped and reported, never taken for
 * the whole item.
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
    default:
      throw unsupportedModality(item)
  }
}

function textGold(item: TextItem, leaves: [number, number][], entry: Exclude<GoldEntry, { whole: true }>): GoldLeaves {
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
  if (!('spans' in entry)) {
    const given = 'rows' in entry ? 'rows' : 'times'
    throw new InputError(`Gold for the text item "${item.id}" gives ${given}; give spans, quotes or whole.`)
  }
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

import { InputError } from '../support/errors.ts'
import { segmentSentences } from './segment.ts'
import { splitsCharacter } from './text.ts'
import type { TextItem } from './types.ts'

/**
 * The leaves of a text item, as UTF-16 offsets `[start, end)`: its supplied sentences, or those of
 * {@link segmentSentences}. They cover the text exactly: white space between two sentences goes to the later one, leading
 * white space to the first leaf, trailing white space to the last. Sentences without any visible character are not leaves.
 *
 * @throws InputError naming the item when sentences are out of order, overlap, leave the text, cut a character in two or
 *   leave a gap that is not white space, and when there is no leaf at all
 */
export function leafExtents(item: TextItem): [number, number][] {
  const { text } = item
  const sentences = item.sentences === undefined ? segmentSentences(text) : suppliedSentences(item, item.sentences)
  if (sentences.length === 0) {
    throw new InputError(`Item "${item.id}" has no leaf: its text is empty or only white space. Remove the item.`)
  }
  const leaves: [number, number][] = []
  let start = 0
  for (const [, end] of sentences) {
    leaves.push([start, end])
    start = end
  }
  leaves[leaves.length - 1]![1] = text.length
  return leaves
}

function suppliedSentences(item: TextItem, sentences: [number, number][]): [number, number][] {
  const { text } = item
  const kept: [number, number][] = []
  let covered = 0
  for (const [i, [start, end]] of sentences.entries()) {
    const name = `Sentence ${i} [${start}, ${end}) of item "${item.id}"`
    if (!Number.isInteger(start) || !Number.isInteger(end) || start < 0 || end < start || end > text.length) {
      throw new InputError(`${name} is not a range within the text of ${text.length} UTF-16 code units.`)
    }
    if (start < covered) {
      throw new InputError(
        `${name} starts before the previous one ends (${covered}); sentences are ordered and disjoint.`,
      )
    }
    if (splitsCharacter(text, start) || splitsCharacter(text, end)) {
      throw new InputError(`${name} cuts a character in two; offsets are UTF-16 code units, not bytes or code points.`)
    }
    requireWhiteSpace(item, covered, start, `before sentence ${i}`)
    covered = end
    if (text.slice(start, end).trim() !== '') kept.push([start, end])
  }
  requireWhiteSpace(item, covered, text.length, 'after the last sentence')
  return kept
}

function requireWhiteSpace(item: TextItem, from: number, to: number, where: string): void {
  const gap = item.text.slice(from, to)
  if (gap.trim() === '') return
  const shown = gap.length > 40 ? `${gap.slice(0, 40)}…` : gap
  throw new InputError(
    `The sentences of item "${item.id}" leave out ${JSON.stringify(shown)} at [${from}, ${to}), ${where}; only white space may lie between sentences.`,
  )
}

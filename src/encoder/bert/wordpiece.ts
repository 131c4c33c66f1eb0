import { type CountedPieces, mergePieces } from './merges.ts'

export const SPECIAL_TOKENS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'] as const

/** Printable ASCII without capitals, so that plain text never needs `[UNK]`, whatever the texts hold. */
const BASIC_CHARACTERS = Array.from({ length: 94 }, (_, i) => String.fromCharCode(33 + i)).filter(
  (c) => !/[A-Z]/.test(c),
)

export interface VocabularyOptions {
  /** Most tokens of the vocabulary. The special tokens and the characters are kept even where they alone are more. */
  size: number
  /** Words that occur less often take no part in the joining; their characters count all the same. 1 unless given. */
  minFrequency?: number
  /**
   * Most characters besides those of plain ASCII, the most frequent ones; words with others are `[UNK]` as a whole and take no part
   * in the joining. All unless given.
   */
  alphabet?: number
}

/**
 * A WordPiece vocabulary learned from counted words (see countWords), in id order: the special tokens, every character at the start
 * of a word and as a continuation (`##c`), then pieces made by joining, again and again, the most frequent pair of neighbours (pairs
 * of equal frequency in code-unit order). Frequent words so become whole tokens. The same counts give the same vocabulary, in
 * whatever order they come.
 *
 * Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016), in BERT's notation.
 */
export function wordPieceVocabulary(
  counts: ReadonlyMap<string, number>,
  { size, minFrequency = 1, alphabet = Number.POSITIVE_INFINITY }: VocabularyOptions,
): string[] {
  const characters = alphabetOf(counts, alphabet)
  const vocabulary = new Set<string>([...SPECIAL_TOKENS, ...characters, ...characters.map((c) => `##${c}`)])
  if (vocabulary.size >= size) return [...vocabulary]

  const known = new Set(characters)
  const words = function* (): Generator<CountedPieces> {
    for (const [word, count] of counts) {
      const letters = Array.from(word)
      if (count < minFrequency || !letters.every((c) => known.has(c))) continue
      yield { pieces: letters.map((c, i) => (i === 0 ? c : `##${c}`)), count }
    }
  }
  for (const joined of mergePieces(words(), (left, right) => left + right.slice(2))) {
    vocabulary.add(joined)
    if (vocabulary.size >= size) break
  }
  return [...vocabulary]
}

/** The basic characters and the `most` most frequent others of the words (ties in code-unit order), in code-unit order. */
function alphabetOf(counts: ReadonlyMap<string, number>, most: number): string[] {
  const frequency = new Map<string, number>()
  for (const [word, count] of counts) for (const c of word) frequency.set(c, (frequency.get(c) ?? 0) + count)
  for (const c of BASIC_CHARACTERS) frequency.delete(c)
  const others = [...frequency].sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1)).slice(0, most)
  return [...BASIC_CHARACTERS, ...others.map(([c]) => c)].sort()
}

export const SPECIAL_TOKENS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'] as const

/** Printable ASCII without capitals, so that plain text never needs `[UNK]`, whatever the texts hold. */
const BASIC_CHARACTERS = Array.from({ length: 94 }, (_, i) => String.fromCharCode(33 + i)).filter(
  (c) => !/[A-Z]/.test(c),
)

const PUNCTUATION = /[!-/:-@[-`{-~\p{P}]/u
const IDEOGRAPH = /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2fa1f}]/u

/**
 * The words that BERT's uncased tokenizer sees in a text: lower-cased, accents stripped, split at white space, around every
 * punctuation mark and around every ideograph.
 */
export function bertWords(text: string): string[] {
  const plain = text
    .toLowerCase()
    .normalize('NFD')
    .replace(/\p{Mn}/gu, '')
    .replace(/[\p{Cc}\p{Cf}\ufffd]/gu, (c) => (/[\t\n\r]/.test(c) ? ' ' : ''))
  const spaced = Array.from(plain, (c) => (PUNCTUATION.test(c) || IDEOGRAPH.test(c) ? ` ${c} ` : c)).join('')
  return spaced.split(/\s+/u).filter((word) => word !== '')
}

/**
 * A WordPiece vocabulary learned from texts, in id order: the special tokens, every character at the start of a word and as a
 * continuation (`##c`), then pieces made by joining, again and again, the most frequent pair of neighbours (pairs of equal
 * frequency in code-unit order). Frequent words so become whole tokens. The same texts give the same vocabulary.
 *
 * Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016), in BERT's notation.
 *
 * @param size the most tokens the vocabulary may hold; the characters are kept even where they alone are more
 */
export function wordPieceVocabulary(texts: Iterable<string>, size: number): string[] {
  const frequency = new Map<string, number>()
  for (const text of texts) for (const word of bertWords(text)) frequency.set(word, (frequency.get(word) ?? 0) + 1)

  const words = [...frequency]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([word, count]) => ({ pieces: Array.from(word, (c, i) => (i === 0 ? c : `##${c}`)), count }))
  const characters = [...new Set([...BASIC_CHARACTERS, ...Array.from([...frequency.keys()].join(''))])].sort()
  const vocabulary = new Set<string>([...SPECIAL_TOKENS, ...characters, ...characters.map((c) => `##${c}`)])

  const pairs = new Map<string, number>()
  const count = (pieces: string[], by: number): void => {
    for (let i = 1; i < pieces.length; i++) {
      const pair = `${pieces[i - 1]} ${pieces[i]}`
      const left = (pairs.get(pair) ?? 0) + by
      if (left === 0) pairs.delete(pair)
      else pairs.set(pair, left)
    }
  }
  for (const word of words) count(word.pieces, word.count)

  while (vocabulary.size < size) {
    let best: string | undefined
    for (const [pair, n] of pairs) {
      const most = best === undefined ? 0 : pairs.get(best)!
      if (n > most || (n === most && pair < best!)) best = pair
    }
    if (best === undefined) break
    const [left, right] = best.split(' ') as [string, string]
    const joined = left + right.slice(2)
    for (const word of words) {
      if (!word.pieces.some((piece, i) => piece === left && word.pieces[i + 1] === right)) continue
      count(word.pieces, -word.count)
      word.pieces = join(word.pieces, left, right, joined)
      count(word.pieces, word.count)
    }
    vocabulary.add(joined)
  }
  return [...vocabulary]
}

function join(pieces: string[], left: string, right: string, joined: string): string[] {
  const result: string[] = []
  for (let i = 0; i < pieces.length; i++) {
    const isPair = pieces[i] === left && pieces[i + 1] === right
    result.push(isPair ? joined : pieces[i]!)
    if (isPair) i++
  }
  return result
}

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  bertWords,
  countWords,
  SPECIAL_TOKENS,
  type VocabularyOptions,
  wordPieceVocabulary,
} from '../../src/encoder/index.ts'

const texts = [
  'The keeper lit the lamp. The keeper climbed the stairs, and the lamp burned all night.',
  'Bees carry honey home; bees carry wax, too.',
  "A café at the harbour's end sells 42 kinds of bread.",
]
const vocabularyOf = (from: string[], options: VocabularyOptions) => wordPieceVocabulary(countWords(from), options)
/** The tokens that were joined, in order: what follows the special tokens and the characters. */
const joinedOf = (vocabulary: string[]) =>
  vocabulary.slice(5).filter((token) => [...token.replace(/^##/, '')].length > 1)

describe('bertWords', () => {
  it('splits texts into words as the uncased BERT does', () => {
    expect(bertWords("The Café's  gate,\n北京")).toEqual(['the', 'cafe', "'", 's', 'gate', ',', '北', '京'])
    expect(bertWords('')).toEqual([])
  })

  it('reads what the tokenizer reads of halves of characters, private ones and capital sigmas', () => {
    expect(bertWords('cut\ud83d off\udc00 \ue000own\u{f0000}')).toEqual(['cut', 'off', 'own'])
    expect(bertWords('ΟΔΟΣ οδος')).toEqual(['οδοσ', 'οδος'])
  })

  it('reads plain words as it reads others', () => {
    const unit = fc.oneof(
      fc.constantFrom(
        ...'aZ0~`@[{ \t\n\r\v\f\0\x7f',
        'é',
        'e\u0301',
        '\u0301',
        'Σ',
        'ß',
        'İ',
        '–',
        '…',
        '北',
        '\u{20000}',
      ),
      fc.constantFrom(
        '\u00a0',
        '\u0085',
        '\u2028',
        '\u200b',
        '\ufeff',
        '\ufffd',
        '\ud800',
        '\udc00',
        '\ue000',
        'ﬁ',
        '한',
        '½',
      ),
      fc.string({ unit: 'binary', maxLength: 1 }),
      fc.string({ unit: 'binary-ascii', maxLength: 4 }),
    )
    const text = fc.array(unit, { maxLength: 20 }).map((units) => units.join(''))
    fc.assert(
      fc.property(text, (sample) => {
        expect(bertWords(sample)).toEqual(wordsByTheRules(sample))
      }),
      { numRuns: 2000 },
    )
  })
})

describe('countWords', () => {
  it('counts texts at once or bit by bit', () => {
    const counts = countWords(texts)
    expect(counts.get('the')).toBe(6)
    expect(counts.get('bees')).toBe(2)
    const bits = new Map<string, number>()
    for (const text of texts) expect(countWords([text], bits)).toBe(bits)
    expect(bits).toEqual(counts)
  })

  it('leaves out words that are longer than the tokenizer splits, whatever they take in memory', () => {
    const longest = ['a'.repeat(100), '\u{10400}'.repeat(100).toLowerCase()]
    const longer = ['b'.repeat(101), '\u{10400}'.repeat(101), 'c'.repeat(3_000_000), 'ø'.repeat(3_000_000)]
    expect([...countWords([[...longest, ...longer].join(' ')]).keys()]).toEqual(longest)
  })
})

describe('wordPieceVocabulary', () => {
  it('starts with the special tokens and turns frequent words into tokens first', () => {
    const vocabulary = vocabularyOf(texts, { size: 300 })
    expect(vocabulary.slice(0, 5)).toEqual([...SPECIAL_TOKENS])
    expect(vocabulary).toEqual(expect.arrayContaining(['the', 'keeper', 'lamp', 'bees', 'carry']))
    expect(vocabulary.indexOf('the')).toBeLessThan(vocabulary.indexOf('keeper'))
    expect(new Set(vocabulary).size).toBe(vocabulary.length)
  })

  it('stays within its size, but keeps every character', () => {
    expect(vocabularyOf(texts, { size: 180 })).toHaveLength(180)
    const least = vocabularyOf(texts, { size: 0 })
    for (const c of new Set(texts.flatMap(bertWords).join('')))
      expect(least).toEqual(expect.arrayContaining([c, `##${c}`]))
  })

  it('stops when nothing is left to join', () => {
    const vocabulary = vocabularyOf(['aa aa b'], { size: 10_000 })
    expect(vocabulary.at(-1)).toBe('aa')
    expect(vocabulary.length).toBeLessThan(200)
  })

  it('makes the merges that counting every pair anew would make', () => {
    // Few letters: many ties, runs of one letter, and pieces that come about in two ways.
    const word = fc.string({ unit: fc.constantFrom('a', 'b', 'c', 'é', '\u{10400}'), minLength: 1, maxLength: 9 })
    const counts = fc.array(fc.tuple(word, fc.integer({ min: 1, max: 5 })), { maxLength: 30 })
    const size = fc.integer({ min: 140, max: 240 })
    fc.assert(
      fc.property(counts, size, (entries, most) => {
        const made = wordPieceVocabulary(new Map(entries), { size: most })
        expect(made).toEqual(naiveVocabulary(new Map(entries), most))
        expect(wordPieceVocabulary(new Map(entries.toReversed()), { size: most })).toEqual(
          naiveVocabulary(new Map(entries.toReversed()), most),
        )
      }),
      { numRuns: 500 },
    )
  })

  it('does not depend on the order of the words', () => {
    const counts = [...countWords(texts)]
    expect(wordPieceVocabulary(new Map(counts.toReversed()), { size: 300 })).toEqual(
      wordPieceVocabulary(new Map(counts), { size: 300 }),
    )
  })

  it('leaves rare words out of the joining, not their characters', () => {
    const vocabulary = vocabularyOf(['aa aa aa bb bb éß cc'], { size: 1000, minFrequency: 2 })
    expect(joinedOf(vocabulary)).toEqual(['aa', 'bb'])
    expect(vocabulary).toContain('##ß')
  })

  it('keeps the most frequent characters beyond ASCII, and joins no word with others', () => {
    const vocabulary = vocabularyOf(['öl öl ßa ßa ßa łb łb łb'.normalize('NFC')], { size: 1000, alphabet: 1 })
    expect(joinedOf(vocabulary)).toEqual(['ßa', 'ol'])
    expect(vocabulary).not.toContain('ł')
    expect(vocabulary).toContain('ß')
  })
})

/** BERT's rules one after the other over the whole text. */
function wordsByTheRules(text: string): string[] {
  const plain = Array.from(
    text.replace(/[\p{C}\ufffd]/gu, (c) => (/[\t\n\r]/.test(c) ? ' ' : /\p{Cn}/u.test(c) ? c : '')),
    (c) => c.toLowerCase(),
  )
    .join('')
    .normalize('NFD')
    .replace(/\p{Mn}/gu, '')
  const alone = /[!-/:-@[-`{-~\p{P}\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2fa1f}]/gu
  return plain
    .replace(alone, ' $& ')
    .split(/\s+/u)
    .filter((word) => word !== '')
}

/** Byte-pair merges by the definition: every pair of every word is counted again for each merge. */
function naiveVocabulary(counts: ReadonlyMap<string, number>, size: number): string[] {
  const vocabulary = new Set(wordPieceVocabulary(counts, { size: 0 }))
  const words = [...counts].map(([word, count]) => ({
    pieces: Array.from(word, (c, i) => (i === 0 ? c : `##${c}`)),
    count,
  }))
  while (vocabulary.size < size) {
    const pairs = new Map<string, number>()
    for (const { pieces, count } of words)
      for (let i = 1; i < pieces.length; i++) {
        const pair = `${pieces[i - 1]} ${pieces[i]}`
        pairs.set(pair, (pairs.get(pair) ?? 0) + count)
      }
    const [best] = [...pairs].sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1))
    if (best === undefined) break
    const [left, right] = best[0].split(' ') as [string, string]
    for (const word of words) {
      const joined: string[] = []
      for (const piece of word.pieces) {
        if (joined.at(-1) === left && piece === right) joined.splice(-1, 1, left + right.slice(2))
        else joined.push(piece)
      }
      word.pieces = joined
    }
    vocabulary.add(left + right.slice(2))
  }
  return [...vocabulary]
}

import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'

interface Ranking {
  bm25(texts: readonly string[], options?: { k1?: number; b?: number }): (question: string) => Float64Array
  rankAmong(scores: ArrayLike<number>, member: number): number
  spearman(a: ArrayLike<number>, b: ArrayLike<number>): number
  unitRows(rows: ArrayLike<number>, width: number): Float32Array
  product(a: ArrayLike<number>, i: number, b: ArrayLike<number>, j: number, width: number): number
}
interface Numbers {
  wholeNumber(flags: Record<string, string>, name: string, least?: number): number
}
const script = (name: string) => pathToFileURL(join(import.meta.dirname, '../../bench/support', name)).href
const { bm25, product, rankAmong, spearman, unitRows }: Ranking = await import(script('ranking.mjs'))
const { wholeNumber }: Numbers = await import(script('numbers.mjs'))

describe('BM25 of bench/retrieval.mjs', () => {
  const texts = ['The cat sat. The cat slept!', 'A dog sat on the mat', 'Rain']

  it('is the formula, worked out by hand', () => {
    // 3 texts of 6, 6 and 1 words, 13/3 on average; "cat" is in one of them, twice
    const idf = Math.log(1 + 2.5 / 1.5)
    const expected = (idf * 2 * 2.2) / (2 + 1.2 * (0.25 + 0.75 * (6 / (13 / 3))))
    const scores = bm25(texts)('CAT?')
    expect(scores[0]).toBeCloseTo(expected, 12)
    expect([scores[1], scores[2]]).toEqual([0, 0])
  })

  it('adds the words up and counts a repeated word again', () => {
    const score = bm25(texts)
    const [cat, sat, both, twice] = ['cat', 'sat', 'sat cat', 'cat cat'].map((question) => score(question)[0]!)
    expect(both).toBeCloseTo(cat! + sat!, 12)
    expect(twice).toBeCloseTo(2 * cat!, 12)
  })

  it('is the definition, summed over the words of the question', () => {
    const words = fc.array(fc.constantFrom('a', 'b', 'c', 'd'), { minLength: 1, maxLength: 8 })
    fc.assert(
      fc.property(fc.array(words, { minLength: 1, maxLength: 6 }), words, (documents, question) => {
        const scores = bm25(documents.map((document) => document.join(' ')))(question.join('-'))
        const mean = documents.flat().length / documents.length
        for (const [i, document] of documents.entries()) {
          const expected = question.reduce((sum, word) => {
            const holding = documents.filter((other) => other.includes(word)).length
            const idf = Math.log(1 + (documents.length - holding + 0.5) / (holding + 0.5))
            const tf = document.filter((other) => other === word).length
            return sum + (idf * tf * 2.2) / (tf + 1.2 * (0.25 + (0.75 * document.length) / mean))
          }, 0)
          expect(scores[i]).toBeCloseTo(expected, 10)
        }
      }),
    )
  })

  it('prefers the shorter of two texts with the word, unless b is 0', () => {
    const pair = ['storm', 'storm over the hills and the sea', 'calm']
    const [short, long] = bm25(pair)('storm')
    expect(short).toBeGreaterThan(long!)
    const [a, b] = bm25(pair, { b: 0 })('storm')
    expect(a).toBe(b)
  })
})

describe('ranks', () => {
  it('count from 1, the earlier of equal scores first', () => {
    const scores = [0.2, 0.9, 0.2, 0.5]
    expect(scores.map((_, i) => rankAmong(scores, i))).toEqual([3, 1, 4, 2])
  })

  it('are refused where a score is no number, which would otherwise come first', () => {
    expect(() => rankAmong([0.5, Number.NaN], 1)).toThrow('The score of text 1 is not a number.')
    expect(() => rankAmong([0.5, Number.NaN], 0)).toThrow(RangeError)
  })

  it("correlate as Spearman's ρ, which knows only order", () => {
    const values = [3, -1, 4, 1, 5, 9, 2]
    expect(
      spearman(
        values,
        values.map((value) => Math.exp(value)),
      ),
    ).toBeCloseTo(1, 12)
    expect(
      spearman(
        values,
        values.map((value) => -value),
      ),
    ).toBeCloseTo(-1, 12)
    // ties share the mean rank: ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3 have ρ = 4.5 / √(4.5·5)
    expect(spearman([1, 2, 2, 3], [1, 2, 3, 4])).toBeCloseTo(4.5 / Math.sqrt(4.5 * 5), 12)
  })
})

it('cosines are products of rows at length 1', () => {
  const rows = unitRows([3, 4, 0, 5], 2)
  expect(product(rows, 0, rows, 0, 2)).toBeCloseTo(1, 6)
  expect(product(rows, 0, rows, 1, 2)).toBeCloseTo(0.8, 6)
})

it('numbers of the command line are whole and large enough, or name their flag', () => {
  expect(wholeNumber({ pool: '1000' }, 'pool')).toBe(1000)
  expect(wholeNumber({ rounds: '0' }, 'rounds', 0)).toBe(0)
  for (const given of ['0', '-1', '1.5', 'many', '', 'Infinity'])
    expect(() => wholeNumber({ pool: given }, 'pool')).toThrow(
      `--pool must be a whole number of 1 or more, not "${given}".`,
    )
})

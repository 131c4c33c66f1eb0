import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { permuteQuestions } from '../../src/eval/index.ts'

describe('permuted questions', () => {
  it('give every question another one, and each is asked once', () => {
    fc.assert(
      fc.property(fc.uniqueArray(fc.string(), { minLength: 2, maxLength: 50 }), fc.string(), (texts, seed) => {
        const partners = permuteQuestions(texts, seed)!
        expect([...partners.keys()]).toEqual(texts)
        expect([...partners.values()].sort()).toEqual([...texts].sort())
        for (const [text, partner] of partners) expect(partner).not.toBe(text)
      }),
    )
  })

  it('never ask the same words under another id', () => {
    const partners = permuteQuestions(['who?', 'where?', 'who?', 'who?'], '1')!
    expect(partners.get('who?')).toBe('where?')
    expect(partners.get('where?')).toBe('who?')
  })

  it('depend on the seed alone', () => {
    const texts = Array.from({ length: 30 }, (_, i) => `question ${i}`)
    expect(permuteQuestions(texts, 'a')).toEqual(permuteQuestions(texts, 'a'))
    expect(permuteQuestions(texts, 'a')).not.toEqual(permuteQuestions(texts, 'b'))
  })

  it('are absent where there is no other question', () => {
    expect(permuteQuestions(['only one', 'only one'], '1')).toBeUndefined()
    expect(permuteQuestions([], '1')).toBeUndefined()
  })
})

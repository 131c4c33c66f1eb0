import { describe, expect, it } from 'vitest'
import { loadTokenizer, readEncoder } from '../../src/encoder/index.ts'
import { expected, tinyBert } from './fixtures.ts'

describe('loadTokenizer', () => {
  it.each(['mean', 'cls'] as const)(
    'gives the ids that Python gives, truncated texts included (%s)',
    async (variant) => {
      const tokenizer = await loadTokenizer(await readEncoder(tinyBert(variant)))
      const { texts, ids, truncated } = expected(variant)
      texts.forEach((text, i) => {
        const encoded = tokenizer.encode(text)
        expect([...encoded.ids]).toEqual(ids[i])
        expect(encoded.truncated).toBe(truncated[i])
      })
      expect(truncated).toContain(true)
    },
  )

  it('keeps the special tokens of a text that it cuts, and counts the whole text', async () => {
    const tokenizer = await loadTokenizer(await readEncoder(tinyBert('mean')), { maxLength: 6 })
    const [cls, sep] = tokenizer.encode('').ids
    const { ids, truncated } = tokenizer.encode('The bridge was built of oak in 1792.')
    expect(truncated).toBe(true)
    expect([ids.length, ids[0], ids[5]]).toEqual([6, cls, sep])
    expect(tokenizer.count('The bridge was built of oak in 1792.')).toBeGreaterThan(6)
    expect(tokenizer.maxLength).toBe(6)
  })

  it('never goes above the encoder’s own maximum', async () => {
    expect((await loadTokenizer(await readEncoder(tinyBert('mean')), { maxLength: 4096 })).maxLength).toBe(24)
  })

  it('lower-cases a final sigma as Python does', async () => {
    const tokenizer = await loadTokenizer(await readEncoder(tinyBert('mean')))
    expect(tokenizer.encode('ΟΔΥΣΣΕΥΣ').ids).toEqual(tokenizer.encode('οδυσσευσ').ids)
  })
})

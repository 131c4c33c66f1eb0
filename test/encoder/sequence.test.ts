import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { firstOccurrences, sequenceKey, type TokenSequence, textSequence } from '../../src/encoder/index.ts'

const name = (sequence: TokenSequence): string => Buffer.from(sequenceKey(sequence)).toString('hex')

describe('sequenceKey', () => {
  it('of a text is the hash of its ids, by which embeddings of earlier versions are found', () => {
    const ids = Int32Array.of(101, 7592, 102)
    const hash = createHash('sha256').update(new Uint8Array(ids.buffer)).digest('hex')
    expect(name(textSequence(ids))).toBe(hash.slice(0, 32))
  })

  it('tells ids, positions, and visual features with their places apart', () => {
    const ids = Int32Array.of(1, 2, 2, 3)
    const positions = Int32Array.of(0, 1, 1, 2, 0, 1, 1, 2, 0, 1, 2, 3)
    const visuals = [{ at: 1, length: 2, key: 'a'.repeat(64) }]
    const sequences: TokenSequence[] = [
      { ids },
      { ids, positions },
      { ids, positions: positions.map((p) => p + 1) },
      { ids, positions, visuals },
      { ids, positions, visuals: [{ ...visuals[0]!, key: 'b'.repeat(64) }] },
      { ids, positions, visuals: [{ ...visuals[0]!, length: 1 }] },
      { ids, visuals },
      { ids: Int32Array.of(...ids, ...positions) },
    ]
    expect(new Set(sequences.map(name)).size).toBe(sequences.length)
  })
})

describe('firstOccurrences', () => {
  it('points every sequence to the first equal one', () => {
    const texts = fc.array(fc.array(fc.integer({ min: 0, max: 2 }), { maxLength: 3 }), { maxLength: 20 })
    fc.assert(
      fc.property(texts, (all) => {
        const { same, first } = firstOccurrences(all.map((ids) => textSequence(Int32Array.from(ids))))
        const keys = all.map((ids) => ids.join())
        expect([...same]).toEqual(keys.map((key) => keys.indexOf(key)))
        expect(first).toEqual(
          keys
            .map((key, i) => [key, i] as const)
            .filter(([key, i]) => keys.indexOf(key) === i)
            .map(([, i]) => i),
        )
      }),
    )
  })
})

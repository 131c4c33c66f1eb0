import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  bestRowLength,
  packSequences,
  planBatches,
  poolMatrix,
  rowLengthFor,
  textSequence,
} from '../../src/encoder/index.ts'

const textOf = (ids: ArrayLike<number>) => textSequence(Int32Array.from(ids))
const textOfLength = (tokens: number) => textOf(new Array(tokens).fill(1))

const sequences = fc.array(fc.array(fc.integer({ min: 1, max: 999 }), { minLength: 1, maxLength: 60 }).map(textOf), {
  minLength: 1,
  maxLength: 40,
})

describe('packSequences', () => {
  it('puts every token of every sequence into one row, in order, with positions from 0', () => {
    fc.assert(
      fc.property(sequences, fc.constantFrom(undefined, 64, 120), (texts, rowLength) => {
        const batch = packSequences(texts, rowLength, { padId: 0 })
        texts.forEach(({ ids }, node) => {
          const start = batch.starts[node] as number
          const end = start + ids.length
          expect(batch.inputIds.slice(start, end)).toEqual(ids)
          expect(batch.positionIds.slice(start, end)).toEqual(Int32Array.from(ids, (_, i) => i))
          expect(batch.segments.slice(start, end).every((s) => s === node + 1)).toBe(true)
          expect(Math.floor(start / batch.length)).toBe(Math.floor((end - 1) / batch.length))
        })
        const used = texts.reduce((n, { ids }) => n + ids.length, 0)
        expect(batch.segments.filter((s) => s !== 0)).toHaveLength(used)
        expect(batch.inputIds).toHaveLength(batch.rows * batch.length)
      }),
    )
  })

  it('fills rows first-fit decreasing, and always the same way', () => {
    const texts = [3, 5, 2, 6].map(textOfLength)
    const batch = packSequences(texts, 8)
    expect(batch.rows).toBe(2)
    expect([...batch.segments]).toEqual([4, 4, 4, 4, 4, 4, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1])
    expect(packSequences(texts, 8)).toEqual(batch)
  })

  it('refuses what fits no row', () => {
    expect(() => packSequences([textOfLength(9)], 8)).toThrow(/9 tokens, a row only 8/)
    expect(() => packSequences([textOfLength(0)], 8)).toThrow(/empty/)
  })
})

describe('bestRowLength', () => {
  it('is the longest sequence’s or a multiple of 8 that holds it', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 256 }), { minLength: 1, maxLength: 60 }), (lengths) => {
        const length = bestRowLength(lengths)
        expect(length % 8 === 0 || length === Math.max(...lengths)).toBe(true)
        expect(length).toBeGreaterThanOrEqual(Math.max(...lengths))
        expect(length).toBeLessThanOrEqual(2 * rowLengthFor(Math.max(...lengths)))
      }),
    )
  })

  it('takes rows of the sequences’ own length rather than padding them all', () => {
    expect(bestRowLength(new Array(64).fill(33))).toBe(33)
    expect(bestRowLength(new Array(64).fill(39))).toBe(40)
  })

  it('takes longer rows where these leave less padding', () => {
    const lengths = [100, ...new Array(40).fill(60)]
    const length = bestRowLength(lengths)
    expect(length).toBeGreaterThanOrEqual(120)
    expect(packSequences(lengths.map(textOfLength)).length).toBe(length)
  })
})

describe('poolMatrix', () => {
  const batch = packSequences([textOf([1, 2, 3, 4]), textOf([5])], 8)
  it.each([
    ['mean', [0.25, 0.25, 0.25, 0.25, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]],
    ['cls', [1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]],
    ['last', [0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]],
  ] as const)('%s', (pooling, first, second) => {
    expect([...poolMatrix(batch, pooling)]).toEqual([...first, ...second])
  })
})

describe('planBatches', () => {
  it('holds every sequence once, within the budget unless one sequence exceeds it', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 256 }), { maxLength: 200 }),
        fc.integer({ min: 64, max: 2048 }),
        fc.boolean(),
        (lengths, tokenBudget, packed) => {
          const batches = planBatches(lengths, { tokenBudget, packed })
          expect(batches.flat().sort((a, b) => a - b)).toEqual(lengths.map((_, i) => i))
          for (const batch of batches) {
            const members = batch.map((i) => textOfLength(lengths[i] as number))
            const { rows, length } = packSequences(members)
            const tokens = packed ? rows * length : batch.length * Math.max(...members.map(({ ids }) => ids.length))
            expect(batch.length === 1 || tokens <= tokenBudget).toBe(true)
          }
        },
      ),
    )
  })
})

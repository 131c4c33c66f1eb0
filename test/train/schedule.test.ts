import { describe, expect, it } from 'vitest'
import { learningRateAt, warmupSteps } from '../../src/train/step/schedule.ts'

const rates = (total: number, settings: Parameters<typeof learningRateAt>[2]): number[] =>
  Array.from({ length: total }, (_, i) => learningRateAt(i + 1, total, settings))

describe('the learning rate', () => {
  it('climbs linearly, then falls along a line', () => {
    const all = rates(10, { learningRate: 1, warmup: 4, schedule: 'linear' })
    const expected = [1 / 4, 2 / 4, 3 / 4, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]
    all.forEach((rate, i) => {
      expect(rate).toBeCloseTo(expected[i]!, 12)
    })
  })

  it('falls along half a cosine', () => {
    const all = rates(8, { learningRate: 2, warmup: 0, schedule: 'cosine' })
    expect(all[0]).toBe(2)
    expect(all[4]).toBeCloseTo(1, 12)
    expect(all[7]).toBeCloseTo(1 + Math.cos((7 / 8) * Math.PI), 12)
    expect(all.every((rate, i) => i === 0 || rate < all[i - 1]!)).toBe(true)
  })

  it('reads a warm-up below 1 as a share of the steps', () => {
    expect(warmupSteps(0.1, 200)).toBe(20)
    expect(warmupSteps(3, 200)).toBe(3)
    expect(warmupSteps(500, 200)).toBe(200)
    expect(warmupSteps(0, 200)).toBe(0)
  })

  it('is never zero in a step that is taken', () => {
    for (const schedule of ['cosine', 'linear', 'constant'] as const)
      for (const total of [1, 2, 7])
        expect(Math.min(...rates(total, { learningRate: 1, warmup: 0.3, schedule }))).toBeGreaterThan(0)
  })
})

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { createSampler, packUnits, splitValidation } from '../../src/train/data/sampler.ts'

const index = (sources: number[], benchmarks = sources.map(() => 0)) => ({
  count: sources.length,
  source: Int32Array.from(sources),
  benchmark: Int32Array.from(benchmarks),
})

describe('the validation part', () => {
  it('never shares a source with the training part, and nothing is lost', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.nat(30), fc.nat(2)), { minLength: 1, maxLength: 200 }),
        fc.double({ min: 0, max: 0.9, noNaN: true }),
        fc.nat(),
        (rows, share, seed) => {
          const sources = rows.map(([source]) => source)
          const { train, validation } = splitValidation(
            index(
              sources,
              rows.map(([, b]) => b),
            ),
            share,
            seed,
          )
          const held = new Set([...validation].map((i) => sources[i]))
          expect([...train].some((i) => held.has(sources[i]!))).toBe(false)
          expect([...train, ...validation].sort((a, b) => a - b)).toEqual(rows.map((_, i) => i))
        },
      ),
    )
  })

  it('holds about its share of every benchmark', () => {
    const sources = Array.from({ length: 1000 }, (_, i) => Math.floor(i / 2))
    const benchmarks = sources.map((source) => (source < 100 ? 0 : 1))
    const { validation } = splitValidation(index(sources, benchmarks), 0.15, 1)
    const first = [...validation].filter((i) => benchmarks[i] === 0).length
    expect(first).toBe(30)
    expect(validation.length - first).toBe(120)
  })

  it('depends on the seed alone', () => {
    const all = index(Array.from({ length: 100 }, (_, i) => i))
    const one = splitValidation(all, 0.2, 1).validation
    expect(splitValidation(all, 0.2, 1).validation).toEqual(one)
    expect(splitValidation(all, 0.2, 2).validation).not.toEqual(one)
  })

  it('leaves a source in training that would fill the part beyond its share', () => {
    const { validation } = splitValidation(index([0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), 0.15, 3)
    expect([...validation]).toEqual([9])
  })
})

describe('the order of training', () => {
  const train = Int32Array.from({ length: 23 }, (_, i) => i * 3)

  it('visits every instance once an epoch, each epoch in another order', () => {
    const sampler = createSampler(train, 5, 7)
    const epoch = (e: number): number[] =>
      Array.from({ length: sampler.stepsPerEpoch }, (_, i) => [
        ...sampler.batch(e * sampler.stepsPerEpoch + i + 1),
      ]).flat()
    expect(sampler.stepsPerEpoch).toBe(5)
    expect(epoch(0).toSorted((a, b) => a - b)).toEqual([...train])
    expect(epoch(1).toSorted((a, b) => a - b)).toEqual([...train])
    expect(epoch(1)).not.toEqual(epoch(0))
  })

  it('is a pure function of seed and step', () => {
    const batches = (seed: number, steps: number[]): number[][] => {
      const sampler = createSampler(train, 5, seed)
      return steps.map((step) => [...sampler.batch(step)])
    }
    const forward = batches(7, [1, 2, 6, 11])
    expect(batches(7, [11, 6, 2, 1]).reverse()).toEqual(forward)
    expect(batches(8, [1, 2, 6, 11])).not.toEqual(forward)
  })
})

describe('packing', () => {
  it('keeps groups within the budget and every unit once; what is over it goes alone', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 150 }), { maxLength: 60 }), (sizes) => {
        const cost = (units: number[]): number => units.reduce((sum, u) => sum + sizes[u]!, 0)
        const groups = packUnits(sizes, cost, 100)
        expect(groups.flatMap(({ units }) => units).toSorted((a, b) => a - b)).toEqual(sizes.map((_, i) => i))
        for (const { units, oversize } of groups) {
          expect(oversize).toBe(cost(units) > 100)
          if (oversize) expect(units.length).toBe(1)
        }
        expect(packUnits(sizes, cost, 100)).toEqual(groups)
      }),
    )
  })

  it('keeps to costs that are more than sizes say, and asks for few of them', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 150 }), { maxLength: 60 }),
        fc.double({ min: 0.9, max: 1.5, noNaN: true }),
        fc.constantFrom(100, 1000, 1e5),
        (sizes, factor, wanted) => {
          const cost = (units: number[]): number => 5 + factor * units.reduce((sum, u) => sum + sizes[u]!, 0)
          const groups = packUnits(sizes, cost, wanted + 50, wanted)
          expect(groups.flatMap(({ units }) => units).toSorted((a, b) => a - b)).toEqual(sizes.map((_, i) => i))
          for (const { units, oversize } of groups) {
            if (units.length > 1) expect(cost(units)).toBeLessThanOrEqual(wanted)
            expect(oversize).toBe(cost(units) > wanted + 50)
          }
        },
      ),
    )
    let asked = 0
    const sizes = Array.from({ length: 200 }, (_, i) => 10 + i)
    const cost = (units: number[]): number => {
      asked += units.length
      return 1.05 * units.reduce((sum, u) => sum + sizes[u]!, 0)
    }
    expect(packUnits(sizes, cost, 25_000)).toHaveLength(1)
    expect(asked).toBe(2 * sizes.length)
    asked = 0
    expect(packUnits(sizes, cost, 10_000)).toHaveLength(3)
    expect(asked).toBeLessThan(20 * sizes.length)
  })

  it('makes groups of the size that is wanted, of larger units too as long as they are within the budget', () => {
    const sizes = [90, 30, 20, 20, 120, 10]
    const groups = packUnits(sizes, (units) => units.reduce((sum, u) => sum + sizes[u]!, 0), 100, 50)
    expect(groups.map(({ units, oversize }) => [units.map((u) => sizes[u]), oversize])).toEqual([
      [[120], true],
      [[90], false],
      [[30, 20], false],
      [[20, 10], false],
    ])
  })
})

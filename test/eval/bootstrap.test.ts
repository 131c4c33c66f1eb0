import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  addDenominators,
  addInstance,
  ENCODERS,
  type EncoderName,
  emptySums,
  estimate,
  measureInstance,
  percentileInterval,
  quantile,
  questionSums,
  type ScoredInstance,
} from '../../src/eval/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { instanceOf } from './trees.ts'

const encoders = ENCODERS.filter((encoder) => encoder !== 'permuted')

/** Scores under which a two-leaf item with its first leaf gold is decided right, or wrong. */
const twoLeaves = (frozen: boolean, fineTuned: boolean, more: Partial<ScoredInstance>): ScoredInstance => {
  const scores = (right: boolean): Record<string, number> => ({ '0-2': 0.5, '0-1': right ? 0.9 : 0.1, '1-2': 0.2 })
  return instanceOf([true, false], { frozen: scores(frozen), fineTuned: scores(fineTuned), ...more } as never)
}

function sumsOf(instances: ScoredInstance[], names: readonly EncoderName[] = encoders) {
  const sums = emptySums(names)
  for (const instance of instances) {
    addInstance(sums, instance.benchmark, instance.source, measureInstance(instance, names))
  }
  return sums
}

describe('percentile intervals', () => {
  it('interpolate between order statistics', () => {
    expect(quantile([1, 2, 3, 4], 0.5)).toBe(2.5)
    expect(quantile([1, 2, 3, 4], 0.25)).toBe(1.75)
    expect(quantile([7], 0.9)).toBe(7)
    const values = Float64Array.from({ length: 1001 }, (_, i) => i)
    const [lo, hi] = percentileInterval(values.reverse())!
    expect(lo).toBeCloseTo(25, 9)
    expect(hi).toBeCloseTo(975, 9)
  })

  it('leave out resamples without a denominator', () => {
    expect(percentileInterval(Float64Array.of(Number.NaN, 2, Number.NaN))).toEqual([2, 2])
    expect(percentileInterval(Float64Array.of(Number.NaN))).toBeUndefined()
  })
})

describe('estimates', () => {
  it('are those of resampling the instances themselves, cluster by cluster', () => {
    const random = createRandom('data')
    const instances = Array.from({ length: 60 }, (_, i) =>
      twoLeaves(random.next() < 0.4, random.next() < 0.7, { source: `s${Math.floor(i / 1.7) % 23}` }),
    )
    const resamples = 400
    const { benchmarks, differences, clusters } = estimate(sumsOf(instances), { resamples, seed: '7' })

    const sources = [...new Set(instances.map((instance) => instance.source))]
    const draw = createRandom('7/bootstrap/bench')
    const right = (list: ScoredInstance[], encoder: 'frozen' | 'fine-tuned'): number =>
      list.filter(({ scores }) => scores[encoder]![1]! >= scores[encoder]![0]!).length / list.length
    const drawn = Array.from({ length: resamples }, () => {
      const list = sources.flatMap(() => {
        const source = sources[draw.int(sources.length)]
        return instances.filter((instance) => instance.source === source)
      })
      return { frozen: right(list, 'frozen'), tuned: right(list, 'fine-tuned') }
    })
    const check = (
      found: { value: number | null; lo: number | null; hi: number | null },
      value: number,
      values: number[],
    ): void => {
      const [lo, hi] = percentileInterval(Float64Array.from(values))!
      expect(found.value).toBeCloseTo(value, 12)
      expect(found.lo).toBeCloseTo(lo, 12)
      expect(found.hi).toBeCloseTo(hi, 12)
    }
    const [frozen, tuned] = [right(instances, 'frozen'), right(instances, 'fine-tuned')]
    check(
      benchmarks.bench!.frozen!.decision_accuracy!,
      frozen,
      drawn.map((d) => d.frozen),
    )
    check(
      benchmarks.bench!['fine-tuned']!.decision_accuracy!,
      tuned,
      drawn.map((d) => d.tuned),
    )
    check(
      differences.bench!['fine-tuned - frozen']!.decision_accuracy!,
      tuned - frozen,
      drawn.map((d) => d.tuned - d.frozen),
    )
    expect(clusters.bench).toBe(sources.length)
    expect(benchmarks.bench!.frozen!.decision_accuracy!.n).toBe(60)
  })

  it('have about the width that theory gives', () => {
    const instances = Array.from({ length: 400 }, (_, i) => twoLeaves(i % 2 === 0, true, { source: `s${i}` }))
    const { benchmarks } = estimate(sumsOf(instances), { resamples: 4000 })
    const { value, lo, hi } = benchmarks.bench!.frozen!.decision_accuracy!
    expect(value).toBe(0.5)
    // 1.96 sqrt(0.25 / 400) = 0.049
    expect(0.5 - lo!).toBeGreaterThan(0.042)
    expect(0.5 - lo!).toBeLessThan(0.056)
    expect(hi! - 0.5).toBeGreaterThan(0.042)
    expect(hi! - 0.5).toBeLessThan(0.056)
  })

  it('do not grow narrower by repeating what one source says', () => {
    const once = Array.from({ length: 50 }, (_, i) => twoLeaves(i % 2 === 0, true, { source: `s${i}` }))
    const often = once.flatMap((instance) => Array.from({ length: 9 }, () => instance))
    const options = { resamples: 1000 }
    const [a, b] = [once, often].map(
      (list) => estimate(sumsOf(list), options).benchmarks.bench!.frozen!.decision_accuracy!,
    )
    expect([b!.lo, b!.hi]).toEqual([a!.lo, a!.hi])
    expect([a!.n, b!.n]).toEqual([50, 450])
  })

  it('pair their differences: equal encoders differ by exactly nothing', () => {
    const instances = Array.from({ length: 40 }, (_, i) => twoLeaves(i % 3 === 0, i % 3 === 0, { source: `s${i}` }))
    const { differences } = estimate(sumsOf(instances), { resamples: 200 })
    expect(differences.bench!['fine-tuned - frozen']!.decision_accuracy).toEqual({ value: 0, lo: 0, hi: 0, n: 40 })
    const toLeft = differences.bench!['fine-tuned - always-left']!.decision_accuracy!
    expect(toLeft.value).toBeCloseTo(14 / 40 - 1, 12)
    expect(toLeft.hi).toBeLessThan(0)
  })

  it('pool decision nodes, and average benchmarks beside it', () => {
    const large = Array.from({ length: 30 }, (_, i) => twoLeaves(true, true, { benchmark: 'large', source: `l${i}` }))
    const small = Array.from({ length: 10 }, (_, i) => twoLeaves(i < 2, true, { benchmark: 'small', source: `s${i}` }))
    const { benchmarks } = estimate(sumsOf([...large, ...small]), { resamples: 500 })
    expect(benchmarks.pooled!.frozen!.decision_accuracy!.value).toBeCloseTo(32 / 40, 12)
    expect(benchmarks.pooled!.frozen!.decision_accuracy!.n).toBe(40)
    const mean = benchmarks.mean!.frozen!.decision_accuracy!
    expect(mean.value).toBeCloseTo((1 + 0.2) / 2, 12)
    expect(mean.n).toBe(2)
    expect(mean.lo!).toBeLessThan(0.6)
    expect(mean.hi!).toBeGreaterThan(0.6)
  })

  it('of a benchmark do not depend on what it was evaluated with', () => {
    const one = Array.from({ length: 20 }, (_, i) =>
      twoLeaves(i % 2 === 0, true, { benchmark: 'one', source: `a${i}` }),
    )
    const two = Array.from({ length: 20 }, (_, i) =>
      twoLeaves(i % 5 === 0, true, { benchmark: 'two', source: `b${i}` }),
    )
    const options = { resamples: 300 }
    const alone = estimate(sumsOf(one), options).benchmarks.one
    expect(estimate(sumsOf([...two, ...one]), options).benchmarks.one).toEqual(alone)
  })

  it('draw a source whole, also when two benchmarks share it', () => {
    const instances = Array.from({ length: 30 }, (_, i) =>
      twoLeaves(i % 2 === 0, true, { benchmark: i % 3 === 0 ? 'one' : 'two', source: `s${i % 10}` }),
    )
    const { clusters } = estimate(sumsOf(instances), { resamples: 10 })
    expect(clusters).toEqual({ one: 10, two: 10, pooled: 10, mean: 10 })
  })

  it('resample no source of which nothing was measured', () => {
    const instances = Array.from({ length: 12 }, (_, i) => twoLeaves(i % 3 === 0, true, { source: `s${i}` }))
    const alone = estimate(sumsOf(instances), { resamples: 100 })
    const sums = sumsOf(instances)
    for (const source of ['x', 'y', 'z']) {
      addDenominators(sums, 'bench', source, questionSums(false))
      addInstance(sums, 'bench', source, measureInstance(instanceOf([false, false], { source }), encoders.slice(0, 1)))
    }
    const found = estimate(sums, { resamples: 100 })
    expect(found.clusters.bench).toBe(12)
    expect(found).toEqual(alone)
  })

  it('give no interval for a single source, and no value where there is nothing to measure', () => {
    const { benchmarks } = estimate(sumsOf([twoLeaves(true, true, {})]), { resamples: 10 })
    expect(benchmarks.bench!.frozen!.decision_accuracy).toEqual({ value: 1, lo: null, hi: null, n: 1 })
    expect(benchmarks.bench!.frozen!.decision_accuracy_full).toEqual({ value: null, lo: null, hi: null, n: 0 })
    expect(benchmarks.bench!.frozen!.tokens_all).toEqual({ value: null, lo: null, hi: null, n: 0 })
  })

  it('define pair accuracy for encoders with scores only', () => {
    const { benchmarks } = estimate(sumsOf([twoLeaves(true, true, {})]), { resamples: 10 })
    expect(benchmarks.bench!.frozen!.pair_accuracy!.value).toBe(1)
    expect(benchmarks.bench!['always-left']).not.toHaveProperty('pair_accuracy')
    expect(benchmarks.bench!['always-left']).toHaveProperty('truncated_nodes')
  })

  it('leave an encoder out of the pool that one benchmark lacks', () => {
    const instances = [
      twoLeaves(true, true, { benchmark: 'one' }),
      twoLeaves(true, true, { benchmark: 'two', source: 't' }),
    ]
    const available = (benchmark: string, encoder: EncoderName): boolean =>
      encoder !== 'fine-tuned' || benchmark === 'two'
    const { benchmarks, differences } = estimate(sumsOf(instances), { resamples: 10, available })
    expect(Object.keys(benchmarks.one!)).not.toContain('fine-tuned')
    expect(Object.keys(benchmarks.two!)).toContain('fine-tuned')
    expect(Object.keys(benchmarks.pooled!)).not.toContain('fine-tuned')
    expect(Object.keys(differences.pooled!)).toContain('frozen - always-left')
  })

  it('count tokens per question, and their ratio as a share of those items', () => {
    const sums = emptySums(['frozen'])
    const frozen = { '0-2': 0.5, '0-1': 0.9, '1-2': 0.2 }
    for (const [source, role, gold] of [
      ['a', 'gold', true],
      ['a', 'other', false],
      ['b', 'gold', true],
    ] as const) {
      const instance = instanceOf([gold, false], { frozen, role, source, retrieved: true })
      addInstance(sums, 'bench', source, measureInstance(instance, ['frozen']))
    }
    for (const source of ['a', 'b']) addDenominators(sums, 'bench', source, questionSums(true))
    addDenominators(sums, 'bench', 'c', questionSums(false))
    const found = estimate(sums, { resamples: 10 }).benchmarks.bench!.frozen!
    expect([found.tokens_gold!.value, found.tokens_other!.value, found.tokens_all!.value]).toEqual([15, 7.5, 22.5])
    expect([found.tokens_gold!.n, found.tokens_all_ratio!.n]).toEqual([2, 2])
    expect(found.tokens_all_ratio!.value).toBeCloseTo(15 / 25, 12)
  })

  it('lie inside the range of the clusters, with the value between the ends of a wide interval', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.boolean(), fc.integer({ min: 0, max: 5 })), { minLength: 2, maxLength: 30 }),
        (list) => {
          const instances = list.map(([right, source]) => twoLeaves(right, true, { source: `s${source}` }))
          const { value, lo, hi } = estimate(sumsOf(instances), { resamples: 100 }).benchmarks.bench!.frozen!
            .decision_accuracy!
          expect(value).toBeGreaterThanOrEqual(0)
          if (lo === null) return
          expect(lo).toBeGreaterThanOrEqual(0)
          expect(hi).toBeLessThanOrEqual(1)
          expect(lo).toBeLessThanOrEqual(hi!)
        },
      ),
      { numRuns: 50 },
    )
  })
})

import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  type Comparison,
  checkRequirements,
  compare,
  comparisonCsv,
  comparisonJson,
  comparisonMarkdown,
  comparisonText,
  evaluate,
  measureInstance,
  parseRequirement,
  percentileInterval,
  readScores,
  type StoredInstance,
  verdictOn,
} from '../../src/eval/index.ts'
import { metricIndex } from '../../src/eval/metrics.ts'
import { UsageError } from '../../src/support/errors.ts'
import { createRandom } from '../../src/support/random.ts'
import { writeArticles } from './articles.ts'
import { bagOfWords, frozen, optionsFor } from './bag.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-compare-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

let first: string
let second: string
let ten: string
let other: string
beforeAll(async () => {
  ten = await writeArticles(join(folder, 'ten'), 'Articles', 24)
  other = await writeArticles(join(folder, 'other'), 'Pages', 9)
  first = join(folder, 'first')
  second = join(folder, 'second')
  await evaluate(optionsFor([ten, other], first, { fineTuned: bagOfWords('weak', 0.3) }))
  await evaluate(optionsFor([other, ten], second))
})

const all = ({ benchmarks }: Comparison) => Object.values(benchmarks).flatMap((metrics) => Object.values(metrics))

describe('a comparison of two evaluations', () => {
  it('of one with itself gives exactly zero everywhere', async () => {
    const comparison = await compare({ a: first, b: first, resamples: 200 })
    expect(all(comparison).length).toBeGreaterThan(80)
    for (const { difference, lo, hi, a, b } of all(comparison)) {
      expect([difference, lo, hi]).toEqual([0, 0, 0])
      expect(a).toBe(b)
    }
    expect(verdictOn(comparison, 'pooled')).toBe('There is no difference at all: every figure is the same.')
    expect(checkRequirements([parseRequirement('decision_accuracy >= 0')], comparison)[0]!.met).toBe(true)
  })

  it('has the figures of both, and opposite signs the other way round', async () => {
    const [there, back] = [
      await compare({ a: first, b: second, resamples: 200 }),
      await compare({ a: second, b: first, resamples: 200 }),
    ]
    const [metricsA, metricsB] = [first, second].map((path) =>
      JSON.parse(readFileSync(join(path, 'metrics.json'), 'utf8')),
    )
    expect(Object.keys(there.benchmarks)).toEqual(['Articles', 'Pages', 'pooled', 'mean'])
    for (const [name, metrics] of Object.entries(there.benchmarks)) {
      for (const [metric, { a, b, difference, n }] of Object.entries(metrics)) {
        expect(a, `${name} ${metric}`).toBeCloseTo(metricsA[name]['fine-tuned'][metric].value, 12)
        expect(b, `${name} ${metric}`).toBeCloseTo(metricsB[name]['fine-tuned'][metric].value, 12)
        expect(n).toBe(metricsA[name]['fine-tuned'][metric].n)
        expect(difference).toBe(b - a)
        expect(back.benchmarks[name]![metric]!.difference).toBeCloseTo(-difference, 12)
      }
    }
    expect(there.instances).toEqual({ compared: 50, onlyA: 0, onlyB: 0 })
  })

  it('has intervals of resampling sources, both sides by the same draw', async () => {
    const resamples = 300
    const comparison = await compare({ a: first, b: second, resamples, seed: '5' })
    const read = async (path: string): Promise<StoredInstance[]> => {
      const found: StoredInstance[] = []
      for await (const instance of readScores(path)) if (instance.benchmark === 'Articles') found.push(instance)
      return found
    }
    const [a, b] = [await read(first), await read(second)]
    const sources = [...new Set(a.map(({ source }) => source))]
    const accuracy = (instances: StoredInstance[], drawn: string[], metric: string): number => {
      let [above, below] = [0, 0]
      for (const source of drawn) {
        for (const instance of instances.filter((one) => one.source === source)) {
          const { numerators, denominators } = measureInstance(instance, ['fine-tuned'])
          above += numerators.get('fine-tuned')![metricIndex(metric)]!
          below += denominators[metricIndex(metric)]!
        }
      }
      return above / below
    }
    for (const metric of ['decision_accuracy', 'gold_recall']) {
      const draw = createRandom('5/bootstrap/Articles')
      const samples = Float64Array.from({ length: resamples }, () => {
        const drawn = sources.map(() => sources[draw.int(sources.length)]!)
        return accuracy(b, drawn, metric) - accuracy(a, drawn, metric)
      })
      const [lo, hi] = percentileInterval(samples)!
      const found = comparison.benchmarks.Articles![metric]!
      expect(found.lo).toBeCloseTo(lo, 12)
      expect(found.hi).toBeCloseTo(hi, 12)
    }
  })

  it('may take other rows, such as a control of the same evaluation', async () => {
    const comparison = await compare({ a: second, b: second, rowA: 'always-left', rowB: 'fine-tuned', resamples: 200 })
    const { differences } = JSON.parse(readFileSync(join(second, 'metrics.json'), 'utf8'))
    const found = comparison.benchmarks.Articles!.decision_accuracy!
    const expected = differences.Articles['fine-tuned - always-left'].decision_accuracy
    expect(found.difference).toBeCloseTo(expected.value, 12)
    expect([found.lo, found.hi]).toEqual([expected.lo, expected.hi])
    expect(comparison.benchmarks.Articles).not.toHaveProperty('pair_accuracy')
    const flat = await compare({ a: second, b: second, rowA: 'flat-leaf', resamples: 50 })
    expect(Object.keys(flat.benchmarks.Articles!)).toContain('gold_f1')
    expect(Object.keys(flat.benchmarks.Articles!)).not.toContain('decision_accuracy')
    const only = join(folder, 'only-frozen')
    await evaluate(optionsFor([ten], only, { query: frozen, fineTuned: undefined }))
    expect((await compare({ a: only, b: only, resamples: 10 })).a.row).toBe('frozen')
    await expect(compare({ a: only, b: only, rowB: 'fine-tuned' })).rejects.toThrow(/no encoder "fine-tuned"/)
  })

  it('of other data is refused, unless the common items are asked for', async () => {
    const one = join(folder, 'one')
    await evaluate(optionsFor([ten], one))
    await expect(compare({ a: first, b: one })).rejects.toThrow(/not the same questions and items.*--common/)
    const common = await compare({ a: first, b: one, common: true, resamples: 100 })
    expect(common.instances).toEqual({ compared: 36, onlyA: 14, onlyB: 0 })
    expect(Object.keys(common.benchmarks)).toEqual(['Articles', 'pooled', 'mean'])
    expect(common.benchmarks.Articles).toEqual(
      (await compare({ a: first, b: second, resamples: 100 })).benchmarks.Articles,
    )
    expect(common.notes.join()).toContain('14 are in A alone')
    const goldOnly = join(folder, 'gold-only')
    await evaluate(optionsFor([ten], goldOnly, { retrieved: false }))
    await expect(compare({ a: one, b: goldOnly })).rejects.toThrow(/12 items are in .*one alone.*--common/)
    const pages = join(folder, 'pages')
    await evaluate(optionsFor([other], pages))
    await expect(compare({ a: one, b: pages, common: true })).rejects.toThrow('no item of a question in common')
  })

  it('of trees of another shape compares what is kept, and says that decisions are others', async () => {
    const wide = join(folder, 'wide')
    await evaluate(optionsFor([ten, other], wide, { branching: 3 }))
    const comparison = await compare({ a: second, b: wide, resamples: 50 })
    const { notes, benchmarks } = comparison
    expect(verdictOn(comparison, 'pooled')).toMatch(/gold recall/)
    expect(verdictOn(comparison, 'pooled')).not.toMatch(/decision|edge/)
    expect(notes.join()).toContain('branching 2 in A, 3 in B')
    const { value } = JSON.parse(readFileSync(join(wide, 'metrics.json'), 'utf8')).pooled['fine-tuned'].gold_recall
    expect(benchmarks.pooled!.gold_recall!.b).toBeCloseTo(value, 12)
  })

  it('refuses evaluations of which gold or lines do not fit', async () => {
    const broken = join(folder, 'broken')
    cpSync(second, broken, { recursive: true })
    const file = join(broken, 'scores.jsonl')
    const lines = readFileSync(file, 'utf8').trimEnd().split('\n')
    const change = (more: object): string => JSON.stringify({ ...JSON.parse(lines[0]!), ...more })
    writeFileSync(file, [change({ gold: [1] }), ...lines.slice(1), ''].join('\n'))
    await expect(compare({ a: second, b: broken })).rejects.toThrow(/other gold/)
    writeFileSync(file, [...lines, lines[0], ''].join('\n'))
    await expect(compare({ a: second, b: broken })).rejects.toThrow(/broken: Item .* twice/)
    await expect(compare({ a: broken, b: second })).rejects.toThrow(/broken: Item .* twice/)
    rmSync(join(broken, 'metrics.json'))
    await expect(compare({ a: second, b: broken })).rejects.toThrow(/metrics\.json: There is no such file/)
    writeFileSync(join(broken, 'metrics.json'), '{"evaluation":{}}')
    await expect(compare({ a: second, b: broken })).rejects.toThrow(/evaluate again/)
  })
})

const made = (benchmarks: Comparison['benchmarks'], apart: string[] = []): Comparison => ({
  schema: 'canopy-comparison/1',
  a: { folder: 'a', row: 'fine-tuned', name: 'x', branching: 2 },
  b: { folder: 'b', row: 'fine-tuned', name: 'y', branching: 2 },
  ...{
    split: 'dev',
    instances: { compared: 9, onlyA: 0, onlyB: 0 },
    seed: '1',
    resamples: 10,
    clusters: {},
    notes: [],
  },
  ...{ benchmarks, apart },
})
const gap = (difference: number, lo: number | null, hi: number | null) => ({
  ...{ a: 0.5, b: 0.5 + difference, difference, lo, hi, n: 9 },
})

describe('the verdict', () => {
  it('says in words what the intervals show and what they do not', () => {
    const comparison = made({
      One: {
        decision_accuracy: gap(0.021, 0.004, 0.038),
        edge_accuracy: gap(0.01, -0.01, 0.03),
        gold_recall: gap(-0.05, -0.08, -0.02),
        retained_tokens: gap(-0.1, -0.12, -0.07),
      },
      Two: { decision_accuracy: gap(0.1, null, null) },
      Three: { gold_f1: gap(-0.1, -0.2, -0.05), retained_tokens: gap(0.1, 0.05, 0.2) },
    })
    expect(verdictOn(comparison, 'One')).toBe(
      'B is better on decision accuracy by 2.1 points [0.4, 3.8] and tokens kept by 10.0 points fewer [7.0, 12.0]; worse on gold recall by 5.0 points [2.0, 8.0]; no difference can be told on edge accuracy.',
    )
    expect(verdictOn(comparison, 'Two')).toBe('No difference can be told on decision accuracy.')
    expect(verdictOn(comparison, 'Three')).toBe(
      'B is worse on gold F1 by 10.0 points [5.0, 20.0] and tokens kept by 10.0 points more [5.0, 20.0].',
    )
    for (const text of [comparisonText(comparison, []), comparisonMarkdown(comparison, [])]) {
      expect(text).toContain('One: B is better on decision accuracy')
      expect(text).not.toMatch(/undefined|NaN/)
    }
    expect(JSON.parse(comparisonJson(comparison, [])).verdicts.Two).toContain('No difference')
    const csv = comparisonCsv(comparison).split('\n')
    expect(csv[0]).toBe('benchmark,metric,n,a,b,difference,difference_lo,difference_hi')
    expect(csv[1]).toBe('One,decision_accuracy,9,0.5,0.521,0.021,0.004,0.038')
    expect(csv[5]).toBe('Two,decision_accuracy,9,0.5,0.6,0.1,,')
  })
})

describe('a requirement', () => {
  const comparison = made(
    {
      'Natural Questions': { decision_accuracy: gap(0.1, 0.08, 0.12), retained_tokens: gap(-0.1, -0.2, -0.05) },
      'ottqa:several-rows': { decision_accuracy: gap(-0.5, -0.6, -0.4) },
      'one@two': { decision_accuracy: gap(0.09, 0.07, 0.11) },
      pooled: { decision_accuracy: gap(0.29, 0.29, 0.3), tokens_all: gap(-12, -20, -4) },
      lonely: { decision_accuracy: gap(0.5, null, null) },
    },
    ['ottqa:several-rows'],
  )
  const met = (text: string): boolean[] => checkRequirements([parseRequirement(text)], comparison).map((one) => one.met)

  it.each([
    ['decision_accuracy@Natural Questions >= 8', [true]],
    ['decision_accuracy@Natural Questions > 8', [false]],
    ['decision_accuracy.value@Natural Questions>=10', [true]],
    ['retained_tokens@Natural Questions <= -5', [true]],
    ['retained_tokens@Natural Questions < -5', [false]],
    ['retained_tokens.value@Natural Questions < -5', [true]],
    ['decision_accuracy >= 29', [true]],
    ['decision_accuracy >= 29.1', [false]],
    ['tokens_all <= -4', [true]],
    ['decision_accuracy@one@two >= 7', [true]],
    ['decision_accuracy@ottqa:several-rows >= 0', [false]],
    ['decision_accuracy@lonely >= 0', [false]],
    ['decision_accuracy.value@lonely >= 50', [true]],
    // Each benchmark, variants apart.
    ['decision_accuracy@* >= 7.5', [true, false, false]],
  ])('such as %s is held against the bound, or the value where it says so', (text, expected) => {
    expect(met(text)).toEqual(expected)
  })

  it('on the lower bound is never met where the same on the value is not', () => {
    const number = fc.double({ min: -1, max: 1, noNaN: true })
    fc.assert(
      fc.property(fc.tuple(number, number, number), fc.integer({ min: -50, max: 50 }), (numbers, threshold) => {
        const [lo, value, hi] = numbers.sort((a, b) => a - b) as [number, number, number]
        const one = made({ pooled: { gold_f1: gap(value, lo, hi) } })
        for (const operator of ['>=', '>', '<=', '<']) {
          const [bound, point] = ['gold_f1', 'gold_f1.value'].map(
            (name) => checkRequirements([parseRequirement(`${name} ${operator} ${threshold}`)], one)[0]!.met,
          )
          if (bound) expect(point).toBe(true)
        }
      }),
    )
  })

  it.each(['', 'decision_accuracy', 'decision_accuracy = 8', 'nonsense >= 8', 'decision_accuracy >= lots', '>= 8'])(
    'that reads %j is bad usage',
    (text) => {
      expect(() => parseRequirement(text)).toThrow(UsageError)
    },
  )

  it('about what was not compared is an error', () => {
    expect(() => met('decision_accuracy@Nowhere >= 1')).toThrow(/"Nowhere", which was not compared; there are/)
    expect(() => met('gold_f1 >= 1')).toThrow(/nothing of gold_f1/)
    const variants = {
      ...made({ 'ottqa:several-rows': { gold_f1: gap(0.1, 0.05, 0.2) } }),
      apart: ['ottqa:several-rows'],
    }
    expect(() => checkRequirements([parseRequirement('gold_f1@* >= 1')], variants)).toThrow(/all .* are variants/)
  })
})

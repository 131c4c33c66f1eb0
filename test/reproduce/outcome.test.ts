import { describe, expect, it } from 'vitest'
import { type Estimate, type Evaluation, PAPER } from '../../src/eval/index.ts'
import { type Outcome, outcomesOf, overSeeds, shownNames } from '../../src/reproduce/outcome.ts'
import { differencesToPaper, paperSection } from '../../src/reproduce/paper.ts'

const estimate = (value: number | null): Estimate => ({ value, lo: 0, hi: 1, n: 10 })

function outcome(
  seed: number,
  value: number | null,
  options: {
    encoder?: string
    questions?: Record<string, number>
    group?: Outcome['group']
    branching?: number
    notText?: number
  } = {},
): Outcome {
  const { encoder = 'org/Qwen3-VL-Embedding-2B', group = 'benchmarks', branching = 2, notText = 0 } = options
  const { questions = { nq: 7830, hotpotqa: 7405, ottqa: 1400, 'ottqa:several-rows': 814, mmqa: 2441, lvbench: 829 } } =
    options
  const metrics = { decision_accuracy: estimate(value), pruned_item_rate: estimate(value) }
  const kept = (tokens: number) => ({ kept_tokens: estimate(tokens), gold_recall: estimate(value) })
  const named = { name: encoder, fingerprint: 'f' }
  return {
    ...{ group, seed, folder: 'eval', differences: {}, selectionDifferences: {} },
    encoders: { nq: { frozen: metrics, 'fine-tuned': metrics }, pooled: { frozen: metrics, 'fine-tuned': metrics } },
    selection: { nq: { 'gold-item': kept(200), 'canopy-fine-tuned': kept(150) } },
    evaluation: {
      encoders: { frozen: named, 'fine-tuned': named },
      split: 'dev',
      selectedBy: 'fine-tuned',
      apart: [],
      branching,
      counts: Object.fromEntries(
        Object.entries(questions).map(([name, n]) => [name, { questions: n, goldItems: n, goldItemsNotText: notText }]),
      ),
    } as unknown as Evaluation,
  }
}

describe('figures over training seeds', () => {
  const pick = ({ encoders }: Outcome): Estimate | undefined => encoders.nq?.frozen?.decision_accuracy

  it('are a mean and a range, and keep the interval of each seed', () => {
    const over = overSeeds([outcome(1, 0.4), outcome(2, 0.7), outcome(5, 0.4)], pick)!
    expect(over.mean).toBeCloseTo(0.5)
    expect(over).toMatchObject({ min: 0.4, max: 0.7 })
    expect(over.seeds.map(({ seed, estimate: { value, lo } }) => [seed, value, lo])).toEqual([
      [1, 0.4, 0],
      [2, 0.7, 0],
      [5, 0.4, 0],
    ])
  })

  it('are none of one seed, nor where a seed has nothing to measure', () => {
    expect(overSeeds([outcome(1, 0.4)], pick)).toMatchObject({ mean: null, min: null, max: null })
    expect(overSeeds([outcome(1, 0.4), outcome(2, null)], pick)).toMatchObject({ mean: null })
    expect(overSeeds([outcome(1, 0.4)], () => undefined)).toBeUndefined()
  })

  it('are shown once for rows that training has no say in', () => {
    const outcomes = [outcome(1, 0.4), outcome(2, 0.5)]
    for (const row of ['frozen', 'always-left', 'gold-span', 'canopy-frozen'])
      expect(outcomesOf(row, outcomes).map(({ seed }) => seed)).toEqual([undefined])
    for (const row of ['fine-tuned', 'permuted', 'flat-leaf', 'canopy-fine-tuned', 'fine-tuned - frozen'])
      expect(outcomesOf(row, outcomes)).toHaveLength(2)
  })
})

it('pooled and mean are shown beside several benchmarks only', () => {
  const none = {}
  expect(shownNames({ nq: none, pooled: none, mean: none })).toEqual(['nq'])
  expect(shownNames({ nq: none, mmqa: none, pooled: none, mean: none })).toEqual(['nq', 'mmqa', 'pooled', 'mean'])
})

describe("beside the paper's figures", () => {
  it('ours are no reproduction with another encoder, a part of the data, or other data', () => {
    expect(differencesToPaper([outcome(1, 0.5)])).toEqual([])
    const reasons = differencesToPaper([
      outcome(1, 0.5, { encoder: 'all-MiniLM-L6-v2', questions: { hotpotqa: 198, mine: 3 } }),
      outcome(1, 0.5, { encoder: 'all-MiniLM-L6-v2', questions: { mmqa: 36 }, group: 'transfer' }),
    ])
    expect(reasons.join('; ')).toBe(
      "the encoder is all-MiniLM-L6-v2, the paper's is Qwen3-VL-Embedding-2B; nq was not evaluated; hotpotqa: 198 of 7405 questions; ottqa was not evaluated; mmqa: 36 of 2441 questions; lvbench was not evaluated; mine is no benchmark of the paper; some benchmarks were not trained on",
    )
    expect(differencesToPaper([outcome(1, 0.5, { branching: 3 })])).toEqual([
      "the trees are of branching 3, the paper's of 2",
    ])
    expect(differencesToPaper([outcome(1, 0.5, { group: 'training' })])).toEqual(['the training split was measured'])
    expect(differencesToPaper([outcome(1, 0.5, { notText: 7 })])).toContain('mmqa: 7 images and videos were left out')
    expect(differencesToPaper([])).toEqual(['nothing was evaluated'])
  })

  it('ours stand under their own name, with encoder and data', () => {
    const text = paperSection([
      outcome(1, 0.5, { encoder: 'tiny', questions: { nq: 40 } }),
      outcome(2, 0.6, { encoder: 'tiny' }),
    ])
    expect(text).toMatch(/Ours: encoder tiny; .*nq \(\d+ questions/)
    expect(text).toContain("**Not a reproduction of the paper's figures**")
    expect(text).toContain(
      '| decision accuracy | fine-tuned | 55.0 (seeds 50.0 to 60.0) | 58.5 | 55.0 to 55.0 | 34.3 to 71.9 |',
    )
    expect(text).toContain('| decision accuracy | frozen | 50.0 | 36.9 |')
    expect(text).toMatch(/\| nq \| 25\.0 \| about 5\.0 \|/)
    expect(text).toContain('| lvbench | accuracy 35.0 | accuracy 43.4 |')
    expect(paperSection([outcome(1, 0.5)])).not.toContain('Not a reproduction')
  })

  it('are within what the paper says of itself', () => {
    for (const metric of [PAPER.decision_accuracy, PAPER.pruned_item_rate])
      for (const { benchmarks } of Object.values(metric)) expect(benchmarks[0]).toBeLessThan(benchmarks[1])
    for (const { pooled, benchmarks } of Object.values(PAPER.decision_accuracy)) {
      expect(pooled).toBeGreaterThan(benchmarks[0])
      expect(pooled).toBeLessThan(benchmarks[1])
    }
  })
})

import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  addTrainingQuestion,
  type EvaluateOptions,
  emptyTrainingData,
  evaluate,
  evaluateScores,
  type NodeEmbedder,
  readScores,
  type ScoredInstance,
} from '../../src/eval/index.ts'
import { chooseMargin } from '../../src/eval/margin-choice.ts'
import { atLeast, marginGrid } from '../../src/eval/margin-curve.ts'
import { marginSentences } from '../../src/eval/margin-text.ts'
import { refine } from '../../src/refine/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { createRandom } from '../../src/support/random.ts'
import { writeArticles } from './articles.ts'
import { fineTuned as exact, optionsFor as exactOptions } from './bag.ts'
import { instanceOf } from './trees.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-margins-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** The bag of words with noise on every node, by its text, so that refinement loses some of the gold. */
const fineTuned: NodeEmbedder = {
  ...exact,
  fingerprint: 'noisy',
  async embed(inputs, side) {
    const found = await exact.embed(inputs, side)
    if (side === 'query') return found
    const dimension = found.embeddings.length / inputs.length
    for (const [i, { text }] of inputs.entries()) {
      const random = createRandom(text)
      for (let d = 0; d < dimension; d++) found.embeddings[i * dimension + d]! += 4 * random.normal()
    }
    return found
  },
}
const optionsFor = (datasets: string[], output: string, more: Partial<EvaluateOptions> = {}): EvaluateOptions =>
  exactOptions(datasets, output, { fineTuned, ...more })

const json = (path: string) => JSON.parse(readFileSync(join(path, 'metrics.json'), 'utf8'))
const table = (path: string, file: string): Record<string, string>[] => {
  const [header, ...rows] = readFileSync(join(path, file), 'utf8')
    .trim()
    .split('\n')
    .map((line) => line.split(','))
  return rows.map((row) => Object.fromEntries(header!.map((name, i) => [name, row[i]!])))
}
/** A dataset like {@link writeArticles}' whose sources are others. */
async function writeOthers(name: string, count: number, benchmark = 'Articles'): Promise<string> {
  const path = await writeArticles(join(folder, name), benchmark, count)
  const file = join(path, 'questions.jsonl')
  writeFileSync(
    file,
    readFileSync(file, 'utf8')
      .replaceAll('"source":"page ', `"source":"${name} page `)
      .replaceAll('"id":"q', `"id":"${name} q`),
  )
  return path
}
/** Share of the leaves and of the gold leaves that refinement keeps of an item. */
function keptAt(
  { root, nodes, gold, scores }: ScoredInstance,
  encoder: 'frozen' | 'fine-tuned' | 'permuted',
  margin: number,
) {
  const at = new Map(nodes.map((node, i) => [node, scores[encoder]![i]!]))
  const leaves = refine(root, (node) => at.get(node)!, { margin }).flatMap(({ from, to }) =>
    Array.from({ length: to - from }, (_, i) => from + i),
  )
  return { leaves, recall: leaves.filter((leaf) => gold[leaf]).length / gold.filter(Boolean).length }
}

describe('the curve over margins', () => {
  let data: string
  const results = join(folder, 'results')
  beforeAll(async () => {
    data = await writeArticles(join(folder, 'data'), 'Articles', 20)
    const more = await writeOthers('more', 8, 'More')
    await evaluate(optionsFor([data, more], results))
  })

  it('begins at the rule, with the values and intervals of the other tables to the last digit', () => {
    const start = table(results, 'margins.csv').filter(({ margin }) => margin === '0')
    const pruning = table(results, 'pruning.csv')
    expect(start.map(({ benchmark, encoder }) => [benchmark, encoder])).toEqual(
      ['Articles', 'More', 'pooled', 'mean'].flatMap((b) => ['frozen', 'fine-tuned', 'permuted'].map((e) => [b, e])),
    )
    for (const row of start) {
      const same = pruning.find(({ benchmark, encoder }) => benchmark === row.benchmark && encoder === row.encoder)!
      for (const metric of ['retained_tokens', 'gold_recall', 'gold_precision', 'gold_f1', 'tokens_all_ratio'])
        for (const end of ['', '_lo', '_hi']) expect(row[metric + end], metric).toBe(same[metric + end])
      expect(row.n).toBe(same.n)
      expect(row.chosen).toBe('0')
    }
  })

  it('ends where nothing is dropped, and rises on the way', () => {
    const rows = table(results, 'margins.csv')
    for (const benchmark of ['Articles', 'More', 'pooled', 'mean'])
      for (const encoder of ['frozen', 'fine-tuned', 'permuted']) {
        const own = rows.filter((row) => row.benchmark === benchmark && row.encoder === encoder)
        const margins = own.map(({ margin }) => Number(margin))
        expect(margins).toEqual([...new Set(margins)].sort((a, b) => a - b))
        for (const metric of ['retained_tokens', 'gold_recall', 'tokens_all_ratio'])
          for (let i = 1; i < own.length; i++)
            expect(Number(own[i]![metric])).toBeGreaterThanOrEqual(Number(own[i - 1]![metric]) - 1e-12)
        expect(Number(own.at(-1)!.gold_recall)).toBeCloseTo(1, 12)
        expect(Number(own.at(-1)!.retained_tokens)).toBeCloseTo(1, 12)
      }
    expect(rows.filter((row) => row.encoder === 'fine-tuned' && row.benchmark === 'pooled').length).toBeGreaterThan(5)
  })

  it('has at every margin what refinement with that margin keeps', async () => {
    const instances: ScoredInstance[] = []
    for await (const instance of readScores(results)) instances.push(instance)
    for (const row of table(results, 'margins.csv')) {
      if (row.benchmark !== 'pooled') continue
      const items = instances.filter(({ role, root }) => role === 'gold' && root.children.length > 0)
      const encoder = row.encoder as 'frozen'
      const recalls = items.map((item) => keptAt(item, encoder, Number(row.margin)).recall)
      expect(Number(row.gold_recall)).toBeCloseTo(recalls.reduce((a, b) => a + b) / recalls.length, 12)
      const tokens = items.map((item) => {
        const count = (leaves: number[]): number =>
          leaves.reduce((sum, leaf) => sum + item.leafTokens[leaf]!, item.headerTokens)
        return count(keptAt(item, encoder, Number(row.margin)).leaves) / count([...item.gold.keys()])
      })
      expect(Number(row.retained_tokens)).toBeCloseTo(tokens.reduce((a, b) => a + b) / tokens.length, 12)
    }
  })

  it('stands in the summary, and every other figure is of margin 0', async () => {
    expect(readFileSync(join(results, 'summary.md'), 'utf8')).toContain('## Margins')
    const output = join(folder, 'stated')
    await evaluate(optionsFor([data], output, { margin: { value: 0.05, origin: 'stated' } }))
    const plain = join(folder, 'plain')
    await evaluate(optionsFor([data], plain))
    const { evaluation, ...figures } = json(output)
    const { evaluation: without, ...same } = json(plain)
    expect(figures).toEqual(same)
    expect(without).not.toHaveProperty('margin')
    for (const file of ['decisions.csv', 'decisions.jsonl', 'pruning.csv', 'selection.csv', 'scores.jsonl'])
      expect(readFileSync(join(output, file), 'utf8')).toBe(readFileSync(join(plain, file), 'utf8'))
    const chosen = table(output, 'margins.csv').filter(({ chosen }) => chosen === '1')
    expect(chosen.map(({ benchmark, encoder, margin }) => [benchmark, encoder, margin])).toEqual(
      ['Articles', 'pooled', 'mean'].map((benchmark) => [benchmark, 'fine-tuned', '0.05']),
    )
    const { margin } = evaluation
    expect(margin).toMatchObject({ margin: 0.05, encoder: 'fine-tuned', origin: 'stated' })
    expect(String(margin.results.Articles.gold_recall.value)).toBe(chosen[0]!.gold_recall)
    const { gold_recall } = margin.differences.Articles
    expect(gold_recall.value).toBeCloseTo(
      margin.results.Articles.gold_recall.value - figures.Articles['fine-tuned'].gold_recall.value,
      12,
    )
    expect(gold_recall.lo).toBeGreaterThanOrEqual(0)
    expect(readFileSync(join(output, 'summary.md'), 'utf8')).toMatch(/Margin 0\.05 .*as stated/)
  })
})

it('a grid has 0, a margin that keeps everything, the one asked for, and few others that are spread', () => {
  fc.assert(
    fc.property(
      fc.array(fc.double({ min: 1e-9, max: 1e3, noNaN: true }), { minLength: 1, maxLength: 300 }),
      (margins) => {
        const grid = marginGrid(new Map([['frozen', margins]]), { encoder: 'frozen', margin: 0.125 }).frozen!
        expect(grid[0]).toBe(0)
        expect(grid).toContain(0.125)
        expect(Math.max(...grid)).toBeGreaterThanOrEqual(Math.max(...margins))
        expect(grid.length).toBeLessThanOrEqual(32)
        expect([...grid]).toEqual([...new Set(grid)].sort((a, b) => a - b))
      },
    ),
  )
})

it('a grid is finite, however far apart scores are', () => {
  const grid = marginGrid(new Map([['frozen', [0.1, Number.MAX_VALUE, Number.POSITIVE_INFINITY]]])).frozen!
  expect(grid).toEqual([0, 0.1])
  expect(marginGrid(new Map([['frozen', [Number.MAX_VALUE]]])).frozen).toEqual([0, Number.MAX_VALUE])
})

it('a recall that is the one asked for but for rounding does not fall short of it', () => {
  const at = (value: number) => ({ pooled: { gold_recall: { value, lo: null, hi: null, n: 3 } } })
  const sentences = (value: number) =>
    marginSentences(
      {
        ...{ margin: 0.1, encoder: 'frozen', origin: 'validation', minRecall: 0.9, differences: {} },
        results: at(value),
      },
      'dev',
    )
  expect(sentences(0.1 * 3 + 0.6 - 2e-16)).toHaveLength(1)
  expect(sentences(0.8999)[1]).toContain('falls short of the 90.0 % asked for')
})

it('a number with fewer digits is at least the number, and off by a step at most', () => {
  fc.assert(
    fc.property(fc.double({ min: 1e-12, max: 1e12, noNaN: true }), fc.integer({ min: 1, max: 14 }), (value, digits) => {
      const found = atLeast(value, digits)
      expect(found).toBeGreaterThanOrEqual(value)
      expect(found).toBeLessThanOrEqual(value * (1 + 1.0001 * 10 ** (1 - digits)))
      expect(Number(found.toPrecision(digits))).toBe(found)
    }),
  )
  expect([atLeast(0.0341, 1), atLeast(0.0341, 2), atLeast(0.0999, 2), atLeast(7, 3)]).toEqual([0.04, 0.035, 0.1, 7])
})

describe('a margin picked on validation items', () => {
  const scored = fc
    .array(
      fc.integer({ min: 1, max: 12 }).chain((leaves) =>
        fc.record({
          gold: fc.array(fc.boolean(), { minLength: leaves, maxLength: leaves }),
          scores: fc.array(fc.float({ min: -1, max: 1, noNaN: true }), {
            minLength: 2 * leaves,
            maxLength: 2 * leaves,
          }),
        }),
      ),
      { minLength: 1, maxLength: 12 },
    )
    .map((items) =>
      items.map(({ gold, scores }, i) => instanceOf(gold, { fineTuned: scores, item: `i${i}`, source: `s${i}` })),
    )
    .filter((items) => items.some(({ gold }) => gold.length > 1 && gold.includes(true)))
  async function* each<T>(items: readonly T[]): AsyncIterable<T> {
    yield* items
  }
  const recallAt = (items: readonly ScoredInstance[], margin: number): number => {
    const counted = items.filter(({ gold }) => gold.length > 1 && gold.includes(true))
    return counted.reduce((sum, item) => sum + keptAt(item, 'fine-tuned', margin).recall, 0) / counted.length
  }

  it('reaches the recall, and no smaller one does', async () => {
    await fc.assert(
      fc.asyncProperty(scored, fc.double({ min: 0.01, max: 1, noNaN: true }), async (items, recall) => {
        const choice = await chooseMargin(each(items), 'fine-tuned', recall, 'made-up items')
        expect(recallAt(items, choice.margin)).toBeGreaterThanOrEqual(recall - 1e-9)
        expect(choice.chosen.gold_recall).toBeCloseTo(recallAt(items, choice.margin), 12)
        expect(choice.rule.gold_recall).toBeCloseTo(recallAt(items, 0), 12)
        // every margin at which anything changes
        const gaps = items.flatMap(({ nodes, scores }) =>
          nodes.flatMap((node, i) =>
            node.children.map((child) => scores['fine-tuned']![i]! - scores['fine-tuned']![nodes.indexOf(child)]!),
          ),
        )
        for (const gap of new Set([0, ...gaps]))
          if (gap >= 0 && gap < choice.margin && recallAt(items, gap) >= recall - 1e-12)
            // what keeps the same leaves, in more digits
            for (const item of items)
              expect(keptAt(item, 'fine-tuned', gap).leaves).toEqual(keptAt(item, 'fine-tuned', choice.margin).leaves)
      }),
      { numRuns: 150 },
    )
  })

  it('of a recall of 1 keeps all gold, also where thirds add up', async () => {
    const scores = (third: number) => ({ '0-3': 0.5, '0-2': 0.5, '0-1': 0.5, '1-2': 0.4, '2-3': third })
    const items = [
      instanceOf([true, true, true], { fineTuned: scores(0.2) }),
      instanceOf([true, false, false], { fineTuned: scores(0.1) }),
    ]
    const { margin, items: count, rule } = await chooseMargin(each(items), 'fine-tuned', 1, 'made-up items')
    expect(margin).toBe(0.3)
    expect(count).toBe(2)
    expect(rule.gold_recall).toBeCloseTo(2 / 3, 12)
  })

  it('is 0 where the rule reaches the recall', async () => {
    const items = [instanceOf([true, false], { fineTuned: { '0-2': 0.5, '0-1': 0.6, '1-2': 0.1 } })]
    expect((await chooseMargin(each(items), 'fine-tuned', 1, 'made-up items')).margin).toBe(0)
  })

  it('needs an item with something to decide, and its scores', async () => {
    const none = [instanceOf([true]), instanceOf([false, false]), instanceOf([true, true], { role: 'other' })]
    await expect(chooseMargin(each(none), 'frozen', 0.9, 'made-up items')).rejects.toThrow(
      /picked on made-up items: it has no gold item with two or more leaves.*--validation-split/,
    )
    await expect(chooseMargin(each([instanceOf([true, true])]), 'fine-tuned', 0.9, 'it')).rejects.toThrow(
      'Item "i" of question "q" in it has no fine-tuned scores',
    )
  })
})

describe('an evaluation with a recall to reach', () => {
  let data: string
  let validation: string
  const output = join(folder, 'out')
  const minRecall = (more: Partial<EvaluateOptions> = {}): EvaluateOptions =>
    optionsFor([data], output, {
      minRecall: 0.9,
      validation: { name: 'other articles', parts: [{ folder: validation, split: 'dev' }] },
      ...more,
    })
  beforeAll(async () => {
    data = await writeArticles(join(folder, 'evaluated'), 'Articles', 20)
    validation = await writeOthers('validation', 15)
  })

  it('picks the margin on validation, says where it comes from and what it does on the split', async () => {
    const { evaluation } = await evaluate(minRecall())
    const { margin } = json(output).evaluation
    expect(margin).toEqual(evaluation.margin)
    expect(margin).toMatchObject({ origin: 'validation', minRecall: 0.9, encoder: 'fine-tuned' })
    expect(margin.validation).toMatchObject({ name: 'other articles', items: 15, rows: { Articles: 15 } })
    expect(margin.validation.chosen.gold_recall).toBeGreaterThanOrEqual(0.9)
    expect(margin.validation.rule.gold_recall).toBeLessThan(0.9)
    expect(margin.margin).toBeGreaterThan(0)
    // the same by hand, from the scores of the validation items
    const scores = join(folder, 'validation-scores')
    await evaluate(optionsFor([validation], scores))
    const items: ScoredInstance[] = []
    for await (const item of readScores(scores)) if (item.role === 'gold') items.push(item)
    const recall = (at: number): number =>
      items.reduce((sum, item) => sum + keptAt(item, 'fine-tuned', at).recall, 0) / items.length
    expect(recall(margin.margin)).toBeCloseTo(margin.validation.chosen.gold_recall, 12)
    const summary = readFileSync(join(output, 'summary.md'), 'utf8')
    expect(summary).toContain(
      `Margin ${margin.margin}: the smallest with a gold recall of at least 90.0 % by the fine-tuned scores on 15 gold items`,
    )
    expect(summary).toContain('| Articles | difference | ')
    expect(summary).toContain(
      `\`canopy export … --margin ${margin.margin}\`, \`openEncoder(folder, { margin: ${margin.margin} })\``,
    )
    expect(summary).not.toMatch(/undefined|NaN|\[object/)
  })

  it('gives the same bytes again, in batches of any size', async () => {
    await evaluate(minRecall())
    const before = readFileSync(join(output, 'metrics.json'), 'utf8')
    await evaluate(minRecall({ batchNodes: 1 }))
    expect(readFileSync(join(output, 'metrics.json'), 'utf8')).toBe(before)
  })

  it('picks on the instances named alone', async () => {
    const only = new Map([
      ['validation q3', new Set(['validation item 3'])],
      ['validation q7', new Set(['validation item 7'])],
    ])
    const parts = [{ folder: validation, split: 'dev', only }]
    await evaluate(minRecall({ validation: { name: 'two', parts } }))
    expect(json(output).evaluation.margin.validation).toMatchObject({ items: 2, sources: 2 })
    only.set('validation q8', new Set(['gone']))
    await expect(evaluate(minRecall({ validation: { name: 'three', parts } }))).rejects.toThrow(
      /validation: The dataset has 2 of the 3 instances that three names/,
    )
  })

  it('says so where the split falls short of what validation reaches', async () => {
    // validation items of which the rule loses nothing ask for no margin; the split's are not like them
    const scores = join(folder, 'validation-scores')
    await evaluate(optionsFor([validation], scores))
    const only = new Map<string, Set<string>>()
    for await (const item of readScores(scores))
      if (item.role === 'gold' && keptAt(item, 'fine-tuned', 0).recall === 1)
        only.set(item.question, new Set([item.item]))
    expect(only.size).toBeGreaterThan(2)
    const parts = [{ folder: validation, split: 'dev', only }]
    await evaluate(minRecall({ minRecall: 0.95, validation: { name: 'easy ones', parts } }))
    const { margin } = json(output).evaluation
    expect(margin.margin).toBe(0)
    expect(margin.results.pooled.gold_recall.value).toBeLessThan(0.95)
    const summary = readFileSync(join(output, 'summary.md'), 'utf8')
    expect(summary).toContain('margin 0, the rule, reaches it already')
    expect(summary).toMatch(
      /On dev the recall, [\d.]+ \[[\d., ]+\] %, falls short of the 95\.0 % asked for; the interval (?:reaches|does not reach) it\./,
    )
  })

  it.each<[string, () => Partial<EvaluateOptions>, RegExp]>([
    ['above 1', () => ({ minRecall: 1.2 }), /No margin reaches a recall of 1\.2: where nothing is dropped it is 1/],
    ['in per cent', () => ({ minRecall: 90 }), /Did you mean 0\.9\?/],
    ['a little above 1', () => ({ minRecall: 1.1 }), /where nothing is dropped it is 1\.$/],
    ['without validation data', () => ({ validation: undefined }), /no validation data.*--validation-split/],
    [
      'on the split that is evaluated',
      () => ({ validation: { name: 'it', parts: [{ folder: data, split: 'dev' }] } }),
      /The split "dev" of .*evaluated is the one that is evaluated/,
    ],
    [
      'on questions of its sources',
      () => ({ validation: { name: 'its sources', parts: [{ folder: join(folder, 'same'), split: 'dev' }] } }),
      /9 of 9 sources of its sources are in the evaluated split "dev", too \("page 0", "page 1", "page 2", …\)/,
    ],
    [
      'on a dataset that is gone',
      () => ({ validation: { name: 'a run', parts: [{ folder: join(folder, 'gone'), split: 'dev' }] } }),
      /gone.*asked for as a run.*--validation-dataset/,
    ],
    [
      'on a split that is named twice',
      () => ({ validation: { name: 'it', parts: [1, 2].map(() => ({ folder: validation, split: 'dev' })) } }),
      /The split "dev" of .*validation is named twice/,
    ],
    [
      'on a split that is not there',
      () => ({ validation: { name: 'it', parts: [{ folder: validation, split: 'test' }] } }),
      /no split "test"/,
    ],
  ])('is refused %s', async (_, more, message) => {
    if (!existsSync(join(folder, 'same'))) await writeArticles(join(folder, 'same'), 'Articles', 10)
    const at = join(folder, 'refused')
    await expect(evaluate(minRecall({ output: at, ...more() }))).rejects.toThrow(message)
    await expect(evaluate(minRecall({ output: at, ...more() }))).rejects.toThrow(InputError)
    expect(existsSync(at)).toBe(false)
  })

  it('is refused on what was trained on, but not on what the run was selected on, nor where overlap is allowed', async () => {
    const trainingData = emptyTrainingData()
    for (const i of [1, 2])
      addTrainingQuestion(trainingData, {
        ...{ id: `t${i}`, question: 'Which?', answers: [], benchmark: 'Articles', split: 'train', gold: [] },
        source: `validation page ${i}`,
      })
    const { parts } = minRecall().validation!
    const at = join(folder, 'trained')
    await expect(evaluate(minRecall({ output: at, trainingData }))).rejects.toThrow(
      /2 of 14 sources of other articles were trained on \("validation page 1", "validation page 2"\).*too small/,
    )
    expect(existsSync(at)).toBe(false)
    // without sources, questions tell
    const bare = await writeOthers('bare', 6)
    const file = join(bare, 'questions.jsonl')
    const records = readFileSync(file, 'utf8')
      .trim()
      .split('\n')
      .map((line) => ({ ...JSON.parse(line), source: undefined }))
    writeFileSync(file, records.map((record) => `${JSON.stringify(record)}\n`).join(''))
    const asked = emptyTrainingData()
    addTrainingQuestion(asked, records[0])
    const without = { name: 'no sources', parts: [{ folder: bare, split: 'dev' }] }
    await expect(evaluate(minRecall({ output: at, trainingData: asked, validation: without }))).rejects.toThrow(
      /1 of 6 questions of no sources were trained on/,
    )
    for (const more of [{ allowOverlap: true }, { validation: { name: 'the run', selectedOn: true, parts } }])
      await evaluate(minRecall({ output: at, trainingData, resamples: 20, ...more }))
    expect(json(at).evaluation.margin.validation).toMatchObject({ name: 'the run', items: 15 })
  })

  it('takes a finite margin of 0 or more', async () => {
    for (const value of [-1, Number.NaN, Number.POSITIVE_INFINITY])
      await expect(evaluate(optionsFor([data], output, { margin: { value, origin: 'stated' } }))).rejects.toThrow(
        RangeError,
      )
  })

  it('picks by given scores too, whose files have lines for the validation items', async () => {
    const [own, other] = [join(folder, 'own'), join(folder, 'other')]
    await evaluate(minRecall({ output: own }))
    await evaluate(optionsFor([validation], other))
    const given = { datasets: [data], split: 'dev', output: join(folder, 'given'), resamples: 200 }
    const scores = [join(own, 'scores.jsonl'), join(other, 'scores.jsonl')]
    const options = { ...given, minRecall: 0.9, validation: minRecall().validation }
    await evaluateScores({ ...options, scores })
    const [before, after] = [json(own).evaluation.margin, json(given.output).evaluation.margin]
    expect(after).toEqual(before)
    expect(readFileSync(join(given.output, 'margins.csv'), 'utf8')).toBe(readFileSync(join(own, 'margins.csv'), 'utf8'))
    await expect(evaluateScores({ ...options, scores: [scores[0]!] })).rejects.toThrow(
      /no scores of item "validation item 0" of question "validation q0"/,
    )
  })
})

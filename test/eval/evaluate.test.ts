import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { importHotpotqa, importNq } from '../../src/data/index.ts'
import { addTrainingQuestion, emptyTrainingData, evaluate, METRICS, type NodeEmbedder } from '../../src/eval/index.ts'
import { sharedDir } from '../support/shared.ts'
import { sentence, writeArticles } from './articles.ts'
import { fineTuned, optionsFor, textReader, words } from './bag.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-evaluate-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const bytes = (path: string): Record<string, string> =>
  Object.fromEntries(
    readdirSync(path)
      .sort()
      .map((file) => [file, readFileSync(join(path, file), 'utf8')]),
  )
const json = (path: string, file = 'metrics.json') => JSON.parse(readFileSync(join(path, file), 'utf8'))

describe('an evaluation', () => {
  let ten: string
  let one: string
  const results = join(folder, 'results')
  beforeAll(async () => {
    ten = await writeArticles(join(folder, 'ten'), 'Articles', 10)
    one = await writeArticles(join(folder, 'one'), 'Lonely', 1)
    await evaluate(optionsFor([ten], results))
  })

  it('writes every file, with controls in every table', () => {
    expect(readdirSync(results).sort()).toEqual([
      'decisions.csv',
      'decisions.jsonl',
      'margins.csv',
      'metrics.json',
      'pruning.csv',
      'scores.jsonl',
      'selection.csv',
      'summary.md',
    ])
    const metrics = json(results)
    expect(Object.keys(metrics)).toEqual([
      ...['Articles', 'pooled', 'mean', 'differences', 'selection', 'selection_differences', 'evaluation'],
    ])
    const names = ['frozen', 'fine-tuned', 'permuted', 'always-left', 'keep-root', 'constant']
    expect(Object.keys(metrics.Articles)).toEqual(names)
    for (const name of names) {
      for (const metric of [
        'decision_accuracy',
        'edge_accuracy',
        'pruned_item_rate',
        'dropped_item_rate',
        'retained_tokens',
        'gold_recall',
        'gold_precision',
        'gold_f1',
        'truncated_nodes',
      ]) {
        const found = metrics.Articles[name][metric]
        expect(found.value, `${name} ${metric}`).toBeGreaterThanOrEqual(0)
        expect(found.lo).toBeLessThanOrEqual(found.value + 1e-9)
        expect(found.hi).toBeGreaterThanOrEqual(found.value - 1e-9)
        expect(found.n).toBeGreaterThan(0)
      }
    }
    expect(Object.keys(metrics.differences.Articles)).toEqual([
      'fine-tuned - frozen',
      'fine-tuned - permuted',
      'fine-tuned - always-left',
      'fine-tuned - keep-root',
      'fine-tuned - constant',
    ])
    const summary = readFileSync(join(results, 'summary.md'), 'utf8')
    for (const text of [
      'always-left',
      'permuted',
      'Qwen3-VL-Embedding-2B',
      'no reproduction',
      'tokenizer of bag',
      '36.9',
      '85.2 to 95.6',
    ]) {
      expect(summary).toContain(text)
    }
    expect(summary).not.toMatch(/undefined|NaN|\[object/)
  })

  it('says the same in its tables as in metrics.json', () => {
    const metrics = json(results)
    for (const [file, table] of [
      ['decisions.csv', 'decisions'],
      ['pruning.csv', 'pruning'],
    ] as const) {
      const [header, ...rows] = readFileSync(join(results, file), 'utf8')
        .trim()
        .split('\n')
        .map((line) => line.split(','))
      expect(header!.slice(0, 6)).toEqual([
        'benchmark',
        'encoder',
        'n',
        header![3],
        `${header![3]}_lo`,
        `${header![3]}_hi`,
      ])
      expect(rows.length).toBe(18)
      for (const row of rows) {
        const values = metrics[row[0]!][row[1]!]
        for (const { name } of METRICS.filter((metric) => metric.table === table)) {
          const at = header!.indexOf(name)
          const expected = values[name] ?? { value: null, lo: null, hi: null }
          expect(row.slice(at, at + 3).map((x) => (x === '' ? null : Number(x)))).toEqual([
            expected.value,
            expected.lo,
            expected.hi,
          ])
        }
      }
    }
  })

  it('learns from the questions what a bag of words can, and nothing when asked others', () => {
    const { Articles: found } = json(results)
    expect(found['fine-tuned'].decision_accuracy.value).toBeGreaterThan(found.permuted.decision_accuracy.value + 0.2)
  })

  it('has a line for each decision node that replays the rule', () => {
    const lines = readFileSync(join(results, 'decisions.jsonl'), 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    const metrics = json(results)
    expect(lines.length).toBe(metrics.Articles.frozen.decision_accuracy.n)
    for (const encoder of ['frozen', 'fine-tuned', 'permuted']) {
      let right = 0
      for (const line of lines) {
        const { node, children } = line.scores[encoder]
        const entered = (children as number[]).flatMap((score, c) => (score >= node ? [c] : []))
        expect(line.entered[encoder]).toEqual(entered)
        expect(line.correct[encoder]).toBe(JSON.stringify(entered) === JSON.stringify(line.gold))
        if (line.correct[encoder]) right++
      }
      expect(metrics.Articles[encoder].decision_accuracy.value).toBeCloseTo(right / lines.length, 12)
    }
    expect(lines[0]).toMatchObject({
      benchmark: 'Articles',
      question: 'q0',
      item: 'ten item 0',
      range: [0, 2],
      children: [
        [0, 1],
        [1, 2],
      ],
    })
  })

  it('counts tokens of gold, other and all retrieved items where those are known', () => {
    const { Articles: found, evaluation } = json(results)
    expect(found['keep-root'].tokens_gold.n).toBe(5)
    // Nine words a sentence; 2 + 4 + 6 + 3 + 5 leaves on gold items, and titles of one word ("Article").
    const sentenceWords = words(sentence('river', 0)).length
    expect(found['keep-root'].tokens_gold.value).toBeCloseTo((20 * sentenceWords + 5) / 5, 12)
    expect(found['keep-root'].tokens_other.value).toBeCloseTo(2 * sentenceWords, 12)
    expect(found['keep-root'].tokens_all_ratio.value).toBe(1)
    expect(found['always-left'].tokens_other.value).toBeCloseTo(sentenceWords, 12)
    expect(evaluation.counts.Articles).toMatchObject({
      questions: 10,
      questionsWithRetrieved: 5,
      goldItems: 10,
      otherItems: 5,
    })
    expect(evaluation.clusters).toEqual({ Articles: 9, pooled: 9, mean: 9 })
  })

  it('gives the same bytes again, in batches of any size', async () => {
    const before = bytes(results)
    await evaluate(optionsFor([ten], results))
    expect(bytes(results)).toEqual(before)
    await evaluate(optionsFor([ten], join(folder, 'batches'), { batchNodes: 1 }))
    expect(bytes(join(folder, 'batches'))).toEqual(before)
  })

  it('depends on its seed in permutation and intervals only', async () => {
    await evaluate(optionsFor([ten], join(folder, 'seed'), { seed: '2' }))
    const [a, b] = [json(results), json(join(folder, 'seed'))]
    expect(b.Articles.frozen.decision_accuracy.value).toBe(a.Articles.frozen.decision_accuracy.value)
    expect(b.Articles.frozen.decision_accuracy).not.toEqual(a.Articles.frozen.decision_accuracy)
  })

  it('reports permuted as absent for a benchmark of one question, and leaves it out of the pool', async () => {
    const output = join(folder, 'two')
    await evaluate(optionsFor([ten, one], output))
    const metrics = json(output)
    expect(Object.keys(metrics.Lonely)).not.toContain('permuted')
    expect(Object.keys(metrics.Articles)).toContain('permuted')
    expect(Object.keys(metrics.pooled)).not.toContain('permuted')
    expect(metrics.evaluation.notes.join()).toContain('Permuted is absent for Lonely')
    expect(metrics.Articles).toEqual(json(results).Articles)
    expect(metrics.mean.frozen.decision_accuracy.n).toBe(2)
  })

  it('without a fine-tuned encoder has no fine-tuned and no permuted row', async () => {
    const output = join(folder, 'frozen-only')
    await evaluate(optionsFor([ten], output, { fineTuned: undefined }))
    const metrics = json(output)
    expect(Object.keys(metrics.Articles)).toEqual(['frozen', 'always-left', 'keep-root', 'constant'])
    expect(Object.keys(metrics.differences.Articles)[0]).toBe('frozen - always-left')
    expect(metrics.evaluation).not.toHaveProperty('overlap')
  })

  it('refuses sources that were trained on, unless allowed, and counts them', async () => {
    const trainingData = emptyTrainingData()
    addTrainingQuestion(trainingData, {
      id: 'elsewhere',
      benchmark: 'Articles',
      split: 'train',
      question: 'Another question?',
      answers: [],
      source: 'page 3',
      gold: [{ item: 'ten item 4', spans: [] }],
    })
    const output = join(folder, 'overlap')
    await expect(evaluate(optionsFor([ten], output, { trainingData }))).rejects.toThrow(
      /1 of 9 sources.*"page 3".*--allow-overlap/,
    )
    expect(existsSync(output)).toBe(false)
    await evaluate(optionsFor([ten], output, { trainingData, allowOverlap: true }))
    expect(json(output).evaluation.overlap).toEqual({
      questions: 0,
      items: 1,
      sources: 1,
      of: { questions: 10, items: 10, sources: 9 },
      examples: ['page 3'],
    })
    expect(readFileSync(join(output, 'summary.md'), 'utf8')).toContain('1 of 9 sources ("page 3")')
  })

  it('counts looks: a repetition keeps its place, so that its bytes stay', async () => {
    const looksFile = join(folder, 'evaluations.jsonl')
    const [first, second] = [join(folder, 'look1'), join(folder, 'look2')]
    await evaluate(optionsFor([ten], first, { looksFile }))
    const other = await evaluate(optionsFor([ten], second, { looksFile, title: true }))
    expect(other.looks).toEqual({ configuration: 2, repetitions: 1 })
    const before = bytes(first)
    const again = await evaluate(optionsFor([ten], first, { looksFile }))
    expect(again.looks).toEqual({ configuration: 1, repetitions: 2 })
    expect(bytes(first)).toEqual(before)
    expect(json(second).evaluation.looks).toBe(2)
    expect(readFileSync(looksFile, 'utf8').trim().split('\n').length).toBe(3)
  })

  it('leaves old results as they are, and nothing beside them, when it fails', async () => {
    const output = join(folder, 'fails')
    await evaluate(optionsFor([ten], output))
    const before = bytes(output)
    let calls = 0
    const failing: NodeEmbedder = {
      ...fineTuned,
      embed: async (inputs, side) => {
        if (side === 'node' && ++calls > 2) throw new Error('out of memory')
        return fineTuned.embed(inputs, side)
      },
    }
    const around = readdirSync(folder)
    await expect(evaluate(optionsFor([ten], output, { fineTuned: failing, batchNodes: 1 }))).rejects.toThrow(
      'out of memory',
    )
    const signal = AbortSignal.abort()
    await expect(evaluate(optionsFor([ten], output, { signal }))).rejects.toThrow(
      expect.objectContaining({ name: 'AbortError' }),
    )
    expect(bytes(output)).toEqual(before)
    expect(readdirSync(folder)).toEqual(around)
  })

  it('does not replace a folder that holds something else', async () => {
    const output = join(folder, 'precious')
    mkdirSync(output)
    writeFileSync(join(output, 'thesis.txt'), 'years of work')
    await expect(evaluate(optionsFor([ten], output))).rejects.toThrow(/precious: The output folder holds "thesis\.txt"/)
    expect(readdirSync(output)).toEqual(['thesis.txt'])
  })

  it('merges the gold entries that a question has for one item', async () => {
    const path = await writeArticles(join(folder, 'merged'), 'Articles', 10)
    const questions = join(path, 'questions.jsonl')
    const doubled = (first: number): string =>
      readFileSync(questions, 'utf8')
        .trimEnd()
        .split('\n')
        .map((line) => {
          const question = JSON.parse(line)
          const [entry] = question.gold
          // a word at the item's beginning, and where the gold was: in one entry, or in two of either order
          const spans = [[0, 3], ...entry.spans]
          question.gold = first < 0 ? [{ ...entry, spans }] : spans.map((span) => ({ ...entry, spans: [span] }))
          if (first === 1) question.gold.reverse()
          return `${JSON.stringify(question)}\n`
        })
        .join('')
    const contents = [doubled(-1), doubled(0), doubled(1)]
    const tables: string[] = []
    for (const [i, content] of contents.entries()) {
      writeFileSync(questions, content)
      const output = join(folder, `merged-out-${i}`)
      await evaluate(optionsFor([path], output))
      tables.push(readFileSync(join(output, 'decisions.csv'), 'utf8'))
    }
    expect(tables[1]).toBe(tables[0])
    expect(tables[2]).toBe(tables[0])
  })

  it('refuses a question that would count twice, an unknown split and a score that is no number', async () => {
    const output = join(folder, 'refused')
    await expect(evaluate(optionsFor([ten, ten], output))).rejects.toThrow(/questions\.jsonl:1: Question "q0".*twice/)
    await expect(evaluate(optionsFor([ten], output, { split: 'test' }))).rejects.toThrow('no split "test"')
    const zero: NodeEmbedder = {
      ...{ fingerprint: 'zero', reader: textReader },
      embed: async (inputs) => ({
        embeddings: new Float32Array(inputs.length * 64),
        same: Int32Array.from(inputs.keys()),
        truncated: inputs.map(() => false),
      }),
    }
    await expect(evaluate(optionsFor([ten], output, { fineTuned: zero }))).rejects.toThrow(
      /Item "ten item 0" of question "q0".*NaN/,
    )
    expect(existsSync(output)).toBe(false)
  })

  it('refuses a benchmark whose name means something else in the results', async () => {
    const path = await writeArticles(join(folder, 'reserved'), 'pooled', 2)
    await expect(evaluate(optionsFor([path], join(folder, 'reserved-out')))).rejects.toThrow(
      /questions\.jsonl:1: .*"pooled"/,
    )
  })
})

const shared = sharedDir()
describe.skipIf(shared === undefined)('on the staged benchmarks (skipped without the shared data)', () => {
  it('always-left reaches what the position of gold alone explains', async () => {
    const data = join(shared!, 'data')
    const hotpotqa = join(folder, 'hotpotqa')
    const nq = join(folder, 'nq')
    await importHotpotqa({ inputs: [join(data, 'hotpotqa/dev_distractor.json')], output: hotpotqa, split: 'dev' })
    await importNq({ inputs: [join(data, 'nq/dev.jsonl')], output: nq, split: 'dev' })
    const output = join(folder, 'staged')
    await evaluate(optionsFor([hotpotqa, nq], output, { retrieved: false, resamples: 1000 }))
    const metrics = json(output)
    const names = Object.keys(metrics.evaluation.counts)
    const hotpot = metrics[names.find((name) => /hotpot/i.test(name))!]
    const left = hotpot['always-left']
    expect(left.decision_accuracy.n).toBe(655)
    expect(['left', 'right', 'both', 'full'].map((c) => left[`decision_accuracy_${c}`].n)).toEqual([442, 119, 37, 57])
    expect(left.decision_accuracy.value).toBeCloseTo(442 / 655, 12)
    expect(hotpot['keep-root'].decision_accuracy.value).toBeCloseTo(57 / 655, 12)
    const natural = metrics[names.find((name) => !/hotpot/i.test(name))!]
    expect(natural['always-left'].decision_accuracy.value).toBeGreaterThan(0.55)
    expect(natural['always-left'].decision_accuracy.value).toBeLessThan(0.65)
    expect(metrics.pooled['always-left'].decision_accuracy.n).toBe(655 + natural['always-left'].decision_accuracy.n)
  })
})

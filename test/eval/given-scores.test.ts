import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openDatasetWriter } from '../../src/data/index.ts'
import { type EvaluateScoresOptions, evaluate, evaluateScores, readScores } from '../../src/eval/index.ts'
import type { Item, Question, TreeNode } from '../../src/hierarchy/index.ts'
import { refine } from '../../src/refine/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { sharedDir } from '../support/shared.ts'
import { writeArticles } from './articles.ts'
import { optionsFor } from './bag.ts'
import type { PublishedNode } from './trees.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-scores-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const json = (path: string, file = 'metrics.json') => JSON.parse(readFileSync(join(path, file), 'utf8'))
type Line = Record<string, unknown> & { nodes: [number, number][]; scores: Record<string, number[]> }
const linesOf = (path: string): Line[] =>
  readFileSync(path, 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))
const write = (name: string, lines: unknown[]): string => {
  const file = join(folder, name)
  writeFileSync(file, lines.map((line) => `${typeof line === 'string' ? line : JSON.stringify(line)}\n`).join(''))
  return file
}

describe('scores that were computed elsewhere', () => {
  let data: string
  let lines: Line[]
  const results = join(folder, 'results')
  const own = join(results, 'scores.jsonl')
  const options = (scores: string[], more: Partial<EvaluateScoresOptions> = {}): EvaluateScoresOptions => ({
    ...{ datasets: [data], split: 'dev', output: join(folder, 'out'), resamples: 200, scores },
    ...more,
  })
  /** Lines as somebody else writes them. */
  const plain = (encoder = 'fine-tuned'): Record<string, unknown>[] =>
    lines.map(({ question, item, nodes, scores }) => ({ question, item, nodes, scores: scores[encoder] }))

  beforeAll(async () => {
    data = await writeArticles(join(folder, 'data'), 'Articles', 10)
    await evaluate(optionsFor([data], results))
    lines = linesOf(own)
  })

  it('of an evaluation give its figures again, digit by digit', async () => {
    await evaluateScores(options([own]))
    const [before, after] = [json(results), json(join(folder, 'out'))]
    for (const part of ['Articles', 'pooled', 'mean', 'differences', 'selection', 'selection_differences']) {
      expect(after[part], part).toEqual(before[part])
    }
    expect(after.evaluation.accuracyByLevel).toEqual(before.evaluation.accuracyByLevel)
    expect(after.evaluation).toMatchObject({ tokens: 'given', encoders: { frozen: { name: own } } })
    expect(readFileSync(join(folder, 'out', 'scores.jsonl'), 'utf8')).toBe(readFileSync(own, 'utf8'))
    expect(readFileSync(join(folder, 'out', 'decisions.jsonl'), 'utf8')).toBe(
      readFileSync(join(results, 'decisions.jsonl'), 'utf8'),
    )
  })

  it('of any model, in any order of lines and nodes, stand in the row fine-tuned beside the controls', async () => {
    const shuffled = plain()
      .reverse()
      .map(({ nodes, scores, ...rest }) => ({
        ...rest,
        nodes: [...(nodes as unknown[])].reverse(),
        scores: [...(scores as unknown[])].reverse(),
      }))
    const file = write('shuffled.jsonl', shuffled)
    const tokenizer = { name: 'bag', countTokens: (text: string) => text.toLowerCase().match(/\p{L}+/gu)?.length ?? 0 }
    await evaluateScores(options([file], { name: 'my model', tokenizer }))
    const [before, after] = [json(results), json(join(folder, 'out'))]
    expect(Object.keys(after.Articles)).toEqual(['fine-tuned', 'always-left', 'keep-root', 'constant'])
    for (const row of ['fine-tuned', 'always-left']) {
      const { truncated_nodes, ...rest } = before.Articles[row]
      expect(after.Articles[row], row).toMatchObject(rest)
    }
    expect(after.evaluation.notes.join()).toContain('do not say which nodes the model cut')
    expect(after.evaluation.encoders).toMatchObject({ 'fine-tuned': { name: 'my model' } })
    expect(after.evaluation.notes.join()).toContain('Permuted is absent')
    const again = readFileSync(join(folder, 'out', 'metrics.json'), 'utf8')
    await evaluateScores(options([file], { name: 'my model', tokenizer }))
    expect(readFileSync(join(folder, 'out', 'metrics.json'), 'utf8')).toBe(again)
  })

  it('may have frozen ones beside them, and are counted in words where nobody says otherwise', async () => {
    const files = [write('tuned.jsonl', plain()), write('frozen.jsonl', plain('frozen'))]
    const { evaluation } = await evaluateScores(options([files[0]!], { frozenScores: [files[1]!] }))
    const after = json(join(folder, 'out'))
    expect(after.differences.Articles['fine-tuned - frozen'].decision_accuracy).toEqual(
      json(results).differences.Articles['fine-tuned - frozen'].decision_accuracy,
    )
    expect(evaluation.tokens).toBe('words')
    expect(readFileSync(join(folder, 'out', 'summary.md'), 'utf8')).toContain('counted as words')
  })

  it('need the retrieved items as well, unless those are left out; lines for nothing are counted', async () => {
    const gold = lines.filter(({ role }) => role === 'gold').map(({ item }) => item)
    const file = write(
      'gold.jsonl',
      plain().filter(({ item }) => gold.includes(item)),
    )
    await expect(evaluateScores(options([file]))).rejects.toThrow(
      /questions\.jsonl:1: .*"data other 0".*add --no-retrieved/,
    )
    await evaluateScores(options([file], { retrieved: false }))
    const { evaluation } = await evaluateScores(options([write('all.jsonl', plain())], { retrieved: false }))
    expect(evaluation.notes.join()).toContain('5 of 15 lines of scores were not asked for')
  })

  const change = (at: number, more: Record<string, unknown>): unknown[] =>
    plain().map((line, i) => (i === at ? { ...line, ...more } : line))
  const third = (): Line => lines[3]!

  it.each<[string, () => unknown[], RegExp]>([
    [
      'no item',
      () => plain().slice(1),
      /questions\.jsonl:1: There are no scores of item "data item 0" of question "q0"/,
    ],
    [
      'a node missing',
      () => change(3, { nodes: third().nodes.slice(1), scores: third().scores.frozen!.slice(1) }),
      /bad\.jsonl:4: Node \[0, \d\) of item "data item 2" of question "q2" has no score/,
    ],
    [
      'a node twice',
      () => change(3, { nodes: [...third().nodes, [0, 1]], scores: [...third().scores.frozen!, 1] }),
      /bad\.jsonl:4: Node \[0, 1\).*twice/,
    ],
    [
      'a node that is none',
      () => change(3, { nodes: [...third().nodes, [1, 3]], scores: [...third().scores.frozen!, 1] }),
      /bad\.jsonl:4: The tree .*branching 2\) has no node \[1, 3\)/,
    ],
    [
      'a null',
      () => change(3, { scores: third().scores.frozen!.with(1, null as never) }),
      /bad\.jsonl:4: The score of node \[0, \d\).*is null/,
    ],
    ['scores missing', () => change(3, { scores: [1] }), /bad\.jsonl:4: There are 1 scores for the \d+ nodes/],
    ['another branching', () => change(3, { branching: 3 }), /bad\.jsonl:4: .*branching 3.*--branching 3/],
    [
      'an item twice',
      () => [...plain(), plain()[0]],
      /bad\.jsonl:16: Item "data item 0" of question "q0" is scored twice.*bad\.jsonl:1/,
    ],
    ['no JSON', () => [...plain(), '{"question"'], /bad\.jsonl:16: not valid JSON/],
    [
      'text for a number',
      () => change(3, { scores: third().scores.frozen!.with(1, '0.3' as never) }),
      /is "0\.3"; a finite/,
    ],
    [
      'an object for a number',
      () => change(3, { scores: third().scores.frozen!.with(1, {} as never) }),
      /is \{\}; a finite/,
    ],
    ['a cut node that is none', () => change(3, { truncated: [99] }), /bad\.jsonl:4: "truncated" .*names the node 99/],
    ['too few marks of equal nodes', () => change(3, { same: [0] }), /bad\.jsonl:4: "same" .*1 entries for \d+ nodes/],
    [
      'a mark of equal nodes that is none',
      () => change(3, { same: third().nodes.map(() => 2 ** 32) }),
      /bad\.jsonl:4: "same" .*names the node 4294967296/,
    ],
    ['scores by no name', () => change(3, { scores: {} }), /bad\.jsonl:4: The line has no scores\./],
    [
      'permuted scores alone',
      () => plain().map((line) => ({ ...line, scores: { permuted: line.scores } })),
      /bad\.jsonl: There are "permuted" scores but none of the "fine-tuned" encoder/,
    ],
    [
      'tokens in later lines only',
      () => plain().map((line, i) => (i < 2 ? line : { ...line, leafTokens: lines[i]!.leafTokens })),
      /bad\.jsonl:1: There is no "leafTokens".*--encoder/,
    ],
    ['no scores', () => [{ question: 'q', item: 'i', nodes: [] }], /bad\.jsonl:1: .*"scores"/],
    ['nothing', () => [], /bad\.jsonl: The file has no line/],
    [
      'tokens in some lines only',
      () => plain().map((line, i) => (i < 2 ? { ...line, leafTokens: lines[i]!.leafTokens } : line)),
      /bad\.jsonl:3: There is no "leafTokens".*--encoder/,
    ],
    [
      'frozen scores in some lines only',
      () => [
        ...lines.slice(0, 4),
        ...plain()
          .slice(4)
          .map((line, i) => ({ ...line, leafTokens: lines[i + 4]!.leafTokens })),
      ],
      /bad\.jsonl:5: .*has no frozen scores/,
    ],
  ])('with %s are refused, naming the place', async (_, bad, message) => {
    const file = write('bad.jsonl', bad())
    rmSync(join(folder, 'out'), { recursive: true, force: true })
    await expect(evaluateScores(options([file]))).rejects.toThrow(message)
    expect(existsSync(join(folder, 'out'))).toBe(false)
  })

  it('named otherwise are refused where frozen ones were promised', async () => {
    const tuned = lines.map(({ scores, ...line }) => ({ ...line, scores: { 'fine-tuned': scores['fine-tuned'] } }))
    const frozenScores = [write('tuned.jsonl', tuned)]
    await expect(evaluateScores(options([write('plain.jsonl', plain())], { frozenScores }))).rejects.toThrow(
      /tuned\.jsonl:1: The line has no scores named "frozen"/,
    )
  })

  it.each(['NaN', '-Infinity', 'Infinity'])('with a %s, as Python writes it, name the node', async (token) => {
    const texts = plain().map((line) => JSON.stringify(line))
    texts[3] = texts[3]!.replace(/"scores":\[([^,]+),[^,]+/, `"scores":[$1,${token}`)
    const [, [from, to]] = third().nodes as [unknown, [number, number]]
    await expect(evaluateScores(options([write('nan.jsonl', texts)]))).rejects.toThrow(
      `nan.jsonl:4: The score of node [${from}, ${to}) of item "data item 2" of question "q2" is ${token}`,
    )
  })

  it('are refused or measured, whatever a line holds, and never anything else', async () => {
    const keys = ['benchmark', 'question', 'item', 'nodes', 'scores', 'leafTokens', 'headerTokens', 'truncated', 'same']
    const token = fc.constantFrom('NaN', '1e999', '""', '}', '[', '\u0000', '-')
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...keys),
        fc.oneof(
          fc.jsonValue().map((v) => JSON.stringify(v)),
          token,
        ),
        async (key, value) => {
          const [line, ...rest] = plain() as [object, ...object[]]
          const text = JSON.stringify({ ...line, [key]: '@@' }).replace('"@@"', () => value)
          await evaluateScores(options([write('fuzz.jsonl', [text, ...rest])], { resamples: 1 })).catch(
            (error: unknown) => expect(error).toBeInstanceOf(InputError),
          )
        },
      ),
      { numRuns: 60 },
    )
  })

  it('name the benchmark where two have a question of the same id', async () => {
    const second = await writeArticles(join(folder, 'second'), 'Other', 3)
    const more = join(folder, 'more')
    await evaluate(optionsFor([data, second], more))
    const both = linesOf(join(more, 'scores.jsonl'))
    const bare = both.map(({ question, item, nodes, scores }) => ({ question, item, nodes, scores: scores.frozen }))
    const datasets = [data, second]
    await expect(evaluateScores(options([write('bare.jsonl', bare)], { datasets }))).rejects.toThrow(
      /bare\.jsonl:1: Several benchmarks have a question "q0"; .*"benchmark"/,
    )
    const named = bare.map((line, i) => ({ benchmark: both[i]!.benchmark, ...line }))
    await evaluateScores(options([write('named.jsonl', named)], { datasets }))
    expect(json(join(folder, 'out')).Other['fine-tuned'].decision_accuracy.value).toBe(
      json(more).Other.frozen.decision_accuracy.value,
    )
  })
})

const shared = sharedDir()
describe.skipIf(shared === undefined)('the published cases (skipped without the shared data)', () => {
  interface Case {
    benchmark: string
    kind: 'text' | 'table' | 'video'
    title: string
    question?: string
    n_units: number
    unit_seconds?: [number, number][]
    gold: string[]
    sent: string[]
    tree: PublishedNode
  }

  it('measured through --scores keep what was published, items of three modalities', async () => {
    const { items: cases } = JSON.parse(readFileSync(join(shared!, 'data/canopy_cases/cases.json'), 'utf8')) as {
      items: Case[]
    }
    const path = join(folder, 'cases')
    const writer = await openDatasetWriter({ folder: path, name: 'cases', benchmark: 'Cases', split: 'test' })
    const place = { file: 'cases.json', line: 1 }
    const scores: object[] = []
    const units = (ids: string[]): number[] => ids.map((unit) => Number(unit.slice(1)))
    for (const [i, published] of cases.entries()) {
      const id = `case ${i}`
      const leaves = Array.from({ length: published.n_units }, (_, leaf) => `Unit ${leaf}.`)
      const spans = leaves.map((text, leaf): [number, number] => [leaf * 8, leaf * 8 + text.length])
      const gold = units(published.gold)
      const [item, entry] = {
        text: (): [Item, Question['gold'][0]] => [
          { id, modality: 'text', title: published.title, text: leaves.join(' '), sentences: spans },
          { item: id, spans: gold.map((leaf) => spans[leaf]!) },
        ],
        table: (): [Item, Question['gold'][0]] => [
          { id, modality: 'table', title: published.title, header: ['unit'], rows: leaves.map((text) => [text]) },
          { item: id, rows: gold },
        ],
        video: (): [Item, Question['gold'][0]] => [
          { id, modality: 'video', title: published.title, start: 0, end: published.unit_seconds!.at(-1)![1] },
          { item: id, times: gold.map((leaf) => published.unit_seconds![leaf]!) },
        ],
      }[published.kind]()
      await writer.addItem(item, place)
      await writer.addQuestion(
        {
          ...{ id, benchmark: published.benchmark, split: 'test', question: published.question ?? '?', answers: [] },
          ...{ source: id, gold: [entry] },
        },
        place,
      )
      const nodes: [number, number][] = []
      const list: number[] = []
      const visit = ({ range, score, children = [] }: PublishedNode): void => {
        nodes.push(range)
        list.push(score)
        for (const child of children) visit(child)
      }
      visit(published.tree)
      scores.push({ question: id, item: id, nodes, scores: list })
    }
    await writer.commit()
    const output = join(folder, 'cases-out')
    const { estimates, evaluation } = await evaluateScores({
      ...{ datasets: [path], split: 'test', output, resamples: 50, scores: [write('cases.jsonl', scores)] },
      name: 'the published scores',
    })
    const kept: number[][] = []
    for await (const { root, nodes, scores: by } of readScores(output)) {
      const score = (node: TreeNode): number => by['fine-tuned']![nodes.indexOf(node)]!
      kept.push(
        refine(root, score).flatMap(({ from, to }) => Array.from({ length: to - from }, (_, leaf) => from + leaf)),
      )
    }
    expect(kept).toEqual(cases.map(({ sent }) => units(sent)))
    // Counted by hand on the five trees: 8 of 13 decisions are right.
    const { decision_accuracy, gold_recall } = estimates.benchmarks.pooled!['fine-tuned']!
    expect(decision_accuracy).toMatchObject({ n: 13 })
    expect(decision_accuracy!.value).toBeCloseTo(8 / 13, 12)
    expect(gold_recall!.value).toBe(1)
    expect(Object.keys(evaluation.counts)).toEqual(['HotpotQA', 'LVBench', 'OTT-QA'])
    expect(evaluation.notes.join()).toContain('each frame of a video, count as 256 tokens')
  })
})

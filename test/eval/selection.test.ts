import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  addInstance,
  ENCODERS,
  emptySums,
  estimate,
  evaluate,
  measureInstance,
  type RowName,
  readScores,
  type ScoredInstance,
  SELECTION_METRICS,
  SELECTION_ROWS,
  SELECTORS,
  select,
  selectionCsv,
} from '../../src/eval/index.ts'
import { buildTree, preOrder } from '../../src/hierarchy/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { writeArticles } from './articles.ts'
import { fineTuned, optionsFor } from './bag.ts'
import { instanceOf } from './trees.ts'

const random = fc
  .record({ leaves: fc.integer({ min: 1, max: 20 }), branching: fc.integer({ min: 2, max: 4 }) })
  .chain(({ leaves, branching }) => {
    const nodes = preOrder(buildTree(leaves, branching)).length
    // Few different values, so that ties are common.
    const scores = fc.array(fc.integer({ min: 0, max: 5 }), { minLength: nodes, maxLength: nodes })
    return fc
      .record({
        gold: fc.array(fc.boolean(), { minLength: leaves, maxLength: leaves }).filter((gold) => gold.includes(true)),
        frozen: scores,
        fineTuned: scores,
        leafTokens: fc.array(fc.integer({ min: 0, max: 40 }), { minLength: leaves, maxLength: leaves }),
        headerTokens: fc.integer({ min: 0, max: 9 }),
        source: fc.integer({ min: 0, max: 3 }).map((source) => `s${source}`),
      })
      .map(({ gold, ...rest }) => instanceOf(gold, { branching, ...rest }))
  })

/** The leaves that a row of the selection table keeps, read from its definition, in sets of leaves. */
function keptLeaves({ nodes, gold, scores, root }: ScoredInstance, row: string): number[] {
  const range = ({ from, to }: { from: number; to: number }): number[] =>
    Array.from({ length: to - from }, (_, i) => from + i)
  const tuned = scores['fine-tuned']!
  const bestOf = (eligible: number[]): number => {
    const top = Math.max(...eligible.map((i) => tuned[i]!))
    return Math.min(...eligible.filter((i) => tuned[i] === top))
  }
  const places = [...nodes.keys()]
  const descend = (node: typeof root, by: Float64Array): number[] => {
    const score = (n: typeof root): number => by[nodes.indexOf(n)]!
    const entered = node.children.filter((child) => score(child) >= score(node))
    return entered.length === 0 ? range(node) : entered.flatMap((child) => descend(child, by))
  }
  switch (row) {
    case 'gold-item':
      return range(root)
    case 'gold-span':
      return range(root).filter((leaf) => gold[leaf])
    case 'flat-leaf':
      return range(nodes[bestOf(places.filter((i) => nodes[i]!.to - nodes[i]!.from === 1))]!)
    case 'flat-node':
      return range(nodes[bestOf(places)]!)
    default:
      return descend(root, scores[row === 'canopy-frozen' ? 'frozen' : 'fine-tuned']!)
  }
}

describe('the selection table', () => {
  it('has means over gold items that equal a brute-force reading of their definitions', () => {
    fc.assert(
      fc.property(fc.array(random, { minLength: 1, maxLength: 8 }), (instances) => {
        const rows: RowName[] = [...ENCODERS.filter((encoder) => encoder !== 'permuted'), ...SELECTORS]
        const sums = emptySums(rows)
        for (const instance of instances) addInstance(sums, 'b', instance.source, measureInstance(instance, rows))
        const { selection } = estimate(sums, { resamples: 20 })
        expect(Object.keys(selection.b!)).toEqual(Object.keys(SELECTION_ROWS))
        for (const [row, metrics] of Object.entries(selection.b!)) {
          for (const [suffix, items] of [
            ['', instances.filter(({ gold }) => gold.length > 1)],
            ['_all', instances],
          ] as const) {
            const of = (pick: (kept: number[], instance: ScoredInstance) => number): number | null =>
              items.length === 0 ? null : items.reduce((sum, i) => sum + pick(keptLeaves(i, row), i), 0) / items.length
            const tokens = (leaves: Iterable<number>, { leafTokens, headerTokens }: ScoredInstance): number =>
              [...leaves].reduce((sum, leaf) => sum + leafTokens[leaf]!, headerTokens)
            const hits = (kept: number[], { gold }: ScoredInstance): number => kept.filter((leaf) => gold[leaf]).length
            const goldOf = ({ gold }: ScoredInstance): number => gold.filter(Boolean).length
            const expected: Record<string, number | null> = {
              kept_tokens: of(tokens),
              retained_tokens: of((kept, i) => {
                const whole = tokens(i.gold.keys(), i)
                return whole === 0 ? 1 : tokens(kept, i) / whole
              }),
              gold_recall: of((kept, i) => hits(kept, i) / goldOf(i)),
              gold_precision: of((kept, i) => hits(kept, i) / kept.length),
              gold_f1: of((kept, i) => (2 * hits(kept, i)) / (kept.length + goldOf(i))),
            }
            for (const [name, value] of Object.entries(expected)) {
              const found = metrics[name + suffix]!
              expect(found.n, `${row} ${name}`).toBe(items.length)
              if (value === null) expect(found.value).toBeNull()
              else expect(found.value, `${row} ${name}${suffix}`).toBeCloseTo(value, 12)
            }
          }
        }
      }),
      { numRuns: 200 },
    )
  })

  it('takes the first in reading order, and the larger one, on a tie', () => {
    const instance = instanceOf([true, false, false], { fineTuned: [1, 1, 3, 3, 3] })
    expect(select(instance, 'flat-leaf')).toEqual([instance.nodes[2]])
    expect(select(instance, 'flat-node')).toEqual([instance.nodes[2]])
    const level = instanceOf([true, false, false], { fineTuned: [3, 3, 3, 3, 3] })
    expect(select(level, 'flat-node')).toEqual([level.root])
  })

  it('selects by frozen scores where nothing was trained, and never by a score that is NaN', () => {
    const instance = instanceOf([true, false], { frozen: { '0-2': 1, '0-1': 2, '1-2': 3 } })
    expect(select(instance, 'flat-leaf')).toEqual([instance.nodes[2]])
    const broken = instanceOf([true, false], { frozen: { '1-2': Number.NaN } })
    expect(() => select(broken, 'flat-node')).toThrow('[1, 2)')
  })

  it('has paired differences of CANOPY to every other row, with exact zeros where nothing differs', () => {
    const rows: RowName[] = ['frozen', 'fine-tuned', 'keep-root', ...SELECTORS]
    const sums = emptySums(rows)
    for (let i = 0; i < 12; i++) {
      const instance = instanceOf([true, i % 2 === 0], {
        ...{ frozen: [1, 0, 0], fineTuned: [1, 2, i % 2 === 0 ? 2 : 0], source: `s${i}` },
      })
      addInstance(sums, 'b', instance.source, measureInstance(instance, rows))
    }
    const { selectionDifferences } = estimate(sums, { resamples: 50 })
    expect(Object.keys(selectionDifferences.b!)).toEqual(
      ['gold-item', 'gold-span', 'flat-leaf', 'flat-node', 'canopy-frozen'].map((row) => `canopy-fine-tuned - ${row}`),
    )
    // CANOPY keeps exactly the gold leaves here.
    expect(selectionDifferences.b!['canopy-fine-tuned - gold-span']!.gold_f1).toEqual({ value: 0, lo: 0, hi: 0, n: 12 })
    const toLeaf = selectionDifferences.b!['canopy-fine-tuned - flat-leaf']!
    expect(toLeaf.gold_recall!.value).toBeCloseTo(0.25, 12)
    expect(toLeaf.gold_recall!.lo).toBeGreaterThan(0)
    expect(toLeaf.kept_tokens!.value).toBeCloseTo(5, 12)
  })

  it('stands in selection.csv, metrics.json and summary.md, and follows from scores.jsonl', async () => {
    const folder = temporaryFolder()
    const data = await writeArticles(join(folder, 'data'), 'Articles', 10)
    const output = join(folder, 'out')
    const { estimates } = await evaluate(optionsFor([data], output))
    const metrics = JSON.parse(readFileSync(join(output, 'metrics.json'), 'utf8'))
    const csv = readFileSync(join(output, 'selection.csv'), 'utf8')
    expect(csv).toBe(selectionCsv(estimates))
    const [header, ...rows] = csv
      .trim()
      .split('\n')
      .map((line) => line.split(','))
    expect(header!.slice(0, 6)).toEqual([
      'benchmark',
      'encoder',
      'n',
      'kept_tokens',
      'kept_tokens_lo',
      'kept_tokens_hi',
    ])
    expect(rows.length).toBe(18)
    for (const row of rows) {
      for (const name of SELECTION_METRICS) {
        const at = header!.indexOf(name)
        const { value, lo, hi } = metrics.selection[row[0]!][row[1]!][name]
        expect(row.slice(at, at + 3).map(Number)).toEqual([value, lo, hi])
      }
    }
    // The rows that are encoders, too, have the figures of the pruning table.
    for (const [row, encoder] of [
      ['gold-item', 'keep-root'],
      ['canopy-frozen', 'frozen'],
      ['canopy-fine-tuned', 'fine-tuned'],
    ] as const) {
      for (const name of SELECTION_METRICS) {
        expect(metrics.selection.Articles[row][name]).toEqual(metrics.Articles[encoder][name])
      }
    }
    let [recall, items] = [0, 0]
    for await (const instance of readScores(output)) {
      if (instance.role === 'other' || instance.gold.length < 2) continue
      const [leaf] = select(instance, 'flat-leaf')
      recall += instance.gold[leaf!.from] ? 1 / instance.gold.filter(Boolean).length : 0
      items++
    }
    expect(metrics.selection.Articles['flat-leaf'].gold_recall.value).toBeCloseTo(recall / items, 12)
    const summary = readFileSync(join(output, 'summary.md'), 'utf8')
    expect(summary).toContain('## Selection')
    expect(summary).toContain('best fine-tuned score')
    expect(summary).not.toContain('use the frozen scores')
    await evaluate(optionsFor([data], output, { fineTuned: undefined }))
    expect(readFileSync(join(output, 'summary.md'), 'utf8')).toContain('the flat selectors use the frozen scores')
    expect(JSON.parse(readFileSync(join(output, 'metrics.json'), 'utf8')).evaluation.selectedBy).toBe('frozen')
  })
})

describe('decision accuracy by level', () => {
  it('adds up to the decision accuracy, and is what counting depths by hand gives', async () => {
    const folder = temporaryFolder()
    const data = await writeArticles(join(folder, 'data'), 'Articles', 25)
    const output = join(folder, 'out')
    const { estimates, evaluation } = await evaluate(optionsFor([data], output, { query: fineTuned }))
    const lines = readFileSync(join(output, 'decisions.jsonl'), 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    const depths = new Map<string, number>()
    for await (const { question, item, root } of readScores(output)) {
      const visit = (node: typeof root, depth: number): void => {
        depths.set(`${question}/${item}/${node.from}-${node.to}`, depth)
        for (const child of node.children) visit(child, depth + 1)
      }
      visit(root, 0)
    }
    const counted: { level: number; decisions: number; correct: number }[] = []
    for (const { question, item, range, correct } of lines) {
      const level = depths.get(`${question}/${item}/${range[0]}-${range[1]}`)!
      counted[level] ??= { level, decisions: 0, correct: 0 }
      counted[level]!.decisions++
      if (correct['fine-tuned']) counted[level]!.correct++
    }
    const found = evaluation.accuracyByLevel.Articles!
    expect(found['fine-tuned']).toEqual(counted.map((one) => ({ ...one, accuracy: one.correct / one.decisions })))
    expect(found['fine-tuned']!.length).toBeGreaterThan(2)
    for (const encoder of ENCODERS) {
      const levels = found[encoder]!
      const { value, n } = estimates.benchmarks.Articles![encoder]!.decision_accuracy!
      expect(levels.reduce((sum, { decisions }) => sum + decisions, 0)).toBe(n)
      expect(levels.reduce((sum, { correct }) => sum + correct, 0) / n).toBeCloseTo(value!, 12)
    }
    expect(evaluation.accuracyByLevel.pooled).toEqual(found)
  })
})

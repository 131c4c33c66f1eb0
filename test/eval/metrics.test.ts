import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  accuracyOf,
  blindScores,
  checkInstance,
  ENCODERS,
  type EncoderName,
  METRICS,
  measureInstance,
  type ScoredInstance,
} from '../../src/eval/index.ts'
import { buildTree, preOrder, type TreeNode } from '../../src/hierarchy/index.ts'
import { sharedDir } from '../support/shared.ts'
import { instanceOf, type PublishedNode, publishedTree } from './trees.ts'

/** Metric -> [numerator, denominator] of one instance and encoder, those with a denominator of 0 left out. */
function ratios(instance: ScoredInstance, encoder: EncoderName): Record<string, [number, number]> {
  const { denominators, numerators } = measureInstance(instance, [encoder])
  return Object.fromEntries(
    METRICS.map((metric, i): [string, [number, number]] => [
      metric.name,
      [numerators.get(encoder)![i]!, denominators[i]!],
    ]).filter(([, [, denominator]]) => denominator > 0),
  )
}

describe('the metrics of one item', () => {
  // Leaf 1 is gold. At the root the rule is right; at [0, 2) it enters both leaves, gold asks for the second only.
  const instance = instanceOf([false, true, false, false], {
    frozen: { '0-4': 0.5, '0-2': 0.6, '0-1': 0.7, '1-2': 0.65, '2-4': 0.4, '2-3': 0.9, '3-4': 0.9 },
    truncated: [true, false, false, false, true, false, false],
  })

  it('are what one computes by hand', () => {
    const { retained_tokens, retained_tokens_all, gold_f1, gold_f1_all, ...rest } = ratios(instance, 'frozen')
    expect(rest).toEqual({
      decision_accuracy: [1, 2],
      decision_accuracy_left: [1, 1],
      decision_accuracy_right: [0, 1],
      edge_accuracy: [3, 4],
      pair_accuracy: [4, 6],
      pair_accuracy_gold_child: [2, 2],
      pair_accuracy_non_gold_child: [1, 2],
      pair_accuracy_sibling_separation: [1, 2],
      truncated_nodes: [2, 7],
      pruned_item_rate: [1, 1],
      dropped_item_rate: [1, 1],
      gold_recall: [1, 1],
      gold_recall_all: [1, 1],
      gold_precision: [0.5, 1],
      gold_precision_all: [0.5, 1],
      kept_tokens: [25, 1],
      kept_tokens_all: [25, 1],
    })
    expect(retained_tokens![0]).toBeCloseTo(25 / 45, 15)
    expect(retained_tokens_all).toEqual(retained_tokens)
    expect(gold_f1![0]).toBeCloseTo(2 / 3, 15)
    expect(gold_f1_all).toEqual(gold_f1)
  })

  it('judge decisions where gold leads, refinement where the scores lead', () => {
    // The scores keep the root, so refinement never visits [0, 2); the decision there is judged all the same.
    const kept = instanceOf([false, true, false, false], {
      frozen: { '0-4': 1, '0-2': 0.2, '1-2': 0.3, '2-4': 0.1, '0-1': 0.1 },
    })
    const found = ratios(kept, 'frozen')
    expect(found.decision_accuracy).toEqual([1, 2])
    expect(found.decision_accuracy_right).toEqual([1, 1])
    expect(found.pruned_item_rate).toEqual([0, 1])
  })

  it('count controls as the policies they are', () => {
    const left = ratios(instance, 'always-left')
    expect(left.decision_accuracy).toEqual([1, 2])
    expect(left.gold_recall).toEqual([0, 1])
    expect(left.retained_tokens![0]).toBeCloseTo(15 / 45, 15)
    expect(left.pair_accuracy).toEqual([0, 6])
    const root = ratios(instance, 'keep-root')
    expect(root.decision_accuracy).toEqual([0, 2])
    expect(root.edge_accuracy).toEqual([2, 4])
    expect([root.pruned_item_rate, root.dropped_item_rate, root.retained_tokens]).toEqual([
      [0, 1],
      [0, 1],
      [1, 1],
    ])
    const constant = ratios(instance, 'constant')
    expect([constant.pruned_item_rate, constant.dropped_item_rate, constant.retained_tokens]).toEqual([
      [1, 1],
      [0, 1],
      [1, 1],
    ])
    expect(constant.decision_accuracy).toEqual([0, 2])
  })

  it('leave out pairs of equal token sequences and say how many', () => {
    // [0, 2) became the same tokens as the root.
    const cut = { ...instance, same: Int32Array.of(0, 0, 2, 3, 4, 5, 6) }
    expect(measureInstance(cut, ['frozen']).droppedPairs).toBe(1)
    expect(ratios(cut, 'frozen').pair_accuracy).toEqual([3, 5])
    expect(ratios(cut, 'frozen').pair_accuracy_gold_child).toEqual([1, 1])
    expect(ratios(cut, 'frozen').decision_accuracy).toEqual([1, 2])
  })

  it('count one-leaf items in the second column only', () => {
    const single = ratios(instanceOf([true]), 'frozen')
    expect(single).toEqual({
      truncated_nodes: [0, 1],
      kept_tokens_all: [15, 1],
      retained_tokens_all: [1, 1],
      gold_recall_all: [1, 1],
      gold_precision_all: [1, 1],
      gold_f1_all: [1, 1],
    })
  })

  it('count items without a gold leaf and other retrieved items as tokens only', () => {
    expect(ratios(instanceOf([false, false]), 'frozen')).toEqual({})
    const frozen = { '0-2': 0.5, '0-1': 0.6, '1-2': 0.1 }
    expect(ratios(instanceOf([false, false], { frozen, role: 'other', retrieved: true }), 'frozen')).toEqual({
      tokens_other_ratio: [15, 25],
      tokens_all_ratio: [15, 25],
    })
    const { numerators } = measureInstance(instanceOf([false, false], { frozen, retrieved: true }), ['frozen'])
    const of = (name: string): number => numerators.get('frozen')![METRICS.findIndex((metric) => metric.name === name)]!
    expect([of('tokens_gold'), of('tokens_other'), of('tokens_all')]).toEqual([15, 0, 15])
  })

  it('refuse a NaN score and parts of the wrong length', () => {
    const bad = instanceOf([true, false], { frozen: { '1-2': Number.NaN } })
    expect(() => measureInstance(bad, ['frozen'])).toThrow('[1, 2)')
    expect(checkInstance(instance)).toBe(instance)
    expect(() => checkInstance({ ...instance, leafTokens: [1] })).toThrow('leafTokens')
    expect(() => checkInstance({ ...instance, same: new Int32Array(3) })).toThrow('same')
  })
})

/** An independent and slow reading of the definitions, in sets of leaves. */
function oracle(instance: ScoredInstance, scores: ArrayLike<number>): Record<string, [number, number]> {
  const { root, nodes, gold, leafTokens, headerTokens } = instance
  const range = (node: TreeNode): number[] => Array.from({ length: node.to - node.from }, (_, i) => node.from + i)
  const s = (node: TreeNode): number => scores[nodes.indexOf(node)]!
  const overlaps = (node: TreeNode): boolean => range(node).some((leaf) => gold[leaf])
  const full = (node: TreeNode): boolean => range(node).every((leaf) => gold[leaf])
  const parentOf = (node: TreeNode): TreeNode | undefined => nodes.find((other) => other.children.includes(node))
  const ancestors = (node: TreeNode): TreeNode[] => {
    const parent = parentOf(node)
    return parent === undefined ? [] : [parent, ...ancestors(parent)]
  }
  const decisions = nodes.filter((n) => n.children.length > 0 && overlaps(n) && !ancestors(n).some(full))
  const wanted = (parent: TreeNode, child: TreeNode): boolean => !full(parent) && overlaps(child)
  const entered = (parent: TreeNode, child: TreeNode): boolean => s(child) >= s(parent)
  const right = decisions.map((v) => v.children.map((u) => wanted(v, u) === entered(v, u)))
  const kept: number[] = []
  const visit = (node: TreeNode): void => {
    const next = node.children.filter((child) => entered(node, child))
    if (next.length === 0) kept.push(...range(node))
    for (const child of next) visit(child)
  }
  visit(root)
  const pairs: boolean[] = []
  for (const v of decisions) {
    for (const u of v.children) {
      if (full(v)) pairs.push(s(v) > s(u))
      else if (overlaps(u)) pairs.push(s(u) > s(v))
      else pairs.push(s(v) > s(u))
      if (!full(v) && overlaps(u)) for (const w of v.children) if (!overlaps(w)) pairs.push(s(u) > s(w))
    }
  }
  const goldLeaves = range(root).filter((leaf) => gold[leaf])
  const hits = kept.filter((leaf) => gold[leaf]).length
  const tokens = (leaves: number[]): number => leaves.reduce((sum, leaf) => sum + leafTokens[leaf]!, headerTokens)
  const [recall, precision] = [hits / goldLeaves.length, hits / kept.length]
  return {
    decision_accuracy: [right.filter((r) => r.every(Boolean)).length, right.length],
    edge_accuracy: [right.flat().filter(Boolean).length, right.flat().length],
    pair_accuracy: [pairs.filter(Boolean).length, pairs.length],
    pruned_item_rate: [root.children.some((child) => entered(root, child)) ? 1 : 0, 1],
    dropped_item_rate: [kept.length < range(root).length ? 1 : 0, 1],
    retained_tokens: [tokens(kept) / tokens(range(root)), 1],
    gold_recall: [recall, 1],
    gold_precision: [precision, 1],
    gold_f1: [hits === 0 ? 0 : (2 * recall * precision) / (recall + precision), 1],
  }
}

describe('the metrics of random trees', () => {
  const random = fc
    .record({ leaves: fc.integer({ min: 2, max: 24 }), branching: fc.integer({ min: 2, max: 5 }) })
    .chain(({ leaves, branching }) => {
      const nodes = preOrder(buildTree(leaves, branching)).length
      return fc.record({
        gold: fc.array(fc.boolean(), { minLength: leaves, maxLength: leaves }).filter((gold) => gold.includes(true)),
        branching: fc.constant(branching),
        // Few different values, so that ties are common.
        scores: fc.array(fc.integer({ min: 0, max: 4 }), { minLength: nodes, maxLength: nodes }),
        leafTokens: fc.array(fc.integer({ min: 1, max: 40 }), { minLength: leaves, maxLength: leaves }),
      })
    })

  it('equal a brute-force reading of their definitions', () => {
    fc.assert(
      fc.property(random, ({ gold, branching, scores, leafTokens }) => {
        const instance = instanceOf(gold, { branching, frozen: scores, leafTokens })
        const ours = ratios(instance, 'frozen')
        for (const [name, [numerator, denominator]] of Object.entries(oracle(instance, scores))) {
          expect(ours[name]![1], name).toBe(denominator)
          expect(ours[name]![0], name).toBeCloseTo(numerator, 12)
        }
      }),
      { numRuns: 500 },
    )
  })

  it('have cases and kinds that add up', () => {
    fc.assert(
      fc.property(random, ({ gold, branching, scores }) => {
        const instance = instanceOf(gold, { branching, frozen: scores })
        const ours = ratios(instance, 'frozen')
        const sum = (prefix: string): [number, number] =>
          Object.entries(ours)
            .filter(([name]) => name.startsWith(prefix))
            .reduce(([a, b], [, [c, d]]) => [a + c, b + d], [0, 0])
        expect(sum('decision_accuracy_')).toEqual(ours.decision_accuracy)
        expect(sum('pair_accuracy_')).toEqual(ours.pair_accuracy)
      }),
    )
  })

  it('are the same over all trees at once, as the self-check of an export looks at them', () => {
    fc.assert(
      fc.property(fc.array(random, { minLength: 1, maxLength: 6 }), (list) => {
        const instances = list.map(({ gold, branching, scores }, i) =>
          instanceOf(gold, { branching, frozen: scores, benchmark: i % 2 === 0 ? 'even' : 'odd' }),
        )
        const found = accuracyOf(instances.map((instance) => ({ ...instance, scores: instance.scores.frozen! })))
        const total = (name: string, of = instances): number => {
          const all = of.map((instance) => ratios(instance, 'frozen')[name]!)
          return all.reduce((a, [n]) => a + n, 0) / all.reduce((a, [, d]) => a + d, 0)
        }
        expect(found.decisionAccuracy).toBeCloseTo(total('decision_accuracy'), 12)
        expect(found.edgeAccuracy).toBeCloseTo(total('edge_accuracy'), 12)
        expect(found.pairAccuracy).toBeCloseTo(total('pair_accuracy'), 12)
        const parts = ['even', 'odd'].map((b) => instances.filter((i) => i.benchmark === b)).filter((p) => p.length > 0)
        const mean = parts.reduce((a, part) => a + total('decision_accuracy', part), 0) / parts.length
        expect(found.mean.decisionAccuracy).toBeCloseTo(mean, 12)
      }),
      { numRuns: 50 },
    )
  })

  it('give always-left exactly the decisions whose gold lies left, keep-root the full ones, a constant those with all', () => {
    fc.assert(
      fc.property(random, ({ gold, branching }) => {
        const instance = instanceOf(gold, { branching })
        for (const [encoder, cases] of [
          ['always-left', ['left']],
          ['keep-root', ['full']],
          ['constant', ['both']],
        ] as const) {
          const found = ratios(instance, encoder)
          const expected = cases.reduce((sum, c) => sum + (found[`decision_accuracy_${c}`]?.[1] ?? 0), 0)
          expect(found.decision_accuracy![0]).toBe(expected)
        }
        const { behaviours } = measureInstance(instance, ENCODERS.slice(3))
        expect(behaviours.get('always-left')!.kept).toEqual([expect.objectContaining({ from: 0, to: 1 })])
        expect(behaviours.get('keep-root')!.kept).toEqual([instance.root])
        expect(behaviours.get('constant')!.kept.length).toBe(gold.length)
        expect(blindScores('constant', instance.nodes).every((score) => score === 0)).toBe(true)
      }),
    )
  })
})

const shared = sharedDir()
describe.skipIf(shared === undefined)('the published cases (skipped without the shared data)', () => {
  interface Case {
    title: string
    n_units: number
    gold: string[]
    sent: string[]
    tree: PublishedNode
  }
  const load = (): Case[] =>
    (JSON.parse(readFileSync(join(shared!, 'data/canopy_cases/cases.json'), 'utf8')) as { items: Case[] }).items

  it('reproduce their outcome, and recall and precision follow from it', () => {
    const found = load().map((published) => {
      const scores = new Map<TreeNode, number>()
      const root = publishedTree(published.tree, scores)
      const gold = Array.from({ length: published.n_units }, (_, leaf) =>
        published.gold.some((id) => id.slice(1) === String(leaf)),
      )
      const instance = instanceOf(gold, { root, frozen: preOrder(root).map((node) => scores.get(node)!) })
      const { behaviours } = measureInstance(instance, ['frozen'])
      const leaves = behaviours
        .get('frozen')!
        .kept.flatMap(({ from, to }) => Array.from({ length: to - from }, (_, i) => from + i))
      expect(leaves, published.title).toEqual(published.sent.map((id) => Number(id.slice(1))))
      const { gold_recall, gold_precision, decision_accuracy } = ratios(instance, 'frozen')
      return [gold_recall![0], gold_precision![0], ...decision_accuracy!]
    })
    // Counted by hand on the five published trees: recall, precision, right decisions, decisions.
    expect(found).toEqual([
      [1, 1, 1, 1],
      [1, 2 / 3, 1, 3],
      [1, 0.5, 2, 3],
      [1, 1 / 6, 1, 3],
      [1, 1, 3, 3],
    ])
  })
})

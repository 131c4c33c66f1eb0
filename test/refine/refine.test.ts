import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { buildTree, nodeKey, preOrder, type TreeNode } from '../../src/hierarchy/index.ts'
import { enteredChildren, refine, refineVisits } from '../../src/refine/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { RUNS, range, treeWithGold } from '../hierarchy/arbitrary.ts'
import { publishedCases } from '../hierarchy/published.ts'

const byRange =
  (scores: Record<string, number>) =>
  (node: TreeNode): number =>
    scores[nodeKey(node)]!

/** The rule as it is written, recursively. */
function oracle(node: TreeNode, score: (node: TreeNode) => number): TreeNode[] {
  if (node.children.length === 0) return [node]
  const better = node.children.filter((child) => score(child) >= score(node))
  return better.length === 0 ? [node] : better.flatMap((child) => oracle(child, score))
}

/** A tree with a score for each node; few different values, so that ties are common. */
const scoredTree = treeWithGold.chain(({ root }) =>
  fc.infiniteStream(fc.integer({ min: 0, max: 6 })).map((stream) => {
    const scores = new Map(preOrder(root).map((node) => [node, stream.next().value as number]))
    return { root, score: (node: TreeNode): number => scores.get(node)! }
  }),
)

describe('refine', () => {
  it('keeps the root where no child scores as high', () => {
    expect(refine(buildTree(2), byRange({ '0-2': 0.5, '0-1': 0.4, '1-2': 0.3 })).map(range)).toEqual([[0, 2]])
  })

  it('drops children that score lower and goes into those that do not', () => {
    const scores = { '0-3': 0.2, '0-2': 0.3, '0-1': 0.1, '1-2': 0.4, '2-3': 0.1 }
    expect(refine(buildTree(3), byRange(scores)).map(range)).toEqual([[1, 2]])
  })

  it('descends on a tie', () => {
    expect(refine(buildTree(5), () => 0).map(range)).toEqual([
      [0, 1],
      [1, 2],
      [2, 3],
      [3, 4],
      [4, 5],
    ])
  })

  it('keeps an item of one leaf without asking for its score', () => {
    const asked = (): number => {
      throw new Error('asked')
    }
    expect(refine(buildTree(1), asked).map(range)).toEqual([[0, 1]])
  })

  it('compares infinite scores like others', () => {
    const scores = { '0-2': Number.NEGATIVE_INFINITY, '0-1': Number.POSITIVE_INFINITY, '1-2': Number.NEGATIVE_INFINITY }
    expect(refine(buildTree(2), byRange(scores)).length).toBe(2)
  })

  it('names the node whose score is NaN or missing, be it the node or any of its children', () => {
    const good = { '0-4': 0.5, '0-2': 0.4, '2-4': 0.6, '2-3': 0.7, '3-4': 0.1 }
    for (const key of Object.keys(good)) {
      const [from, to] = key.split('-')
      const nan = byRange({ ...good, [key]: Number.NaN })
      expect(() => refine(buildTree(4), nan)).toThrow(InputError)
      expect(() => refine(buildTree(4), nan)).toThrow(`node [${from}, ${to}) is NaN`)
      const missing = byRange(Object.fromEntries(Object.entries(good).filter(([name]) => name !== key)))
      expect(() => refine(buildTree(4), missing)).toThrow(`node [${from}, ${to}) is missing`)
    }
    expect(refine(buildTree(4), byRange(good)).map(range)).toEqual([[2, 3]])
    expect(() => refine(buildTree(2), (() => '0.5') as unknown as () => number)).toThrow('node [0, 2)')
  })

  it('follows the rule, and keeps disjoint ranges in reading order', () => {
    fc.assert(
      fc.property(scoredTree, ({ root, score }) => {
        const kept = refine(root, score)
        expect(kept).toEqual(oracle(root, score))
        expect(kept.length).toBeGreaterThan(0)
        for (let i = 1; i < kept.length; i++) expect(kept[i]!.from).toBeGreaterThanOrEqual(kept[i - 1]!.to)
      }),
      RUNS,
    )
  })

  const cases = publishedCases()
  it.skipIf(cases.length === 0)('replays the published outcomes (skipped without the shared data)', () => {
    expect(cases.length).toBe(5)
    for (const { root, score, sent, title } of cases) {
      const leaves = refine(root, score).flatMap(({ from, to }) =>
        Array.from({ length: to - from }, (_, i) => from + i),
      )
      expect(leaves, title).toEqual(sent)
    }
  })
})

describe('refineVisits', () => {
  it('lists the internal nodes visited, in pre-order, with the children entered', () => {
    const scores = { '0-4': 0.2, '0-2': 0.3, '0-1': 0.1, '1-2': 0.1, '2-4': 0.2, '2-3': 0.1, '3-4': 0.9 }
    const visits = refineVisits(buildTree(4), byRange(scores))
    expect(visits.map(({ node, entered }) => [nodeKey(node), entered.map(nodeKey)])).toEqual([
      ['0-4', ['0-2', '2-4']],
      ['0-2', []],
      ['2-4', ['3-4']],
    ])
  })

  it('agrees with refine: what is entered but not visited as an internal node, or left whole, is what is kept', () => {
    fc.assert(
      fc.property(scoredTree, ({ root, score }) => {
        const visits = refineVisits(root, score)
        const whole = visits.filter(({ entered }) => entered.length === 0).map(({ node }) => node)
        const leaves = visits.flatMap(({ entered }) => entered.filter((node) => node.children.length === 0))
        const kept = root.children.length === 0 ? [root] : [...whole, ...leaves].sort((a, b) => a.from - b.from)
        expect(refine(root, score)).toEqual(kept)
        for (const { node, entered } of visits) expect(entered).toEqual(enteredChildren(node, score))
      }),
      { numRuns: 200 },
    )
  })
})

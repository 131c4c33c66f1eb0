import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { buildTree, nodeKey, preOrder, type TreeNode } from '../../src/hierarchy/index.ts'
import { enteredChildren, leafMargins, refine, refineVisits } from '../../src/refine/index.ts'
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

describe('refine with a margin', () => {
  /** Margins that meet the gaps of {@link scoredTree}'s whole-numbered scores, lie between them, and are beyond all. */
  const margin = fc.oneof(
    fc.integer({ min: 0, max: 7 }),
    fc.double({ min: 0, max: 7, noNaN: true }),
    fc.constant(Number.POSITIVE_INFINITY),
  )
  /** Scores as an encoder gives them, infinite ones among them. */
  const anyScores = treeWithGold.chain(({ root }) =>
    fc
      .infiniteStream(fc.oneof({ weight: 9, arbitrary: fc.float({ noNaN: true }) }, fc.double({ noNaN: true })))
      .map((stream) => {
        const scores = new Map(preOrder(root).map((node) => [node, stream.next().value as number]))
        return { root, score: (node: TreeNode): number => scores.get(node)! }
      }),
  )
  const leavesOf = (kept: readonly TreeNode[]): number[] =>
    kept.flatMap(({ from, to }) => Array.from({ length: to - from }, (_, i) => from + i))

  /** The rule with a margin as it is written, recursively. */
  function oracleWith(node: TreeNode, score: (node: TreeNode) => number, m: number): TreeNode[] {
    const asHigh = node.children.some((child) => score(child) >= score(node))
    if (!asHigh) return [node]
    const near = node.children.filter((child) => score(child) >= score(node) || score(node) - score(child) <= m)
    return near.flatMap((child) => oracleWith(child, score, m))
  }

  it('enters what scores at most so much below, where something scores as high', () => {
    const scores = { '0-4': 0.5, '0-2': 0.375, '0-1': 0.125, '1-2': 0.375, '2-4': 0.625, '2-3': 0.5, '3-4': 0.25 }
    const kept = (m?: number) => refine(buildTree(4), byRange(scores), { margin: m }).map(range)
    expect(kept()).toEqual([[2, 4]])
    expect(kept(0.124)).toEqual([[2, 4]])
    expect(kept(0.125)).toEqual([
      [1, 2],
      [2, 4],
    ])
    expect(kept(Number.POSITIVE_INFINITY)).toEqual([
      [0, 1],
      [1, 2],
      [2, 4],
    ])
    expect([...leafMargins(buildTree(4), byRange(scores))]).toEqual([0.25, 0.125, 0, 0])
  })

  it('of 0 is the rule to the letter', () => {
    fc.assert(
      fc.property(fc.oneof(scoredTree, anyScores), ({ root, score }) => {
        expect(refine(root, score, { margin: 0 })).toEqual(oracle(root, score))
        expect(refine(root, score, {})).toEqual(oracle(root, score))
        expect(refineVisits(root, score, { margin: 0 })).toEqual(refineVisits(root, score))
      }),
      RUNS,
    )
  })

  it('follows the rule with a margin, and keeps disjoint ranges in reading order', () => {
    fc.assert(
      fc.property(fc.oneof(scoredTree, anyScores), margin, ({ root, score }, m) => {
        const kept = refine(root, score, { margin: m })
        expect(kept).toEqual(oracleWith(root, score, m))
        expect(kept.length).toBeGreaterThan(0)
        for (let i = 1; i < kept.length; i++) expect(kept[i]!.from).toBeGreaterThanOrEqual(kept[i - 1]!.to)
        for (const { node, entered } of refineVisits(root, score, { margin: m }))
          expect(entered).toEqual(enteredChildren(node, score, { margin: m }))
      }),
      RUNS,
    )
  })

  it('never loses by a larger one what a smaller one keeps', () => {
    fc.assert(
      fc.property(fc.oneof(scoredTree, anyScores), margin, margin, ({ root, score }, one, other) => {
        const smaller = refine(root, score, { margin: Math.min(one, other) })
        const larger = new Set(refine(root, score, { margin: Math.max(one, other) }))
        expect(smaller.filter((node) => !larger.has(node))).toEqual([])
      }),
      RUNS,
    )
  })

  it('of Infinity keeps every leaf', () => {
    fc.assert(
      fc.property(fc.oneof(scoredTree, anyScores), ({ root, score }) => {
        const kept = leavesOf(refine(root, score, { margin: Number.POSITIVE_INFINITY }))
        expect(kept).toEqual(Array.from({ length: root.to }, (_, leaf) => leaf))
      }),
      RUNS,
    )
  })

  it('keeps the leaves whose own margin is at most as large', () => {
    fc.assert(
      fc.property(fc.oneof(scoredTree, anyScores), margin, ({ root, score }, m) => {
        const margins = leafMargins(root, score)
        expect(margins.length).toBe(root.to)
        const within = [...margins.keys()].filter((leaf) => margins[leaf]! <= m)
        expect(leavesOf(refine(root, score, { margin: m }))).toEqual(within)
        // its own margin is the smallest at which a leaf is kept
        for (const own of new Set(margins)) {
          if (own === 0) continue
          const at = leavesOf(refine(root, score, { margin: own }))
          expect(at).toEqual([...margins.keys()].filter((leaf) => margins[leaf]! <= own))
        }
      }),
      { numRuns: 200 },
    )
  })

  it('is refused when it is negative or no number', () => {
    for (const m of [-0.1, Number.NEGATIVE_INFINITY, Number.NaN, '0.1' as unknown as number]) {
      for (const of of [refine, refineVisits, enteredChildren])
        expect(() => of(buildTree(2), () => 0, { margin: m }), String(m)).toThrow(RangeError)
      // also where nothing is to be decided
      expect(() => refine(buildTree(1), () => 0, { margin: m })).toThrow(RangeError)
    }
  })

  it('names the node whose score is NaN, as without one', () => {
    const score = byRange({ '0-2': 0.5, '0-1': 0.6, '1-2': Number.NaN })
    expect(() => refine(buildTree(2), score, { margin: 1 })).toThrow('node [1, 2) is NaN')
    expect(() => leafMargins(buildTree(2), score)).toThrow('node [1, 2) is NaN')
  })

  const cases = publishedCases()
  it.skipIf(cases.length === 0)(
    'leaves the published outcomes at 0, and only adds to them (skipped without the shared data)',
    () => {
      for (const { root, score, sent, title } of cases) {
        expect(leavesOf(refine(root, score, { margin: 0 })), title).toEqual(sent)
        const margins = leafMargins(root, score)
        expect(
          [...margins.keys()].filter((leaf) => margins[leaf] === 0),
          title,
        ).toEqual(sent)
      }
    },
  )
})

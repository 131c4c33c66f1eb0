import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { buildTree, nodeKey, preOrder, type TreeNode } from '../../src/hierarchy/index.ts'
import { decisionCase, decisionNodes, type PreferencePair, preferencePairs } from '../../src/preferences/index.ts'
import { refine, refineVisits } from '../../src/refine/index.ts'
import { RUNS, range, treeWithGold } from '../hierarchy/arbitrary.ts'
import { publishedCases } from '../hierarchy/published.ts'

const show = ({ preferred, other, kind }: PreferencePair): string => `${nodeKey(preferred)} > ${nodeKey(other)} ${kind}`

const isGold =
  (...leaves: number[]) =>
  (leaf: number): boolean =>
    leaves.includes(leaf)

const leavesOf = ({ from, to }: TreeNode): number[] => Array.from({ length: to - from }, (_, i) => from + i)

/** The definition, word for word, looking at every leaf again each time. */
function oraclePairs(root: TreeNode, gold: boolean[]): string[] {
  const overlapping = (node: TreeNode): boolean => leavesOf(node).some((leaf) => gold[leaf])
  const fully = (node: TreeNode): boolean => leavesOf(node).every((leaf) => gold[leaf])
  const all = preOrder(root)
  const properAncestors = (node: TreeNode): TreeNode[] =>
    all.filter((other) => other !== node && other.from <= node.from && other.to >= node.to)
  const pairs: string[] = []
  for (const v of all) {
    if (v.children.length === 0 || !overlapping(v) || properAncestors(v).some(fully)) continue
    if (fully(v)) {
      for (const u of v.children) pairs.push(`${nodeKey(v)} > ${nodeKey(u)} fully-gold`)
      continue
    }
    const G = v.children.filter(overlapping)
    const N = v.children.filter((child) => !overlapping(child))
    for (const u of G) pairs.push(`${nodeKey(u)} > ${nodeKey(v)} gold-child`)
    for (const w of N) pairs.push(`${nodeKey(v)} > ${nodeKey(w)} non-gold-child`)
    for (const u of G) for (const w of N) pairs.push(`${nodeKey(u)} > ${nodeKey(w)} sibling-separation`)
  }
  return pairs
}

/** Gold itself as the score: refinement by it is the ideal one. A fully gold node scores above its children. */
function idealScore(root: TreeNode, gold: boolean[]): (node: TreeNode) => number {
  const scores = new Map<TreeNode, number>()
  const assign = (node: TreeNode, depth: number, insideFull: boolean): void => {
    const count = leavesOf(node).filter((leaf) => gold[leaf]).length
    scores.set(node, count === 0 || insideFull ? -1 : depth)
    for (const child of node.children) assign(child, depth + 1, count === node.to - node.from)
  }
  assign(root, 0, false)
  return (node) => scores.get(node)!
}

/**
 * Scores that satisfy every pair strictly and are otherwise arbitrary: a random order of all nodes that extends the pairs'.
 *
 * @param pick a random number below its argument
 */
function satisfyingScores(root: TreeNode, pairs: PreferencePair[], pick: (n: number) => number) {
  const nodes = preOrder(root)
  const blockers = new Map(nodes.map((node) => [node, 0]))
  const below = new Map<TreeNode, TreeNode[]>(nodes.map((node) => [node, []]))
  for (const { preferred, other } of pairs) {
    blockers.set(other, blockers.get(other)! + 1)
    below.get(preferred)!.push(other)
  }
  const free = nodes.filter((node) => blockers.get(node) === 0)
  const scores = new Map<TreeNode, number>()
  while (free.length > 0) {
    const [node] = free.splice(pick(free.length), 1) as [TreeNode]
    scores.set(node, -scores.size)
    for (const other of below.get(node)!) {
      blockers.set(other, blockers.get(other)! - 1)
      if (blockers.get(other) === 0) free.push(other)
    }
  }
  expect(scores.size, 'the pairs contradict each other').toBe(nodes.length)
  return (node: TreeNode): number => scores.get(node)!
}

describe('preferencePairs', () => {
  it('lists, for a decision node, gold children, then others, then their separation', () => {
    expect(preferencePairs(buildTree(6, 3), isGold(0, 5)).map(show)).toEqual([
      '0-2 > 0-6 gold-child',
      '4-6 > 0-6 gold-child',
      '0-6 > 2-4 non-gold-child',
      '0-2 > 2-4 sibling-separation',
      '4-6 > 2-4 sibling-separation',
      '0-1 > 0-2 gold-child',
      '0-2 > 1-2 non-gold-child',
      '0-1 > 1-2 sibling-separation',
      '5-6 > 4-6 gold-child',
      '4-6 > 4-5 non-gold-child',
      '5-6 > 4-5 sibling-separation',
    ])
  })

  it('prefers a fully gold node over its children and goes no deeper', () => {
    expect(preferencePairs(buildTree(4), isGold(0, 1)).map(show)).toEqual([
      '0-2 > 0-4 gold-child',
      '0-4 > 2-4 non-gold-child',
      '0-2 > 2-4 sibling-separation',
      '0-2 > 0-1 fully-gold',
      '0-2 > 1-2 fully-gold',
    ])
    expect(preferencePairs(buildTree(4), () => true).map(show)).toEqual([
      '0-4 > 0-2 fully-gold',
      '0-4 > 2-4 fully-gold',
    ])
  })

  it('has nothing to say about one leaf, or without gold', () => {
    expect(preferencePairs(buildTree(1), () => true)).toEqual([])
    expect(preferencePairs(buildTree(9), () => false)).toEqual([])
  })

  it('works on a part of a tree, whose leaves keep their numbers', () => {
    const part = buildTree(6).children[1] as TreeNode
    expect(preferencePairs(part, isGold(5)).map(show)).toEqual([
      '5-6 > 3-6 gold-child',
      '3-6 > 3-5 non-gold-child',
      '5-6 > 3-5 sibling-separation',
    ])
  })

  it('agrees with the definition, pair by pair and in order', () => {
    const small = treeWithGold.filter(({ gold }) => gold.length <= 120)
    fc.assert(
      fc.property(small, ({ root, gold }) => {
        expect(preferencePairs(root, (leaf) => gold[leaf]!).map(show)).toEqual(oraclePairs(root, gold))
      }),
      { numRuns: 400 },
    )
  })

  it('is satisfied strictly only by scores with which refinement keeps exactly the gold leaves', () => {
    fc.assert(
      fc.property(treeWithGold, fc.infiniteStream(fc.nat()), ({ root, gold }, stream) => {
        const pairs = preferencePairs(root, (leaf) => gold[leaf]!)
        const score = satisfyingScores(root, pairs, (n) => (stream.next().value as number) % n)
        for (const { preferred, other } of pairs) expect(score(preferred)).toBeGreaterThan(score(other))
        const kept = new Set(refine(root, score).flatMap(leavesOf))
        expect(gold.map((_, leaf) => kept.has(leaf))).toEqual(gold)
      }),
      RUNS,
    )
  })

  const cases = publishedCases()
  it.skipIf(cases.length === 0)('finds pairs on the published trees (skipped without the shared data)', () => {
    const stumpf = cases.find(({ title }) => title === 'John Stumpf')!
    expect(preferencePairs(stumpf.root, (leaf) => stumpf.gold.includes(leaf)).map(show)).toEqual([
      '0-3 > 0-6 gold-child',
      '0-6 > 3-6 non-gold-child',
      '0-3 > 3-6 sibling-separation',
      '0-2 > 0-3 gold-child',
      '2-3 > 0-3 gold-child',
      '1-2 > 0-2 gold-child',
      '0-2 > 0-1 non-gold-child',
      '1-2 > 0-1 sibling-separation',
    ])
  })
})

describe('decisionNodes', () => {
  it('are exactly the internal nodes that ideal refinement visits, with the children that it enters', () => {
    fc.assert(
      fc.property(treeWithGold, ({ root, gold }) => {
        const decisions = decisionNodes(root, (leaf) => gold[leaf]!)
        const ideal = refineVisits(root, idealScore(root, gold))
        expect(decisions.map(({ node }) => range(node))).toEqual(ideal.map(({ node }) => range(node)))
        for (const [i, { full, gold: asked, rest, node }] of decisions.entries()) {
          expect(full ? [] : asked).toEqual(ideal[i]!.entered)
          expect([...asked, ...rest].sort((a, b) => a.from - b.from)).toEqual(node.children)
        }
      }),
      RUNS,
    )
  })
})

describe('the case of a decision node', () => {
  const caseOf = (gold: boolean[], branching: number): string =>
    decisionCase(decisionNodes(buildTree(gold.length, branching), (leaf) => gold[leaf]!)[0]!)

  it('says where the gold lies, whatever the branching factor', () => {
    const [g, o] = [true, false]
    expect([caseOf([g, o], 2), caseOf([o, g], 2), caseOf([g, g, g, o], 2), caseOf([g, g], 2)]).toEqual([
      'left',
      'right',
      'both',
      'full',
    ])
    expect([caseOf([g, o, o], 3), caseOf([o, o, g], 3), caseOf([o, g, o], 3), caseOf([g, g, o], 3)]).toEqual([
      'left',
      'right',
      'some',
      'some',
    ])
    expect([caseOf([g, g, g, g, o, g], 3), caseOf([g, g, g], 3)]).toEqual(['both', 'full'])
  })
})

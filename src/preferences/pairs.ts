import type { TreeNode } from '../hierarchy/index.ts'

/** Why one node is preferred over another. */
export type PairKind = 'fully-gold' | 'gold-child' | 'non-gold-child' | 'sibling-separation'

/** The kinds, in the order in which the pairs of a decision node are listed. */
export const PAIR_KINDS: readonly PairKind[] = ['fully-gold', 'gold-child', 'non-gold-child', 'sibling-separation']

/** `preferred` shall score higher than `other` for the query. */
export interface PreferencePair {
  preferred: TreeNode
  other: TreeNode
  kind: PairKind
}

/** An internal node that ideal refinement visits, and what gold asks of it there. */
export interface DecisionNode {
  node: TreeNode
  /** Every leaf of the node is gold: it is to be kept whole. */
  full: boolean
  /** Children with at least one gold leaf: unless `full`, exactly these are to be entered. */
  gold: TreeNode[]
  /** Children without one. */
  rest: TreeNode[]
}

/**
 * The decision nodes of a tree, in pre-order: internal nodes with at least one gold leaf and no fully gold proper ancestor.
 * These are exactly the internal nodes that ideal refinement visits.
 */
export function decisionNodes(root: TreeNode, isGold: (leaf: number) => boolean): DecisionNode[] {
  const goldLeaves = goldCounter(root, isGold)
  const decisions: DecisionNode[] = []
  const stack: TreeNode[] = [root]
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
    const count = goldLeaves(node)
    if (count === 0 || node.children.length === 0) continue
    const full = count === node.to - node.from
    const gold: TreeNode[] = []
    const rest: TreeNode[] = []
    for (const child of node.children) (goldLeaves(child) > 0 ? gold : rest).push(child)
    decisions.push({ node, full, gold, rest })
    if (!full) for (let i = gold.length - 1; i >= 0; i--) stack.push(gold[i]!)
  }
  return decisions
}

/**
 * The preference pairs that gold leaves imply. For each decision node v in pre-order: if all its leaves are gold, v over
 * every child (`fully-gold`); otherwise every gold-overlapping child over v (`gold-child`), then v over every other child
 * (`non-gold-child`), then every gold-overlapping child over every other one (`sibling-separation`).
 *
 * Scores that satisfy all of them strictly make refinement keep exactly the gold leaves. A tree of one leaf, or one without
 * gold, has no pairs.
 */
export function preferencePairs(root: TreeNode, isGold: (leaf: number) => boolean): PreferencePair[] {
  return decisionNodes(root, isGold).flatMap(decisionPairs)
}

/** The pairs of one decision node, in the order of {@link preferencePairs}. */
export function decisionPairs({ node, full, gold, rest }: DecisionNode): PreferencePair[] {
  if (full) return gold.map((child) => ({ preferred: node, other: child, kind: 'fully-gold' }))
  return [
    ...gold.map((child): PreferencePair => ({ preferred: child, other: node, kind: 'gold-child' })),
    ...rest.map((child): PreferencePair => ({ preferred: node, other: child, kind: 'non-gold-child' })),
    ...gold.flatMap((preferred) =>
      rest.map((other): PreferencePair => ({ preferred, other, kind: 'sibling-separation' })),
    ),
  ]
}

/**
 * Where the gold lies below a decision node. `full`: everywhere, the node is to be kept. Otherwise, by its gold-overlapping
 * children: `left` only the first, `right` only the last, `both` every one, `some` any other choice (more than two children).
 */
export type DecisionCase = 'left' | 'right' | 'both' | 'full' | 'some'

/** The cases, in the order of every table. */
export const DECISION_CASES: readonly DecisionCase[] = ['left', 'right', 'both', 'full', 'some']

export function decisionCase({ node, full, gold }: DecisionNode): DecisionCase {
  if (full) return 'full'
  if (gold.length === node.children.length) return 'both'
  if (gold.length > 1) return 'some'
  if (gold[0] === node.children[0]) return 'left'
  return gold[0] === node.children.at(-1) ? 'right' : 'some'
}

/** Number of gold leaves under a node, in constant time; asks about each leaf once. */
function goldCounter(root: TreeNode, isGold: (leaf: number) => boolean): (node: TreeNode) => number {
  const before = new Uint32Array(root.to - root.from + 1)
  for (let leaf = root.from; leaf < root.to; leaf++) {
    const i = leaf - root.from
    before[i + 1] = before[i]! + (isGold(leaf) ? 1 : 0)
  }
  return (node) => before[node.to - root.from]! - before[node.from - root.from]!
}

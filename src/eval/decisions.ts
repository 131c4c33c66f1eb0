import type { TreeNode } from '../hierarchy/index.ts'
import { type DecisionNode, decisionNodes, decisionPairs, PAIR_KINDS, type PairKind } from '../preferences/index.ts'
import { enteredChildren } from '../refine/index.ts'
import { getOrMake } from './maps.ts'
import { indexOfNodes, scoreOf } from './scored.ts'

/** The children that gold asks refinement to enter at a decision node; none: the node is to be kept whole. */
function childrenToEnter({ full, gold }: DecisionNode): TreeNode[] {
  return full ? [] : gold
}

/** What the rule does at one decision node with given scores. */
export interface JudgedDecision {
  decision: DecisionNode
  /** Children entered. */
  entered: TreeNode[]
  /** All children are right: exactly those are entered that gold asks for. */
  correct: boolean
  /** Children that are right: entered and asked for, or neither. */
  edgesRight: number
}

/**
 * The refinement rule at each decision node of a tree, judged against gold. Decision nodes are the internal nodes that ideal
 * refinement visits, whether or not these scores would have led there.
 *
 * @throws InputError for a missing or NaN score of a decision node or its children
 */
export function judgeDecisions(
  decisions: readonly DecisionNode[],
  score: (node: TreeNode) => number,
): JudgedDecision[] {
  return decisions.map((decision) => {
    const entered = enteredChildren(decision.node, score)
    const wanted = new Set(childrenToEnter(decision))
    const taken = new Set(entered)
    const edgesRight = decision.node.children.filter((child) => taken.has(child) === wanted.has(child)).length
    return { decision, entered, edgesRight, correct: edgesRight === decision.node.children.length }
  })
}

/** Pairs of one kind: how many can be compared, how many come out right, how many were dropped. */
export interface PairCount {
  right: number
  total: number
  /** Pairs of two nodes with the same token sequence: their scores are equal by construction and teach nothing. */
  dropped: number
}

/**
 * Preference pairs that the scores satisfy: the preferred node scores strictly higher.
 *
 * @param same [nodes] index of the first node with the same token sequence; without it no pair is dropped
 */
export function countPairs(
  decisions: readonly DecisionNode[],
  nodes: readonly TreeNode[],
  scores: ArrayLike<number>,
  same?: ArrayLike<number>,
): Record<PairKind, PairCount> {
  const index = indexOfNodes(nodes)
  const counts = Object.fromEntries(
    PAIR_KINDS.map((kind): [string, PairCount] => [kind, { right: 0, total: 0, dropped: 0 }]),
  ) as Record<PairKind, PairCount>
  for (const decision of decisions) {
    for (const { preferred, other, kind } of decisionPairs(decision)) {
      const count = counts[kind]
      const [p, o] = [index.get(preferred)!, index.get(other)!]
      if (same !== undefined && same[p] === same[o]) count.dropped++
      else {
        count.total++
        if (scores[p]! > scores[o]!) count.right++
      }
    }
  }
  return counts
}

/** What {@link accuracyOf} needs of an instance: its tree, gold leaves and one score a node (pre-order). */
export interface ScoredTree {
  benchmark?: string
  nodes: readonly TreeNode[]
  gold: readonly boolean[]
  scores: ArrayLike<number>
  same?: ArrayLike<number>
}

/** Shares over all decision nodes, edges and pairs; NaN where there is none. */
export interface Accuracy {
  decisionAccuracy: number
  edgeAccuracy: number
  pairAccuracy: number
  decisions: number
  edges: number
  pairs: number
}

/**
 * Decision, edge and pair accuracy of scored trees, without intervals: what the self-check of an export looks at.
 * `mean` is the plain mean of the benchmarks' own accuracies (NaN ones left out).
 */
export function accuracyOf(
  trees: Iterable<ScoredTree>,
): Accuracy & { mean: Accuracy; benchmarks: Map<string, Accuracy> } {
  const sums = new Map<string, Tally>()
  const pooled = emptyTally()
  for (const { benchmark = '', nodes, gold, scores, same } of trees) {
    const root = nodes[0]
    if (root === undefined) continue
    const sum = getOrMake(sums, benchmark, emptyTally)
    const decisions = decisionNodes(root, (leaf) => gold[leaf] ?? false)
    for (const { correct, edgesRight, decision } of judgeDecisions(decisions, scoreOf(nodes, scores))) {
      for (const tally of [sum, pooled]) {
        tally.decisions++
        tally.edges += decision.node.children.length
        tally.edgesRight += edgesRight
        if (correct) tally.decisionsRight++
      }
    }
    for (const { right, total } of Object.values(countPairs(decisions, nodes, scores, same))) {
      for (const tally of [sum, pooled]) {
        tally.pairs += total
        tally.pairsRight += right
      }
    }
  }
  const benchmarks = new Map([...sums].map(([name, tally]) => [name, shares(tally)]))
  const mean = (pick: (accuracy: Accuracy) => number): number => {
    const values = [...benchmarks.values()].map(pick).filter((value) => !Number.isNaN(value))
    return values.reduce((a, b) => a + b, 0) / values.length
  }
  return {
    ...shares(pooled),
    mean: {
      ...shares(pooled),
      decisionAccuracy: mean((a) => a.decisionAccuracy),
      edgeAccuracy: mean((a) => a.edgeAccuracy),
      pairAccuracy: mean((a) => a.pairAccuracy),
    },
    benchmarks,
  }
}

interface Tally {
  decisions: number
  decisionsRight: number
  edges: number
  edgesRight: number
  pairs: number
  pairsRight: number
}

const emptyTally = (): Tally => ({ decisions: 0, decisionsRight: 0, edges: 0, edgesRight: 0, pairs: 0, pairsRight: 0 })

const shares = (tally: Tally): Accuracy => ({
  decisionAccuracy: tally.decisionsRight / tally.decisions,
  edgeAccuracy: tally.edgesRight / tally.edges,
  pairAccuracy: tally.pairsRight / tally.pairs,
  decisions: tally.decisions,
  edges: tally.edges,
  pairs: tally.pairs,
})

import type { TreeNode } from '../hierarchy/index.ts'
import { type NodeScore, refine, refineVisits } from '../refine/index.ts'

/** One visit of refinement. */
export interface Step {
  node: TreeNode
  /** Children that it goes into. */
  entered: TreeNode[]
  /** Children that it drops with all that is below them; none where the node is kept. */
  dropped: TreeNode[]
  /** Whether the node is kept: a leaf, or an internal node none of whose children scores as high. */
  kept: boolean
}

/**
 * Every visit of refinement in the order in which it happens, leaves included: {@link refineVisits} and {@link refine} told as one
 * story. Nodes in the steps are those of `nodes`, the tree in pre-order.
 *
 * @throws InputError naming the node whose score is missing or NaN
 */
export function replay(nodes: readonly TreeNode[], score: NodeScore): Step[] {
  const root = nodes[0]!
  const place = new Map(nodes.map((node, i) => [node, i]))
  const decided = refineVisits(root, score).map(({ node, entered }): Step => {
    const kept = entered.length === 0
    return { node, entered, dropped: kept ? [] : node.children.filter((child) => !entered.includes(child)), kept }
  })
  const leaves = refine(root, score)
    .filter(({ children }) => children.length === 0)
    .map((node): Step => ({ node, entered: [], dropped: [], kept: true }))
  // Refinement visits in pre-order.
  return [...decided, ...leaves].sort((a, b) => place.get(a.node)! - place.get(b.node)!)
}

/**
 * What has become of a node: `open` not reached yet, `waiting` entered and to be visited, `entered` replaced by children,
 * `kept`, `within` a kept node, `dropped` (or below a dropped one).
 */
export type NodeState = 'open' | 'waiting' | 'entered' | 'kept' | 'within' | 'dropped'

/** [nodes]: the state of every node after the first `count` steps. */
export function statesAfter(nodes: readonly TreeNode[], steps: readonly Step[], count: number): NodeState[] {
  const states = new Map<TreeNode, NodeState>([[nodes[0]!, 'waiting']])
  const below = (node: TreeNode, state: NodeState): void => {
    for (const child of node.children) {
      states.set(child, state)
      below(child, state)
    }
  }
  for (const { node, entered, dropped, kept } of steps.slice(0, count)) {
    states.set(node, kept ? 'kept' : 'entered')
    if (kept) below(node, 'within')
    for (const child of entered) states.set(child, 'waiting')
    for (const child of dropped) {
      states.set(child, 'dropped')
      below(child, 'dropped')
    }
  }
  return nodes.map((node) => states.get(node) ?? 'open')
}

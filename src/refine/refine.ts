import type { TreeNode } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'

/** The score of a node against the query. Only scores of one item are ever compared. */
export type NodeScore = (node: TreeNode) => number

/** What refinement did at one internal node it visited: the children it went into; none means that it kept the node whole. */
export interface Decision {
  node: TreeNode
  entered: TreeNode[]
}

/**
 * The children that refinement enters at an internal node: those that score at least as high as the node. Ties descend.
 *
 * @throws InputError naming the node whose score is missing or NaN
 */
export function enteredChildren(node: TreeNode, score: NodeScore): TreeNode[] {
  const threshold = checkedScore(node, score)
  return node.children.filter((child) => {
    // Evaluated for every child, so that a bad score never hides behind another one.
    return checkedScore(child, score) >= threshold
  })
}

/**
 * The evidence that refinement keeps: a list of disjoint nodes in reading order. From the root, a leaf that is visited is
 * kept; an internal node is replaced by its children that score at least as high as it, each then visited in turn, the
 * other children's subtrees dropped; where no child does, the node is kept whole. (CANOPY, the refinement rule.)
 *
 * `score` is asked about visited nodes and their children only.
 *
 * @throws InputError naming the node whose score is missing or NaN
 */
export function refine(root: TreeNode, score: NodeScore): TreeNode[] {
  return walk(root, score).kept
}

/**
 * The decisions behind {@link refine}, in pre-order: every internal node that was visited, with the children entered.
 *
 * @throws InputError naming the node whose score is missing or NaN
 */
export function refineVisits(root: TreeNode, score: NodeScore): Decision[] {
  return walk(root, score).decisions
}

function walk(root: TreeNode, score: NodeScore): { kept: TreeNode[]; decisions: Decision[] } {
  const kept: TreeNode[] = []
  const decisions: Decision[] = []
  const stack: TreeNode[] = [root]
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
    if (node.children.length === 0) {
      kept.push(node)
      continue
    }
    const entered = enteredChildren(node, score)
    decisions.push({ node, entered })
    if (entered.length === 0) kept.push(node)
    for (let i = entered.length - 1; i >= 0; i--) stack.push(entered[i]!)
  }
  return { kept, decisions }
}

function checkedScore(node: TreeNode, score: NodeScore): number {
  const value: unknown = score(node)
  if (typeof value === 'number' && !Number.isNaN(value)) return value
  const what = value === undefined || value === null ? 'missing' : String(value)
  throw new InputError(
    `The score of node [${node.from}, ${node.to}) is ${what}; refinement compares numbers, so score every node of the item.`,
  )
}

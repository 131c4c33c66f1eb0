import type { TreeNode } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'

/** The score of a node against the query. Only scores of one item are ever compared. */
export type NodeScore = (node: TreeNode) => number

export interface RefineOptions {
  /**
   * How far below its parent a child may score and still be entered beside one that scores as high as the parent: 0 (default) is
   * CANOPY's rule, more trades tokens for recall, `Infinity` drops nothing. In units of the scores, so one that was picked for one
   * encoder says nothing about another.
   */
  margin?: number | undefined
}

/** What refinement did at one internal node it visited: the children it went into; none means that it kept the node whole. */
export interface Decision {
  node: TreeNode
  entered: TreeNode[]
}

/**
 * The children that refinement enters at an internal node v: those that score at least as high as the node, ties included; with
 * a margin m, where there is such a child, every u with s(v) - s(u) <= m.
 *
 * @throws RangeError for a margin that is NaN or below 0
 * @throws InputError naming the node whose score is missing or NaN
 */
export function enteredChildren(node: TreeNode, score: NodeScore, { margin = 0 }: RefineOptions = {}): TreeNode[] {
  requireMargin(margin)
  const { gaps, keptWhole } = gapsOf(node, score)
  return keptWhole ? [] : node.children.filter((_, c) => gaps[c]! <= margin)
}

/**
 * The evidence that refinement keeps: a list of disjoint nodes in reading order. From the root, a leaf that is visited is
 * kept; an internal node is replaced by its children that score at least as high as it, each then visited in turn, the
 * other children's subtrees dropped; where no child does, the node is kept whole. (CANOPY, the refinement rule.)
 *
 * With `margin`, a node that is replaced gives way to its children down to that much below its own score, too. Where no child scores
 * as high as the node it is still kept whole, so a margin decides only about what would be dropped: whatever a smaller one keeps, a
 * larger one keeps as well, node for node.
 *
 * `score` is asked about visited nodes and their children only.
 *
 * @throws RangeError for a margin that is NaN or below 0
 * @throws InputError naming the node whose score is missing or NaN
 * @example
 * refine(root, score)                      // the rule
 * refine(root, score, { margin: 0.034 })   // picked by "canopy evaluate --min-recall 0.9"
 */
export function refine(root: TreeNode, score: NodeScore, options: RefineOptions = {}): TreeNode[] {
  return walk(root, score, options).kept
}

/**
 * The decisions behind {@link refine}, in pre-order: every internal node that was visited, with the children entered.
 *
 * @throws RangeError for a margin that is NaN or below 0
 * @throws InputError naming the node whose score is missing or NaN
 */
export function refineVisits(root: TreeNode, score: NodeScore, options: RefineOptions = {}): Decision[] {
  return walk(root, score, options).decisions
}

/**
 * [leaves]: the smallest margin at which {@link refine} keeps the leaf; 0 for those that it keeps anyway. `refine` with a margin m
 * keeps exactly the leaves whose number here is at most m, so one walk answers for every margin.
 *
 * @throws InputError naming the node whose score is missing or NaN; every internal node's and their children's are asked for, except
 *   below a node that is kept whole
 */
export function leafMargins(root: TreeNode, score: NodeScore): Float64Array {
  const margins = new Float64Array(root.to - root.from)
  // A node is reached once the margin has room for the widest gap on the way down to it.
  const stack: { node: TreeNode; reached: number }[] = [{ node: root, reached: 0 }]
  for (let next = stack.pop(); next !== undefined; next = stack.pop()) {
    const { node, reached } = next
    const { gaps, keptWhole } = node.children.length === 0 ? { gaps: [], keptWhole: true } : gapsOf(node, score)
    if (keptWhole) margins.fill(reached, node.from - root.from, node.to - root.from)
    else
      for (const [c, child] of node.children.entries())
        stack.push({ node: child, reached: Math.max(reached, gaps[c]!) })
  }
  return margins
}

function walk(root: TreeNode, score: NodeScore, options: RefineOptions): { kept: TreeNode[]; decisions: Decision[] } {
  requireMargin(options.margin ?? 0)
  const kept: TreeNode[] = []
  const decisions: Decision[] = []
  const stack: TreeNode[] = [root]
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
    if (node.children.length === 0) {
      kept.push(node)
      continue
    }
    const entered = enteredChildren(node, score, options)
    decisions.push({ node, entered })
    if (entered.length === 0) kept.push(node)
    for (let i = entered.length - 1; i >= 0; i--) stack.push(entered[i]!)
  }
  return { kept, decisions }
}

/** [children]: how far each scores below the node, 0 where it scores as high; and whether none does. */
function gapsOf(node: TreeNode, score: NodeScore): { gaps: number[]; keptWhole: boolean } {
  const own = checkedScore(node, score)
  // Evaluated for every child, so that a bad score never hides behind another one. As high as the node is asked first: the
  // difference of two infinite scores is no number.
  const gaps = node.children.map((child) => {
    const value = checkedScore(child, score)
    return value >= own ? 0 : own - value
  })
  return { gaps, keptWhole: !gaps.includes(0) }
}

function requireMargin(margin: number): void {
  if (typeof margin === 'number' && margin >= 0) return
  throw new RangeError(`A margin is a number, 0 or more; ${String(margin)} is none.`)
}

function checkedScore(node: TreeNode, score: NodeScore): number {
  const value: unknown = score(node)
  if (typeof value === 'number' && !Number.isNaN(value)) return value
  const what = value === undefined || value === null ? 'missing' : String(value)
  throw new InputError(
    `The score of node [${node.from}, ${node.to}) is ${what}; refinement compares numbers, so score every node of the item.`,
  )
}

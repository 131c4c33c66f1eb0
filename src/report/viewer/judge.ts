import type { TreeNode } from '../../hierarchy/index.ts'
import type { ViewerEncoder, ViewerInstance, ViewerQuestion } from '../viewer-data.ts'

/** Decisions of an encoder on a question's gold items; undefined where it has no scores. */
export function tally(question: ViewerQuestion, encoder: ViewerEncoder): { right: number; of: number } | undefined {
  let right = 0
  let of = 0
  for (const { decisions, wrong, scores } of question.items) {
    if (scores[encoder] === undefined) return undefined
    of += decisions.length
    right += decisions.length - (wrong[encoder]?.length ?? 0)
  }
  return { right, of }
}

/** The children of a decision node that gold asks refinement to enter; none: it is to be kept whole. */
export function askedChildren(node: TreeNode, { gold }: ViewerInstance): TreeNode[] {
  const inside = ({ from, to }: TreeNode): number => gold.filter((leaf) => leaf >= from && leaf < to).length
  return inside(node) === node.to - node.from ? [] : node.children.filter((child) => inside(child) > 0)
}

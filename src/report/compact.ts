import type { TreeNode } from '../hierarchy/index.ts'

/** Enough for people to read, and for nearly every comparison. */
const LEAST_DIGITS = 4

/**
 * The scores with as few decimals as keep every comparison of a node with its parent as it is, so that refinement by them does
 * the same.
 *
 * @param scores [nodes], finite
 * @returns [nodes]
 */
export function compactScores(nodes: readonly TreeNode[], scores: ArrayLike<number>): number[] {
  const place = new Map(nodes.map((node, i) => [node, i]))
  const edges = nodes.flatMap((node, parent) => node.children.map((child) => [parent, place.get(child)!] as const))
  for (let digits = LEAST_DIGITS; digits <= 15; digits++) {
    const rounded = Array.from(scores, (score) => Number(score.toFixed(digits)))
    if (edges.every(([a, b]) => rounded[b]! >= rounded[a]! === scores[b]! >= scores[a]!)) return rounded
  }
  return Array.from(scores)
}

import type { TreeNode } from './types.ts'

/**
 * The tree over `leafCount` leaves. A node over n > 1 leaves has min(branching, n) children over contiguous ranges whose
 * sizes differ by at most one, the larger ones first; for `branching` 2 the left child takes ceil(n / 2) leaves. Depth is
 * at most ceil(log_branching leafCount). No two nodes cover the same range.
 *
 * @throws RangeError unless both are integers, `leafCount` >= 1 and `branching` >= 2
 */
export function buildTree(leafCount: number, branching = 2): TreeNode {
  if (!Number.isSafeInteger(leafCount) || leafCount < 1) {
    throw new RangeError(`A tree needs a whole number of leaves, at least 1, not ${leafCount}.`)
  }
  if (!Number.isSafeInteger(branching) || branching < 2) {
    throw new RangeError(`The branching factor is a whole number, at least 2, not ${branching}.`)
  }
  return subtree(0, leafCount, branching)
}

function subtree(from: number, to: number, branching: number): TreeNode {
  const leaves = to - from
  const children: TreeNode[] = []
  if (leaves > 1) {
    const count = Math.min(branching, leaves)
    const size = Math.floor(leaves / count)
    const larger = leaves % count
    let start = from
    for (let i = 0; i < count; i++) {
      const end = start + size + (i < larger ? 1 : 0)
      children.push(subtree(start, end, branching))
      start = end
    }
  }
  return { from, to, children }
}

/** Every node of the tree, each before its children, children in reading order. */
export function preOrder(root: TreeNode): TreeNode[] {
  const nodes: TreeNode[] = []
  const stack: TreeNode[] = [root]
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
    nodes.push(node)
    for (let i = node.children.length - 1; i >= 0; i--) stack.push(node.children[i]!)
  }
  return nodes
}

/** A name for the node that no other node of its tree has: its leaf range, `from-to`. */
export function nodeKey(node: TreeNode): string {
  return `${node.from}-${node.to}`
}

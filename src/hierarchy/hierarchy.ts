import { leafExtents } from './leaves.ts'
import { rowExtents } from './table.ts'
import { buildTree, preOrder } from './tree.ts'
import type { Item, TreeNode } from './types.ts'
import { segmentExtents } from './video.ts'

/** An item with the tree over its leaves. */
export interface Hierarchy {
  item: Item
  /**
   * Extent of each leaf, `[start, end)`, in order and without gap or overlap. Text: UTF-16 offsets into `text`, one sentence.
   * Table: row numbers, one row. Video: whole milliseconds on the source video's clock, one segment. Image: `[0, 1)`.
   */
  leaves: [number, number][]
  root: TreeNode
  /** Every node, in pre-order. */
  nodes: TreeNode[]
}

/**
 * The hierarchy of an item: its leaves and the tree over them. Leaves are sentences of a text, rows of a table, 30-second
 * segments of a video; an image is one leaf, whole.
 *
 * @throws InputError when the item has no leaf, or supplied sentences that don't fit its text
 * @throws RangeError unless `branching` is an integer >= 2
 */
export function buildHierarchy(item: Item, branching = 2): Hierarchy {
  const leaves = itemLeaves(item)
  const root = buildTree(leaves.length, branching)
  return { item, leaves, root, nodes: preOrder(root) }
}

function itemLeaves(item: Item): [number, number][] {
  switch (item.modality) {
    case 'text':
      return leafExtents(item)
    case 'table':
      return rowExtents(item)
    case 'video':
      return segmentExtents(item)
    case 'image':
      return [[0, 1]]
  }
}

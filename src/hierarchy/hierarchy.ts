import { InputError } from '../support/errors.ts'
import { leafExtents } from './leaves.ts'
import { buildTree, preOrder } from './tree.ts'
import type { Item, TreeNode } from './types.ts'

/** An item with the tree over its leaves. */
export interface Hierarchy {
  item: Item
  /** Extent of each leaf; text: UTF-16 offsets `[start, end)` into `text`, which they cover without gap or overlap. */
  leaves: [number, number][]
  root: TreeNode
  /** Every node, in pre-order. */
  nodes: TreeNode[]
}

/**
 * The hierarchy of an item: its leaves (text: sentences) and the tree over them.
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
    default:
      throw unsupportedModality(item)
  }
}

/** The error for an item of a modality that has no leaves, rendering or gold here yet. */
export function unsupportedModality(item: Item): InputError {
  return new InputError(
    `Item "${item.id}" is of modality "${item.modality}", which hierarchies don't support yet; give text items.`,
  )
}

import { type Hierarchy, unsupportedModality } from './hierarchy.ts'
import type { Item, TreeNode } from './types.ts'

/** Changes whenever the string of any node would; part of every fingerprint. */
export const RENDERING_VERSION = 'canopy-rendering/1'

export interface RenderOptions {
  /** Whether nodes carry their item's title. */
  title: boolean
}

/**
 * The string that the node encoder reads for a node: the header, then the content. Text: `title\ncontent`, the content
 * being the exact substring of the node's leaves; without a title only the content.
 */
export function renderNode(hierarchy: Hierarchy, node: TreeNode, options: RenderOptions): string {
  return renderHeader(hierarchy.item, options) + renderContent(hierarchy, node)
}

/** What every node of the item repeats in front of its content. Text: `title\n`, or nothing. */
export function renderHeader(item: Item, options: RenderOptions): string {
  switch (item.modality) {
    case 'text':
      return options.title && item.title ? `${item.title}\n` : ''
    default:
      throw unsupportedModality(item)
  }
}

/** The node's own part, without what its item repeats. Text: the exact substring. */
export function renderContent({ item, leaves }: Hierarchy, node: TreeNode): string {
  const first = leaves[node.from]
  const last = leaves[node.to - 1]
  if (first === undefined || last === undefined) {
    throw new RangeError(
      `Node [${node.from}, ${node.to}) is not in item "${item.id}", which has ${leaves.length} leaves.`,
    )
  }
  switch (item.modality) {
    case 'text':
      return item.text.slice(first[0], last[1])
    default:
      throw unsupportedModality(item)
  }
}

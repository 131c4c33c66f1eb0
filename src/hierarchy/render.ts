import { InputError } from '../support/errors.ts'
import type { Hierarchy } from './hierarchy.ts'
import { renderColumns, renderRows, TABLE_FORMATS, type TableFormat, type TableFormatName } from './table.ts'
import type { ImageItem, Item, TableItem, TextItem, TreeNode, VideoItem } from './types.ts'
import { frameTimes } from './video.ts'

/** Changes whenever the string of any node would; part of every fingerprint. */
export const RENDERING_VERSION = 'canopy-rendering/1'

export interface RenderOptions {
  /** Whether nodes carry their item's title and a table's caption. */
  title: boolean
  /** How tables become text; a name, or a format of one's own. Markdown unless told. */
  tableFormat?: TableFormatName | TableFormat
}

/** Whether an encoder that reads only text can read the item's nodes. */
export function readsAsText(item: Item): item is TextItem | TableItem {
  return item.modality === 'text' || item.modality === 'table'
}

/**
 * The string that an encoder of text reads for a node: the header, then the content. Text: `title\ncontent`, the content being
 * the exact substring of the node's leaves. Table: title, caption and column header, a line each, then the node's rows; column
 * header and rows as the table format has them, every row ending in a line break.
 *
 * @throws InputError for an image or a video, whose nodes are no text; see {@link nodeInput}
 */
export function renderNode(hierarchy: Hierarchy, node: TreeNode, options: RenderOptions): string {
  return renderHeader(hierarchy.item, options) + renderContent(hierarchy, node, options)
}

/** What every node of the item repeats in front of its content: title; for a table title, caption and column header. */
export function renderHeader(item: Item, options: RenderOptions): string {
  const title = options.title && item.title ? `${item.title}\n` : ''
  switch (item.modality) {
    case 'text':
      return title
    case 'table': {
      const caption = options.title && item.caption ? `${item.caption}\n` : ''
      return title + caption + renderColumns(item, formatOf(options))
    }
    default:
      throw notText(item)
  }
}

/** The node's own part, without what its item repeats. Text: the exact substring. Table: its rows. */
export function renderContent(
  hierarchy: Hierarchy,
  node: TreeNode,
  options: Pick<RenderOptions, 'tableFormat'> = {},
): string {
  const { item } = hierarchy
  const [start, end] = extentOf(hierarchy, node)
  switch (item.modality) {
    case 'text':
      return item.text.slice(start, end)
    case 'table':
      return renderRows(item, start, end, formatOf(options))
    default:
      throw notText(item)
  }
}

/** What an encoder is given for a node. Paths are relative to the dataset's folder. */
export interface NodeInput {
  /** Text and tables: the rendering. Images and videos: the title, or nothing. */
  text: string
  image?: string
  /** `frames`: times at which frames are taken, in whole milliseconds on the source video's clock. */
  video?: { path?: string; frames: number[] }
}

/** What an encoder of any modality is given for a node: its text, and the picture or the frames that belong to it. */
export function nodeInput(hierarchy: Hierarchy, node: TreeNode, options: RenderOptions): NodeInput {
  const { item } = hierarchy
  const text = options.title ? (item.title ?? '') : ''
  switch (item.modality) {
    case 'image':
      return { text, image: item.image }
    case 'video': {
      const frames = frameTimes(...extentOf(hierarchy, node))
      return { text, video: { ...(item.video !== undefined && { path: item.video }), frames } }
    }
    default:
      return { text: renderNode(hierarchy, node, options) }
  }
}

/** From the start of the node's first leaf to the end of its last, in the unit of the item's leaves. */
export function extentOf({ item, leaves }: Hierarchy, node: TreeNode): [number, number] {
  const first = leaves[node.from]
  const last = leaves[node.to - 1]
  if (first === undefined || last === undefined) {
    throw new RangeError(
      `Node [${node.from}, ${node.to}) is not in item "${item.id}", which has ${leaves.length} leaves.`,
    )
  }
  return [first[0], last[1]]
}

const formatOf = ({ tableFormat: table = 'markdown' }: Pick<RenderOptions, 'tableFormat'>): TableFormat =>
  typeof table === 'string' ? TABLE_FORMATS[table] : table

function notText(item: ImageItem | VideoItem): InputError {
  const what = item.modality === 'image' ? 'an image' : 'a video'
  return new InputError(
    `The item "${item.id}" is ${what}, and the encoder reads only text; leave the item out, or give an encoder that reads pictures.`,
  )
}

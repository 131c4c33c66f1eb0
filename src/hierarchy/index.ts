export { type DroppedAnnotation, type GoldLeaves, goldLeaves } from './gold.ts'
export { buildHierarchy, type Hierarchy } from './hierarchy.ts'
export { leafExtents } from './leaves.ts'
export {
  extentOf,
  type NodeInput,
  nodeInput,
  RENDERING_VERSION,
  type RenderOptions,
  readsAsText,
  renderContent,
  renderHeader,
  renderNode,
} from './render.ts'
export { SEGMENTER_VERSION, segmentSentences } from './segment.ts'
export { TABLE_FORMAT_NAMES, TABLE_FORMATS, type TableFormat, type TableFormatName } from './table.ts'
export {
  locateQuote,
  type OffsetUnit,
  splitsCharacter,
  textLength,
  toUtf16Offsets,
  trimSpan,
  UNIT_NAMES,
} from './text.ts'
export { buildTree, nodeKey, preOrder } from './tree.ts'
export type { GoldEntry, ImageItem, Item, Question, TableItem, TextItem, TreeNode, VideoItem } from './types.ts'
export { frameTimes, milliseconds } from './video.ts'

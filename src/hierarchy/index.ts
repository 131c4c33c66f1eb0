export { type DroppedAnnotation, type GoldLeaves, goldLeaves } from './gold.ts'
export { buildHierarchy, type Hierarchy, unsupportedModality } from './hierarchy.ts'
export { leafExtents } from './leaves.ts'
export { RENDERING_VERSION, type RenderOptions, renderContent, renderHeader, renderNode } from './render.ts'
export { SEGMENTER_VERSION, segmentSentences } from './segment.ts'
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

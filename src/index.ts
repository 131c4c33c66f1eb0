/**
 * The public library: hierarchies, preference pairs and the refinement rule as pure functions, an encoder pair that refines
 * texts, tables, images and videos, and the same pair's embeddings.
 *
 * @packageDocumentation
 */
export {
  type Embedded,
  type Embedder,
  type EmbedderOptions,
  type Encoder,
  type EncoderInput,
  type EncoderPair,
  encoderInput,
  type KeptRange,
  type OpenEncoderOptions,
  openEncoder,
  openPair,
  type PairOptions,
  type RefinedItem,
  type RefineInput,
  readEncoderPair,
} from './encoder/index.ts'
export {
  buildHierarchy,
  buildTree,
  frameTimes,
  type GoldEntry,
  goldLeaves,
  type Hierarchy,
  type ImageItem,
  type Item,
  type NodeInput,
  nodeInput,
  type RenderOptions,
  renderNode,
  segmentSentences,
  TABLE_FORMATS,
  type TableFormat,
  type TableItem,
  type TextItem,
  type TreeNode,
  type VideoItem,
} from './hierarchy/index.ts'
export { type PairKind, type PreferencePair, preferencePairs } from './preferences/index.ts'
export { refine } from './refine/index.ts'
export { InputError } from './support/errors.ts'
export type {
  Loss,
  LossInput,
  LossInstance,
  LossNode,
  LossOutput,
  LossPair,
  TrainSettings,
} from './train/index.ts'

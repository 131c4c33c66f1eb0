/**
 * The part of the library that needs neither Node nor a bundler's substitutes for it, for browsers, workers and edge functions:
 * hierarchies, preference pairs and the refinement rule as pure functions; `refineWith`, refinement with embeddings from wherever; and
 * what makes a browser's embeddings those of training, a reader of texts and pooling. `examples/browser` is a page made of it.
 *
 * @packageDocumentation
 */

export type { EncoderProfile, Pooling } from './encoder/folder/profile.ts'
export type { TokenSequence, VisualSpan } from './encoder/input/sequence.ts'
export {
  type BareTokenizer,
  type TokenReader,
  type TokenReaderOptions,
  tokenReader,
} from './encoder/input/tokens.ts'
export { poolRows } from './encoder/rows/pooling.ts'
export {
  buildHierarchy,
  buildTree,
  type DroppedAnnotation,
  extentOf,
  frameTimes,
  type GoldEntry,
  type GoldLeaves,
  goldLeaves,
  type Hierarchy,
  type ImageItem,
  type Item,
  leafExtents,
  type NodeInput,
  nodeInput,
  preOrder,
  RENDERING_VERSION,
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
export { type PairKind, type PreferencePair, preferencePairs } from './preferences/pairs.ts'
export {
  type Decision,
  type KeptRange,
  type NodeScore,
  type RefinedItem,
  type RefineFunctions,
  type RefineOptions,
  type RefineSettings,
  refine,
  refineVisits,
  refineWith,
  type TextInput,
} from './refine/index.ts'
export { InputError } from './support/errors.ts'

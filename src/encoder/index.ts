/**
 * Encoders, from a folder's files to embeddings.
 *
 * - `folder/` what the files of an encoder say, its fingerprint, canopy.json; `hub/` finds or downloads such a folder
 * - `input/` what is read (texts, pictures, videos) and its token sequences; `rows/` and `prefix/` how these become rows of a graph
 * - `architecture.ts` the table of architectures, whose graphs are built in `bert/`, `qwen3/` and `qwen3-vl/`; `imported/` takes an
 *   ONNX file's graph; `graph.ts` gives either with its rows
 * - `lora/` adapters; `embedding/` computes embeddings where a store lacks them, pairs f0 with fθ; `serve/` refines items in a worker thread
 *
 * @packageDocumentation
 */
export type { KeptRange, RefinedItem } from '../refine/index.ts'
export {
  defaultTargets,
  layoutOf,
  linearModules,
  openWeights,
  packedEncoder,
  plainEncoder,
  readsPictures,
  rowCosts,
  standardsOf,
} from './architecture.ts'
export { bertEncoder, bertLinearModules, plainBert } from './bert/bert.ts'
export { type BertConfig, bertConfig } from './bert/config.ts'
export { type BertFolder, writeBertFolder } from './bert/folder.ts'
export { createRandomBert, type RandomBertOptions } from './bert/random.ts'
export { type BertSizes, bertTensorShapes } from './bert/shapes.ts'
export { SPECIAL_TOKENS, type VocabularyOptions, wordPieceVocabulary } from './bert/wordpiece.ts'
export { bertWords, countWords } from './bert/words.ts'
export { checkpointTensors } from './checkpoint-tensors.ts'
export {
  type Embedded,
  type Embedder,
  type EmbedderOptions,
  type EmbedOptions,
  openEmbedder,
} from './embedding/embed.ts'
export { type EncoderPair, openPair, type PairOptions, readEncoderPair } from './embedding/pair.ts'
export {
  CANOPY_FILE,
  type CanopySettings,
  canopySettings,
  checkQueryEncoder,
  readCanopySettings,
  settingsDrift,
} from './folder/canopy.ts'
export { PROCESSOR_FILES } from './folder/fingerprint.ts'
export {
  type EncoderProfile,
  type Pooling,
  type ReadEncoderOptions,
  readEncoder,
  type Side,
  type StatedSettings,
} from './folder/profile.ts'
export { type EncoderGraph, type EncoderGraphOptions, encoderGraph } from './graph.ts'
export { type HubOptions, type LocatedEncoder, locateConfiguration, locateEncoder, QUERY_FOLDER } from './hub/hub.ts'
export { type Uploaded, type UploadOptions, uploadFolder } from './hub/upload.ts'
export { readUploadFolder, type UploadFile, type UploadFolder } from './hub/upload-folder.ts'
export {
  arithmeticOf,
  type EncoderModule,
  type ImportedModel,
  type ImportedModule,
  readImported,
  type Storage,
} from './imported/index.ts'
export { type NodeTokenCounter, nodeTokenCounter } from './input/count.ts'
export { encoderInput } from './input/node-input.ts'
export {
  FEATURES_FOLDER,
  type InputReader,
  openReader,
  type ReaderOptions,
  type ReadInputsOptions,
} from './input/reader.ts'
export {
  type EncodedInput,
  type EncoderInput,
  type FeatureStore,
  firstOccurrences,
  sequenceKey,
  type TokenSequence,
  textSequence,
  type VisualSpan,
} from './input/sequence.ts'
export { loadTokenizer, type Tokenizer } from './input/tokenizer.ts'
export { beyondSkipping, stoppedBy, UnreadableError } from './input/unreadable.ts'
export { ADAPTER_FILES, readAdapter, readAdapterInfo, writeAdapter } from './lora/adapter.ts'
export {
  type Adapter,
  adapterHash,
  changesNothing,
  initialLora,
  type LinearModule,
  type LoraOptions,
  type LoraTarget,
  loraA,
  loraB,
  loraShapes,
  mergedWeight,
  selectTargets,
} from './lora/lora.ts'
export { chosenModules, encoderModules } from './lora/modules.ts'
export { ADAPTER_GRAPH, type AdapterFeed, adapterFeeds, adapterInputs, feedsOf } from './lora/onnx-inputs.ts'
export { graphNames } from './lora/stored-matrices.ts'
export {
  type CausalRows,
  type CausalRowsOptions,
  causalFeeds,
  causalLayout,
  causalRows,
  longestRow,
  type RowWork,
  type SharedTokens,
  sharedTokens,
  type VisualSizes,
} from './prefix/index.ts'
export { qwen3Decoder, qwen3EmbedTokens } from './qwen3/index.ts'
export { featureLevels, qwen3VlConfig } from './qwen3-vl/config.ts'
export { MAIN_PART, PARTS, type Part, partFiles } from './qwen3-vl/part-files.ts'
export { patchesAtOnce } from './qwen3-vl/vision.ts'
export { packedVision, plainVision } from './qwen3-vl/vision-graph.ts'
export type { FeatureSource, RowLayout } from './rows/layout.ts'
export {
  bestRowLength,
  type PackedBatch,
  packedFeeds,
  packedTokens,
  packSequences,
  planBatches,
  poolMatrix,
  type RowCosts,
  rowLengthFor,
  runTokens,
} from './rows/pack.ts'
export { type RefineInput, toHierarchy } from './serve/refine-input.ts'
export { refineItems } from './serve/refine-items.ts'
export {
  type CallOptions,
  type Encoder,
  OPEN_OPTIONS,
  type OpenEncoderOptions,
  openEncoder,
  QueueFullError,
  type RefineCallOptions,
} from './serve/serve.ts'
export type { Weights } from './weights.ts'

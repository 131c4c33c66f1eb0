export { readAdapter, readAdapterInfo, writeAdapter } from './adapter.ts'
export { defaultTargets, linearModules, openWeights, packedEncoder, plainEncoder, rowCosts } from './architecture.ts'
export { bertEncoder, bertLinearModules, plainBert, type Weights } from './bert.ts'
export { type BertConfig, bertConfig } from './bert-config.ts'
export { type EmbeddingCache, openEmbeddingCache, sequenceKey } from './cache.ts'
export {
  CANOPY_FILE,
  type CanopySettings,
  canopySettings,
  checkQueryEncoder,
  readCanopySettings,
  settingsDrift,
} from './canopy.ts'
export { type EncoderProfile, type Pooling, type ReadEncoderOptions, readEncoder, type Side } from './checkpoint.ts'
export {
  type EmbeddedTexts,
  type Embedder,
  type EmbedderOptions,
  type EmbedOptions,
  firstOccurrences,
  openEmbedder,
} from './embed.ts'
export { type EncoderGraph, encoderGraph } from './graph.ts'
export { type HubOptions, type LocatedEncoder, locateEncoder, QUERY_FOLDER } from './hub.ts'
export {
  arithmeticOf,
  type EncoderModule,
  type ImportedModel,
  type ImportedModule,
  readImported,
  type Storage,
} from './imported/index.ts'
export {
  type Adapter,
  adapterHash,
  initialLora,
  type LinearModule,
  type LoraOptions,
  type LoraTarget,
  loraA,
  loraB,
  loraShapes,
  mergedWeight,
  selectTargets,
} from './lora.ts'
export { chosenModules, encoderModules } from './modules.ts'
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
} from './pack.ts'
export { type EncoderPair, openPair, type PairOptions, readEncoderPair } from './pair.ts'
export { createRandomBert, type RandomBertOptions } from './random-bert.ts'
export { type KeptRange, type RefinedItem, type RefineInput, refineItems, toHierarchy } from './refine-items.ts'
export { type Encoder, type OpenEncoderOptions, openEncoder } from './serve.ts'
export { loadTokenizer, type Tokenizer } from './tokenizer.ts'

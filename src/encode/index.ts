/**
 * Embedding a collection ahead: every node of a data set's items (or every question) into a portable file or a store.
 *
 * - `units.ts` what is encoded, item by item; `plan.ts` its division into blocks and shards
 * - `encode.ts` the work, block by block; `working.ts` the unfinished output that a later run goes on with
 * - `description.ts` encode.json, `matrix.ts` the embeddings, `rows.ts` the index, `parquet.ts` all three as one table
 * - `merge.ts` shards into one, `verify.ts` every byte looked at, `open.ts` reading back (`key-rows.ts`: by key)
 *
 * @packageDocumentation
 */
export { type Counts, type Description, type Encoded, readEncoded } from './description.ts'
export {
  type CommonOptions,
  type EncodeOptions,
  type EncodeRun,
  encodeToFile,
  encodeToStore,
  type Work,
} from './encode.ts'
export { type MergeOptions, mergeShards } from './merge.ts'
export {
  type EmbeddedNode,
  type Embeddings,
  type EmbeddingsStoreOptions,
  embeddingsStore,
  fillStore,
  openEmbeddings,
} from './open.ts'
export { type Format, readParquetDescription } from './parquet.ts'
export { BLOCK_ROWS, type Block, type Plan, parseShard, type Shard, shardBlocks } from './plan.ts'
export type { IndexRow, SkippedUnit } from './rows.ts'
export { itemFile, type NodeSettings, type RowHead, type Selection } from './units.ts'
export { type VerifyOptions, verifyEmbeddings } from './verify.ts'
export { partialOf } from './working.ts'

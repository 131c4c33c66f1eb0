export { FETCHABLE } from './catalogue.ts'
export { type CheckOptions, type CheckReport, checkDataset, type Fault, type SplitCount } from './check.ts'
export type { CountTokens } from './cut.ts'
export {
  DATASET_FILES,
  type Dataset,
  namedItems,
  openDataset,
  type QuestionRecord,
  readMeta,
  splitHash,
} from './dataset.ts'
export { downloadFolder, type Fetched, type FetchOptions, fetchBenchmark } from './fetch.ts'
export { type Column, contentId, createColumn, createKeyTable, type ItemContent, type KeyTable } from './ids.ts'
export type { Dropped, ImportOptions, ImportSummary } from './importers/common.ts'
export { FORMATS, type Format, IMPORTERS } from './importers/formats.ts'
export { import2wiki, importHotpotqa } from './importers/hotpotqa.ts'
export { type CutSummary, importJsonl, type JsonlOptions, type JsonlSummary } from './importers/jsonl.ts'
export { importLvbench } from './importers/lvbench.ts'
export type { MissingMedia } from './importers/media-files.ts'
export { importMmqa } from './importers/mmqa.ts'
export { importNq } from './importers/nq.ts'
export { importOttqa } from './importers/ottqa.ts'
export { canonicalJson, parseJsonLossless } from './json.ts'
export {
  type JsonRecord,
  MAX_RECORD_BYTES,
  type ReadOptions,
  readJsonArray,
  readJsonLines,
  readRecords,
} from './jsonl.ts'
export { mayHoldMedia } from './media-items.ts'
export { type ParquetNotes, readParquet, readParquetNotes } from './parquet.ts'
export { DATASET_SCHEMA, type DatasetMeta, type Place, parseItem, parseQuestion, parseWith } from './schema.ts'
export { type SplitOptions, type SplitSide, type SplitSummary, splitDataset } from './split.ts'
export { type DatasetWriter, openDatasetWriter, type WriterOptions } from './writer.ts'

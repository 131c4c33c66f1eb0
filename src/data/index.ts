export { type CheckReport, checkDataset, type Fault, type SplitCount } from './check.ts'
export {
  DATASET_FILES,
  type Dataset,
  namedItems,
  openDataset,
  type QuestionRecord,
  readMeta,
  splitHash,
} from './dataset.ts'
export { contentId, type ItemContent } from './ids.ts'
export type { Dropped, ImportOptions, ImportSummary } from './importers/common.ts'
export { import2wiki, importHotpotqa } from './importers/hotpotqa.ts'
export { importJsonl, type JsonlOptions } from './importers/jsonl.ts'
export { importNq } from './importers/nq.ts'
export { canonicalJson, parseJsonLossless } from './json.ts'
export {
  type JsonRecord,
  MAX_RECORD_BYTES,
  type ReadOptions,
  readJsonArray,
  readJsonLines,
  readRecords,
} from './jsonl.ts'
export { DATASET_SCHEMA, type DatasetMeta, type Place, parseItem, parseQuestion, parseWith } from './schema.ts'
export { type DatasetWriter, openDatasetWriter, type WriterOptions } from './writer.ts'

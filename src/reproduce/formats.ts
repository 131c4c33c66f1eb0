import { z } from 'zod'
import {
  type ImportOptions,
  type ImportSummary,
  import2wiki,
  importHotpotqa,
  importJsonl,
  importLvbench,
  importMmqa,
  importNq,
  importOttqa,
  type JsonlOptions,
} from '../data/index.ts'

export const FORMATS = ['jsonl', 'hotpotqa', '2wiki', 'nq', 'ottqa', 'mmqa', 'lvbench'] as const
export type Format = (typeof FORMATS)[number]

/** Options of an import, as `canopy import` has them. */
export const importSettings = z.strictObject({
  onError: z.enum(['stop', 'skip']).default('stop'),
  /** jsonl: what the offsets of spans and sentences count. */
  offsets: z.enum(['utf16', 'codepoint', 'byte']).exactOptional(),
  /** jsonl: benchmark of questions that name none. */
  benchmark: z.string().min(1).exactOptional(),
  source: z.string().exactOptional(),
  licence: z.string().exactOptional(),
  maxRecordMb: z.number().positive().exactOptional(),
  /** jsonl: cuts longer items, in tokens of the encoder. */
  maxItemTokens: z.number().int().positive().exactOptional(),
})
export type ImportSettings = z.output<typeof importSettings>

type Importer = (options: JsonlOptions & { split: string }) => Promise<ImportSummary>

/** The importer of each format; all but `jsonl` read what {@link ImportOptions} says and no more. */
export const IMPORTERS: Record<Format, Importer> = {
  jsonl: importJsonl,
  hotpotqa: importHotpotqa,
  '2wiki': import2wiki,
  nq: importNq,
  ottqa: importOttqa,
  mmqa: importMmqa,
  lvbench: importLvbench,
} satisfies Record<Format, (options: ImportOptions & { split: string }) => Promise<ImportSummary>>

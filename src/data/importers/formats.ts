import type { ImportOptions, ImportSummary } from './common.ts'
import { import2wiki, importHotpotqa } from './hotpotqa.ts'
import { importJsonl, type JsonlOptions } from './jsonl.ts'
import { importLvbench } from './lvbench.ts'
import { importMmqa } from './mmqa.ts'
import { importNq } from './nq.ts'
import { importOttqa } from './ottqa.ts'

/** The formats that can be imported, a user's own (`jsonl`) first. */
export const FORMATS = ['jsonl', 'hotpotqa', '2wiki', 'nq', 'ottqa', 'mmqa', 'lvbench'] as const
export type Format = (typeof FORMATS)[number]

/** The importer of each format; all but `jsonl` read what {@link ImportOptions} says and no more, and need the split's name. */
export const IMPORTERS: Record<Format, (options: JsonlOptions & { split: string }) => Promise<ImportSummary>> = {
  jsonl: importJsonl,
  hotpotqa: importHotpotqa,
  '2wiki': import2wiki,
  nq: importNq,
  ottqa: importOttqa,
  mmqa: importMmqa,
  lvbench: importLvbench,
} satisfies Record<Format, (options: ImportOptions & { split: string }) => Promise<ImportSummary>>

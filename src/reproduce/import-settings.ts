import { z } from 'zod'

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

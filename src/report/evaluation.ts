import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { z } from 'zod'
import {
  type EncoderName,
  type Estimates,
  type Evaluation,
  evaluationIdentity,
  type MarginPoint,
  type MeasuredMargin,
  type MetricEstimates,
} from '../eval/index.ts'
import { fileError } from '../support/files.ts'
import { readMargins } from './margins.ts'
import { parseJsonAs } from './parse.ts'

/** An evaluation as a report shows it. */
export interface ReportEvaluation {
  name: string
  folder: string
  estimates: Pick<Estimates, 'benchmarks' | 'differences' | 'selection' | 'selectionDifferences'>
  evaluation: ShownEvaluation
  /** What refinement keeps over margins; none of an evaluation by an older version. */
  margins: MarginPoint[]
}

/** What a report needs to know of an evaluation that is not a metric. */
export type ShownEvaluation = Pick<
  Evaluation,
  | 'split'
  | 'datasets'
  | 'encoders'
  | 'branching'
  | 'tokenizer'
  | 'resamples'
  | 'seed'
  | 'clusters'
  | 'counts'
  | 'scoreByLevel'
  | 'accuracyByLevel'
  | 'apart'
  | 'notes'
> &
  Partial<Pick<Evaluation, 'title' | 'tableFormat' | 'selectedBy' | 'tokens' | 'overlap' | 'looks' | 'margin'>>

const number = z.number().nullable()
const estimate = z.object({ value: number, lo: number, hi: number, n: z.number() })
const metrics = z.record(z.string(), estimate)
const table = z.record(z.string(), z.record(z.string(), metrics))
const byLevel = <T extends z.ZodRawShape>(level: z.ZodObject<T>) =>
  z.record(z.string(), z.record(z.string(), z.array(level))).default({})

const means = z.object({
  retained_tokens: z.number(),
  gold_recall: z.number(),
  gold_precision: z.number(),
  gold_f1: z.number(),
})
const marginSchema: z.ZodType<MeasuredMargin> = z.object({
  margin: z.number().min(0),
  encoder: z.enum(['fine-tuned', 'frozen']),
  origin: z.enum(['stated', 'canopy.json', 'validation']),
  minRecall: z.number().exactOptional(),
  validation: z
    .object({
      name: z.string(),
      items: z.number(),
      sources: z.number(),
      rows: z.record(z.string(), z.number()),
      rule: means,
      chosen: means,
    })
    .exactOptional(),
  results: z.record(z.string(), metrics),
  differences: z.record(z.string(), metrics),
})

const evaluationSchema = z.object({
  ...evaluationIdentity,
  title: z.boolean().exactOptional(),
  tableFormat: z.enum(['markdown', 'key-value']).exactOptional(),
  tokens: z.enum(['tokenizer', 'given', 'words']).exactOptional(),
  seed: z.string(),
  resamples: z.number(),
  clusters: z.record(z.string(), z.number()),
  counts: z.record(z.string(), z.record(z.string(), z.number())),
  apart: z.array(z.string()).default([]),
  selectedBy: z.enum(['fine-tuned', 'frozen']).exactOptional(),
  scoreByLevel: byLevel(
    z.object({ level: z.number(), gold: number, goldNodes: z.number(), other: number, otherNodes: z.number() }),
  ),
  accuracyByLevel: byLevel(
    z.object({ level: z.number(), decisions: z.number(), correct: z.number(), accuracy: number }),
  ),
  looks: z.number().exactOptional(),
  margin: marginSchema.exactOptional(),
  notes: z.array(z.string()).default([]),
})

/** metrics.json, of older evaluations too, which lack what was added since. */
const fileSchema = z
  .object({
    differences: table.default({}),
    selection: table.default({}),
    selection_differences: table.default({}),
    evaluation: evaluationSchema,
  })
  .catchall(z.record(z.string(), metrics))

/**
 * Reads the folder of results that "canopy evaluate" wrote.
 *
 * @throws InputError naming the file that is missing or not as evaluation writes it
 */
export async function readEvaluation(folder: string, name: string): Promise<ReportEvaluation> {
  const file = join(folder, 'metrics.json')
  const text = await readFile(file, 'utf8').catch((error) => {
    throw fileError(error, 'cannot read the results', file)
  })
  const { differences, selection, selection_differences, evaluation, ...benchmarks } = parseJsonAs(
    fileSchema,
    text,
    file,
    'table of results',
  )
  return {
    name,
    folder,
    estimates: {
      benchmarks: benchmarks as Record<string, Partial<Record<EncoderName, MetricEstimates>>>,
      differences,
      selection,
      selectionDifferences: selection_differences,
    },
    evaluation: evaluation as unknown as ShownEvaluation,
    margins: await readMargins(folder),
  }
}

/** The benchmarks that figures and tables show: with one alone, pooled and mean repeat it. */
export function shownBenchmarks({ estimates }: ReportEvaluation): string[] {
  const names = Object.keys(estimates.benchmarks)
  const own = names.filter((name) => name !== 'pooled' && name !== 'mean')
  return own.length > 1 ? [...own, ...names.filter((name) => !own.includes(name))] : own
}

/** The same for figures, which need no mean beside what it is the mean of. */
export const drawnBenchmarks = (evaluation: ReportEvaluation): string[] =>
  shownBenchmarks(evaluation).filter((name) => name !== 'mean')

/** What people call a row of the tables. */
export function benchmarkTitle(name: string): string {
  if (name === 'pooled') return 'Pooled'
  return name === 'mean' ? 'Mean' : name
}

import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Estimate, Evaluation, MetricEstimates } from '../eval/index.ts'
import { InputError } from '../support/errors.ts'
import type { Group } from './plan.ts'

/** Tables of an evaluation, as its metrics.json holds them: name (benchmark, `pooled`, `mean`) -> row -> metric. */
export type Tables = Record<string, Record<string, MetricEstimates>>

/** One finished evaluation. */
export interface Outcome {
  group: Group
  /** Of the training run; undefined for the frozen encoder alone. */
  seed: number | undefined
  folder: string
  encoders: Tables
  differences: Tables
  selection: Tables
  selectionDifferences: Tables
  evaluation: Evaluation
}

/** Reads what an evaluation wrote into its folder. */
export async function readOutcome(group: Group, seed: number | undefined, folder: string): Promise<Outcome> {
  const file = join(folder, 'metrics.json')
  let value: Record<string, unknown>
  try {
    value = JSON.parse(await readFile(file, 'utf8')) as Record<string, unknown>
  } catch (error) {
    throw new InputError(`The results of an evaluation cannot be read (${(error as Error).message}).`, { file }, error)
  }
  const { differences, selection, selection_differences, evaluation, ...encoders } = value
  return {
    ...{ group, seed, folder },
    encoders: encoders as Tables,
    differences: differences as Tables,
    selection: selection as Tables,
    selectionDifferences: selection_differences as Tables,
    evaluation: evaluation as Evaluation,
  }
}

/** A figure over training seeds. An interval belongs to one seed alone; over several there are a mean and a range. */
export interface OverSeeds {
  /** In the order of the seeds. */
  seeds: { seed: number | undefined; estimate: Estimate }[]
  /** Null with one seed, and where there is nothing to measure. */
  mean: number | null
  min: number | null
  max: number | null
}

export function overSeeds(
  outcomes: readonly Outcome[],
  pick: (outcome: Outcome) => Estimate | undefined,
): OverSeeds | undefined {
  const seeds = outcomes.flatMap((outcome) => {
    const estimate = pick(outcome)
    return estimate === undefined ? [] : [{ seed: outcome.seed, estimate }]
  })
  if (seeds.length === 0) return undefined
  const values = seeds.map(({ estimate }) => estimate.value).filter((value) => value !== null)
  if (seeds.length === 1 || values.length < seeds.length) return { seeds, mean: null, min: null, max: null }
  const mean = values.reduce((a, b) => a + b, 0) / values.length
  return { seeds, mean, min: Math.min(...values), max: Math.max(...values) }
}

/** Rows whose figures change with the training seed; the others are the same for all of them. */
const TRAINED_ROWS = ['fine-tuned', 'permuted', 'flat-leaf', 'flat-node', 'canopy-fine-tuned']

const dependsOnSeed = (row: string, { evaluation }: Outcome): boolean =>
  row.includes(' - ') || (TRAINED_ROWS.includes(row) && !(evaluation.selectedBy === 'frozen' && row.startsWith('flat')))

/** The outcomes that show a row: those of all seeds, or one of no seed where it is the same for all. */
export const outcomesOf = (row: string, outcomes: readonly Outcome[]): readonly Outcome[] =>
  outcomes.length > 0 && dependsOnSeed(row, outcomes[0]!)
    ? outcomes
    : outcomes.slice(0, 1).map((outcome) => ({ ...outcome, seed: undefined }))

/** The benchmarks that a table shows: with one alone, `pooled` and `mean` repeat it. */
export function shownNames(tables: Tables): string[] {
  const names = Object.keys(tables)
  const own = names.filter((name) => name !== 'pooled' && name !== 'mean')
  return own.length > 1 ? names : own
}

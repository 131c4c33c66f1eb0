import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { decisionCase } from '../preferences/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError, type LineWriter, openLineWriter, writeFileAtomic } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { type Estimates, estimate } from './estimates.ts'
import { addCounts, type Evaluation } from './evaluation.ts'
import type { ScoredQuestion } from './items.ts'
import {
  addDecisionLevels,
  addLevels,
  type LevelDecisions,
  type LevelScores,
  levelAccuracies,
  levelMedians,
} from './levels.ts'
import { getOrMake } from './maps.ts'
import { addLeafMargins, estimateCurve, type LeafMargins, marginGrid, sumCurve } from './margin-curve.ts'
import { MARGINS_FILE, marginsCsv } from './margin-text.ts'
import { type InstanceSums, measureInstance, questionSums } from './metrics.ts'
import {
  ENCODERS,
  type EncoderName,
  isModel,
  MODEL_ENCODERS,
  type ModelEncoder,
  type RowName,
  type ScoredInstance,
  SELECTORS,
  tableRow,
} from './scored.ts'
import { readScores, SCORES_FILE, scoresLine } from './scores-file.ts'
import { summaryMarkdown } from './summary.ts'
import { addDenominators, addInstance, type ClusterSums, emptySums } from './sums.ts'
import { csvTable, metricsJson, selectionCsv } from './tables.ts'

/** What an evaluation writes into its folder. */
export const EVALUATION_FILES = [
  'decisions.csv',
  'pruning.csv',
  'selection.csv',
  MARGINS_FILE,
  'metrics.json',
  'summary.md',
  'decisions.jsonl',
  SCORES_FILE,
] as const
/** Files of that folder, those of later commands included. */
const RESULT_FILES = [...EVALUATION_FILES, 'report.html']

/** A folder of results may be replaced by new ones; anything else that stands there is not ours to delete. */
export async function requireResultsFolder(output: string, files: readonly string[] = RESULT_FILES): Promise<void> {
  let names: string[]
  try {
    names = await readdir(output)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return
    throw fileError(error, 'cannot write results there', output)
  }
  const foreign = names.find((name) => !files.includes(name))
  if (foreign !== undefined) {
    throw new InputError(
      `The output folder holds "${foreign}", which no evaluation wrote; results replace the whole folder, so give a new or empty one.`,
      { file: output },
    )
  }
}

/** What is added up while questions stream by: all that the tables need. */
export interface Collected {
  sums: ClusterSums
  levels: LevelScores
  decisions: LevelDecisions
  /** At which margins refinement would keep the leaves that it drops. */
  leafMargins: LeafMargins
  /** Rows of the tables in which an item has no scores of an encoder. */
  missing: Map<ModelEncoder, Set<string>>
}

/**
 * Measures every instance and writes `decisions.jsonl` and `scores.jsonl` into `folder`, counting in `evaluation` on the way.
 *
 * @param encoders those with scores, and the controls
 * @throws InputError naming question and item where a score is missing or NaN
 */
export async function collect(
  questions: AsyncIterable<ScoredQuestion>,
  evaluation: Evaluation,
  encoders: readonly EncoderName[],
  folder: string,
): Promise<Collected> {
  const collected: Collected = {
    sums: emptySums([...encoders, ...SELECTORS]),
    levels: new Map(),
    decisions: new Map(),
    leafMargins: new Map(),
    missing: new Map(),
  }
  const writers: LineWriter[] = []
  const open = async (name: string): Promise<LineWriter> => {
    const writer = await openLineWriter(join(folder, name))
    writers.push(writer)
    return writer
  }
  try {
    const decisions = await open('decisions.jsonl')
    const scores = await open(SCORES_FILE)
    for await (const scored of questions) {
      const row = tableRow(scored.question)
      const counts = evaluation.counts[row]!
      const together = evaluation.apart.includes(row) ? [row] : [row, 'pooled']
      // A question of which nothing is left to measure is not one to divide tokens by.
      const counted = scored.retrieved && scored.instances.length > 0
      addDenominators(collected.sums, row, scored.source, questionSums(counted))
      counts.questions++
      if (scored.retrieved) counts.questionsWithRetrieved++
      counts.droppedAnnotations += scored.droppedAnnotations
      counts.goldItemsNotText += scored.notText.gold
      counts.otherItemsNotText += scored.notText.other
      counts.goldItemsUnreadable += scored.unreadable.gold
      counts.otherItemsUnreadable += scored.unreadable.other
      for (const instance of scored.instances) {
        const present = encoders.filter((encoder) => !isModel(encoder) || instance.scores[encoder] !== undefined)
        for (const encoder of encoders.filter(isModel)) {
          if (!present.includes(encoder)) getOrMake(collected.missing, encoder, () => new Set()).add(row)
        }
        const measured = measureNamed(instance, [...present, ...SELECTORS])
        addInstance(collected.sums, row, instance.source, measured)
        addLevels(collected.levels, instance)
        addLeafMargins(collected.leafMargins, instance)
        addDecisionLevels(collected.decisions, together, instance, measured)
        addCounts(counts, instance, measured)
        for (const line of decisionLines(instance, measured)) await decisions.write(line)
        await scores.write(scoresLine(instance, evaluation.branching))
      }
    }
    for (const writer of writers) await writer.close()
  } catch (error) {
    for (const writer of writers) await writer.abandon()
    throw error
  }
  return collected
}

/**
 * Estimates everything that was collected, completes `evaluation` and writes the tables into `folder`, in which the scores of
 * {@link collect} lie: the curve over margins is taken from them.
 */
export async function writeTables(
  { sums, levels, decisions, leafMargins, missing }: Collected,
  evaluation: Evaluation,
  folder: string,
  { signal, onProgress }: { signal?: AbortSignal | undefined; onProgress?: Progress | undefined } = {},
): Promise<Estimates> {
  const available = (row: string, encoder: EncoderName): boolean =>
    !isModel(encoder) || missing.get(encoder)?.has(row) !== true
  const resampling = {
    seed: evaluation.seed,
    resamples: evaluation.resamples,
    available,
    apart: (row: string) => evaluation.apart.includes(row),
  }
  const estimates = estimate(sums, {
    ...resampling,
    onProgress: (done, total) => onProgress?.({ phase: 'bootstrap', done, total }),
  })
  evaluation.clusters = estimates.clusters
  for (const name of Object.keys(estimates.benchmarks)) {
    const shown = Object.keys(estimates.benchmarks[name]!) as EncoderName[]
    const accuracies = shown.map((encoder) => [encoder, levelAccuracies(decisions, name, encoder)] as const)
    if (name !== 'mean') {
      evaluation.accuracyByLevel[name] = Object.fromEntries(accuracies.filter(([, of]) => of.length > 0))
    }
    if (!Object.hasOwn(evaluation.counts, name)) continue
    const medians = MODEL_ENCODERS.map((encoder) => [encoder, levelMedians(levels, name, encoder)] as const)
    evaluation.scoreByLevel[name] = Object.fromEntries(medians.filter(([, of]) => of.length > 0))
  }
  const { margin } = evaluation
  const curveSums = await sumCurve(readScores(folder, { signal }), marginGrid(leafMargins, margin))
  const curve = estimateCurve(sums, curveSums, {
    ...resampling,
    against: margin,
    onProgress: (done, total) => onProgress?.({ phase: 'margins', done, total }),
  })
  if (margin !== undefined) {
    margin.differences = curve.differences
    for (const point of curve.points) {
      if (point.encoder === margin.encoder && point.margin === margin.margin)
        margin.results[point.benchmark] = point.metrics
    }
  }
  await writeFileAtomic(join(folder, 'decisions.csv'), csvTable(estimates, 'decisions'))
  await writeFileAtomic(join(folder, 'pruning.csv'), csvTable(estimates, 'pruning'))
  await writeFileAtomic(join(folder, 'selection.csv'), selectionCsv(estimates))
  await writeFileAtomic(join(folder, MARGINS_FILE), marginsCsv(curve.points, margin))
  await writeFileAtomic(join(folder, 'metrics.json'), metricsJson(estimates, evaluation))
  await writeFileAtomic(join(folder, 'summary.md'), summaryMarkdown(estimates, evaluation, curve.points))
  return estimates
}

/** The encoders of an evaluation: those with scores, and every control that needs none. */
export function encodersWith(models: readonly ModelEncoder[]): EncoderName[] {
  return ENCODERS.filter((encoder) => !isModel(encoder) || models.includes(encoder))
}

/** {@link measureInstance}, whose errors know nodes only, with question and item in them. */
function measureNamed(instance: ScoredInstance, rows: readonly RowName[]): InstanceSums {
  try {
    return measureInstance(instance, rows)
  } catch (error) {
    if (!(error instanceof InputError)) throw error
    throw new InputError(`Item "${instance.item}" of question "${instance.question}": ${error.message}`, {}, error)
  }
}

/** A JSON line for each decision node: what was asked for, and what each model's scores do there. */
function decisionLines(instance: ScoredInstance, { behaviours, decisions }: InstanceSums): string[] {
  const models = MODEL_ENCODERS.filter((encoder) => behaviours.has(encoder))
  const index = new Map(instance.nodes.map((node, i) => [node, i]))
  return decisions.map((decision, i) => {
    const { node, gold, full } = decision
    const of = <T>(pick: (encoder: ModelEncoder) => T): Record<string, T> =>
      Object.fromEntries(models.map((encoder) => [encoder, pick(encoder)]))
    const score = (encoder: ModelEncoder, n: typeof node): number => behaviours.get(encoder)!.scores[index.get(n)!]!
    return JSON.stringify({
      benchmark: instance.benchmark,
      variant: instance.variant,
      question: instance.question,
      item: instance.item,
      range: [node.from, node.to],
      children: node.children.map(({ from, to }) => [from, to]),
      case: decisionCase(decision),
      gold: node.children.flatMap((child, c) => (!full && gold.includes(child) ? [c] : [])),
      scores: of((encoder) => ({
        node: score(encoder, node),
        children: node.children.map((child) => score(encoder, child)),
      })),
      entered: of((encoder) => {
        const entered = new Set(behaviours.get(encoder)!.decisions[i]!.entered)
        return node.children.flatMap((child, c) => (entered.has(child) ? [c] : []))
      }),
      correct: of((encoder) => behaviours.get(encoder)!.decisions[i]!.correct),
    })
  })
}

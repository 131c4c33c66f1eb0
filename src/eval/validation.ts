import { realpath } from 'node:fs/promises'
import { type Dataset, openDataset } from '../data/index.ts'
import { ended, InputError } from '../support/errors.ts'
import { sourceOf } from './items.ts'
import { getOrMake } from './maps.ts'
import { createOverlapCounter, type TrainingData } from './overlap.ts'
import type { Survey } from './survey.ts'

/** Questions that a margin may be picked on. */
export interface ValidationData {
  /** What they are, for messages and tables: "the validation part of runs/minilm". */
  name: string
  /**
   * They are the validation part of the encoder's own run: among what it is known to have seen, but selected on, not trained on. Any
   * other data that it has seen is refused.
   */
  selectedOn?: boolean | undefined
  parts: readonly ValidationPart[]
}

/** A split of a dataset, or some of its instances. */
export interface ValidationPart {
  folder: string
  split: string
  /** Question id -> gold items; all of the split where absent. */
  only?: ReadonlyMap<string, ReadonlySet<string>> | undefined
}

/** Validation data as scores are computed for it. */
export interface OpenValidation {
  datasets: readonly Dataset[]
  survey: Survey
  close(): Promise<void>
}

/**
 * Opens validation data: datasets that give its questions, with its gold items only.
 *
 * @param trainingData what the encoder has seen, where that is known and matters
 * @throws InputError for a dataset or split that is not there or named twice, for instances that are not in it any more, and for
 *   questions of the evaluated split or of its sources, and for those that were trained on: a margin picked there would flatter what
 *   is evaluated
 */
export async function openValidation(
  { name, parts, selectedOn }: ValidationData,
  evaluated: readonly Dataset[],
  split: string,
  trainingData?: TrainingData | undefined,
): Promise<OpenValidation> {
  const opened: Dataset[] = []
  const close = async (): Promise<void> => {
    for (const dataset of opened) await dataset.close()
  }
  try {
    for (const part of parts) {
      const dataset = await openDataset(part.folder).catch((error: unknown) => {
        if (!(error instanceof InputError)) throw error
        throw new InputError(
          `${ended(error.message)} It is asked for as ${name}, to pick a margin on; name other data by --validation-dataset and --validation-split.`,
          {},
          error,
        )
      })
      opened.push(dataset)
    }
    await refuseSame(parts, evaluated, split)
    const datasets = opened.map((dataset, i) => restricted(dataset, parts[i]!))
    const survey = await surveyValidation(name, datasets, parts)
    await refuseOverlap(name, datasets, evaluated, split)
    if (trainingData !== undefined && selectedOn !== true) await refuseTrained(name, datasets, trainingData)
    return { datasets, survey, close }
  } catch (error) {
    await close()
    throw error
  }
}

/** The dataset with the questions of a part only, whatever split is asked for. */
function restricted(dataset: Dataset, { split, only }: ValidationPart): Dataset {
  return {
    folder: dataset.folder,
    meta: dataset.meta,
    items: () => dataset.items(),
    item: (id) => dataset.item(id),
    close: () => dataset.close(),
    async *questions() {
      for await (const record of dataset.questions(split)) {
        if (only === undefined) yield record
        const items = only?.get(record.question.id)
        if (items === undefined) continue
        const gold = record.question.gold.filter(({ item }) => items.has(item))
        yield { ...record, question: { ...record.question, gold } }
      }
    },
  }
}

async function surveyValidation(
  name: string,
  datasets: readonly Dataset[],
  parts: readonly ValidationPart[],
): Promise<Survey> {
  const benchmarks = new Map<string, string>()
  const survey: Survey = { questions: 0, rows: new Map(), sharedIds: new Set(), overlap: undefined }
  for (const [i, dataset] of datasets.entries()) {
    const { only } = parts[i]!
    let found = 0
    for await (const { question } of dataset.questions()) {
      survey.questions++
      found += new Set(question.gold.map(({ item }) => item)).size
      if (getOrMake(benchmarks, question.id, () => question.benchmark) !== question.benchmark)
        survey.sharedIds.add(question.id)
    }
    const wanted = [...(only?.values() ?? [])].reduce((sum, items) => sum + items.size, 0)
    if (only !== undefined && found < wanted)
      throw new InputError(
        `The dataset has ${found} of the ${wanted} instances that ${name} names, so it is not the one of the run any more. Restore it, or name other data by --validation-dataset and --validation-split.`,
        { file: dataset.folder },
      )
  }
  return survey
}

async function refuseSame(
  parts: readonly ValidationPart[],
  evaluated: readonly Dataset[],
  split: string,
): Promise<void> {
  const folders = await Promise.all(evaluated.map(({ folder }) => realpath(folder)))
  const whole = new Set<string>()
  for (const part of parts) {
    const folder = await realpath(part.folder)
    const key = JSON.stringify([folder, part.split])
    if (part.only === undefined && whole.has(key))
      throw new InputError(
        `The split "${part.split}" of ${part.folder} is named twice to pick a margin on; name each dataset once.`,
      )
    if (part.only === undefined) whole.add(key)
    if (part.split !== split || !folders.includes(folder)) continue
    throw new InputError(
      `The split "${split}" of ${part.folder} is the one that is evaluated, and a margin picked on it would flatter it; pick on another split (--validation-split).`,
    )
  }
}

/** How many sources are named. */
const NAMED = 3

async function refuseOverlap(
  name: string,
  datasets: readonly Dataset[],
  evaluated: readonly Dataset[],
  split: string,
): Promise<void> {
  const sources = new Set<string>()
  for (const dataset of datasets) for await (const { question } of dataset.questions()) sources.add(sourceOf(question))
  const shared = new Set<string>()
  for (const dataset of evaluated) {
    for await (const { question } of dataset.questions(split))
      if (sources.has(sourceOf(question))) shared.add(question.source ?? `question ${question.id}`)
  }
  if (shared.size === 0) return
  throw new InputError(
    `${shared.size} of ${sources.size} sources of ${name} are in the evaluated split "${split}", too (${someOf([...shared], shared.size)}), so a margin picked there would flatter it; pick on data of other sources (--validation-dataset, --validation-split; "canopy split" separates them).`,
  )
}

/** An encoder recalls more of what it was trained on, so a margin picked there is too small for anything else. */
async function refuseTrained(name: string, datasets: readonly Dataset[], data: TrainingData): Promise<void> {
  const counter = createOverlapCounter(data)
  for (const dataset of datasets) for await (const { question } of dataset.questions()) counter.add(question)
  const { questions, sources, of, examples } = counter.result()
  if (sources === 0 && questions === 0) return
  const seen =
    sources > 0
      ? `${sources} of ${of.sources} sources of ${name} were trained on (${someOf(examples, sources)})`
      : `${questions} of ${of.questions} questions of ${name} were trained on`
  throw new InputError(
    `${seen}, where the encoder recalls more than elsewhere, so a margin picked there would be too small. Name data that it has not seen (--validation-dataset, --validation-split), leave both out to pick on the validation part of the run that --adapter lies in, or add --allow-overlap.`,
  )
}

const someOf = (names: readonly string[], count: number): string =>
  names
    .slice(0, NAMED)
    .map((name) => JSON.stringify(name))
    .join(', ') + (count > NAMED ? ', …' : '')

import { createHash } from 'node:crypto'
import { join } from 'node:path'
import type { Dataset } from '../data/index.ts'
import { InputError } from '../support/errors.ts'
import { permuteQuestions } from './controls.ts'
import { getOrMake } from './maps.ts'
import { createOverlapCounter, type Overlap, type TrainingData } from './overlap.ts'
import { tableRow } from './scored.ts'
import { RESERVED_BENCHMARKS } from './sums.ts'

/** What a first reading of the questions gives. */
export interface Survey {
  questions: number
  /** By the row of the tables that a question counts under: its benchmark, or `benchmark:variant`. */
  rows: Map<string, RowSurvey>
  /** Ids that questions of several benchmarks share. */
  sharedIds: Set<string>
  /** Null: it is not known what the encoder was trained on. Undefined: nothing was trained. */
  overlap: Overlap | null | undefined
}

export interface RowSurvey {
  benchmark: string
  variant: string | undefined
  /** The different question texts, in file order. */
  texts: Set<string>
  /** Another question of the row for each text; undefined where there is no other. */
  partners: Map<string, string> | undefined
}

export interface SurveyOptions {
  split: string
  seed: string
  /** Whether anything was trained. */
  trained: boolean
  trainingData?: TrainingData | undefined
  allowOverlap?: boolean | undefined
  signal?: AbortSignal | undefined
}

/**
 * Reads the questions of a split once: which rows the tables have, which question is asked in place of which (permuted within
 * each row), what the encoder has seen of them.
 *
 * @throws InputError for a benchmark with a reserved name, two kinds of questions under one name, a question that occurs twice, a
 *   split without questions, and sources that were trained on unless allowed
 */
export async function surveyQuestions(datasets: readonly Dataset[], options: SurveyOptions): Promise<Survey> {
  const { split, seed, trainingData, trained, allowOverlap, signal } = options
  const survey: Survey = {
    questions: 0,
    rows: new Map(),
    sharedIds: new Set(),
    overlap: trained ? null : undefined,
  }
  const counter = trainingData === undefined ? undefined : createOverlapCounter(trainingData)
  const seen = new Set<string>()
  const benchmarkOf = new Map<string, string>()
  for (const dataset of datasets) {
    for await (const { question, line } of dataset.questions(split)) {
      signal?.throwIfAborted()
      const place = { file: join(dataset.folder, 'questions.jsonl'), line }
      const { benchmark, variant, id } = question
      const name = tableRow(question)
      if ((RESERVED_BENCHMARKS as readonly string[]).includes(name)) {
        throw new InputError(
          `The benchmark is called "${name}", which means something else in the results (${RESERVED_BENCHMARKS.join(', ')}); give it another name.`,
          place,
        )
      }
      const key = hash(`${benchmark}\0${id}`)
      if (seen.has(key)) {
        throw new InputError(
          `Question "${id}" of "${benchmark}" is there twice, so it would count twice; name each dataset once.`,
          place,
        )
      }
      seen.add(key)
      if (getOrMake(benchmarkOf, id, () => benchmark) !== benchmark) survey.sharedIds.add(id)
      survey.questions++
      const make = (): RowSurvey => ({ benchmark, variant, texts: new Set(), partners: undefined })
      const row = getOrMake(survey.rows, name, make)
      if (row.benchmark !== benchmark) {
        throw new InputError(
          `The benchmark "${benchmark}" and the variant "${row.variant ?? variant}" of "${row.variant === undefined ? benchmark : row.benchmark}" would both be called "${name}" in the results; rename one.`,
          place,
        )
      }
      row.texts.add(question.question)
      counter?.add(question)
    }
  }
  if (survey.questions === 0) {
    throw new InputError(`The split "${split}" has no questions in ${datasets.map(({ folder }) => folder).join(', ')}.`)
  }
  for (const [name, row] of survey.rows) row.partners = permuteQuestions(row.texts, `${seed}/permuted/${name}`)
  if (trained && counter !== undefined) {
    survey.overlap = counter.result()
    const { sources, of, examples } = survey.overlap
    if (sources > 0 && allowOverlap !== true) {
      const some = examples.map((source) => JSON.stringify(source)).join(', ')
      throw new InputError(
        `${sources} of ${of.sources} sources of the split "${split}" were trained on (${some}${sources > examples.length ? ', …' : ''}), so its numbers would flatter the encoder; evaluate on other data, or add --allow-overlap (in a configuration: "evaluate: { allowOverlap: true }").`,
      )
    }
  }
  return survey
}

const hash = (text: string): string => createHash('sha256').update(text).digest('hex')

import { createHash } from 'node:crypto'
import { type Dataset, openDataset, splitHash } from '../data/index.ts'
import { RENDERING_VERSION, SEGMENTER_VERSION, type TableFormatName } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { atomicFolder, sha256File } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { type EvaluatedEncoders, embeddedQuestions } from './embedded.ts'
import { type Estimates, RESAMPLES } from './estimates.ts'
import { type Evaluation, noCounts } from './evaluation.ts'
import { openGivenScores, type ScoresInput } from './given-lines.ts'
import { givenQuestions } from './given-scores.ts'
import type { ScoredQuestion } from './items.ts'
import { appendLook, countLooks, type LookCount, splitKey } from './looks.ts'
import { chooseMargin } from './margin-choice.ts'
import type { MeasuredMargin } from './margin-text.ts'
import { type NotedScores, notesOn, PICTURE_TOKENS, unreadableNotes } from './notes.ts'
import type { TrainingData } from './overlap.ts'
import { collect, encodersWith, requireResultsFolder, writeTables } from './results.ts'
import type { ModelEncoder, ScoredInstance } from './scored.ts'
import { type Survey, surveyQuestions } from './survey.ts'
import { openValidation, type ValidationData } from './validation.ts'

/** What every evaluation needs, wherever the scores come from. */
export interface EvaluationOptions {
  /** Dataset folders; benchmarks are what their questions say. */
  datasets: readonly string[]
  split: string
  /** How tables become text, for the encoder and for counting tokens; Markdown unless told. */
  tableFormat?: TableFormatName | undefined
  /** Branching factor of the trees; 2 unless told. */
  branching?: number | undefined
  /** Seeds the permutation of questions and the bootstrap; '1' unless told. */
  seed?: string | undefined
  resamples?: number | undefined
  /** Measure what was retrieved beside the gold items, too (where known); yes unless told. */
  retrieved?: boolean | undefined
  /** A margin of refinement at which the split is measured as well, beside margin 0; 0 or more. */
  margin?: { value: number; origin: 'stated' | 'canopy.json' } | undefined
  /** Pick the smallest margin whose gold recall on `validation` is at least this (above 0, at most 1), in place of `margin`. */
  minRecall?: number | undefined
  /** What a margin is picked on; nothing of the evaluated split, nor of its sources. */
  validation?: ValidationData | undefined
  /** Folder of the results, written whole when everything is done. */
  output: string
  /** Log in which evaluations of this run are counted. */
  looksFile?: string | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

export interface EvaluateOptions extends EvaluationOptions, EvaluatedEncoders {
  /** Tokens of a text by the node encoder's tokenizer, without special tokens, however long it is. */
  countTokens: (text: string) => number
  /** Name of that tokenizer. */
  tokenizer: string
  /** Whether nodes carry their item's title (and a table's caption). */
  title: boolean
  /** What the fine-tuned encoder was trained on; undefined: not known. */
  trainingData?: TrainingData | undefined
  /** Evaluate although sources of the split were trained on. */
  allowOverlap?: boolean | undefined
  /** Nodes that are embedded at once; bounds memory, changes nothing else. */
  batchNodes?: number | undefined
  /** What a picture or a video that cannot be read does: `stop` (default) throws, `skip` leaves its item out and counts it. */
  onError?: 'stop' | 'skip' | undefined
}

export interface EvaluateScoresOptions extends EvaluationOptions {
  /** Files of scores; a plain list of scores in them is of the row `fine-tuned`. */
  scores: readonly string[]
  /** Files whose scores are of the row `frozen`. */
  frozenScores?: readonly string[] | undefined
  /** Name of the model for the tables; the files' names unless told. */
  name?: string | undefined
  /** Counts tokens; without it the lines' own counts are taken where they have them, else words are counted. */
  tokenizer?: { name: string; countTokens: (text: string) => number } | undefined
}

export interface EvaluationResult {
  estimates: Estimates
  evaluation: Evaluation
  looks: LookCount | undefined
}

/**
 * Measures node encoders on a split: embeds every node of the gold items (and of the other retrieved ones), refines, compares
 * with gold, with the controls and with flat selectors, and writes `decisions.csv`, `pruning.csv`, `selection.csv`,
 * `margins.csv`, `metrics.json`, `summary.md`, `decisions.jsonl` and `scores.jsonl`. Everything is measured by the rule (margin 0);
 * `margins.csv` has what other margins keep. Images and videos are left out and counted where an encoder
 * does not read them. The same input gives the same bytes. Memory grows with the number of sources and of question texts, not with that of nodes' texts or embeddings.
 *
 * @throws InputError for bad data (with file and line), for a benchmark with a reserved name, a question that occurs twice,
 *   sources that the encoder was trained on, a split with nothing that the encoders read, a picture or a video that cannot be
 *   read, an output folder that holds something else, and validation data that is absent, empty, trained on or a part of what is evaluated
 * @throws RangeError for a margin or a recall that can be none
 */
export async function evaluate(options: EvaluateOptions): Promise<EvaluationResult> {
  const { query, frozen, fineTuned, names, title, countTokens, trainingData, allowOverlap } = options
  const unreadable = new Map<string, string>()
  const multimodal = frozen.reader.multimodal && (fineTuned?.reader.multimodal ?? true)
  return run(options, { trained: fineTuned !== undefined, trainingData, allowOverlap }, async (settings) => ({
    models: fineTuned === undefined ? ['frozen'] : ['frozen', 'fine-tuned', 'permuted'],
    described: {
      encoders: {
        query: { name: names.query, fingerprint: query.fingerprint },
        frozen: { name: names.frozen, fingerprint: frozen.fingerprint },
        ...(fineTuned && {
          'fine-tuned': { name: names.fineTuned ?? 'fine-tuned', fingerprint: fineTuned.fingerprint },
        }),
      },
      title,
      tokens: 'tokenizer',
      tokenizer: options.tokenizer,
    },
    configuration: [[query, frozen, fineTuned].map((encoder) => encoder?.fingerprint ?? ''), title],
    score: (datasets, survey, validation) =>
      embeddedQuestions(datasets, survey, {
        ...{ query, frozen, fineTuned, names, title, countTokens },
        ...settings,
        ...validation,
        batchNodes: options.batchNodes ?? 512,
        onError: options.onError ?? 'stop',
        // of validation items nothing but a margin is told
        onUnreadable: (item, reason) => validation ?? unreadable.set(item, reason),
      }),
    unpermuted: 'which has one question: there is no other to ask instead',
    notes: () => [...(multimodal ? [PICTURE_TOKENS] : []), ...unreadableNotes(unreadable)],
  }))
}

/**
 * Measures scores that any model gave to the nodes, as {@link evaluate} does its own; items of every modality count. Files are
 * JSON lines `{"question","item","nodes":[[from,to],…],"scores":[…]}`; the `scores.jsonl` of an evaluation is such a file.
 *
 * @throws InputError for an item without scores, and with file, line and node for a score that is missing or no number; besides
 *   what {@link evaluate} throws
 */
export async function evaluateScores(options: EvaluateScoresOptions): Promise<EvaluationResult> {
  const inputs = [
    ...options.scores.map((file): ScoresInput => ({ file, encoder: 'fine-tuned' })),
    ...(options.frozenScores ?? []).map((file): ScoresInput => ({ file, encoder: 'frozen' })),
  ]
  const given = await openGivenScores(inputs, { signal: options.signal })
  try {
    const trained = given.models.includes('fine-tuned')
    return await run(options, { trained }, async (settings) => {
      const counter = options.tokenizer?.countTokens ?? (given.countsTokens ? undefined : countWords)
      return {
        models: given.models,
        described: {
          encoders: await describeScores(options, given.models),
          tokens: options.tokenizer !== undefined ? 'tokenizer' : given.countsTokens ? 'given' : 'words',
          tokenizer: options.tokenizer?.name ?? (given.countsTokens ? 'the scores file' : 'words'),
        },
        configuration: await Promise.all(inputs.map(async ({ file, encoder }) => [encoder, await sha256File(file)])),
        score: (datasets, survey, validation) =>
          givenQuestions(datasets, survey, given, { ...settings, ...validation, countTokens: counter }),
        unpermuted: 'some items of which have no permuted scores',
        notes: () => [
          'The scores were computed elsewhere and measured as they are',
          ...(given.saysTruncated
            ? []
            : [
                'The scores do not say which nodes the model cut ("truncated") or saw as the same tokens ("same"): they count as none',
              ]),
          ...(counter === undefined
            ? []
            : [`${PICTURE_TOKENS}; a model's own counts go into "headerTokens" and "leafTokens"`]),
          ...(given.used === given.lines
            ? []
            : [
                `${given.lines - given.used} of ${given.lines} lines of scores were not asked for: they name nothing that was measured`,
              ]),
        ],
      }
    })
  } finally {
    await given.close()
  }
}

/** What stands between white space. */
const countWords = (text: string): number => text.match(/\S+/gu)?.length ?? 0

async function describeScores(
  { scores, frozenScores = [], name }: EvaluateScoresOptions,
  models: readonly ModelEncoder[],
): Promise<Evaluation['encoders']> {
  const describe = async (files: readonly string[], known = files.join(', ')) => ({
    name: known,
    fingerprint: sha256((await Promise.all(files.map(sha256File))).join()),
  })
  const frozen = frozenScores.length > 0 ? await describe(frozenScores) : await describe(scores, name)
  return {
    ...(models.includes('frozen') && { frozen }),
    ...(models.includes('fine-tuned') && { 'fine-tuned': await describe(scores, name) }),
  }
}

/** Settings with their defaults. */
interface Settings {
  split: string
  tableFormat: TableFormatName
  branching: number
  retrieved: boolean
  signal: AbortSignal | undefined
}

/** Where the scores of an evaluation come from. */
interface Scorer extends NotedScores {
  described: Pick<Evaluation, 'encoders' | 'title' | 'tokens' | 'tokenizer'>
  /** What tells this configuration from another one on the same data. */
  configuration: unknown
  /** @param validation set where a margin is picked on what is scored */
  score(
    datasets: readonly Dataset[],
    survey: Survey,
    validation?: Pick<Settings, 'retrieved'>,
  ): AsyncIterable<ScoredQuestion>
}

async function run(
  options: EvaluationOptions,
  training: { trained: boolean; trainingData?: TrainingData | undefined; allowOverlap?: boolean | undefined },
  openScorer: (settings: Settings) => Promise<Scorer>,
): Promise<EvaluationResult> {
  const { split, output, tableFormat = 'markdown', branching = 2, retrieved = true, onProgress, signal } = options
  const { seed = '1', resamples = RESAMPLES, looksFile } = options
  requireMarginOptions(options)
  await requireResultsFolder(output)
  const datasets: Dataset[] = []
  try {
    for (const folder of options.datasets) datasets.push(await openDataset(folder))
    const survey = await surveyQuestions(datasets, { split, seed, signal, ...training })
    const hashes: string[] = []
    for (const dataset of datasets) hashes.push(await splitHash(dataset, split))
    signal?.throwIfAborted()

    const scorer = await openScorer({ split, tableFormat, branching, retrieved, signal })
    const rows = [...survey.rows.keys()].sort()
    const selectedBy = scorer.models.includes('fine-tuned') ? 'fine-tuned' : 'frozen'
    const seen = training.allowOverlap === true ? undefined : training.trainingData
    const margin = await measuredMargin(options, scorer, selectedBy, datasets, seen)
    const evaluation: Evaluation = {
      schema: 'canopy-evaluation/1',
      split,
      datasets: datasets.map((dataset, i) => ({ name: dataset.meta.name, hash: hashes[i]! })),
      ...scorer.described,
      rendering: RENDERING_VERSION,
      segmenter: SEGMENTER_VERSION,
      ...{ tableFormat, branching, seed, resamples },
      clusters: {},
      counts: Object.fromEntries(rows.map((row) => [row, noCounts()])),
      apart: rows.filter((row) => survey.rows.get(row)!.variant !== undefined),
      selectedBy,
      scoreByLevel: {},
      accuracyByLevel: {},
      ...(survey.overlap !== undefined && { overlap: survey.overlap }),
      ...(margin !== undefined && { margin }),
      notes: [],
    }
    const look = {
      split: splitKey(split, hashes),
      configuration: sha256(
        JSON.stringify([scorer.configuration, RENDERING_VERSION, SEGMENTER_VERSION, tableFormat, branching]),
      ),
    }
    const looks = looksFile === undefined ? undefined : await countLooks(looksFile, look)
    if (looks !== undefined) evaluation.looks = looks.configuration

    const estimates = await atomicFolder(output, async (folder) => {
      const questions = withProgress(scorer.score(datasets, survey), survey.questions, onProgress)
      const collected = await collect(questions, evaluation, encodersWith(scorer.models), folder)
      signal?.throwIfAborted()
      requireReadable(evaluation)
      evaluation.notes = notesOn(scorer, evaluation, collected)
      return writeTables(collected, evaluation, folder, { signal, onProgress })
    })
    if (looksFile !== undefined) await appendLook(looksFile, { time: new Date().toISOString(), ...look })
    return { estimates, evaluation, looks }
  } finally {
    for (const dataset of datasets) await dataset.close()
  }
}

function requireMarginOptions({ margin, minRecall, validation }: EvaluationOptions): void {
  if (margin !== undefined && !(margin.value >= 0 && margin.value < Number.POSITIVE_INFINITY))
    throw new RangeError(`A margin is a finite number, 0 or more; ${margin.value} is none.`)
  if (minRecall === undefined) return
  if (!(minRecall > 0))
    throw new RangeError(`A recall to reach is a number above 0 and at most 1; ${minRecall} is none.`)
  if (minRecall > 1)
    throw new InputError(
      `No margin reaches a recall of ${minRecall}: where nothing is dropped it is 1.${minRecall >= 10 && minRecall <= 100 ? ` Did you mean ${Number((minRecall / 100).toPrecision(12))}?` : ''}`,
    )
  if (validation === undefined)
    throw new InputError(
      'There is no validation data to pick a margin on: name a split of other sources than the evaluated one by --validation-split, and its dataset by --validation-dataset where that is another one. Only where --adapter names an adapter inside a training run, its validation part is taken.',
    )
}

/** The margin that is measured beside margin 0: the one stated, or the one that validation items ask for. */
async function measuredMargin(
  { margin, minRecall, validation, split, onProgress }: EvaluationOptions,
  scorer: Scorer,
  encoder: 'fine-tuned' | 'frozen',
  evaluated: readonly Dataset[],
  seen: TrainingData | undefined,
): Promise<MeasuredMargin | undefined> {
  const nothing = { encoder, results: {}, differences: {} }
  if (minRecall === undefined) return margin && { margin: margin.value, origin: margin.origin, ...nothing }
  const { name } = validation!
  const { datasets, survey, close } = await openValidation(validation!, evaluated, split, seen)
  try {
    const scored = scorer.score(datasets, survey, { retrieved: false })
    const questions = withProgress(scored, survey.questions, onProgress, 'validation')
    const { margin, ...found } = await chooseMargin(instancesOf(questions), encoder, minRecall, name)
    return { margin, origin: 'validation', minRecall, validation: { name, ...found }, ...nothing }
  } finally {
    await close()
  }
}

async function* instancesOf(questions: AsyncIterable<ScoredQuestion>): AsyncIterable<ScoredInstance> {
  for await (const { instances } of questions) yield* instances
}

async function* withProgress(
  questions: AsyncIterable<ScoredQuestion>,
  total: number,
  onProgress: Progress | undefined,
  phase = 'evaluate',
): AsyncIterable<ScoredQuestion> {
  let done = 0
  onProgress?.({ phase, done, total })
  for await (const question of questions) {
    yield question
    onProgress?.({ phase, done: ++done, total })
  }
}

function requireReadable({ counts, split }: Evaluation): void {
  const all = Object.values(counts)
  const left = all.reduce((sum, { goldItems }) => sum + goldItems, 0)
  const notText = all.reduce((sum, { goldItemsNotText }) => sum + goldItemsNotText, 0)
  const unreadable = all.reduce((sum, { goldItemsUnreadable }) => sum + goldItemsUnreadable, 0)
  if (left > 0 || notText + unreadable === 0) return
  if (notText === 0)
    throw new InputError(
      `All ${unreadable} gold items of the split "${split}" are images or videos whose files cannot be read; "canopy check --media" tells why.`,
    )
  throw new InputError(
    `All ${notText} gold items of the split "${split}" are images or videos, which an encoder of text cannot read; take an encoder that can, or measure its scores with --scores.`,
  )
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')

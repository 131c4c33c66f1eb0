import { availableParallelism } from 'node:os'
import { join, resolve } from 'node:path'
import { type Dataset, openDataset } from '../data/index.ts'
import {
  CANOPY_FILE,
  canopySettings,
  defaultTargets,
  type EncoderProfile,
  initialLora,
  type LoraTarget,
  linearModules,
  loadTokenizer,
  loraShapes,
  openEmbedder,
  selectTargets,
  writeAdapter,
} from '../encoder/index.ts'
import { writeTrainingData } from '../eval/index.ts'
import { InputError } from '../support/errors.ts'
import { atomicFolder, writeFileAtomic } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import {
  clearTemporaries,
  type Fingerprint,
  readCheckpoint,
  type TrainingState,
  writeCheckpoint,
} from './checkpoints.ts'
import { openTrainingSet, type TrainingSet } from './data.ts'
import { loraEncoder } from './encoder.ts'
import { openEngine } from './engine.ts'
import { checkRunFolder, type EncoderRecord, runPaths, writeRunConfig } from './folder.ts'
import { writeHeldOut } from './held-out.ts'
import { assembleBatch, benchmarkWeight, readInstance, type Tokenise } from './instances.ts'
import { lockRun } from './lock.ts'
import { trainLoop } from './loop.ts'
import { cutMetrics, type MetricsLine, openMetrics, readFrozen, type ValidationMetrics } from './metrics.ts'
import { initialAdamW } from './optimizer.ts'
import { createSampler, splitValidation } from './sampler.ts'
import type { TrainSettings } from './settings.ts'
import { validate } from './validate.ts'
import { machine, versions } from './versions.ts'

export interface TrainOptions {
  /** The node encoder to adapt: a checkpoint. */
  encoder: EncoderProfile
  /** f0, which embeds the questions and stays as it is. */
  queryEncoder: EncoderProfile
  /** Dataset folders, and preferences files of theirs. */
  datasets: string[]
  preferences: string[]
  /** The run's folder. */
  output: string
  settings: TrainSettings
  /** Go on with the run that the folder holds. */
  resume?: boolean
  /** The command line, for the record. */
  command?: string[]
  onProgress?: Progress
  /** After each step. */
  onStep?: (line: MetricsLine, run: { totalSteps: number }) => void
  warn?: (message: string) => void
  /** Aborted: the step that runs is finished, a checkpoint written, and `Interrupted` thrown. */
  signal?: AbortSignal
}

export interface TrainResult {
  /** Folder of the selected adapter, in PEFT's format. */
  adapter: string
  steps: number
  /** The step whose adapter was selected, and how it and the frozen encoder do on the validation part. */
  selected: { step: number; validation: ValidationMetrics | undefined }
  frozen: ValidationMetrics | undefined
  instances: { train: number; validation: number }
  skipped: number
  /** What this process did: optimizer steps, their seconds, tokens and pairs (validation apart), and its largest memory in bytes. */
  work: { steps: number; seconds: number; tokens: number; pairs: number; peakMemory: number }
}

/**
 * Trains LoRA matrices on a node encoder and writes a run folder: config.json, metrics.jsonl, checkpoints/, adapter/ (the one
 * that the validation part of the training data selects) and training-data.json. The same seed, settings, data, threads and
 * machine give the same bytes, whether or not the run was interrupted in between.
 *
 * @throws InputError for bad input, and a run folder that is in use or holds another run
 * @throws Interrupted when `signal` asked for it
 */
export async function train(options: TrainOptions): Promise<TrainResult> {
  const folder = resolve(options.output)
  await checkRunFolder(folder, options.resume ?? false)
  const unlock = await lockRun(folder)
  const closing: (() => Promise<void>)[] = [unlock]
  try {
    return await lockedTrain(options, folder, (close) => closing.push(close))
  } finally {
    for (const close of closing.reverse()) await close()
  }
}

async function lockedTrain(
  options: TrainOptions,
  folder: string,
  onClose: (close: () => Promise<void>) => void,
): Promise<TrainResult> {
  const { settings, encoder, queryEncoder, warn = () => {}, onProgress = () => {} } = options
  const paths = runPaths(folder)
  const threads = settings.threads ?? availableParallelism()
  if (queryEncoder.dimension !== encoder.dimension)
    throw new InputError(
      `The query encoder's embeddings have ${queryEncoder.dimension} numbers, the node encoder's ${encoder.dimension}; a cosine needs equal sizes.`,
    )

  const datasets: Dataset[] = []
  for (const path of options.datasets) {
    const dataset = await openDataset(path)
    onClose(() => dataset.close())
    datasets.push(dataset)
  }
  const set = await openTrainingSet(options.preferences, datasets, onProgress)
  checkWeights(settings, set.benchmarks, warn)
  const split = splitValidation(set.index, settings.validationShare, settings.seed)
  if (split.train.length === 0)
    throw new InputError('No instance with preference pairs is left to train on.', { file: options.preferences[0] })
  if (split.validation.length === 0 && settings.validationShare > 0)
    warn('No source is small enough for a validation part; the adapter of the last step is kept.')

  const targets = loraTargets(encoder, settings)
  const sampler = createSampler(split.train, settings.batchSize, settings.seed)
  const { stepsPerEpoch } = sampler
  const totalSteps = settings.steps ?? Math.max(1, Math.ceil(settings.epochs * stepsPerEpoch))
  const evaluateEvery = settings.evaluateEvery ?? Math.max(1, Math.ceil(stepsPerEpoch / 2))
  const checkpointEvery = settings.checkpointEvery ?? evaluateEvery
  const fingerprint = await fingerprintOf(options, set, threads)

  const shapes = new Map(loraShapes(targets).map(({ name, shape }) => [name, shape as number[]]))
  await clearTemporaries(folder)
  await clearTemporaries(paths.checkpoints)
  const resumed = options.resume ? await readCheckpoint(paths.checkpoints, fingerprint, shapes, warn) : undefined
  const queries = await embedQuestions(queryEncoder, set, threads, onProgress, options.signal)
  const tokenizer = await loadTokenizer(encoder)
  const tokenise: Tokenise = (text) => tokenizer.encode(encoder.prompts.node + text)
  const trainable = await loraEncoder(encoder, targets, tokenizer.padId)
  const engine = await openEngine({
    encoder: trainable,
    queries,
    loss: settings,
    tokenBudget: settings.tokenBudget,
    threads,
  })
  onClose(() => engine.close())

  // only now that everything could be opened: a run that cannot begin leaves nothing
  if (resumed === undefined)
    await writeRunConfig(folder, {
      schema: 'canopy-run/1',
      command: options.command ?? [],
      settings,
      seed: settings.seed,
      steps: totalSteps,
      encoder: recordOf(encoder),
      queryEncoder: recordOf(queryEncoder),
      modules: targets.map(({ module }) => module),
      data: set.sources,
      instances: { train: split.train.length, validation: split.validation.length, without_pairs: set.empty },
      versions: await versions(),
      machine: machine(),
      threads,
      fingerprint,
    })
  await writeTrainingData(folder, set.trainingData)
  await writeHeldOut(folder, set, split.validation)
  await cutMetrics(paths.metrics, resumed?.step ?? -1)

  const work = { steps: 0, seconds: 0, tokens: 0, pairs: 0 }
  const state = resumed ?? initialState(targets, settings.seed)
  const metrics = await openMetrics(paths.metrics)
  onClose(() => metrics.close())

  await trainLoop(state, {
    settings,
    totalSteps,
    stepsPerEpoch,
    evaluateEvery,
    checkpointEvery,
    engine,
    signal: options.signal,
    async batch(step) {
      const instances = []
      for (const number of sampler.batch(step)) instances.push(await readInstance(set, number, tokenise, settings))
      return assembleBatch(instances, settings, set.benchmarks, trainable.tokens, settings.tokenBudget)
    },
    async validate(tensors) {
      const total = split.validation.length
      if (total === 0) return undefined
      return validate({
        set,
        instances: split.validation,
        engine,
        tensors,
        queries,
        dimension: trainable.dimension,
        tokenise,
        rendering: settings,
        loss: settings,
        weighting: settings,
        onInstance: (done) => onProgress({ phase: 'validating', done, total }),
      })
    },
    async log(line) {
      await metrics.write(line)
      if (line.step > 0) addWork(work, line)
      options.onStep?.(line, { totalSteps })
    },
    async checkpoint(current) {
      await metrics.sync()
      await writeCheckpoint(paths.checkpoints, current, fingerprint, shapes, settings.keepCheckpoints)
    },
  })

  if (state.best.step === 0)
    warn('No step did better on the validation part than the frozen encoder, so the adapter changes nothing.')
  await atomicFolder(paths.adapter, async (temporary) => {
    const adapter = { targets, tensors: state.best.tensors, baseFingerprint: encoder.fingerprint }
    await writeAdapter(temporary, adapter, encoder)
    const canopy = canopySettings(encoder, queryEncoder, {
      title: settings.title,
      tableFormat: settings.tableFormat,
      branching: set.sources[0]!.branching,
    })
    await writeFileAtomic(join(temporary, CANOPY_FILE), `${JSON.stringify(canopy, null, 2)}\n`)
    await writeTrainingData(temporary, set.trainingData)
  })
  return {
    adapter: paths.adapter,
    steps: state.step,
    selected: { step: state.best.step, validation: state.best.metrics },
    frozen: await readFrozen(paths.metrics),
    instances: { train: split.train.length, validation: split.validation.length },
    skipped: state.skipped,
    work: { ...work, peakMemory: process.resourceUsage().maxRSS * 1024 },
  }
}

/** Says which weights are for nothing, and refuses those under which there is nothing to train. */
function checkWeights(settings: TrainSettings, benchmarks: string[], warn: (message: string) => void): void {
  const known = benchmarks.map((name) => `"${name}"`).join(', ')
  for (const name of Object.keys(settings.benchmarkWeights))
    if (!benchmarks.includes(name)) warn(`"benchmarkWeights" names "${name}", which is not trained on (${known}).`)
  if (benchmarks.length > 0 && benchmarks.every((name) => benchmarkWeight(settings, name) === 0))
    throw new InputError(
      `"benchmarkWeights" gives every benchmark (${known}) the weight 0, so there is nothing to train.`,
    )
}

function addWork(work: Omit<TrainResult['work'], 'peakMemory'>, line: MetricsLine): void {
  work.steps++
  work.seconds += line.seconds ?? 0
  work.tokens += line.tokens ?? 0
  work.pairs += line.pairs ?? 0
}

function loraTargets(encoder: EncoderProfile, { targets, rank, alpha }: TrainSettings): LoraTarget[] {
  const modules = selectTargets(linearModules(encoder), targets ?? defaultTargets(encoder))
  for (const { module, inputs, outputs } of modules)
    if (rank > Math.min(inputs, outputs))
      throw new InputError(
        `A rank of ${rank} is more than ${module} has to adapt (${outputs} x ${inputs}); give at most ${Math.min(inputs, outputs)}.`,
      )
  return modules.map((module) => ({ ...module, rank, alpha }))
}

function initialState(targets: LoraTarget[], seed: number): TrainingState {
  const tensors = initialLora(targets, `${seed}/lora`)
  return {
    step: 0,
    tensors,
    optimizer: initialAdamW(tensors),
    best: { step: 0, metrics: undefined, tensors },
    skipped: 0,
    skippedInARow: 0,
  }
}

/** Query embeddings of all questions, of unit length, `[questions, dimension]`; f0 is released afterwards. */
async function embedQuestions(
  profile: EncoderProfile,
  set: TrainingSet,
  threads: number,
  onProgress: Progress,
  signal: AbortSignal | undefined,
): Promise<Float32Array> {
  const embedder = await openEmbedder(profile, { threads })
  try {
    const texts = set.questions.map(({ text }) => text)
    const { embeddings } = await embedder.embedTexts(texts, 'query', {
      onProgress: (event) => onProgress({ ...event, phase: 'embedding questions' }),
      ...(signal === undefined ? {} : { signal }),
    })
    set.questions.length = 0
    return toUnitLength(embeddings, profile.dimension)
  } finally {
    await embedder.close()
  }
}

function toUnitLength(rows: Float32Array, dimension: number): Float32Array {
  const unit = new Float32Array(rows.length)
  for (let start = 0; start < rows.length; start += dimension) {
    const row = rows.subarray(start, start + dimension)
    const length = Math.sqrt(row.reduce((sum, x) => sum + x * x, 0))
    row.forEach((x, i) => {
      unit[start + i] = x / Math.max(length, 1e-12)
    })
  }
  return unit
}

/** Everything that the bytes of the final adapter depend on. */
async function fingerprintOf(options: TrainOptions, set: TrainingSet, threads: number): Promise<Fingerprint> {
  // How often and how many checkpoints are written has no say in what is trained.
  const { threads: _threads, keepCheckpoints: _keep, checkpointEvery: _every, ...settings } = options.settings
  const named = (prefix: string, entries: object): Fingerprint =>
    Object.fromEntries(
      Object.entries(entries).map(([name, value]) => [
        `${prefix} ${name}`,
        typeof value === 'string' ? value : JSON.stringify(value),
      ]),
    )
  return {
    ...named('setting', settings),
    encoder: options.encoder.fingerprint,
    'query encoder': options.queryEncoder.fingerprint,
    ...named('data', Object.fromEntries(set.sources.map((s, i) => [`${i + 1} (${s.dataset}, ${s.split})`, s.hash]))),
    ...named(
      'preferences',
      Object.fromEntries(set.sources.map((s, i) => [`${i + 1} (${s.dataset}, ${s.split})`, s.sha256])),
    ),
    ...named('version of', await versions()),
    machine: machine(),
    threads: String(threads),
  }
}

function recordOf(profile: EncoderProfile): EncoderRecord {
  const { id, revision, fingerprint, dimension, maxLength, pooling, prompts } = profile
  return { id, revision: revision ?? null, fingerprint, dimension, maxLength, pooling, prompts }
}

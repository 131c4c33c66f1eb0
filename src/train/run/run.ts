import { resolve } from 'node:path'
import type { EncoderProfile } from '../../encoder/index.ts'
import { joinedTrainingData, writeTrainingData } from '../../eval/index.ts'
import { InputError } from '../../support/errors.ts'
import { exists } from '../../support/files.ts'
import type { Progress } from '../../support/progress.ts'
import { writeHeldOut } from '../data/held-out.ts'
import { trainLoop } from '../loop.ts'
import { checkLossModule } from '../loss/check.ts'
import { unscored } from '../loss/module.ts'
import { builtInLoss } from '../loss/pairwise.ts'
import type { TrainSettings } from '../settings.ts'
import { builtInGradients, moduleGradients, scoreBatch } from '../step/gradients.ts'
import { withinMemory } from '../step/out-of-memory.ts'
import { validate } from '../validate.ts'
import { clearTemporaries, readCheckpoint, type TrainingState, writeCheckpoint } from './checkpoints.ts'
import { configOf } from './config.ts'
import { checkRunFolder, isRunConfig, removeRun, runPaths, writeRunConfig } from './folder.ts'
import { lockRun } from './lock.ts'
import { cutMetrics, type MetricsLine, openMetrics, readFirst, type ValidationMetrics } from './metrics.ts'
import { planRun, type RunPlan } from './plan.ts'
import { isSelected, writeSelected } from './selected.ts'
import { warnOfFewDecisions, warnOfFewSteps, warnOfSeen } from './too-few.ts'
import { firstState, openTrainer, type Trainer } from './trainer.ts'
import { keepStart } from './warm-start.ts'

export interface TrainOptions {
  /** The node encoder to adapt: a checkpoint, or an ONNX folder. */
  encoder: EncoderProfile
  /** f0, which embeds the questions and stays as it is. */
  queryEncoder: EncoderProfile
  /** Dataset folders, and preferences files of theirs. */
  datasets: string[]
  preferences: string[]
  /** The run's folder. */
  output: string
  /** Folder in which visual features are kept, for other runs too; the run's by default. */
  cache?: string | undefined
  settings: TrainSettings
  /** Go on with the run that the folder holds, if it holds one: begins, goes on, or finds it finished. */
  resume?: boolean
  /** The command line, for the record. */
  command?: string[]
  onProgress?: Progress
  /** After each step. */
  onStep?: (line: MetricsLine, run: { totalSteps: number }) => void
  warn?: (message: string) => void
  /** What a user may want to know of the run, and need not act on. */
  note?: (message: string) => void
  /** Aborted: the step that runs is finished, a checkpoint written, and `Interrupted` thrown. */
  signal?: AbortSignal
}

export interface TrainResult {
  /** Folder of the selected adapter, in PEFT's format. */
  adapter: string
  steps: number
  /** Whether there was nothing left to do. */
  alreadyFinished: boolean
  /** The step whose adapter was selected, 0 for what the run began from, and how it and the frozen encoder do on the validation part. */
  selected: { step: number; validation: ValidationMetrics | undefined }
  frozen: ValidationMetrics | undefined
  /** Where the run began from an adapter, in place of `frozen`: how that does. */
  start?: ValidationMetrics | undefined
  /** `leftOut`: those that the encoder cannot read. */
  instances: { train: number; validation: number; leftOut: number }
  skipped: number
  /**
   * What this process did: optimizer steps, their seconds, tokens and pairs (validation apart), and its largest memory in bytes.
   * `computedTokens`: tokens that were computed, what nodes share counted once.
   */
  work: {
    steps: number
    seconds: number
    tokens: number
    computedTokens: number
    pairs: number
    peakMemory: number
  }
}

/**
 * Trains LoRA matrices on a node encoder and writes a run folder: config.json, metrics.jsonl, checkpoints/, adapter/ (the one
 * that the validation part of the training data selects) and training-data.json; and start-adapter/, where it begins from an
 * adapter. The same seed, settings, data, threads and machine give the same bytes, whether or not the run was interrupted in
 * between.
 *
 * @throws InputError for bad input, and a run folder that is in use or holds another run
 * @throws Interrupted when `signal` asked for it
 */
export async function train(options: TrainOptions): Promise<TrainResult> {
  const folder = resolve(options.output)
  await checkRunFolder(folder, options.resume ?? false)
  const unlock = await lockRun(folder)
  const closing: (() => Promise<void>)[] = []
  try {
    // Again: another process may have trained here until it gave the lock back.
    await checkRunFolder(folder, options.resume ?? false)
    return await lockedTrain(options, folder, (close) => closing.push(close))
  } finally {
    try {
      for (const close of closing.reverse()) await close()
    } finally {
      await unlock()
    }
  }
}

async function lockedTrain(
  options: TrainOptions,
  folder: string,
  onClose: (close: () => Promise<void>) => void,
): Promise<TrainResult> {
  const { warn = () => {} } = options
  const paths = runPaths(folder)
  const plan = await planRun(options, onClose)
  const described = await isRunConfig(folder)
  const resumed = await lastState(options, folder, plan)
  if (resumed !== undefined && !described) {
    warn(`${paths.config} is damaged or missing and is written again.`)
    await writeRunConfig(folder, await configOf(options, plan, resumed))
  }
  if (resumed !== undefined && resumed.step >= plan.totalSteps && resumed.unvalidated === undefined) {
    if (!(await exists(paths.heldOut)) || !(await exists(paths.trainingData))) await writeRecords(folder, plan)
    if (plan.start !== undefined) await keepStart(folder, plan.start, options.encoder)
    if (!(await isSelected(paths.adapter, resumed.best.tensors, options.encoder))) {
      if (await exists(paths.adapter)) warn(`The adapter ${paths.adapter} is damaged and is written again.`)
      await writeSelected(paths.adapter, resumed.best.tensors, options, plan)
    }
    return { ...(await resultOf(folder, plan, resumed)), alreadyFinished: true }
  }

  const trainer = await openTrainer(options, plan, onClose)
  const state = resumed ?? (await firstState(options, plan, trainer))
  if (resumed === undefined) {
    await checkLoss(options, plan, trainer, state)
    // only now that everything could be opened: a run that cannot begin leaves nothing, but visual features for the next try
    await writeRunConfig(folder, await configOf(options, plan, state))
  }
  const work = createWork()
  try {
    await runSteps(options, folder, plan, trainer, state, { resumed: resumed !== undefined, work, onClose })
  } catch (error) {
    if (state.step === 0) await removeRun(folder)
    throw error
  }

  if (state.best.step === 0)
    warn(
      plan.start === undefined
        ? 'No step did better on the validation part than the frozen encoder, so the adapter changes nothing.'
        : 'No step did better on the validation part than the adapter that the run began from, which stays as it was.',
    )
  await writeSelected(paths.adapter, state.best.tensors, options, plan)
  return { ...(await resultOf(folder, plan, state)), work: { ...work, peakMemory: peakMemory() } }
}

/** The state that a run goes on from; undefined where it begins. */
async function lastState(
  { resume = false, warn = () => {} }: TrainOptions,
  folder: string,
  { fingerprint, shapes, totalSteps }: RunPlan,
): Promise<TrainingState | undefined> {
  const { checkpoints, adapter } = runPaths(folder)
  await clearTemporaries(folder)
  await clearTemporaries(checkpoints)
  const state = resume ? await readCheckpoint(checkpoints, fingerprint, shapes, totalSteps, warn) : undefined
  if (state === undefined && (await exists(adapter)))
    throw new InputError(
      'This run has an adapter and no checkpoints, so it can neither go on nor be checked. Use its adapter as it is, or choose another --output.',
      { file: folder },
    )
  return state
}

/** Holds a loss module to the first batch in which there is something to learn; its text cannot change when a run goes on. */
async function checkLoss(
  { warn = () => {} }: TrainOptions,
  { module, set, totalSteps }: RunPlan,
  trainer: Trainer,
  state: TrainingState,
): Promise<void> {
  if (module === undefined) return
  for (let step = 1; step <= totalSteps; step++) {
    const batch = await trainer.batch(step, state.tokenBudget)
    if (batch.members.length === 0) continue
    const score = () => scoreBatch(batch, state.tensors, { ...trainer, benchmarks: set.benchmarks })
    const { instances } = await withinMemory(state, { ...trainer, warn }, score)
    if (unscored(instances) === undefined) checkLossModule(module, instances)
    return
  }
}

/** Writes what the run trains on and what selects its adapter. */
async function writeRecords(folder: string, { set, split, start }: RunPlan): Promise<void> {
  await writeTrainingData(folder, joinedTrainingData(await set.trainingData(), start?.trainingData))
  await writeHeldOut(folder, set, split.validation)
}

/** Trains from `state` on to the last step, with metrics and checkpoints in the run's folder. */
async function runSteps(
  options: TrainOptions,
  folder: string,
  plan: RunPlan,
  trainer: Trainer,
  state: TrainingState,
  { resumed, work, onClose }: { resumed: boolean; work: Work; onClose: (close: () => Promise<void>) => void },
): Promise<void> {
  const { settings, signal, warn = () => {}, onProgress = () => {} } = options
  const { set, split, totalSteps, module } = plan
  const { engine } = trainer
  const paths = runPaths(folder)
  await writeRecords(folder, plan)
  if (plan.start !== undefined) await keepStart(folder, plan.start, options.encoder)
  if (!resumed) await warnOfSeen(plan, warn)
  if (!resumed) warnOfFewSteps(totalSteps, settings, warn)
  const logged = state.unvalidated === undefined ? state.step : state.step - 1
  const missing = await cutMetrics(paths.metrics, resumed ? logged : -1)
  if (missing.length > 0)
    warn(
      `${paths.metrics} was damaged: it lacks ${missing.length} of ${logged + 1} lines, that of step ${missing[0]} first.`,
    )
  const metrics = await openMetrics(paths.metrics)
  onClose(() => metrics.close())

  await trainLoop(state, {
    settings,
    totalSteps,
    stepsPerEpoch: plan.sampler.stepsPerEpoch,
    evaluateEvery: plan.evaluateEvery,
    checkpointEvery: plan.checkpointEvery,
    signal,
    warn,
    longest: trainer.longest,
    batch: trainer.batch,
    use: trainer.use,
    gradients: (batch, tensors) =>
      module === undefined
        ? builtInGradients(batch, tensors, engine)
        : moduleGradients(batch, tensors, { ...trainer, module, benchmarks: set.benchmarks }),
    async validate(tensors) {
      const total = split.validation.length
      if (total === 0) return undefined
      return validate({
        ...{ set, engine, tensors, signal },
        instances: split.validation,
        queries: trainer.queries,
        dimension: trainer.dimension,
        encode: trainer.encode,
        rendering: settings,
        loss: module ?? builtInLoss(settings)!,
        weighting: settings,
        onInstance: (done) => onProgress({ phase: 'validating', done, total }),
      })
    },
    async log(line) {
      await metrics.write(line)
      if (line.step === 0) warnOfFewDecisions(line.validation, settings, warn)
      if (line.step > 0) addWork(work, line)
      options.onStep?.(line, { totalSteps })
    },
    async checkpoint(current) {
      await metrics.sync()
      await writeCheckpoint(paths.checkpoints, current, plan.fingerprint, plan.shapes, settings.keep)
    },
  })
}

type Work = Omit<TrainResult['work'], 'peakMemory'>

const createWork = (): Work => ({ steps: 0, seconds: 0, tokens: 0, computedTokens: 0, pairs: 0 })

function addWork(work: Work, line: MetricsLine): void {
  work.steps++
  work.seconds += line.seconds ?? 0
  work.tokens += line.tokens ?? 0
  work.computedTokens += line.computed_tokens ?? line.tokens ?? 0
  work.pairs += line.pairs ?? 0
}

const peakMemory = (): number => process.resourceUsage().maxRSS * 1024

async function resultOf(
  folder: string,
  { split, leftOut, start }: RunPlan,
  state: TrainingState,
): Promise<TrainResult> {
  const { adapter, metrics } = runPaths(folder)
  const first = await readFirst(metrics)
  return {
    adapter,
    steps: state.step,
    alreadyFinished: false,
    selected: { step: state.best.step, validation: state.best.metrics },
    ...(start === undefined ? { frozen: first } : { frozen: undefined, start: first }),
    instances: { train: split.train.length, validation: split.validation.length, leftOut: leftOut.instances.size },
    skipped: state.skipped,
    work: { ...createWork(), peakMemory: peakMemory() },
  }
}

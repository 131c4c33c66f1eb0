import { setImmediate as nextTurn } from 'node:timers/promises'
import { InputError } from '../support/errors.ts'
import type { TrainingState } from './checkpoints.ts'
import type { Engine } from './engine.ts'
import type { Batch } from './instances.ts'
import type { MetricsLine, ValidationMetrics } from './metrics.ts'
import { accumulate, adamWStep, clipFactor, copyTensors, globalNorm, type Tensors, zerosLike } from './optimizer.ts'
import { learningRateAt } from './schedule.ts'
import type { TrainSettings } from './settings.ts'

/** Steps in a row that may fail to give finite numbers before training stops. */
const MAX_SKIPPED_IN_A_ROW = 3

/** Training was asked to stop; the step that was running is done and a checkpoint written (none before the first step). */
export class Interrupted extends Error {
  override name = 'AbortError'
  readonly step: number

  constructor(step: number) {
    super(`Training stopped after step ${step}.`)
    this.step = step
  }
}

/** What the loop calls. */
export interface LoopParts {
  settings: TrainSettings
  totalSteps: number
  stepsPerEpoch: number
  /** Steps between evaluations, and between checkpoints. */
  evaluateEvery: number
  checkpointEvery: number
  engine: Pick<Engine, 'onePass' | 'twoPass'>
  /** The batch of a step (from 1). */
  batch(step: number): Promise<Batch>
  /** Metrics of the validation part; undefined where it is empty. */
  validate(tensors: Tensors): Promise<ValidationMetrics | undefined>
  log(line: MetricsLine): Promise<void>
  checkpoint(state: TrainingState): Promise<void>
  /** Aborted: finish the step, write a checkpoint, stop. */
  signal?: AbortSignal | undefined
}

/**
 * Trains from `state` on, in place, until the last step.
 *
 * @throws Interrupted when the signal asks for it
 * @throws InputError when three steps in a row are not finite
 */
export async function trainLoop(state: TrainingState, parts: LoopParts): Promise<void> {
  const { settings, totalSteps } = parts

  if (state.step === 0) {
    const validation = await parts.validate(state.tensors)
    state.best = { step: 0, metrics: validation, tensors: copyTensors(state.tensors) }
    await parts.log({ step: 0, ...(validation === undefined ? {} : { validation }) })
    if (parts.signal?.aborted) throw new Interrupted(0)
  }

  while (state.step < totalSteps) {
    const step = state.step + 1
    const started = performance.now()
    const learningRate = learningRateAt(step, totalSteps, settings)

    const batch = await parts.batch(step)
    const { loss, right, gradients } = await batchGradients(batch, state.tensors, parts.engine)
    const norm = globalNorm(gradients)
    const skipped = reasonToSkip(batch, loss, norm)
    if (skipped === undefined)
      adamWStep(state.tensors, gradients, state.optimizer, learningRate, settings, clipFactor(norm, settings.clipNorm))
    countSkipped(state, skipped, step)
    state.step = step

    const line: MetricsLine = {
      step,
      epoch: Math.ceil(step / parts.stepsPerEpoch),
      loss,
      pair_accuracy: right / batch.pairs,
      learning_rate: learningRate,
      gradient_norm: norm,
      ...(skipped === undefined ? {} : { skipped }),
      instances: batch.instances,
      pairs: batch.pairs,
      dropped_pairs: batch.droppedPairs,
      nodes: batch.nodes,
      truncated_nodes: batch.truncatedNodes,
      tokens: batch.tokens,
      seconds: seconds(started),
    }
    if (step % parts.evaluateEvery === 0 || step === totalSteps) {
      const validation = await parts.validate(state.tensors)
      if (validation !== undefined) line.validation = validation
      if (isBetter(validation, state.best.metrics, settings.selection))
        state.best = { step, metrics: validation, tensors: copyTensors(state.tensors) }
    }
    await parts.log(line)

    // Signals reach a process only between two turns of its event loop, which runs of the graph hold up.
    await nextTurn()
    const stop = parts.signal?.aborted === true && step < totalSteps
    if (step % parts.checkpointEvery === 0 || step === totalSteps || stop) await parts.checkpoint(state)
    if (stop) throw new Interrupted(step)
  }
}

/** Loss, pairs in the right order and gradients of a whole batch: micro-batches summed in their order. */
async function batchGradients(
  batch: Batch,
  tensors: Tensors,
  engine: LoopParts['engine'],
): Promise<{ loss: number; right: number; gradients: Tensors }> {
  const gradients = zerosLike(tensors)
  let loss = 0
  let right = 0
  for (const micro of batch.micro) {
    const part = await (micro.oversize ? engine.twoPass(micro, tensors) : engine.onePass(micro, tensors))
    loss += part.loss
    right += part.differences.reduce((n, d) => n + (d > 0 ? 1 : 0), 0)
    accumulate(gradients, part.gradients)
  }
  return { loss, right, gradients }
}

function reasonToSkip(batch: Batch, loss: number, norm: number): string | undefined {
  if (batch.micro.length === 0) return 'no pair that can be learned'
  if (!Number.isFinite(loss)) return 'the loss is not finite'
  if (!Number.isFinite(norm)) return 'the gradient is not finite'
  return undefined
}

function countSkipped(state: TrainingState, skipped: string | undefined, step: number): void {
  const notFinite = skipped?.endsWith('not finite') === true
  if (skipped !== undefined) state.skipped++
  state.skippedInARow = notFinite ? state.skippedInARow + 1 : 0
  if (state.skippedInARow >= MAX_SKIPPED_IN_A_ROW)
    throw new InputError(
      `Training stopped at step ${step}: in ${state.skippedInARow} steps in a row ${skipped}. ` +
        'Lower the learning rate, or look into the texts of these batches; the last checkpoint is as it was.',
    )
}

/** Whether `a` beats `b` strictly; without a validation part the later adapter does. */
export function isBetter(
  a: ValidationMetrics | undefined,
  b: ValidationMetrics | undefined,
  selection: TrainSettings['selection'],
): boolean {
  if (a === undefined || b === undefined) return a === undefined
  // NaN comes back from a checkpoint's JSON as null.
  if (!Number.isFinite(a[selection])) return false
  return !Number.isFinite(b[selection]) || (selection === 'loss' ? a.loss < b.loss : a[selection] > b[selection])
}

function seconds(started: number): number {
  return Math.round(performance.now() - started) / 1000
}

import { setImmediate as nextTurn } from 'node:timers/promises'
import { InputError } from '../support/errors.ts'
import type { Batch } from './data/instances.ts'
import type { TrainingState } from './run/checkpoints.ts'
import type { MetricsLine, ValidationMetrics } from './run/metrics.ts'
import type { TrainSettings } from './settings.ts'
import type { BatchGradients } from './step/gradients.ts'
import { grown, lowered } from './step/loss-scale.ts'
import { adamWStep, clipFactor, copyTensors, globalNorm, type Tensors } from './step/optimizer.ts'
import { withinMemory } from './step/out-of-memory.ts'
import { learningRateAt } from './step/schedule.ts'

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
  /** Tokens of the longest node so far. */
  longest(): number
  /** The batch of a step (from 1), cut for a token budget. */
  batch(step: number, tokenBudget: number): Promise<Batch>
  /** Has the engine compute with the state's token budget and loss scale from now on. */
  use(state: Pick<TrainingState, 'tokenBudget' | 'lossScale'>): void
  /** Loss and gradients of a batch. */
  gradients(batch: Batch, tensors: Tensors): Promise<BatchGradients>
  /** Metrics of the validation part; undefined where it is empty. Throws an AbortError when the signal asks for it. */
  validate(tensors: Tensors): Promise<ValidationMetrics | undefined>
  log(line: MetricsLine): Promise<void>
  checkpoint(state: TrainingState): Promise<void>
  warn(message: string): void
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
    const { tokenBudget } = state
    const validation = await interruptible(0, () => withinMemory(state, parts, () => parts.validate(state.tensors)))
    state.best = { step: 0, metrics: validation, tensors: copyTensors(state.tensors) }
    await parts.log({
      step: 0,
      ...changedBudget(tokenBudget, state),
      ...(validation === undefined ? {} : { validation }),
    })
    if (parts.signal?.aborted) throw new Interrupted(0)
  }
  if (state.unvalidated !== undefined) await endStep(state, state.unvalidated, parts)

  while (state.step < totalSteps) {
    const step = state.step + 1
    const started = performance.now()
    const learningRate = learningRateAt(step, totalSteps, settings)

    const { tokenBudget, lossScale } = state
    const { batch, result } = await withinMemory(state, parts, async () => {
      const batch = await parts.batch(step, state.tokenBudget)
      return { batch, result: await parts.gradients(batch, state.tensors) }
    })
    const norm = globalNorm(result.gradients)
    const clip = clipFactor(norm, settings.clipNorm)
    const skip = adjustScale(state, reasonToSkip(batch, result, norm * clip))
    if (skip === undefined) adamWStep(state.tensors, result.gradients, state.optimizer, learningRate, settings, clip)
    countSkipped(state, skip, step)
    state.step = step

    await endStep(
      state,
      {
        step,
        epoch: Math.ceil(step / parts.stepsPerEpoch),
        loss: result.loss,
        ...(batch.pairs === 0 ? {} : { pair_accuracy: result.right / batch.pairs }),
        learning_rate: learningRate,
        gradient_norm: norm,
        ...(lossScale === undefined ? {} : { loss_scale: lossScale.scale }),
        ...changedBudget(tokenBudget, state),
        ...(skip === undefined ? {} : { skipped: skip.why }),
        instances: batch.instances,
        pairs: batch.pairs,
        dropped_pairs: batch.droppedPairs,
        nodes: batch.nodes,
        truncated_nodes: batch.truncatedNodes,
        tokens: batch.tokens,
        ...(batch.computedTokens === undefined ? {} : { computed_tokens: batch.computedTokens }),
        seconds: seconds(started),
      },
      parts,
    )
  }
}

/** What follows an optimizer step: validation when it is due, the line in the log, a checkpoint when it is due. */
async function endStep(state: TrainingState, line: MetricsLine, parts: LoopParts): Promise<void> {
  const { step } = line
  const { totalSteps, evaluateEvery, checkpointEvery, settings } = parts
  const { tokenBudget } = state
  if (step % evaluateEvery === 0 || step === totalSteps) {
    state.unvalidated = line
    const validation = await interruptible(
      step,
      () => withinMemory(state, parts, () => parts.validate(state.tensors)),
      () => parts.checkpoint(state),
    )
    state.unvalidated = undefined
    if (validation !== undefined) line.validation = validation
    Object.assign(line, changedBudget(tokenBudget, state))
    if (isBetter(validation, state.best.metrics, settings.selection))
      state.best = { step, metrics: validation, tensors: copyTensors(state.tensors) }
  }
  await parts.log(line)

  // Signals reach a process only between two turns of its event loop, which runs of the graph hold up.
  await nextTurn()
  const stop = parts.signal?.aborted === true && step < totalSteps
  if (step % checkpointEvery === 0 || step === totalSteps || stop) await parts.checkpoint(state)
  if (stop) throw new Interrupted(step)
}

/** What metrics.jsonl says of the token budget: nothing, unless memory ran out since it was `before`. */
function changedBudget(before: number, { tokenBudget }: TrainingState): Pick<MetricsLine, 'token_budget'> {
  return tokenBudget === before ? {} : { token_budget: tokenBudget }
}

/** Work that a signal breaks off: what `atEnd` saves then, and `Interrupted`. */
async function interruptible<T>(step: number, work: () => Promise<T>, atEnd?: () => Promise<void>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof Error && error.name === 'AbortError')) throw error
    await atEnd?.()
    throw new Interrupted(step)
  }
}

/** Why a step is not applied, and whether something was not finite (and if so, whether it was the gradient alone). */
interface Skip {
  why: string
  notFinite: false | 'loss' | 'gradient'
}

/**
 * Float16's loss scale after a step. A gradient that overflows is the scale's fault, and no other, until it cannot be lowered
 * any more; a loss that does is not.
 */
function adjustScale(state: TrainingState, skip: Skip | undefined): Skip | undefined {
  const { lossScale } = state
  if (lossScale === undefined || skip?.notFinite === 'loss') return skip
  if (skip?.notFinite !== 'gradient') {
    if (skip === undefined) state.lossScale = grown(lossScale)
    return skip
  }
  const next = lowered(lossScale)
  if (next === undefined) return skip
  state.lossScale = next
  return {
    why: `the gradient overflowed in float16, and the loss scale was lowered to ${next.scale}`,
    notFinite: false,
  }
}

function reasonToSkip(batch: Batch, { loss, notFinite }: BatchGradients, clippedNorm: number): Skip | undefined {
  if (batch.micro.length === 0) return { why: 'no pair that can be learned', notFinite: false }
  if (!Number.isFinite(loss)) return { why: `${notFinite ?? 'the loss is'} not finite`, notFinite: 'loss' }
  // AdamW keeps squares of the gradient in float32.
  if (!Number.isFinite(Math.fround(clippedNorm ** 2)))
    return { why: 'the gradient is not finite', notFinite: 'gradient' }
  return undefined
}

function countSkipped(state: TrainingState, skip: Skip | undefined, step: number): void {
  if (skip !== undefined) state.skipped++
  state.skippedInARow = skip !== undefined && skip.notFinite !== false ? state.skippedInARow + 1 : 0
  if (state.skippedInARow >= MAX_SKIPPED_IN_A_ROW)
    throw new InputError(
      `Training stopped at step ${step}: in ${state.skippedInARow} steps in a row ${skip?.why}. ` +
        `${state.lossScale === undefined ? 'Lower the learning rate' : 'Numbers grow out of float16: use --precision bf16 or fp32, lower the learning rate'}, or look into the texts of these batches; the last checkpoint is as it was.`,
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

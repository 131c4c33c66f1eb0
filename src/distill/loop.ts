import { setImmediate as nextTurn } from 'node:timers/promises'
import { type TokenSequence, textSequence } from '../encoder/index.ts'
import { openSession, prune, type Session, type Tensor } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { createRandom } from '../support/random.ts'
import {
  accumulate,
  adamWStep,
  clipFactor,
  globalNorm,
  learningRateAt,
  type Tensors,
  zerosLike,
} from '../train/index.ts'
import { type Axes, project } from './axes.ts'
import { distillation, distillationGraph } from './graph.ts'
import type { DistillSettings } from './settings.ts'
import type { DistillState } from './state.ts'
import type { Student } from './student.ts'
import { type EmbeddingFile, toUnit } from './teacher.ts'
import type { TokenStore } from './tokens.ts'

/** A line of the distillation's metrics.jsonl. */
export interface DistillLine {
  step: number
  epoch: number
  loss: number
  /** Mean cosine of the step's texts to the teacher, in the student's space. */
  cosine: number
  learning_rate: number
  gradient_norm: number
  texts: number
  tokens: number
  seconds: number
  /** Mean cosine of the held-out texts to the teacher, in the teacher's space. */
  held_out_cosine?: number
}

export interface LoopOptions {
  student: Student
  settings: DistillSettings
  threads: number
  totalSteps: number
  tokens: TokenStore
  teacher: EmbeddingFile
  axes: Axes
  /** Mean cosine of held-out texts to the teacher under these weights. */
  measure(tensors: Tensors): Promise<number>
  log(line: DistillLine): Promise<void>
  checkpoint(state: DistillState): Promise<void>
  signal?: AbortSignal | undefined
}

/** Steps in a row whose loss or gradient may fail to be finite before the distillation stops. */
const MAX_NOT_FINITE = 3

/**
 * Distils from `state` on, in place, until the last step: a step takes the next texts of the epoch's shuffle, up to the settings' tokens.
 *
 * @throws AbortError when the signal asks for it, after a checkpoint
 * @throws InputError when three steps in a row are not finite
 */
export async function distillLoop(state: DistillState, options: LoopOptions): Promise<void> {
  const { student, settings, totalSteps, threads } = options
  const names = [...student.shapes.keys()]
  const { graph, gradients } = distillationGraph(student.graph, names, { ...student, ...settings })
  const session = await openSession(graph, { threads })
  let order = epochOrder(options, state.epoch)
  let notFinite = 0
  try {
    while (state.step < totalSteps) {
      const started = performance.now()
      if (state.cursor >= order.length) {
        state.epoch++
        state.cursor = 0
        order = epochOrder(options, state.epoch)
      }
      const batch = nextBatch(order, state.cursor, options)
      const { loss, cosine, sum } = await gradientsOf(batch, state.tensors, session, gradients, options)
      const norm = globalNorm(sum)
      const step = state.step + 1
      const learningRate = learningRateAt(step, totalSteps, settings)
      if (Number.isFinite(loss) && Number.isFinite(norm)) {
        notFinite = 0
        adamWStep(state.tensors, sum, state.optimizer, learningRate, settings, clipFactor(norm, settings.clipNorm))
      } else if (++notFinite === MAX_NOT_FINITE)
        throw new InputError(
          `The distillation stopped at step ${step}: ${notFinite} steps in a row were not finite. Lower the learning rate.`,
        )
      Object.assign(state, { step, cursor: state.cursor + batch.length })
      const line: DistillLine = {
        ...{ step, epoch: state.epoch + 1, loss, cosine, learning_rate: learningRate, gradient_norm: norm },
        ...{ texts: batch.length, tokens: batch.reduce((n, text) => n + options.tokens.length(text), 0) },
        seconds: Math.round(performance.now() - started) / 1000,
      }
      if (step % settings.evaluateEvery === 0 || step === totalSteps)
        line.held_out_cosine = await options.measure(state.tensors)
      await options.log(line)
      // signals are heard between two turns of the event loop
      await nextTurn()
      const stop = options.signal?.aborted === true && step < totalSteps
      if (step % settings.checkpointEvery === 0 || step === totalSteps || stop) await options.checkpoint(state)
      if (stop) options.signal?.throwIfAborted()
    }
  } finally {
    await session.release()
  }
}

/** The texts of an epoch, shuffled. */
function epochOrder({ settings, tokens }: LoopOptions, epoch: number): number[] {
  const all = Array.from({ length: tokens.texts }, (_, i) => i)
  return createRandom(`${settings.seed}/epoch/${epoch}`).shuffle(all)
}

function nextBatch(order: number[], cursor: number, { tokens, settings }: LoopOptions): number[] {
  let end = cursor
  for (let sum = 0; end < order.length; end++) {
    sum += tokens.length(order[end]!)
    if (sum > settings.batchTokens && end > cursor) break
  }
  return order.slice(cursor, end)
}

/** Loss, mean cosine and gradient of a batch, run by run. */
async function gradientsOf(
  batch: number[],
  tensors: Tensors,
  session: Session,
  gradients: ReadonlyMap<string, string>,
  { student, settings, tokens, teacher, axes }: LoopOptions,
): Promise<{ loss: number; cosine: number; sum: Tensors }> {
  const sequences = batch.map((text) => textSequence(tokens.ids(text)))
  const targets = project(await teacher.read(batch), axes)
  toUnit(targets, axes.width)
  const sum = zerosLike(tensors)
  const weights = weightFeeds(student, tensors)
  let loss = 0
  let cosine = 0
  for (const group of student.batches(sequences, settings.runTokens)) {
    const rows = new Float32Array(group.length * axes.width)
    group.forEach((text, row) => {
      rows.set(targets.subarray(text * axes.width, (text + 1) * axes.width), row * axes.width)
    })
    const feeds: Record<string, Tensor> = {
      ...weights,
      ...student.feeds(group.map((i) => sequences[i]!)),
      [distillation.targets]: { dtype: 'float32', shape: [group.length, axes.width], data: rows },
      [distillation.weight]: { dtype: 'float32', shape: [], data: Float32Array.of(1 / batch.length) },
    }
    const outputs = await session.run(pick(session, feeds))
    const floats = (name: string): Float32Array => outputs[name]!.data as Float32Array
    loss += floats(distillation.loss)[0]!
    for (const x of floats(distillation.cosines)) cosine += x / batch.length
    accumulate(sum, new Map([...tensors.keys()].map((name) => [name, floats(gradients.get(name)!)])))
  }
  return { loss, cosine, sum }
}

/** Embeds sequences under weights that are being learned. */
export interface StudentEmbedder {
  /** float32 [sequences, dimension], of the encoder's own length. */
  embed(sequences: TokenSequence[], tensors: Tensors): Promise<Float32Array>
  close(): Promise<void>
}

export async function openStudent(student: Student, runTokens: number, threads: number): Promise<StudentEmbedder> {
  const session = await openSession(prune({ ...student.graph, outputs: ['embeddings'] }), { threads })
  const { dimension } = student
  return {
    async embed(sequences, tensors) {
      const all = new Float32Array(sequences.length * dimension)
      const weights = weightFeeds(student, tensors)
      for (const group of student.batches(sequences, runTokens)) {
        const feeds = { ...weights, ...student.feeds(group.map((i) => sequences[i]!)) }
        const { embeddings } = await session.run(pick(session, feeds))
        const rows = embeddings!.data as Float32Array
        group.forEach((text, row) => {
          all.set(rows.subarray(row * dimension, (row + 1) * dimension), text * dimension)
        })
        await nextTurn()
      }
      toUnit(all, dimension)
      return all
    },
    close: () => session.release(),
  }
}

function weightFeeds({ shapes }: Student, tensors: Tensors): Record<string, Tensor> {
  return Object.fromEntries(
    [...shapes].map(([name, shape]) => [name, { dtype: 'float32', shape, data: tensors.get(name)! }]),
  )
}

function pick(session: Session, feeds: Record<string, Tensor>): Record<string, Tensor> {
  return Object.fromEntries([...session.inputs.keys()].map((name) => [name, feeds[name]!]))
}

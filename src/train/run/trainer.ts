import { resolve } from 'node:path'
import {
  type EncoderProfile,
  initialLora,
  openEmbedder,
  runTokens,
  type TokenSequence,
  textSequence,
} from '../../encoder/index.ts'
import { placementText } from '../../onnx/index.ts'
import { assembleBatch, type Batch, type EncodeNodes, readInstance } from '../data/instances.ts'
import { createQueryFile, type QueryRows } from '../data/query-file.ts'
import type { TrainingSet } from '../data/training-set.ts'
import { computeVisuals } from '../data/visuals.ts'
import { checkDevice } from '../engine/device-check.ts'
import { loraEncoder } from '../engine/encoder.ts'
import type { Engine, TrainableEncoder } from '../engine/engine.ts'
import { chosenUpdate } from '../engine/update.ts'
import { builtInLoss } from '../loss/pairwise.ts'
import { chooseBudget, memoryOf } from '../step/budget.ts'
import { initialLossScale } from '../step/loss-scale.ts'
import { copyTensors, type Tensors } from '../step/optimizer.ts'
import { initialState, type TrainingState } from './checkpoints.ts'
import type { RunPlan } from './plan.ts'
import type { TrainOptions } from './run.ts'

/** What computes a run. */
export interface Trainer {
  engine: Engine
  encoder: TrainableEncoder
  queries: QueryRows
  dimension: number
  encode: EncodeNodes
  /** Tokens of the longest node so far. */
  longest(): number
  /** The batch of a step (from 1), cut for a token budget. */
  batch(step: number, tokenBudget: number): Promise<Batch>
  /** Has the engine compute with the state's token budget and loss scale from now on. */
  use(state: Pick<TrainingState, 'tokenBudget' | 'lossScale'>): void
}

/**
 * Embeds a run's questions with f0, which is released then, computes the visual features of its nodes, and opens the engine; another
 * device than the CPU must compute what the CPU does.
 *
 * @param onClose takes what is to be closed at the end
 */
export async function openTrainer(
  options: TrainOptions,
  plan: RunPlan,
  onClose: (close: () => Promise<void>) => void,
): Promise<Trainer> {
  const { settings, encoder, warn = () => {} } = options
  const { set, targets, sampler, threads, reader } = plan
  const queries = createQueryFile(resolve(options.output), options.queryEncoder.dimension)
  onClose(async () => queries.close())
  await embedQuestions(options.queryEncoder, set, queries.write, { ...options, threads })
  await computeVisuals(set, plan.visual, plan.openReader, { ...options, rendering: settings, onError: 'stop' })
  let longest = 0
  const encode: EncodeNodes = async (inputs) => {
    const encoded = await reader.encode(inputs, 'node')
    for (const { sequence } of encoded) longest = Math.max(longest, sequence.ids.length)
    return encoded
  }
  const update = chosenUpdate(targets, settings.precision)
  const trainable = await loraEncoder(encoder, targets, reader.padId, {
    ...{ update, share: settings.sharePrefixes },
    visuals: reader,
  })
  for (const note of trainable.notes) warn(`${encoder.id}: ${note}.`)
  const engine = await plan.engine.open({
    encoder: trainable,
    queries: queries.read,
    loss: builtInLoss(settings),
    tokenBudget: settings.tokenBudget === 'auto' ? 0 : settings.tokenBudget,
    threads,
    device: settings.device,
    precision: settings.precision,
    onPlacement: once((placement) => {
      const text = placementText(placement)
      if (text !== undefined) warn(`${text}.`)
    }),
  })
  onClose(() => engine.close())
  const trainer: Trainer = {
    ...{ engine, encoder: trainable, dimension: trainable.dimension, encode, longest: () => longest },
    queries: queries.read,
    async batch(step, tokenBudget) {
      const instances = []
      for (const number of sampler.batch(step)) instances.push(await readInstance(set, number, encode, settings))
      const run = runTokens(settings.device)
      const computed = computedIn(trainable, tokenBudget, run)
      return assembleBatch(instances, settings, set.benchmarks, trainable.tokens, tokenBudget, run, computed)
    },
    use({ tokenBudget, lossScale }) {
      engine.tokenBudget = tokenBudget
      engine.lossScale = lossScale?.scale ?? 1
    },
  }
  if (settings.device !== 'cpu') {
    const [first] = (await trainer.batch(1, Number.POSITIVE_INFINITY)).micro
    const sequences = first?.sequences.slice(0, 2) ?? [textSequence(Int32Array.of(1, 1))]
    await checkDevice(engine, trainable, sequences, { ...settings, threads })
  }
  return trainer
}

/** How many tokens a micro-batch computes, in several runs where it is oversize; undefined where the encoder shares nothing. */
function computedIn({ computed, batches }: TrainableEncoder, budget: number, wanted: number) {
  if (computed === undefined) return undefined
  return (sequences: TokenSequence[], oversize: boolean): number => {
    const groups = oversize ? batches(sequences, budget, wanted) : [sequences.keys()]
    const runs = groups.map((group) => Array.from(group, (i) => sequences[i]!))
    return runs.reduce((sum, run) => sum + computed(run), 0)
  }
}

/** The state before the first step; a token budget that is to be measured is measured. */
export async function firstState(options: TrainOptions, plan: RunPlan, trainer: Trainer): Promise<TrainingState> {
  const { seed, tokenBudget, precision } = options.settings
  const { start } = plan
  const tensors = start === undefined ? initialLora(plan.targets, `${seed}/lora`) : copyTensors(start.adapter.tensors)
  const budget = tokenBudget === 'auto' ? await measuredBudget(options, plan, trainer, tensors) : tokenBudget
  return initialState(tensors, budget, precision === 'fp16' ? initialLossScale() : undefined)
}

/** Batches that are looked at for how large a token budget can be of use. */
const LOOKED_AT = 4

/** Tokens of the largest run of the first steps without a budget: on the CPU of a large instance, elsewhere of a whole batch. */
async function largestRun({ encoder, batch }: Pick<Trainer, 'encoder' | 'batch'>, steps: number): Promise<number> {
  let most = 0
  for (let step = 1; step <= steps; step++) {
    const { micro } = await batch(step, Number.POSITIVE_INFINITY)
    for (const { sequences } of micro) most = Math.max(most, encoder.tokens(sequences))
  }
  return most
}

/** The largest token budget for the memory there is; says what was tried. */
async function measuredBudget(
  { settings, note, onProgress = () => {} }: TrainOptions,
  { totalSteps }: RunPlan,
  trainer: Trainer,
  tensors: Tensors,
): Promise<number> {
  const { engine, dimension } = trainer
  const most = await largestRun(trainer, Math.min(LOOKED_AT, totalSteps))
  const longest = trainer.longest()
  onProgress({ phase: 'measuring token budgets', done: 0, total: 1 })
  engine.tokenBudget = Number.POSITIVE_INFINITY
  const run = async (sequences: TokenSequence[]): Promise<void> => {
    const pair = { preferred: 0, other: 0, question: 0, weight: 1 }
    if (builtInLoss(settings) !== undefined) await engine.onePass({ sequences, pairs: [pair] }, tensors)
    else await engine.pullBack(sequences, new Float32Array(sequences.length * dimension), tensors)
  }
  const { budget, trials } = await chooseBudget({ run, longest, most, memory: await memoryOf(settings.device) })
  onProgress({ phase: 'measuring token budgets', done: 1, total: 1 })
  const tried = trials.map(
    ({ tokens, tokensPerSecond, peak }) =>
      `${tokens}: ${Math.round(tokensPerSecond)} tokens/s, ${(peak / 2 ** 30).toFixed(1)} GiB`,
  )
  note?.(`The token budget of this run is ${budget} (tried ${tried.join('; ')}).`)
  return budget
}

/** `act`, the first time it is called. */
function once<T>(act: (value: T) => void): (value: T) => void {
  let done = false
  return (value) => {
    if (!done) act(value)
    done = true
  }
}

/** Questions that are embedded together. */
const CHUNK = 4096

/** Embeds all questions and hands on each embedding with unit length; f0 is released afterwards. */
async function embedQuestions(
  profile: EncoderProfile,
  set: TrainingSet,
  write: (question: number, embedding: Float32Array) => void,
  { threads, settings, onProgress = () => {}, signal }: TrainOptions & { threads: number },
): Promise<void> {
  const embedder = await openEmbedder(profile, { threads, device: settings.device })
  const { dimension } = profile
  const total = set.questionCount
  let embedded = 0
  const embed = async (questions: { number: number; text: string }[]): Promise<void> => {
    const inputs = questions.map(({ text }) => ({ text }))
    const { embeddings } = await embedder.embed(inputs, 'query', {
      onProgress: ({ done }) => onProgress({ phase: 'embedding questions', done: embedded + done, total }),
      ...(signal === undefined ? {} : { signal }),
    })
    const unit = toUnitLength(embeddings, dimension)
    questions.forEach(({ number }, i) => {
      write(number, unit.subarray(i * dimension, (i + 1) * dimension))
    })
    embedded += questions.length
  }
  try {
    let chunk: { number: number; text: string }[] = []
    for await (const question of set.questions()) {
      if (chunk.push(question) < CHUNK) continue
      await embed(chunk)
      chunk = []
    }
    await embed(chunk)
    onProgress({ phase: 'embedding questions', done: total, total })
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

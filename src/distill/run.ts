import { readFile, rm } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import {
  bertTensorShapes,
  loadTokenizer,
  readEncoder,
  type Tokenizer,
  textSequence,
  writeBertFolder,
} from '../encoder/index.ts'
import { float32ToFloat16, type Tensor } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { exists, fileError, writeFileAtomic } from '../support/files.ts'
import { cutMetrics, lockRun, openMetrics, type Tensors } from '../train/index.ts'
import { type Axes, project } from './axes.ts'
import { modelCard } from './card.ts'
import { type DistillOutcome, distillPaths, fingerprintOf, readOutcome } from './folder.ts'
import { type DistillLine, distillLoop, openStudent } from './loop.ts'
import { measureFolder } from './measure.ts'
import type { DistillSettings } from './settings.ts'
import { axesOf, collected, embedWithTeacher, learnedVocabulary, type StageOptions, textsOf } from './stages.ts'
import { initialDistillState, randomWeights, readState, writeState } from './state.ts'
import { readStudent, type Student } from './student.ts'
import { type EmbeddingFile, openTeacher } from './teacher.ts'
import { type DistillText, readTexts } from './texts.ts'
import { readTokens, writeTokens } from './tokens.ts'

export interface DistillOptions extends StageOptions {
  /** Folder of everything the distillation makes; begun again where it was left. */
  output: string
  onStep?: (line: DistillLine, totalSteps: number) => void
}

export interface DistillResult extends DistillOutcome {
  /** Folder of the student, a checkpoint in float16. */
  model: string
}

/**
 * Distils a teacher's embeddings into a small BERT with random weights: collects texts, learns a WordPiece vocabulary from them, embeds
 * them with the teacher, and trains every weight of the student towards the teacher's embeddings on their principal axes. Every stage is
 * kept in the output folder and not done twice, so that the same call goes on after any interruption.
 *
 * @throws InputError for a teacher or texts that cannot be read, a student that is wider than its teacher, and where the folder holds a
 * distillation of something else
 * @throws AbortError when the signal asks for it; what is done is kept
 */
export async function distill(options: DistillOptions): Promise<DistillResult> {
  const { output, teacher, settings } = options
  if (settings.hidden > teacher.dimension)
    throw new InputError(
      `A student of width ${settings.hidden} ("hidden") cannot learn embeddings of ${teacher.dimension} numbers: make it ${teacher.dimension} at most.`,
      { file: teacher.folder },
    )
  const unlock = await lockRun(output, 'distilling')
  try {
    return await distilIn(options)
  } finally {
    await unlock()
  }
}

async function distilIn(options: DistillOptions): Promise<DistillResult> {
  const { teacher, output, settings, note = () => {}, onProgress = () => {}, signal } = options
  const paths = distillPaths(output)
  const threads = settings.threads ?? availableParallelism()
  const watched = { onProgress, signal }

  const log = await collected(options, paths)
  const finished = await readOutcome(paths.result)
  if (finished !== undefined && (await exists(paths.model))) {
    note('The distillation is finished; nothing was done.')
    return { model: paths.model, ...finished }
  }
  const training = await readTexts(paths.training, log.texts.training)
  const heldOut = await readTexts(paths.heldOut, log.texts.heldOut)
  note(`${training.length} texts to learn from (${listed(log.texts.training)}), ${heldOut.length} held out.`)

  const vocabulary = await learnedVocabulary(paths.vocabulary, training, settings)
  const shapes = bertTensorShapes(settings, vocabulary.length)
  if (!(await exists(paths.initial))) {
    const tensors = randomWeights(shapes, String(settings.seed))
    await writeBertFolder(paths.initial, { sizes: settings, vocabulary, tensors })
  }
  const profile = await readEncoder(paths.initial)
  const tokenizer = await loadTokenizer(profile)
  if (!(await exists(paths.tokens))) await writeTokens(paths.tokens, textsOf(training), tokenizer, watched)
  const tokens = await readTokens(paths.tokens, training.length, vocabulary.length)
  note(
    `${vocabulary.length} tokens in the vocabulary, ${tokens.tokens} in the texts (${(tokens.tokens / tokens.texts).toFixed(1)} a text).`,
  )

  await embedWithTeacher(options, paths, training, heldOut, threads)
  const student = await readStudent(profile, tokenizer.padId)
  const parameters = [...student.weights.values()].reduce((sum, data) => sum + data.length, 0)
  const totalSteps = Math.ceil((settings.epochs * tokens.tokens) / settings.batchTokens)
  note(`${parameters} weights, ${totalSteps} steps of ${settings.batchTokens} tokens.`)
  const fingerprint = fingerprintOf({ settings: { ...settings, threads }, log, vocabulary })
  const state = (await readState(paths.checkpoint, student.shapes, fingerprint)) ?? initialDistillState(student.weights)
  if (state.step > 0) note(`Going on after step ${state.step}.`)
  await cutMetrics(paths.metrics, state.step)

  const opened: { close(): Promise<void> }[] = []
  const closedAtEnd = <T extends { close(): Promise<void> }>(resource: T): T => {
    opened.push(resource)
    return resource
  }
  try {
    const rows = closedAtEnd(await openTeacher(paths.teacher, teacher.dimension, training.length))
    const heldOutRows = closedAtEnd(await openTeacher(paths.teacherHeldOut, teacher.dimension, heldOut.length))
    const axes = await axesOf(paths.axes, rows, teacher.dimension, settings.hidden)
    const held = closedAtEnd(
      await heldOutMeasure({ heldOut, heldOutRows, tokenizer, axes, student, settings, threads }),
    )
    const metrics = closedAtEnd(await openMetrics<DistillLine>(paths.metrics))
    await distillLoop(state, {
      ...{ student, settings, threads, totalSteps, tokens, teacher: rows, axes, signal },
      measure: held.measure,
      async log(line) {
        await metrics.write(line)
        options.onStep?.(line, totalSteps)
      },
      async checkpoint(at) {
        await metrics.sync()
        await writeState(paths.checkpoint, at, student.shapes, fingerprint)
      },
    })

    const model = { sizes: settings, vocabulary, tensors: halfPrecision(state.tensors, shapes) }
    await writeBertFolder(paths.unmeasured, model)
    const measured = await measureFolder(paths.unmeasured, {
      ...{ teacher, heldOut, axes, threads, signal, teacherRows: heldOutRows },
    })
    const outcome: DistillOutcome = { steps: state.step, parameters, measured }
    const lines = await readLines(paths.metrics)
    const card = modelCard({ log, teacher, vocabulary: vocabulary.length, tokens, lines, threads, ...outcome })
    await writeFileAtomic(paths.result, `${JSON.stringify(outcome, null, 2)}\n`)
    await writeBertFolder(paths.model, { ...model, files: { 'README.md': card } })
    await rm(paths.unmeasured, { recursive: true, force: true })
    return { model: paths.model, ...outcome }
  } finally {
    for (const resource of opened.reverse()) await resource.close()
  }
}

/** Mean cosine of the held-out texts to the teacher, for weights that are being learned. */
async function heldOutMeasure(options: {
  heldOut: readonly DistillText[]
  heldOutRows: EmbeddingFile
  tokenizer: Tokenizer
  axes: Axes
  student: Student
  settings: DistillSettings
  threads: number
}) {
  const { heldOut, heldOutRows, tokenizer, axes, student, settings, threads } = options
  const sequences = heldOut.map(({ text }) => textSequence(tokenizer.encode(text).ids))
  const targets = project(await heldOutRows.read(heldOut.map((_, i) => i)), axes)
  const embedder = await openStudent(student, settings.runTokens, threads)
  return {
    async measure(tensors: Tensors): Promise<number> {
      const embeddings = await embedder.embed(sequences, tensors)
      let sum = 0
      for (let i = 0; i < embeddings.length; i++) sum += embeddings[i]! * targets[i]!
      return sum / Math.max(1, heldOut.length)
    },
    close: () => embedder.close(),
  }
}

/** The learned weights in float16, and an identity for the pooler, which no embedding depends on. */
function halfPrecision(tensors: Tensors, shapes: ReadonlyMap<string, number[]>): Map<string, Tensor> {
  const half = new Map<string, Tensor>()
  for (const [name, shape] of shapes) {
    const data = tensors.get(name) ?? identityOrZero(shape)
    half.set(name, { dtype: 'float16', shape, data: float32ToFloat16(data) })
  }
  return half
}

function identityOrZero(shape: readonly number[]): Float32Array {
  const data = new Float32Array(shape.reduce((a, b) => a * b, 1))
  if (shape.length === 2) for (let i = 0; i < shape[0]!; i++) data[i * shape[1]! + i] = 1
  return data
}

/** The lines of metrics.jsonl, which cutMetrics left whole. */
async function readLines(path: string): Promise<DistillLine[]> {
  const text = await readFile(path, 'utf8').catch((error: unknown) => {
    throw fileError(error, 'cannot read the metrics', path)
  })
  const lines = text.split('\n').filter((line) => line !== '')
  return lines.map((line) => JSON.parse(line) as DistillLine)
}

function listed(counts: Record<string, number>): string {
  return Object.entries(counts)
    .map(([kind, n]) => `${n} ${kind}s`)
    .join(', ')
}

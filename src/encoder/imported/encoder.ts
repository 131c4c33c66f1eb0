import { type Graph, openSession } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { languageConfig } from '../folder/language-config.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { type TokenSequence, textSequence } from '../input/sequence.ts'
import type { LoraOptions, LoraTarget } from '../lora/lora.ts'
import { type PackedBatch, packedFeeds, packSequences, padSequences } from '../rows/pack.ts'
import { importedForward } from './forward.ts'
import { openOriginal } from './original.ts'
import { arithmeticOf, type ImportedModel, readImported } from './read.ts'
import { packedRows, type RowRewrite } from './rows.ts'

/** An ONNX folder's graph over rows, and how texts lie in them. */
export interface ImportedEncoder {
  graph: Graph
  externalFolder: string
  layout: 'packed' | 'padded'
  /** What a user should know of how the graph is computed here, in sentences. */
  notes: string[]
}

/**
 * The graph of an ONNX folder with low-rank updates. It is run before it is used: what it gives has to be what the file's
 * graph gives, and packed rows what texts give by themselves; where they do not, rows are padded.
 *
 * @throws InputError for a graph that cannot be read or differentiated, and for one whose embeddings cannot be reproduced
 */
export async function importedEncoder(
  profile: EncoderProfile,
  lora: LoraTarget[],
  padId: number,
  update?: LoraOptions['update'],
): Promise<ImportedEncoder> {
  const model = await readImported(profile)
  const { rewrite, notes } = await rowsOf(model, profile, padId)
  return {
    graph: importedForward(model, profile, lora, rewrite, update),
    externalFolder: model.folder,
    layout: rewrite === undefined ? 'padded' : 'packed',
    notes,
  }
}

interface Rows {
  /** What packing the rows takes; undefined where they are padded. */
  rewrite: RowRewrite | undefined
  notes: string[]
}

/** What was found out about a model, which stays true while its graph does. */
const checked = new WeakMap<ImportedModel, Rows>()

async function rowsOf(model: ImportedModel, profile: EncoderProfile, padId: number): Promise<Rows> {
  const known = checked.get(model)
  if (known !== undefined) return known
  const rows = await findRows(model, profile, padId)
  checked.set(model, rows)
  return rows
}

async function findRows(model: ImportedModel, profile: EncoderProfile, padId: number): Promise<Rows> {
  const texts = sampleTexts(profile, padId)
  const own = await ownEmbeddings(profile, texts, padId)
  const arithmetic = arithmeticOf(model.original)
  const paddedOnes = async (): Promise<Float32Array> => {
    const graph = importedForward(model, profile, [], undefined)
    const batch = padSequences(texts, { padId })
    return (await embedBatches(graph, model.folder, profile, [batch]))[0] as Float32Array
  }
  const notes: string[] = []
  let expected = { embeddings: own, most: arithmetic === 'fp16' ? HALF_BOUND : EXACT_BOUND }
  if (arithmetic === 'quantised') {
    const exact = await paddedOnes()
    const rounding = largestDifference(exact, own, profile.dimension)
    if (!(rounding <= ROUNDING_BOUND))
      throw new InputError(
        `The quantised graph cannot be reproduced with its weights as float32: embeddings differ by ${percent(rounding)} of their length. Train the checkpoint that it was exported from, or a graph that is not quantised.`,
        { file: profile.weights },
      )
    if (rounding > 1e-3)
      notes.push(
        `the file's operators round what they multiply to integers; training, and evaluation of an adapter, keep the weights as they are stored and round nothing else (embeddings of made-up texts differ by up to ${percent(rounding)} of their length)`,
      )
    expected = { embeddings: exact, most: EXACT_BOUND }
  }
  const found = model.output.pooled
    ? { reason: 'the graph pools the tokens of a row itself' }
    : await packedRows(model.graph, model.folder)
  const fault =
    'reason' in found
      ? found.reason
      : await packedFault(importedForward(model, profile, [], found.rewrite), model, profile, texts, padId, expected)
  if (fault === undefined && 'rewrite' in found) return { rewrite: found.rewrite, notes }

  const difference = largestDifference(await paddedOnes(), expected.embeddings, profile.dimension)
  if (!(difference <= expected.most))
    throw new InputError(
      `The graph cannot be reproduced: embeddings differ from ONNX Runtime's by ${percent(difference)} of their length. Train the checkpoint that it was exported from, or an export without optimisation.`,
      { file: profile.weights },
    )
  notes.push(`texts get a row each, filled up to the longest, so that padding is computed too: ${fault}`)
  return { rewrite: undefined, notes }
}

const percent = (x: number): string => `${(100 * x).toPrecision(2)} %`

/** How far embeddings may lie from those that are expected, relative to their length: what the order of float32 sums explains. */
const EXACT_BOUND = 1e-4
/** The same where the file's graph computes in float16, of which one number is known to 2⁻¹¹. */
const HALF_BOUND = 0.02
/** The same where activations are rounded to integers, at most: 0.18 and, with ranges from four texts, 0.53 were measured. */
const ROUNDING_BOUND = 1

/** A few texts of made-up tokens, one of them long enough for windows and for buckets of distances. */
function sampleTexts(profile: EncoderProfile, padId: number): TokenSequence[] {
  const { vocab_size } = languageConfig(profile.config)
  const vocabulary = typeof vocab_size === 'number' ? vocab_size : 100
  return [70, 9, 4, 6, 2].map((length, text) =>
    textSequence(
      Int32Array.from({ length: Math.min(length, profile.maxLength) }, (_, i) => {
        const id = (31 * (text + 1) + 7 * i * i + 11) % vocabulary
        return id === padId ? (id + 1) % vocabulary : id
      }),
    ),
  )
}

/** What the file's graph gives for each text alone, float32 [texts, dimension]. */
async function ownEmbeddings(profile: EncoderProfile, texts: TokenSequence[], padId: number): Promise<Float32Array> {
  const original = await openOriginal(profile, padId, { threads: 1 })
  try {
    const embeddings = []
    for (const text of texts) embeddings.push(await original.embed([text]))
    return joined(embeddings)
  } finally {
    await original.close()
  }
}

/** Why packed rows of a graph cannot be used, in a sentence; undefined where they can. */
async function packedFault(
  graph: Graph,
  model: ImportedModel,
  profile: EncoderProfile,
  texts: TokenSequence[],
  padId: number,
  expected: { embeddings: Float32Array; most: number },
): Promise<string | undefined> {
  const total = texts.reduce((sum, { ids }) => sum + ids.length, 0)
  const together = packSequences(texts, Math.min(total + 3, profile.maxLength), { padId })
  const alone = texts.map((text) => packSequences([text], text.ids.length, { padId }))
  let embeddings: Float32Array[]
  try {
    embeddings = await embedBatches(graph, model.folder, profile, [together, ...alone])
  } catch (error) {
    return `the graph for packed rows does not run (${(error as Error).message})`
  }
  const [shared, ...single] = embeddings as [Float32Array, ...Float32Array[]]
  const singles = joined(single)
  const fromFile = largestDifference(singles, expected.embeddings, profile.dimension)
  if (!(fromFile <= expected.most))
    return `embeddings of the graph for packed rows differ by ${percent(fromFile)} of their length from the file's`
  const fromSingle = largestDifference(shared, singles, profile.dimension)
  if (!(fromSingle <= EXACT_BOUND))
    return `embeddings of texts that share a row differ by ${percent(fromSingle)} of their length from those of the texts alone`
  return undefined
}

async function embedBatches(
  graph: Graph,
  externalFolder: string,
  profile: EncoderProfile,
  batches: PackedBatch[],
): Promise<Float32Array[]> {
  const session = await openSession(graph, { externalFolder, threads: 1 })
  try {
    const embeddings: Float32Array[] = []
    for (const batch of batches) {
      const feeds = Object.entries(packedFeeds(batch, profile.pooling))
      const { embeddings: found } = await session.run(
        Object.fromEntries(feeds.filter(([name]) => session.inputs.has(name))),
      )
      embeddings.push(found?.data as Float32Array)
    }
    return embeddings
  } finally {
    await session.release()
  }
}

function joined(parts: Float32Array[]): Float32Array {
  const all = new Float32Array(parts.reduce((n, part) => n + part.length, 0))
  let at = 0
  for (const part of parts) {
    all.set(part, at)
    at += part.length
  }
  return all
}

/** Largest ‖a − b‖ / ‖b‖ over rows of `dimension` numbers; NaN where one is not finite, or sizes differ. */
function largestDifference(a: Float32Array, b: Float32Array, dimension: number): number {
  if (a.length !== b.length) return Number.NaN
  let worst = 0
  for (let row = 0; row < b.length; row += dimension) {
    const part = b.subarray(row, row + dimension)
    const difference = Math.hypot(...part.map((x, i) => (a[row + i] as number) - x)) / Math.hypot(...part)
    worst = Number.isFinite(difference) ? Math.max(worst, difference) : Number.NaN
  }
  return worst
}

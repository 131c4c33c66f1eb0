import { createHash } from 'node:crypto'
import { dirname } from 'node:path'
import { modelContents, openSession, type Session, type SessionOptions, type Tensor } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { resolveInside, sha256File } from '../../support/files.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import type { OriginalGraph } from '../imported/index.ts'
import type { InputReader } from '../input/reader.ts'
import type { FeatureStore, TokenSequence } from '../input/sequence.ts'
import { poolRows } from '../rows/pooling.ts'
import { featureLevels, patchValues, qwen3VlConfig } from './config.ts'
import { lazyVision, type Vision } from './lazy-vision.ts'
import { type Part, partFiles } from './part-files.ts'
import type { VisionOptions } from './vision.ts'

/** Most patches of one run of the vision encoder, unless one picture has more: it holds the scores of all pairs of a picture. */
const PATCHES_AT_ONCE = 4096

/** Whether an encoder is a folder of several graphs: an exported Qwen3-VL encoder. */
export const isInParts = ({ kind, architecture }: Pick<EncoderProfile, 'kind' | 'architecture'>): boolean =>
  kind === 'onnx' && architecture === 'qwen3_vl'

const fileOf = (profile: EncoderProfile, part: Part): string => {
  const files = partFiles(profile.weights)
  if (files === undefined) throw new RangeError(`${profile.weights} is no part of an exported encoder`)
  return files[part]
}

/** What each part is given and gives. */
const INTERFACES: Record<Part, { inputs: string[]; output: string }> = {
  vision_encoder: { inputs: ['pixel_values', 'image_grid_thw'], output: 'image_features' },
  embed_tokens: { inputs: ['input_ids'], output: 'inputs_embeds' },
  decoder_model_merged: { inputs: ['inputs_embeds', 'attention_mask', 'position_ids'], output: 'last_hidden_state' },
}

/** Loads a part's graph, which has to have its inputs and its output: other programs' exports share the names of files. */
async function openPart(profile: EncoderProfile, part: Part, options: SessionOptions): Promise<Session> {
  const file = fileOf(profile, part)
  const session = await openSession(file, options)
  const { inputs, output } = INTERFACES[part]
  const found = [...session.inputs.keys()]
  if (
    found.length === inputs.length &&
    inputs.every((name) => found.includes(name)) &&
    session.outputs.includes(output)
  )
    return session
  await session.release()
  throw new InputError(
    `An exported encoder's ${part} gives ${output} of ${inputs.join(', ')}; this graph gives ${session.outputs.join(', ')} of ${found.join(', ')}. It is another graph under that name.`,
    { file },
  )
}

/**
 * Opens `embed_tokens` and `decoder_model_merged` of an exported folder. `inputs_embeds` is wide, [rows, length, (1 + levels) ·
 * hidden]: what a token enters the first layer with, and behind it what is added after each of the first layers, 0 at text.
 * Visual features replace the rows of their tokens.
 *
 * @param reader what the sequences come from
 * @throws InputError for graphs that cannot be loaded, are others than their names say, or do not fit config.json
 */
export async function openExportedLanguage(
  profile: EncoderProfile,
  reader: Pick<InputReader, 'padId' | 'features'>,
  options: Pick<SessionOptions, 'threads' | 'device' | 'optimization'> = {},
): Promise<OriginalGraph> {
  const config = qwen3VlConfig(profile.config, profile.folder)
  const levels = featureLevels(config.vision_config)
  const wide = levels * config.text_config.hidden_size
  const checkWidth = (part: Part, width: unknown): void => {
    if (width !== wide)
      throw new InputError(
        `Tokens have ${width} numbers in ${part}, where config.json says ${wide}. Graph and configuration are of different models.`,
        { file: fileOf(profile, part) },
      )
  }
  const table = await openPart(profile, 'embed_tokens', options)
  const decoder = await openPart(profile, 'decoder_model_merged', options).catch(async (error: unknown) => {
    await table.release()
    throw error
  })
  const close = async (): Promise<void> => {
    await table.release()
    await decoder.release()
  }
  try {
    checkWidth('decoder_model_merged', decoder.inputs.get('inputs_embeds')?.shape[2])
  } catch (error) {
    await close()
    throw error
  }
  return {
    mixesTexts: false,
    async embed(sequences) {
      const shape = [sequences.length, Math.max(1, ...sequences.map(({ ids }) => ids.length))]
      const { inputs_embeds } = await table.run({
        input_ids: int64(shape, (row, i) => sequences[row]?.ids[i] ?? reader.padId),
      })
      const embeds = inputs_embeds as Tensor & { data: Float32Array }
      checkWidth('embed_tokens', embeds.shape[2])
      sequences.forEach((sequence, row) => {
        putFeatures(embeds, row, sequence, levels, reader.features)
      })
      const { last_hidden_state } = await decoder.run({
        inputs_embeds: embeds,
        attention_mask: int64(shape, (row, i) => (i < (sequences[row] as TokenSequence).ids.length ? 1 : 0)),
        position_ids: positionIds(sequences, shape),
      })
      return poolRows(last_hidden_state?.data as Float32Array, sequences, profile.pooling, profile)
    },
    close,
  }
}

function int64(shape: number[], value: (row: number, column: number) => number): Tensor {
  const [rows = 0, length = 0] = shape
  const data = new BigInt64Array(rows * length)
  for (let row = 0; row < rows; row++) for (let i = 0; i < length; i++) data[row * length + i] = BigInt(value(row, i))
  return { dtype: 'int64', shape, data }
}

/** int64 [3, rows, length]; padding has position 0. */
function positionIds(sequences: readonly TokenSequence[], [rows = 0, length = 0]: number[]): Tensor {
  const flat = int64([3 * rows, length], (at, i) => {
    const { ids, positions } = sequences[at % rows] as TokenSequence
    if (i >= ids.length) return 0
    return positions === undefined ? i : (positions[Math.floor(at / rows) * ids.length + i] as number)
  })
  return { ...flat, shape: [3, rows, length] }
}

/** Writes the features of a sequence's pictures, [levels, tokens, hidden], over the rows of their tokens. */
function putFeatures(
  { shape, data }: Tensor & { data: Float32Array },
  row: number,
  { visuals = [] }: TokenSequence,
  levels: number,
  features: FeatureStore | undefined,
): void {
  const [, length = 0, wide = 0] = shape
  const hidden = wide / levels
  for (const { at, length: tokens, key } of visuals) {
    if (features === undefined) throw new RangeError('Sequences that show something need the features of it')
    const found = features.get(key)
    if (found.length !== levels * tokens * hidden)
      throw new RangeError(`Features of ${found.length} numbers are not ${levels} · ${tokens} · ${hidden}`)
    for (let level = 0; level < levels; level++)
      for (let token = 0; token < tokens; token++) {
        const from = (level * tokens + token) * hidden
        data.set(found.subarray(from, from + hidden), (row * length + at + token) * wide + level * hidden)
      }
  }
}

/**
 * Opens `vision_encoder` of an exported folder: what `openVision` is for a checkpoint. Attention holds the scores of all pairs of
 * patches of a picture: 3 GB in each layer for one of 7 200 patches and 16 heads.
 *
 * @throws InputError for files that are missing, and for a graph that is another than its name says
 */
export async function openExportedVision(
  profile: EncoderProfile,
  options: VisionOptions & Pick<SessionOptions, 'optimization'> = {},
): Promise<Vision> {
  const { threads, device = 'cpu', optimization } = options
  const config = qwen3VlConfig(profile.config, profile.folder).vision_config
  const levels = featureLevels(config)
  const file = fileOf(profile, 'vision_encoder')
  const fingerprint = await fingerprintOf(file, optimization)
  return lazyVision(device, (place) => ({
    config,
    fingerprint,
    file,
    patchesAtOnce: PATCHES_AT_ONCE,
    open: () =>
      openPart(profile, 'vision_encoder', {
        device: place,
        ...(threads === undefined ? {} : { threads }),
        ...(optimization === undefined ? {} : { optimization }),
      }),
    async run(session, pixels, pictures, [height, width]) {
      const { image_features } = await session.run({
        pixel_values: { dtype: 'float32', shape: [pictures * height * width, patchValues(config)], data: pixels },
        image_grid_thw: int64([pictures, 3], (_, i) => [1, height, width][i] as number),
      })
      return byLevel(image_features?.data as Float32Array, pictures, levels, config.out_hidden_size)
    },
  }))
}

async function fingerprintOf(file: string, optimization: SessionOptions['optimization']): Promise<string> {
  const { externalFiles } = await modelContents(file)
  const hash = createHash('sha256').update('exported vision/1')
  if (optimization !== undefined) hash.update(optimization)
  for (const part of [file, ...externalFiles.map((name) => resolveInside(dirname(file), name))])
    hash.update(await sha256File(part))
  return hash.digest('hex')
}

/** [pictures · rows, levels · hidden] -> [pictures, levels, rows, hidden] */
function byLevel(found: Float32Array, pictures: number, levels: number, hidden: number): Float32Array {
  const out = new Float32Array(found.length)
  const rows = found.length / (pictures * levels * hidden)
  for (let picture = 0; picture < pictures; picture++)
    for (let row = 0; row < rows; row++)
      for (let level = 0; level < levels; level++) {
        const from = ((picture * rows + row) * levels + level) * hidden
        out.set(found.subarray(from, from + hidden), ((picture * levels + level) * rows + row) * hidden)
      }
  return out
}

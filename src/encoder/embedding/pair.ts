import { join, resolve } from 'node:path'
import type { EmbeddingStore } from '../../store/index.ts'
import { InputError } from '../../support/errors.ts'
import { exists } from '../../support/files.ts'
import {
  CANOPY_FILE,
  type CanopySettings,
  canopySettings,
  checkNodeEncoder,
  checkQueryEncoder,
  checkStated,
  readCanopySettings,
} from '../folder/canopy.ts'
import {
  type EncoderProfile,
  type ReadEncoderOptions,
  readEncoder,
  type StatedSettings,
  statedIn,
} from '../folder/profile.ts'
import { type HubOptions, locateEncoder, QUERY_FOLDER } from '../hub/hub.ts'
import { readAdapter } from '../lora/adapter.ts'
import type { Adapter } from '../lora/lora.ts'
import { openDiskCache } from './disk-cache.ts'
import { type Embedder, type EmbedderOptions, openEmbedder } from './embed.ts'

/** f0 and fθ as they are named by a user, read and found to belong together. */
export interface EncoderPair {
  /** The node encoder's files: a checkpoint (with `adapter`, or frozen), or an exported folder. */
  encoder: EncoderProfile
  adapter: Adapter | undefined
  /** f0. */
  query: EncoderProfile
  /** What the node encoder was trained with, where a canopy.json says so; else this version's defaults. */
  settings: CanopySettings
  /** Whether the settings come from a canopy.json. */
  trained: boolean
}

/** Revisions belong to the names here: `org/name@revision`; an ONNX file to the node encoder. */
export interface PairOptions extends Omit<HubOptions, 'revision'> {
  /** Folder of a LoRA adapter over the encoder. */
  adapter?: string | undefined
  /** Folder or Hugging Face id of f0. By default the one inside the export, else the encoder itself without any adapter. */
  queryEncoder?: string | undefined
  /** How token vectors become embeddings, for folders that do not say so; f0 too, where its folder does not. */
  pooling?: ReadEncoderOptions['pooling'] | undefined
  normalize?: boolean | undefined
  /** Of both encoders; by default as the node encoder was trained, else as their files say. */
  dimensions?: number | undefined
  instructions?: ReadEncoderOptions['instructions'] | undefined
}

/**
 * Reads a node encoder and its query encoder, with the instructions and the number of dimensions that the node encoder was trained
 * with, where a canopy.json says so.
 *
 * @param encoder folder, or Hugging Face id with an optional `@revision`
 * @throws InputError when f0 is not the one the node encoder was trained with, or cannot be told; when the node encoder's files do
 *   not fit its canopy.json; when something is stated otherwise than there; when both encoders' embeddings differ in length
 */
export async function readEncoderPair(encoder: string, options: PairOptions = {}): Promise<EncoderPair> {
  const { onnxFile, pooling, normalize } = options
  const poolingStated = { ...(pooling !== undefined && { pooling }), ...(normalize !== undefined && { normalize }) }
  const { folder, ...known } = await locateEncoder(encoder, options)
  const settingsFolder = resolve(options.adapter ?? folder)
  const settingsFile = join(settingsFolder, CANOPY_FILE)
  const trained = await readCanopySettings(settingsFolder)
  const wanted = statedIn(options)
  const stated: StatedSettings = trained === undefined ? wanted : statedIn(trained)
  const profile = await readEncoder(folder, {
    ...{ ...known, ...stated },
    ...((await saysPooling(folder)) ? {} : poolingStated),
    ...(onnxFile !== undefined && { kind: 'onnx', onnxFile }),
  })
  if ((pooling ?? profile.pooling) !== profile.pooling || (normalize ?? profile.normalize) !== profile.normalize)
    throw new InputError(
      `The folder itself says how embeddings are made: pooling ${profile.pooling}, ${profile.normalize ? '' : 'not '}normalised. Leave out "pooling" and "normalize" (--pooling, --normalize).`,
      { file: join(profile.folder, 'modules.json') },
    )
  /** f0, whose graph is the one that the node encoder was trained with. */
  const read = async (name: string, graph: string | undefined): Promise<EncoderProfile> => {
    const { folder, ...known } = await locateEncoder(name, { ...options, onnxFile: graph })
    return readEncoder(folder, {
      ...{ ...known, ...stated },
      ...((await saysPooling(folder)) ? {} : poolingStated),
      ...(graph !== undefined && { kind: 'onnx', onnxFile: graph }),
    })
  }
  const adapter = options.adapter === undefined ? undefined : await readAdapter(options.adapter, profile)
  const query = await readQueryEncoder(profile, options, trained, read)
  if (trained !== undefined) {
    checkNodeEncoder(trained, profile, settingsFile)
    checkStated(trained, wanted, profile, settingsFile)
    checkQueryEncoder(trained, query, settingsFile)
  }
  if (query.dimension !== profile.dimension)
    throw new InputError(
      `The query encoder's embeddings have ${query.dimension} numbers, the node encoder's ${profile.dimension}; a cosine needs equal sizes. State how many numbers both have (--dimensions, in a program "dimensions"), or pass another query encoder.`,
      { file: query.folder },
    )
  return {
    encoder: profile,
    adapter,
    query,
    settings: trained ?? canopySettings(profile, query, { title: true, tableFormat: 'markdown', branching: 2 }),
    trained: trained !== undefined,
  }
}

const saysPooling = (folder: string): Promise<boolean> => exists(join(folder, 'modules.json'))

async function readQueryEncoder(
  profile: EncoderProfile,
  options: PairOptions,
  settings: CanopySettings | undefined,
  read: (name: string, graph: string | undefined) => Promise<EncoderProfile>,
): Promise<EncoderProfile> {
  if (options.queryEncoder !== undefined) return read(options.queryEncoder, settings?.queryEncoder.onnxFile)
  const bundled = join(profile.folder, QUERY_FOLDER)
  if (await exists(bundled)) return readEncoder(bundled, profile.stated)
  if (settings === undefined || settings.queryEncoder.fingerprint === profile.fingerprint) return profile
  if (options.adapter !== undefined) return profile
  const { id, revision } = settings.queryEncoder
  throw new InputError(
    `Questions are embedded by the frozen query encoder ${revision === undefined ? id : `${id}@${revision}`}, which does not lie in this folder. Pass its folder or id as the query encoder (--query-encoder, in a program "queryEncoder").`,
    { file: profile.folder },
  )
}

/**
 * Opens both encoders of a pair; they share one session where they are the same, and what reads inputs where only an adapter differs.
 *
 * With `cache`, both are loaded when something has to be computed that is not there. With `store`, which keeps the embeddings of nodes,
 * fθ is loaded when a node is not there, and f0 at once, as questions are seldom asked twice; where both are one, it is at once.
 */
export async function openPair(
  pair: EncoderPair,
  options: EmbedderOptions = {},
): Promise<{ query: Embedder; node: Embedder; close(): Promise<void> }> {
  const { encoder, adapter, query } = pair
  const same = encoder.fingerprint === query.fingerprint
  const { store, questionStore, ...others } = options
  // one for both: what it removes of a full folder is what both have not used for longest
  const disk = options.cache === undefined ? undefined : openDiskCache(options.cache, options)
  const opened: Embedder[] = []
  const close = async (): Promise<void> => {
    for (const embedder of opened.reverse()) await embedder.close()
    await disk?.close()
  }
  const open = async (profile: EncoderProfile, more: EmbedderOptions): Promise<Embedder> => {
    const embedder = await openEmbedder(profile, { ...others, ...more })
    opened.push(embedder)
    return embedder
  }
  const side = (own: EmbeddingStore | undefined, name: 'store' | 'questionStore'): EmbedderOptions =>
    own === undefined ? {} : { [name]: own }
  try {
    if (adapter === undefined && same) {
      const both = await open(encoder, {
        ...side(store ?? disk, 'store'),
        ...side(questionStore ?? disk, 'questionStore'),
      })
      return { query: both, node: both, close }
    }
    const node = await open(encoder, {
      ...side(store ?? disk, 'store'),
      ...side(disk, 'questionStore'),
      ...(adapter === undefined ? {} : { adapter }),
    })
    const asker = await open(query, {
      ...side(disk, 'store'),
      ...side(questionStore ?? disk, 'questionStore'),
      ...(same ? { reader: node.reader } : {}),
    })
    return { query: asker, node, close }
  } catch (error) {
    await close()
    throw error
  }
}

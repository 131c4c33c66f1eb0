import { join, resolve } from 'node:path'
import { InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import { readAdapter } from './adapter.ts'
import {
  CANOPY_FILE,
  type CanopySettings,
  canopySettings,
  checkNodeEncoder,
  checkQueryEncoder,
  readCanopySettings,
} from './canopy.ts'
import { type EncoderProfile, readEncoder } from './checkpoint.ts'
import { type Embedder, type EmbedderOptions, openEmbedder } from './embed.ts'
import { type HubOptions, locateEncoder, QUERY_FOLDER } from './hub.ts'
import type { Adapter } from './lora.ts'

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

/** Revisions belong to the names here: `org/name@revision`. */
export interface PairOptions extends Omit<HubOptions, 'revision'> {
  /** Folder of a LoRA adapter over the encoder. */
  adapter?: string | undefined
  /** Folder or Hugging Face id of f0. By default the one inside the export, else the encoder itself without any adapter. */
  queryEncoder?: string | undefined
}

/**
 * Reads a node encoder and its query encoder.
 *
 * @param encoder folder, or Hugging Face id with an optional `@revision`
 * @throws InputError when f0 is not the one the node encoder was trained with, or cannot be told; when the node encoder's files do
 *   not fit its canopy.json
 */
export async function readEncoderPair(encoder: string, options: PairOptions = {}): Promise<EncoderPair> {
  const read = async (name: string): Promise<EncoderProfile> => {
    const { folder, ...known } = await locateEncoder(name, options)
    return readEncoder(folder, known)
  }
  const profile = await read(encoder)
  const adapter = options.adapter === undefined ? undefined : await readAdapter(options.adapter, profile)
  const settingsFolder = options.adapter ?? profile.folder
  const known = await readCanopySettings(settingsFolder)
  const query = await readQueryEncoder(profile, options, known, read)
  if (known !== undefined) {
    const file = join(resolve(settingsFolder), CANOPY_FILE)
    checkNodeEncoder(known, profile, file)
    checkQueryEncoder(known, query, file)
  }
  return {
    encoder: profile,
    adapter,
    query,
    settings: known ?? canopySettings(profile, query, { title: true, tableFormat: 'markdown', branching: 2 }),
    trained: known !== undefined,
  }
}

async function readQueryEncoder(
  profile: EncoderProfile,
  options: PairOptions,
  settings: CanopySettings | undefined,
  read: (name: string) => Promise<EncoderProfile>,
): Promise<EncoderProfile> {
  if (options.queryEncoder !== undefined) return read(options.queryEncoder)
  const bundled = join(profile.folder, QUERY_FOLDER)
  if (await exists(bundled)) return readEncoder(bundled)
  if (settings === undefined || settings.queryEncoder.fingerprint === profile.fingerprint) return profile
  if (options.adapter !== undefined) return profile
  const { id, revision } = settings.queryEncoder
  throw new InputError(
    `Questions are embedded by the frozen query encoder ${revision === undefined ? id : `${id}@${revision}`}, which does not lie in this folder. Pass its folder or id as the query encoder (--query-encoder).`,
    { file: profile.folder },
  )
}

/** Opens both encoders of a pair; they share one session where they are the same. */
export async function openPair(
  pair: EncoderPair,
  options: EmbedderOptions = {},
): Promise<{ query: Embedder; node: Embedder; close(): Promise<void> }> {
  const { encoder, adapter, query } = pair
  const node = await openEmbedder(encoder, { ...options, ...(adapter === undefined ? {} : { adapter }) })
  if (adapter === undefined && encoder.fingerprint === query.fingerprint)
    return { query: node, node, close: () => node.close() }
  try {
    const asker = await openEmbedder(query, options)
    return {
      query: asker,
      node,
      async close() {
        await node.close()
        await asker.close()
      },
    }
  } catch (error) {
    await node.close()
    throw error
  }
}

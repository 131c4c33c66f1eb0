import { basename, join } from 'node:path'
import { z } from 'zod'
import { RENDERING_VERSION, SEGMENTER_VERSION, TABLE_FORMAT_NAMES } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { readsPictures } from '../architecture.ts'
import { PIXELS_VERSION } from '../qwen3-vl/visuals.ts'
import { readOptional } from './json-files.ts'
import type { EncoderProfile, StatedSettings } from './profile.ts'

const identity = z.object({
  /** Hugging Face id, or the folder's name. */
  id: z.string(),
  /** Commit of the Hugging Face repository, where it is known. */
  revision: z.string().optional(),
  /** {@link EncoderProfile.fingerprint} */
  fingerprint: z.string().regex(/^[0-9a-f]{64}$/),
  /** Name of the graph inside `onnx/`, where it is not the one that the folder opens. */
  onnxFile: z.string().optional(),
})

const schema = z.object({
  schema: z.literal('canopy-encoder/1'),
  /** f0: the frozen encoder whose query embeddings the node encoder was trained against. */
  queryEncoder: identity,
  /** The encoder that the adapter was trained over. */
  base: identity,
  /** Text in front of a question or a node; of an encoder of conversations its instructions. */
  prompts: z.object({ query: z.string(), node: z.string() }),
  /** Instructions and number of dimensions, where they were stated otherwise than the encoders' files have them. */
  instructions: z.object({ query: z.string().optional(), node: z.string().optional() }).optional(),
  dimensions: z.number().int().positive().optional(),
  maxLength: z.number().int().positive(),
  /** Whether a node's text starts with its item's title. */
  title: z.boolean(),
  /** How a table's header and rows become text. */
  tableFormat: z.enum(TABLE_FORMAT_NAMES),
  branching: z.number().int().min(2),
  /**
   * How far below its parent a child may score and still be entered by refinement; absent: 0, the rule. A version of canopy that
   * does not know it refines by the rule.
   */
  margin: z.number().min(0).optional(),
  rendering: z.string(),
  segmenter: z.string(),
  /** Version of how pictures and frames become pixels; absent where the encoder reads only text. */
  pixels: z.string().optional(),
  /** SHA-256 of the exported weights, by file; absent beside an adapter. */
  files: z.record(z.string(), z.string()).optional(),
  /** Name of the exported graph inside `onnx/` that is opened unless another one is asked for; absent beside an adapter. */
  onnxFile: z.string().optional(),
})

/**
 * canopy.json: what has to be the same wherever a node encoder scores, because it changes a node's text or the query's side.
 * It lies beside every adapter and in every exported folder.
 */
export type CanopySettings = z.infer<typeof schema>

export const CANOPY_FILE = 'canopy.json'

/** The settings of a node encoder trained over `base` against the query embeddings of `query`. */
export function canopySettings(
  base: EncoderProfile,
  query: EncoderProfile,
  options: Pick<CanopySettings, 'title' | 'tableFormat' | 'branching'>,
): CanopySettings {
  return {
    schema: 'canopy-encoder/1',
    queryEncoder: identityOf(query),
    base: identityOf(base),
    prompts: { query: query.prompts.query, node: base.prompts.node },
    ...base.stated,
    maxLength: base.maxLength,
    title: options.title,
    tableFormat: options.tableFormat,
    branching: options.branching,
    rendering: RENDERING_VERSION,
    segmenter: SEGMENTER_VERSION,
    ...(readsPictures(base) ? { pixels: PIXELS_VERSION } : {}),
  }
}

function identityOf(profile: EncoderProfile): CanopySettings['queryEncoder'] {
  const { id, revision, fingerprint, kind, weights, canopy } = profile
  const opened = canopy?.onnxFile ?? 'model.onnx'
  const onnxFile = kind === 'onnx' && basename(weights) !== opened ? basename(weights) : undefined
  return {
    id,
    ...(revision === undefined ? {} : { revision }),
    fingerprint,
    ...(onnxFile === undefined ? {} : { onnxFile }),
  }
}

/**
 * Reads canopy.json of an adapter's or an exported encoder's folder; undefined where there is none.
 *
 * @throws InputError when the file is malformed or of another version
 */
export async function readCanopySettings(folder: string): Promise<CanopySettings | undefined> {
  return readOptional(join(folder, CANOPY_FILE), schema)
}

/**
 * Refuses what a user states otherwise than the node encoder was trained with; the same may be stated again.
 *
 * @param encoder the node encoder, read with the settings that it was trained with
 * @param file the canopy.json that `settings` came from, for the message
 * @throws InputError naming what is stated otherwise
 */
export function checkStated(
  settings: CanopySettings,
  { dimensions, instructions }: StatedSettings,
  encoder: EncoderProfile,
  file: string,
): void {
  const differs: string[] = []
  if (dimensions !== undefined && dimensions !== encoder.dimension)
    differs.push(`embeddings of ${encoder.dimension} numbers, not ${dimensions}`)
  for (const side of ['query', 'node'] as const) {
    const given = instructions?.[side]
    const trained = settings.prompts[side]
    if (given !== undefined && given !== trained)
      differs.push(`the instruction ${JSON.stringify(trained)} for a ${side}, not ${JSON.stringify(given)}`)
  }
  if (differs.length > 0)
    throw new InputError(`The node encoder was trained with ${differs.join('; ')}. Leave these settings out.`, { file })
}

/**
 * Refuses to score against another query encoder than the one the node encoder was trained with.
 *
 * @param file the canopy.json that `settings` came from, for the message
 * @throws InputError naming both encoders
 */
export function checkQueryEncoder(settings: CanopySettings, query: EncoderProfile, file: string): void {
  const wanted = settings.queryEncoder
  if (query.fingerprint === wanted.fingerprint) return
  const name = (id: string, revision: string | undefined): string => (revision === undefined ? id : `${id}@${revision}`)
  throw new InputError(
    `The node encoder was trained with the query encoder ${name(wanted.id, wanted.revision)} (fingerprint ${wanted.fingerprint.slice(0, 12)}), ` +
      `but the one given is ${name(query.id, query.revision)} (${query.fingerprint.slice(0, 12)}) at ${query.folder}. ` +
      'Scores of two different encoders cannot be compared: pass the right one (--query-encoder, in a program "queryEncoder").',
    { file },
  )
}

/**
 * Refuses a node encoder whose own files say otherwise than its canopy.json what precedes a node's text and where it is cut.
 *
 * @param file the canopy.json that `settings` came from, for the message
 * @throws InputError naming what differs
 */
export function checkNodeEncoder(settings: CanopySettings, encoder: EncoderProfile, file: string): void {
  const { prompts, maxLength, dimensions } = settings
  const differs: string[] = []
  if (prompts.node !== encoder.prompts.node)
    differs.push(`the prompt of a node was ${JSON.stringify(prompts.node)}, is ${JSON.stringify(encoder.prompts.node)}`)
  if (maxLength !== encoder.maxLength)
    differs.push(`the maximum length was ${maxLength} tokens, is ${encoder.maxLength}`)
  if (dimensions !== undefined && dimensions !== encoder.dimension)
    differs.push(`embeddings had ${dimensions} numbers, have ${encoder.dimension}`)
  if (differs.length === 0) return
  throw new InputError(
    `The encoder in ${encoder.folder} does not embed nodes as it was trained to: ${differs.join('; ')}. Export it again, or restore its files.`,
    { file },
  )
}

/**
 * What differs between the settings a node encoder was trained with and this version of the toolkit (how sentences are found, how
 * nodes are written out): sentences for a warning, none when all is the same.
 */
export function settingsDrift(settings: CanopySettings): string[] {
  const drift: string[] = []
  if (settings.rendering !== RENDERING_VERSION)
    drift.push(`nodes were rendered by version ${settings.rendering}, now ${RENDERING_VERSION}`)
  if (settings.segmenter !== SEGMENTER_VERSION)
    drift.push(`sentences were found by ${settings.segmenter}, now ${SEGMENTER_VERSION}`)
  if (settings.pixels !== undefined && settings.pixels !== PIXELS_VERSION)
    drift.push(`pictures were made pixels by version ${settings.pixels}, now ${PIXELS_VERSION}`)
  return drift
}

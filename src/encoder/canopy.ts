import { readFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { z } from 'zod'
import { RENDERING_VERSION, SEGMENTER_VERSION, TABLE_FORMAT_NAMES } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { exists, fileError } from '../support/files.ts'
import type { EncoderProfile } from './checkpoint.ts'

const identity = z.object({
  /** Hugging Face id, or the folder's name. */
  id: z.string(),
  /** Commit of the Hugging Face repository, where it is known. */
  revision: z.string().optional(),
  /** {@link EncoderProfile.fingerprint} */
  fingerprint: z.string().regex(/^[0-9a-f]{64}$/),
  /** Name of the graph inside `onnx/`, where it is not model.onnx. */
  onnxFile: z.string().optional(),
})

const schema = z.object({
  schema: z.literal('canopy-encoder/1'),
  /** f0: the frozen encoder whose query embeddings the node encoder was trained against. */
  queryEncoder: identity,
  /** The encoder that the adapter was trained over. */
  base: identity,
  prompts: z.object({ query: z.string(), node: z.string() }),
  maxLength: z.number().int().positive(),
  /** Whether a node's text starts with its item's title. */
  title: z.boolean(),
  /** How a table's header and rows become text. */
  tableFormat: z.enum(TABLE_FORMAT_NAMES),
  branching: z.number().int().min(2),
  rendering: z.string(),
  segmenter: z.string(),
  /** SHA-256 of the exported weights, by file; absent beside an adapter. */
  files: z.record(z.string(), z.string()).optional(),
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
    maxLength: base.maxLength,
    title: options.title,
    tableFormat: options.tableFormat,
    branching: options.branching,
    rendering: RENDERING_VERSION,
    segmenter: SEGMENTER_VERSION,
  }
}

function identityOf({ id, revision, fingerprint, kind, weights }: EncoderProfile): CanopySettings['queryEncoder'] {
  const onnxFile = kind === 'onnx' && basename(weights) !== 'model.onnx' ? basename(weights) : undefined
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
  const file = join(folder, CANOPY_FILE)
  if (!(await exists(file))) return undefined
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    throw fileError(error, 'cannot read the file', file)
  })
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    throw new InputError(`The file is not valid JSON (${(error as Error).message}).`, { file }, error)
  }
  const result = schema.safeParse(value)
  if (result.success) return result.data
  const issue = result.error.issues[0]
  throw new InputError(`"${issue?.path.join('.')}": ${issue?.message}.`, { file })
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
      'Scores of two different encoders cannot be compared: pass the right one with --query-encoder.',
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
  const { prompts, maxLength } = settings
  const differs: string[] = []
  if (prompts.node !== encoder.prompts.node)
    differs.push(`the prompt of a node was ${JSON.stringify(prompts.node)}, is ${JSON.stringify(encoder.prompts.node)}`)
  if (maxLength !== encoder.maxLength)
    differs.push(`the maximum length was ${maxLength} tokens, is ${encoder.maxLength}`)
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
  return drift
}

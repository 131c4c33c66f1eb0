import { readFile, stat } from 'node:fs/promises'
import { z } from 'zod'
import { parseWith } from '../data/index.ts'
import { TABLE_FORMAT_NAMES } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'

/** The version of the files that `encode` writes. */
export const EMBEDDINGS_SCHEMA = 'canopy-embeddings/1'

export const DESCRIPTION_FILE = 'encode.json'
export const MATRIX_FILE = 'embeddings.safetensors'
export const INDEX_FILE = 'index.jsonl'
export const SKIPPED_FILE = 'skipped.jsonl'

const sha256 = z.string().regex(/^[0-9a-f]{64}$/, { message: 'is no SHA-256' })
const count = z.number().int().min(0)
const identity = z.strictObject({ id: z.string(), revision: z.string().exactOptional(), fingerprint: sha256 })

const description = z.strictObject({
  schema: z.literal(EMBEDDINGS_SCHEMA),
  /** Nodes of items, or questions. */
  side: z.enum(['node', 'query']),
  /** The node encoder's base, and f0. */
  encoder: identity,
  /** SHA-256 of the adapter over it, where there is one. */
  adapter: sha256.nullable(),
  queryEncoder: identity,
  /** Whose embeddings these are: an embedder's fingerprint. */
  space: z.strictObject({ fingerprint: sha256, dimension: z.number().int().min(1) }),
  dtype: z.enum(['float32', 'float16']),
  /** What decides a row's text; as in canopy.json. */
  settings: z.strictObject({
    prompt: z.string(),
    maxLength: z.number().int().min(1),
    title: z.boolean(),
    tableFormat: z.enum(TABLE_FORMAT_NAMES),
    branching: z.number().int().min(2),
    rendering: z.string(),
    segmenter: z.string(),
  }),
  /** What decides the last bits of a number. */
  computing: z.strictObject({
    device: z.string(),
    precision: z.string(),
    tokenBudget: z.number().int().min(1),
    blockRows: z.number().int().min(1),
  }),
  /** All that was to be encoded, also where this is one shard of it. */
  data: z.strictObject({
    names: z.array(z.string()),
    splits: z.array(z.string()).nullable(),
    /** SHA-256 over the canonical JSON of the items (or questions), in order; and over their ids. */
    hash: sha256,
    ids: sha256,
    units: count,
    rows: count,
    blocks: count,
  }),
  /** `index` counts from 1; `blocks` `[from, to)`. */
  shard: z
    .strictObject({
      index: z.number().int().min(1),
      of: z.number().int().min(1),
      blocks: z.tuple([count, count]),
      /** Number of its first item (or question), and how many it has. */
      first: count,
      units: count,
    })
    .nullable(),
})

/** What is encoded, by what and how: known before anything is computed, and the same for every run that may go on with it. */
export type Description = z.infer<typeof description>

const counts = z.strictObject({
  /** Items (or questions) that have rows, and those that could not be read. */
  units: count,
  skipped: count,
  rows: count,
  /** Rows whose text was cut at the maximum length. */
  truncated: count,
  /** Rows that share the token sequence of another one in their block. */
  same: count,
  /** Tokens of all rows' sequences. */
  tokens: count,
})

const rounding = z.strictObject({
  leastCosine: z.number(),
  largestDifference: z.number(),
})

const files = z.strictObject({
  [MATRIX_FILE]: sha256,
  [INDEX_FILE]: sha256,
  [SKIPPED_FILE]: sha256.exactOptional(),
})

const finished = description.extend({
  counts,
  /** What the numbers lost by being stored in float16. */
  rounding: rounding.exactOptional(),
  files,
})

export type Counts = z.infer<typeof counts>
export type Rounding = z.infer<typeof rounding>
/** The content of encode.json. */
export type Encoded = z.infer<typeof finished>

export const NO_COUNTS: Counts = { units: 0, skipped: 0, rows: 0, truncated: 0, same: 0, tokens: 0 }

/** What is kept of an unfinished run. */
export const parseDescription = (value: unknown, file: string): Description =>
  parseWith(description, value, { file }, 'description of embeddings')

/** encode.json as text: equal content, equal bytes. */
export const describe = (encoded: Encoded): string => `${JSON.stringify(finished.parse(encoded), null, 2)}\n`

/** Longer files are none of ours. */
const MOST_BYTES = 1 << 24

/**
 * Reads encode.json.
 *
 * @throws InputError naming the file: missing, malformed, of another version, with counts that contradict each other
 */
export async function readEncoded(file: string): Promise<Encoded> {
  let text: string
  try {
    const { size } = await stat(file)
    if (size > MOST_BYTES) throw new InputError(`the file has ${size} bytes, more than a description has`, { file })
    text = await readFile(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT')
      throw new InputError('no such file; "canopy encode" writes it when all is done', { file }, error)
    throw fileError(error, 'cannot read the description', file)
  }
  return parseEncoded(text, file)
}

/** The content of encode.json, read from elsewhere. */
export function parseEncoded(text: string, file: string): Encoded {
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    throw new InputError(`not valid JSON: ${(error as Error).message}`, { file }, error)
  }
  const encoded = parseWith(finished, value, { file }, 'description of embeddings')
  const { shard, data, counts: found, dtype, rounding: loss } = encoded
  const units = shard?.units ?? data.units
  const contradiction =
    found.units + found.skipped !== units
      ? `${found.units} encoded and ${found.skipped} skipped of ${units}`
      : shard !== null && (shard.index > shard.of || shard.blocks[0] > shard.blocks[1])
        ? `shard ${shard.index} of ${shard.of}`
        : (dtype === 'float16') !== (loss !== undefined)
          ? `${dtype} and its rounding`
          : undefined
  if (contradiction !== undefined)
    throw new InputError(`the description contradicts itself (${contradiction}); it is damaged`, { file })
  return encoded
}

/**
 * What two descriptions differ in: sentences "x was a, is b" by the names of the fields.
 *
 * @param ignored fields at the top that may differ
 */
export function differences(before: Description, now: Description, ignored: readonly (keyof Description)[]): string[] {
  const found: string[] = []
  const compare = (a: unknown, b: unknown, path: string): void => {
    if (isRecord(a) && isRecord(b)) {
      for (const key of new Set([...Object.keys(a), ...Object.keys(b)]))
        if (path !== '' || !(ignored as readonly string[]).includes(key))
          compare(a[key], b[key], path === '' ? key : `${path}.${key}`)
      return
    }
    const [was, is] = [JSON.stringify(a ?? null), JSON.stringify(b ?? null)]
    if (was !== is) found.push(`${path} was ${shown(was)}, is ${shown(is)}`)
  }
  const known = Object.keys(description.shape) as (keyof Description)[]
  const picked = (from: Description) => Object.fromEntries(known.map((key) => [key, from[key]]))
  compare(picked(before), picked(now), '')
  return found
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const shown = (json: string): string => (/^"[0-9a-f]{64}"$/.test(json) ? `${json.slice(1, 13)}…` : json)

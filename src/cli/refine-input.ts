import { readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { buffer as readStream } from 'node:stream/consumers'
import { z } from 'zod'
import type { RefineInput } from '../encoder/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError, refuseUrl } from '../support/files.ts'

/** The text behind UTF-8 bytes, a byte order mark left out. */
function decode(bytes: Uint8Array, file: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch (error) {
    throw new InputError(
      'The input is not UTF-8 text; convert it first. A picture or a video is named in JSON: {"image": "path"} or {"video": "path"}.',
      { file },
      error,
    )
  }
}

/** Plain text is one passage; a file that starts as a JSON object or list is an item or several, in a list or one a line. */
export async function readItems(input: string, warn: (text: string) => void): Promise<RefineInput[]> {
  const file = input === '-' ? 'standard input' : input
  const read =
    input === '-'
      ? await readStream(process.stdin)
      : await readFile(input).catch((error: unknown) => {
          throw fileError(error, 'cannot read the input', input)
        })
  const text = decode(read, file)
  if (text.trim() === '') throw new InputError('There is no text to refine.', { file })
  const named = /\.jsonl?$/.test(input)
  if (!named && !/^\s*(\{|\[\s*[{"])/.test(text)) return [text]
  const list = named ? parseItems(text, file) : tryParse(text)
  if (list === undefined) {
    warn(`${file} begins like JSON but is not; it is taken for a plain text.`)
    return [text]
  }
  if (list.length === 0) throw new InputError('There is no item to refine.', { file })
  return list.map((entry: unknown, i) => {
    if (typeof entry === 'string') return entry
    const { schema, expected } = kinds[kindOf(entry, i, file)]
    const parsed = schema.safeParse(entry)
    if (parsed.success) return located(parsed.data, input === '-' ? '.' : dirname(input))
    const [issue] = parsed.error.issues
    const place = issue?.path.join('.') ?? ''
    const found = issue === undefined ? '' : ` (${issue.message.replace('Invalid input: ', '')})`
    throw new InputError(`Item ${i + 1}${place === '' ? '' : `, "${place}"`}: expected ${expected}${found}.`, { file })
  })
}

/** What an entry says it is, or what its fields make it. */
function kindOf(entry: unknown, place: number, file: string): keyof typeof kinds {
  const fields = (entry ?? {}) as Record<string, unknown>
  const { modality } = fields
  if (modality === undefined) {
    if (fields.rows !== undefined) return 'table'
    return (['image', 'video'] as const).find((kind) => fields[kind] !== undefined) ?? 'text'
  }
  if (typeof modality === 'string' && Object.hasOwn(kinds, modality)) return modality as keyof typeof kinds
  throw new InputError(
    `Item ${place + 1} is of the modality ${JSON.stringify(modality)}; there are ${Object.keys(kinds).join(', ')}.`,
    { file },
  )
}

/** The item, its path being relative to the folder of the file it stands in. */
function located(item: Exclude<RefineInput, string>, folder: string): RefineInput {
  const path = 'image' in item ? item.image : 'video' in item ? item.video : undefined
  if (path === undefined) return item
  refuseUrl(path)
  return 'image' in item ? { ...item, image: resolve(folder, path) } : { ...item, video: resolve(folder, path) }
}

/** What may be absent may be null too, as `jq '{title, text}'` writes it. */
const optional = <T>(type: z.ZodType<T>) => type.nullish().transform((value) => value ?? undefined)

const naming = {
  id: optional(z.union([z.string(), z.number().transform(String)])),
  title: optional(z.string()),
}

const textSchema = z
  .object({
    ...naming,
    text: z.string(),
    sentences: optional(z.array(z.tuple([z.number().int(), z.number().int()]))),
  })
  .transform(
    ({ id, title, text, sentences }): Exclude<RefineInput, string> => ({
      ...(id !== undefined && { id }),
      ...(title !== undefined && { title }),
      text,
      ...(sentences !== undefined && { sentences }),
    }),
  )

const tableSchema = z
  .object({
    ...naming,
    caption: optional(z.string()),
    header: optional(z.array(z.string())),
    rows: z.array(z.array(z.string())).min(1),
  })
  .transform(
    ({ id, title, caption, header, rows }): Exclude<RefineInput, string> => ({
      ...(id !== undefined && { id }),
      ...(title !== undefined && { title }),
      ...(caption !== undefined && { caption }),
      header: header ?? [],
      rows,
    }),
  )

const imageSchema = z.object({ ...naming, image: z.string().min(1) }).transform(
  ({ id, title, image }): Exclude<RefineInput, string> => ({
    ...(id !== undefined && { id }),
    ...(title !== undefined && { title }),
    image,
  }),
)

const videoSchema = z
  .object({ ...naming, video: z.string().min(1), start: optional(z.number().min(0)), end: optional(z.number()) })
  .transform(
    ({ id, title, video, start, end }): Exclude<RefineInput, string> => ({
      ...(id !== undefined && { id }),
      ...(title !== undefined && { title }),
      video,
      ...(start !== undefined && { start }),
      ...(end !== undefined && { end }),
    }),
  )

/** The kinds of items, and how each is written. */
const kinds = {
  text: { schema: textSchema, expected: '{"id"?, "title"?, "text", "sentences"?: [[start, end], …]}' },
  table: { schema: tableSchema, expected: '{"id"?, "title"?, "caption"?, "header": […], "rows": [[…], …]}' },
  image: { schema: imageSchema, expected: '{"id"?, "title"?, "image": "path"}' },
  video: { schema: videoSchema, expected: '{"id"?, "title"?, "video": "path", "start"?: seconds, "end"?: seconds}' },
}

/** The items of a JSON document, a list being several; or of lines of JSON. */
function parseItems(text: string, file: string): unknown[] {
  try {
    const value: unknown = JSON.parse(text)
    return Array.isArray(value) ? value : [value]
  } catch (error) {
    const lines = text.split('\n')
    const full = lines.flatMap((line, i) => (line.trim() === '' ? [] : [{ line, number: i + 1 }]))
    const first = full[0] as { line: string }
    // a document over several lines does not begin with a whole value
    if (!file.endsWith('.jsonl') && !isJson(first.line))
      throw new InputError(`The file is not valid JSON (${(error as Error).message}).`, { file }, error)
    return full.map(({ line, number }): unknown => {
      try {
        return JSON.parse(line)
      } catch (cause) {
        throw new InputError(`not valid JSON (${(cause as Error).message}).`, { file, line: number }, cause)
      }
    })
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** What may be JSON, or a text that begins like it. */
function tryParse(text: string): unknown[] | undefined {
  try {
    return parseItems(text, '')
  } catch {
    return undefined
  }
}

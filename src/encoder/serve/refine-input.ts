import { buildHierarchy, type Hierarchy } from '../../hierarchy/index.ts'
import { probeVideo } from '../../media/index.ts'
import { nameOf, type TextInput, textHierarchy } from '../../refine/index.ts'
import { InputError } from '../../support/errors.ts'
import { refuseUrl } from '../../support/files.ts'

/**
 * What to refine. A passage: its text, or text with title and, where they are known, sentence boundaries (UTF-16 offsets). A table:
 * column header (or `[]`) and rows of cells, with title and caption. A picture or a video, for encoders that read them: the path of
 * its file, absolute or from the working directory; of a video the part from `start` to `end`, in seconds on the file's clock, where
 * absent its beginning and its end.
 */
export type RefineInput =
  | TextInput
  | { id?: string; title?: string; image: string }
  | { id?: string; title?: string; video: string; start?: number; end?: number }

const FIELDS = [
  'id',
  'title',
  'caption',
  'text',
  'sentences',
  'header',
  'rows',
  'image',
  'video',
  'start',
  'end',
] as const

/** An input without what refinement does not read, as a retriever's own fields, and without fields that are undefined or null. */
export function withoutOthers(input: RefineInput): RefineInput {
  if (typeof input !== 'object' || input === null) return input
  const given = input as Partial<Record<(typeof FIELDS)[number], unknown>>
  return Object.fromEntries(
    FIELDS.filter((field) => given[field] != null).map((field) => [field, given[field]]),
  ) as RefineInput
}

/**
 * All that the nodes of a text or a table are made of, in one string: inputs with the same string have the same tree, texts and
 * embeddings, whatever their ids. Undefined for pictures and videos, whose files may change, and for what is no text and no table.
 */
export function contentKey(input: unknown): string | undefined {
  if (typeof input === 'string') return `text 0 ${input}`
  if (typeof input !== 'object' || input === null || 'image' in input || 'video' in input) return undefined
  const { title = '', caption = '', text, sentences, header, rows } = input as Record<string, unknown>
  if (typeof title !== 'string' || typeof caption !== 'string' || 'rows' in input === 'text' in input) return undefined
  if ('rows' in input)
    return isRow(header) && isRows(rows) ? `table ${JSON.stringify([title, caption, header, rows])}` : undefined
  if (typeof text !== 'string') return undefined
  if (sentences === undefined) return `text ${title.length} ${title}${text}`
  return isSpans(sentences) ? `sentences ${JSON.stringify(sentences)} ${title.length} ${title}${text}` : undefined
}

const isRow = (cells: unknown): boolean => Array.isArray(cells) && cells.every((cell) => typeof cell === 'string')
const isRows = (rows: unknown): boolean => Array.isArray(rows) && rows.every(isRow)
const isSpans = (spans: unknown): boolean =>
  Array.isArray(spans) && spans.every((span) => Array.isArray(span) && span.every((end) => typeof end === 'number'))

/**
 * The hierarchy of an input, for an encoder that reads texts or pictures, too; of a video without an end up to where its file ends.
 *
 * @param place of the input among its likes, for messages
 * @param encoder `profile` and `reader` of the node encoder
 * @throws InputError as {@link toHierarchy} does, and for a picture or video that the encoder does not read
 */
export async function readableHierarchy(
  input: RefineInput,
  place: number,
  encoder: { id: string; multimodal: boolean },
  branching: number,
  signal: AbortSignal | undefined,
): Promise<Hierarchy> {
  if (!encoder.multimodal) refuseMedia(input, place, encoder.id)
  return toHierarchy(await timed(input, place, signal), place, branching)
}

/**
 * The hierarchy of what is to be refined.
 *
 * @param place of the input among its likes, for messages
 * @throws InputError when it is neither a text with words, a table with rows, a picture nor a part of a video
 */
export function toHierarchy(input: RefineInput, place: number, branching: number): Hierarchy {
  if (typeof input === 'string') return textHierarchy(input, place, branching)
  if (input === null || typeof input !== 'object')
    throw new InputError(`Item ${place + 1} is neither a text nor an object with "text", "rows", "image" or "video".`)
  const name = nameOf(input, place)
  const kinds = ['text', 'rows', 'image', 'video'].filter((kind) => kind in input)
  if (kinds.length > 1)
    throw new InputError(`${name} has ${kinds.map((kind) => `"${kind}"`).join(' and ')}; make it an item for each.`)
  const id = input.id ?? `item ${place + 1}`
  if ('image' in input) {
    requirePath(input.image, `${name}, "image"`)
    return buildHierarchy({ ...input, id, modality: 'image' }, branching)
  }
  if ('video' in input) {
    requirePath(input.video, `${name}, "video"`)
    const { start = 0, end = Number.NaN } = input
    if (!Number.isFinite(start) || !Number.isFinite(end))
      throw new InputError(`${name} is a video whose "start" and "end" are not both a time in seconds.`)
    return buildHierarchy({ ...input, id, modality: 'video', start, end }, branching)
  }
  return textHierarchy(input, place, branching)
}

/** An input, and of a video without an end, where its file ends. */
async function timed(input: RefineInput, place: number, signal: AbortSignal | undefined): Promise<RefineInput> {
  if (input === null || typeof input !== 'object' || !('video' in input) || input.end !== undefined) return input
  requirePath(input.video, `${nameOf(input, place)}, "video"`)
  const { duration } = await probeVideo(input.video, { signal })
  return { ...input, end: duration / 1000 }
}

function refuseMedia(input: RefineInput, place: number, encoder: string): void {
  if (input === null || typeof input !== 'object') return
  const what = 'image' in input ? 'an image' : 'video' in input ? 'a video' : undefined
  if (what === undefined) return
  throw new InputError(
    `${nameOf(input, place)} is ${what}, and the encoder ${encoder} reads only text; leave it out, or give an encoder that reads pictures.`,
  )
}

function requirePath(path: unknown, name: string): void {
  if (typeof path !== 'string' || path === '') throw new InputError(`${name}: the path of a file was expected.`)
  refuseUrl(path)
}

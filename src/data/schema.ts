import { z } from 'zod'
import type { Item, Question } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'

/** The version of the files of a dataset folder. */
export const DATASET_SCHEMA = 'canopy-dataset/1'

/** A place in a file, 1-based. */
export interface Place {
  file: string
  line?: number | undefined
}

const wellFormed = z.string().refine((text) => !/[\ud800-\udfff]/u.test(text), {
  message: 'holds half of a surrogate pair, which no UTF-8 text can hold',
})
/** Ids that are numbers become strings; those beyond 2^53 arrive as strings already. */
const id = z
  .union([wellFormed.min(1), z.number().int()], { error: 'expected an id: a string that is not empty' })
  .transform(String)
const name = wellFormed.min(1).refine((text) => text !== '__proto__', { message: 'is no name' })
const offset = z.number().int().min(0)
const pair = z.tuple([offset, offset])
const seconds = z.number().min(0)
const title = wellFormed.exactOptional()

const textItem = z.strictObject({
  id,
  modality: z.literal('text'),
  title,
  text: wellFormed.refine((text) => text.trim() !== '', {
    message: 'is empty or only white space: an item has a leaf',
  }),
  sentences: z.array(pair).exactOptional(),
})

const tableItem = z.strictObject({
  id,
  modality: z.literal('table'),
  title,
  caption: wellFormed.exactOptional(),
  header: z.array(wellFormed),
  rows: z.array(z.array(wellFormed)).min(1),
})

const imageItem = z.strictObject({ id, modality: z.literal('image'), title, image: z.string().min(1) })

const videoItem = z
  .strictObject({
    id,
    modality: z.literal('video'),
    title,
    video: z.string().min(1).exactOptional(),
    start: seconds,
    end: seconds,
  })
  .refine((item) => item.end > item.start, { message: 'end must come after start' })

/** Rows are padded to the longest one when they are written out: a single long row makes many cells of few bytes. */
const MOST_CELLS = 1 << 24
const boundedTable = tableItem.refine(
  ({ header, rows }) =>
    rows.length * rows.reduce((most, row) => Math.max(most, row.length), header.length) <= MOST_CELLS,
  { message: `has more than ${MOST_CELLS} cells, rows times columns of the longest one` },
)

const itemSchema = z.discriminatedUnion('modality', [textItem, boundedTable, imageItem, videoItem], {
  error: ({ code, input }) => {
    if (code !== 'invalid_union') return undefined
    const missing = (input as { modality?: unknown }).modality === undefined
    return missing ? 'is missing (text, table, image or video)' : 'is none of text, table, image and video'
  },
})

const span = z.union(
  [z.tuple([z.number().int(), z.number().int()]), z.tuple([z.number().int(), z.number().int(), z.string()])],
  {
    error: 'expected [start, end] or [start, end, "text"], offsets being whole numbers',
  },
)
const goldSchema = z
  .strictObject({
    item: id,
    spans: z.array(span).min(1).exactOptional(),
    quotes: z.array(z.string().min(1)).min(1).exactOptional(),
    rows: z.array(offset).min(1).exactOptional(),
    times: z
      .array(
        z.tuple([z.number(), z.number()], { error: 'expected [start, end] in seconds; a point in time is [170, 170]' }),
      )
      .min(1)
      .exactOptional(),
    whole: z.literal(true).exactOptional(),
  })
  .refine((entry) => Object.keys(entry).length === 2, {
    message: 'give exactly one of "spans", "quotes", "rows", "times" and "whole": true',
  })

const questionSchema = z.strictObject({
  id,
  benchmark: name,
  split: name,
  question: wellFormed.refine((text) => text.trim() !== '', { message: 'is empty' }),
  answers: z.array(wellFormed),
  source: id.exactOptional(),
  variant: name.exactOptional(),
  gold: z.array(goldSchema),
  retrieved: z.array(id).exactOptional(),
})

const metaSchema = z.object({
  schema: z.literal(DATASET_SCHEMA),
  name: z.string().min(1),
  benchmark: z.string().min(1),
  splits: z.record(z.string(), z.object({ questions: z.number().int().min(0) })),
  counts: z.object({ items: z.number().int().min(0), questions: z.number().int().min(0) }),
  source: z.string().exactOptional(),
  licence: z.string().exactOptional(),
  /** Which segmenter found the sentences, where the source gave none. */
  segmenter: z.string().exactOptional(),
})

/** The content of `dataset.json`. */
export type DatasetMeta = z.infer<typeof metaSchema>

export const ITEM_KEYS = new Set([
  ...Object.keys(textItem.shape),
  ...Object.keys(tableItem.shape),
  ...Object.keys(imageItem.shape),
  ...['video', 'start', 'end'],
])
export const QUESTION_KEYS = new Set(Object.keys(questionSchema.shape))

/**
 * A line of `items.jsonl`, checked; an id that is a number becomes a string.
 *
 * @throws InputError naming the field, what was expected and the place
 */
export function parseItem(value: unknown, place: Place): Item {
  return parseWith(itemSchema, value, place, 'item') as Item
}

/**
 * A line of `questions.jsonl`, checked; ids that are numbers become strings.
 *
 * @throws InputError naming the field, what was expected and the place
 */
export function parseQuestion(value: unknown, place: Place): Question {
  return parseWith(questionSchema, value, place, 'question') as Question
}

/**
 * The content of `dataset.json`, checked.
 *
 * @throws InputError naming the field, what was expected and the place
 */
export function parseMeta(value: unknown, place: Place): DatasetMeta {
  return parseWith(metaSchema, value, place, 'dataset')
}

/**
 * `value` as `schema` has it.
 *
 * @param what the kind of thing, for the message
 * @throws InputError naming the first fields at fault, what was expected and the place
 */
export function parseWith<T>(schema: z.ZodType<T>, value: unknown, place: Place, what: string): T {
  const result = schema.safeParse(value)
  if (result.success) return result.data
  const issues = result.error.issues.map((issue) => `${fieldName(issue.path)}${issue.message}`)
  const shown = issues.slice(0, 3).join('; ') + (issues.length > 3 ? `; and ${issues.length - 3} more` : '')
  throw new InputError(`not a valid ${what}${nameOf(value)}: ${shown}`, place)
}

function fieldName(path: PropertyKey[]): string {
  if (path.length === 0) return ''
  const name = path.map((key, i) => (typeof key === 'number' ? `[${key}]` : i === 0 ? String(key) : `.${String(key)}`))
  return `"${name.join('')}": `
}

function nameOf(value: unknown): string {
  const id = (value as { id?: unknown; _id?: unknown } | null | undefined)?.id
  return typeof id === 'string' && id.length <= 80 ? ` ("${id}")` : ''
}

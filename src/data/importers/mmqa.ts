import { join, posix } from 'node:path'
import { decode } from 'html-entities'
import { z } from 'zod'
import {
  type GoldEntry,
  type ImageItem,
  type Item,
  type Question,
  SEGMENTER_VERSION,
  segmentSentences,
  type TableItem,
  type TextItem,
  toUtf16Offsets,
} from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { resolveInside } from '../../support/files.ts'
import { contentId } from '../ids.ts'
import { type Place, parseWith } from '../schema.ts'
import { type ImportJob, type ImportOptions, type ImportSummary, mergedGold, runImport, uniqueSpans } from './common.ts'
import { firstRecord, readAnyRecords } from './documents.ts'
import { openShelf, type Shelf } from './shelf.ts'
import { ottqaTable, ottqaTableSchema, rowOfCell, type TableContent, tableContent, tableItem } from './tables.ts'

const BENCHMARK = 'mmqa'
/** Where a dataset keeps the pictures: the content of the official `final_dataset_images.zip`. */
const IMAGE_FOLDER = 'images'

/**
 * Imports MultiModalQA (Talmor et al. 2021). The inputs, JSON Lines in any order, each known by its content; whichever are
 * given are read:
 *
 * - **questions** (`MMQA_train`, `MMQA_dev`: `qid`, `question`, `answers`, `metadata`, `supporting_context`);
 * - **tables** (`MMQA_tables`: `id`, `title`, `table` of `table_name`, `header`, `table_rows`), or OTT-QA's tables under
 *   MultiModalQA's ids (`mmqa_table_id`, `table`);
 * - **texts** (`MMQA_texts`: `id`, `title`, `text`);
 * - **images** (`MMQA_images`: `id`, `title`, `path`), which become items of `images/<path>` in the dataset's folder; the
 *   files themselves are not looked for.
 *
 * Gold is what the answers and the intermediate answers name: the rows of `table_indices`, the texts of `text_instances` at their
 * `start_byte`, the whole of each image. An offset counts bytes or code points, whichever has the stated text there (the
 * official baseline reads code points); where neither has, the text stands there once or its place is not known. What is not at
 * hand or has no place (texts that answer yes or no, context that supports without an instance) is dropped and counted. A
 * question's `source` is its table's id; `retrieved` names its context where all of it is at hand.
 *
 * @throws InputError with file and line: a broken record, a cell outside of its table, an image path that leaves its folder, an
 *   id with two contents
 */
export function importMmqa(options: ImportOptions & { split: string }): Promise<ImportSummary> {
  const target = {
    benchmark: BENCHMARK,
    segmenter: SEGMENTER_VERSION,
    source: 'MultiModalQA (Talmor et al. 2021)',
  }
  return runImport(BENCHMARK, options, target, async (job) => {
    const shelf = await openShelf(options.output)
    try {
      const questions: string[] = []
      for (const file of options.inputs) {
        if (contextKind(await firstRecord(file, job.reading)) === undefined) {
          questions.push(file)
          continue
        }
        for await (const { value, line } of readAnyRecords(file, job.reading)) {
          await job.record(() => shelve(value, { file, line }, options.output, shelf, job))
        }
      }
      for (const file of questions) {
        for await (const { value, line } of readAnyRecords(file, job.reading)) {
          await job.record(() => importQuestion(value, { file, line }, options.split, shelf, job))
        }
      }
    } finally {
      await shelf.close()
    }
  })
}

type Kind = 'table' | 'text' | 'image'

function contextKind(value: unknown): Kind | undefined {
  const keys = value !== null && typeof value === 'object' ? value : {}
  if ('table' in keys && ('id' in keys || 'mmqa_table_id' in keys)) return 'table'
  if ('path' in keys && 'id' in keys) return 'image'
  if ('text' in keys && 'id' in keys) return 'text'
  return undefined
}

const recordId = z.union([z.string().min(1), z.number()]).transform(String)
const tableSchema = z.object({
  id: recordId,
  title: z.string(),
  table: z.object({
    table_name: z.string().optional(),
    header: z.array(z.object({ column_name: z.string() })),
    table_rows: z.array(z.array(z.object({ text: z.string() }))),
  }),
})
const joinedSchema = z.object({ mmqa_table_id: recordId, table: ottqaTableSchema })
const textSchema = z.object({ id: recordId, title: z.string().optional(), text: z.string() })
const imageSchema = z.object({ id: recordId, title: z.string().optional(), path: z.string().min(1) })

const titled = (title = ''): { title?: string } => (title.trim() === '' ? {} : { title: decode(title).trim() })
const shelfKey = (kind: Kind, id: string): string => `${kind}\0${id}`

async function shelve(value: unknown, place: Place, output: string, shelf: Shelf, job: ImportJob): Promise<void> {
  const kind = contextKind(value)
  const put = (id: string, item: object): Promise<void> =>
    shelf.put(shelfKey(kind!, id), item, place, `the ${kind} "${id}"`)
  if (kind === 'table') {
    const [id, table] = readTable(value, place)
    if (table.rows.length === 0) job.drop('item', 'a table without rows', place, `"${id}"`)
    else await put(id, tableItem(table))
  } else if (kind === 'text') {
    const { id, title, text } = parseWith(textSchema, value, place, 'mmqa text')
    if (text.trim() === '') job.drop('item', 'a text without a visible character', place, `"${id}"`)
    else {
      const content = { modality: 'text' as const, ...titled(title), text }
      await put(id, { id: contentId(content), ...content })
    }
  } else if (kind === 'image') {
    const { id, title, path } = parseWith(imageSchema, value, place, 'mmqa image')
    const content = { modality: 'image' as const, ...titled(title), image: imagePath(path, output, place) }
    await put(id, { id: contentId(content), ...content })
  } else {
    throw new InputError('neither a table, a text nor an image; questions stand in a file of their own', place)
  }
}

function readTable(value: unknown, place: Place): [string, TableContent] {
  if ('mmqa_table_id' in (value as object)) {
    const { mmqa_table_id: id, table } = parseWith(joinedSchema, value, place, 'mmqa table')
    return [id, ottqaTable(table)]
  }
  const { id, title, table } = parseWith(tableSchema, value, place, 'mmqa table')
  const header = table.header.map((column) => column.column_name)
  const rows = table.table_rows.map((row) => row.map((cell) => cell.text))
  return [id, tableContent(title, table.table_name ?? '', header, rows)]
}

function imagePath(path: string, output: string, place: Place): string {
  const folder = join(output, IMAGE_FOLDER)
  try {
    resolveInside(folder, path)
  } catch (error) {
    if (!(error instanceof InputError)) throw error
    throw new InputError(error.message, place, error)
  }
  return posix.join(IMAGE_FOLDER, path.replaceAll('\\', '/'))
}

const textInstance = z.object({
  doc_id: recordId,
  part: z.string().optional(),
  start_byte: z.number().int().min(0).optional(),
  text: z.string().optional(),
})
const answerSchema = z.object({
  answer: z.union([z.string(), z.number(), z.boolean()]).transform(String),
  type: z.string().optional(),
  text_instances: z.array(textInstance).default([]),
  table_indices: z.array(z.tuple([z.number().int(), z.number().int()])).default([]),
  image_instances: z.array(z.object({ doc_id: recordId })).default([]),
})
const questionSchema = z.object({
  qid: recordId,
  question: z.string().min(1),
  answers: z.array(answerSchema).optional(),
  metadata: z.object({
    table_id: recordId.optional(),
    text_doc_ids: z.array(recordId).default([]),
    image_doc_ids: z.array(recordId).default([]),
    intermediate_answers: z.array(z.union([z.array(answerSchema), answerSchema])).default([]),
  }),
  supporting_context: z.array(z.object({ doc_id: recordId, doc_part: z.string() })).default([]),
})
type TextInstance = z.infer<typeof textInstance>
type QuestionRecord = z.infer<typeof questionSchema>

/** An item, and the place in the inputs that it comes from. */
interface Found<T extends Item = Item> {
  item: T
  from: Place
}
type Gold = Found & { entry: GoldEntry }

async function importQuestion(
  value: unknown,
  place: Place,
  split: string,
  shelf: Shelf,
  job: ImportJob,
): Promise<void> {
  const record = parseWith(questionSchema, value, place, 'mmqa question')
  if (record.answers === undefined || record.answers.length === 0) {
    job.drop('question', 'without answers', place, `"${record.qid}"`)
    return
  }
  const gold = await goldOf(record, place, shelf, job)
  if (gold.length === 0) {
    job.drop('question', 'without evidence at hand', place, `"${record.qid}"`)
    return
  }
  const context = await wholeContext(record, shelf)
  const retrieved = context.length === 0 ? [] : [...context, ...gold].map(({ item }) => item.id)
  for (const { item, from } of [...gold, ...context]) await job.addItem(withSentences(item), from)
  const question: Question = {
    id: record.qid,
    benchmark: BENCHMARK,
    split,
    question: record.question,
    answers: [...new Set(record.answers.map(({ answer }) => answer))],
    ...(record.metadata.table_id !== undefined && { source: record.metadata.table_id }),
    // two ids may stand for equal content
    gold: mergedGold(gold.map(({ entry }) => entry)),
    ...(retrieved.length > 0 && { retrieved: [...new Set(retrieved)] }),
  }
  await job.addQuestion(question, place)
}

/** What the answers, the intermediate answers and the supporting context name, as far as it is at hand and has a place. */
async function goldOf(record: QuestionRecord, place: Place, shelf: Shelf, job: ImportJob): Promise<Gold[]> {
  const { qid, metadata, supporting_context: supporting } = record
  const answers = [...(record.answers ?? []), ...metadata.intermediate_answers.flat()]
  const gold: Gold[] = []
  /** Context whose gold was found, or counted as missing. */
  const told = new Set<string>()
  const drop = (reason: string, id: string): void => job.drop('annotation', reason, place, `"${id}" of "${qid}"`)
  const find = async <T extends Item>(kind: Kind, id: string): Promise<Found<T> | undefined> => {
    told.add(id)
    const found = await shelf.get(shelfKey(kind, id))
    if (found !== undefined) return { item: found.value as T, from: found.place }
    drop(`in ${kind === 'image' ? 'an' : 'a'} ${kind} that is not at hand`, id)
    return undefined
  }

  const cells = answers.flatMap((answer) => answer.table_indices)
  const { table_id: tableId } = metadata
  if (cells.length > 0) {
    if (tableId === undefined) throw new InputError(`"table_indices" of "${qid}" without a "table_id"`, place)
    const found = await find<TableItem>('table', tableId)
    if (found !== undefined) {
      const where = `question "${qid}", table "${tableId}"`
      const rows = new Set(cells.map((cell) => rowOfCell(found.item, cell, where, place)))
      gold.push({ ...found, entry: { item: found.item.id, rows: [...rows].sort((a, b) => a - b) } })
    }
  }

  const instances = answers.flatMap((answer) => answer.text_instances)
  for (const id of new Set(instances.map((instance) => instance.doc_id))) {
    told.add(id)
    const ofText = instances.filter((instance) => instance.doc_id === id)
    const placed = ofText.filter((i) => i.start_byte !== undefined && i.text && (i.part ?? 'text') === 'text')
    if (placed.length < ofText.length) drop('a text without a place, as of a yes/no answer', id)
    const found = placed.length === 0 ? undefined : await find<TextItem>('text', id)
    if (found === undefined) continue
    const spans = placed.flatMap((instance) => {
      const span = spanOf(found.item.text, instance)
      return span === undefined ? [] : [span]
    })
    if (spans.length < placed.length) drop('a text that does not stand where it is said to', id)
    if (spans.length > 0) gold.push({ ...found, entry: { item: found.item.id, spans: uniqueSpans(spans) } })
  }

  const images = answers.flatMap((answer) => answer.image_instances.map((instance) => instance.doc_id))
  for (const { doc_id, doc_part } of supporting) if (doc_part === 'image') images.push(doc_id)
  for (const id of new Set(images)) {
    const found = await find<ImageItem>('image', id)
    if (found !== undefined) gold.push({ ...found, entry: { item: found.item.id, whole: true } })
  }
  for (const id of new Set(supporting.map((context) => context.doc_id))) {
    if (!told.has(id)) drop('supporting context without a place', id)
  }
  return gold
}

const withSentences = (item: Item): Item =>
  item.modality === 'text' ? { ...item, sentences: segmentSentences(item.text) } : item

/** The whole context of a question, or nothing where a part of it is not at hand. */
async function wholeContext({ metadata }: QuestionRecord, shelf: Shelf): Promise<Found[]> {
  const keys = [
    ...(metadata.table_id === undefined ? [] : [shelfKey('table', metadata.table_id)]),
    ...metadata.text_doc_ids.map((id) => shelfKey('text', id)),
    ...metadata.image_doc_ids.map((id) => shelfKey('image', id)),
  ]
  const found: Found[] = []
  for (const key of keys) {
    const context = await shelf.get(key)
    if (context === undefined) return []
    found.push({ item: context.value as Item, from: context.place })
  }
  return found
}

/** Where the instance's text stands: at its offset in bytes or in code points, else in the one place that has it. */
function spanOf(
  text: string,
  { start_byte: start = 0, text: stated = '' }: TextInstance,
): [number, number] | undefined {
  for (const unit of ['byte', 'codepoint'] as const) {
    try {
      const [[from] = [0]] = toUtf16Offsets(text, unit, [[start, start]])
      if (text.startsWith(stated, from)) return [from, from + stated.length]
    } catch (error) {
      if (!(error instanceof InputError)) throw error
    }
  }
  const first = text.indexOf(stated)
  if (first < 0 || text.indexOf(stated, first + 1) >= 0) return undefined
  return [first, first + stated.length]
}

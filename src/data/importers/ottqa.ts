import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { decode } from 'html-entities'
import { z } from 'zod'
import {
  type GoldEntry,
  type Question,
  SEGMENTER_VERSION,
  segmentSentences,
  type TextItem,
} from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { exists, fileError, resolveInside } from '../../support/files.ts'
import { contentId } from '../ids.ts'
import { type Place, parseWith } from '../schema.ts'
import { goldFromSpans, type ImportJob, type ImportOptions, type ImportSummary, runImport } from './common.ts'
import { firstRecord, readAnyRecords, readDocument } from './documents.ts'
import { tolerantOccurrences } from './occurrences.ts'
import { openShelf } from './shelf.ts'
import { ottqaTable, ottqaTableSchema, rowOfCell, type TableContent, tableItem } from './tables.ts'

const BENCHMARK = 'ottqa'

/**
 * Imports OTT-QA (Chen et al. 2021) and HybridQA in their traced form. The inputs, in any order, each known by its content:
 *
 * - **questions**, an array of `question_id`, `question`, `table_id`, `answer-text` and `answer-node` [[text, [row, column],
 *   link, "table" | "passage"], …] (`*.traced.json`);
 * - **tables**, one a line (`table_id` or `uid`, `title`, `section_title`, `header`, `data`);
 * - **passages**, one table's a line (`table_id`, `passages` {link: text}), or a file {link: text};
 * - **folders** with a file for each table, `<table id>.json` (`traindev_tables_tok`, `traindev_request_tok`, or the folder
 *   that holds both): files are opened as questions name them.
 *
 * An answer node marks the row of its cell, by index (its text often differs from the cell's), and, where the answer stands in a
 * passage that the cell links to, also the places of the answer in that passage: the row is what leads to the passage. The
 * paper's published example marks both. Places are found by {@link tolerantOccurrences}, as the files' text is cut into
 * tokens; a passage without one is dropped and counted. A table becomes one item, its section title the caption; a passage a
 * text item, titled by its link. Text stays as it is written.
 *
 * The nodes were found by searching for the answer's text. Where they lie in several rows, chance finds are among them: such
 * a question has the variant `several-rows`. A question's `source` is its table's id. The files tell of no retriever, so
 * `retrieved` stays out.
 *
 * @throws InputError with file and line: a broken record, a cell outside of its table, a table id with two contents, a table
 *   id that leads out of its folder
 */
export function importOttqa(options: ImportOptions & { split: string }): Promise<ImportSummary> {
  const target = {
    benchmark: BENCHMARK,
    segmenter: SEGMENTER_VERSION,
    source: 'OTT-QA (Chen et al. 2021) or HybridQA (Chen et al. 2020), traced questions with their tables and passages',
    licence: 'MIT',
  }
  return runImport(BENCHMARK, options, target, async (job) => {
    const stock = await openStock(options.output, job)
    try {
      const questions: string[] = []
      for (const input of options.inputs) {
        if (await isFolder(input)) await stock.addFolder(input)
        else if (isContext(await firstRecord(input, job.reading))) await stock.addFile(input)
        else questions.push(input)
      }
      for (const file of questions) {
        for await (const { value, line } of readAnyRecords(file, job.reading)) {
          await job.record(() => importQuestion(value, { file, line }, options.split, stock, job))
        }
      }
    } finally {
      await stock.close()
    }
  })
}

async function isFolder(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory()
  } catch (error) {
    throw fileError(error, 'cannot read the input', path)
  }
}

const nodeSchema = z
  .tuple(
    [z.string(), z.tuple([z.number().int(), z.number().int()]), z.string().nullable(), z.enum(['table', 'passage'])],
    {
      error: 'expected [text, [row, column], link or null, "table" or "passage"]',
    },
  )
  .rest(z.unknown())

const questionSchema = z.object({
  question_id: z.union([z.string().min(1), z.number()]),
  question: z.string().min(1),
  table_id: z.string().min(1),
  'answer-text': z.union([z.string(), z.number()]).transform(String),
  'answer-node': z.array(nodeSchema).optional(),
})

async function importQuestion(
  value: unknown,
  place: Place,
  split: string,
  stock: Stock,
  job: ImportJob,
): Promise<void> {
  const record = parseWith(questionSchema, value, place, 'ottqa question')
  const id = String(record.question_id)
  const nodes = record['answer-node'] ?? []
  if (nodes.length === 0) {
    job.drop('question', 'without an answer node', place, `"${id}"`)
    return
  }
  const found = await stock.table(record.table_id, place)
  const gold: GoldEntry[] = []
  if (found === undefined) job.drop('annotation', 'in a table that is not at hand', place, `"${record.table_id}"`)
  else {
    const { value: table, place: from } = found
    const where = `question "${id}", table "${record.table_id}"`
    const rows = new Set(nodes.map(([, cell]) => rowOfCell(table, cell, where, place)))
    const item = tableItem(table)
    await job.addItem(item, from)
    gold.push({ item: item.id, rows: [...rows].sort((a, b) => a - b) })
  }

  const annotations: { item: string; span: [number, number] }[] = []
  for (const link of new Set(nodes.flatMap(([, , link, kind]) => (kind === 'passage' ? [link ?? ''] : [])))) {
    const passage = await stock.passage(record.table_id, link, place)
    if (passage === undefined || passage.value.trim() === '') {
      job.drop('annotation', 'in a passage that is not at hand', place, `"${link}" of the table "${record.table_id}"`)
      continue
    }
    const spans = tolerantOccurrences(passage.value, record['answer-text'])
    if (spans.length === 0) {
      job.drop(
        'annotation',
        'a linked passage without the answer',
        place,
        `"${link}", ${JSON.stringify(record['answer-text'])}`,
      )
      continue
    }
    const item = passageItem(titleOfLink(link), passage.value)
    await job.addItem(item, passage.place)
    annotations.push(...spans.map((span) => ({ item: item.id, span })))
  }
  gold.push(...goldFromSpans(annotations))
  if (gold.length === 0) {
    job.drop('question', 'without evidence at hand', place, `"${id}"`)
    return
  }
  const question: Question = {
    id,
    benchmark: BENCHMARK,
    split,
    question: record.question,
    answers: [record['answer-text']],
    source: record.table_id,
    ...(new Set(nodes.map(([, [row]]) => row)).size > 1 && { variant: 'several-rows' }),
    gold,
  }
  await job.addQuestion(question, place)
}

function passageItem(title: string, text: string): TextItem {
  const content = { modality: 'text' as const, ...(title !== '' && { title }), text }
  return { id: contentId(content), ...content, sentences: segmentSentences(text) }
}

/** `Dracula (2013 TV series)` of `/wiki/Dracula_(2013_TV_series)`: percent signs and entities decoded, fragment left out. */
export function titleOfLink(link: string): string {
  const written = link.replace(/^.*\/wiki\//s, '').replace(/(?<=.)#.*$/s, '')
  let name = written
  try {
    name = decodeURIComponent(written)
  } catch {
    // a percent sign that stands for itself
  }
  return decode(name).replaceAll('_', ' ').trim()
}

interface Found<T> {
  value: T
  place: Place
}

/** The tables and passages at hand. */
interface Stock {
  addFile(file: string): Promise<void>
  addFolder(folder: string): Promise<void>
  /** @param place of the question that names it */
  table(id: string, place: Place): Promise<Found<TableContent> | undefined>
  passage(tableId: string, link: string, place: Place): Promise<Found<string> | undefined>
  close(): Promise<void>
}

const linksSchema = z.record(z.string(), z.string(), { error: 'expected {link: text, …}' })
const tableSchema = ottqaTableSchema.extend({
  table_id: z.string().min(1).optional(),
  uid: z.string().min(1).optional(),
})
const passagesSchema = z.object({ table_id: z.string().min(1), passages: linksSchema })

type Keys = Record<string, unknown>
const keysOf = (value: unknown): Keys => (value !== null && typeof value === 'object' ? (value as Keys) : {})
const isTable = (keys: Keys): boolean => 'header' in keys && 'data' in keys
const isPassages = (keys: Keys): boolean => 'passages' in keys && 'table_id' in keys
const isLinks = (keys: Keys): boolean =>
  Object.keys(keys).every((key) => key.startsWith('/')) && Object.keys(keys).length > 0

function isContext(value: unknown): boolean {
  const keys = keysOf(value)
  return isTable(keys) || isPassages(keys) || isLinks(keys)
}

async function openStock(output: string, job: ImportJob): Promise<Stock> {
  const shelf = await openShelf(output)
  const folders: string[] = []

  async function shelve(value: unknown, place: Place): Promise<void> {
    const keys = keysOf(value)
    if (isTable(keys)) {
      const record = parseWith(tableSchema, value, place, 'ottqa table')
      const id = record.table_id ?? record.uid
      if (id === undefined) throw new InputError('the table has neither "table_id" nor "uid"', place)
      const table = ottqaTable(record)
      if (table.rows.length === 0) job.drop('item', 'a table without rows', place, `"${id}"`)
      else await shelf.put(`table\0${id}`, table, place, `the table "${id}"`)
    } else if (isPassages(keys)) {
      const { table_id: id, passages } = parseWith(passagesSchema, value, place, 'ottqa passages')
      await shelf.put(`passages\0${id}`, passages, place, `the list of passages of "${id}"`)
    } else if (isLinks(keys)) {
      for (const [link, text] of Object.entries(parseWith(linksSchema, value, place, 'ottqa passages'))) {
        await shelf.put(`link\0${link}`, text, place, `the passage "${link}"`)
      }
    } else {
      throw new InputError('neither a table nor passages; questions stand in a file of their own', place)
    }
  }

  /** The files of a table in the folders; which of them holds the table and which the passages, its content tells. */
  async function* filesOf(id: string, place: Place): AsyncGenerator<Found<Keys>> {
    for (const folder of folders) {
      const file = fileOf(folder, id, place)
      if (await exists(file)) yield { value: keysOf(await readDocument(file, job.reading)), place: { file, line: 1 } }
    }
  }

  return {
    async addFile(file) {
      for await (const { value, line } of readAnyRecords(file, job.reading)) {
        await job.record(() => shelve(value, { file, line }))
      }
    },
    async addFolder(folder) {
      const entries = await readdir(folder, { withFileTypes: true }).catch((error: unknown) => {
        throw fileError(error, 'cannot read the folder', folder)
      })
      const below = entries.filter((entry) => entry.isDirectory()).map((entry) => join(folder, entry.name))
      folders.push(folder, ...below.sort())
    },
    async table(id, place) {
      const found = await shelf.get(`table\0${id}`)
      if (found !== undefined) return found as Found<TableContent>
      for await (const { value, place: from } of filesOf(id, place)) {
        if (!isTable(value)) continue
        const table = ottqaTable(parseWith(tableSchema, value, from, 'ottqa table'))
        if (table.rows.length > 0) return { value: table, place: from }
        job.drop('item', 'a table without rows', from)
      }
      return undefined
    },
    async passage(tableId, link, place) {
      const listed = await shelf.get(`passages\0${tableId}`)
      const passages = (listed?.value ?? {}) as Record<string, string>
      if (listed !== undefined && Object.hasOwn(passages, link)) return { value: passages[link]!, place: listed.place }
      for await (const { value, place: from } of filesOf(tableId, place)) {
        if (!isLinks(value) || !Object.hasOwn(value, link)) continue
        return { value: parseWith(linksSchema, value, from, 'ottqa passages')[link]!, place: from }
      }
      return (await shelf.get(`link\0${link}`)) as Found<string> | undefined
    },
    close: () => shelf.close(),
  }
}

function fileOf(folder: string, id: string, place: Place): string {
  try {
    if (!/[\\/]/.test(id)) return resolveInside(folder, `${id}.json`)
  } catch (error) {
    if (!(error instanceof InputError)) throw error
  }
  throw new InputError(`the table id ${JSON.stringify(id)} is no file name, so it names no file of ${folder}`, place)
}

import { stat } from 'node:fs/promises'
import { basename, join, resolve } from 'node:path'
import { z } from 'zod'
import {
  buildHierarchy,
  type GoldEntry,
  goldLeaves,
  type Item,
  leafExtents,
  locateQuote,
  type OffsetUnit,
  type Question,
  SEGMENTER_VERSION,
  segmentSentences,
  splitsCharacter,
  type TextItem,
  textLength,
  toUtf16Offsets,
  trimSpan,
  UNIT_NAMES,
} from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { exists, fileError } from '../../support/files.ts'
import {
  type CountTokens,
  type CuttableItem,
  carryGold,
  cutAtRanges,
  cutItem,
  type ItemPart,
  isCuttable,
  rootTokens,
} from '../cut.ts'
import { ITEMS_NAME, META_NAME, QUESTIONS_NAME, readMeta } from '../dataset.ts'
import { canonicalJson } from '../json.ts'
import { readRecords } from '../jsonl.ts'
import { openParentStore, type ParentStore } from '../parents.ts'
import { ITEM_KEYS, type Place, parseItem, parseQuestion, parseWith, QUESTION_KEYS } from '../schema.ts'
import {
  type ImportJob,
  type ImportOptions,
  type ImportSummary,
  mergedGold,
  PLACES_KEPT,
  runImport,
  uniqueSpans,
} from './common.ts'
import { lookForMedia, type MissingMedia, mediaFile } from './media-files.ts'

export interface JsonlOptions extends ImportOptions {
  /** What the offsets of `spans` and `sentences` count. Default `utf16`. */
  offsets?: OffsetUnit | undefined
  /** For questions that name none. Default: the benchmark of the folder that is added to, or its name. */
  benchmark?: string | undefined
  /** Cuts texts and tables of more tokens; see {@link importJsonl}. */
  maxItemTokens?: number | undefined
  /** Of a complete rendering, special tokens and prompt included; needed with `maxItemTokens`. */
  countTokens?: CountTokens | undefined
}

export interface JsonlSummary extends ImportSummary {
  /** There when an item was cut, or was to be: with `maxItemTokens`, or where items bring `chunks`. */
  cut?: CutSummary
  /** There when an item names a picture or video that is not in the dataset folder. */
  missingMedia?: MissingMedia
}

export interface CutSummary {
  /** Items that were cut, and the items that they became. */
  items: number
  parts: number
  maxItemTokens?: number
  /** Items, cut or not, that have more tokens still: one sentence, one row, or a chunk of the user's own. */
  tooLong: number
  /** The first `PLACES_KEPT` of them, as `file:line: id`. */
  places: string[]
}

/**
 * Imports a user's own items and questions, one JSON object a line, in any number of files and in any order (a folder stands
 * for the `items.jsonl` and `questions.jsonl` in it). A line with `question` is a question, any other an item.
 *
 * Offsets become UTF-16 code units; quotes become the spans where they stand; sentences are found for text items that bring
 * none; gold entries of a question for the same item become one. `split` and `benchmark` of a question may be left out when
 * given here. Fields that the format does not know are left out and counted.
 *
 * A span that ends behind its text is clipped and one without a visible character is dropped, both counted; one that lies
 * outside of its text, or does not show the text it expects, is a fault.
 *
 * With `maxItemTokens`, a text or table whose root has more tokens (title and header included) is cut at sections, sentences or
 * rows into items `id#start-end`. An item that brings `chunks`, `[[start, end], …]` in the unit of the offsets (a table: rows), is
 * cut there instead; chunks may overlap. Questions still name the whole item: gold goes to every part that it meets, `retrieved`
 * to all of them, and questions without a `source` share one when their gold lies in parts of one item.
 *
 * @throws InputError with file and line for every fault
 */
export async function importJsonl(options: JsonlOptions): Promise<JsonlSummary> {
  const { maxItemTokens, countTokens } = options
  if (maxItemTokens !== undefined && countTokens === undefined) {
    throw new InputError('cutting items at a number of tokens needs a tokenizer; name the encoder they are for')
  }
  const parents = await openParentStore()
  const cutting: Cutting = {
    parents,
    ...(maxItemTokens !== undefined && { limit: { maxItemTokens, countTokens: countTokens! } }),
    summary: { items: 0, parts: 0, ...(maxItemTokens !== undefined && { maxItemTokens }), tooLong: 0, places: [] },
    missing: { items: 0, paths: [] },
  }
  try {
    const summary = await importFiles(options, cutting)
    const used = maxItemTokens !== undefined || cutting.summary.items > 0
    const { missing } = cutting
    return {
      ...summary,
      ...(used && { cut: cutting.summary }),
      ...(missing.items > 0 && { missingMedia: missing }),
    }
  } finally {
    await parents.close()
  }
}

interface Cutting {
  parents: ParentStore
  limit?: { maxItemTokens: number; countTokens: CountTokens }
  summary: CutSummary
  missing: MissingMedia
}

async function importFiles(options: JsonlOptions, cutting: Cutting): Promise<ImportSummary> {
  const files = await inputFiles(options.inputs)
  const benchmark = options.benchmark ?? (await firstBenchmark(files, options)) ?? basename(resolve(options.output))
  return runImport('jsonl', { ...options, inputs: files }, { benchmark, segmenter: SEGMENTER_VERSION }, async (job) => {
    const unit = options.offsets ?? 'utf16'
    // questions need the text of their items, wherever those stand: items first
    for (const file of files) {
      for await (const { value, line } of readRecords(file, job.reading)) {
        if (!isQuestion(value))
          await job.record(() => addItem(value, { file, line }, unit, job, cutting, options.output))
      }
    }
    const reading = { ...job.reading, ...(job.reading.onError && { onError: () => {} }) }
    for (const file of files) {
      for await (const { value, line } of readRecords(file, reading)) {
        if (!isQuestion(value)) continue
        const defaults = { benchmark, split: options.split }
        await job.record(() => addQuestion(value, { file, line }, unit, defaults, job, cutting.parents))
      }
    }
  })
}

type JsonObject = Record<string, unknown>

const isQuestion = (value: unknown): value is JsonObject =>
  value !== null && typeof value === 'object' && 'question' in value

async function inputFiles(inputs: string[]): Promise<string[]> {
  const files: string[] = []
  for (const input of inputs) {
    const found = await stat(input).catch((error: unknown) => {
      throw fileError(error, 'cannot read the input', input)
    })
    if (found.isDirectory()) files.push(join(input, ITEMS_NAME), join(input, QUESTIONS_NAME))
    else files.push(input)
  }
  const twice = files.find((file, i) => files.findIndex((other) => resolve(other) === resolve(file)) !== i)
  if (twice !== undefined) throw new InputError('the file is named twice among the inputs', { file: twice })
  return files
}

/** The benchmark that the first question names. */
async function firstBenchmark(files: string[], options: JsonlOptions): Promise<string | undefined> {
  if (await exists(join(options.output, META_NAME))) return (await readMeta(options.output)).benchmark
  for (const file of files) {
    for await (const { value } of readRecords(file, {
      onError: () => {},
      ...(options.maxRecordBytes !== undefined && { maxLineBytes: options.maxRecordBytes }),
      signal: options.signal,
    })) {
      if (isQuestion(value)) return typeof value.benchmark === 'string' ? value.benchmark : undefined
    }
  }
  return undefined
}

function known(value: unknown, keys: Set<string>, place: Place, job: ImportJob): JsonObject {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) {
    throw new InputError('a JSON object was expected, an item or a question', place)
  }
  const kept: JsonObject = {}
  for (const [key, field] of Object.entries(value)) {
    if (keys.has(key)) kept[key] = field
    else job.drop('annotation', `the field "${key}", which the format does not know`, place)
  }
  return kept
}

/** Adds the place to an error that has none. */
async function at<T>(place: Place, work: () => T | Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof InputError && error.file === undefined) throw new InputError(error.message, place, error)
    throw error
  }
}

const CHUNKS = 'chunks'
const itemLineKeys = new Set([...ITEM_KEYS, CHUNKS])
const chunksSchema = z.array(z.tuple([z.number().int().min(0), z.number().int().min(0)])).min(1)

async function addItem(
  value: unknown,
  place: Place,
  unit: OffsetUnit,
  job: ImportJob,
  cutting: Cutting,
  output: string,
): Promise<void> {
  const { [CHUNKS]: chunks, ...fields } = known(value, itemLineKeys, place, job)
  if (fields.modality === undefined && typeof fields.text === 'string') fields.modality = 'text'
  const item = parseItem(fields, place)
  await at(place, async () => {
    mediaFile(item, output)
    // a video that has no segments, or a year of them
    if (item.modality === 'video') buildHierarchy(item)
    const whole = item.modality === 'text' ? withSentences(item, unit) : item
    const parts = cutInto(whole, chunks, unit, place, cutting)
    const { parents } = cutting
    if (parts.length === 0) {
      if (parents.has(item.id)) throw new InputError(`the item "${item.id}" was cut with another content before`, place)
      await job.addItem(whole, place)
      await lookForMedia(whole, output, cutting.missing)
      return
    }
    if (job.writer.has(item.id)) {
      throw new InputError(`the item "${item.id}" is there already, and was not cut; an id names one item`, place)
    }
    await addParent(whole as CuttableItem, parts, place, job, cutting)
  })
}

/** The parts of an item; none when it stays whole. */
function cutInto(item: Item, chunks: unknown, unit: OffsetUnit, place: Place, cutting: Cutting): ItemPart[] {
  const { limit } = cutting
  if (!isCuttable(item)) {
    if (chunks === undefined) return []
    throw new InputError(
      `"chunks" belong to a text or a table; the item "${item.id}" is of the modality ${item.modality}`,
    )
  }
  if (chunks !== undefined) {
    const given = parseWith(chunksSchema, chunks, place, `list of chunks of item "${item.id}"`)
    const parts = cutAtRanges(item, item.modality === 'text' ? chunkOffsets(item, unit, given) : given)
    for (const part of parts) {
      if (limit !== undefined && rootTokens(part.item, limit.countTokens) > limit.maxItemTokens) {
        countTooLong(part.item.id, place, cutting.summary)
      }
    }
    return parts
  }
  if (limit === undefined) return []
  const { parts, tooLong } = cutItem(item, limit.maxItemTokens, limit.countTokens)
  for (const id of tooLong) countTooLong(id, place, cutting.summary)
  return parts
}

function chunkOffsets(item: TextItem, unit: OffsetUnit, chunks: [number, number][]): [number, number][] {
  try {
    return toUtf16Offsets(item.text, unit, chunks)
  } catch (error) {
    if (!(error instanceof InputError)) throw error
    throw new InputError(`a chunk of item "${item.id}": ${error.message}`, {}, error)
  }
}

function countTooLong(id: string, place: Place, summary: CutSummary): void {
  if (++summary.tooLong <= PLACES_KEPT) summary.places.push(`${place.file}:${place.line}: ${id}`)
}

async function addParent(
  item: CuttableItem,
  parts: ItemPart[],
  place: Place,
  job: ImportJob,
  { parents, summary }: Cutting,
): Promise<void> {
  const parent = { item, parts: parts.map(({ item: { id }, range }) => ({ id, range })) }
  const before = await parents.find(item.id)
  if (before !== undefined && canonicalJson(before) !== canonicalJson(parent)) {
    throw new InputError(`the item "${item.id}" was cut with another content before; an id names one item`, place)
  }
  for (const part of parts) await job.addItem(part.item, place)
  if (before !== undefined) return
  await parents.add(parent)
  summary.items++
  summary.parts += parts.length
}

function withSentences(item: TextItem, unit: OffsetUnit): TextItem {
  if (item.sentences === undefined || item.sentences.length === 0) {
    return { ...item, sentences: segmentSentences(item.text) }
  }
  const converted = { ...item, sentences: toUtf16Offsets(item.text, unit, item.sentences) }
  leafExtents(converted)
  return converted
}

async function addQuestion(
  value: JsonObject,
  place: Place,
  unit: OffsetUnit,
  defaults: { benchmark: string; split: string | undefined },
  job: ImportJob,
  parents: ParentStore,
): Promise<void> {
  const fields = known(value, QUESTION_KEYS, place, job)
  fields.benchmark ??= defaults.benchmark
  fields.split ??= defaults.split
  fields.answers ??= []
  fields.gold ??= []
  if (fields.split === undefined) {
    throw new InputError('the question names no "split"; add one, or give --split for all of them', place)
  }
  const question = parseQuestion(fields, place)
  if (question.benchmark !== defaults.benchmark) {
    throw new InputError(
      `the question is of the benchmark "${question.benchmark}", others of "${defaults.benchmark}"; make a dataset for each`,
      place,
    )
  }
  if (defaults.split !== undefined && question.split !== defaults.split) {
    throw new InputError(
      `the question is of the split "${question.split}", but --split says "${defaults.split}"; leave one of them out`,
      place,
    )
  }
  await at(place, async () => {
    const gold = await locatedGold(question, place, unit, job, parents)
    const retrieved = await carriedOver(question.retrieved, parents)
    await job.addQuestion({ ...question, gold, ...(retrieved !== undefined && { retrieved }) }, place)
  })
}

/** Items that were cut, replaced by all of their parts. */
async function carriedOver(ids: string[] | undefined, parents: ParentStore): Promise<string[] | undefined> {
  if (ids === undefined) return undefined
  const all: string[] = []
  for (const id of ids) all.push(...((await parents.find(id))?.parts.map((part) => part.id) ?? [id]))
  return all
}

/** The question's gold in UTF-16 spans, one entry per item; that of an item that was cut as entries of its parts. */
async function locatedGold(
  question: Question,
  place: Place,
  unit: OffsetUnit,
  job: ImportJob,
  parents: ParentStore,
): Promise<GoldEntry[]> {
  const entries: GoldEntry[] = []
  for (const entry of question.gold) {
    const parent = await parents.find(entry.item)
    if (parent === undefined && !job.writer.has(entry.item)) {
      throw new InputError(`the gold of question "${question.id}" names the item "${entry.item}", which no input holds`)
    }
    const item = parent?.item ?? (await job.writer.item(entry.item))
    const drop = (reason: string, annotation: string): void =>
      job.drop('annotation', reason, place, `${annotation} of item "${item.id}"`)
    const located = locate(item, entry, unit, drop)
    if (located === undefined) continue
    if (parent === undefined) entries.push(located)
    else {
      const lost = (annotation: string): void => drop('evidence that no chunk of its item holds', annotation)
      entries.push(...carryGold(parent.item, located, parent.parts, lost))
    }
  }
  return mergedGold(entries)
}

type Report = (reason: string, annotation: string) => void

function locate(item: Item, entry: GoldEntry, unit: OffsetUnit, report: Report): GoldEntry | undefined {
  if ('whole' in entry) return entry
  if (item.modality === 'text') {
    if ('quotes' in entry) {
      const spans = entry.quotes.map((quote) => trimSpan(item.text, locateQuote(item.text, quote)))
      return { item: item.id, spans: uniqueSpans(spans) }
    }
    if ('spans' in entry) {
      const spans = entry.spans.flatMap((span) => locateSpan(item, span, unit, report))
      return spans.length === 0 ? undefined : { item: item.id, spans: uniqueSpans(spans) }
    }
  } else if (item.modality === 'table' && 'rows' in entry) {
    const outside = entry.rows.find((row) => row >= item.rows.length)
    if (outside === undefined) return { item: item.id, rows: [...new Set(entry.rows)].sort((a, b) => a - b) }
    throw new InputError(
      `gold row ${outside} of item "${item.id}" is not there: it has ${item.rows.length}, counted from 0`,
    )
  } else if (item.modality === 'video' && 'times' in entry) {
    const [outside] = goldLeaves(buildHierarchy(item), entry).dropped
    if (outside === undefined) return entry
    throw new InputError(
      `the gold time ${JSON.stringify(outside.annotation)} lies outside of item "${item.id}", which spans [${item.start}, ${item.end}] s`,
    )
  }
  const given = Object.keys(entry).find((key) => key !== 'item')
  throw new InputError(
    `the gold of the ${item.modality} item "${item.id}" gives "${given}", which fits another modality`,
  )
}

function locateSpan(
  item: TextItem,
  [start, end, expected]: [number, number] | [number, number, string],
  unit: OffsetUnit,
  report: Report,
): [number, number][] {
  const { text } = item
  const length = textLength(text, unit)
  const name = `span [${start}, ${end})`
  const hint = expected === undefined ? unitHint(text, unit) : whereExpected(text, expected)
  if (end < start) throw new InputError(`${name} of item "${item.id}" ends before it starts`)
  if (start >= length || end <= 0) {
    if (start === end && start >= 0 && start <= length) {
      report('an empty span', name)
      return []
    }
    throw new InputError(
      `${name} lies outside of the text of item "${item.id}", which has ${length} ${UNIT_NAMES[unit]}${hint}`,
    )
  }
  if (start < 0 || end > length) report('the part of a span that lies outside of its text', name)
  const [[from, to]] = toUtf16Offsets(text, unit, [[Math.max(0, start), Math.min(length, end)]]) as [[number, number]]
  for (const offset of [from, to]) {
    if (splitsCharacter(text, offset)) {
      throw new InputError(`${name} of item "${item.id}" cuts a character in two${hint}`)
    }
  }
  if (expected !== undefined && text.slice(from, to) !== expected) {
    throw new InputError(
      `${name} of item "${item.id}" expects ${shown(expected)}, but the text there is ${shown(text.slice(from, to))}${hint}`,
    )
  }
  const span = trimSpan(text, [from, to])
  if (span[0] < span[1]) return [span]
  report(start === end ? 'an empty span' : 'a span of white space only', name)
  return []
}

function unitHint(text: string, unit: OffsetUnit): string {
  return unit === 'byte' || Buffer.byteLength(text) === text.length
    ? ''
    : '; if your offsets count something else, say so with --offsets utf16, codepoint or byte'
}

/** Where an expected text stands, in the unit that its offsets should be in. */
function whereExpected(text: string, expected: string): string {
  const start = text.indexOf(expected)
  if (expected === '' || start < 0) return '; it stands nowhere in the text'
  const before = text.slice(0, start)
  const places = (['utf16', 'codepoint', 'byte'] as const).map((unit) => {
    const from = textLength(before, unit)
    return `[${from}, ${from + textLength(expected, unit)}) with --offsets ${unit}`
  })
  return `; it stands at ${places.join(', ')}`
}

const shown = (text: string): string => JSON.stringify(text.length > 80 ? `${text.slice(0, 80)}…` : text)

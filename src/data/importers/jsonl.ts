import { stat } from 'node:fs/promises'
import { basename, join, resolve } from 'node:path'
import {
  type GoldEntry,
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
import { exists, fileError, resolveInside } from '../../support/files.ts'
import { ITEMS_NAME, META_NAME, QUESTIONS_NAME, readMeta } from '../dataset.ts'
import { readRecords } from '../jsonl.ts'
import { ITEM_KEYS, type Place, parseItem, parseQuestion, QUESTION_KEYS } from '../schema.ts'
import { type ImportJob, type ImportOptions, type ImportSummary, runImport, uniqueSpans } from './common.ts'

export interface JsonlOptions extends ImportOptions {
  /** What the offsets of `spans` and `sentences` count. Default `utf16`. */
  offsets?: OffsetUnit | undefined
  /** For questions that name none. Default: the benchmark of the folder that is added to, or its name. */
  benchmark?: string | undefined
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
 * @throws InputError with file and line for every fault
 */
export async function importJsonl(options: JsonlOptions): Promise<ImportSummary> {
  const files = await inputFiles(options.inputs)
  const benchmark = options.benchmark ?? (await firstBenchmark(files, options)) ?? basename(resolve(options.output))
  return runImport('jsonl', { ...options, inputs: files }, { benchmark, segmenter: SEGMENTER_VERSION }, async (job) => {
    const unit = options.offsets ?? 'utf16'
    // questions need the text of their items, wherever those stand: items first
    for (const file of files) {
      for await (const { value, line } of readRecords(file, job.reading)) {
        if (!isQuestion(value)) await job.record(() => addItem(value, { file, line }, unit, job))
      }
    }
    const reading = { ...job.reading, ...(job.reading.onError && { onError: () => {} }) }
    for (const file of files) {
      for await (const { value, line } of readRecords(file, reading)) {
        if (!isQuestion(value)) continue
        const defaults = { benchmark, split: options.split }
        await job.record(() => addQuestion(value, { file, line }, unit, defaults, job))
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

async function addItem(value: unknown, place: Place, unit: OffsetUnit, job: ImportJob): Promise<void> {
  const fields = known(value, ITEM_KEYS, place, job)
  if (fields.modality === undefined && typeof fields.text === 'string') fields.modality = 'text'
  const item = parseItem(fields, place)
  await at(place, async () => {
    if (item.modality === 'image') resolveInside('.', item.image)
    if (item.modality === 'video' && item.video !== undefined) resolveInside('.', item.video)
    await job.addItem(item.modality === 'text' ? withSentences(item, unit) : item, place)
  })
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
    const gold = await locatedGold(question, place, unit, job)
    await job.addQuestion({ ...question, gold }, place)
  })
}

/** The question's gold in UTF-16 spans, one entry per item. */
async function locatedGold(question: Question, place: Place, unit: OffsetUnit, job: ImportJob): Promise<GoldEntry[]> {
  const byItem = new Map<string, GoldEntry>()
  for (const entry of question.gold) {
    if (!job.writer.has(entry.item)) {
      throw new InputError(`the gold of question "${question.id}" names the item "${entry.item}", which no input holds`)
    }
    const item = await job.writer.item(entry.item)
    const located = locate(item, entry, unit, (reason, annotation) =>
      job.drop('annotation', reason, place, `${annotation} of item "${item.id}"`),
    )
    if (located === undefined) continue
    const before = byItem.get(item.id)
    byItem.set(item.id, before === undefined ? located : merged(before, located))
  }
  return [...byItem.values()]
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
    for (const [start, end] of entry.times) {
      if (end < start || start > item.end || end < item.start) {
        throw new InputError(
          `the gold time [${start}, ${end}] lies outside of item "${item.id}", which spans [${item.start}, ${item.end}] s`,
        )
      }
    }
    return entry
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

function merged(a: GoldEntry, b: GoldEntry): GoldEntry {
  if ('whole' in a) return a
  if ('whole' in b) return b
  if ('spans' in a && 'spans' in b) {
    return { item: a.item, spans: uniqueSpans([...a.spans, ...b.spans] as [number, number][]) }
  }
  if ('rows' in a && 'rows' in b) {
    return { item: a.item, rows: [...new Set([...a.rows, ...b.rows])].sort((x, y) => x - y) }
  }
  if ('times' in a && 'times' in b) return { item: a.item, times: [...a.times, ...b.times] }
  throw new InputError(`two gold entries for the item "${a.item}" say in different ways where the evidence lies`)
}

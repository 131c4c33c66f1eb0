import { open, stat } from 'node:fs/promises'
import { join } from 'node:path'
import {
  buildHierarchy,
  type GoldEntry,
  goldLeaves,
  type Item,
  leafExtents,
  type Question,
} from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError, resolveInside } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { ITEMS_NAME, META_NAME, namedItems, QUESTIONS_NAME, readMeta } from './dataset.ts'
import { sha256 } from './hashes.ts'
import { createColumn, createKeyTable } from './ids.ts'
import { readAt } from './index-file.ts'
import { canonicalJson, parseJsonLossless } from './json.ts'
import { readJsonLines } from './jsonl.ts'
import { type DatasetMeta, type Place, parseItem, parseQuestion } from './schema.ts'

/** Something wrong in a dataset folder. */
export interface Fault {
  file: string
  line?: number | undefined
  message: string
  /** The item whose picture or video is not in the folder, where that is the fault. */
  missing?: string
}

export interface CheckOptions {
  signal?: AbortSignal | undefined
  /** Told every 1000 lines. */
  onProgress?: Progress | undefined
  /** Whether a picture or video that is not in the folder is a fault: encoders that read only text open none. Default false. */
  needsMedia?: boolean | undefined
}

export interface SplitCount {
  questions: number
  /** Gold entries: (question, item) instances. */
  gold: number
  /** Questions that mark no evidence. */
  withoutGold: number
  /** Questions whose retrieved items are known. */
  withRetrieved: number
}

/** What a dataset folder holds, counted over its valid lines. */
export interface CheckReport {
  folder: string
  faults: number
  /** Items whose picture or video is not in the folder: among the faults where media are needed. */
  missingMedia: number
  items: Record<Item['modality'], number>
  /** Of the text items. */
  leaves: number
  /** Text items with one leaf, on which nothing is to be decided. */
  oneLeafItems: number
  splits: Record<string, SplitCount>
}

/**
 * Reads a dataset folder whole and tells every fault: lines that are no valid item or question, ids with two contents, sentences that
 * do not fit their text, videos without segments, paths that leave the folder, gold and retrieved items that are not there, gold
 * that marks nothing or leaves its item, counts that do not agree. Memory: about 60 bytes for each item and question.
 *
 * @param onFault called for each, in the order of the files' lines
 * @throws InputError when the folder cannot be read at all
 */
export async function checkDataset(
  folder: string,
  onFault: (fault: Fault) => void,
  { signal, onProgress, needsMedia = false }: CheckOptions = {},
): Promise<CheckReport> {
  const report: CheckReport = {
    folder,
    faults: 0,
    missingMedia: 0,
    items: { text: 0, table: 0, image: 0, video: 0 },
    leaves: 0,
    oneLeafItems: 0,
    splits: {},
  }
  const fault = (place: Place, message: string, missing?: string): void => {
    report.faults++
    onFault({ file: place.file, line: place.line, message, ...(missing !== undefined && { missing }) })
  }
  const tell = (error: unknown, place: Place): void => {
    if (!(error instanceof InputError)) throw error
    fault({ file: error.file ?? place.file, line: error.line ?? place.line }, bareMessage(error))
  }
  const metaFile = { file: join(folder, META_NAME) }
  const itemsFile = join(folder, ITEMS_NAME)
  const questionsFile = join(folder, QUESTIONS_NAME)
  let meta: DatasetMeta | undefined
  try {
    meta = await readMeta(folder)
  } catch (error) {
    tell(error, metaFile)
  }

  const ids = createKeyTable()
  const offsets = createColumn(0)
  const lengths = createColumn(0)
  const contents = createColumn(0)
  const lines = createColumn(0)
  const reading = { onError: (error: InputError) => tell(error, { file: itemsFile }), signal }
  for await (const { value, line, offset, length } of readJsonLines(itemsFile, reading)) {
    const place = { file: itemsFile, line }
    if (line % 1000 === 0) onProgress?.({ phase: 'checking items', done: line, ...total(meta?.counts.items) })
    try {
      const item = parseItem(value, place)
      const { entry, isNew } = ids.add(item.id)
      const content = sha256(canonicalJson(item)).readUIntLE(0, 6)
      if (!isNew) {
        fault(
          place,
          contents.get(entry) === content
            ? `the item "${item.id}" stands on line ${lines.get(entry)} already`
            : `the item "${item.id}" has another content on line ${lines.get(entry)}; an id names one item`,
        )
        continue
      }
      offsets.set(entry, offset)
      lengths.set(entry, length)
      contents.set(entry, content)
      lines.set(entry, line)
      report.items[item.modality]++
      checkItem(item, report)
      const media = await missingMedia(item, folder)
      if (media === undefined) continue
      report.missingMedia++
      if (needsMedia) fault(place, `the ${media} of the item "${item.id}" is not in the folder`, item.id)
    } catch (error) {
      tell(error, place)
    }
  }

  const handle = await open(itemsFile, 'r').catch((error: unknown) => {
    throw fileError(error, 'cannot read the items of the dataset', itemsFile)
  })
  const itemAt = async (entry: number): Promise<Item> => {
    const bytes = await readAt(handle, offsets.get(entry), lengths.get(entry))
    return parseItem(parseJsonLossless(bytes.toString('utf8')), { file: itemsFile, line: lines.get(entry) })
  }
  try {
    const questionIds = createKeyTable()
    const questionLines = createColumn(0)
    const onError = (error: InputError): void => tell(error, { file: questionsFile })
    for await (const { value, line } of readJsonLines(questionsFile, { onError, signal })) {
      const place = { file: questionsFile, line }
      if (line % 1000 === 0) onProgress?.({ phase: 'checking questions', done: line, ...total(meta?.counts.questions) })
      try {
        const question = parseQuestion(value, place)
        const { entry, isNew } = questionIds.add(`${question.split}\0${question.id}`)
        if (!isNew) {
          fault(place, `the question "${question.id}" of this split stands on line ${questionLines.get(entry)} already`)
          continue
        }
        questionLines.set(entry, line)
        count(question, report)
        for (const id of namedItems(question)) {
          if (ids.find(id) < 0) fault(place, `question "${question.id}" names the item "${id}", which is not there`)
        }
        const golden = new Set<string>()
        for (const gold of question.gold) {
          const name = `the gold of question "${question.id}" for item "${gold.item}"`
          if (golden.has(gold.item))
            fault(place, `${name} has a second entry; one entry holds all annotations of an item`)
          golden.add(gold.item)
          const found = ids.find(gold.item)
          if (found < 0) continue
          try {
            for (const message of goldFaults(await itemAt(found), gold)) fault(place, `${name}: ${message}`)
          } catch (error) {
            if (!(error instanceof InputError)) throw error
            // an item that is at fault itself has been told
            if (error.file === undefined) fault(place, `${name}: ${error.message}`)
          }
        }
      } catch (error) {
        tell(error, place)
      }
    }
  } finally {
    await handle.close()
  }
  if (meta !== undefined) checkCounts(meta, report, ids.size, metaFile, fault)
  return report
}

/** A total that `dataset.json` states, where it could be read. */
const total = (count: number | undefined): { total?: number } => (count === undefined ? {} : { total: count })

function bareMessage(error: InputError): string {
  if (error.file === undefined) return error.message
  const prefix = error.line === undefined ? `${error.file}: ` : `${error.file}:${error.line}: `
  return error.message.startsWith(prefix) ? error.message.slice(prefix.length) : error.message
}

function checkItem(item: Item, report: CheckReport): void {
  if (item.modality === 'text') {
    const { length } = leafExtents(item)
    report.leaves += length
    if (length === 1) report.oneLeafItems++
  } else if (item.modality === 'video') buildHierarchy(item)
}

/** The picture or video of an item, in words, when it is not in the folder. */
async function missingMedia(item: Item, folder: string): Promise<string | undefined> {
  const media = item.modality === 'image' ? item.image : item.modality === 'video' ? item.video : undefined
  if (media === undefined) return undefined
  const found = await stat(resolveInside(folder, media)).catch(() => undefined)
  return found?.isFile() === true ? undefined : `${item.modality} ${JSON.stringify(media)}`
}

function count(question: Question, report: CheckReport): void {
  if (!Object.hasOwn(report.splits, question.split)) {
    report.splits[question.split] = { questions: 0, gold: 0, withoutGold: 0, withRetrieved: 0 }
  }
  const split = report.splits[question.split]!
  split.questions++
  split.gold += question.gold.length
  if (question.gold.length === 0) split.withoutGold++
  if (question.retrieved !== undefined) split.withRetrieved++
}

/** What is wrong with a gold entry of `item`; throws an InputError for what makes it unreadable. */
function goldFaults(item: Item, gold: GoldEntry): string[] {
  if ('whole' in gold) return []
  switch (item.modality) {
    case 'text': {
      const { dropped } = goldLeaves(buildHierarchy(item), gold)
      const faults = dropped.map(({ reason, annotation }) => `${reason}: ${JSON.stringify(annotation)}`)
      const spans = 'spans' in gold ? gold.spans : []
      for (const [start, end] of spans) {
        if ((start < 0 && end > 0) || (end > item.text.length && start < item.text.length)) {
          faults.push(`the span [${start}, ${end}) leaves the text of ${item.text.length} UTF-16 code units`)
        }
      }
      return faults
    }
    case 'table':
      if (!('rows' in gold)) return ['a table takes "rows" or "whole"']
      return gold.rows
        .filter((row) => row >= item.rows.length)
        .map((row) => `row ${row} is not there; the table has ${item.rows.length}, counted from 0`)
    case 'video':
      if (!('times' in gold)) return ['a video takes "times" or "whole"']
      return goldLeaves(buildHierarchy(item), gold).dropped.map(
        ({ annotation }) => `the time ${JSON.stringify(annotation)} lies outside of [${item.start}, ${item.end}] s`,
      )
    case 'image':
      return ['an image takes "whole": true']
  }
}

function checkCounts(
  meta: DatasetMeta,
  report: CheckReport,
  items: number,
  place: Place,
  fault: (place: Place, message: string) => void,
): void {
  if (meta.counts.items !== items) fault(place, `says ${meta.counts.items} items, ${items} are there`)
  for (const name of new Set([...Object.keys(meta.splits), ...Object.keys(report.splits)])) {
    const said = Object.hasOwn(meta.splits, name) ? meta.splits[name]?.questions : undefined
    const there = Object.hasOwn(report.splits, name) ? (report.splits[name]?.questions ?? 0) : 0
    if (said === undefined) {
      fault(place, `does not list the split "${name}", of which ${there} questions are there; import it again`)
    } else if (said !== there) fault(place, `says ${said} questions of the split "${name}", ${there} are there`)
  }
  const total = Object.values(report.splits).reduce((sum, { questions }) => sum + questions, 0)
  if (meta.counts.questions !== total) fault(place, `says ${meta.counts.questions} questions, ${total} are there`)
}

import type { GoldEntry, Item, Question } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import type { Progress } from '../../support/progress.ts'
import { MAX_RECORD_BYTES } from '../jsonl.ts'
import { type Place, parseItem, parseQuestion } from '../schema.ts'
import { type DatasetWriter, openDatasetWriter, type WriterOptions } from '../writer.ts'

export interface ImportOptions {
  /** Files to read, one after the other; `.gz` is decompressed, Parquet files are read by rows. */
  inputs: string[]
  /** The dataset folder; one that is there gets another split. */
  output: string
  /** The split that the questions belong to. */
  split?: string | undefined
  /** What a fault in the input does: `stop` (default) writes nothing; `skip` leaves the record out and counts it. */
  onError?: 'stop' | 'skip' | undefined
  /** The dataset's name. Default: the folder's. */
  name?: string | undefined
  /** Where the data come from, in words, for `dataset.json`. */
  source?: string | undefined
  licence?: string | undefined
  /** The most bytes that one record may have. Default 64 MiB. */
  maxRecordBytes?: number | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

/** Things of one kind that were left out for one reason. */
export interface Dropped {
  what: 'record' | 'question' | 'item' | 'annotation'
  reason: string
  count: number
  /** The first `PLACES_KEPT` of them, as `file:line: detail`. */
  places: string[]
}

/** How many places of each reason a summary lists; the count is always complete. */
export const PLACES_KEPT = 100

export interface ImportSummary {
  dataset: string
  format: string
  benchmark: string
  splits: string[]
  /** Records read, faulty ones included. */
  records: number
  /** Items new to the folder, and items that were there (from this import or before) with the same content. */
  items: { added: number; merged: number }
  /** Items new to the folder, by modality. */
  modalities: Partial<Record<Item['modality'], number>>
  questions: number
  /** Questions that are marked with a variant, by its name. */
  variants: Record<string, number>
  /** Gold entries, one per question and item. */
  gold: number
  /** Records that a fault kept out (`onError: 'skip'`). */
  skipped: number
  dropped: Dropped[]
}

/** What an importer works with. */
export interface ImportJob {
  /** Reading options: size limit, signal, and with `onError: 'skip'` the counting of broken records. */
  reading: { maxLineBytes: number; signal?: AbortSignal | undefined; onError?: (error: InputError) => void }
  /** Runs the import of one record; its InputErrors are thrown or counted, as `onError` says. */
  record(work: () => Promise<void>): Promise<void>
  /** Counts something left out that is no fault of the input. */
  drop(what: Dropped['what'], reason: string, place: Place, detail?: string): void
  addItem(item: Item, place: Place): Promise<void>
  addQuestion(question: Question, place: Place): Promise<void>
  writer: DatasetWriter
}

/**
 * Runs an import: opens the dataset, lets `work` fill it, and puts it in place whole, or leaves everything as it was.
 *
 * @throws InputError as `work` does, and when no question is left
 */
export async function runImport(
  format: string,
  options: ImportOptions,
  target: Pick<WriterOptions, 'benchmark' | 'segmenter'> & { source?: string; licence?: string },
  work: (job: ImportJob) => Promise<void>,
): Promise<ImportSummary> {
  if (options.inputs.length === 0) throw new InputError('no input file was named')
  const writer = await openDatasetWriter({
    folder: options.output,
    name: options.name,
    benchmark: target.benchmark,
    source: options.source ?? target.source,
    licence: options.licence ?? target.licence,
    segmenter: target.segmenter,
    split: options.split,
  })
  try {
    const summary: ImportSummary = {
      dataset: options.output,
      format,
      benchmark: target.benchmark,
      splits: [],
      records: 0,
      items: { added: 0, merged: 0 },
      modalities: {},
      questions: 0,
      variants: {},
      gold: 0,
      skipped: 0,
      dropped: [],
    }
    const splits = new Set<string>()
    const dropped = new Map<string, Dropped>()
    const drop = (what: Dropped['what'], reason: string, place: string): void => {
      const key = `${what}\0${reason}`
      const entry = dropped.get(key) ?? { what, reason, count: 0, places: [] }
      dropped.set(key, entry)
      if (++entry.count <= PLACES_KEPT) entry.places.push(place)
    }
    const skip = (error: InputError): void => {
      summary.skipped++
      drop('record', 'faulty', error.message)
    }
    const skips = options.onError === 'skip'
    await work({
      writer,
      reading: {
        maxLineBytes: options.maxRecordBytes ?? MAX_RECORD_BYTES,
        signal: options.signal,
        ...(skips && {
          onError: (error: InputError) => {
            summary.records++
            skip(error)
          },
        }),
      },
      async record(importOne) {
        summary.records++
        try {
          await importOne()
        } catch (error) {
          if (!skips || !(error instanceof InputError) || error.line === undefined) throw error
          skip(error)
        }
        if (summary.records % 500 === 0) options.onProgress?.({ phase: 'records', done: summary.records })
      },
      drop: (what, reason, place, detail) =>
        drop(what, reason, `${placeText(place)}${detail === undefined ? '' : `: ${detail}`}`),
      async addItem(item, place) {
        const what = await writer.addItem(parseItem(item, place), place)
        summary.items[what]++
        if (what === 'added') summary.modalities[item.modality] = (summary.modalities[item.modality] ?? 0) + 1
      },
      async addQuestion(question, place) {
        if ((await writer.addQuestion(parseQuestion(question, place), place)) === 'repeated') {
          drop('question', 'the same question once more', `${placeText(place)}: "${question.id}"`)
          return
        }
        splits.add(question.split)
        summary.questions++
        const { variant } = question
        if (variant !== undefined) summary.variants[variant] = (summary.variants[variant] ?? 0) + 1
        summary.gold += question.gold.length
      },
    })
    summary.splits = [...splits]
    summary.dropped = [...dropped.values()]
    if (summary.questions === 0) throw nothingLeft(options, summary)
    options.signal?.throwIfAborted()
    options.onProgress?.({ phase: 'records', done: summary.records, total: summary.records })
    await writer.commit()
    return summary
  } finally {
    await writer.abort()
  }
}

const placeText = (place: Place): string => (place.line === undefined ? place.file : `${place.file}:${place.line}`)

function nothingLeft(options: ImportOptions, summary: ImportSummary): InputError {
  const reasons = summary.dropped.map(
    ({ what, reason, count, places }) => `${count} × ${what}, ${reason} (first: ${places[0]})`,
  )
  const why = reasons.length === 0 ? 'the input holds none' : reasons.join('; ')
  return new InputError(`no question is left to import, nothing was written: ${why}`, {
    file: options.inputs.length === 1 ? options.inputs[0] : undefined,
  })
}

/** Spans in order, each once. */
export function uniqueSpans(spans: readonly [number, number][]): [number, number][] {
  const sorted = [...spans].sort((a, b) => a[0] - b[0] || a[1] - b[1])
  return sorted.filter(([start, end], i) => start !== sorted[i - 1]?.[0] || end !== sorted[i - 1]?.[1])
}

/** One gold entry per item, in the order of first mention, holding all spans of that item. */
export function goldFromSpans(annotations: Iterable<{ item: string; span: [number, number] }>): GoldEntry[] {
  const byItem = new Map<string, [number, number][]>()
  for (const { item, span } of annotations) {
    const spans = byItem.get(item)
    if (spans === undefined) byItem.set(item, [span])
    else spans.push(span)
  }
  return [...byItem].map(([item, spans]) => ({ item, spans: uniqueSpans(spans) }))
}

/**
 * One gold entry for each item, in the order of first mention, holding what all entries of that item mark.
 *
 * @throws InputError for entries of one item that say in different ways where the evidence lies
 */
export function mergedGold(entries: Iterable<GoldEntry>): GoldEntry[] {
  const byItem = new Map<string, GoldEntry>()
  for (const entry of entries) {
    const before = byItem.get(entry.item)
    byItem.set(entry.item, before === undefined ? entry : merged(before, entry))
  }
  return [...byItem.values()]
}

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

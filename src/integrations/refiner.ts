import {
  type Encoder,
  OPEN_OPTIONS,
  type OpenEncoderOptions,
  type RefinedItem,
  type RefineInput,
} from '../encoder/index.ts'
import { buildHierarchy, renderContent, renderHeader, type TableItem, trimSpan } from '../hierarchy/index.ts'
import { onAborted } from '../support/abort.ts'
import { refuseUnknown } from '../support/options.ts'

/** What the entry points for RAG frameworks have in common. */
export interface RefinerOptions {
  /** Metadata key of a document's title, which then starts the text of its regions; give what the encoder was trained with. */
  titleKey?: string | undefined
  /** Metadata key of a table `{ header, rows, caption? }`: such a document is refined row by row and written out as Markdown. */
  tableKey?: string | undefined
  /**
   * `item` (default): a document for each that came in, its kept ranges joined. `range`: a document for each kept range, its id, where
   * there is one, followed by `#start-end`.
   */
  output?: 'item' | 'range' | undefined
  /** Stands between two kept ranges where text was left out; ` … ` by default. */
  separator?: string | undefined
  /** The metadata key that {@link Refinement} is put under; `canopy` by default. */
  metadataKey?: string | undefined
  /** Milliseconds after which the documents go on as they came. No limit by default, nor for `Infinity`. */
  timeout?: number | undefined
  /** Ends refinement: what is running and what comes after is rejected with the signal's reason. */
  signal?: AbortSignal | undefined
  /**
   * Told of every failure and timeout, after which the documents go on as they came. What it throws is thrown to the caller; a promise
   * of it is waited for. By default a warning on the console, once for each cause.
   */
  onError?: ((failure: RefinementFailure) => unknown) | undefined
}

/** Why documents went on as they came. */
export interface RefinementFailure {
  error: unknown
  question: string
  /** How many documents. */
  documents: number
}

/** How to open the encoder of a folder. */
export interface FolderOptions extends RefinerOptions {
  open?: OpenEncoderOptions | undefined
}

const REFINER_OPTIONS = {
  titleKey: true,
  tableKey: true,
  output: true,
  separator: true,
  metadataKey: true,
  timeout: true,
  signal: true,
  onError: true,
} as const satisfies Record<keyof RefinerOptions, true>

const isOpenOption = (name: string): boolean => Object.hasOwn(OPEN_OPTIONS, name)

/** @throws RangeError for options that there are none of, before the encoder is opened */
export function checkFolderOptions(options: FolderOptions): void {
  const known = { ...REFINER_OPTIONS, open: true } as const satisfies Record<keyof FolderOptions, true>
  refuseUnknown(options, known, 'fromFolder', (name) =>
    isOpenOption(name) ? `It is one of openEncoder: give it as open: { ${name} }.` : undefined,
  )
}

/** A kept range in a document's metadata. */
export interface RefinedRange {
  /**
   * Where it lies, `[start, end)`: UTF-16 offsets into the document as it came, white space at both ends left out, so that
   * `original.slice(start, end)` is the range's text; rows of a table.
   */
  start: number
  end: number
  /** Leaves `[from, to)`: sentences, or rows. */
  from: number
  to: number
  /** cos(f0(question), fθ(range)): compared inside one document only. */
  score: number
}

/** What is put into a refined document's metadata: plain data. */
export interface Refinement {
  modality: 'text' | 'table'
  /** How many sentences or rows the document had. */
  leaves: number
  /** In reading order; of a document that is one range, that range. */
  ranges: RefinedRange[]
}

/** A document as the refiner sees it. */
export interface Passage {
  text: string
  metadata: Readonly<Record<string, unknown>>
}

/** A document that comes out: what is written into it, and where it lay. */
export interface Piece {
  text: string
  refinement: Refinement
  /** What follows the id of the document that it came from; empty where there is one for each. */
  suffix: string
}

/** An encoder behind a framework's interface. */
export interface Refiner {
  readonly metadataKey: string
  /**
   * What becomes of each document: the pieces that `make` turned into the framework's own, or itself where there is nothing to refine.
   *
   * @param passage a document's text and metadata; undefined for one that is no text
   */
  refine<T>(
    question: string,
    documents: readonly T[],
    passage: (document: T) => Passage | undefined,
    make: (document: T, passage: Passage, piece: Piece) => T,
    signal?: AbortSignal,
  ): Promise<T[]>
}

/** @throws RangeError for options that there are none of, and for a timeout that is no positive number */
export function createRefiner(encoder: Pick<Encoder, 'refine'>, options: RefinerOptions): Refiner {
  refuseUnknown(options, REFINER_OPTIONS, 'The refiner', (name) =>
    isOpenOption(name) ? 'It is one of openEncoder: open the encoder with it.' : undefined,
  )
  const { output = 'item', separator = ' … ', metadataKey = 'canopy', timeout, onError = warnOnce() } = options
  if (timeout !== undefined && !(timeout > 0))
    throw new RangeError(`The timeout is a number of milliseconds above 0, not ${timeout}.`)
  return {
    metadataKey,
    async refine(question, documents, passageOf, make, signal) {
      const signals = [options.signal, signal].filter((one) => one !== undefined)
      const throwIfAborted = (): void => {
        options.signal?.throwIfAborted()
        signal?.throwIfAborted()
      }
      throwIfAborted()
      try {
        const passages = documents.map((document) => {
          const passage = passageOf(document)
          return passage === undefined ? undefined : toInput(passage, options)
        })
        const found = passages.filter((passage) => passage !== undefined)
        if (found.length === 0) return [...documents]
        const items = await within(timeout, signals, (merged) =>
          encoder.refine(
            question,
            found.map(({ input }) => input),
            { signal: merged },
          ),
        )
        let at = 0
        return documents.flatMap((document, i) => {
          const passage = passages[i]
          if (passage === undefined) return [document]
          const pieces = piecesOf(passage, items[at++] as RefinedItem, output, separator)
          return pieces.map((piece) => make(document, passage, piece))
        })
      } catch (error) {
        throwIfAborted()
        await onError({ error, question, documents: documents.length })
        return [...documents]
      }
    },
  }
}

interface ReadPassage extends Passage {
  input: RefineInput
  table: TableItem | undefined
}

/** Undefined where there is nothing to refine. */
function toInput({ text, metadata }: Passage, { titleKey, tableKey }: RefinerOptions): ReadPassage | undefined {
  const given = titleKey === undefined ? undefined : metadata[titleKey]
  const title = typeof given === 'string' && given !== '' ? { title: given } : {}
  const table = tableKey === undefined ? undefined : tableIn(metadata[tableKey])
  if (table !== undefined)
    return { text, metadata, table: { ...table, id: '', modality: 'table' }, input: { ...title, ...table } }
  if (text.trim() === '') return undefined
  return { text, metadata, table: undefined, input: { ...title, text } }
}

/** A table with rows; its cells are checked by the encoder. */
function tableIn(value: unknown): Pick<TableItem, 'header' | 'rows' | 'caption'> | undefined {
  if (value === null || typeof value !== 'object') return undefined
  const { header = [], rows, caption } = value as { header?: unknown; rows?: unknown; caption?: unknown }
  if (!Array.isArray(rows) || rows.length === 0) return undefined
  return {
    header: header as string[],
    rows: rows as string[][],
    ...(typeof caption === 'string' && caption !== '' ? { caption } : {}),
  }
}

function piecesOf(
  { text, table }: ReadPassage,
  { kept, leaves }: RefinedItem,
  output: 'item' | 'range',
  separator: string,
): Piece[] {
  const ranges = kept.map(({ from, to, start, end, score }): RefinedRange => {
    const [first, last] = table === undefined ? trimSpan(text, [start, end]) : [start, end]
    return { start: first, end: last, from, to, score }
  })
  const written = (some: RefinedRange[]): string =>
    table === undefined ? joined(text, some, separator) : writtenTable(table, some)
  const refinement = (some: RefinedRange[]): Refinement => ({
    modality: table === undefined ? 'text' : 'table',
    leaves,
    ranges: some,
  })
  if (output === 'item') return [{ text: written(ranges), refinement: refinement(ranges), suffix: '' }]
  return ranges.map((range) => ({
    text: written([range]),
    refinement: refinement([range]),
    suffix: `#${range.start}-${range.end}`,
  }))
}

/** Ranges with what stands between them, where that is white space; with the separator where text was left out. */
function joined(text: string, ranges: readonly RefinedRange[], separator: string): string {
  let out = ''
  let last: RefinedRange | undefined
  for (const range of ranges) {
    const gap = last === undefined ? '' : text.slice(last.end, range.start)
    out += (gap.trim() === '' ? gap : separator) + text.slice(range.start, range.end)
    last = range
  }
  return out
}

/** Caption and column header once, then the rows. */
function writtenTable(table: TableItem, ranges: readonly RefinedRange[]): string {
  const hierarchy = buildHierarchy(table)
  const rows = ranges.map(({ from, to }) => renderContent(hierarchy, { from, to, children: [] }))
  return renderHeader(table, { title: true }) + rows.join('')
}

/** Milliseconds, at most, that a timer waits; Node takes what is longer for 1. */
const LONGEST_TIMER = 2 ** 31 - 1

/** Runs an action that ends at a timeout or a signal, whatever the action makes of its own signal. */
async function within<T>(
  timeout: number | undefined,
  signals: readonly AbortSignal[],
  action: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController()
  const timer =
    timeout === undefined || timeout > LONGEST_TIMER
      ? undefined
      : setTimeout(() => {
          const error = new Error(`Refinement took longer than its timeout of ${timeout} ms.`)
          controller.abort(Object.assign(error, { name: 'TimeoutError' }))
        }, timeout)
  const interrupted = new Promise<never>((_, reject) => {
    controller.signal.addEventListener('abort', () => reject(controller.signal.reason), { once: true })
  })
  // an action that throws at once leaves nobody who waits for it
  interrupted.catch(() => {})
  const stops = signals.map((signal) => onAborted(signal, () => controller.abort(signal.reason)))
  try {
    return await Promise.race([action(controller.signal), interrupted])
  } finally {
    clearTimeout(timer)
    for (const stop of stops) stop()
  }
}

/** How many causes are remembered; then all are forgotten, and said again. */
const CAUSES = 100

/** A warning on the console, once for each cause. */
function warnOnce(): (failure: RefinementFailure) => void {
  const said = new Set<string>()
  return ({ error, documents }) => {
    const cause = error instanceof Error ? `${error.name}: ${error.message}` : String(error)
    if (said.has(cause)) return
    if (said.size >= CAUSES) said.clear()
    said.add(cause)
    const what = documents === 1 ? 'A document goes' : `${documents} documents go`
    console.warn(`canopy-encoder: ${what} on unrefined. ${cause} (This is said once for each cause; see "onError".)`)
  }
}

import { type FileHandle, open } from 'node:fs/promises'
import { brotliDecompressSync, gunzipSync } from 'node:zlib'
import type { AsyncBuffer, Compressors, FileMetaData, RowGroup, SchemaElement } from 'hyparquet'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import type { JsonRecord, ReadOptions } from './jsonl.ts'
import { checkPages } from './parquet-pages.ts'

const MIB = 1024 * 1024

/** What a file may ask for before it counts as damaged, or as no data set for records: memory stays below a few times these. */
const LIMITS = {
  footerBytes: 64 * MIB,
  /** Of the columns that are read, in one row group, as they lie in the file. */
  storedBytes: 1024 * MIB,
  /** Of a row group that is read at once, unpacked. */
  groupBytes: 1024 * MIB,
  /** Values of one column that are unpacked at once. */
  values: 1 << 25,
  rows: 1e10,
}

/** Unpacked bytes that one piece of a row group without lists is meant to have. */
const PIECE_BYTES = 32 * MIB

/** The first bytes of every Parquet file. */
export const PARQUET_MAGIC = 'PAR1'

/**
 * The rows of a Parquet file as records: `line` is the row's number (1-based). Columns of structs and lists become objects and
 * arrays; a null in an object is an absent field; a whole number beyond 2^53 is a string of its digits; bytes are base64.
 *
 * One row group is read at a time; where its columns are no lists, a piece of it, so that a file of one large row group is read
 * in little memory, too. Nothing in the file is trusted: its sizes and counts are compared with each other, with the file's size
 * and with limits before anything is unpacked.
 *
 * @param options `unread` leaves out columns by their path, `document.html`; lists have no part in the path
 * @throws InputError with file (and row) when the file is not there, damaged, encrypted, or asks for more memory than is sound.
 *   A row group that is damaged, or a row over `maxLineBytes`, goes to `onError` where that is given
 */
export async function* readParquet(file: string, options: ReadOptions = {}): AsyncGenerator<JsonRecord> {
  const handle = await open(file, 'r').catch((error: unknown) => {
    throw fileError(error, 'cannot read the file', file)
  })
  const report = (error: InputError): void => {
    if (options.onError === undefined) throw error
    options.onError(error)
  }
  try {
    const { size } = await handle.stat()
    const metadata = selected(await readMetadata(handle, file, size), options.unread ?? [])
    let before = 0
    for (const group of metadata.row_groups) {
      const rows = Number(group.num_rows)
      const buffer = createGroupBuffer(handle, size)
      try {
        for (const [from, to] of await planPieces(group, metadata, buffer)) {
          options.signal?.throwIfAborted()
          const values = await readRows(metadata, buffer, before + from, before + to)
          for (const [i, row] of values.entries()) {
            const line = before + from + i + 1
            const value = toRecord(row)
            const length = sizeOf(value)
            if (length > (options.maxLineBytes ?? Number.POSITIVE_INFINITY))
              report(
                new InputError(`the row has more than ${options.maxLineBytes} bytes; raise the limit`, { file, line }),
              )
            else yield { value, line, offset: line - 1, length }
          }
        }
      } catch (error) {
        if (error instanceof InputError && error.file !== undefined) throw error
        if (!(error instanceof Error) || error.name === 'AbortError') throw error
        const which = `rows ${before + 1} to ${before + rows} cannot be read`
        report(new InputError(`${which}: ${reasonOf(error)}`, { file, line: before + 1 }, error))
      }
      before += rows
    }
  } catch (error) {
    throw fileError(error, 'cannot read the file', file)
  } finally {
    await handle.close()
  }
}

/** A sentence of our own, or what the decoder made of bytes that are not what they should be. */
function reasonOf(error: Error): string {
  return error instanceof InputError ? error.message : `the file is damaged (${error.message.replace(/^parquet /, '')})`
}

async function readMetadata(handle: FileHandle, file: string, size: number): Promise<FileMetaData> {
  const damaged = (why: string, cause?: unknown): InputError =>
    new InputError(`no whole Parquet file: ${why}; it may be damaged or cut off, fetch it again`, { file }, cause)
  const head = await readBytes(handle, 0, Math.min(size, 4))
  if (head.toString('latin1') !== PARQUET_MAGIC) throw damaged(`it does not begin with "${PARQUET_MAGIC}"`)
  const tail = await readBytes(handle, Math.max(0, size - 8), Math.min(size, 8))
  if (size < 12 || tail.toString('latin1', 4) !== PARQUET_MAGIC) {
    const encrypted = tail.toString('latin1', 4) === 'PARE'
    throw damaged(encrypted ? 'it is encrypted' : `it does not end with "${PARQUET_MAGIC}"`)
  }
  const length = tail.readUInt32LE(0)
  if (length > size - 12) throw damaged(`its footer is said to have ${length} bytes, the file has ${size}`)
  if (length > LIMITS.footerBytes) throw damaged(`its footer has ${length} bytes, too many to be read`)
  const { parquetMetadata } = await import('hyparquet')
  const footer = await readBytes(handle, size - 8 - length, length + 8)
  let metadata: FileMetaData
  try {
    metadata = parquetMetadata(new Uint8Array(footer), { geoparquet: false })
  } catch (error) {
    throw damaged(`its footer cannot be read (${(error as Error).message})`, error)
  }
  const why = faultOf(metadata, size)
  if (why !== undefined) throw damaged(why)
  return metadata
}

/** What contradicts itself, or the file's size, in what the footer says. */
function faultOf(metadata: FileMetaData, size: number): string | undefined {
  if (metadata.schema.length < 2) return 'it has no columns'
  let sum = 0n
  for (const [i, group] of metadata.row_groups.entries()) {
    const name = `row group ${i + 1}`
    const rows = group.num_rows
    if (typeof rows !== 'bigint' || rows < 0n || rows > BigInt(LIMITS.rows))
      return `${name} is said to have ${rows} rows`
    sum += rows
    for (const { meta_data: column, file_path: elsewhere } of group.columns) {
      if (elsewhere !== undefined) return `${name} lies in another file`
      if (column === undefined) return `a column of ${name} has no description, or is encrypted`
      const path = column.path_in_schema.join('.')
      const start = Number(column.dictionary_page_offset || column.data_page_offset)
      const end = start + Number(column.total_compressed_size)
      if (!(start >= 4 && end >= start && end <= size - 8))
        return `the column "${path}" of ${name} is said to lie at bytes ${start} to ${end}, the file has ${size}`
      if (column.num_values < rows) return `the column "${path}" of ${name} has fewer values than rows`
    }
  }
  if (sum !== metadata.num_rows) return `it is said to have ${metadata.num_rows} rows, its row groups have ${sum}`
  return undefined
}

/** The names of a column's path without the ones that only say "list". */
const plainPath = (path: readonly string[]): string =>
  path.filter((name, i) => i === 0 || !/^(list|element|array|item|bag|array_element)$/.test(name)).join('.')

/** The same file as if the columns of these paths were not there. */
function selected(metadata: FileMetaData, unread: readonly string[]): FileMetaData {
  if (unread.length === 0) return metadata
  const left = (path: readonly string[]): boolean => unread.includes(plainPath(path))
  let at = 0
  // the schema is its tree in pre-order, each element with the number of its children
  const visit = (path: string[]): SchemaElement[] => {
    const element = metadata.schema[at++]
    if (element === undefined || path.length > 100) throw new InputError('the tree of its columns is broken')
    const here = at === 1 ? [] : [...path, element.name]
    const count = element.num_children ?? 0
    if (count === 0) return left(here) ? [] : [element]
    const children: SchemaElement[][] = []
    for (let i = 0; i < count; i++) children.push(visit(here))
    const kept = children.filter((child) => child.length > 0)
    if (here.length > 0 && (kept.length === 0 || left(here))) return []
    return [{ ...element, num_children: kept.length }, ...kept.flat()]
  }
  const schema = visit([])
  const groups = metadata.row_groups.map((group) => ({
    ...group,
    columns: group.columns.filter(
      ({ meta_data: column }) => column !== undefined && !leftWithParents(column.path_in_schema, left),
    ),
  }))
  return { ...metadata, schema, row_groups: groups }
}

const leftWithParents = (path: readonly string[], left: (path: readonly string[]) => boolean): boolean =>
  path.some((_, i) => left(path.slice(0, i + 1)))

/**
 * Checks the pages of a row group and says in which pieces of rows it is read: in one when it has lists, whose pages begin
 * anywhere.
 *
 * @throws InputError, or whatever the decoder throws at damaged pages
 */
async function planPieces(group: RowGroup, metadata: FileMetaData, buffer: GroupBuffer): Promise<[number, number][]> {
  const rows = Number(group.num_rows)
  if (rows === 0) return []
  const columns = group.columns.flatMap(({ meta_data: column }) => column ?? [])
  const stored = columns.reduce((sum, column) => sum + Number(column.total_compressed_size), 0)
  if (stored > LIMITS.storedBytes)
    throw new InputError(`the row group has ${stored} bytes, more than are read at once; write smaller row groups`)
  const lists = metadata.schema.some(({ repetition_type: repetition }) => repetition === 'REPEATED')
  const { getSchemaPath } = await import('hyparquet/src/schema.js')
  const compressors = await loadCompressors()
  let unpacked = 0
  for (const column of columns) {
    const start = Number(column.dictionary_page_offset || column.data_page_offset)
    const chunk = await buffer.slice(start, start + Number(column.total_compressed_size))
    const path = getSchemaPath(metadata.schema, column.path_in_schema).map(({ element }) => element)
    const { bytes, values } = await checkPages(chunk, column, path, compressors)
    unpacked += bytes
    const name = column.path_in_schema.join('.')
    if (values !== Number(column.num_values) || values < rows)
      throw new InputError(
        `the file is damaged: the column "${name}" is said to hold ${column.num_values} values, its pages hold ${values}`,
      )
    if (lists && values > LIMITS.values)
      throw new InputError(`the column "${name}" has ${values} values in the row group; write smaller row groups`)
  }
  if (lists && unpacked > LIMITS.groupBytes)
    throw new InputError(
      `the row group has ${unpacked} bytes unpacked, more than are read at once; write smaller row groups`,
    )
  const piece = lists ? rows : Math.max(1, Math.min(rows, Math.floor((PIECE_BYTES / Math.max(1, unpacked)) * rows)))
  const pieces: [number, number][] = []
  for (let from = 0; from < rows; from += piece) pieces.push([from, Math.min(rows, from + piece)])
  return pieces
}

interface GroupBuffer extends AsyncBuffer {
  slice(start: number, end?: number): Promise<ArrayBuffer>
}

/** The file for one row group: what was read once is kept, since every piece asks for the same columns again. */
function createGroupBuffer(handle: FileHandle, size: number): GroupBuffer {
  const kept = new Map<string, Promise<ArrayBuffer>>()
  return {
    byteLength: size,
    slice(start, end = size) {
      const key = `${start}-${end}`
      let bytes = kept.get(key)
      if (bytes === undefined) {
        bytes = readBytes(handle, start, end - start).then((read) => read.buffer as ArrayBuffer)
        kept.set(key, bytes)
      }
      return bytes
    },
  }
}

/** Bytes in an ArrayBuffer of their own. */
async function readBytes(handle: FileHandle, start: number, length: number): Promise<Buffer> {
  if (!(start >= 0 && length >= 0 && length <= 2 * LIMITS.storedBytes)) throw new RangeError('no part of the file')
  const bytes = Buffer.from(new ArrayBuffer(length))
  let read = 0
  while (read < length) {
    const { bytesRead } = await handle.read(bytes, read, length - read, start + read)
    if (bytesRead === 0) throw new RangeError('the file ends early')
    read += bytesRead
  }
  return bytes
}

async function readRows(
  metadata: FileMetaData,
  file: AsyncBuffer,
  rowStart: number,
  rowEnd: number,
): Promise<Record<string, unknown>[]> {
  const { parquetReadObjects } = await import('hyparquet')
  const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })
  const text = (bytes: Uint8Array | undefined): unknown => (bytes === undefined ? undefined : utf8.decode(bytes))
  const rows = await parquetReadObjects({
    file,
    metadata,
    rowStart,
    rowEnd,
    compressors: await loadCompressors(),
    geoparquet: false,
    parsers: { stringFromBytes: text, jsonFromBytes: text },
  })
  if (rows.length !== rowEnd - rowStart) throw new RangeError('its pages hold fewer rows than they should')
  return rows
}

/** Decompressors that write no more than the page is said to have. */
async function loadCompressors(): Promise<Compressors> {
  const { compressors, decompressZstd } = await import('hyparquet-compressors')
  const limited = (length: number): { maxOutputLength: number } => ({ maxOutputLength: Math.max(1, length) })
  return {
    SNAPPY: compressors.SNAPPY!,
    LZ4: compressors.LZ4!,
    LZ4_RAW: compressors.LZ4_RAW!,
    GZIP: (input, length) => gunzipSync(input, limited(length)),
    BROTLI: (input, length) => brotliDecompressSync(input, limited(length)),
    ZSTD: (input, length) => decompressZstd(input, new Uint8Array(length)),
  }
}

/** A row's value as JSON would give it; nulls of objects are absent. */
function toRecord(value: unknown): unknown {
  if (value === undefined || value === null) return null
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : String(value)
  if (typeof value !== 'object') return value
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? null : value.toISOString()
  if (value instanceof Uint8Array) return Buffer.from(value).toString('base64')
  if (Array.isArray(value)) return value.map(toRecord)
  if (ArrayBuffer.isView(value)) return Array.from(value as unknown as ArrayLike<number | bigint>, toRecord)
  const record: Record<string, unknown> = {}
  for (const [key, field] of Object.entries(value)) {
    // a column may be called "__proto__"
    if (field !== null && field !== undefined)
      Object.defineProperty(record, key, {
        value: toRecord(field),
        enumerable: true,
        writable: true,
        configurable: true,
      })
  }
  return record
}

/** About how long the value is as JSON. */
function sizeOf(value: unknown): number {
  if (typeof value === 'string') return value.length + 2
  if (Array.isArray(value)) return value.reduce((sum: number, element) => sum + sizeOf(element) + 1, 2)
  if (value === null || typeof value !== 'object') return 4
  return Object.entries(value).reduce((sum, [key, field]) => sum + key.length + 4 + sizeOf(field), 2)
}

/** What a Parquet file says of itself: how many rows it has, and the texts that its writer left under names of its own. */
export interface ParquetNotes {
  rows: number
  notes: Map<string, string>
}

/**
 * Reads a Parquet file's footer.
 *
 * @throws InputError when the file is not there, damaged or encrypted
 */
export async function readParquetNotes(file: string): Promise<ParquetNotes> {
  const handle = await open(file, 'r').catch((error: unknown) => {
    throw fileError(error, 'cannot read the file', file)
  })
  try {
    const metadata = await readMetadata(handle, file, (await handle.stat()).size)
    const pairs = metadata.key_value_metadata ?? []
    return { rows: Number(metadata.num_rows), notes: new Map(pairs.map(({ key, value }) => [key, value ?? ''])) }
  } catch (error) {
    throw fileError(error, 'cannot read the file', file)
  } finally {
    await handle.close()
  }
}

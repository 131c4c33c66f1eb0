import { isUtf8 } from 'node:buffer'
import { createReadStream } from 'node:fs'
import { open } from 'node:fs/promises'
import { createGunzip } from 'node:zlib'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import { parseJsonLossless } from './json.ts'
import { PARQUET_MAGIC, readParquet } from './parquet.ts'

/** One JSON value of a file, and where it stands. */
export interface JsonRecord {
  value: unknown
  /** 1-based line on which it begins. */
  line: number
  /** Bytes from the file's start (of the decompressed content, for `.gz`). */
  offset: number
  /** Bytes, without the line's end. */
  length: number
}

export interface ReadOptions {
  /** What errors call the file; its path where absent. Of JSON Lines only. */
  name?: string | undefined
  /** The most bytes that one record may have; bounds the memory. Default {@link MAX_RECORD_BYTES}. */
  maxLineBytes?: number
  /** Given a broken record's error, lets reading go on behind it; without it the error is thrown. */
  onError?: (error: InputError) => void
  signal?: AbortSignal | undefined
  /** Bytes read at once. Default 1 MiB. */
  chunkBytes?: number
  /** Of a Parquet file: columns that nobody asks for, by their path (`document.html`). */
  unread?: readonly string[]
}

/** 64 MiB: the largest pages of the official Natural Questions files have a few. */
export const MAX_RECORD_BYTES = 64 * 1024 * 1024

const LINE_FEED = 0x0a
const OPEN_BRACKET = 0x5b
const CLOSE_BRACKET = 0x5d
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d
const COMMA = 0x2c
const QUOTE = 0x22
const BACKSLASH = 0x5c

const isBlank = (byte: number): boolean => byte === 0x20 || byte === LINE_FEED || byte === 0x0d || byte === 0x09

/** A file's bytes, decompressed when its name ends with `.gz`, without a UTF-8 byte order mark. */
async function* readBytes(
  file: string,
  { signal, chunkBytes }: ReadOptions,
): AsyncGenerator<{ bytes: Buffer; at: number }> {
  const raw = createReadStream(file, { highWaterMark: chunkBytes ?? 1 << 20 })
  const stream = file.endsWith('.gz') ? raw.pipe(createGunzip()) : raw
  if (stream !== raw) raw.on('error', (error) => stream.destroy(error))
  /** Less than a byte order mark, at the file's start. */
  let head: Buffer | undefined = Buffer.alloc(0)
  let at = 0
  try {
    for await (const chunk of stream) {
      signal?.throwIfAborted()
      let bytes = chunk as Buffer
      if (head !== undefined) {
        bytes = Buffer.concat([head, bytes])
        head = bytes.length < 3 ? bytes : undefined
        if (head !== undefined) continue
        at = markBytes(bytes, file)
        bytes = bytes.subarray(at)
      }
      yield { bytes, at }
      at += bytes.length
    }
    if (head !== undefined && head.length > 0) {
      markBytes(head, file)
      yield { bytes: head, at }
    }
  } catch (error) {
    if (String((error as NodeJS.ErrnoException).code).startsWith('Z_')) {
      throw new InputError(`the compressed file is damaged or cut off (${(error as Error).message})`, { file }, error)
    }
    throw fileError(error, 'cannot read the file', file)
  } finally {
    raw.destroy()
    stream.destroy()
  }
}

/** How many bytes of UTF-8 byte order mark a file begins with. */
function markBytes(head: Buffer, file: string): number {
  if ((head[0] === 0xff && head[1] === 0xfe) || (head[0] === 0xfe && head[1] === 0xff)) {
    throw new InputError('the file is UTF-16; UTF-8 was expected, convert it first', { file, line: 1 })
  }
  return head[0] === 0xef && head[1] === 0xbb && head[2] === 0xbf ? 3 : 0
}

/** The value that `bytes` spell, or the error that says why they spell none. */
function decode(
  bytes: Buffer,
  file: string,
  line: number,
  expected: string,
  atEnd: boolean,
): { value: unknown } | InputError {
  if (!isUtf8(bytes)) {
    return new InputError(`not UTF-8 (byte ${firstInvalidByte(bytes) + 1} of the record); convert the file to UTF-8`, {
      file,
      line,
    })
  }
  try {
    return { value: parseJsonLossless(bytes.toString('utf8')) }
  } catch (error) {
    const cut = atEnd ? '; the file ends here and may be cut off' : ''
    return new InputError(
      `not valid JSON: ${(error as Error).message}; ${expected} was expected${cut}`,
      { file, line },
      error,
    )
  }
}

/** The index of the first byte that is no UTF-8, found by halving: a prefix is valid up to a character cut by its end. */
function firstInvalidByte(bytes: Buffer): number {
  let low = 0
  let high = bytes.length
  while (low < high) {
    const middle = (low + high + 1) >> 1
    const valid = [0, 1, 2, 3].some((cut) => cut <= middle && isUtf8(bytes.subarray(0, middle - cut)))
    if (valid) low = middle
    else high = middle - 1
  }
  while (low > 0 && !isUtf8(bytes.subarray(0, low))) low--
  return low
}

function tooLong(limit: number, file: string, line: number): InputError {
  return new InputError(
    `the record has more than ${limit} bytes; one JSON object a line was expected (or raise the limit)`,
    { file, line },
  )
}

/**
 * The JSON values of a file with one on each line (JSON Lines), in order; blank lines are skipped. Memory is bounded by the
 * longest line allowed. Whole numbers beyond 2^53 arrive as strings of their digits.
 *
 * @throws InputError with file and line: a missing file, a line that is no JSON or no UTF-8, a line over the limit
 */
export async function* readJsonLines(file: string, options: ReadOptions = {}): AsyncGenerator<JsonRecord> {
  const name = options.name ?? file
  const limit = options.maxLineBytes ?? MAX_RECORD_BYTES
  const fail = (error: InputError): void => {
    if (options.onError === undefined) throw error
    options.onError(error)
  }
  let parts: Buffer[] = []
  let length = 0
  let line = 1
  let start: number | undefined
  let end = 0
  const finish = (atEnd: boolean): JsonRecord | undefined => {
    const offset = start ?? end
    const place = line
    const bytes = parts.length === 1 ? parts[0]! : Buffer.concat(parts)
    const total = length
    parts = []
    length = 0
    start = undefined
    line++
    if (total > limit) {
      fail(tooLong(limit, name, place))
      return undefined
    }
    if (bytes.every(isBlank)) return undefined
    const decoded = decode(bytes, name, place, 'one JSON object a line', atEnd)
    if (decoded instanceof InputError) {
      fail(decoded)
      return undefined
    }
    return { value: decoded.value, line: place, offset, length: total }
  }
  for await (const { bytes, at } of readBytes(file, options)) {
    for (let from = 0; from < bytes.length; ) {
      const feed = bytes.indexOf(LINE_FEED, from)
      const to = feed < 0 ? bytes.length : feed
      start ??= at + from
      length += to - from
      if (length <= limit) parts.push(bytes.subarray(from, to))
      else parts = []
      from = to + 1
      if (feed < 0) continue
      const record = finish(false)
      if (record !== undefined) yield record
    }
    end = at + bytes.length
  }
  if (length > 0) {
    const record = finish(true)
    if (record !== undefined) yield record
  }
}

/**
 * The elements of a file that is one JSON array, in order, each parsed by itself: the file is never held whole. Memory is
 * bounded by the largest element allowed. Whole numbers beyond 2^53 arrive as strings of their digits.
 *
 * An element whose brackets do not match, or that the file's end cuts off, ends the reading: what follows it cannot be told
 * apart.
 *
 * @throws InputError with file and the line on which the element begins
 */
export async function* readJsonArray(file: string, options: ReadOptions = {}): AsyncGenerator<JsonRecord> {
  const limit = options.maxLineBytes ?? MAX_RECORD_BYTES
  const fail = (error: InputError): void => {
    if (options.onError === undefined) throw error
    options.onError(error)
  }
  let state: 'before' | 'element' | 'after' = 'before'
  let line = 1
  let depth = 0
  let inString = false
  let escaped = false
  let parts: Buffer[] = []
  let length = 0
  let start = 0
  let startLine = 0
  let count = 0
  /** Whether the element has shown a byte that is not white space. */
  let begun = false

  const finish = (): JsonRecord | undefined => {
    const bytes = parts.length === 1 ? parts[0]! : Buffer.concat(parts)
    const total = length
    parts = []
    length = 0
    begun = false
    count++
    if (total > limit) {
      fail(tooLong(limit, file, startLine))
      return undefined
    }
    const decoded = decode(bytes, file, startLine, 'one JSON object', false)
    if (decoded instanceof InputError) {
      fail(decoded)
      return undefined
    }
    return { value: decoded.value, line: startLine, offset: start, length: total }
  }

  for await (const { bytes, at } of readBytes(file, options)) {
    let from = 0
    const take = (to: number): void => {
      if (!begun) return
      length += to - from
      if (length <= limit) parts.push(bytes.subarray(from, to))
      else parts = []
    }
    for (let i = 0; i < bytes.length; i++) {
      const byte = bytes[i]!
      if (byte === LINE_FEED) line++
      if (inString) {
        if (escaped) escaped = false
        else if (byte === BACKSLASH) escaped = true
        else if (byte === QUOTE) inString = false
        continue
      }
      if (isBlank(byte)) continue
      if (state === 'before') {
        if (byte !== OPEN_BRACKET) {
          throw new InputError('a JSON array was expected, "[" its first character', { file, line })
        }
        state = 'element'
        continue
      }
      if (state === 'after') {
        return fail(new InputError('the file goes on after the end of its JSON array', { file, line }))
      }
      if (depth === 0 && (byte === COMMA || byte === CLOSE_BRACKET)) {
        if (begun) {
          take(i)
          const record = finish()
          if (record !== undefined) yield record
        } else if (byte === COMMA || count > 0) {
          fail(new InputError('an element of the array is missing before this comma or bracket', { file, line }))
        }
        if (byte === CLOSE_BRACKET) state = 'after'
        continue
      }
      if (!begun) {
        begun = true
        from = i
        start = at + i
        startLine = line
      }
      if (byte === QUOTE) inString = true
      else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++
      else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) {
        depth--
        if (depth < 0) return fail(new InputError('a closing bracket has no opening one', { file, line }))
      }
    }
    take(bytes.length)
  }
  if (state === 'before') throw new InputError('the file is empty; a JSON array was expected', { file })
  if (state === 'element') {
    const place = begun ? { file, line: startLine } : { file, line }
    fail(
      new InputError(
        'the file ends inside its JSON array: it is cut off, or a bracket or quote is missing here',
        place,
      ),
    )
  }
}

/**
 * The records of a file in any form: a Parquet file's rows when it is one by its name or its first bytes, a JSON array when its
 * first visible character is `[`, else JSON Lines.
 *
 * @throws InputError as {@link readParquet}, {@link readJsonLines} and {@link readJsonArray} do
 */
export async function* readRecords(file: string, options: ReadOptions = {}): AsyncGenerator<JsonRecord> {
  if (file.endsWith('.parquet') || (await isParquet(file))) yield* readParquet(file, options)
  else if ((await firstVisibleByte(file, options)) === OPEN_BRACKET) yield* readJsonArray(file, options)
  else yield* readJsonLines(file, options)
}

async function isParquet(file: string): Promise<boolean> {
  try {
    const handle = await open(file, 'r')
    try {
      const { buffer, bytesRead } = await handle.read(Buffer.alloc(PARQUET_MAGIC.length), 0, PARQUET_MAGIC.length, 0)
      return buffer.toString('latin1', 0, bytesRead) === PARQUET_MAGIC
    } finally {
      await handle.close()
    }
  } catch (error) {
    throw fileError(error, 'cannot read the file', file)
  }
}

async function firstVisibleByte(file: string, options: ReadOptions): Promise<number | undefined> {
  for await (const { bytes } of readBytes(file, options)) {
    const found = bytes.find((byte) => !isBlank(byte))
    if (found !== undefined) return found
  }
  return undefined
}

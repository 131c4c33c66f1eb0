import { isUtf8 } from 'node:buffer'
import { open, readFile, stat } from 'node:fs/promises'
import { InputError } from '../../support/errors.ts'
import { fileError } from '../../support/files.ts'
import { parseJsonLossless } from '../json.ts'
import { type JsonRecord, readRecords } from '../jsonl.ts'
import type { ImportJob } from './common.ts'

type Reading = ImportJob['reading']

/**
 * A file that is one JSON value, as a whole.
 *
 * @throws InputError with the file (and line 1 where its content is at fault): not there, over the size limit, not UTF-8, no
 *   JSON
 */
export async function readDocument(file: string, { maxLineBytes }: Reading): Promise<unknown> {
  const place = { file, line: 1 }
  let bytes: Buffer
  try {
    const { size } = await stat(file)
    if (size > maxLineBytes) {
      throw new InputError(`the file has more than ${maxLineBytes} bytes; raise the limit of a record`, place)
    }
    bytes = await readFile(file)
  } catch (error) {
    throw fileError(error, 'cannot read the file', file)
  }
  if (!isUtf8(bytes)) throw new InputError('not UTF-8; convert the file to UTF-8', place)
  try {
    return parseJsonLossless(bytes.toString('utf8').replace(/^\ufeff/, ''))
  } catch (error) {
    throw new InputError(`not valid JSON: ${(error as Error).message}; the file may be cut off`, place, error)
  }
}

/**
 * The records of a file: the elements of a JSON array, the lines of JSON Lines, or the one object that a file spells over
 * several lines.
 *
 * @throws InputError with file and line
 */
export async function* readAnyRecords(file: string, reading: Reading): AsyncGenerator<JsonRecord> {
  if (!(await isDocument(file))) {
    yield* readRecords(file, reading)
    return
  }
  let value: unknown
  try {
    value = await readDocument(file, reading)
  } catch (error) {
    if (!(error instanceof InputError) || reading.onError === undefined) throw error
    reading.onError(error)
    return
  }
  yield { value, line: 1, offset: 0, length: 0 }
}

/** Whether the first line is a brace alone, which no line of JSON Lines is. */
async function isDocument(file: string): Promise<boolean> {
  try {
    const handle = await open(file, 'r')
    try {
      const { buffer, bytesRead } = await handle.read(Buffer.alloc(64), 0, 64, 0)
      return /^(?:\ufeff)?\s*\{[ \t]*\r?\n/.test(buffer.toString('utf8', 0, bytesRead))
    } finally {
      await handle.close()
    }
  } catch (error) {
    throw fileError(error, 'cannot read the file', file)
  }
}

/** The first record of a file that can be read, to see what the file holds; `undefined` when there is none. */
export async function firstRecord(file: string, reading: Reading): Promise<unknown> {
  const { onError: _, ...rest } = reading
  for await (const { value } of readAnyRecords(file, { ...rest, onError: () => {} })) return value
  return undefined
}

import { type FileHandle, open, rm } from 'node:fs/promises'
import { InputError } from '../../support/errors.ts'
import { fileError, openLineWriter, temporaryName } from '../../support/files.ts'
import { sha256 } from '../hashes.ts'
import { createColumn, createKeyTable } from '../ids.ts'
import { readAt } from '../index-file.ts'
import { canonicalJson } from '../json.ts'
import type { Place } from '../schema.ts'

/**
 * Values laid aside on the disk until a question names them: tables and passages often come by the ten thousand in files of
 * their own, and most are never named. Memory: about 80 bytes for each.
 */
export interface Shelf {
  /**
   * Lays a value aside; an equal one under the same key is there once.
   *
   * @param what the kind of thing and its id, for the message
   * @throws InputError when the key is there with another value
   */
  put(key: string, value: unknown, place: Place, what: string): Promise<void>
  /** The value and where it came from; `undefined` when there is none. */
  get(key: string): Promise<{ value: unknown; place: Place } | undefined>
  /** Removes everything. */
  close(): Promise<void>
}

/** Opens an empty shelf in a temporary file beside `output`. */
export async function openShelf(output: string): Promise<Shelf> {
  const path = temporaryName(output)
  const lines = await openLineWriter(path)
  const keys = createKeyTable()
  const [offsets, lengths, contents, places] = [createColumn(0), createColumn(0), createColumn(0), createColumn(0)]
  const files: string[] = []
  let reader: FileHandle | undefined
  const placeOf = (entry: number): Place => {
    const packed = places.get(entry)
    return { file: files[Math.floor(packed / 2 ** 32)]!, line: packed % 2 ** 32 }
  }
  return {
    async put(key, value, place, what) {
      const { entry, isNew } = keys.add(key)
      const content = sha256(canonicalJson(value)).readUIntLE(0, 6)
      if (!isNew) {
        if (contents.get(entry) === content) return
        const { file, line } = placeOf(entry)
        throw new InputError(`${what} has another content than at ${file}:${line}`, place)
      }
      if (files.at(-1) !== place.file) files.push(place.file)
      places.set(entry, (files.length - 1) * 2 ** 32 + (place.line ?? 1))
      contents.set(entry, content)
      offsets.set(entry, lines.bytes)
      lengths.set(entry, (await lines.write(JSON.stringify(value))) - 1)
    },
    async get(key) {
      const entry = keys.find(key)
      if (entry < 0) return undefined
      await lines.flush()
      try {
        reader ??= await open(path, 'r')
        const bytes = await readAt(reader, offsets.get(entry), lengths.get(entry))
        return { value: JSON.parse(bytes.toString('utf8')), place: placeOf(entry) }
      } catch (error) {
        throw fileError(error, 'cannot read the temporary file', path)
      }
    },
    async close() {
      await reader?.close().catch(() => {})
      await lines.abandon()
      await rm(path, { force: true })
    },
  }
}

import {
  closeSync,
  fstatSync,
  fsyncSync,
  ftruncateSync,
  futimesSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { setImmediate } from 'node:timers/promises'
import { crc32 } from 'node:zlib'
import { InputError } from '../support/errors.ts'
import { fileError, temporaryName } from '../support/files.ts'
import { KeyIndex, tagOf } from './key-index.ts'
import { type EmbeddingSpace, KEY_BYTES } from './store.ts'

const MAGIC = Buffer.from('CANOPYE1')
/** Magic, fingerprint (32 bytes), dimension (4 bytes), checksum (4 bytes). */
const HEADER_BYTES = 48
/** What the index beside the file has of a record: 4 bytes of its key, 4 of its last use. */
export const INDEX_BYTES = 8
const INDEX_MAGIC = Buffer.from('CANOPYI1')
/** Magic, fingerprint, dimension, records, the last record's checksum, checksum of the rest. */
const INDEX_HEADER_BYTES = 56
/** Bytes of a file without records, with its index. */
export const EMPTY_BYTES = HEADER_BYTES + INDEX_HEADER_BYTES
const SCAN_BYTES = 1 << 20
/** Records that lie no further apart are read at once. */
const GAP_BYTES = 1 << 14

/** Bytes of an entry: key, float32 numbers, checksum. */
export const recordBytes = (dimension: number): number => KEY_BYTES + 4 * dimension + 4

export const now = (): number => Math.floor(Date.now() / 1000)

/** A record that is asked for. */
export interface Wanted {
  key: Uint8Array
  record: number
}

/**
 * One file of embeddings: a header that names its space, then records, each with a checksum. It only grows, except that its writer
 * may put a shorter one in its place. Beside it may lie an index, which saves reading the whole file when it is opened; what it says
 * is checked by every record that is read.
 */
export interface RecordFile {
  readonly path: string
  readonly index: KeyIndex
  /** How many records it has up to the last right one. */
  readonly records: number
  /** Bytes that it takes, with its index. */
  readonly bytes: number
  /** What tells this file from another one of its name. */
  readonly inode: bigint
  /** Indexes what has come since; a writer cuts what is no record. */
  scan(): Promise<void>
  /** Gives each record that is right and has its key to `take`, with its place in `wanted`. */
  read(wanted: readonly Wanted[], take: (place: number, embedding: Float32Array) => void): void
  /** Appends embeddings, float32 [keys, dimension]. What was there stays as it was when it fails. */
  append(keys: readonly Uint8Array[], embeddings: Float32Array): void
  /** Appends records as another file of the space has them. */
  copyFrom(other: RecordFile, records: Uint32Array): Promise<void>
  /** The bytes of records `[from, to)`. */
  block(from: number, to: number): Buffer
  sync(): void
  /** Takes another file's place. */
  rename(path: string): void
  /** Sets the time of the file's last use to now. */
  touch(): void
  /** Writes the index beside the file. */
  saveIndex(): void
  close(): void
}

/**
 * Opens a file of embeddings.
 *
 * @param use `write`, by its one writer, makes the file where it is missing
 * @throws InputError when it cannot be opened, and for one of another space or that is no such file
 */
export function openRecordFile(
  path: string,
  space: EmbeddingSpace,
  use: 'read' | 'write',
  maxEntries: number,
): RecordFile {
  const guard = <T>(doing: string, action: () => T): T => {
    try {
      return action()
    } catch (error) {
      throw fileError(error, doing, path)
    }
  }
  const { dimension } = space
  const bytesOfRecord = recordBytes(dimension)
  const header = headerOf(space)
  const fd = guard('cannot open the embedding store', () => openSync(path, use === 'write' ? 'a+' : 'r'))
  let index = new KeyIndex()
  let records = 0
  let known = false
  const { ino } = fstatSync(fd, { bigint: true })
  const offsetOf = (record: number): number => HEADER_BYTES + record * bytesOfRecord
  const readAt = (buffer: Uint8Array, bytes: number, position: number): number => {
    let done = 0
    while (done < bytes) {
      const read = readSync(fd, buffer, done, bytes - done, position + done)
      if (read === 0) break
      done += read
    }
    return done
  }

  const checkHeader = (size: number): boolean => {
    const found = Buffer.alloc(HEADER_BYTES)
    const read = readAt(found, Math.min(size, HEADER_BYTES), 0)
    if (read === HEADER_BYTES && found.equals(header)) return true
    // a writer that died with the first bytes, or a machine before they were on the disk: there is no record
    const begun = read < HEADER_BYTES && found.subarray(0, read).equals(header.subarray(0, read))
    if (begun || found.every((byte) => byte === 0)) return false
    throw foreignHeader(found, space, path)
  }
  const loadIndex = (size: number): void => {
    const saved = readIndex(`${path}.index`, header)
    if (saved === undefined || offsetOf(saved.records) > size || saved.records === 0) return
    const end = Buffer.alloc(4)
    if (readAt(end, 4, offsetOf(saved.records) - 4) < 4 || end.readUInt32LE(0) !== saved.last) return
    saved.times.forEach((time, record) => {
      if (time !== 0 && index.size < maxEntries) index.add(saved.tags[record] as number, record, time)
    })
    records = saved.records
  }
  const append = (block: Buffer): void =>
    guard('cannot write the embedding store', () => {
      try {
        for (let done = 0; done < block.length; ) done += writeSync(fd, block, done)
      } catch (error) {
        ftruncateSync(fd, offsetOf(records))
        throw error
      }
    })

  const file: RecordFile = {
    get path() {
      return path
    },
    inode: ino,
    get index() {
      return index
    },
    get records() {
      return records
    },
    get bytes() {
      return EMPTY_BYTES + (bytesOfRecord + INDEX_BYTES) * records
    },
    async scan() {
      const { size, mtimeMs } = guard('cannot read the embedding store', () => fstatSync(fd))
      if (!guard('cannot read the embedding store', () => checkHeader(size))) {
        if (use === 'write')
          guard('cannot write the embedding store', () => {
            ftruncateSync(fd, 0)
            writeSync(fd, header)
          })
        return
      }
      if (!known) guard('cannot read the embedding store', () => loadIndex(size))
      known = true
      if (size < offsetOf(records)) {
        index = new KeyIndex()
        records = 0
      }
      const time = Math.max(1, Math.min(now(), Math.floor(mtimeMs / 1000)))
      const perRead = Math.max(1, Math.floor(SCAN_BYTES / bytesOfRecord))
      const block = Buffer.alloc(perRead * bytesOfRecord)
      const total = Math.floor((size - HEADER_BYTES) / bytesOfRecord)
      for (let first = records; first < total; first += perRead) {
        const count = Math.min(perRead, total - first)
        const read = guard('cannot read the embedding store', () =>
          readAt(block, count * bytesOfRecord, offsetOf(first)),
        )
        for (let i = 0; (i + 1) * bytesOfRecord <= read; i++) {
          const record = block.subarray(i * bytesOfRecord, (i + 1) * bytesOfRecord)
          if (!isRight(record)) continue
          records = first + i + 1
          if (index.size < maxEntries) index.add(tagOf(record), first + i, time)
        }
        // a large file takes seconds
        await setImmediate()
      }
      if (use === 'write' && size > offsetOf(records))
        guard('cannot write the embedding store', () => ftruncateSync(fd, offsetOf(records)))
    },
    read(wanted, take) {
      const order = wanted.map((_, place) => place).sort((a, b) => wanted[a]!.record - wanted[b]!.record)
      const time = now()
      for (let from = 0; from < order.length; ) {
        const first = wanted[order[from] as number]!.record
        let to = from
        let last = first
        for (; to < order.length; to++) {
          const { record } = wanted[order[to] as number]!
          const end = (record + 1 - first) * bytesOfRecord
          if ((record - last) * bytesOfRecord > GAP_BYTES || (to > from && end > SCAN_BYTES)) break
          last = record
        }
        const run = file.block(first, last + 1)
        for (const place of order.slice(from, to)) {
          const { key, record } = wanted[place] as Wanted
          const at = (record - first) * bytesOfRecord
          const bytes = run.subarray(at, at + bytesOfRecord)
          if (bytes.length < bytesOfRecord || !isRight(bytes) || bytes.compare(key, 0, KEY_BYTES, 0, KEY_BYTES) !== 0)
            continue
          const embedding = new Float32Array(dimension)
          new Uint8Array(embedding.buffer).set(bytes.subarray(KEY_BYTES, bytesOfRecord - 4))
          index.touch(record, time)
          take(place, embedding)
        }
        from = to
      }
    },
    block(from, to) {
      const bytes = Buffer.allocUnsafe((to - from) * bytesOfRecord)
      return bytes.subarray(
        0,
        guard('cannot read the embedding store', () => readAt(bytes, bytes.length, offsetOf(from))),
      )
    },
    append(keys, embeddings) {
      if (index.size + keys.length > maxEntries)
        throw new InputError(
          `The embedding store takes no more than ${maxEntries} embeddings, for its index is in memory. Prune it ("maxBytes"), or raise "maxEntries".`,
          { file: path },
        )
      const block = Buffer.alloc(keys.length * bytesOfRecord)
      keys.forEach((key, i) => {
        const at = i * bytesOfRecord
        const values = embeddings.subarray(i * dimension, (i + 1) * dimension)
        block.set(key, at)
        block.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), at + KEY_BYTES)
        block.writeUInt32LE(crc32(block.subarray(at, at + bytesOfRecord - 4)), at + bytesOfRecord - 4)
      })
      append(block)
      const time = now()
      for (const key of keys) index.add(tagOf(key), records++, time)
    },
    async copyFrom(other, chosen) {
      const { times } = other.index.arrays(other.records)
      for (let from = 0; from < chosen.length; ) {
        const first = chosen[from] as number
        let to = from + 1
        while (to < chosen.length && chosen[to] === first + to - from && (to + 1 - from) * bytesOfRecord <= SCAN_BYTES)
          to++
        const run = other.block(first, first + to - from)
        const right: Buffer[] = []
        const numbers: number[] = []
        for (let i = 0; (i + 1) * bytesOfRecord <= run.length; i++) {
          const record = run.subarray(i * bytesOfRecord, (i + 1) * bytesOfRecord)
          if (!isRight(record)) continue
          right.push(record)
          numbers.push(first + i)
        }
        append(right.length * bytesOfRecord === run.length ? run : Buffer.concat(right))
        for (const [i, record] of right.entries())
          index.add(tagOf(record), records++, times[numbers[i] as number] as number)
        from = to
        await setImmediate()
      }
    },
    sync: () => guard('cannot write the embedding store', () => fsyncSync(fd)),
    rename: (to) =>
      guard('cannot write the embedding store', () => {
        removeIndex(to)
        renameSync(path, to)
        path = to
      }),
    touch() {
      try {
        futimesSync(fd, new Date(), new Date())
      } catch {
        // somebody else's file: its last use is then its writer's
      }
    },
    saveIndex() {
      if (records === 0) return
      const { tags, times } = index.arrays(records)
      const end = Buffer.alloc(4)
      readAt(end, 4, offsetOf(records) - 4)
      // its checksum tells whether it is whole: nobody has to wait for the disk
      const beside = temporaryName(`${path}.index`)
      try {
        writeFileSync(beside, indexOf(header, records, end.readUInt32LE(0), tags, times))
        renameSync(beside, `${path}.index`)
      } catch (error) {
        rmSync(beside, { force: true })
        throw error
      }
    },
    close: () => closeSync(fd),
  }
  return file
}

/** The space that a file's header names; undefined where it is no file of embeddings. */
export function spaceIn(path: string): EmbeddingSpace | undefined {
  const header = Buffer.alloc(HEADER_BYTES)
  try {
    const fd = openSync(path, 'r')
    try {
      readSync(fd, header, 0, HEADER_BYTES, 0)
    } finally {
      closeSync(fd)
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw fileError(error, 'cannot read the embedding store', path)
  }
  return isHeader(header)
    ? { fingerprint: header.toString('hex', 8, 40), dimension: header.readUInt32LE(40) }
    : undefined
}

/** Removes a file with its index, the index first: it would name records of the next file. */
export function removeRecordFile(path: string): void {
  removeIndex(path)
  unlinkSync(path)
}

export function removeIndex(path: string): void {
  try {
    unlinkSync(`${path}.index`)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
}

function headerOf({ fingerprint, dimension }: EmbeddingSpace): Buffer {
  const header = Buffer.alloc(HEADER_BYTES)
  MAGIC.copy(header)
  Buffer.from(fingerprint, 'hex').copy(header, 8)
  header.writeUInt32LE(dimension, 40)
  header.writeUInt32LE(crc32(header.subarray(0, 44)), 44)
  return header
}

function isHeader(bytes: Buffer): boolean {
  return bytes.subarray(0, 8).equals(MAGIC) && bytes.readUInt32LE(44) === crc32(bytes.subarray(0, 44))
}

function foreignHeader(found: Buffer, { fingerprint, dimension, name }: EmbeddingSpace, path: string): InputError {
  const wayOut = 'Nothing was changed. Give another folder, or move the file away.'
  if (!isHeader(found))
    return new InputError(`The file does not begin as a file of embeddings does. ${wayOut}`, { file: path })
  const [theirs, numbers] = [found.toString('hex', 8, 40), found.readUInt32LE(40)]
  const ours = `${name === undefined ? '' : `${name}, `}fingerprint ${fingerprint}, ${dimension} numbers`
  return new InputError(
    `The file holds embeddings of another encoder (fingerprint ${theirs}, ${numbers} numbers) than the one that asks (${ours}). ${wayOut}`,
    { file: path },
  )
}

function isRight(record: Buffer): boolean {
  const end = record.length - 4
  return record.readUInt32LE(end) === crc32(record.subarray(0, end))
}

function indexOf(header: Buffer, records: number, last: number, tags: Uint32Array, times: Uint32Array): Buffer {
  const start = Buffer.alloc(INDEX_HEADER_BYTES)
  INDEX_MAGIC.copy(start)
  header.copy(start, 8, 8, 44)
  start.writeUInt32LE(records, 44)
  start.writeUInt32LE(last, 48)
  const bytes = Buffer.concat([start, bytesOf(tags), bytesOf(times)])
  bytes.writeUInt32LE(checksumOfIndex(bytes), 52)
  return bytes
}

/** An index that is whole and of this space; what is not, is not used. */
function readIndex(
  path: string,
  header: Buffer,
): { records: number; last: number; tags: Uint32Array; times: Uint32Array } | undefined {
  let bytes: Buffer
  try {
    bytes = readFileSync(path)
  } catch {
    return undefined
  }
  if (bytes.length < INDEX_HEADER_BYTES || !bytes.subarray(0, 8).equals(INDEX_MAGIC)) return undefined
  const records = bytes.readUInt32LE(44)
  if (bytes.length !== INDEX_HEADER_BYTES + INDEX_BYTES * records) return undefined
  if (!bytes.subarray(8, 44).equals(header.subarray(8, 44)) || bytes.readUInt32LE(52) !== checksumOfIndex(bytes))
    return undefined
  const numbers = new Uint32Array(new Uint8Array(bytes.subarray(INDEX_HEADER_BYTES)).buffer)
  return {
    records,
    last: bytes.readUInt32LE(48),
    tags: numbers.subarray(0, records),
    times: numbers.subarray(records),
  }
}

function checksumOfIndex(bytes: Buffer): number {
  return crc32(bytes.subarray(INDEX_HEADER_BYTES), crc32(bytes.subarray(0, 52)))
}

function bytesOf({ buffer, byteOffset, byteLength }: Uint32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

import {
  closeSync,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  unlinkSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { crc32 } from 'node:zlib'
import { fileError } from '../../support/files.ts'
import { KEY_BYTES } from '../input/sequence.ts'

const MAGIC = Buffer.from('CANOPYE1')
/** Magic, fingerprint (32 bytes), dimension (4 bytes), checksum (4 bytes). */
const HEADER_BYTES = 48
const SCAN_BYTES = 1 << 20

/**
 * Embeddings on disk, one append-only file for one fingerprint. A process that dies while writing loses at most what it was
 * writing: every record has a checksum, and a torn tail is cut when the file is opened next. A second process that opens the
 * file while another writes to it reads only.
 */
export interface EmbeddingCache {
  /** How many embeddings can be found. */
  readonly size: number
  /** Whether this process may add to the file. */
  readonly writable: boolean
  /** The embedding kept for a token sequence, float32 [dimension]. */
  get(key: Uint8Array): Float32Array | undefined
  /** Appends embeddings, float32 [keys, dimension]; keys that are known are left out. */
  add(keys: readonly Uint8Array[], embeddings: Float32Array): void
  close(): void
}

/**
 * Opens or creates the cache of one fingerprint (64 hexadecimal digits) in a folder. Embeddings of another fingerprint are
 * never read: the file's name and its header both carry it.
 *
 * @param options.maxEntries most embeddings to hold: 12 to 24 bytes of memory each; what comes beyond is not kept
 * @throws InputError when the folder or file cannot be read or written
 */
export function openEmbeddingCache(
  folder: string,
  fingerprint: string,
  dimension: number,
  options: { maxEntries?: number } = {},
): EmbeddingCache {
  if (!/^[0-9a-f]{64}$/.test(fingerprint)) throw new RangeError('A fingerprint has 64 hexadecimal digits')
  const file = join(folder, `${fingerprint}.embeddings`)
  const recordBytes = KEY_BYTES + 4 * dimension + 4
  const maxEntries = options.maxEntries ?? 1 << 22
  const guard = <T>(doing: string, action: () => T): T => {
    try {
      return action()
    } catch (error) {
      throw fileError(error, doing, file)
    }
  }

  const lock = guard('cannot open the embedding cache', () => {
    mkdirSync(folder, { recursive: true })
    return takeLock(`${file}.lock`)
  })
  const writable = lock !== undefined
  const header = headerOf(fingerprint, dimension)
  const index = new KeyIndex()
  let records = 0
  const fd = guard('cannot open the embedding cache', () => openSync(file, writable ? 'a+' : openForReading(file)))
  try {
    guard('cannot read the embedding cache', () => {
      const size = fstatSync(fd).size
      const found = Buffer.alloc(HEADER_BYTES)
      const intact =
        size >= HEADER_BYTES && readSync(fd, found, 0, HEADER_BYTES, 0) === HEADER_BYTES && found.equals(header)
      if (intact) records = scan(fd, size, recordBytes, maxEntries, index)
      if (!writable) return
      if (intact) ftruncateSync(fd, HEADER_BYTES + records * recordBytes)
      else {
        ftruncateSync(fd, 0)
        writeSync(fd, header)
      }
    })
  } catch (error) {
    closeSync(fd)
    lock?.release()
    throw error
  }

  const record = Buffer.alloc(recordBytes)
  let open = true
  return {
    get size() {
      return index.size
    },
    writable,
    get(key) {
      for (const at of index.find(key)) {
        const read = guard('cannot read the embedding cache', () =>
          readSync(fd, record, 0, recordBytes, HEADER_BYTES + at * recordBytes),
        )
        if (read !== recordBytes || !valid(record) || record.compare(key, 0, KEY_BYTES, 0, KEY_BYTES) !== 0) continue
        return new Float32Array(new Uint8Array(record.subarray(KEY_BYTES, recordBytes - 4)).buffer)
      }
      return undefined
    },
    add(keys, embeddings) {
      if (embeddings.length !== keys.length * dimension)
        throw new RangeError(`${keys.length} embeddings of ${dimension} are no ${embeddings.length} numbers`)
      if (!writable || !open) return
      const fresh: number[] = []
      const seen = new Set<string>()
      keys.forEach((key, i) => {
        const name = Buffer.from(key).toString('latin1')
        if (index.size + fresh.length >= maxEntries || seen.has(name) || this.get(key) !== undefined) return
        seen.add(name)
        fresh.push(i)
      })
      if (fresh.length === 0) return
      const block = Buffer.alloc(fresh.length * recordBytes)
      fresh.forEach((i, n) => {
        const at = n * recordBytes
        const values = embeddings.subarray(i * dimension, (i + 1) * dimension)
        block.set(keys[i] as Uint8Array, at)
        block.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), at + KEY_BYTES)
        block.writeUInt32LE(crc32(block.subarray(at, at + recordBytes - 4)), at + recordBytes - 4)
      })
      guard('cannot write the embedding cache', () => {
        try {
          for (let done = 0; done < block.length; ) done += writeSync(fd, block, done)
        } catch (error) {
          ftruncateSync(fd, HEADER_BYTES + records * recordBytes)
          throw error
        }
      })
      for (const i of fresh) index.add(keys[i] as Uint8Array, records++)
    },
    close() {
      if (!open) return
      open = false
      closeSync(fd)
      lock?.release()
    },
  }
}

function headerOf(fingerprint: string, dimension: number): Buffer {
  const header = Buffer.alloc(HEADER_BYTES)
  MAGIC.copy(header)
  Buffer.from(fingerprint, 'hex').copy(header, 8)
  header.writeUInt32LE(dimension, 40)
  header.writeUInt32LE(crc32(header.subarray(0, 44)), 44)
  return header
}

function valid(record: Buffer): boolean {
  const end = record.length - 4
  return record.readUInt32LE(end) === crc32(record.subarray(0, end))
}

/** Indexes the records whose checksum is right; returns how many records the file has up to the last right one. */
function scan(fd: number, size: number, recordBytes: number, maxEntries: number, index: KeyIndex): number {
  const perRead = Math.max(1, Math.floor(SCAN_BYTES / recordBytes))
  const block = Buffer.alloc(perRead * recordBytes)
  const total = Math.floor((size - HEADER_BYTES) / recordBytes)
  let last = 0
  for (let first = 0; first < total; first += perRead) {
    const count = Math.min(perRead, total - first)
    const read = readSync(fd, block, 0, count * recordBytes, HEADER_BYTES + first * recordBytes)
    for (let i = 0; i < count && (i + 1) * recordBytes <= read; i++) {
      const record = block.subarray(i * recordBytes, (i + 1) * recordBytes)
      if (!valid(record)) continue
      last = first + i + 1
      if (index.size < maxEntries) index.add(record.subarray(0, KEY_BYTES), first + i)
    }
  }
  return last
}

/**
 * Record numbers by key: open addressing over the key's first 8 bytes, 12 bytes a slot. Records of keys that share these are
 * told apart by reading them.
 */
class KeyIndex {
  size = 0
  private slots = 1 << 12
  private high = new Uint32Array(this.slots)
  private low = new Uint32Array(this.slots)
  /** Record number plus 1; 0 is an empty slot. */
  private records = new Uint32Array(this.slots)

  add(key: Uint8Array, record: number): void {
    if (2 * (this.size + 1) > this.slots) this.grow()
    const [high, low] = halves(key)
    this.put(high, low, record + 1)
    this.size++
  }

  *find(key: Uint8Array): Generator<number> {
    const [high, low] = halves(key)
    for (let at = low & (this.slots - 1); this.records[at] !== 0; at = (at + 1) & (this.slots - 1))
      if (this.high[at] === high && this.low[at] === low) yield (this.records[at] as number) - 1
  }

  private put(high: number, low: number, record: number): void {
    let at = low & (this.slots - 1)
    while (this.records[at] !== 0) at = (at + 1) & (this.slots - 1)
    this.high[at] = high
    this.low[at] = low
    this.records[at] = record
  }

  private grow(): void {
    const { high, low, records } = this
    this.slots *= 2
    this.high = new Uint32Array(this.slots)
    this.low = new Uint32Array(this.slots)
    this.records = new Uint32Array(this.slots)
    records.forEach((record, i) => {
      if (record !== 0) this.put(high[i] as number, low[i] as number, record)
    })
  }
}

function halves(key: Uint8Array): [number, number] {
  const view = new DataView(key.buffer, key.byteOffset, key.byteLength)
  return [view.getUint32(0, true), view.getUint32(4, true)]
}

/** Opening for reading a file that may not be there yet: an empty one stands for it. */
function openForReading(file: string): 'r' | 'a+' {
  try {
    closeSync(openSync(file, 'r'))
    return 'r'
  } catch {
    return 'a+'
  }
}

/** This process, all of its threads: its number and start, for numbers are used again, as in containers, where they start over. */
const THIS_PROCESS = `${process.pid} ${performance.timeOrigin}`

/** A lock file that names this process; undefined while a living process holds it. */
function takeLock(file: string): { release(): void } | undefined {
  for (let attempt = 0; attempt < 2; attempt++) {
    try {
      const fd = openSync(file, 'wx')
      writeSync(fd, THIS_PROCESS)
      closeSync(fd)
      return { release: () => removeQuietly(file) }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
      if (isHeld(file)) return undefined
      removeQuietly(file)
    }
  }
  return undefined
}

function isHeld(file: string): boolean {
  try {
    const content = readFileSync(file, 'utf8')
    const holder = Number.parseInt(content, 10)
    // a lock without a number in it is being written at this moment, or its writer died in it
    if (!(holder >= 1)) return false
    if (holder === process.pid) return content === THIS_PROCESS
    process.kill(holder, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

function removeQuietly(file: string): void {
  try {
    unlinkSync(file)
  } catch {
    // somebody else was faster
  }
}

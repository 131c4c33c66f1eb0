import { type FileHandle, mkdtemp, open, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { InputError } from '../support/errors.ts'
import { fileError, writeFileAtomic } from '../support/files.ts'
import { hashedKey, KEY_BYTES } from './hashes.ts'
import { readJsonLines } from './jsonl.ts'

/**
 * Where each item's line stands in `items.jsonl`, as a file of records sorted by the hash of the item's id:
 *
 * header (64 bytes): "CANOPYIX", version u32, zero u32, number of records f64, size of items.jsonl f64, its time of change in ms f64
 * record (32 bytes): SHA-256 of the id [0, 16), offset f64, length u32, line u32
 *
 * It is only a cache: one that is missing or does not fit `items.jsonl` (size, time of change) is made anew.
 */
const MAGIC = 'CANOPYIX'
const VERSION = 1
const HEADER_BYTES = 64
const RECORD_BYTES = 32
/** Records sorted in memory at once (8 MiB). */
const RUN = 1 << 18
/** Records in a block: one read finds an item. */
const BLOCK = 128

/** The file's name inside a dataset folder. */
export const INDEX_NAME = 'items.index'

/** Where a line stands: bytes from the file's start, bytes without the line's end, 1-based line. */
export interface Location {
  offset: number
  length: number
  line: number
}

export interface ItemIndex {
  readonly count: number
  /** `undefined` when no item has that id. */
  find(id: string): Promise<Location | undefined>
  close(): Promise<void>
}

/**
 * The index of a dataset's `items.jsonl`: the one beside it when it fits, else one made in the system's temporary folder and
 * removed on `close`. Memory does not grow with the number of items, but for 16 bytes per 128 of them.
 *
 * @throws InputError with file and line: a line that is no JSON object with an id, one id with two contents
 */
export async function openItemIndex(itemsFile: string, indexFile: string): Promise<ItemIndex> {
  const ready = await openExisting(itemsFile, indexFile)
  if (ready !== undefined) return ready
  const folder = await mkdtemp(join(tmpdir(), 'canopy-index-'))
  const remove = (): Promise<void> => rm(folder, { recursive: true, force: true })
  try {
    const file = join(folder, INDEX_NAME)
    await buildItemIndex(itemsFile, file)
    const index = await openExisting(itemsFile, file)
    if (index === undefined) {
      throw new InputError('the file changed while its index was made; run the command again', { file: itemsFile })
    }
    return {
      ...index,
      close: async () => {
        await index.close()
        await remove()
      },
    }
  } catch (error) {
    await remove()
    throw error
  }
}

async function openExisting(itemsFile: string, indexFile: string): Promise<ItemIndex | undefined> {
  const items = await stat(itemsFile).catch((error: unknown) => {
    throw fileError(error, 'cannot read the items of the dataset', itemsFile)
  })
  const handle = await open(indexFile, 'r').catch(() => undefined)
  if (handle === undefined) return undefined
  try {
    const header = await readAt(handle, 0, HEADER_BYTES)
    const count = header.length < HEADER_BYTES ? -1 : header.readDoubleLE(16)
    const fits =
      header.length === HEADER_BYTES &&
      header.toString('latin1', 0, 8) === MAGIC &&
      header.readUInt32LE(8) === VERSION &&
      header.readDoubleLE(24) === items.size &&
      header.readDoubleLE(32) === items.mtimeMs &&
      (await handle.stat()).size === HEADER_BYTES + count * RECORD_BYTES
    if (!fits) {
      await handle.close()
      return undefined
    }
    return await withFence(handle, count)
  } catch (error) {
    await handle.close().catch(() => {})
    throw fileError(error, 'cannot read the index of the items', indexFile)
  }
}

/** Keeps the first key of every block in memory; a look-up is then one binary search and one read. */
async function withFence(handle: FileHandle, count: number): Promise<ItemIndex> {
  const blocks = Math.ceil(count / BLOCK)
  const fence = Buffer.alloc(blocks * KEY_BYTES)
  for (let block = 0; block < blocks; block += BLOCK) {
    const records = Math.min(BLOCK * BLOCK, count - block * BLOCK)
    const bytes = await readAt(handle, HEADER_BYTES + block * BLOCK * RECORD_BYTES, records * RECORD_BYTES)
    for (let i = 0; i * BLOCK < records; i++) {
      bytes.copy(fence, (block + i) * KEY_BYTES, i * BLOCK * RECORD_BYTES, i * BLOCK * RECORD_BYTES + KEY_BYTES)
    }
  }
  return {
    count,
    async find(id) {
      const key = hashedKey(id)
      const block = lastAtMost(fence, KEY_BYTES, blocks, key)
      if (block < 0) return undefined
      const records = Math.min(BLOCK, count - block * BLOCK)
      const bytes = await readAt(handle, HEADER_BYTES + block * BLOCK * RECORD_BYTES, records * RECORD_BYTES)
      const found = lastAtMost(bytes, RECORD_BYTES, records, key)
      const at = found * RECORD_BYTES
      if (found < 0 || bytes.compare(key, 0, KEY_BYTES, at, at + KEY_BYTES) !== 0) return undefined
      return locationAt(bytes, at)
    },
    close: () => handle.close(),
  }
}

/** The last of `count` records, sorted by their first bytes, whose key is at most `key`; -1 when there is none. */
function lastAtMost(bytes: Buffer, recordBytes: number, count: number, key: Buffer): number {
  let low = 0
  let high = count
  while (low < high) {
    const middle = (low + high) >> 1
    const at = middle * recordBytes
    if (bytes.compare(key, 0, KEY_BYTES, at, at + KEY_BYTES) <= 0) low = middle + 1
    else high = middle
  }
  return low - 1
}

const locationAt = (bytes: Buffer, at: number): Location => ({
  offset: bytes.readDoubleLE(at + KEY_BYTES),
  length: bytes.readUInt32LE(at + KEY_BYTES + 8),
  line: bytes.readUInt32LE(at + KEY_BYTES + 12),
})

/** Up to `length` bytes from `offset`; fewer at the file's end. */
export async function readAt(handle: FileHandle, offset: number, length: number): Promise<Buffer> {
  const bytes = Buffer.alloc(length)
  let done = 0
  while (done < length) {
    const { bytesRead } = await handle.read(bytes, done, length - done, offset + done)
    if (bytesRead === 0) break
    done += bytesRead
  }
  return bytes.subarray(0, done)
}

/**
 * Writes the index of `itemsFile` to `indexFile`: runs of records are sorted in memory, spilt, and merged.
 *
 * @param inMemory records sorted at once
 * @throws InputError with file and line: a line that is no JSON object with an id, one id with two contents
 */
export async function buildItemIndex(itemsFile: string, indexFile: string, inMemory = RUN): Promise<void> {
  const { size, mtimeMs } = await stat(itemsFile).catch((error: unknown) => {
    throw fileError(error, 'cannot read the items of the dataset', itemsFile)
  })
  const folder = await mkdtemp(join(tmpdir(), 'canopy-runs-'))
  const runs: { file: string; count: number }[] = []
  let run = Buffer.alloc(64 * RECORD_BYTES)
  let inRun = 0
  let count = 0
  try {
    const spill = async (): Promise<void> => {
      const file = join(folder, String(runs.length))
      await writeFileAtomic(file, sorted(run, inRun))
      runs.push({ file, count: inRun })
      inRun = 0
    }
    for await (const { value, line, offset, length } of readJsonLines(itemsFile)) {
      const id = (value as { id?: unknown } | null)?.id
      if (typeof id !== 'string' && typeof id !== 'number') {
        throw new InputError('an item with an "id" was expected', { file: itemsFile, line })
      }
      if (inRun === inMemory) await spill()
      if ((inRun + 1) * RECORD_BYTES > run.length) run = Buffer.concat([run], run.length * 2)
      writeRecord(run, inRun * RECORD_BYTES, hashedKey(String(id)), { offset, length, line })
      inRun++
      count++
    }
    const header = Buffer.alloc(HEADER_BYTES)
    header.write(MAGIC, 'latin1')
    header.writeUInt32LE(VERSION, 8)
    header.writeDoubleLE(count, 16)
    header.writeDoubleLE(size, 24)
    header.writeDoubleLE(mtimeMs, 32)
    if (runs.length === 0) {
      const records = sorted(run, inRun)
      await checkNeighbours(itemsFile, [records].values())
      await writeFileAtomic(indexFile, Buffer.concat([header, records]))
    } else {
      await spill()
      await mergeRuns(itemsFile, indexFile, header, runs)
    }
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

function writeRecord(bytes: Buffer, at: number, key: Buffer, location: Location): void {
  key.copy(bytes, at)
  bytes.writeDoubleLE(location.offset, at + KEY_BYTES)
  bytes.writeUInt32LE(location.length, at + KEY_BYTES + 8)
  bytes.writeUInt32LE(location.line, at + KEY_BYTES + 12)
}

function sorted(records: Buffer, count: number): Buffer {
  const order = Array.from({ length: count }, (_, i) => i * RECORD_BYTES)
  order.sort((a, b) => records.compare(records, b, b + KEY_BYTES, a, a + KEY_BYTES) || a - b)
  const result = Buffer.alloc(count * RECORD_BYTES)
  for (const [i, at] of order.entries()) records.copy(result, i * RECORD_BYTES, at, at + RECORD_BYTES)
  return result
}

async function mergeRuns(
  itemsFile: string,
  indexFile: string,
  header: Buffer,
  runs: { file: string; count: number }[],
): Promise<void> {
  const out = await open(indexFile, 'w')
  const check = neighbourCheck(itemsFile)
  try {
    await out.appendFile(header)
    const cursors = await Promise.all(runs.map((run) => openCursor(run.file)))
    try {
      let buffer = Buffer.alloc(BLOCK * BLOCK * RECORD_BYTES)
      let filled = 0
      for (;;) {
        let least: Cursor | undefined
        for (const cursor of cursors) {
          if (cursor.record === undefined) continue
          if (least === undefined || cursor.record.compare(least.record!, 0, KEY_BYTES, 0, KEY_BYTES) < 0)
            least = cursor
        }
        if (least === undefined) break
        await check(least.record!)
        least.record!.copy(buffer, filled)
        filled += RECORD_BYTES
        if (filled === buffer.length) {
          await out.appendFile(buffer)
          buffer = Buffer.alloc(buffer.length)
          filled = 0
        }
        await least.next()
      }
      await out.appendFile(buffer.subarray(0, filled))
    } finally {
      for (const cursor of cursors) await cursor.close()
    }
  } catch (error) {
    throw fileError(error, 'cannot write the index of the items', indexFile)
  } finally {
    await out.close()
  }
}

interface Cursor {
  record: Buffer | undefined
  next(): Promise<void>
  close(): Promise<void>
}

async function openCursor(file: string): Promise<Cursor> {
  const handle = await open(file, 'r')
  let bytes: Buffer = Buffer.alloc(0)
  let at = 0
  let offset = 0
  const cursor: Cursor = {
    record: undefined,
    async next() {
      if (at >= bytes.length) {
        bytes = await readAt(handle, offset, BLOCK * 16 * RECORD_BYTES)
        offset += bytes.length
        at = 0
      }
      cursor.record = at < bytes.length ? bytes.subarray(at, at + RECORD_BYTES) : undefined
      at += RECORD_BYTES
    },
    close: () => handle.close(),
  }
  await cursor.next()
  return cursor
}

/** Looks at sorted records one after the other: two of one key must be the same line twice. */
function neighbourCheck(itemsFile: string): (record: Buffer) => Promise<void> {
  let previous: Buffer | undefined
  return async (record) => {
    const last = previous
    previous = Buffer.from(record)
    if (last === undefined || record.compare(last, 0, KEY_BYTES, 0, KEY_BYTES) !== 0) return
    const [first, second] = [locationAt(last, 0), locationAt(record, 0)]
    const handle = await open(itemsFile, 'r')
    try {
      const [a, b] = [
        await readAt(handle, first.offset, first.length),
        await readAt(handle, second.offset, second.length),
      ]
      if (a.equals(b)) return
      const id = String((JSON.parse(b.toString('utf8')) as { id: unknown }).id)
      throw new InputError(
        `the item "${id}" stands on line ${Math.min(first.line, second.line)} already, with another content; an id names one item`,
        { file: itemsFile, line: Math.max(first.line, second.line) },
      )
    } finally {
      await handle.close()
    }
  }
}

async function checkNeighbours(itemsFile: string, blocks: Iterable<Buffer>): Promise<void> {
  const check = neighbourCheck(itemsFile)
  for (const block of blocks) {
    for (let at = 0; at < block.length; at += RECORD_BYTES) await check(block.subarray(at, at + RECORD_BYTES))
  }
}

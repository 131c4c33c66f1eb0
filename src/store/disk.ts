import { mkdirSync, readdirSync, statSync, unlinkSync } from 'node:fs'
import { join } from 'node:path'
import { fileError, removeLeftovers, temporaryName } from '../support/files.ts'
import { type Lock, takeLock } from './lock.ts'
import {
  EMPTY_BYTES,
  INDEX_BYTES,
  openRecordFile,
  type RecordFile,
  recordBytes,
  removeRecordFile,
  spaceIn,
  type Wanted,
} from './record-file.ts'
import { checkEntries, checkRequest, type EmbeddingSpace, type EmbeddingStore } from './store.ts'

export interface DiskStoreOptions {
  /**
   * Most bytes of the folder's embeddings; without end where absent. Beyond it the least recently used ones are removed, down to three
   * quarters of it. While they are, the folder takes up to one and three quarters of it.
   */
  maxBytes?: number
  /** Most embeddings of one file: each takes 14 to 25 bytes of memory in every program that has it open. 2^23 by default. */
  maxEntries?: number
}

/** Embeddings in the files of a folder. */
export interface DiskStore extends EmbeddingStore {
  /**
   * Removes the least recently used embeddings until all take no more than `maxBytes`; files that another program is writing are
   * left alone.
   *
   * @returns bytes that the folder's embeddings take afterwards
   */
  prune(maxBytes: number): Promise<number>
  close(): Promise<void>
}

/** What pruning leaves of a limit, so that it is not done again at once. */
const KEPT_SHARE = 0.75
/** How long a program goes without looking for what others have written, in milliseconds. */
const LOOK_MS = 1000
/** How often a file that is read from is marked as used, in milliseconds. */
const TOUCH_MS = 60 * 1000
/** First file of a space, or one that was written while another program wrote to the ones before. */
const FILE = /^([0-9a-f]{64})(?:\.([1-9]\d{0,3}))?\.embeddings$/

/** One encoder's files. */
interface Space {
  space: EmbeddingSpace
  files: Map<string, RecordFile>
  /** The file that this store writes to, among the others. */
  own: { file: RecordFile; lock: Lock } | undefined
  looked: number
  touched: number
}

/**
 * Opens the embedding store of a folder, which is made with the first embedding. Every encoder has its own file, in which records are
 * appended, each with a checksum: a program that dies while writing loses at most what it was writing. Any number of programs and
 * threads may use a folder at once: each that writes has a file of its own, and reads the others'.
 *
 * A file of another encoder under this one's name is refused and left as it is. What an entry's last use was is known over programs
 * where the one that writes the file closes the store.
 *
 * @throws RangeError for limits that are no numbers above 0
 * @example
 * const store = openDiskStore('cache', { maxBytes: 2 ** 30 })
 * const { node } = await openPair(pair, { store })
 */
export function openDiskStore(folder: string, options: DiskStoreOptions = {}): DiskStore {
  const { maxBytes = Number.POSITIVE_INFINITY, maxEntries = 1 << 23 } = options
  for (const [name, limit] of Object.entries({ maxBytes, maxEntries }))
    if (!(limit > 0)) throw new RangeError(`"${name}" is a number above 0.`)
  const spaces = new Map<string, Space>()
  let folderBytes = 0
  /** Bytes added since the folder was measured. */
  let unmeasured = Number.POSITIVE_INFINITY
  let closed = false
  let turn: Promise<unknown> = Promise.resolve()
  /** One thing at a time, for pruning lets other work in between. */
  const inTurn = <T>(action: () => Promise<T>): Promise<T> => {
    const result = turn.then(() => {
      if (closed) throw new Error('The embedding store is closed.')
      return action()
    })
    turn = result.catch(() => {})
    return result
  }

  const spaceOf = async (space: EmbeddingSpace): Promise<Space> => {
    const name = `${space.fingerprint} ${space.dimension}`
    const known = spaces.get(name)
    if (known !== undefined) return known
    const opened: Space = { space, files: new Map(), own: undefined, looked: 0, touched: Date.now() }
    try {
      await look(opened)
    } catch (error) {
      for (const file of opened.files.values()) file.close()
      throw error
    }
    spaces.set(name, opened)
    return opened
  }

  /** Reads what is new in the files of a space. */
  const look = async (of: Space): Promise<void> => {
    of.looked = Date.now()
    const names = list(folder).filter(({ fingerprint }) => fingerprint === of.space.fingerprint)
    const there = new Set(names.map(({ path }) => path))
    for (const path of [...of.files.keys()]) if (!there.has(path) && path !== of.own?.file.path) forget(of, path)
    for (const { path, inode } of names) {
      if (path === of.own?.file.path) continue
      if (of.files.get(path)?.inode !== inode) forget(of, path)
      try {
        const file = of.files.get(path) ?? openRecordFile(path, of.space, 'read', maxEntries)
        of.files.set(path, file)
        await file.scan()
      } catch (error) {
        // it was removed since it was listed
        if (!isMissing(error)) throw error
      }
    }
  }

  const find = (
    of: Space,
    keys: readonly Uint8Array[],
    places: number[],
    found: (Float32Array | undefined)[],
  ): number[] => {
    let left = places
    for (const file of of.files.values()) {
      if (left.length === 0) break
      const wanted: (Wanted & { place: number })[] = []
      for (const place of left)
        for (const record of file.index.find(keys[place] as Uint8Array))
          wanted.push({ key: keys[place] as Uint8Array, record, place })
      if (wanted.length === 0) continue
      file.read(wanted, (n, embedding) => {
        found[wanted[n]!.place] = embedding
      })
      left = left.filter((place) => found[place] === undefined)
    }
    return left
  }

  /** Takes the first file of a space that nobody writes to. */
  const beginWriting = async (to: Space): Promise<RecordFile> => {
    if (to.own?.lock.holds() && inodeOf(to.own.file.path) === to.own.file.inode) return to.own.file
    // another machine took this one for dead
    if (to.own !== undefined) forget(to, to.own.file.path)
    to.own = undefined
    const { fingerprint } = to.space
    for (let number = 0; number < 10_000; number++) {
      const path = join(folder, `${fingerprint}${number === 0 ? '' : `.${number}`}.embeddings`)
      let lock: Lock | undefined
      try {
        mkdirSync(folder, { recursive: true })
        lock = takeLock(`${path}.lock`)
      } catch (error) {
        throw fileError(error, 'cannot write the embedding store', path)
      }
      if (lock === undefined) continue
      let file: RecordFile | undefined
      try {
        await removeLeftovers(path)
        await removeLeftovers(`${path}.index`)
        await removeLeftovers(`${path}.lock`)
        file = openRecordFile(path, to.space, 'write', maxEntries)
        await file.scan()
      } catch (error) {
        file?.close()
        lock.release()
        throw error
      }
      const read = to.files.get(path)
      if (read?.inode === file.inode) file.index.keepTimes(read.index)
      forget(to, path)
      to.files.set(path, file)
      to.own = { file, lock }
      return file
    }
    throw new Error(`Ten thousand programs write to ${join(folder, `${fingerprint}.embeddings`)}.`)
  }

  const prune = async (
    limit: number,
    target: number,
    written: { space: Space; from: number } | undefined,
  ): Promise<number> => {
    const files = list(folder)
    const own = new Map(
      [...spaces.values()].flatMap(({ own }) => (own === undefined ? [] : [[own.file.path, own.file]])),
    )
    const before = files.reduce((sum, { path, bytes }) => sum + (own.get(path)?.bytes ?? bytes), 0)
    if (before <= limit) return before
    for (const space of spaces.values()) await look(space)
    const isOpen = (path: string): boolean => [...spaces.values()].some(({ files: open }) => open.has(path))

    // what may be removed, by time: files of encoders that this store has nothing to do with as a whole, others entry by entry
    const whole = files.filter(({ path }) => !isOpen(path)).sort((a, b) => a.used - b.used)
    const parts: Part[] = []
    try {
      for (const space of spaces.values()) parts.push(await partOf(space, written))
      const openedBytes = [...spaces.values()].flatMap(({ files }) => [...files.values()]).map(({ bytes }) => bytes)
      const merged = parts.reduce((sum, { sources }) => sum + Math.max(0, sources.length - 1), 0)
      let bytes = sizeOf(whole) + openedBytes.reduce((sum, bytes) => sum + bytes, 0) - merged * EMPTY_BYTES
      const next = parts.map(() => 0)
      let nextWhole = 0
      const timeOf = (p: number): number => parts[p]!.times[next[p] as number] ?? Number.POSITIVE_INFINITY
      while (bytes > target) {
        let oldest = 0
        for (let p = 1; p < parts.length; p++) if (timeOf(p) < timeOf(oldest)) oldest = p
        const file = whole[nextWhole]
        const time = parts.length === 0 ? Number.POSITIVE_INFINITY : timeOf(oldest)
        if (file !== undefined && file.used <= time) {
          nextWhole++
          const space = isOpen(file.path) ? undefined : spaceIn(file.path)
          if (space?.fingerprint !== file.fingerprint) continue
          if (file.bytes <= bytes - target) {
            if (removeUnused(file.path)) bytes -= file.bytes
          } else {
            // not all of it has to go
            parts.push(await partOf(await spaceOf(space), undefined))
            next.push(0)
          }
        } else if (time === Number.POSITIVE_INFINITY) break
        else {
          bytes -= parts[oldest]!.entryBytes
          next[oldest]!++
        }
      }
      for (const [p, part] of parts.entries())
        if (next[p] !== 0 || part.others.length > 0) await compact(part, next[p] as number)
    } finally {
      for (const part of parts) part.unlock()
    }
    return sizeOf(list(folder))
  }

  /** The entries of a space that may be removed; its other files are locked meanwhile, as far as nobody writes to them. */
  const partOf = async (space: Space, written: { space: Space; from: number } | undefined): Promise<Part> => {
    const others: { file: RecordFile; lock: Lock }[] = []
    const unlock = (): void => {
      for (const { lock } of others) lock.release()
    }
    try {
      for (const [path, file] of space.files) {
        if (file === space.own?.file) continue
        const lock = takeLock(`${path}.lock`)
        if (lock === undefined) continue
        if (inodeOf(path) !== file.inode) {
          lock.release()
          continue
        }
        others.push({ file, lock })
        await file.scan()
      }
    } catch (error) {
      unlock()
      throw error
    }
    const own = space.own?.file
    const sources = [...others.map(({ file }) => ({ file, to: file.records }))]
    if (own !== undefined)
      sources.push({ file: own, to: written?.space === space ? Math.min(written.from, own.records) : own.records })
    const count = sources.reduce((sum, { to }) => sum + to, 0)
    const times = new Uint32Array(count)
    let at = 0
    for (const { file, to } of sources) {
      times.set(file.index.arrays(file.records).times.subarray(0, to), at)
      at += to
    }
    times.sort()
    return { space, sources, others, times, unlock, entryBytes: recordBytes(space.space.dimension) + INDEX_BYTES }
  }

  /** Writes what is left of a space without its `remove` oldest entries beside its own file, then puts it there. */
  const compact = async ({ space, sources, others, times }: Part, remove: number): Promise<void> => {
    const threshold = remove === 0 ? 0 : (times[remove - 1] as number)
    let ofThreshold = remove === 0 ? 0 : remove - times.indexOf(threshold)
    // a store that only reads these files so far becomes their writer
    const first = others[0]
    const path = space.own?.file.path ?? first?.file.path
    if (path === undefined) return
    const beside = openRecordFile(temporaryName(path), space.space, 'write', maxEntries)
    try {
      await beside.scan()
      for (const { file, to } of sources) {
        const used = file.index.arrays(file.records).times
        const kept: number[] = []
        for (let record = 0; record < file.records; record++) {
          const time = used[record] as number
          const removed = record < to && (time < threshold || (time === threshold && ofThreshold-- > 0))
          if (!removed && time !== 0) kept.push(record)
        }
        await beside.copyFrom(file, Uint32Array.from(kept))
      }
      beside.sync()
      beside.rename(path)
    } catch (error) {
      beside.close()
      quietly(() => unlinkSync(beside.path))
      throw error
    }
    forget(space, path)
    space.files.set(path, beside)
    if (space.own !== undefined) space.own.file = beside
    for (const { file } of others) {
      if (file.path === path) continue
      forget(space, file.path)
      removeRecordFile(file.path)
    }
    if (space.own === undefined && first !== undefined) {
      space.own = { file: beside, lock: first.lock }
      others.shift()
    }
    quietly(() => beside.saveIndex())
  }

  return {
    getMany: (space, keys) =>
      inTurn(async () => {
        checkRequest(space, keys)
        const of = await spaceOf(space)
        const found: (Float32Array | undefined)[] = new Array(keys.length).fill(undefined)
        let left = find(of, keys, [...keys.keys()], found)
        if (left.length > 0 && Date.now() - of.looked >= LOOK_MS) {
          await look(of)
          left = find(of, keys, left, found)
        }
        if (left.length < keys.length && Date.now() - of.touched >= TOUCH_MS) {
          of.touched = Date.now()
          for (const file of of.files.values()) file.touch()
        }
        return found
      }),
    putMany: (space, keys, embeddings) =>
      inTurn(async () => {
        checkEntries(space, keys, embeddings)
        if (keys.length === 0) return
        const to = await spaceOf(space)
        const file = await beginWriting(to)
        to.own?.lock.renew()
        const { dimension } = space
        const left = find(to, keys, [...keys.keys()], new Array(keys.length).fill(undefined))
        const seen = new Set<string>()
        const fresh = left.filter((place) => {
          const name = Buffer.from(keys[place] as Uint8Array).toString('latin1')
          return !seen.has(name) && seen.add(name)
        })
        if (fresh.length === 0) return
        const rows = new Float32Array(fresh.length * dimension)
        fresh.forEach((place, n) => {
          rows.set(embeddings.subarray(place * dimension, (place + 1) * dimension), n * dimension)
        })
        const from = file.records
        file.append(
          fresh.map((place) => keys[place] as Uint8Array),
          rows,
        )
        if (maxBytes === Number.POSITIVE_INFINITY) return
        const added = fresh.length * (recordBytes(dimension) + INDEX_BYTES)
        folderBytes += added
        unmeasured += added
        // others may have written, too: the folder is measured again now and then
        if (folderBytes <= maxBytes && unmeasured < maxBytes / 16) return
        unmeasured = 0
        folderBytes = await prune(maxBytes, KEPT_SHARE * maxBytes, { space: to, from })
      }),
    prune: (limit) =>
      inTurn(async () => {
        if (!(limit >= 0)) throw new RangeError('"maxBytes" is a number from 0.')
        return prune(limit, limit, undefined)
      }),
    close() {
      const result = turn.then(async () => {
        if (closed) return
        closed = true
        for (const { files, own } of spaces.values()) {
          // it only saves time
          quietly(() => own?.file.saveIndex())
          for (const file of files.values()) {
            file.touch()
            file.close()
          }
          own?.lock.release()
        }
      })
      turn = result.catch(() => {})
      return result
    },
  }
}

interface Part {
  space: Space
  /** Files, of which the first `to` records may go. */
  sources: { file: RecordFile; to: number }[]
  others: { file: RecordFile; lock: Lock }[]
  /** When the entries that may go were last used, the oldest first. */
  times: Uint32Array
  entryBytes: number
  unlock(): void
}

interface Listed {
  path: string
  fingerprint: string
  bytes: number
  inode: bigint
  /** Unix seconds. */
  used: number
}

/** The files of embeddings in a folder; none where it is not there. */
function list(folder: string): Listed[] {
  let names: string[]
  try {
    names = readdirSync(folder)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return []
    throw fileError(error, 'cannot read the embedding store', folder)
  }
  const listed: Listed[] = []
  for (const name of names.sort()) {
    const fingerprint = FILE.exec(name)?.[1]
    if (fingerprint === undefined) continue
    const path = join(folder, name)
    try {
      const { size, ino, mtimeMs } = statSync(path, { bigint: true })
      const index = statSync(`${path}.index`, { throwIfNoEntry: false })?.size ?? 0
      listed.push({ path, fingerprint, inode: ino, bytes: Number(size) + index, used: Number(mtimeMs) / 1000 })
    } catch (error) {
      if (!isMissing(error)) throw fileError(error, 'cannot read the embedding store', path)
    }
  }
  return listed
}

const sizeOf = (files: readonly Listed[]): number => files.reduce((sum, { bytes }) => sum + bytes, 0)

const inodeOf = (path: string): bigint | undefined => statSync(path, { bigint: true, throwIfNoEntry: false })?.ino

function forget({ files }: Space, path: string): void {
  files.get(path)?.close()
  files.delete(path)
}

/** Removes a file of an encoder that is not in use here, where nobody writes to it. */
function removeUnused(path: string): boolean {
  let lock: Lock | undefined
  try {
    lock = takeLock(`${path}.lock`)
    if (lock === undefined) return false
    removeRecordFile(path)
    return true
  } catch (error) {
    if (isMissing(error)) return true
    throw fileError(error, 'cannot remove old embeddings', path)
  } finally {
    lock?.release()
  }
}

function isMissing(error: unknown): boolean {
  const cause = error instanceof Error && error.cause !== undefined ? error.cause : error
  return (cause as NodeJS.ErrnoException).code === 'ENOENT'
}

function quietly(action: () => void): void {
  try {
    action()
  } catch {
    // an index only saves time; what cannot be removed now is a leftover to the next writer
  }
}

import { spawn } from 'node:child_process'
import {
  appendFileSync,
  chmodSync,
  existsSync,
  readdirSync,
  readFileSync,
  statSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { hostname } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { crc32 } from 'node:zlib'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { type DiskStoreOptions, type EmbeddingSpace, openDiskStore } from '../../src/store/index.ts'
import { cli } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { describeStore, key, keys, otherSpace, space, vector, vectors } from './contract.ts'

const RECORD = 16 + 12 + 4
const fileIn = (folder: string, { fingerprint } = space, number = ''): string =>
  join(folder, `${fingerprint}${number}.embeddings`)

describeStore('openDiskStore', async () => {
  const folder = temporaryFolder()
  return { open: async () => openDiskStore(folder) }
})

/** A file as the first version wrote it, before there were stores. */
function firstFormat({ fingerprint, dimension }: EmbeddingSpace, count: number): Buffer {
  const header = Buffer.alloc(48)
  header.write('CANOPYE1')
  header.write(fingerprint, 8, 'hex')
  header.writeUInt32LE(dimension, 40)
  header.writeUInt32LE(crc32(header.subarray(0, 44)), 44)
  const records = Array.from({ length: count }, (_, n) => {
    const record = Buffer.concat([key(n), Buffer.from(vector(n, dimension).buffer), Buffer.alloc(4)])
    record.writeUInt32LE(crc32(record.subarray(0, -4)), record.length - 4)
    return record
  })
  return Buffer.concat([header, ...records])
}

async function filled(folder: string, count: number, of = space): Promise<string> {
  const store = openDiskStore(folder)
  for (let n = 0; n < count; n++) await store.putMany(of, keys(n, n + 1), vectors(n, n + 1))
  await store.close()
  return fileIn(folder, of)
}

const known = async (folder: string, from: number, to: number, of = space, options: DiskStoreOptions = {}) => {
  const store = openDiskStore(folder, options)
  const found = await store.getMany(of, keys(from, to))
  await store.close()
  return found.map((embedding) => embedding !== undefined)
}

describe('files of embeddings', () => {
  it('has the format that the first version wrote, and goes on with its files', async () => {
    const folder = temporaryFolder()
    expect(readFileSync(await filled(folder, 3))).toEqual(firstFormat(space, 3))
    const old = temporaryFolder()
    writeFileSync(fileIn(old), firstFormat(space, 2))
    const store = openDiskStore(old)
    expect(await store.getMany(space, keys(0, 3))).toEqual([vector(0), vector(1), undefined])
    await store.putMany(space, keys(2, 3), vectors(2, 3))
    await store.close()
    expect(readFileSync(fileIn(old))).toEqual(firstFormat(space, 3))
  })

  it('makes nothing before something is put', async () => {
    const folder = join(temporaryFolder(), 'cache')
    const store = openDiskStore(folder)
    expect(await store.getMany(space, keys(0, 1))).toEqual([undefined])
    await store.close()
    expect(existsSync(folder)).toBe(false)
  })

  it('leaves its files alone, without locks', async () => {
    const folder = temporaryFolder()
    await filled(folder, 2)
    expect(readdirSync(folder).sort()).toEqual([
      `${space.fingerprint}.embeddings`,
      `${space.fingerprint}.embeddings.index`,
    ])
  })

  it('cuts a torn tail and goes on from there', async () => {
    const whole = readFileSync(await filled(temporaryFolder(), 3))
    for (const cut of [1, 4, 5, 15, 16, 17, 31, 32]) {
      const folder = temporaryFolder()
      writeFileSync(fileIn(folder), whole.subarray(0, whole.length - cut))
      const store = openDiskStore(folder)
      expect(await store.getMany(space, keys(0, 3))).toEqual([vector(0), vector(1), undefined])
      await store.putMany(space, keys(2, 3), vectors(2, 3))
      await store.close()
      expect(readFileSync(fileIn(folder))).toEqual(whole)
    }
  })

  it('cuts a tail of zeros, as a crash of the machine leaves it', async () => {
    const folder = temporaryFolder()
    const file = await filled(folder, 2)
    appendFileSync(file, Buffer.alloc(100))
    expect(await known(folder, 0, 3)).toEqual([true, true, false])
    const store = openDiskStore(folder)
    await store.putMany(space, keys(2, 3), vectors(2, 3))
    await store.close()
    expect(readFileSync(file)).toEqual(firstFormat(space, 3))
  })

  it('never returns a damaged record, and keeps those after it, with an index and without', async () => {
    for (const indexed of [true, false]) {
      const folder = temporaryFolder()
      const file = await filled(folder, 3)
      const bytes = readFileSync(file)
      bytes[48 + RECORD + 20]! ^= 1
      writeFileSync(file, bytes)
      if (!indexed) truncateSync(`${file}.index`, 0)
      expect(await known(folder, 0, 3)).toEqual([true, false, true])
      const store = openDiskStore(folder)
      await store.putMany(space, keys(1, 2), vectors(1, 2))
      expect(await store.getMany(space, keys(0, 3))).toEqual([vector(0), vector(1), vector(2)])
      await store.close()
    }
  })

  it('does not trust an index that is damaged, or of another file', async () => {
    const folder = temporaryFolder()
    const file = await filled(folder, 5)
    const index = readFileSync(`${file}.index`)
    for (let at = 0; at < index.length; at++) {
      const wrong = Buffer.from(index)
      wrong[at]! ^= 0xff
      writeFileSync(`${file}.index`, wrong)
      expect(await known(folder, 0, 6)).toEqual([true, true, true, true, true, false])
    }
    const shorter = temporaryFolder()
    await filled(shorter, 2)
    writeFileSync(`${fileIn(shorter)}.index`, index)
    expect(await known(shorter, 0, 3)).toEqual([true, true, false])
    // an index from before something was added
    writeFileSync(`${file}.index`, readFileSync(`${await filled(temporaryFolder(), 2)}.index`))
    expect(await known(folder, 0, 6)).toEqual([true, true, true, true, true, false])
  })

  it('refuses the file of another encoder, and leaves it as it is', async () => {
    const folder = temporaryFolder()
    const content = readFileSync(await filled(temporaryFolder(), 2, otherSpace))
    writeFileSync(fileIn(folder), content)
    const store = openDiskStore(folder)
    const refused = new RegExp(
      `another encoder \\(fingerprint ${otherSpace.fingerprint}, 3 numbers\\) .*tests/one, fingerprint ${space.fingerprint}`,
    )
    await expect(store.getMany(space, [])).rejects.toThrow(refused)
    await expect(store.putMany(space, keys(0, 1), vectors(0, 1))).rejects.toThrow(refused)
    await store.close()
    expect(readFileSync(fileIn(folder))).toEqual(content)
    expect(readdirSync(folder)).toHaveLength(1)
  })

  it('refuses embeddings of another length, and what is no file of embeddings', async () => {
    const folder = temporaryFolder()
    await filled(folder, 2)
    const store = openDiskStore(folder)
    await expect(store.getMany({ ...space, dimension: 4 }, [])).rejects.toThrow(/3 numbers.*4 numbers/)
    await store.close()
    for (const content of ['a letter', 'a letter to somebody that is longer than any header would have been']) {
      writeFileSync(fileIn(folder), content)
      const again = openDiskStore(folder)
      await expect(again.putMany(space, keys(0, 1), vectors(0, 1))).rejects.toThrow(
        /does not begin as a file of embeddings/,
      )
      await again.close()
      expect(readFileSync(fileIn(folder), 'utf8')).toBe(content)
    }
  })

  it('starts a file anew whose writer died with the header', async () => {
    const folder = temporaryFolder()
    const file = await filled(folder, 1)
    for (const content of [readFileSync(file).subarray(0, 20), Buffer.alloc(0), Buffer.alloc(48)]) {
      writeFileSync(file, content)
      expect(await known(folder, 0, 1)).toEqual([false])
      const store = openDiskStore(folder)
      await store.putMany(space, keys(0, 1), vectors(0, 1))
      await store.close()
      expect(readFileSync(file)).toEqual(firstFormat(space, 1))
    }
  })

  it('says which folder cannot be read or written', async () => {
    const folder = temporaryFolder()
    writeFileSync(join(folder, 'file'), '')
    const store = openDiskStore(join(folder, 'file'))
    await expect(store.getMany(space, keys(0, 1))).rejects.toThrow(/file: cannot read the embedding store.*ENOTDIR/)
    await store.close()
  })

  it.skipIf(process.getuid?.() === 0)('reads from a folder that it may not write to', async () => {
    const folder = temporaryFolder()
    await filled(folder, 2)
    chmodSync(folder, 0o555)
    const store = openDiskStore(folder)
    expect(await store.getMany(space, keys(0, 3))).toEqual([vector(0), vector(1), undefined])
    await expect(store.putMany(space, keys(2, 3), vectors(2, 3))).rejects.toThrow(/permission denied/)
    await store.close()
    chmodSync(folder, 0o755)
  })

  it('says so when it has no room for more', async () => {
    const store = openDiskStore(temporaryFolder(), { maxEntries: 2 })
    await store.putMany(space, keys(0, 2), vectors(0, 2))
    await expect(store.putMany(space, keys(1, 3), vectors(1, 3))).rejects.toThrow(/no more than 2 embeddings/)
    expect(await store.getMany(space, keys(0, 3))).toEqual([vector(0), vector(1), undefined])
    await store.close()
  })

  it('refuses limits that are none', () => {
    for (const maxBytes of [0, -1, Number.NaN]) expect(() => openDiskStore('x', { maxBytes })).toThrow(/"maxBytes"/)
  })
})

describe('a folder that several use', () => {
  it('gives every writer a file of its own, and all of them what is in any', async () => {
    const folder = temporaryFolder()
    const [first, second] = [openDiskStore(folder), openDiskStore(folder)]
    await first.putMany(space, keys(0, 2), vectors(0, 2))
    await second.putMany(space, keys(1, 3), vectors(1, 3))
    expect(readdirSync(folder).filter((name) => name.endsWith('.embeddings'))).toHaveLength(2)
    expect(readFileSync(fileIn(folder, space, '.1'))).toHaveLength(48 + RECORD)
    await vi.waitFor(async () => expect(await first.getMany(space, keys(0, 3))).not.toContain(undefined), {
      timeout: 5000,
      interval: 200,
    })
    await first.close()
    await second.close()
    expect(await known(folder, 0, 4)).toEqual([true, true, true, false])
  })

  it('takes over a lock whose process is gone, and waits for none of another machine', async () => {
    const lock = (folder: string): string => `${fileIn(folder)}.lock`
    const files = async (folder: string): Promise<string[]> => {
      const store = openDiskStore(folder)
      await store.putMany(space, keys(5, 6), vectors(5, 6))
      await store.close()
      return readdirSync(folder).filter((name) => name.endsWith('.embeddings'))
    }
    for (const dead of ['999999999', String(process.pid), '', `${process.pid} 12.5 ${hostname()}`]) {
      const folder = temporaryFolder()
      writeFileSync(lock(folder), dead)
      expect(await files(folder)).toEqual([`${space.fingerprint}.embeddings`])
    }
    const folder = temporaryFolder()
    writeFileSync(lock(folder), '1 12.5 elsewhere')
    expect(await files(folder)).toEqual([`${space.fingerprint}.1.embeddings`])
    const hourAgo = new Date(Date.now() - 60 * 60 * 1000)
    utimesSync(lock(folder), hourAgo, hourAgo)
    expect(await files(folder)).toContain(`${space.fingerprint}.1.embeddings`)
    expect(readdirSync(folder)).not.toContain(`${space.fingerprint}.embeddings.lock`)
  })

  it('goes on in another file when its lock was taken from it', async () => {
    const folder = temporaryFolder()
    const store = openDiskStore(folder)
    await store.putMany(space, keys(0, 1), vectors(0, 1))
    writeFileSync(`${fileIn(folder)}.lock`, '1 12.5 elsewhere')
    await store.putMany(space, keys(1, 2), vectors(1, 2))
    await store.close()
    expect(existsSync(fileIn(folder, space, '.1'))).toBe(true)
    expect(readFileSync(`${fileIn(folder)}.lock`, 'utf8')).toBe('1 12.5 elsewhere')
    expect(await known(folder, 0, 3)).toEqual([true, true, false])
  })

  it('keeps all that processes write at once, and what they had written when they were killed', async () => {
    const folder = temporaryFolder()
    const [first, killed, third] = await Promise.all([
      write(folder, { first: 0, count: 300 }),
      write(folder, { first: 1000, count: 100_000, killAt: 1200 }),
      write(folder, { first: 500_000, count: 300 }),
    ])
    expect([first, third]).toEqual([299, 500_299])
    expect(killed).toBeGreaterThanOrEqual(1200)
    const store = openDiskStore(folder)
    for (const [from, last] of [
      [0, first],
      [1000, killed],
      [500_000, third],
    ] as [number, number][])
      expect(await store.getMany(space, keys(from, last + 1))).toEqual(
        keys(from, last + 1).map((_, i) => vector(from + i)),
      )
    await store.close()
  })

  it('keeps whole records where the disk is full', async () => {
    const folder = temporaryFolder()
    let message = ''
    const last = await write(folder, {
      ...{ first: 0, count: 1000, limit: 'ulimit -f 8' },
      onFailure: (said) => {
        message = said
      },
    })
    expect(message).toMatch(/embeddings: cannot write the embedding store: .*allows no file that large \(EFBIG\)/)
    expect(readFileSync(fileIn(folder))).toEqual(firstFormat(space, last + 1))
  })
})

describe('pruning', () => {
  const ENTRY = RECORD + 8
  const limit = (entries: number): number => 48 + 56 + ENTRY * entries
  const bytesOf = (folder: string): number =>
    readdirSync(folder).reduce((sum, name) => sum + statSync(join(folder, name)).size, 0)
  /** Seconds since the test began, as the store's clock has them; the files' own times are real. */
  let start = 0
  beforeEach(() => {
    start = Date.now()
  })
  const at = (seconds: number): void => {
    vi.useFakeTimers({ toFake: ['Date'], now: start + 1000 * seconds })
  }

  it('keeps a folder under its limit, and what was used last', async () => {
    const folder = temporaryFolder()
    const store = openDiskStore(folder, { maxBytes: limit(100) })
    for (let n = 0; n < 500; n += 5) {
      at(n)
      await store.putMany(space, keys(n, n + 5), vectors(n, n + 5))
      expect(bytesOf(folder)).toBeLessThanOrEqual(limit(100))
      expect(await store.getMany(space, keys(0, 1))).toEqual([vector(0)])
      expect(await store.getMany(space, keys(Math.max(0, n - 40), n + 5))).not.toContain(undefined)
    }
    await store.close()
    expect(bytesOf(folder)).toBeLessThanOrEqual(limit(100))
    expect(await known(folder, 0, 2)).toEqual([true, false])
    expect(await known(folder, 460, 500)).not.toContain(false)
  })

  it('removes exactly the least recently used, and says what is left', async () => {
    const folder = temporaryFolder()
    const store = openDiskStore(folder)
    for (let n = 0; n < 10; n++) {
      at(n)
      await store.putMany(space, keys(n, n + 1), vectors(n, n + 1))
    }
    at(20)
    await store.getMany(space, keys(2, 4))
    expect(await store.prune(limit(10))).toBe(limit(10))
    expect(await store.prune(limit(5))).toBe(limit(5))
    expect(bytesOf(folder)).toBe(limit(5) + readFileSync(`${fileIn(folder)}.lock`).length)
    const found = await store.getMany(space, keys(0, 10))
    expect(found.flatMap((embedding, n) => (embedding === undefined ? [] : [n]))).toEqual([2, 3, 7, 8, 9])
    expect(found[3]).toEqual(vector(3))
    await store.putMany(space, keys(10, 11), vectors(10, 11))
    expect(await store.getMany(space, keys(9, 11))).toEqual([vector(9), vector(10)])
    expect(await store.prune(0)).toBe(48)
    expect(await store.getMany(space, keys(0, 11))).toEqual(new Array(11).fill(undefined))
    await store.close()
  })

  it('knows the uses of earlier programs', async () => {
    const folder = temporaryFolder()
    at(-100)
    const first = openDiskStore(folder)
    await first.putMany(space, keys(0, 10), vectors(0, 10))
    await first.close()
    at(-50)
    const second = openDiskStore(folder)
    await second.getMany(space, keys(4, 5))
    await second.putMany(space, keys(10, 11), vectors(10, 11))
    await second.close()
    at(0)
    const third = openDiskStore(folder)
    await third.prune(limit(2))
    const found = await third.getMany(space, keys(0, 11))
    expect(found.flatMap((embedding, n) => (embedding === undefined ? [] : [n]))).toEqual([4, 10])
    await third.close()
  })

  it('never removes what is being put, be the limit ever so low', async () => {
    const store = openDiskStore(temporaryFolder(), { maxBytes: 1 })
    for (let n = 0; n < 30; n += 10) {
      await store.putMany(space, keys(n, n + 10), vectors(n, n + 10))
      expect(await store.getMany(space, keys(n, n + 10))).not.toContain(undefined)
    }
    expect(await store.getMany(space, keys(0, 20))).toEqual(new Array(20).fill(undefined))
    await store.close()
  })

  it('removes the files of encoders that were not used for longer, as far as it has to', async () => {
    const folder = temporaryFolder()
    const old = await filled(folder, 50, otherSpace)
    const older = await filled(folder, 50, { ...space, fingerprint: 'ef'.repeat(32) })
    const letter = fileIn(folder, { ...space, fingerprint: '12'.repeat(32) })
    writeFileSync(letter, 'a letter')
    utimesSync(old, start / 1000 - 1000, start / 1000 - 1000)
    for (const file of [older, letter]) utimesSync(file, start / 1000 - 2000, start / 1000 - 2000)
    const store = openDiskStore(folder, { maxBytes: limit(150) })
    at(1)
    await store.putMany(space, keys(0, 80), vectors(0, 80))
    expect([existsSync(older), existsSync(old), existsSync(letter)]).toEqual([false, true, true])
    expect(await store.getMany(space, keys(0, 80))).not.toContain(undefined)
    // not all of the other file had to go
    const left = (await store.getMany(otherSpace, keys(0, 50))).filter((embedding) => embedding !== undefined)
    expect(left.length).toBeGreaterThan(20)
    expect(left.length).toBeLessThan(50)
    await store.close()
    expect(readFileSync(letter, 'utf8')).toBe('a letter')
  })

  it('leaves alone what another program is writing', async () => {
    const folder = temporaryFolder()
    const other = openDiskStore(folder)
    await other.putMany(space, keys(0, 50), vectors(0, 50))
    await other.putMany(otherSpace, keys(0, 50), vectors(0, 50))
    at(100)
    const store = openDiskStore(folder, { maxBytes: limit(60) })
    await store.putMany(space, keys(100, 110), vectors(100, 110))
    await store.prune(0)
    expect(await store.getMany(space, keys(0, 50))).not.toContain(undefined)
    expect(await other.getMany(otherSpace, keys(0, 50))).not.toContain(undefined)
    await other.putMany(space, keys(50, 60), vectors(50, 60))
    await other.close()
    await store.close()
    expect(await known(folder, 0, 60)).not.toContain(false)
    expect(await known(folder, 0, 50, otherSpace)).not.toContain(false)
  })

  it('brings the files of writers that are gone together in one', async () => {
    const folder = temporaryFolder()
    const writers = [openDiskStore(folder), openDiskStore(folder), openDiskStore(folder)]
    for (const [n, writer] of writers.entries()) {
      at(n)
      await writer.putMany(space, keys(10 * n, 10 * n + 10), vectors(10 * n, 10 * n + 10))
    }
    for (const writer of writers) await writer.close()
    const store = openDiskStore(folder)
    await store.getMany(space, [])
    await store.prune(limit(15))
    await store.close()
    expect(readdirSync(folder).filter((name) => name.endsWith('.embeddings'))).toHaveLength(1)
    expect(await known(folder, 0, 30)).toEqual(keys(0, 30).map((_, n) => n >= 15))
  })

  it('does not break one that reads meanwhile', async () => {
    const folder = temporaryFolder()
    await filled(folder, 30)
    const reader = openDiskStore(folder)
    expect(await reader.getMany(space, keys(0, 30))).not.toContain(undefined)
    at(10)
    const writer = openDiskStore(folder, { maxBytes: limit(35) })
    for (let n = 30; n < 90; n += 5) {
      await writer.putMany(space, keys(n, n + 5), vectors(n, n + 5))
      const found = await reader.getMany(space, keys(0, 30))
      for (const [i, embedding] of found.entries()) expect([undefined, vector(i)]).toContainEqual(embedding)
    }
    at(60)
    const late = await reader.getMany(space, keys(0, 90))
    expect(late.slice(70)).toEqual(keys(70, 90).map((_, i) => vector(70 + i)))
    expect(await reader.getMany(space, keys(0, 1))).toEqual([undefined])
    await reader.close()
    await writer.close()
  })

  it('loses nothing that it kept when it is killed at any time', async () => {
    const folder = temporaryFolder()
    let first = 0
    for (const more of [77, 140]) {
      // each starts where the last one was killed; ten entries' room lets it prune every few puts
      const last = await write(folder, { first, count: 100_000, maxBytes: limit(60), killAt: first + more })
      const store = openDiskStore(folder)
      const recent = keys(Math.max(first, last - 30), last + 1)
      const found = await store.getMany(space, recent)
      expect(found).toEqual(recent.map((_, i) => vector(Math.max(first, last - 30) + i)))
      await store.close()
      first = last + 1
    }
  })
})

interface Write {
  first: number
  count: number
  maxBytes?: number
  /** The key after which the process is killed. */
  killAt?: number
  /** Shell text that limits it. */
  limit?: string
  onFailure?: (message: string) => void
}

/** Puts keys by a process of its own; returns the last key that it said it had put. */
async function write(folder: string, options: Write): Promise<number> {
  const { first, count, maxBytes = 0, killAt = Number.POSITIVE_INFINITY, limit = ':', onFailure } = options
  const entry = join(dirname(cli), '../store/index.js')
  const script = join(import.meta.dirname, 'disk-writer.mjs')
  const words = [process.execPath, script, entry, folder, first, count, maxBytes].map(String)
  const child = spawn('sh', ['-c', `${limit}; exec "$@"`, 'sh', ...words], { stdio: ['ignore', 'pipe', 'inherit'] })
  let last = -1
  for await (const line of createInterface({ input: child.stdout })) {
    if (line.startsWith('failed')) onFailure?.(line)
    else last = Number(line)
    if (last >= killAt) child.kill('SIGKILL')
  }
  return last
}

afterEach(() => {
  vi.useRealTimers()
})

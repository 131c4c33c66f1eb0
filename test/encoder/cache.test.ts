import { once } from 'node:events'
import { appendFileSync, readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Worker } from 'node:worker_threads'
import { describe, expect, it } from 'vitest'
import { openEmbeddingCache, sequenceKey, textSequence } from '../../src/encoder/index.ts'
import { temporaryFolder } from '../support/temporary.ts'

const fingerprint = 'ab'.repeat(32)
const key = (n: number) => sequenceKey(textSequence(Int32Array.of(101, n, 102)))
const vector = (n: number) => Float32Array.of(n, n + 0.5, -n)

function filled(folder: string, count: number): string {
  const cache = openEmbeddingCache(folder, fingerprint, 3)
  for (let n = 0; n < count; n++) cache.add([key(n)], vector(n))
  cache.close()
  return join(folder, `${fingerprint}.embeddings`)
}

describe('openEmbeddingCache', () => {
  it('gives back what was added, in this process and the next', () => {
    const folder = temporaryFolder()
    const cache = openEmbeddingCache(folder, fingerprint, 3)
    cache.add([key(1), key(2), key(1)], Float32Array.of(...vector(1), ...vector(2), ...vector(1)))
    cache.add([key(2)], vector(2))
    expect(cache.size).toBe(2)
    expect(cache.get(key(2))).toEqual(vector(2))
    expect(cache.get(key(3))).toBeUndefined()
    cache.close()
    const again = openEmbeddingCache(folder, fingerprint, 3)
    expect([again.size, again.get(key(1)), again.get(key(2))]).toEqual([2, vector(1), vector(2)])
    again.close()
    expect(readdirSync(folder)).toEqual([`${fingerprint}.embeddings`])
  })

  it('holds many', () => {
    const folder = temporaryFolder()
    const count = 20_000
    const keys = Array.from({ length: count }, (_, n) => key(n))
    const cache = openEmbeddingCache(folder, fingerprint, 3)
    cache.add(keys, Float32Array.from(keys.flatMap((_, n) => [...vector(n)])))
    cache.close()
    const again = openEmbeddingCache(folder, fingerprint, 3)
    expect(again.size).toBe(count)
    for (let n = 0; n < count; n += 97) expect(again.get(key(n))).toEqual(vector(n))
    again.close()
  })

  it('cuts a tail torn at any byte and goes on from there', () => {
    const whole = readFileSync(filled(temporaryFolder(), 3))
    const recordBytes = 16 + 12 + 4
    for (let cut = 1; cut <= recordBytes; cut++) {
      const folder = temporaryFolder()
      const file = join(folder, `${fingerprint}.embeddings`)
      writeFileSync(file, whole.subarray(0, whole.length - cut))
      const cache = openEmbeddingCache(folder, fingerprint, 3)
      expect([cache.size, cache.get(key(1)), cache.get(key(2))]).toEqual([2, vector(1), undefined])
      cache.add([key(2)], vector(2))
      cache.close()
      expect(readFileSync(file)).toEqual(whole)
    }
  })

  it('cuts a tail of zeros, as a crash of the machine leaves it', () => {
    const folder = temporaryFolder()
    const file = filled(folder, 2)
    const size = statSync(file).size
    appendFileSync(file, Buffer.alloc(100))
    const cache = openEmbeddingCache(folder, fingerprint, 3)
    expect(cache.size).toBe(2)
    cache.close()
    expect(statSync(file).size).toBe(size)
  })

  it('never returns a damaged record, and keeps those after it', () => {
    const folder = temporaryFolder()
    const file = filled(folder, 3)
    const bytes = readFileSync(file)
    bytes[48 + 32 + 20]! ^= 1
    writeFileSync(file, bytes)
    const cache = openEmbeddingCache(folder, fingerprint, 3)
    expect([0, 1, 2].map((n) => cache.get(key(n)))).toEqual([vector(0), undefined, vector(2)])
    cache.close()
  })

  it('starts anew when the header is not its own', () => {
    const folder = temporaryFolder()
    const file = filled(folder, 2)
    const other = openEmbeddingCache(folder, 'cd'.repeat(32), 3)
    expect(other.get(key(1))).toBeUndefined()
    other.close()
    const bytes = readFileSync(file)
    writeFileSync(join(folder, `${'ef'.repeat(32)}.embeddings`), bytes)
    const renamed = openEmbeddingCache(folder, 'ef'.repeat(32), 3)
    expect(renamed.size).toBe(0)
    renamed.close()
    truncateSync(file, 20)
    const cut = openEmbeddingCache(folder, fingerprint, 3)
    cut.add([key(7)], vector(7))
    expect([cut.size, cut.get(key(7))]).toEqual([1, vector(7)])
    cut.close()
  })

  it('lets a second process read while the first writes, and takes over a dead one’s lock', () => {
    const folder = temporaryFolder()
    filled(folder, 2)
    const writer = openEmbeddingCache(folder, fingerprint, 3)
    const reader = openEmbeddingCache(folder, fingerprint, 3)
    expect([writer.writable, reader.writable]).toEqual([true, false])
    reader.add([key(5)], vector(5))
    expect([reader.get(key(1)), reader.get(key(5))]).toEqual([vector(1), undefined])
    reader.close()
    writer.close()
    for (const dead of ['999999999', String(process.pid), '']) {
      writeFileSync(join(folder, `${fingerprint}.embeddings.lock`), dead)
      const next = openEmbeddingCache(folder, fingerprint, 3)
      expect(next.writable).toBe(true)
      next.close()
    }
  })

  it('knows a lock that another thread of this process holds', async () => {
    const folder = temporaryFolder()
    const lock = join(folder, `${fingerprint}.embeddings.lock`)
    openEmbeddingCache(folder, fingerprint, 3).close()
    const writer = openEmbeddingCache(folder, fingerprint, 3)
    const content = readFileSync(lock, 'utf8')
    writer.close()
    // a thread has its own copy of every module: all that it shares is what the lock says
    const thread = new Worker(
      `require('node:fs').writeFileSync(require('node:worker_threads').workerData, process.pid + ' ' + performance.timeOrigin)`,
      { eval: true, workerData: lock },
    )
    await once(thread, 'exit')
    expect(readFileSync(lock, 'utf8')).toBe(content)
    const second = openEmbeddingCache(folder, fingerprint, 3)
    expect(second.writable).toBe(false)
    second.close()
  })

  it('keeps no more than it may', () => {
    const cache = openEmbeddingCache(temporaryFolder(), fingerprint, 3, { maxEntries: 2 })
    for (let n = 0; n < 5; n++) cache.add([key(n)], vector(n))
    expect(cache.size).toBe(2)
    cache.close()
  })
})

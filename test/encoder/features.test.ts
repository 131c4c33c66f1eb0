import { execFile } from 'node:child_process'
import { readdirSync, readFileSync, rmSync, statSync, truncateSync, utimesSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'
import { featureKey, openFeatureStore } from '../../src/encoder/qwen3-vl/features.ts'
import { cli } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'

const tower = 'a'.repeat(64)
const key = (n: number): string => n.toString(16).padStart(64, '0')
const numbers = (seed: number, length = 24): Float32Array =>
  Float32Array.from({ length }, (_, i) => Math.fround(Math.sin(seed + i)))

function filesBelow(folder: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
}

describe('the store of visual features', () => {
  it('gives back what was put into it, also when it is opened again', async () => {
    const folder = temporaryFolder()
    const store = await openFeatureStore(folder, tower)
    expect(store.has(key(1))).toBe(false)
    store.put(key(1), numbers(1))
    store.put(key(2), numbers(2, 7))
    expect(store.get(key(1))).toEqual(numbers(1))
    store.close()
    const again = await openFeatureStore(folder, tower)
    expect(again.has(key(2))).toBe(true)
    expect(again.get(key(2))).toEqual(numbers(2, 7))
    expect(again.get(key(1))).toEqual(numbers(1))
    expect(() => again.get(key(3))).toThrow(/missing or damaged.*computed anew/)
  })

  it('keeps numbers of its own: what the caller does with a batch later changes nothing', async () => {
    const store = await openFeatureStore(temporaryFolder(), tower)
    const batch = numbers(5, 48)
    store.put(key(1), batch.subarray(24))
    batch.fill(0)
    expect(store.get(key(1))).toEqual(numbers(29))
  })

  it('takes a file that is cut, changed or of another key for none, and writes it anew', async () => {
    const folder = temporaryFolder()
    const damages: ((file: string, other: string) => void)[] = [
      (file) => truncateSync(file, statSync(file).size - 1),
      (file) => truncateSync(file, 30),
      (file) => truncateSync(file, 0),
      (file) => {
        const content = readFileSync(file)
        content[100] = (content[100] as number) ^ 1
        writeFileSync(file, content)
      },
      (file) => writeFileSync(file, Buffer.concat([readFileSync(file), Buffer.alloc(4)])),
      (file, other) => writeFileSync(file, readFileSync(other)),
    ]
    const first = await openFeatureStore(folder, tower)
    first.put(key(0), numbers(0))
    const other = filesBelow(folder)[0] as string
    for (const [n, damage] of damages.entries()) {
      const name = key(n + 1)
      first.put(name, numbers(n + 1))
      damage(filesBelow(folder).find((file) => file.includes(name)) as string, other)
      const store = await openFeatureStore(folder, tower)
      expect(store.has(name), `damage ${n}`).toBe(false)
      expect(() => store.get(name)).toThrow(name)
      store.put(name, numbers(n + 1))
      expect((await openFeatureStore(folder, tower)).get(name)).toEqual(numbers(n + 1))
    }
  })

  it('never reads features of another tower, not even from its own folder', async () => {
    const folder = temporaryFolder()
    const other = 'b'.repeat(64)
    const store = await openFeatureStore(folder, tower)
    store.put(key(1), numbers(1))
    const foreign = await openFeatureStore(folder, other)
    expect(foreign.has(key(1))).toBe(false)
    foreign.put(key(1), numbers(2))
    const [ours, theirs] = [tower, other].map((name) => filesBelow(join(folder, name))[0] as string)
    writeFileSync(ours as string, readFileSync(theirs as string))
    expect((await openFeatureStore(folder, tower)).has(key(1))).toBe(false)
  })

  it('holds no more in memory than it may and reads the rest again', async () => {
    const folder = temporaryFolder()
    const store = await openFeatureStore(folder, tower, { memory: 2 * 24 * 4 })
    for (const n of [1, 2, 3]) store.put(key(n), numbers(n))
    store.get(key(2))
    store.put(key(4), numbers(4))
    // 2 and 4 were used last; files of the others are needed
    rmSync(join(folder, tower), { recursive: true })
    expect(store.get(key(2))).toEqual(numbers(2))
    expect(store.get(key(4))).toEqual(numbers(4))
    for (const n of [1, 3]) expect(() => store.get(key(n))).toThrow(/missing or damaged/)
  })

  it('is shared by processes that write the same and different features at once', async () => {
    const folder = temporaryFolder()
    const module = pathToFileURL(resolve(dirname(cli), '../encoder/qwen3-vl/features.js')).href
    const program = `
      import { openFeatureStore } from ${JSON.stringify(module)}
      const [folder, tower, first] = process.argv.slice(1)
      const store = await openFeatureStore(folder, tower)
      for (let n = Number(first); n < Number(first) + 40; n++) {
        const key = n.toString(16).padStart(64, '0')
        const features = Float32Array.from({ length: 1 << 16 }, (_, i) => n + i)
        store.put(key, features)
        if (store.get(key)[7] !== n + 7) throw new Error('other features')
      }`
    const start = (first: number) =>
      promisify(execFile)(process.execPath, ['--input-type=module', '-e', program, folder, tower, String(first)])
    await Promise.all([0, 0, 20].map(start))
    const store = await openFeatureStore(folder, tower)
    for (let n = 0; n < 60; n++) expect(store.get(key(n))[7]).toBe(n + 7)
    expect(filesBelow(folder)).toHaveLength(60)
  })

  it('clears away what a killed process left half-written', async () => {
    const folder = temporaryFolder()
    ;(await openFeatureStore(folder, tower)).put(key(1), numbers(1))
    const leftover = join(folder, tower, '.features.tmp-999999999-0123abcd')
    writeFileSync(leftover, 'half')
    const hoursAgo = Date.now() / 1000 - 7200
    utimesSync(leftover, hoursAgo, hoursAgo)
    const store = await openFeatureStore(folder, tower)
    expect(filesBelow(folder)).toHaveLength(1)
    expect(store.get(key(1))).toEqual(numbers(1))
  })

  it('says which folder cannot be written', async () => {
    const folder = temporaryFolder()
    writeFileSync(join(folder, 'file'), '')
    await expect(openFeatureStore(join(folder, 'file'), tower)).rejects.toThrow(/file/)
  })
})

describe('the key of features', () => {
  it('depends on the tower, the grid and every pixel', () => {
    const pixels = numbers(1)
    const changed = numbers(1)
    changed[23] = 0
    const keys = [
      featureKey(tower, [2, 4], pixels),
      featureKey('b'.repeat(64), [2, 4], pixels),
      featureKey(tower, [4, 2], pixels),
      featureKey(tower, [2, 4], changed),
    ]
    expect(new Set(keys).size).toBe(4)
    expect(featureKey(tower, [2, 4], numbers(1))).toBe(keys[0])
    for (const name of keys) expect(name).toMatch(/^[0-9a-f]{64}$/)
  })
})

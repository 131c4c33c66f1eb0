import { getEventListeners } from 'node:events'
import { cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, vi } from 'vitest'
import { openEmbedder, openPair, readAdapter, readEncoder, readEncoderPair } from '../../src/encoder/index.ts'
import { type EmbeddingSpace, type EmbeddingStore, openDiskStore } from '../../src/store/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { expected, tinyBert } from './fixtures.ts'

const { texts } = expected('mean')
const distinct = new Set(texts).size

/** A store in memory that writes down what it was asked, and fails when it is told to. */
function memoryStore(): EmbeddingStore & { calls: string[]; spaces: Map<string, EmbeddingSpace>; failure?: Error } {
  const kept = new Map<string, Float32Array>()
  const nameOf = ({ fingerprint }: EmbeddingSpace, key: Uint8Array): string =>
    `${fingerprint} ${Buffer.from(key).toString('hex')}`
  const store: ReturnType<typeof memoryStore> = {
    calls: [],
    spaces: new Map(),
    async getMany(space, keys) {
      if (store.failure !== undefined) throw store.failure
      store.calls.push(`get ${keys.length}`)
      store.spaces.set(space.fingerprint, space)
      return keys.map((key) => kept.get(nameOf(space, key)))
    },
    async putMany(space, keys, embeddings) {
      if (store.failure !== undefined) throw store.failure
      store.calls.push(`put ${keys.length}`)
      for (const [i, key] of keys.entries())
        kept.set(nameOf(space, key), embeddings.slice(i * space.dimension, (i + 1) * space.dimension))
    },
    close: () => Promise.reject(new Error('a store is its owner’s to close')),
  }
  return store
}

describe('an embedder with a store', () => {
  it('asks it for all at once, computes what it lacks, and leaves it open', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const store = memoryStore()
    const cold = await openEmbedder(profile, { store, threads: 1 })
    expect(store.calls).toEqual(['get 0'])
    const computed = await cold.embedTexts(texts.slice(0, 6), 'node')
    await cold.close()
    expect(store.calls.slice(1)).toEqual(['get 6', 'put 6'])
    const warm = await openEmbedder(profile, { store, threads: 1 })
    const found = await warm.embedTexts(texts.slice(0, 6), 'node')
    expect(found.embeddings).toEqual(computed.embeddings)
    expect(warm.counts).toMatchObject({ computed: 0, cached: 6 })
    await warm.embedTexts(texts, 'node')
    expect(warm.counts).toMatchObject({ computed: distinct - 6, cached: 12 })
    await warm.close()
    expect([...store.spaces.values()]).toEqual([
      { fingerprint: warm.fingerprint, dimension: profile.dimension, name: profile.id },
    ])
  })

  it('loads the model when it has to compute, once, however many ask', async () => {
    const store = memoryStore()
    const profile = await readEncoder(tinyBert('mean'))
    const eager = await openEmbedder(profile, { threads: 1 })
    expect(eager.loaded).toBe(true)
    await eager.close()
    const cold = await openEmbedder(profile, { store, threads: 1 })
    expect(cold.loaded).toBe(false)
    const [all, some] = await Promise.all([
      cold.embedTexts(texts, 'node'),
      cold.embedTexts(texts.slice(2, 4), 'node'),
      cold.load(),
    ])
    expect(cold.loaded).toBe(true)
    expect(some.embeddings).toEqual(all.embeddings.slice(2 * 32, 4 * 32))
    await cold.close()
    expect(cold.loaded).toBe(false)
    const warm = await openEmbedder(profile, { store, threads: 1 })
    await warm.embedTexts(texts, 'node')
    expect(warm.loaded).toBe(false)
    await warm.load()
    expect(warm.loaded).toBe(true)
    await warm.close()
    await expect(warm.load()).rejects.toThrow('The embedder is closed.')
  })

  it('says that a model is broken when it needs it, as often as it is asked', async () => {
    const folder = join(temporaryFolder(), 'encoder')
    cpSync(tinyBert('mean'), folder, { recursive: true })
    const store = memoryStore()
    const whole = await openEmbedder(await readEncoder(folder), { store, threads: 1 })
    await whole.embedTexts(texts.slice(0, 2), 'node')
    await whole.close()
    const profile = await readEncoder(folder)
    const weights = join(folder, 'model.safetensors')
    writeFileSync(weights, readFileSync(weights).subarray(0, 1000))
    await expect(openEmbedder(profile, { threads: 1 })).rejects.toThrow()
    const embedder = await openEmbedder(profile, { store, threads: 1 })
    await embedder.embedTexts(texts.slice(0, 2), 'node')
    await expect(embedder.embedTexts(texts, 'node')).rejects.toThrow()
    await expect(embedder.load()).rejects.toThrow()
    expect(embedder.loaded).toBe(false)
    cpSync(tinyBert('mean'), folder, { recursive: true })
    await embedder.embedTexts(texts, 'node')
    expect(embedder.loaded).toBe(true)
    await embedder.close()
  })

  it('keeps questions where it is told to, and not among the nodes', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const [store, questionStore] = [memoryStore(), memoryStore()]
    const embedder = await openEmbedder(profile, { store, threads: 1 })
    await embedder.embedTexts(['Who asks?'], 'query')
    expect(store.calls).toEqual(['get 0'])
    await embedder.close()
    const both = await openEmbedder(profile, { store, questionStore, threads: 1 })
    await both.embedTexts(['Who asks?'], 'query')
    await both.embedTexts(['Who asks?'], 'query')
    expect(questionStore.calls).toEqual(['get 0', 'get 1', 'put 1', 'get 1'])
    expect(store.calls).toEqual(['get 0', 'get 0'])
    await both.close()
  })

  it('passes on errors of the store, and may be asked again', async () => {
    const store = memoryStore()
    const profile = await readEncoder(tinyBert('mean'))
    store.failure = new Error('holds embeddings of another encoder')
    await expect(openEmbedder(profile, { store, threads: 1 })).rejects.toThrow('another encoder')
    delete store.failure
    const embedder = await openEmbedder(profile, { store, threads: 1 })
    store.failure = new Error('the connection is gone')
    await expect(embedder.embedTexts(texts, 'node')).rejects.toThrow('the connection is gone')
    delete store.failure
    expect((await embedder.embedTexts(texts, 'node')).embeddings).toHaveLength(texts.length * 32)
    await embedder.close()
  })

  it.each([
    [async () => [new Float32Array(32)], /gave 1 results for 2 keys/],
    [async () => [new Float32Array(32), new Float32Array(3)], /an embedding of 3 numbers; this encoder's have 32/],
    [async () => [undefined, new Float32Array(32).fill(Number.NaN)], /not finite/],
  ])('does not take answers of a store that do not fit', async (answer, message) => {
    const store = memoryStore()
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')), { store, threads: 1 })
    store.getMany = answer
    await expect(embedder.embedTexts(texts.slice(0, 2), 'node')).rejects.toThrow(message)
    await embedder.close()
  })

  it('keeps no signal of a call that is over', async () => {
    const store = memoryStore()
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')), { store, threads: 1 })
    const any = vi.spyOn(AbortSignal, 'any')
    const { signal } = new AbortController()
    await Promise.all(Array.from({ length: 20 }, () => embedder.embedTexts(texts.slice(0, 2), 'node', { signal })))
    expect(getEventListeners(signal, 'abort')).toEqual([])
    expect(any).not.toHaveBeenCalled()
    any.mockRestore()
    await embedder.close()
  })

  it('names the keys that its embeddings are found by', async () => {
    const folder = temporaryFolder()
    const profile = await readEncoder(tinyBert('mean'))
    const embedder = await openEmbedder(profile, { cache: folder, threads: 1 })
    const { embeddings } = await embedder.embedTexts(texts, 'node')
    const names = await embedder.keys(
      texts.map((text) => ({ text })),
      'node',
    )
    const { fingerprint, dimension } = embedder
    await embedder.close()
    const store = openDiskStore(folder)
    const found = await store.getMany({ fingerprint, dimension }, names)
    await store.close()
    expect(found.map((embedding) => embedding && [...embedding])).toEqual(
      texts.map((_, i) => [...embeddings.slice(32 * i, 32 * (i + 1))]),
    )
  })
})

describe('what an embedding is kept under', () => {
  it('tells apart what gives other numbers', async () => {
    const folder = join(temporaryFolder(), 'encoder')
    cpSync(tinyBert('mean'), folder, { recursive: true })
    const store = memoryStore()
    const profile = await readEncoder(folder)
    const adapter = await readAdapter(join(tinyBert('mean'), 'adapter'), profile)
    const fingerprintOf = async (options: Parameters<typeof openEmbedder>[1]): Promise<string> => {
      const embedder = await openEmbedder(profile, { ...options, store })
      const { fingerprint } = embedder
      await embedder.close()
      return fingerprint
    }
    const same = [await fingerprintOf({}), await fingerprintOf({ threads: 1, tokenBudget: 64, device: 'cpu' })]
    expect(new Set(same).size).toBe(1)
    const others = [
      await fingerprintOf({ adapter }),
      await fingerprintOf({ maxLength: 12 }),
      await fingerprintOf({ device: 'webgpu' }),
      await fingerprintOf({ device: 'webgpu', precision: 'fp16' }),
      await fingerprintOf({ optimization: 'disabled' }),
    ]
    expect(new Set([...same, ...others]).size).toBe(6)
    // a store that a GPU filled, read on the CPU, and the other way round
    expect(await fingerprintOf({ storedFrom: 'webgpu' })).toBe(others[2])
    expect(await fingerprintOf({ device: 'webgpu', storedFrom: 'cpu' })).toBe(same[0])
  })

  it('tells an ONNX folder’s variants apart, which give other numbers', async () => {
    const folder = join(temporaryFolder(), 'encoder')
    const fixtures = join(import.meta.dirname, '..', 'fixtures', 'onnx')
    cpSync(join(fixtures, 'tiny-bert-fused'), folder, { recursive: true })
    const int8 = join(fixtures, 'tiny-bert-fused-int8', 'onnx', 'model.onnx')
    cpSync(int8, join(folder, 'onnx', 'model_int8.onnx'))
    const store = memoryStore()
    const runs = []
    for (const onnxFile of ['model.onnx', 'model_int8.onnx']) {
      const profile = await readEncoder(folder, { kind: 'onnx', onnxFile })
      const embedder = await openEmbedder(profile, { store, threads: 1 })
      runs.push({ ...(await embedder.embedTexts(texts.slice(0, 2), 'node')), ...embedder.counts })
      await embedder.close()
    }
    expect(runs.map(({ cached }) => cached)).toEqual([0, 0])
    expect(runs[1]?.embeddings).not.toEqual(runs[0]?.embeddings)
    expect(store.spaces.size).toBe(2)
  })
})

describe('a pair with a store', () => {
  const adapter = join(tinyBert('mean'), 'adapter')
  const pairOf = () => readEncoderPair(tinyBert('mean'), { adapter })

  it('loads f0 only when its nodes are there', async () => {
    const store = memoryStore()
    const cold = await openPair(await pairOf(), { store, threads: 1 })
    expect([cold.query.loaded, cold.node.loaded]).toEqual([true, false])
    await cold.node.embedTexts(texts, 'node')
    expect(cold.node.loaded).toBe(true)
    await cold.close()
    const warm = await openPair(await pairOf(), { store, threads: 1 })
    await warm.query.embedTexts(['Who asks?'], 'query')
    await warm.node.embedTexts(texts, 'node')
    expect([warm.query.loaded, warm.node.loaded]).toEqual([true, false])
    await warm.close()
    // f0's embeddings do not come into the nodes' table
    expect([...store.spaces.keys()]).toEqual([warm.node.fingerprint])
  })

  it('loads neither when questions are known, too, in a cache on disk', async () => {
    const cache = temporaryFolder()
    for (const loaded of [true, false]) {
      const pair = await openPair(await pairOf(), { cache, threads: 1 })
      expect([pair.query.loaded, pair.node.loaded]).toEqual([false, false])
      await pair.query.embedTexts(['Who asks?'], 'query')
      await pair.node.embedTexts(texts, 'node')
      expect([pair.query.loaded, pair.node.loaded]).toEqual([loaded, loaded])
      await pair.close()
    }
    expect(readdirSync(cache).filter((name) => name.endsWith('.embeddings'))).toHaveLength(2)
  })

  it('shares one encoder where nothing is trained, and its store', async () => {
    const store = memoryStore()
    const pair = await openPair(await readEncoderPair(tinyBert('mean')), { store, threads: 1 })
    expect(pair.query).toBe(pair.node)
    await pair.query.embedTexts(['Who asks?'], 'query')
    await pair.node.embedTexts(texts.slice(0, 2), 'node')
    expect(store.calls).toEqual(['get 0', 'get 2', 'put 2'])
    await pair.close()
  })

  it('keeps questions on disk and nodes in a store where both are given', async () => {
    const [store, cache] = [memoryStore(), temporaryFolder()]
    const pair = await openPair(await pairOf(), { store, cache, threads: 1 })
    await pair.query.embedTexts(['Who asks?'], 'query')
    await pair.node.embedTexts(texts, 'node')
    await pair.close()
    expect(readdirSync(cache).filter((name) => name.endsWith('.embeddings'))).toEqual([
      `${pair.query.fingerprint}.embeddings`,
    ])
    expect(store.calls).toContain(`put ${distinct}`)
  })
})

describe('a cache on disk', () => {
  it('stays under its limit', async () => {
    const cache = temporaryFolder()
    const entry = 16 + 4 * 32 + 4 + 8
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')), {
      ...{ cache, threads: 1, cacheBytes: 104 + 4 * entry, tokenBudget: 24 },
    })
    await embedder.embedTexts(texts, 'node')
    await embedder.close()
    const again = await openEmbedder(await readEncoder(tinyBert('mean')), { cache, threads: 1 })
    await again.embedTexts(texts, 'node')
    expect(again.counts.cached).toBeGreaterThan(0)
    expect(again.counts.cached).toBeLessThanOrEqual(4)
    await again.close()
  })

  it('that cannot be written is said once, and computing goes on', async () => {
    const folder = join(temporaryFolder(), 'cache')
    const warnings: string[] = []
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')), {
      ...{ cache: folder, threads: 1, tokenBudget: 24, warn: (message) => warnings.push(message) },
    })
    standInTheWay(folder, embedder.fingerprint)
    const { embeddings } = await embedder.embedTexts(texts, 'node')
    expect(embeddings).toHaveLength(texts.length * 32)
    expect(warnings).toHaveLength(1)
    expect(warnings[0]).toMatch(/cannot write the embedding store: it is a folder.* computed without being kept/)
    await embedder.close()
  })

  it('warns by the process where nobody listens', async () => {
    const emit = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    const folder = join(temporaryFolder(), 'cache')
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')), { cache: folder, threads: 1 })
    standInTheWay(folder, embedder.fingerprint)
    await embedder.embedTexts(texts, 'node')
    expect(emit).toHaveBeenCalledTimes(1)
    emit.mockRestore()
    await embedder.close()
  })
})

/** A folder where the store would have its lock. */
function standInTheWay(folder: string, fingerprint: string): void {
  mkdirSync(join(folder, `${fingerprint}.embeddings.lock`), { recursive: true })
}

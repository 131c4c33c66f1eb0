import { describe, expect, it } from 'vitest'
import type { EmbeddingSpace, EmbeddingStore } from '../../src/store/index.ts'
import { ITEMS, QUESTION, refineHere, serving } from './serving.ts'

const shared = serving()
const { open } = shared

/** A store in this thread's memory. */
class MapStore implements EmbeddingStore {
  readonly kept = new Map<string, Float32Array>()
  readonly spaces: EmbeddingSpace[] = []
  puts = 0
  closed = false
  /** Thrown by the next question to it. */
  failure: Error | undefined

  async getMany(space: EmbeddingSpace, keys: readonly Uint8Array[]): Promise<(Float32Array | undefined)[]> {
    this.spaces.push(space)
    this.fail()
    return keys.map((key) => this.kept.get(Buffer.from(key).toString('hex')))
  }

  async putMany(space: EmbeddingSpace, keys: readonly Uint8Array[], embeddings: Float32Array): Promise<void> {
    this.puts += keys.length
    this.fail()
    for (const [i, key] of keys.entries()) {
      const embedding = embeddings.slice(i * space.dimension, (i + 1) * space.dimension)
      this.kept.set(Buffer.from(key).toString('hex'), embedding)
    }
  }

  async close(): Promise<void> {
    this.closed = true
  }

  private fail(): void {
    const { failure } = this
    this.failure = undefined
    if (failure !== undefined) throw failure
  }
}

describe("the program's own store", () => {
  it('gets the embeddings of nodes, serves the next encoder, and stays open', async () => {
    const store = new MapStore()
    const expected = await refineHere(shared.checkpoint)
    const encoder = await open(shared.checkpoint, { store })
    expect(await encoder.refine(QUESTION, ITEMS)).toEqual(expected)
    await encoder.close()
    const { puts } = store
    expect(puts).toBeGreaterThan(10)
    expect(store.spaces[0]).toMatchObject({ fingerprint: expect.stringMatching(/^[0-9a-f]{64}$/), dimension: 128 })

    const next = await open(shared.checkpoint, { store })
    expect(await next.refine(QUESTION, ITEMS)).toEqual(expected)
    expect(await next.refine('Where does the tower stand?', ITEMS)).not.toEqual(expected)
    await next.close()
    expect(store.puts).toBe(puts)
    expect(store.closed).toBe(false)
  })

  it('fails a call by its own error, and the next call works', async () => {
    const store = new MapStore()
    const encoder = await open(shared.checkpoint, { store })
    store.failure = new Error('connection refused')
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toThrow('The embedding store failed: connection refused')
    store.failure = Object.assign(new RangeError('no such table', { cause: 'its cause' }), { code: '42P01' })
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toMatchObject({
      message: 'The embedding store failed: no such table',
      cause: { name: 'RangeError', message: 'no such table', code: '42P01', cause: { message: 'its cause' } },
    })
    store.failure = Object.create(null) as Error
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toThrow('The embedding store failed: ')
    store.failure = new shared.library.InputError('the table is missing', { file: 'embeddings' })
    const refused = encoder.refine(QUESTION, ITEMS)
    await expect(refused).rejects.toBeInstanceOf(shared.library.InputError)
    await expect(refused).rejects.toMatchObject({ file: 'embeddings' })
    expect(await encoder.refine(QUESTION, ITEMS)).toEqual(await refineHere(shared.checkpoint))
  })

  it('of another encoder is refused when the encoder is opened', async () => {
    const store = new MapStore()
    store.failure = new shared.library.InputError('The store holds the embeddings of another encoder.')
    await expect(open(shared.checkpoint, { store })).rejects.toThrow('embeddings of another encoder')
  })

  it('is told when its answers do not fit', async () => {
    const short = new MapStore()
    short.getMany = async () => []
    const encoder = await open(shared.checkpoint, { store: short })
    await expect(encoder.refine(QUESTION, ITEMS)).rejects.toThrow(/getMany gave 0 results for \d+ keys/)
    const other = new MapStore()
    other.getMany = async (_, keys) => keys.map(() => new Float32Array(3))
    const second = await open(shared.checkpoint, { store: other })
    await expect(second.refine(QUESTION, ITEMS)).rejects.toThrow(/an embedding of 3 numbers; .* have 128/)
  })
})

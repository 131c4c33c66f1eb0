import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { EmbeddingSpace, EmbeddingStore } from '../../src/store/index.ts'

export const space: EmbeddingSpace = { fingerprint: 'ab'.repeat(32), dimension: 3, name: 'tests/one' }
export const otherSpace: EmbeddingSpace = { fingerprint: 'cd'.repeat(32), dimension: 3, name: 'tests/other' }

/** The n-th of keys that are as unlike as hashes are. */
export function key(n: number): Uint8Array {
  const bytes = new Uint8Array(16)
  const view = new DataView(bytes.buffer)
  for (let i = 0; i < 4; i++) view.setUint32(4 * i, Math.imul(n + 1, 0x9e3779b1 + 2 * i))
  view.setUint32(12, n)
  return bytes
}

export const keys = (from: number, to: number): Uint8Array[] =>
  Array.from({ length: to - from }, (_, i) => key(from + i))

/** The n-th embedding, float32 [dimension]. */
export function vector(n: number, dimension = 3): Float32Array {
  return Float32Array.from({ length: dimension }, (_, k) => Math.fround((n + 1) / (k + 3)) * (k % 2 === 0 ? 1 : -1))
}

export const vectors = (from: number, to: number, dimension = 3): Float32Array =>
  Float32Array.from(keys(from, to).flatMap((_, i) => [...vector(from + i, dimension)]))

export const bits = (numbers: Float32Array | undefined): number[] | undefined =>
  numbers && [...new Uint32Array(numbers.slice().buffer)]

/** A place for embeddings that several stores may be opened over, one after the other or at once. */
export interface Place {
  open(): Promise<EmbeddingStore>
}

/** What every embedding store does. */
export function describeStore(name: string, newPlace: () => Promise<Place>): void {
  describe(name, () => {
    it('gives back what was put, in the order of the keys, and undefined for the rest', async () => {
      const store = await (await newPlace()).open()
      expect(await store.getMany(space, keys(0, 2))).toEqual([undefined, undefined])
      await store.putMany(space, keys(0, 5), vectors(0, 5))
      expect(await store.getMany(space, [key(3), key(9), key(0), key(3)])).toEqual([
        vector(3),
        undefined,
        vector(0),
        vector(3),
      ])
      await store.close?.()
    })

    it('keeps it for the store that is opened next', async () => {
      const place = await newPlace()
      const first = await place.open()
      await first.putMany(space, keys(0, 3), vectors(0, 3))
      await first.close?.()
      const second = await place.open()
      expect(await second.getMany(space, keys(0, 4))).toEqual([vector(0), vector(1), vector(2), undefined])
      await second.putMany(space, keys(3, 4), vectors(3, 4))
      expect(await second.getMany(space, keys(2, 4))).toEqual([vector(2), vector(3)])
      await second.close?.()
    })

    it('leaves known keys as they are, and takes a key that comes twice once', async () => {
      const store = await (await newPlace()).open()
      await store.putMany(space, [key(1), key(1), key(2)], Float32Array.of(...vector(1), ...vector(8), ...vector(2)))
      await store.putMany(space, [key(2), key(3)], Float32Array.of(...vector(9), ...vector(3)))
      expect(await store.getMany(space, keys(1, 4))).toEqual([vector(1), vector(2), vector(3)])
      await store.close?.()
    })

    it('does nothing for no keys', async () => {
      const store = await (await newPlace()).open()
      expect(await store.getMany(space, [])).toEqual([])
      await store.putMany(space, [], new Float32Array(0))
      expect(await store.getMany(space, [])).toEqual([])
      await store.close?.()
    })

    it('returns every finite float32 bit for bit', async () => {
      const place = await newPlace()
      const extremes = Float32Array.of(
        ...[
          0,
          -0,
          1e-45,
          -1e-45,
          1.1754942e-38,
          1.17549435e-38,
          3.4028235e38,
          -3.4028235e38,
          0.1,
          1 / 3,
          16777217,
          1e-20,
        ],
      )
      const store = await place.open()
      await store.putMany(space, keys(0, 4), extremes)
      const found = await store.getMany(space, keys(0, 4))
      expect(found.map(bits)).toEqual([0, 1, 2, 3].map((n) => bits(extremes.subarray(3 * n, 3 * n + 3))))
      let next = 100
      await fc.assert(
        fc.asyncProperty(
          fc.array(fc.float({ noNaN: true, noDefaultInfinity: true }), { minLength: 30, maxLength: 30 }),
          async (numbers) => {
            const embeddings = Float32Array.from(numbers)
            const used = keys(next, next + 10)
            next += 10
            await store.putMany(space, used, embeddings)
            const again = await store.getMany(space, used)
            expect(again.flatMap(bits)).toEqual(bits(embeddings))
          },
        ),
        { numRuns: 10 },
      )
      await store.close?.()
    })

    it('holds more than is read or written at once', async () => {
      const place = await newPlace()
      const count = 2100
      const store = await place.open()
      await store.putMany(space, keys(0, count), vectors(0, count))
      await store.close?.()
      const again = await place.open()
      const found = await again.getMany(space, keys(0, count + 5))
      expect(found.map((embedding, n) => n < count === (embedding !== undefined))).not.toContain(false)
      expect(found[1234]).toEqual(vector(1234))
      expect(found[count - 1]).toEqual(vector(count - 1))
      await again.close?.()
    })

    it('keeps all that several put at once', async () => {
      const place = await newPlace()
      const stores = [await place.open(), await place.open(), await place.open()]
      const puts = stores.flatMap((store, s) =>
        // every second key is put by two of them
        Array.from({ length: 10 }, (_, n) =>
          store.putMany(space, keys(20 * s + 2 * n, 20 * s + 2 * n + 22), vectors(20 * s + 2 * n, 20 * s + 2 * n + 22)),
        ),
      )
      await Promise.all(puts)
      for (const store of stores) await store.close?.()
      const reader = await place.open()
      const found = await reader.getMany(space, keys(0, 80))
      expect(found).toEqual(keys(0, 80).map((_, n) => vector(n)))
      await reader.close?.()
    })

    it('refuses what no store can have', async () => {
      const store = await (await newPlace()).open()
      await expect(store.getMany({ fingerprint: 'AB', dimension: 3 }, [])).rejects.toThrow(/64 hexadecimal digits/)
      await expect(store.getMany({ ...space, dimension: 0 }, [])).rejects.toThrow(/whole number/)
      await expect(store.getMany(space, [new Uint8Array(15)])).rejects.toThrow(/16 bytes/)
      await expect(store.putMany(space, keys(0, 2), new Float32Array(5))).rejects.toThrow(/2 embeddings of 3/)
      await store.close?.()
    })

    it('is not to be used once it is closed', async () => {
      const store = await (await newPlace()).open()
      await store.close?.()
      await store.close?.()
      await expect(store.getMany(space, keys(0, 1))).rejects.toThrow('The embedding store is closed.')
      await expect(store.putMany(space, keys(0, 1), vectors(0, 1))).rejects.toThrow('The embedding store is closed.')
    })
  })
}

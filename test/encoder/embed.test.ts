import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openEmbedder, readAdapter, readEncoder } from '../../src/encoder/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { expected, expectedAdapter, largestDifference, tinyBert } from './fixtures.ts'

describe('openEmbedder over a checkpoint', () => {
  it.each(['mean', 'cls'] as const)('gives the embeddings of sentence-transformers (%s)', async (variant) => {
    const embedder = await openEmbedder(await readEncoder(tinyBert(variant)), { threads: 1 })
    const { texts, query, node } = expected(variant)
    // cls: float16 weights, embeddings of length about 6
    const bound = variant === 'mean' ? 1e-5 : 5e-5
    expect(largestDifference((await embedder.embedTexts(texts, 'query')).embeddings, query)).toBeLessThan(bound)
    expect(largestDifference((await embedder.embedTexts(texts, 'node')).embeddings, node)).toBeLessThan(bound)
    await embedder.close()
  })

  it('gives the same embeddings however the texts are packed, to rounding', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const { texts, embeddings } = expected('mean')
    for (const tokenBudget of [24, 64, 1024]) {
      const embedder = await openEmbedder(profile, { threads: 1, tokenBudget })
      const found = (await embedder.embedTexts(texts, 'node')).embeddings
      expect(largestDifference(found, embeddings)).toBeLessThan(1e-5)
      await embedder.close()
    }
  })

  it('computes equal token sequences once and says which texts share one', async () => {
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')), { threads: 1 })
    const { texts, truncated } = expected('mean')
    const result = await embedder.embedTexts(texts, 'node')
    expect(result.same[8]).toBe(0)
    expect([...result.same].filter((n, i) => n !== i)).toEqual([0])
    expect(result.embeddings.slice(8 * 32, 9 * 32)).toEqual(result.embeddings.slice(0, 32))
    expect(result.truncated).toEqual(truncated)
    expect(embedder.counts.computed).toBe(texts.length - 1)
    await embedder.close()
  })

  it('is bitwise repeatable', async () => {
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')))
    const { texts } = expected('mean')
    const once = await embedder.embedTexts(texts, 'node')
    expect((await embedder.embedTexts(texts, 'node')).embeddings).toEqual(once.embeddings)
    await embedder.close()
  })

  it('gives the embeddings of PEFT with an adapter that PEFT saved', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const adapter = await readAdapter(join(tinyBert('mean'), 'adapter'), profile)
    const embedder = await openEmbedder(profile, { adapter, threads: 1 })
    const { texts } = expected('mean')
    const { embeddings } = await embedder.embedTexts(texts, 'node')
    expect(largestDifference(embeddings, expectedAdapter().embeddings)).toBeLessThan(1e-5)
    expect(largestDifference(embeddings, expected('mean').embeddings)).toBeGreaterThan(0.1)
    await embedder.close()
  })

  it('has another fingerprint with an adapter or a lower maximum length', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const adapter = await readAdapter(join(tinyBert('mean'), 'adapter'), profile)
    const embedders = [
      await openEmbedder(profile),
      await openEmbedder(profile, { adapter }),
      await openEmbedder(profile, { maxLength: 12 }),
    ]
    expect(new Set(embedders.map((e) => e.fingerprint)).size).toBe(3)
    for (const embedder of embedders) await embedder.close()
  })

  it('reads the cache instead of computing, and computes again for an adapter', async () => {
    const cache = temporaryFolder()
    const profile = await readEncoder(tinyBert('mean'))
    const adapter = await readAdapter(join(tinyBert('mean'), 'adapter'), profile)
    const { texts } = expected('mean')
    const runs = []
    for (const options of [{ cache }, { cache }, { cache, adapter }]) {
      const embedder = await openEmbedder(profile, options)
      runs.push({ ...(await embedder.embedTexts(texts, 'node')), ...embedder.counts })
      await embedder.close()
    }
    expect(runs.map((run) => [run.computed, run.cached])).toEqual([
      [10, 0],
      [0, 10],
      [10, 0],
    ])
    expect(runs[1]?.embeddings).toEqual(runs[0]?.embeddings)
    expect(runs[2]?.embeddings).not.toEqual(runs[0]?.embeddings)
  })

  it('stops between batches when asked to', async () => {
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')), { tokenBudget: 24 })
    const controller = new AbortController()
    const onProgress = ({ done }: { done: number }) => {
      if (done >= 2) controller.abort()
    }
    const run = embedder.embedTexts(expected('mean').texts, 'node', { signal: controller.signal, onProgress })
    await expect(run).rejects.toThrow(/abort/i)
    expect(embedder.counts.computed).toBeLessThan(5)
    await embedder.close()
  })

  it('rejects what it is asked once it is closed, and what it has not finished', async () => {
    const cache = temporaryFolder()
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')), { tokenBudget: 24, cache })
    const closed: Promise<void>[] = []
    const onProgress = ({ done }: { done: number }) => {
      if (done >= 2) closed.push(embedder.close())
    }
    const run = embedder.embedTexts(expected('mean').texts, 'node', { onProgress })
    await expect(run).rejects.toThrow('The embedder is closed.')
    await Promise.all([...closed, embedder.close()])
    expect(embedder.counts.computed).toBeLessThan(5)
    await expect(embedder.embedTexts(['a'], 'node')).rejects.toThrow('The embedder is closed.')
  })

  it('embeds nothing as nothing', async () => {
    const embedder = await openEmbedder(await readEncoder(tinyBert('mean')))
    expect((await embedder.embedTexts([], 'node')).embeddings).toHaveLength(0)
    await embedder.close()
  })
})

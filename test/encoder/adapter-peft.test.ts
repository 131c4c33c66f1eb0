import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { type Adapter, openEmbedder, readAdapter, readEncoder, writeAdapter } from '../../src/encoder/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { largestDifference, tinyBert } from './fixtures.ts'
import { tinyQwen3 } from './qwen3-known.ts'

/** Adapters that PEFT made, with what it makes of them: written by bench/peft-adapters.mjs --fixtures. */
const fixtures = join(import.meta.dirname, '..', 'fixtures', 'peft')

interface Expected {
  texts: string[]
  /** `modules`: rank and scale by module. */
  adapters: Record<string, { what: string; modules: Record<string, [number, number]>; embeddings: number[][] }>
}

const HEAD = /^(?:pooler|classifier|cls|lm_head|score)\./

describe.each([
  ['tiny-bert', tinyBert('mean')],
  ['qwen3', tinyQwen3('qwen3')],
])('adapters of PEFT over %s', (name, checkpoint) => {
  const { texts, adapters }: Expected = JSON.parse(readFileSync(join(fixtures, name, 'expected.json'), 'utf8'))
  const scales = ({ targets }: Adapter) =>
    Object.fromEntries(targets.map(({ module, rank, alpha }) => [module, [rank, expect.closeTo(alpha / rank, 12)]]))

  it.each(Object.entries(adapters))(
    '%s: modules, ranks, scales and embeddings are those of PEFT',
    async (folder, { modules, embeddings }) => {
      const profile = await readEncoder(checkpoint)
      const adapter = await readAdapter(join(fixtures, name, folder), profile)
      const inside = Object.fromEntries(Object.entries(modules).filter(([module]) => !HEAD.test(module)))
      expect(inside).toEqual(scales(adapter))
      const embedder = await openEmbedder(profile, { adapter, threads: 1 })
      const ours = (await embedder.embedTexts(texts, 'node')).embeddings
      await embedder.close()
      expect(largestDifference(ours, embeddings)).toBeLessThan(1e-5)
    },
  )

  it.each(Object.keys(adapters))('%s: is the same after writing it again, with its settings', async (folder) => {
    const profile = await readEncoder(checkpoint)
    const { leftOut: _, ...adapter } = await readAdapter(join(fixtures, name, folder), profile)
    const again = join(temporaryFolder(), 'adapter')
    await writeAdapter(again, { ...adapter, baseFingerprint: profile.fingerprint }, profile)
    expect(await readAdapter(again, profile)).toEqual({ ...adapter, baseFingerprint: profile.fingerprint })
    const config = (at: string) => JSON.parse(readFileSync(join(at, 'adapter_config.json'), 'utf8'))
    const [theirs, ours] = [config(join(fixtures, name, folder)), config(again)]
    expect(ours.use_rslora).toBe(theirs.use_rslora)
    // rank-stabilised or not, alphas are those that PEFT has
    if (Object.keys(theirs.alpha_pattern).length === 0)
      expect([ours.lora_alpha, ours.alpha_pattern]).toEqual([theirs.lora_alpha, {}])
  })
})

describe('an adapted head', () => {
  it('is left out and named, whether its matrices are stored or all of it', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const read = (folder: string) => readAdapter(join(fixtures, 'tiny-bert', folder), profile)
    expect((await read('masked-lm-head')).leftOut).toEqual(['cls.predictions.transform.dense'])
    expect((await read('classifier')).leftOut).toEqual(['classifier'])
    expect((await read('masked-lm')).leftOut).toBeUndefined()
  })
})

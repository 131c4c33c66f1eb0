import { describe, expect, it } from 'vitest'
import { openWeights } from '../../src/encoder/index.ts'
import { qwen3Packed } from '../../src/encoder/qwen3/index.ts'
import { openSession, type Tensor } from '../../src/onnx/index.ts'
import {
  asTrie,
  cosine,
  type Kind,
  knownInputs,
  type Layout,
  packedInputs,
  qwen3Profile,
  relativeError,
  sideBySide,
} from './qwen3-known.ts'

const hidden = 64

async function openPacked(kind: Kind, changes: { normalize?: boolean } = {}) {
  const profile = { ...(await qwen3Profile(kind)), ...changes }
  const { weights, folder } = await openWeights(profile)
  const session = await openSession(qwen3Packed(profile, weights), { externalFolder: folder, threads: 1 })
  return {
    async run(layout: Layout): Promise<Float32Array[]> {
      const { embeddings } = await session.run(packedInputs(layout, kind, hidden))
      const { data, shape } = embeddings as Tensor
      return layout.last.map((_, i) => (data as Float32Array).slice(i * shape[1]!, (i + 1) * shape[1]!))
    },
    release: () => session.release(),
  }
}

describe.each(['qwen3', 'qwen3-vl'] as const)('the packed graph of a %s checkpoint', (kind) => {
  it('computes the hidden states of transformers', async () => {
    const packed = await openPacked(kind, { normalize: false })
    for (const input of await knownInputs(kind)) {
      const layout = sideBySide([[input]])
      layout.last = input.ids.map((_, i) => [0, i])
      const states = (await packed.run(layout)).flatMap((state) => Array.from(state))
      expect(relativeError(states, input.hidden), input.name).toBeLessThan(1e-4)
    }
    await packed.release()
  })

  it('computes the embeddings of transformers, packed as one by one', async () => {
    const inputs = await knownInputs(kind)
    const packed = await openPacked(kind)
    const alone = await Promise.all(inputs.map((input) => packed.run(sideBySide([[input]]))))
    const [first, ...others] = inputs
    const together = await packed.run(sideBySide([[first!], others.slice(0, 2), others.slice(2)]))
    inputs.forEach(({ name, embedding }, i) => {
      expect(relativeError(alone[i]![0]!, embedding), name).toBeLessThan(1e-4)
      expect(cosine(alone[i]![0]!, embedding), name).toBeGreaterThan(0.99999)
      expect(relativeError(together[i]!, alone[i]![0]!), name).toBeLessThan(1e-5)
    })
    await packed.release()
  })
  it('computes the same of sequences whose common beginnings are there once', async () => {
    const inputs = (await knownInputs(kind)).flatMap((input) => {
      const { ids } = input
      const changed = ids.map((id, i) => (i < ids.length - 2 ? id : (id + 7) % 400))
      return [input, { ...input, ids: changed }, { ...input, ids: ids.slice(0, Math.max(1, ids.length - 4)) }]
    })
    const packed = await openPacked(kind)
    const apart = await packed.run(sideBySide(inputs.map((input) => [input])))
    const trie = asTrie(inputs)
    const tokens = inputs.reduce((sum, { ids }) => sum + ids.length, 0)
    expect(trie.rows[0]!.length).toBeLessThan(tokens / 2)
    const shared = await packed.run(trie)
    inputs.forEach(({ name }, i) => {
      expect(relativeError(shared[i]!, apart[i]!), name).toBeLessThan(1e-5)
    })
    await packed.release()
  })
})

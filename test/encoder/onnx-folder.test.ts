import { cpSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openEmbedder, openWeights, plainEncoder, readAdapter, readEncoder } from '../../src/encoder/index.ts'
import { encodeModel, GraphBuilder, openSafetensors, type Tensor } from '../../src/onnx/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { expected, largestDifference, tinyBert } from './fixtures.ts'

/** The fixture as a transformers.js-style folder: onnx/model.onnx instead of safetensors. */
async function onnxFolder(variant: 'mean' | 'cls'): Promise<string> {
  const profile = await readEncoder(tinyBert(variant))
  const { weights } = await openWeights(profile)
  const stored = await openSafetensors(profile.weights)
  const inMemory = new Map<string, Tensor>()
  for (const name of weights.keys()) inMemory.set(name, await stored.read(name))
  const folder = join(temporaryFolder(), 'exported')
  cpSync(tinyBert(variant), folder, { recursive: true })
  rmSync(join(folder, 'model.safetensors'))
  mkdirSync(join(folder, 'onnx'))
  writeFileSync(join(folder, 'onnx', 'model.onnx'), encodeModel(plainEncoder(profile, inMemory)))
  return folder
}

describe('openEmbedder over an ONNX folder', () => {
  it.each(['mean', 'cls'] as const)('gives the embeddings of sentence-transformers (%s)', async (variant) => {
    const profile = await readEncoder(await onnxFolder(variant))
    expect(profile.kind).toBe('onnx')
    const { texts, query, node } = expected(variant)
    const bound = variant === 'mean' ? 1e-5 : 5e-5
    for (const tokenBudget of [40, 4096]) {
      const embedder = await openEmbedder(profile, { threads: 1, tokenBudget })
      expect(largestDifference((await embedder.embedTexts(texts, 'query')).embeddings, query)).toBeLessThan(bound)
      expect(largestDifference((await embedder.embedTexts(texts, 'node')).embeddings, node)).toBeLessThan(bound)
      await embedder.close()
    }
  })

  it('pools the last token where it is told to', async () => {
    const checkpoint = await readEncoder(tinyBert('mean'), { pooling: 'last' })
    const exported = await readEncoder(await onnxFolder('mean'), { pooling: 'last' })
    const [packed, padded] = [await openEmbedder(checkpoint), await openEmbedder(exported)]
    const { texts, embeddings } = expected('mean')
    const last = (await packed.embedTexts(texts, 'node')).embeddings
    const rows = texts.map((_, i) => Array.from((last as Float32Array).subarray(i * 32, (i + 1) * 32)))
    expect(largestDifference((await padded.embedTexts(texts, 'node')).embeddings, rows)).toBeLessThan(1e-5)
    expect(largestDifference(last, embeddings)).toBeGreaterThan(0.1)
    await packed.close()
    await padded.close()
  })

  it('uses only standard operators of opset 17 in the exported graph', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const { weights } = await openWeights(profile)
    const graph = plainEncoder(profile, weights)
    expect(graph.opset).toBeLessThanOrEqual(17)
    expect([...new Set(graph.nodes.map((node) => node.domain))]).toEqual([''])
    expect(graph.inputs).toEqual(['input_ids', 'attention_mask', 'token_type_ids'])
    expect(graph.outputs).toEqual(['last_hidden_state'])
  })

  it('refuses an adapter', async () => {
    const adapter = await readAdapter(join(tinyBert('mean'), 'adapter'), await readEncoder(tinyBert('mean')))
    const profile = await readEncoder(await onnxFolder('mean'))
    await expect(openEmbedder(profile, { adapter })).rejects.toThrow(/adapter cannot be put on an ONNX graph/)
  })

  it('says what a graph lacks', async () => {
    const folder = await onnxFolder('mean')
    const g = new GraphBuilder()
    g.output(g.add(g.input('pixel_values', 'float32', ['batch']), g.scalar(1)), 'last_hidden_state')
    writeFileSync(join(folder, 'onnx', 'model.onnx'), encodeModel(g.build()))
    await expect(openEmbedder(await readEncoder(folder))).rejects.toThrow(/asks for "pixel_values"/)
  })
})

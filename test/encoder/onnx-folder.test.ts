import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import {
  openEmbedder,
  openWeights,
  plainEncoder,
  readAdapter,
  readEncoder,
  readEncoderPair,
} from '../../src/encoder/index.ts'
import { decodeModel, encodeModel, GraphBuilder, openSafetensors, type Tensor } from '../../src/onnx/index.ts'
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

  it('gives a text the same embedding whatever lies beside it, where a graph quantises by the range of the batch', async () => {
    const profile = await readEncoder(join(import.meta.dirname, '..', 'fixtures', 'onnx', 'tiny-bert-int8'))
    const { texts } = expected('mean')
    const embedder = await openEmbedder(profile, { threads: 1 })
    const together = (await embedder.embedTexts(texts, 'node')).embeddings
    for (const [i, text] of texts.entries())
      expect((await embedder.embedTexts([text], 'node')).embeddings).toEqual(together.slice(i * 32, (i + 1) * 32))
    await embedder.close()
  })

  it('is another encoder when the file of its weights is another, whatever that is called', async () => {
    const folder = await onnxFolder('mean')
    const file = join(folder, 'onnx', 'model.onnx')
    const graph = decodeModel(readFileSync(file))
    const [name, tensor] = [...graph.initializers].find(([, { shape }]) => shape.length === 2) as [string, Tensor]
    const external = { file: 'weights.bin', offset: 0, length: tensor.data.byteLength }
    graph.initializers.set(name, { dtype: tensor.dtype, shape: tensor.shape, external })
    writeFileSync(file, encodeModel(graph))
    await expect(readEncoder(folder)).rejects.toThrow(/weights of model\.onnx lie in weights\.bin, which is missing/)
    const fingerprint = async (byte: number): Promise<string> => {
      writeFileSync(join(folder, 'onnx', 'weights.bin'), new Uint8Array(external.length).fill(byte))
      return (await readEncoder(folder)).fingerprint
    }
    expect(await fingerprint(0)).not.toBe(await fingerprint(1))
  })

  it('says which graphs there are when one is named that is not', async () => {
    const folder = await onnxFolder('mean')
    await expect(readEncoder(folder, { kind: 'onnx', onnxFile: 'model_q4.onnx' })).rejects.toThrow(
      /No .*model_q4\.onnx\. The graphs in that folder that can be chosen are model\.onnx: name one/,
    )
  })

  it('finds the graph of its query encoder among several, and takes pooling from the folder that says it', async () => {
    const folder = await onnxFolder('mean')
    const file = join(folder, 'onnx', 'model.onnx')
    // the same weights in other bytes
    writeFileSync(
      join(folder, 'onnx', 'model_q.onnx'),
      encodeModel(decodeModel(readFileSync(file)), { producer: 'another' }),
    )
    const pair = await readEncoderPair(folder, { onnxFile: 'model_q.onnx' })
    const exported = join(temporaryFolder(), 'exported')
    cpSync(folder, exported, { recursive: true })
    writeFileSync(join(exported, 'canopy.json'), JSON.stringify(pair.settings))
    const read = await readEncoderPair(exported, { queryEncoder: folder })
    expect(read.query.weights).toBe(join(folder, 'onnx', 'model_q.onnx'))
    await expect(readEncoderPair(folder, { pooling: 'cls' })).rejects.toThrow(
      /modules\.json: The folder itself says how embeddings are made: pooling mean/,
    )
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

  it('takes an adapter of the checkpoint', async () => {
    const checkpoint = await readEncoder(tinyBert('mean'))
    const profile = await readEncoder(await onnxFolder('mean'))
    const [over, under] = [
      await readAdapter(join(tinyBert('mean'), 'adapter'), profile),
      await readAdapter(join(tinyBert('mean'), 'adapter'), checkpoint),
    ]
    const [ours, theirs] = [
      await openEmbedder(profile, { adapter: over }),
      await openEmbedder(checkpoint, { adapter: under }),
    ]
    const { texts } = expected('mean')
    const wanted = (await theirs.embedTexts(texts, 'node')).embeddings
    const rows = texts.map((_, i) => Array.from(wanted.subarray(i * 32, (i + 1) * 32)))
    expect(largestDifference((await ours.embedTexts(texts, 'node')).embeddings, rows)).toBeLessThan(1e-5)
    await ours.close()
    await theirs.close()
  })

  it('says what a graph lacks', async () => {
    const folder = await onnxFolder('mean')
    const g = new GraphBuilder()
    g.output(g.add(g.input('pixel_values', 'float32', ['batch']), g.scalar(1)), 'last_hidden_state')
    writeFileSync(join(folder, 'onnx', 'model.onnx'), encodeModel(g.build()))
    await expect(openEmbedder(await readEncoder(folder))).rejects.toThrow(/asks for "pixel_values"/)
  })
})

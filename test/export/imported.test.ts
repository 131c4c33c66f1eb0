import { cpSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { env, pipeline } from '@huggingface/transformers'
import { describe, expect, it } from 'vitest'
import {
  type Adapter,
  canopySettings,
  type EncoderProfile,
  encoderModules,
  loraB,
  openEmbedder,
  readAdapter,
  readEncoder,
  readEncoderPair,
  readImported,
} from '../../src/encoder/index.ts'
import { checkFolder } from '../../src/export/check-folder.ts'
import { writeEncoderFolder } from '../../src/export/folder.ts'
import { exportEncoder, type SelfCheck } from '../../src/export/index.ts'
import { failures } from '../../src/export/self-check.ts'
import { fromFiles, writeModel } from '../../src/export/write-model.ts'
import { decodeModel, encodeModel, type Graph, isExternal, type Node, type ValueType } from '../../src/onnx/index.ts'
import { resolveSettings, train } from '../../src/train/index.ts'
import { largestDifference, tinyBert } from '../encoder/fixtures.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { createSetup } from '../train/command.ts'

const fixture = (form: string): string => join(import.meta.dirname, '..', 'fixtures', 'onnx', `tiny-bert-${form}`)
const graphOf = (folder: string): Graph => decodeModel(readFileSync(join(folder, 'onnx', 'model.onnx')))
const texts = ['The harbour at dawn.', 'a', 'Lighthouses\nThe lamp turns once in nine seconds, it is said.']

const checkpoint = await readEncoder(tinyBert('mean'))
const adapterFolder = join(tinyBert('mean'), 'adapter')

async function exported(encoder: EncoderProfile, adapter: Adapter | undefined, more: { bundle?: boolean } = {}) {
  const output = join(temporaryFolder(), 'exported')
  const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
  const common = { encoder, adapter, queryEncoder: encoder, settings, output, version: '0', threads: 1 }
  return { output, check: await exportEncoder({ ...common, ...more }) }
}

async function embed(profile: EncoderProfile, adapter?: Adapter): Promise<number[][]> {
  const embedder = await openEmbedder(profile, { threads: 1, ...(adapter === undefined ? {} : { adapter }) })
  const { embeddings } = await embedder.embedTexts(texts, 'node')
  await embedder.close()
  return texts.map((_, i) => Array.from(embeddings.subarray(i * embedder.dimension, (i + 1) * embedder.dimension)))
}

const operators = (graph: Graph): string[] => graph.nodes.map(({ op, domain }) => `${domain}:${op}`).sort()

describe('the export of an adapter over an ONNX graph', () => {
  it.each(['plain', 'dynamo', 'opset11', 'fused', 'fused-mha'])(
    'is merged into its weights, operators and operator set kept: %s',
    async (form) => {
      const encoder = await readEncoder(fixture(form))
      const { output, check } = await exported(encoder, await readAdapter(adapterFolder, encoder))
      expect(check).toMatchObject({ merged: 12, beside: 0, bounds: { minCosine: 0.999999, maxDifference: 1e-4 } })
      expect(check.unrounded).toBeUndefined()
      const [before, after] = [graphOf(fixture(form)), graphOf(output)]
      expect(operators(after)).toEqual(operators(before))
      expect(after.opset).toBe(before.opset)
      expect([...after.initializers.keys()].sort()).toEqual([...before.initializers.keys()].sort())
      const wanted = await embed(checkpoint, await readAdapter(adapterFolder, checkpoint))
      const found = (await embed(await readEncoder(output))).flat()
      expect(largestDifference(Float32Array.from(found), wanted)).toBeLessThan(1e-5)
    },
  )

  it.each(['fp16', 'fused-fp16'])('is rounded to the halves of its weights: %s', async (form) => {
    const encoder = await readEncoder(fixture(form))
    const adapter = await readAdapter(adapterFolder, encoder)
    const { output, check } = await exported(encoder, adapter)
    expect(check.merged).toBe(12)
    expect(check.bounds.maxDifference).toBeLessThan(0.05)
    const stored = [...graphOf(output).initializers.values()].filter(
      ({ shape, dtype }) => shape.length === 2 && dtype !== 'int64',
    )
    expect(new Set(stored.map(({ dtype }) => dtype))).toEqual(new Set(['float16']))
    const found = (await embed(await readEncoder(output))).flat()
    expect(largestDifference(Float32Array.from(found), await embed(encoder, adapter))).toBeLessThan(0.02)
    expect(largestDifference(Float32Array.from(found), await embed(encoder))).toBeGreaterThan(0.03)
  })

  it.each(['int8', 'qdq', 'q4'])('stands beside weights that are quantised, which stay: %s', async (form) => {
    const encoder = await readEncoder(fixture(form))
    const adapter = await readAdapter(adapterFolder, encoder)
    const { output, check } = await exported(encoder, adapter)
    expect(check).toMatchObject({ merged: 0, beside: 12 })
    expect(readFileSync(join(output, 'README.md'), 'utf8')).toMatch(
      /own types without rounding: smallest cosine 1\.0000000/,
    )
    const [before, after] = [graphOf(fixture(form)), graphOf(output)]
    for (const [name, tensor] of before.initializers) expect(after.initializers.get(name)).toEqual(tensor)
    expect(after.nodes.length).toBe(before.nodes.length + 3 * 12)
    const found = (await embed(await readEncoder(output))).flat()
    expect(largestDifference(Float32Array.from(found), await embed(encoder, adapter))).toBeLessThan(0.05)
    expect(largestDifference(Float32Array.from(found), await embed(encoder))).toBeGreaterThan(0.05)
  })

  it('is merged into fused attention whose weights are quantised, which becomes float for it', async () => {
    const encoder = await readEncoder(fixture('fused-int8'))
    const adapter = await readAdapter(adapterFolder, encoder)
    const { output, check } = await exported(encoder, adapter)
    expect(check).toMatchObject({ merged: 6, beside: 6, dequantised: 2 })
    const after = graphOf(output)
    expect(after.nodes.filter(({ op }) => op === 'Attention')).toHaveLength(2)
    expect(after.nodes.filter(({ op }) => op === 'QAttention')).toEqual([])
    const found = (await embed(await readEncoder(output))).flat()
    expect(largestDifference(Float32Array.from(found), await embed(encoder, adapter))).toBeLessThan(0.02)
    const queries = { ...adapter, targets: adapter.targets.filter(({ module }) => module.endsWith('.query')) }
    expect((await exported(encoder, queries)).check).toMatchObject({ merged: 2, beside: 0, dequantised: 2 })
  })

  it('stands beside a weight that more than its products read, which stays for the others', async () => {
    // the map after attention is applied to its own output once more, the other way round
    const folder = join(temporaryFolder(), 'tied')
    cpSync(fixture('plain'), folder, { recursive: true })
    const plain = await readImported(await readEncoder(folder))
    const { weight } = plain.modules.find(({ module }) => module === 'encoder.layer.1.attention.output.dense') ?? {}
    const node = (op: string, inputs: string[], output: string): Node => ({
      ...{ op, domain: '', name: '', inputs, attributes: {} },
      outputs: [output],
    })
    const nodes = [
      ...plain.original.nodes,
      node('Transpose', [weight as string], 'turned'),
      node('MatMul', ['last_hidden_state', 'turned'], 'again'),
      node('Add', ['last_hidden_state', 'again'], 'token_embeddings'),
    ]
    const types = new Map(plain.original.types)
    types.set('token_embeddings', types.get('last_hidden_state') as ValueType)
    const graph = { ...plain.original, nodes, types, outputs: ['token_embeddings'] }
    writeFileSync(join(folder, 'onnx', 'model.onnx'), encodeModel(graph))
    const encoder = await readEncoder(folder)
    const adapter = await readAdapter(adapterFolder, encoder)
    expect((await exported(encoder, adapter)).check).toMatchObject({ merged: 11, beside: 1 })
  })

  it('of a quantised graph can be trained and exported again, beside the first', async () => {
    const encoder = await readEncoder(fixture('int8'))
    const first = await readEncoder((await exported(encoder, await readAdapter(adapterFolder, encoder))).output)
    const standard = (await encoderModules(first)).filter((module) => module.standard)
    expect(standard).toEqual(await encoderModules(encoder))
    const again = await readAdapter(adapterFolder, first)
    const { output, check } = await exported(first, again)
    expect(check).toMatchObject({ merged: 0, beside: 12 })
    const found = (await embed(await readEncoder(output))).flat()
    expect(largestDifference(Float32Array.from(found), await embed(first, again))).toBeLessThan(0.05)
    expect(largestDifference(Float32Array.from(found), await embed(first))).toBeGreaterThan(0.05)
  })

  it('keeps weights in a file of their own where they were in one, and transformers.js is told so', async () => {
    const folder = join(temporaryFolder(), 'external')
    cpSync(fixture('plain'), folder, { recursive: true })
    const graph = graphOf(folder)
    const inOne = await readEncoder(folder)
    // a first file of weights, of which the graph is made to take all its tensors
    const references = new Map(graph.initializers)
    const bytes: Buffer[] = []
    let offset = 0
    for (const [name, tensor] of graph.initializers) {
      if (isExternal(tensor) || tensor.data.byteLength < 1024) continue
      const { buffer, byteOffset, byteLength } = tensor.data
      bytes.push(Buffer.from(buffer as ArrayBuffer, byteOffset, byteLength))
      const external = { file: 'weights.bin', offset, length: byteLength }
      references.set(name, { dtype: tensor.dtype, shape: tensor.shape, external })
      offset += byteLength
    }
    writeFileSync(join(folder, 'onnx', 'weights.bin'), Buffer.concat(bytes))
    await writeModel(
      join(folder, 'onnx', 'model.onnx'),
      { graph: { ...graph, initializers: references }, stream: fromFiles(join(folder, 'onnx')) },
      {},
      0,
    )
    const encoder = await readEncoder(folder)
    expect(encoder.fingerprint).not.toBe(inOne.fingerprint)

    const { output } = await exported(encoder, await readAdapter(adapterFolder, encoder))
    expect(statSync(join(output, 'onnx', 'model.onnx_data')).size).toBeGreaterThan(20_000)
    const canopy = JSON.parse(readFileSync(join(output, 'canopy.json'), 'utf8'))
    expect(Object.keys(canopy.files)).toEqual(['onnx/model.onnx', 'onnx/model.onnx_data'])
    const wanted = await embed(await readEncoder(output))
    env.allowRemoteModels = false
    env.localModelPath = dirname(output)
    const pipe = await pipeline('feature-extraction', basename(output), { dtype: 'fp32' })
    const found = await pipe(texts, { pooling: 'mean', normalize: true })
    expect(largestDifference(Float32Array.from(found.data as Float32Array), wanted)).toBeLessThan(1e-5)
    await pipe.dispose()
  })

  it('takes its query encoder along, a quantised one among several too', async () => {
    const folder = join(temporaryFolder(), 'several')
    cpSync(fixture('plain'), folder, { recursive: true })
    cpSync(join(fixture('int8'), 'onnx', 'model.onnx'), join(folder, 'onnx', 'model_quantized.onnx'))
    const encoder = await readEncoder(folder, { onnxFile: 'model_quantized.onnx' })
    expect(encoder.weights).toMatch(/model_quantized\.onnx$/)
    const { output } = await exported(encoder, await readAdapter(adapterFolder, encoder), { bundle: true })
    const pair = await readEncoderPair(output)
    expect(pair.query.fingerprint).toBe(encoder.fingerprint)
  })
})

/** The self-check of an encoder with an adapter against the folder that is written with another one. */
async function checkOf(encoder: EncoderProfile, adapter: Adapter, written: Adapter): Promise<SelfCheck> {
  const folder = join(temporaryFolder(), 'written')
  mkdirSync(folder)
  const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
  await writeEncoderFolder(folder, encoder, written, settings, { version: '0' })
  const { types } = await checkFolder(folder, {
    ...{ encoder, adapter, queryEncoder: encoder, settings, threads: 1 },
  })
  return types.fp32 as SelfCheck
}

describe('the self-check of an export', () => {
  const faults: [string, (adapter: Adapter) => Adapter][] = [
    ['is lost', (adapter) => ({ ...adapter, targets: adapter.targets.filter(({ module }) => module !== KEY) })],
    [
      'has the wrong scale',
      (adapter) => ({
        ...adapter,
        targets: adapter.targets.map((t) => (t.module === KEY ? { ...t, alpha: 1.5 * t.alpha } : t)),
      }),
    ],
    [
      'stands in the columns of another module',
      (adapter) => {
        const tensors = new Map(adapter.tensors)
        const [key, query] = [loraB(KEY), loraB(KEY.replace('key', 'query'))]
        tensors.set(key, adapter.tensors.get(query) as Float32Array)
        tensors.set(query, adapter.tensors.get(key) as Float32Array)
        return { ...adapter, tensors }
      },
    ],
  ]
  const KEY = 'encoder.layer.0.attention.self.key'

  it.each(['plain', 'fused-fp16', 'int8', 'fused-int8', 'qdq'])(
    'fails where the update of one module is not what was trained: %s',
    async (form) => {
      const encoder = await readEncoder(fixture(form))
      const strong = await readAdapter(adapterFolder, encoder)
      // as after few steps, so that what one module changes is less than the rounding of activations to integers
      const adapter = { ...strong, targets: strong.targets.map((t) => ({ ...t, alpha: t.alpha / 10 })) }
      expect(failures(await checkOf(encoder, adapter, adapter))).toEqual([])
      for (const [fault, change] of faults) {
        const wrong = failures(await checkOf(encoder, adapter, change(adapter)))
        expect(wrong.join(), fault).toMatch(/the largest difference to the trained encoder/)
      }
    },
  )
})

describe('an encoder that is an ONNX folder from training to export', () => {
  it('embeds in the exported folder as it was trained', async () => {
    const setup = await createSetup(temporaryFolder(), 12)
    const frozen = await readEncoder(setup.encoder)
    const { output: folder } = await exported(frozen, undefined)
    const encoder = await readEncoder(folder)
    expect(encoder.kind).toBe('onnx')

    const run = join(temporaryFolder(), 'run')
    const common = { datasets: [setup.dataset], preferences: [setup.preferences] }
    const settings = await resolveSettings(undefined, {
      steps: 3,
      batchSize: 4,
      rank: 2,
      threads: 1,
      selection: 'loss',
    })
    const warnings: string[] = []
    const warn = (text: string): void => void warnings.push(text)
    const result = await train({ encoder, queryEncoder: encoder, ...common, output: run, settings, warn })
    expect(result.steps).toBe(3)
    expect(warnings.filter((text) => text.includes('texts get a row each'))).toEqual([])

    const adapter = await readAdapter(result.adapter, encoder)
    const { output, check } = await exported(encoder, adapter)
    expect(check.minCosine).toBeGreaterThan(0.99999)
    const found = (await embed(await readEncoder(output))).flat()
    expect(largestDifference(Float32Array.from(found), await embed(encoder, adapter))).toBeLessThan(1e-5)
    await expect(readAdapter(result.adapter, frozen)).rejects.toThrow(
      /was trained over the encoder.*a checkpoint and its ONNX graphs are different encoders/,
    )
  })
})

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  type Adapter,
  adapterFeeds,
  canopySettings,
  type EncoderProfile,
  initialLora,
  loraB,
  openEmbedder,
  readAdapter,
  readEncoder,
  writeAdapter,
} from '../../src/encoder/index.ts'
import { type ExportOptions, exportEncoder } from '../../src/export/index.ts'
import { decodeModel, openSafetensors, openSession, type Tensor } from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { relativeError } from '../encoder/qwen3-known.ts'
import { temporaryFolder } from '../support/temporary.ts'

const onnxFixture = (form: string): string => join(import.meta.dirname, '..', 'fixtures', 'onnx', `tiny-bert-${form}`)
const adapterFolder = join(tinyBert('mean'), 'adapter')
const text = 'Lighthouses\nThe lamp turns once in nine seconds, it is said.'

async function kept(folder: string, more: Partial<ExportOptions> = {}) {
  const encoder = await readEncoder(folder)
  const adapter = await readAdapter(adapterFolder, encoder)
  const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
  const output = join(temporaryFolder(), 'exported')
  const common = { encoder, adapter, queryEncoder: encoder, settings, output, version: '0', threads: 1 }
  const check = await exportEncoder({ ...common, keepAdapter: true, ...more })
  return { output, encoder, adapter, check }
}

/** The embedding that an encoder's own graph gives with an adapter. */
async function trained(encoder: EncoderProfile, adapter?: Adapter): Promise<Float32Array> {
  const embedder = await openEmbedder(encoder, { threads: 1, ...(adapter !== undefined && { adapter }) })
  onTestFinished(() => embedder.close())
  return (await embedder.embedTexts([text], 'node')).embeddings
}

/** The same by a graph of the folder that is fed an adapter, pooled by the mean. */
async function served(output: string, file: string, adapter: Record<string, Tensor> = {}): Promise<Float32Array> {
  const profile = await readEncoder(output)
  const embedder = await openEmbedder(profile, { threads: 1 })
  const [encoded] = await embedder.reader.encode([{ text }], 'node')
  await embedder.close()
  const ids = (encoded as { sequence: { ids: Int32Array } }).sequence.ids
  const session = await openSession(join(output, 'onnx', file), { threads: 1 })
  const int64 = (value: (i: number) => number): Tensor => ({
    ...{ dtype: 'int64', shape: [1, ids.length] },
    data: BigInt64Array.from(ids, (_, i) => BigInt(value(i))),
  })
  const text1 = { input_ids: int64((i) => ids[i]!), attention_mask: int64(() => 1), token_type_ids: int64(() => 0) }
  const { last_hidden_state: hidden } = await session.run({ ...text1, ...adapter })
  await session.release()
  const width = hidden!.shape[2] as number
  const sum = new Float32Array(width)
  for (const [i, x] of (hidden!.data as Float32Array).entries()) sum[i % width] = sum[i % width]! + x
  const length = Math.hypot(...sum)
  return sum.map((x) => x / length)
}

const fed = (feeds: Awaited<ReturnType<typeof adapterFeeds>>): Record<string, Tensor> =>
  Object.fromEntries(
    Object.entries(feeds).map(([name, { data, dims }]) => [name, { dtype: 'float32', shape: dims, data }]),
  )

/** An adapter with other matrices: of rank 3 in all, another one in one place, and not in every place. */
function another(adapter: Adapter): Adapter {
  const targets = adapter.targets.slice(2).map((target, i) => ({ ...target, rank: i === 1 ? 5 : 3, alpha: 7 }))
  const tensors = initialLora(targets, 'another')
  for (const { module } of targets) {
    const random = createRandom(module)
    tensors.set(
      loraB(module),
      tensors.get(loraB(module))!.map(() => 0.2 * random.normal()),
    )
  }
  return { ...adapter, targets, tensors }
}

describe('an export that keeps its adapter', () => {
  it.each([
    ['checkpoint', tinyBert('mean')],
    ['plain ONNX', onnxFixture('plain')],
    ['ONNX of operator set 11', onnxFixture('opset11')],
  ])('computes it, the frozen encoder and other adapters of other ranks: %s', async (_, folder) => {
    const { output, encoder, adapter, check } = await kept(folder)
    expect(check.adapterGraph!.minCosine).toBeGreaterThan(0.999999)
    const own = await trained(encoder, adapter)
    const frozen = await trained(encoder)
    expect(relativeError(own, frozen)).toBeGreaterThan(0.03)
    // nothing fed
    expect(relativeError(await served(output, 'model_lora.onnx'), own)).toBeLessThan(1e-5)
    const feeds = fed(await adapterFeeds(output, join(output, 'adapter')))
    expect(relativeError(await served(output, 'model_lora_inputs.onnx', feeds), own)).toBeLessThan(1e-5)
    const zeros = Object.fromEntries(
      Object.entries(feeds).map(([name, tensor]) => [
        name,
        name.includes('lora_B') ? { ...tensor, data: new Float32Array(tensor.data.length) } : tensor,
      ]),
    )
    expect(relativeError(await served(output, 'model_lora_inputs.onnx', zeros), frozen)).toBeLessThan(1e-5)
    const other = another(adapter)
    const otherFolder = join(temporaryFolder(), 'other')
    await writeAdapter(otherFolder, other, encoder)
    const otherFeeds = fed(await adapterFeeds(output, otherFolder))
    const wanted = await trained(encoder, await readAdapter(otherFolder, encoder))
    expect(relativeError(await served(output, 'model_lora_inputs.onnx', otherFeeds), wanted)).toBeLessThan(1e-5)
    expect(relativeError(wanted, own)).toBeGreaterThan(0.03)
  })

  it('names its inputs as PEFT names its tensors, which are fed as they are', async () => {
    const { output, adapter } = await kept(tinyBert('mean'))
    const { inputs, types } = decodeModel(readFileSync(join(output, 'onnx', 'model_lora_inputs.onnx')))
    const stored = await openSafetensors(join(output, 'adapter', 'adapter_model.safetensors'))
    const matrices = inputs.filter((name) => name.includes('.lora_'))
    expect(matrices.sort()).toEqual([...stored.tensors.keys()].sort())
    const feeds = await adapterFeeds(output, join(output, 'adapter'))
    for (const name of matrices) {
      expect(feeds[name]!.data).toEqual(await stored.readTensor(name))
      expect(feeds[name]!.dims).toEqual(stored.tensors.get(name)!.shape)
      expect(types.get(name)!.shape.filter((d) => typeof d === 'string')).toHaveLength(1)
    }
    const scalings = inputs.filter((name) => name.endsWith('.scaling'))
    expect(scalings).toHaveLength(adapter.targets.length)
    const [{ alpha, rank }] = adapter.targets as [Adapter['targets'][number]]
    expect(feeds[scalings[0]!]!.data[0]).toBeCloseTo(alpha / rank, 6)
  })

  it('has its matrices in a file of their own, and weights that are the encoder’s in another', async () => {
    const { output, encoder } = await kept(tinyBert('mean'))
    const held = decodeModel(readFileSync(join(output, 'onnx', 'model_lora.onnx')))
    const files = new Map<string, string[]>()
    for (const [name, tensor] of held.initializers)
      if ('external' in tensor) files.set(tensor.external.file, [...(files.get(tensor.external.file) ?? []), name])
    expect([...files.keys()].sort()).toEqual(['model_lora.onnx_data', 'model_lora_matrices.onnx_data'])
    expect(files.get('model_lora_matrices.onnx_data')!.every((name) => name.startsWith('base_model.model.'))).toBe(true)
    expect(files.get('model_lora.onnx_data')!.some((name) => name.includes('lora'))).toBe(false)
    const listed = Object.keys(JSON.parse(readFileSync(join(output, 'canopy.json'), 'utf8')).files)
    expect(listed.sort()).toEqual(
      readdirSync(join(output, 'onnx'))
        .map((name) => `onnx/${name}`)
        .sort(),
    )
    expect(readFileSync(join(output, 'README.md'), 'utf8')).toMatch(
      /adapterFeeds\('this\/folder', 'another\/adapter'\)/,
    )
    // the folder itself, and the adapter over its base, open as ever
    expect((await readEncoder(output)).weights).toMatch(/model\.onnx$/)
    expect((await readAdapter(join(output, 'adapter'), encoder)).targets).toHaveLength(12)
  })

  it.each(['fp16', 'int8', 'int4'] as const)('may have the other weights in another type: %s', async (type) => {
    const { output, encoder, adapter, check } = await kept(tinyBert('mean'), { types: [type] })
    expect(check.adapterGraph!.minCosine).toBeGreaterThan(type === 'int4' ? 0.9 : 0.99)
    const ending = type === 'int4' ? 'q4' : type
    const feeds = await adapterFeeds(output, adapterFolder, { onnxFile: `model_lora_${ending}.onnx` })
    const found = await served(output, `model_lora_inputs_${ending}.onnx`, fed(feeds))
    expect(relativeError(found, await trained(encoder, adapter))).toBeLessThan(type === 'int4' ? 0.5 : 0.05)
  })

  it('is refused where there is no place for one, naming the module', async () => {
    await expect(kept(onnxFixture('int8'))).rejects.toThrow(/quantised already; .*--keep-adapter take plain float32/)
    await expect(kept(onnxFixture('fused-mha'))).rejects.toThrow(/fused operators|is no value of the graph/)
    await expect(kept(tinyBert('mean'), { adapter: undefined })).rejects.toThrow(/no adapter to keep/)
  })

  it('takes no adapter of modules that it has no inputs for', async () => {
    const encoder = await readEncoder(tinyBert('mean'))
    const adapter = await readAdapter(adapterFolder, encoder)
    const few = { ...adapter, targets: adapter.targets.slice(0, 3) }
    const { output } = await kept(tinyBert('mean'), { adapter: few })
    await expect(adapterFeeds(output, adapterFolder)).rejects.toThrow(
      /changes 9 modules that model_lora\.onnx has no inputs for, first encoder\.layer\.0\.attention\.output\.dense/,
    )
    await expect(adapterFeeds(tinyBert('mean'), adapterFolder)).rejects.toThrow(/No .*model_lora\.onnx/)
  })
})

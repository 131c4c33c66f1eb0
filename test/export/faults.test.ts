import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { canopySettings, loraB, openEmbedder, readAdapter, readEncoder } from '../../src/encoder/index.ts'
import { type ExportOptions, type ExportType, exportEncoder } from '../../src/export/index.ts'
import { bytesOf, type WeightRows } from '../../src/export/streams.ts'
import { byBlocks, byRows, stepsOff } from '../../src/export/whole-numbers.ts'
import { decodeModel, encodeModel, openSafetensors, type Tensor, writeSafetensors } from '../../src/onnx/index.ts'
import { exportAdapter } from '../../src/pipeline/index.ts'
import { tinyQwen3 } from '../encoder/qwen3-known.ts'
import { temporaryFolder } from '../support/temporary.ts'

type Options = Omit<ExportOptions, 'output'>

/** What exports a folder, with its adapter where one is asked for. */
async function optionsOf(folder: string, { adapted = false } = {}): Promise<Options> {
  const encoder = await readEncoder(folder)
  const adapter = adapted ? await readAdapter(join(folder, 'adapter'), encoder) : undefined
  const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
  return { encoder, adapter, queryEncoder: encoder, settings, version: '0', threads: 1 }
}

/** A copy of the tiny text encoder with one number of a weight changed. */
async function withNumber(weight: string, at: number, value: number): Promise<Options> {
  const folder = join(temporaryFolder(), 'changed')
  cpSync(tinyQwen3('qwen3'), folder, { recursive: true })
  const file = join(folder, 'model.safetensors')
  const stored = await openSafetensors(file)
  const tensors = new Map<string, Tensor>()
  for (const [name, { shape }] of stored.tensors) {
    const data = Float32Array.from(await stored.readTensor(name))
    if (name.endsWith(weight)) data[at] = value
    tensors.set(name, { dtype: 'float32', shape, data })
  }
  rmSync(file)
  await writeSafetensors(file, tensors, { format: 'pt' })
  return optionsOf(folder)
}

const output = (): string => join(temporaryFolder(), 'exported')

describe('an adapter that comes from no run', () => {
  it('is exported with a plain sentence about held-out items', async () => {
    const folder = join(temporaryFolder(), 'elsewhere')
    const adapter = join(folder, 'adapter')
    cpSync(join(tinyQwen3('qwen3'), 'adapter'), adapter, { recursive: true })
    // beside an encoder's config.json, too, there is no run
    cpSync(join(tinyQwen3('qwen3'), 'config.json'), join(folder, 'config.json'))
    const warnings: string[] = []
    const warn = (text: string): void => void warnings.push(text)
    await exportAdapter({ encoder: tinyQwen3('qwen3'), adapter, output: output(), threads: 1, warn })
    expect(warnings).toEqual([
      `The adapter in ${adapter} comes from no run of this toolkit, so that there are no held-out items; comparing on built-in texts only. Name a data set with gold to compare decisions, too (--check-dataset, in a program "check").`,
    ])
  })
})

describe('a weight that is no number', () => {
  // of a token that no text of the self-check has, so that only the weights tell
  it.each(['int8', 'int4'] as const)('is refused by name in whole numbers: %s', async (type) => {
    const options = await withNumber('embed_tokens.weight', 0, Number.NaN)
    await expect(exportEncoder({ ...options, output: output(), types: [type] })).rejects.toThrow(
      /The weight "[^"]*embed_tokens\.weight" holds NaN, which no whole number stands for/,
    )
  })

  it('does not hide among others where they are compared', () => {
    const weights = Float32Array.of(Number.NaN, 1, -1, 0.5)
    expect(stepsOff(weights, 4, Int8Array.of(0, 127, -127, 64), Float32Array.of(1 / 127))).toBeNaN()
  })

  it('is named as the checkpoint names it where float16 cannot hold it', async () => {
    const options = await withNumber('layers.1.self_attn.q_proj.weight', 5, 70000)
    await expect(exportEncoder({ ...options, output: output(), types: ['fp16'] })).rejects.toThrow(
      /The weight "[^"]*layers\.1\.self_attn\.q_proj\.weight" holds 70000, which float16 cannot/,
    )
  })
})

describe('what a program asks for', () => {
  it('is refused where it is no type, and no bound', async () => {
    const options = { ...(await optionsOf(tinyQwen3('qwen3'))), output: output() }
    for (const types of [[], ['fp8' as ExportType]])
      await expect(exportEncoder({ ...options, types })).rejects.toThrow(
        /"types" has to name one or more of fp32, fp16/,
      )
    // NaN points would let every loss pass
    for (const maxAccuracyLoss of [Number.NaN, -1])
      await expect(exportEncoder({ ...options, maxAccuracyLoss })).rejects.toThrow(/"maxAccuracyLoss" has to be points/)
    for (const margin of [Number.NaN, -1, Number.POSITIVE_INFINITY])
      await expect(exportAdapter({ encoder: tinyQwen3('qwen3'), output: output(), margin })).rejects.toThrow(
        /"margin" has to be a number/,
      )
  })

  it('twice is written once', async () => {
    const place = output()
    const options = { ...(await optionsOf(tinyQwen3('qwen3'))), output: place }
    expect((await exportEncoder({ ...options, types: ['fp16', 'fp16'] })).others).toBeUndefined()
    expect(readdirSync(join(place, 'onnx'))).toEqual(['model_fp16.onnx'])
  })

  it('is not put in the place of the adapter that it is made from', async () => {
    const place = output()
    const from = { encoder: tinyQwen3('qwen3'), threads: 1 }
    await exportAdapter({ ...from, adapter: join(tinyQwen3('qwen3'), 'adapter'), output: place, keepAdapter: true })
    const adapter = join(place, 'adapter')
    const files = readdirSync(adapter)
    await expect(exportAdapter({ ...from, adapter, output: place })).rejects.toThrow(
      /The export would replace what it is made from, .*adapter\. Choose another --output/,
    )
    expect(readdirSync(adapter)).toEqual(files)
  })

  it('is not put in the place of a link, which is said before anything is computed', async () => {
    const folder = temporaryFolder()
    mkdirSync(join(folder, 'there'))
    symlinkSync(join(folder, 'there'), join(folder, 'link'))
    const onProgress = vi.fn()
    const options = { ...(await optionsOf(tinyQwen3('qwen3'))), output: join(folder, 'link'), onProgress }
    await expect(exportEncoder(options)).rejects.toThrow(/link: A link stands there, which an export does not replace/)
    expect(onProgress).not.toHaveBeenCalled()
  })
})

it('names no file that is gone where activations overflow in float16', async () => {
  const options = await withNumber('layers.1.input_layernorm.weight', 5, 1e6)
  const error = await exportEncoder({ ...options, output: output(), types: ['fp16'] }).catch(String)
  expect(error).toMatch(/The graph in fp16 does not compute what was trained; export fp32\. \(The encoder gives/)
  expect(error).not.toMatch(/\.tmp-|overflow\.onnx/)
})

describe('weights near the smallest floats', () => {
  // a scale of the largest number's 127th or 8th part is not even the next float
  it.each([
    ['rows', 190, byRows, Int8Array],
    ['blocks', 11, (weight: WeightRows) => byBlocks(weight, 32), Uint8Array],
  ] as const)('are zeros in whole numbers: %s', async (_, largest, quantise, array) => {
    const tiny = Float32Array.from({ length: 32 }, (_, i) => Math.floor((largest * i) / 31) * 2 ** -149)
    const { values, scales } = quantise({ shape: [1, 32], rows: async () => tiny })
    const q = new array(Uint8Array.from(await bytesOf(values)).buffer)
    const factors = new Float32Array(Uint8Array.from(await bytesOf(scales)).buffer)
    expect(stepsOff(tiny, 32, q, factors)).toBeLessThan(0.5)
  })
})

describe('the self-check of whole numbers by themselves', () => {
  it.each(['int8', 'int4'] as const)('notices an adapter that was not merged: %s', async (type) => {
    const options = await optionsOf(tinyQwen3('qwen3'), { adapted: true })
    const { tensors, targets } = options.adapter!
    // the adapter changes nothing but while the trained encoder is asked
    const updates = targets.map(({ module }) => tensors.get(loraB(module))!)
    const trained = updates.map((update) => Float32Array.from(update))
    const change = (on: boolean): void => {
      for (const [i, update] of updates.entries()) update.set(on ? trained[i]! : update.map(() => 0))
    }
    change(false)
    const onProgress: ExportOptions['onProgress'] = ({ phase, done }) => {
      if (phase === 'self-check') change(done === 0)
    }
    await expect(exportEncoder({ ...options, output: output(), types: [type], onProgress })).rejects.toThrow(
      /not kept: .*computed in float32, the smallest cosine to the trained encoder is 0\.\d+, below 0\.999999/,
    )
  })

  it('leaves no graphs behind that only it needs', async () => {
    const to = output()
    const options = await optionsOf(tinyQwen3('qwen3'), { adapted: true })
    const { unrounded } = await exportEncoder({ ...options, output: to, types: ['int4'] })
    expect(unrounded!.minCosine).toBeGreaterThan(0.999999)
    expect(readdirSync(join(to, 'onnx'))).toEqual(['model_q4.onnx'])
    // nor does it write them where the folder has them anyway
    const { unrounded: none, others } = await exportEncoder({ ...options, output: to, types: ['fp32', 'int4'] })
    expect([none, others!.int4!.unrounded]).toEqual([undefined, undefined])
  })
})

it('stops while weights are written, and says how far it is', async () => {
  const options = await optionsOf(tinyQwen3('qwen3-vl'))
  const types: ExportType[] = ['fp32', 'int8']
  const seen: number[] = []
  const stop = new AbortController()
  const onProgress: ExportOptions['onProgress'] = ({ phase, done, total }) => {
    if (phase !== 'writing') throw new Error(`${phase} was begun`)
    expect(total).toBe(6)
    if (seen.push(done) === 3) stop.abort()
  }
  const to = output()
  await expect(exportEncoder({ ...options, output: to, types, onProgress, signal: stop.signal })).rejects.toMatchObject(
    { name: 'AbortError' },
  )
  expect(seen).toEqual([0, 1, 2])
  expect(readdirSync(join(to, '..'))).toEqual([])
})

describe('parts that are not of one export', () => {
  const opened = async (folder: string): Promise<unknown> => {
    const embedder = await openEmbedder(await readEncoder(folder), { threads: 1 })
    onTestFinished(() => embedder.close())
    const images = [join(tinyQwen3('qwen3-vl'), 'pictures', 'wide.png')]
    return embedder.embed([{ text: 'a', images }], 'node')
  }
  const changed = (folder: string, part: string, change: (file: string) => void): void =>
    change(join(folder, 'onnx', `${part}.onnx`))

  it('are told by name', async () => {
    const to = output()
    await exportEncoder({ ...(await optionsOf(tinyQwen3('qwen3-vl'))), output: to })
    await opened(to)
    const copy = (): string => {
      const folder = join(temporaryFolder(), 'copy')
      cpSync(to, folder, { recursive: true })
      return folder
    }
    // the table of another model: fewer numbers to a token
    const table = copy()
    changed(table, 'embed_tokens', (file) => {
      const graph = decodeModel(readFileSync(file))
      const pads = graph.initializers.get('wide/pads') as Tensor
      pads.data[5] = 64n
      writeFileSync(file, encodeModel(graph))
    })
    await expect(opened(table)).rejects.toThrow(
      /embed_tokens\.onnx: .* 128 numbers.* config\.json says 256.*different models/,
    )
    // one part under another's name
    for (const [part, other, inputs] of [
      ['decoder_model_merged', 'embed_tokens', /inputs_embeds, attention_mask, position_ids.* input_ids\b/],
      ['vision_encoder', 'embed_tokens', /pixel_values, image_grid_thw.* input_ids\b/],
    ] as const) {
      const mixed = copy()
      changed(mixed, part, (file) => cpSync(join(mixed, 'onnx', `${other}.onnx`), file))
      const error = await opened(mixed).catch(String)
      expect(error).toMatch(new RegExp(`^InputError: .*${part}\\.onnx: `))
      expect(error).toMatch(inputs)
    }
  })
})

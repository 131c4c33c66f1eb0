import { cpSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { AutoModelForImageTextToText, env, pipeline } from '@huggingface/transformers'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import {
  type Adapter,
  canopySettings,
  type EncoderProfile,
  openEmbedder,
  readAdapter,
  readEncoder,
} from '../../src/encoder/index.ts'
import { TYPE_BOUNDS } from '../../src/export/closeness.ts'
import {
  EXPORT_TYPES,
  type ExportedEncoder,
  type ExportOptions,
  type ExportType,
  exportEncoder,
} from '../../src/export/index.ts'
import { failures } from '../../src/export/self-check.ts'
import { blocksOf, bytesOf, type WeightRows } from '../../src/export/streams.ts'
import { variant } from '../../src/export/variants.ts'
import { byBlocks, byRows, type QuantisedWeight } from '../../src/export/whole-numbers.ts'
import { writeModel } from '../../src/export/write-model.ts'
import { wrongWeights } from '../../src/export/written-weights.ts'
import {
  decodeModel,
  encodeModel,
  GraphBuilder,
  openSafetensors,
  openSession,
  type Tensor,
  writeSafetensors,
} from '../../src/onnx/index.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { relativeError, tinyQwen3 } from '../encoder/qwen3-known.ts'
import { temporaryFolder } from '../support/temporary.ts'

const folders = { bert: tinyBert('mean'), qwen3: tinyQwen3('qwen3'), qwen3_vl: tinyQwen3('qwen3-vl') }

async function exported(
  name: keyof typeof folders,
  types: readonly ExportType[],
): Promise<{ output: string; encoder: EncoderProfile; adapter: Adapter; check: ExportedEncoder }> {
  const options = await settingsOf(name)
  const { encoder, adapter } = options
  const output = join(temporaryFolder(), 'exported')
  return { output, encoder, adapter, check: await exportEncoder({ ...options, output, types }) }
}

async function settingsOf(name: keyof typeof folders): Promise<Omit<ExportOptions, 'output'> & { adapter: Adapter }> {
  const encoder = await readEncoder(folders[name])
  const adapter = await readAdapter(join(folders[name], 'adapter'), encoder)
  const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
  return { encoder, adapter, queryEncoder: encoder, settings, version: '0', threads: 1 }
}

const operatorsOf = (file: string): Set<string> =>
  new Set(decodeModel(readFileSync(file)).nodes.map(({ domain, op }) => (domain === '' ? op : `${domain}.${op}`)))

const { allowRemoteModels } = env
beforeAll(() => {
  env.allowRemoteModels = false
})
afterAll(() => {
  env.allowRemoteModels = allowRemoteModels
})

describe.each(['bert', 'qwen3', 'qwen3_vl'] as const)('the types of an exported %s encoder', (name) => {
  it('lie in one folder, are small, and give nearly what was trained', async () => {
    const { output, check } = await exported(name, EXPORT_TYPES)
    expect(check.type).toBe('fp32')
    expect(Object.keys(check.others!)).toEqual(['fp16', 'int8', 'int4'])
    const graphs = name === 'qwen3_vl' ? ['decoder_model_merged', 'embed_tokens', 'vision_encoder'] : ['model']
    const files = readdirSync(join(output, 'onnx'))
    expect(files.filter((file) => file.endsWith('.onnx')).length).toBe(4 * graphs.length)
    const bytes = (ending: string): number =>
      graphs
        .flatMap((graph) => [`${graph}${ending}.onnx`, `${graph}${ending}.onnx_data`])
        .filter((file) => files.includes(file))
        .reduce((sum, file) => sum + statSync(join(output, 'onnx', file)).size, 0)
    expect(bytes('_fp16')).toBeLessThan(0.75 * bytes(''))
    expect(bytes('_int8')).toBeLessThan(0.6 * bytes(''))
    expect(bytes('_q4')).toBeLessThan(bytes('_int8'))
    for (const graph of graphs) {
      for (const ending of ['', '_fp16', '_int8'])
        expect([...operatorsOf(join(output, 'onnx', `${graph}${ending}.onnx`))].join()).not.toContain('microsoft')
      if (graph !== 'embed_tokens')
        expect(operatorsOf(join(output, 'onnx', `${graph}_q4.onnx`))).toContain('com.microsoft.MatMulNBits')
    }
    const { fp16, int8, int4 } = check.others!
    expect(fp16!.minCosine).toBeGreaterThan(0.9999)
    expect(int8!.minCosine).toBeGreaterThan(0.99)
    // one rounds more than the other, and none not at all
    expect(int4!.minCosine).toBeLessThan(int8!.minCosine)
    expect(int8!.minCosine).toBeLessThan(fp16!.minCosine)
    expect(fp16!.minCosine).toBeLessThan(check.minCosine)
    const canopy = JSON.parse(readFileSync(join(output, 'canopy.json'), 'utf8'))
    expect(Object.keys(canopy.files).sort()).toEqual(files.map((file) => `onnx/${file}`).sort())
  })
})

describe('one type by itself', () => {
  it('is what transformers.js then loads, without being asked for it', async () => {
    const { output, encoder } = await exported('bert', ['int8'])
    expect(readdirSync(join(output, 'onnx'))).toEqual(['model_int8.onnx'])
    const extract = await pipeline('feature-extraction', output)
    onTestFinished(() => extract.dispose())
    const { data } = await extract(['The harbour at dawn.'], { pooling: 'mean', normalize: encoder.normalize })
    const embedder = await openEmbedder(await readEncoder(output), { threads: 1 })
    onTestFinished(() => embedder.close())
    const { embeddings } = await embedder.embedTexts(['The harbour at dawn.'], 'node')
    expect(relativeError(data as Float32Array, embeddings)).toBeLessThan(1e-5)
    const other = readEncoder(output, { onnxFile: 'model.onnx' })
    await expect(other).rejects.toThrow(/No .*model\.onnx\. .* chosen are model_int8\.onnx: name one/)
  })

  it('may differ from graph to graph in transformers.js', async () => {
    const { output } = await exported('qwen3_vl', ['fp16', 'int4'])
    const dtype = { vision_encoder: 'fp16', embed_tokens: 'fp16', decoder_model_merged: 'q4' } as const
    const model = await AutoModelForImageTextToText.from_pretrained(output, { dtype })
    await model.dispose()
  })

  it('does not make an embedding depend on the texts beside it', async () => {
    const { output } = await exported('qwen3', ['fp16', 'int8', 'int4'])
    const texts = ['a', 'Lighthouses\nThe lamp turns once in nine seconds.', 'Who counted the ships?']
    for (const file of ['model_fp16.onnx', 'model_int8.onnx', 'model_q4.onnx']) {
      const profile = await readEncoder(output, { onnxFile: file })
      const found = []
      for (const tokenBudget of [1, 4096]) {
        const embedder = await openEmbedder(profile, { threads: 1, tokenBudget })
        onTestFinished(() => embedder.close())
        found.push((await embedder.embedTexts(texts, 'node')).embeddings)
      }
      expect(relativeError(found[0]!, found[1]!), file).toBeLessThan(1e-4)
    }
  })

  it('can be made of an exported folder, whose graph is plain float32', async () => {
    const { output, check } = await exported('bert', ['fp32', 'int8'])
    const encoder = await readEncoder(output)
    const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
    const again = join(temporaryFolder(), 'again')
    const options = { encoder, queryEncoder: encoder, settings, output: again, version: '0', threads: 1 }
    const { minCosine } = await exportEncoder({ ...options, types: ['int8'] })
    expect(minCosine).toBeCloseTo(check.others!.int8!.minCosine, 4)
    expect(readdirSync(join(again, 'onnx'))).toEqual(['model_int8.onnx'])
  })

  it('is refused in float16 where activations are too large for it, and not in float32', async () => {
    const folder = join(temporaryFolder(), 'large')
    cpSync(folders.qwen3, folder, { recursive: true })
    const stored = await openSafetensors(join(folder, 'model.safetensors'))
    const tensors = new Map<string, Tensor>()
    for (const name of stored.tensors.keys()) {
      const data = await stored.readTensor(name)
      // the products of two maps are millions of times as large, of which the third takes a part back
      const factor = /(gate|up)_proj/.test(name) ? 3000 : name.includes('down_proj') ? 1e-4 : 1
      tensors.set(name, { dtype: 'float32', shape: stored.tensors.get(name)!.shape, data: data.map((x) => factor * x) })
    }
    rmSync(join(folder, 'model.safetensors'))
    await writeSafetensors(join(folder, 'model.safetensors'), tensors, { format: 'pt' })
    const encoder = await readEncoder(folder)
    const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
    const output = join(temporaryFolder(), 'exported')
    const options = { encoder, queryEncoder: encoder, settings, output, version: '0', threads: 1 }
    await exportEncoder({ ...options, types: ['fp32', 'int8'] })
    await expect(exportEncoder({ ...options, types: ['fp16'] })).rejects.toThrow(
      /The graph in fp16 does not compute what was trained; export fp32\. \(.*not finite/,
    )
  })

  it('fails its check where numbers are none, or far from what was trained', () => {
    const compared = { text: 1, table: 0, image: 0, video: 0 }
    const fine = { compared, truncated: 0, cutAlike: true, minCosine: 0.995, maxDifference: 0.01 }
    expect(failures({ ...fine, bounds: TYPE_BOUNDS.int8 })).toEqual([])
    expect(failures({ ...fine, bounds: TYPE_BOUNDS.fp16 })).toHaveLength(2)
    expect(failures({ ...fine, minCosine: Number.NaN, bounds: TYPE_BOUNDS.int4 })).toHaveLength(1)
    expect(failures({ ...fine, minCosine: 0.2, bounds: TYPE_BOUNDS.int4 })).toHaveLength(1)
    expect(failures({ ...fine, cutAlike: false, bounds: TYPE_BOUNDS.int8 })).toEqual([
      'an over-long text is cut otherwise than by the trained encoder',
    ])
  })
})

const weightOf = (shape: number[], values: Float32Array): WeightRows => ({
  shape,
  rows: async (from, to) => values.subarray(from * shape[1]!, to * shape[1]!),
})

/** What a quantised weight stands for, [rows, columns]. */
async function dequantised({ values, scales }: QuantisedWeight, columns: number, length?: number): Promise<number[]> {
  const q = await bytesOf(values)
  const factors = new Float32Array((await bytesOf(scales)).buffer)
  if (length === undefined) return Array.from(new Int8Array(q.buffer), (v, i) => v * factors[Math.floor(i / columns)]!)
  const blocks = Math.ceil(columns / length)
  return Array.from({ length: (factors.length / blocks) * columns }, (_, i) => {
    const block = Math.floor(i / columns) * blocks + Math.floor((i % columns) / length)
    const at = block * length + ((i % columns) % length)
    const nibble = at % 2 === 0 ? q[at >> 1]! & 15 : q[at >> 1]! >> 4
    return (nibble - 8) * factors[block]!
  })
}

describe('whole numbers that were written', () => {
  it.each(['int8', 'int4'] as const)('are compared with the merged weights one by one: %s', async (type) => {
    const { output, encoder, adapter } = await exported('qwen3_vl', [type])
    expect(await wrongWeights(output, encoder, adapter, type)).toEqual([])
    // one module of the adapter is lost
    const [first, ...others] = adapter.targets
    const wrong = await wrongWeights(output, encoder, { ...adapter, targets: others }, type)
    expect(wrong).toEqual([
      expect.stringMatching(
        new RegExp(
          `^decoder_model_merged: the numbers of .*${first!.module.split('.').slice(-4).join('.')}.* steps off`,
        ),
      ),
    ])
  })

  it('are refused where the file holds others', async () => {
    const options = await settingsOf('bert')
    const output = join(temporaryFolder(), 'exported')
    const parent = join(output, '..')
    const onProgress: ExportOptions['onProgress'] = ({ phase, done }) => {
      if (phase !== 'writing' || done !== 1) return
      const temporary = readdirSync(parent).find((name) => name.startsWith('.exported'))
      const file = join(parent, temporary as string, 'onnx', 'model_int8.onnx')
      const graph = decodeModel(readFileSync(file))
      const { data } = graph.initializers.get('encoder.layer.0.attention.self.query.weight/quantised') as Tensor
      data[7] = -(data[7] as number) || 50
      writeFileSync(file, encodeModel(graph))
    }
    const types = ['int8'] as const
    await expect(exportEncoder({ ...options, output, types, onProgress })).rejects.toThrow(
      /failed its self-check and was not kept: .*model: the numbers of .*query\.weight are \d+\.\d+ steps off/,
    )
  })
})

describe('weights in whole numbers', () => {
  const matrix = fc
    .tuple(fc.integer({ min: 1, max: 5 }), fc.integer({ min: 1, max: 70 }), fc.integer())
    .map(([rows, columns, seed]) => {
      let state = seed >>> 0
      const next = (): number => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0
        return state / 2 ** 32
      }
      const values = Float32Array.from({ length: rows * columns }, () =>
        next() < 0.1 ? 0 : (next() - 0.5) * 10 ** (4 * next() - 2),
      )
      return { rows, columns, values }
    })

  it('are off by half a step of their row in 8 bits', async () => {
    await fc.assert(
      fc.asyncProperty(matrix, async ({ rows, columns, values }) => {
        const found = await dequantised(byRows(weightOf([rows, columns], values)), columns)
        for (let row = 0; row < rows; row++) {
          const own = values.subarray(row * columns, (row + 1) * columns)
          const step = own.reduce((most, x) => Math.max(most, Math.abs(x)), 0) / 127
          own.forEach((x, i) => {
            expect(Math.abs(found[row * columns + i]! - x)).toBeLessThanOrEqual(0.5001 * step)
          })
        }
      }),
      { numRuns: 50 },
    )
  })

  it('are off by a step of their block in 4 bits, the largest by magnitude by nothing', async () => {
    await fc.assert(
      fc.asyncProperty(matrix, async ({ rows, columns, values }) => {
        const found = await dequantised(byBlocks(weightOf([rows, columns], values), 32), columns, 32)
        for (let row = 0; row < rows; row++)
          for (let from = 0; from < columns; from += 32) {
            const at = row * columns + from
            const own = values.subarray(at, at + Math.min(32, columns - from))
            const largest = own.reduce((most, x) => Math.max(most, Math.abs(x)), 0)
            own.forEach((x, i) => {
              expect(Math.abs(found[at + i]! - x)).toBeLessThanOrEqual(1.0001 * (largest / 8))
            })
            const first = own.findIndex((x) => Math.abs(x) === largest)
            expect(found[at + first]! - own[first]!).toBeCloseTo(0, 6)
          }
      }),
      { numRuns: 50 },
    )
  })
})

describe('a graph that is written', () => {
  const columns = 2048
  const rows = 3000
  const numbers = Float32Array.from({ length: rows * columns }, (_, i) => ((i * 7919) % 1009) / 1009 - 0.5)
  const build = () => {
    const g = new GraphBuilder(17)
    const x = g.input('x', 'float32', ['tokens', columns])
    const external = { file: 'w', offset: 0, length: 4 * rows * columns }
    const w = g.initializer('w', { dtype: 'float32', shape: [rows, columns], external })
    g.output(g.gemm(g.relu(x), w, null, { transB: true }), 'y')
    return g.build()
  }
  const x = { dtype: 'float32' as const, shape: [1, columns], data: numbers.slice(0, columns) }

  it('has its weights beside it where they are many, and gives the same with them inside', async () => {
    const folder = temporaryFolder()
    const writable = variant(build(), () => weightOf([rows, columns], numbers), 'fp32')
    expect(await writeModel(join(folder, 'inside.onnx'), writable, {})).toEqual(['inside.onnx'])
    expect(await writeModel(join(folder, 'beside.onnx'), writable, {}, 2 ** 20)).toEqual([
      'beside.onnx',
      'beside.onnx_data',
    ])
    const results = []
    for (const name of ['inside.onnx', 'beside.onnx']) {
      const session = await openSession(join(folder, name), { threads: 1 })
      results.push((await session.run({ x })).y!.data)
      await session.release()
    }
    expect(results[1]).toEqual(results[0])
  })

  it('reads its weights some megabytes at a time', async () => {
    const sizes: number[] = []
    const counted: WeightRows = {
      shape: [rows, columns],
      rows: async (from, to) => {
        sizes.push(to - from)
        return numbers.subarray(from * columns, to * columns)
      },
    }
    let total = 0
    for await (const block of blocksOf(counted)) total += block.length
    expect(total).toBe(rows * columns)
    expect(Math.max(...sizes) * columns * 4).toBeLessThanOrEqual(2 ** 23)
    for (const type of EXPORT_TYPES) {
      sizes.length = 0
      await writeModel(
        join(temporaryFolder(), 'model.onnx'),
        variant(build(), () => counted, type),
        {},
        0,
      )
      expect(
        sizes.reduce((a, b) => a + b),
        type,
      ).toBe(rows)
    }
  })

  it('is refused in float16 where a weight is too large for it', async () => {
    const large = Float32Array.from(numbers)
    large[12345] = 70000
    const writable = variant(build(), () => weightOf([rows, columns], large), 'fp16')
    await expect(writeModel(join(temporaryFolder(), 'model.onnx'), writable, {})).rejects.toThrow(
      /holds 70000, which float16 cannot.*--dtype fp32 or int8/,
    )
  })
})

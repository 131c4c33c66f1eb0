import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import {
  type Adapter,
  chosenModules,
  type EncoderProfile,
  encoderGraph,
  encoderModules,
  initialLora,
  loadTokenizer,
  loraA,
  loraShapes,
  openEmbedder,
  openWeights,
  plainEncoder,
  readAdapter,
  readEncoder,
  readImported,
  textSequence,
} from '../../src/encoder/index.ts'
import {
  encodeModel,
  type Graph,
  GraphBuilder,
  openSafetensors,
  openSession,
  prune,
  type Tensor,
  writeSafetensors,
} from '../../src/onnx/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { largestDifference, tinyBert } from './fixtures.ts'

const fixture = (name: string): string => join(import.meta.dirname, '..', 'fixtures', 'onnx', name)
const imported = (name: string): Promise<EncoderProfile> => readEncoder(fixture(name), { kind: 'onnx' })
const expectedOf = (name: string): { texts: string[]; embeddings: number[][] } =>
  JSON.parse(readFileSync(join(fixture(name), 'expected.json'), 'utf8'))

/** Graphs of the checkpoint tiny-bert/mean that hold its weights as they are. */
const exactBerts = ['plain', 'dynamo', 'opset11', 'fused', 'fused-mha'].map((form) => `tiny-bert-${form}`)
/** Graphs of one Qwen3 that hold its weights as they are. */
const exactQwens = ['plain', 'dynamo', 'positions', 'gqa', 'rotary'].map((form) => `tiny-qwen3-${form}`)

const checkpoint = await readEncoder(tinyBert('mean'))
const adapter = await readAdapter(join(tinyBert('mean'), 'adapter'), checkpoint)
const texts = expectedOf('tiny-bert-plain').texts

/** An adapter over the standard modules whose B is not zero, so that every matrix has a gradient. */
async function madeUpAdapter(profile: EncoderProfile): Promise<Adapter> {
  const modules = chosenModules(await encoderModules(profile), null)
  const targets = modules.map(({ module, inputs, outputs }) => ({ module, inputs, outputs, rank: 2, alpha: 4 }))
  const tensors = initialLora(targets, 'a')
  for (const [name, b] of tensors) if (name.includes('lora_B')) b.set(b.map((_, i) => Math.sin(i + name.length) / 9))
  return { targets, tensors, baseFingerprint: undefined }
}

/** Gradients of Σ cos(i)·embedding_i with respect to every matrix of the adapter, and the layout of the rows. */
async function gradientsOf(
  profile: EncoderProfile,
  { targets, tensors }: Adapter,
  update: 'merged' | 'beside' = 'merged',
) {
  const tokenizer = await loadTokenizer(profile)
  const sequences = texts.map((text) => textSequence(tokenizer.encode(text).ids))
  const encoder = await encoderGraph(profile, targets, tokenizer.padId, { update })
  const g = GraphBuilder.from(encoder.graph)
  const seed = g.input('seed', 'float32', g.shape('embeddings'))
  const names = loraShapes(targets).map(({ name }) => name)
  const { graph, gradients } = addGradients(g.build(), { embeddings: seed }, names)
  graph.outputs = names.map((name) => gradients.get(name) as string)
  const folder = encoder.externalFolder
  const session = await openSession(prune(graph), {
    threads: 1,
    ...(folder === undefined ? {} : { externalFolder: folder }),
  })
  const shape = [sequences.length, profile.dimension]
  const data = Float32Array.from({ length: sequences.length * profile.dimension }, (_, i) => Math.cos(i))
  const matrices = loraShapes(targets).map(({ name, shape }): [string, Tensor] => [
    name,
    { dtype: 'float32', shape, data: tensors.get(name) as Float32Array },
  ])
  const feeds = { ...encoder.feeds(sequences), ...Object.fromEntries(matrices) }
  const wanted = Object.entries({ ...feeds, seed: { dtype: 'float32' as const, shape, data } })
  const found = await session.run(Object.fromEntries(wanted.filter(([name]) => session.inputs.has(name))))
  await session.release()
  return {
    layout: encoder.layout,
    notes: encoder.notes,
    gradients: new Map(names.map((name) => [name, found[gradients.get(name) as string]?.data as Float32Array])),
  }
}

/** tiny-bert/mean with what the quantised numbers of a graph stand for in place of its weights. */
async function dequantisedCheckpoint(form: string): Promise<EncoderProfile> {
  const { original, modules } = await readImported(await imported(`tiny-bert-${form}`))
  const numbers = (name: string): ArrayLike<number> => (original.initializers.get(name) as Tensor).data as Int8Array
  const at = (values: ArrayLike<number>, i: number): number => values[values.length === 1 ? 0 : i] as number
  // [rows, columns]: (number - zero point) · scale, of the whole matrix or of its columns
  const integers = (name: string): Float32Array => {
    const [scale, zero] = [numbers(`${name}_scale`), numbers(`${name}_zero_point`)]
    const columns = original.initializers.get(`${name}_quantized`)?.shape.at(-1) as number
    return Float32Array.from(
      numbers(`${name}_quantized`),
      (q, i) => (q - at(zero, i % columns)) * at(scale, i % columns),
    )
  }
  // [outputs, inputs], two numbers of four bits to a byte, the low one first, in blocks with a scale and a zero point
  const nibbles = (name: string, inputs: number): Float32Array => {
    const [bytes, scales, zeros] = ['Q4', 'scales', 'zero_points'].map((end) => numbers(`${name}_${end}`))
    const nibble = (from: ArrayLike<number>, i: number): number => ((from[i >> 1] as number) >> (4 * (i & 1))) & 15
    const size = (2 * (bytes?.length ?? 0)) / (scales?.length ?? 1)
    return Float32Array.from({ length: 2 * (bytes?.length ?? 0) }, (_, i) => {
      const [row, block] = [Math.floor(i / inputs), Math.floor((i % inputs) / size)]
      const blocks = inputs / size
      const zero = nibble(zeros as ArrayLike<number>, row * 2 * Math.ceil(blocks / 2) + block)
      return (
        (nibble(bytes as ArrayLike<number>, i) - zero) * ((scales as ArrayLike<number>)[row * blocks + block] as number)
      )
    })
  }
  const stored = await openSafetensors(checkpoint.weights)
  const tensors = new Map<string, Tensor>()
  for (const name of stored.tensors.keys()) tensors.set(name, await stored.read(name))
  const put = (end: string, data: Float32Array): void => {
    const name = [...tensors.keys()].find((key) => key === end || key.endsWith(`.${end}`)) as string
    tensors.set(name, { dtype: 'float32', shape: tensors.get(name)?.shape as number[], data })
  }
  for (const { module, weight, inputs, outputs, columns, width } of modules) {
    const base = weight.replace(/_(?:quantized|Q4)$/, '')
    const all = weight.endsWith('_Q4') ? nibbles(base, inputs) : integers(base)
    const place = (o: number, i: number): number => i * width + columns[0] + o
    put(
      `${module}.weight`,
      weight.endsWith('_Q4')
        ? all
        : Float32Array.from(
            { length: outputs * inputs },
            (_, n) => all[place(Math.floor(n / inputs), n % inputs)] as number,
          ),
    )
  }
  for (const name of original.initializers.keys()) {
    const table = /^(embeddings\..*)_quantized$/.exec(name)?.[1]
    if (table !== undefined) put(table, integers(table))
  }
  const folder = join(temporaryFolder(), 'dequantised')
  cpSync(tinyBert('mean'), folder, { recursive: true })
  await writeSafetensors(join(folder, 'model.safetensors'), tensors, { format: 'pt' })
  return readEncoder(folder)
}

function expectClose(found: Map<string, Float32Array>, wanted: Map<string, Float32Array>, bound: number): void {
  expect([...found.keys()].sort()).toEqual([...wanted.keys()].sort())
  for (const [name, theirs] of wanted) {
    const ours = found.get(name) as Float32Array
    const size = Math.hypot(...theirs)
    expect(size, name).toBeGreaterThan(0)
    expect(Math.hypot(...theirs.map((x, i) => x - (ours[i] as number))) / size, name).toBeLessThan(bound)
  }
}

async function embed(profile: EncoderProfile, options: { adapter?: Adapter } = {}): Promise<Float32Array> {
  const embedder = await openEmbedder(profile, { threads: 1, ...options })
  const { embeddings } = await embedder.embedTexts(texts, 'node')
  await embedder.close()
  return embeddings
}

const rowsOf = (embeddings: Float32Array, dimension: number): number[][] =>
  Array.from({ length: embeddings.length / dimension }, (_, i) =>
    Array.from(embeddings.subarray(i * dimension, (i + 1) * dimension)),
  )

describe('the linear maps of an imported graph', () => {
  it.each([...exactBerts, 'tiny-bert-fp16', 'tiny-bert-int8', 'tiny-bert-fused-int8', 'tiny-bert-q4', 'tiny-bert-qdq'])(
    'are those of the checkpoint that it was exported from: %s',
    async (name) => {
      const paths = (modules: { module: string; inputs: number; outputs: number }[]) =>
        modules.map(({ module, inputs, outputs }) => `${module} ${inputs} ${outputs}`).sort()
      const modules = await encoderModules(await imported(name))
      expect(paths(modules)).toEqual(paths(await encoderModules(checkpoint)))
      expect(modules.every(({ standard }) => standard)).toBe(true)
    },
  )

  it.each([...exactQwens, 'tiny-qwen3-q4'])('are found in a decoder: %s', async (name) => {
    const modules = (await encoderModules(await imported(name))).map(({ module }) => module)
    const layer = ['self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj', 'self_attn.o_proj']
    const all = [...layer, 'mlp.gate_proj', 'mlp.up_proj', 'mlp.down_proj']
    expect(modules.sort()).toEqual([0, 1].flatMap((n) => all.map((module) => `layers.${n}.${module}`)).sort())
  })

  it.each([
    ['tiny-bert-plain', 'fp32'],
    ['tiny-bert-fp16', 'fp16'],
    ['tiny-bert-fused-fp16', 'fp16'],
    ['tiny-bert-int8', 'int8'],
    ['tiny-bert-fused-int8', 'int8'],
    ['tiny-bert-qdq', 'int8'],
    ['tiny-bert-q4', '4-bit'],
  ])('say how they are stored: %s in %s', async (name, storage) => {
    for (const module of await encoderModules(await imported(name))) expect(module.storage).toBe(storage)
  })
})

describe('gradients through an imported graph', () => {
  const reference = gradientsOf(checkpoint, adapter)

  it.each(exactBerts)('are those through the graph that is built from the checkpoint: %s', async (name) => {
    const { gradients, layout } = await gradientsOf(await imported(name), adapter)
    expect(layout).toBe('packed')
    expectClose(gradients, (await reference).gradients, 1e-5)
  })

  it('are close to those where the weights are halves', async () => {
    const { gradients, layout } = await gradientsOf(await imported('tiny-bert-fp16'), adapter)
    expect(layout).toBe('packed')
    expectClose(gradients, (await reference).gradients, 0.01)
  })

  it.each(['int8', 'fused-int8', 'qdq', 'q4'])(
    'through quantised weights are those of the checkpoint with the numbers that these stand for: %s',
    async (form) => {
      const { gradients, layout } = await gradientsOf(await imported(`tiny-bert-${form}`), adapter)
      expect(layout).toBe('packed')
      const rounded = await gradientsOf(await dequantisedCheckpoint(form), adapter)
      expectClose(gradients, rounded.gradients, 1e-5)
    },
  )

  it('do not depend on the form in which a decoder was exported', async () => {
    const plain = await imported('tiny-qwen3-plain')
    const lora = await madeUpAdapter(plain)
    const wanted = (await gradientsOf(plain, lora)).gradients
    for (const name of exactQwens.slice(1)) {
      const { gradients, layout } = await gradientsOf(await imported(name), lora)
      expect(layout).toBe('packed')
      expectClose(gradients, wanted, 1e-4)
    }
  })
})

/** How many maps of a graph get their update beside them, and how many in their weight. */
async function updatesOf(name: string, update: 'merged' | 'beside'): Promise<{ beside: number; merged: number }> {
  const profile = await imported(name)
  const { targets } = await madeUpAdapter(profile)
  const { graph } = await encoderGraph(profile, targets, 0, { update })
  const count = (suffix: string): number => graph.nodes.filter((node) => node.name.endsWith(suffix)).length
  return { beside: count('.lora_A'), merged: count('.lora') }
}

describe('a low-rank update', () => {
  it.each([
    ['tiny-bert-plain', { beside: 0, merged: 12 }],
    ['tiny-qwen3-plain', { beside: 0, merged: 14 }],
    // query, key and value share a weight
    ['tiny-bert-fused', { beside: 6, merged: 6 }],
    ['tiny-bert-fp16', { beside: 12, merged: 0 }],
    ['tiny-bert-q4', { beside: 12, merged: 0 }],
  ])('is added to weights of plain float32 numbers that one map has to itself: %s', async (name, expected) => {
    expect(await updatesOf(name, 'merged')).toEqual(expected)
    expect(await updatesOf(name, 'beside')).toEqual({ beside: expected.beside + expected.merged, merged: 0 })
  })

  it.each(['tiny-bert-plain', 'tiny-bert-fused-mha', 'tiny-qwen3-plain'])(
    'has the same gradients in the weight as beside the map: %s',
    async (name) => {
      const profile = await imported(name)
      const lora = await madeUpAdapter(profile)
      const { gradients } = await gradientsOf(profile, lora, 'beside')
      expectClose((await gradientsOf(profile, lora, 'merged')).gradients, gradients, 1e-5)
    },
  )

  it.each(['tiny-bert-plain', 'tiny-bert-fused', 'tiny-qwen3-plain'])(
    'of zero leaves every bit as it is: %s',
    async (name) => {
      const profile = await imported(name)
      const { targets } = await madeUpAdapter(profile)
      const tokenizer = await loadTokenizer(profile)
      const sequences = texts.map((text) => textSequence(tokenizer.encode(text).ids))
      const tensors = initialLora(targets, 'a')
      const matrices = loraShapes(targets).map(({ name, shape }): [string, Tensor] => [
        name,
        { dtype: 'float32', shape, data: tensors.get(name) as Float32Array },
      ])
      const run = async (lora: typeof targets): Promise<Tensor | undefined> => {
        const { graph, externalFolder, feeds } = await encoderGraph(profile, lora, tokenizer.padId)
        const folder = externalFolder === undefined ? {} : { externalFolder }
        const session = await openSession(graph, { threads: 1, ...folder })
        const given = Object.entries({ ...feeds(sequences), ...Object.fromEntries(matrices) })
        const { embeddings } = await session.run(
          Object.fromEntries(given.filter(([input]) => session.inputs.has(input))),
        )
        await session.release()
        return embeddings
      }
      expect(await run(targets)).toEqual(await run([]))
    },
  )
})

describe('embeddings through an imported graph', () => {
  it.each([...exactBerts, ...exactQwens])('are those of the file before the first step: %s', async (name) => {
    const profile = await imported(name)
    const { targets } = await madeUpAdapter(profile)
    const untrained = { targets, tensors: initialLora(targets, 'a'), baseFingerprint: undefined }
    const expected = expectedOf(name).embeddings
    expect(largestDifference(await embed(profile), expected)).toBeLessThan(1e-5)
    expect(largestDifference(await embed(profile, { adapter: untrained }), expected)).toBeLessThan(1e-5)
  })

  it.each(exactBerts)('with an adapter of the checkpoint are those of the checkpoint with it: %s', async (name) => {
    const profile = await imported(name)
    const over = await readAdapter(join(tinyBert('mean'), 'adapter'), profile)
    const ours = rowsOf(await embed(profile, { adapter: over }), 32)
    expect(largestDifference(await embed(checkpoint, { adapter }), ours)).toBeLessThan(1e-5)
    expect(largestDifference(await embed(checkpoint), ours)).toBeGreaterThan(1e-3)
  })
})

/** tiny-bert/mean with onnx/model.onnx as `change` makes it of the graph that the toolkit exports. */
async function folderWith(change: (g: GraphBuilder, graph: Graph) => string[]): Promise<string> {
  const { weights } = await openWeights(checkpoint)
  const stored = await openSafetensors(checkpoint.weights)
  const inMemory = new Map<string, Tensor>()
  for (const name of weights.keys()) inMemory.set(name, await stored.read(name))
  const plain = plainEncoder(checkpoint, inMemory)
  const g = GraphBuilder.from({ ...plain, outputs: [] })
  const outputs = change(g, plain)
  return folderOf(encodeModel(prune({ ...g.build(), outputs }, { unusedInputs: false })))
}

function folderOf(model: Uint8Array): string {
  const folder = join(temporaryFolder(), 'encoder')
  cpSync(tinyBert('mean'), folder, { recursive: true })
  rmSync(join(folder, 'model.safetensors'))
  mkdirSync(join(folder, 'onnx'))
  writeFileSync(join(folder, 'onnx', 'model.onnx'), model)
  return folder
}

describe('rows', () => {
  it('are padded where the graph pools them itself, and said to be', async () => {
    const folder = await folderWith((g) => {
      const mask = g.unsqueeze(g.cast('attention_mask', 'float32'), [2])
      const sum = g.reduceSum(g.mul('last_hidden_state', mask), [1])
      return [g.one('Identity', [g.div(sum, g.reduceSum(mask, [1]))], { outputs: ['sentence_embedding'] })]
    })
    const profile = await readEncoder(folder)
    const { layout, notes, gradients } = await gradientsOf(profile, adapter)
    expect(layout).toBe('padded')
    expect(notes).toEqual([expect.stringMatching(/texts get a row each.*the graph pools the tokens of a row itself/)])
    expectClose(gradients, (await gradientsOf(checkpoint, adapter)).gradients, 1e-5)
    const rows = rowsOf(await embed(profile, { adapter }), 32)
    expect(largestDifference(await embed(checkpoint, { adapter }), rows)).toBeLessThan(1e-5)
  })

  it('are padded where texts that share one would mix, and said to be', async () => {
    // every token is given a little of the row's mean, which padding takes no part in
    const folder = await folderWith((g) => {
      const mask = g.unsqueeze(g.cast('attention_mask', 'float32'), [2])
      const sum = g.reduceSum(g.mul('last_hidden_state', mask), [1], true)
      const mean = g.div(sum, g.reduceSum(mask, [1], true))
      return [g.one('Identity', [g.add('last_hidden_state', mean)], { outputs: ['token_embeddings'] })]
    })
    const profile = await readEncoder(folder)
    const { layout, notes, gradients } = await gradientsOf(profile, adapter)
    expect(layout).toBe('padded')
    expect(notes).toEqual([
      expect.stringMatching(/embeddings of texts that share a row differ by .* from those of the texts alone/),
    ])
    expect([...gradients.values()].every((values) => values.every(Number.isFinite))).toBe(true)
    const frozen = rowsOf(await embed(profile), 32)
    const targets = adapter.targets
    const untrained = { targets, tensors: initialLora(targets, 'a'), baseFingerprint: undefined }
    expect(largestDifference(await embed(profile, { adapter: untrained }), frozen)).toBeLessThan(1e-5)
  })

  it('are packed in the graph that the toolkit exports', async () => {
    const profile = await readEncoder(await folderWith(() => ['last_hidden_state']))
    const { layout, gradients } = await gradientsOf(profile, adapter)
    expect(layout).toBe('packed')
    expectClose(gradients, (await gradientsOf(checkpoint, adapter)).gradients, 1e-5)
  })
})

describe('names of a graph', () => {
  it('may be those that inputs and outputs have here', async () => {
    const folder = await folderWith((g) => {
      const names = ['embeddings', 'pool', 'segments', 'position_ids', 'loss', loraA('encoder.layer.0.output.dense')]
      const last = names.reduce((x, name) => g.one('Identity', [x], { outputs: [name] }), 'last_hidden_state')
      return [g.one('Identity', [last], { outputs: ['token_embeddings'] })]
    })
    const { layout, gradients } = await gradientsOf(await readEncoder(folder), adapter)
    expect(layout).toBe('packed')
    expectClose(gradients, (await gradientsOf(checkpoint, adapter)).gradients, 1e-5)
  })
})

describe('an ONNX folder that cannot be trained', () => {
  it('says which file the weights are missing from', async () => {
    const { weights } = await openWeights(checkpoint)
    const folder = folderOf(encodeModel(plainEncoder(checkpoint, weights)))
    await expect(readEncoder(folder).then(encoderModules)).rejects.toThrow(
      /weights of model\.onnx lie in model\.safetensors, which is missing/,
    )
  })

  it('says what a graph has in place of token vectors', async () => {
    const folder = await folderWith((g) => [g.one('Identity', ['last_hidden_state'], { outputs: ['logits'] })])
    await expect(readEncoder(folder).then(encoderModules)).rejects.toThrow(
      /no output "last_hidden_state"; it has logits/,
    )
  })

  it('asks for dynamic sizes', async () => {
    const g = new GraphBuilder()
    const ids = g.input('input_ids', 'int64', [1, 16])
    g.output(g.cast(ids, 'float32'), 'last_hidden_state')
    await expect(readEncoder(folderOf(encodeModel(g.build()))).then(encoderModules)).rejects.toThrow(
      /texts of \[1, 16\] tokens only\. Export it with dynamic axes/,
    )
  })

  it('is refused without a tokenizer, and where a file is no model', async () => {
    const folder = await folderWith(() => ['last_hidden_state'])
    writeFileSync(join(folder, 'onnx', 'model_broken.onnx'), 'no model')
    await expect(readEncoder(folder, { onnxFile: 'model_broken.onnx' }).then(encoderModules)).rejects.toThrow(
      /model_broken\.onnx: not an ONNX model/,
    )
    rmSync(join(folder, 'tokenizer.json'))
    await expect(readEncoder(folder)).rejects.toThrow(/No tokenizer\.json/)
  })

  it('names the modules that there are when a target names none', async () => {
    const modules = await encoderModules(await imported('tiny-bert-fused'))
    expect(() => chosenModules(modules, ['q_proj'])).toThrow(
      /"q_proj" names no linear module of the encoder; it has encoder\.layer\.\*\.attention\.self\.query/,
    )
  })
})

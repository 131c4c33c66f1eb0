import { execFileSync } from 'node:child_process'
import { cpSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import {
  AutoModelForImageTextToText,
  env,
  Tensor as JsTensor,
  type PreTrainedModel,
  pipeline,
} from '@huggingface/transformers'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import {
  type Adapter,
  canopySettings,
  type EncoderInput,
  type EncoderProfile,
  encoderGraph,
  openEmbedder,
  openPair,
  readAdapter,
  readEncoder,
  readEncoderPair,
  refineItems,
} from '../../src/encoder/index.ts'
import { type CheckInstance, type ExportedEncoder, type ExportOptions, exportEncoder } from '../../src/export/index.ts'
import { buildHierarchy, type Item } from '../../src/hierarchy/index.ts'
import { decodeModel, openSafetensors, openSession, type Session, type Tensor } from '../../src/onnx/index.ts'
import { cosine, type Kind, type KnownInput, knownInputs, relativeError, tinyQwen3 } from '../encoder/qwen3-known.ts'
import { hasFfmpeg } from '../media/ffmpeg-present.ts'
import { temporaryFolder } from '../support/temporary.ts'

const picture = (name: string): string => join(tinyQwen3('qwen3-vl'), 'pictures', name)

async function exported(
  kind: Kind,
  more: Partial<ExportOptions> & { adapted?: boolean } = {},
): Promise<{ output: string; encoder: EncoderProfile; adapter: Adapter | undefined; check: ExportedEncoder }> {
  const { adapted = true, ...options } = more
  const encoder = options.encoder ?? (await readEncoder(tinyQwen3(kind)))
  const adapter = adapted ? await readAdapter(join(tinyQwen3(kind), 'adapter'), encoder) : undefined
  const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
  const output = join(temporaryFolder(), 'exported')
  const check = await exportEncoder({
    ...{ encoder, adapter, queryEncoder: encoder, settings, output, version: '0', threads: 1 },
    ...options,
  })
  return { output, encoder, adapter, check }
}

const graphOf = (folder: string, name: string) => decodeModel(readFileSync(join(folder, 'onnx', name)))

const int64 = (shape: number[], values: readonly number[]): Tensor => ({
  ...{ dtype: 'int64', shape },
  data: BigInt64Array.from(values, BigInt),
})

const { allowRemoteModels } = env
beforeAll(() => {
  env.allowRemoteModels = false
})
afterAll(() => {
  env.allowRemoteModels = allowRemoteModels
})

describe('an exported Qwen3 encoder', () => {
  it('is one graph of standard operators over ids and a mask', async () => {
    const { output } = await exported('qwen3')
    expect(readdirSync(join(output, 'onnx'))).toEqual(['model.onnx'])
    const graph = graphOf(output, 'model.onnx')
    expect(graph.opset).toBeLessThanOrEqual(17)
    expect([...new Set(graph.nodes.map(({ domain }) => domain))]).toEqual([''])
    expect(graph.inputs).toEqual(['input_ids', 'attention_mask'])
    expect(graph.outputs).toEqual(['last_hidden_state'])
  })

  it('embeds as transformers and PEFT do with the adapter, however texts are batched', async () => {
    const { output } = await exported('qwen3')
    const known = await knownInputs('qwen3')
    const profile = await readEncoder(output)
    expect(profile).toMatchObject({ kind: 'onnx', pooling: 'last', normalize: true })
    for (const tokenBudget of [50, 4096]) {
      const embedder = await openEmbedder(profile, { threads: 1, tokenBudget })
      onTestFinished(() => embedder.close())
      const found = await embedder.embedSequences(known.map(({ ids }) => ({ ids: Int32Array.from(ids) })))
      known.forEach(({ name, adapted }, i) => {
        expect(cosine(found.subarray(64 * i, 64 * (i + 1)), adapted), name).toBeGreaterThanOrEqual(0.99999)
      })
    }
  })

  it('embeds the same in transformers.js, whose last token is that of rows filled up from the left', async () => {
    const { output } = await exported('qwen3')
    expect(JSON.parse(readFileSync(join(output, 'tokenizer_config.json'), 'utf8'))).toMatchObject({
      padding_side: 'left',
    })
    const texts = ['Lighthouses\nThe lamp turns once.', 'a', 'Café, naïve: accents and CAPITALS, No. 5 at 33.33 %.']
    const extract = await pipeline('feature-extraction', output, { dtype: 'fp32' })
    onTestFinished(() => extract.dispose())
    const { data, dims } = await extract(texts, { pooling: 'last_token', normalize: true })
    expect(dims).toEqual([3, 64])
    const embedder = await openEmbedder(await readEncoder(output), { threads: 1 })
    onTestFinished(() => embedder.close())
    const { embeddings } = await embedder.embedTexts(texts, 'node')
    expect(relativeError(data as Float32Array, embeddings)).toBeLessThan(1e-5)
  })
})

/** The parts of an export as another program runs them. */
interface Parts {
  vision: Session
  table: Session
  decoder: Session
}

async function openParts(folder: string, ending = ''): Promise<Parts> {
  const open = async (name: string): Promise<Session> => {
    const session = await openSession(join(folder, 'onnx', `${name}${ending}.onnx`), { threads: 1 })
    onTestFinished(() => session.release())
    return session
  }
  return {
    vision: await open('vision_encoder'),
    table: await open('embed_tokens'),
    decoder: await open('decoder_model_merged'),
  }
}

/** Features level by level, as rows in which the levels lie one behind the other. */
function wide({ features }: KnownInput): Float32Array[] {
  const rows = (features[0]?.length ?? 0) / 64
  return Array.from({ length: rows }, (_, row) =>
    Float32Array.from(features.flatMap((level) => Array.from(level.subarray(64 * row, 64 * (row + 1))))),
  )
}

/** Last hidden states of an input, [tokens, 64], its features in the place of their tokens. */
async function hiddenStates({ table, decoder }: Parts, input: KnownInput): Promise<Float32Array> {
  const shape = [1, input.ids.length]
  const { inputs_embeds } = await table.run({ input_ids: int64(shape, input.ids) })
  const rows = wide(input)
  input.isVisual.forEach((isVisual, token) => {
    if (isVisual) (inputs_embeds!.data as Float32Array).set(rows.shift()!, 256 * token)
  })
  const { last_hidden_state } = await decoder.run({
    inputs_embeds: inputs_embeds!,
    attention_mask: int64(
      shape,
      input.ids.map(() => 1),
    ),
    position_ids: int64([3, ...shape], input.positions.flat()),
  })
  return last_hidden_state!.data as Float32Array
}

describe('an exported Qwen3-VL encoder', () => {
  it('is three graphs of standard operators by the names of transformers.js, with its processor and template', async () => {
    const { output } = await exported('qwen3-vl')
    // weights lie beside the graphs, but for the fixture's small table
    expect(readdirSync(join(output, 'onnx'))).toEqual([
      'decoder_model_merged.onnx',
      'decoder_model_merged.onnx_data',
      'embed_tokens.onnx',
      'vision_encoder.onnx',
      'vision_encoder.onnx_data',
    ])
    expect(JSON.parse(readFileSync(join(output, 'config.json'), 'utf8'))['transformers.js_config']).toEqual({
      use_external_data_format: { 'decoder_model_merged.onnx': true, 'vision_encoder.onnx': true },
    })
    const interfaces = {
      'vision_encoder.onnx': [['pixel_values', 'image_grid_thw'], ['image_features']],
      'embed_tokens.onnx': [['input_ids'], ['inputs_embeds']],
      'decoder_model_merged.onnx': [['inputs_embeds', 'attention_mask', 'position_ids'], ['last_hidden_state']],
    }
    for (const [name, [inputs, outputs]] of Object.entries(interfaces)) {
      const graph = graphOf(output, name)
      expect(graph.opset).toBeLessThanOrEqual(17)
      expect([...new Set(graph.nodes.map(({ domain }) => domain))]).toEqual([''])
      expect([graph.inputs, graph.outputs]).toEqual([inputs, outputs])
    }
    for (const file of ['preprocessor_config.json', 'video_preprocessor_config.json', 'chat_template.json'])
      expect(readFileSync(join(output, file), 'utf8')).toBe(readFileSync(join(tinyQwen3('qwen3-vl'), file), 'utf8'))
    const card = readFileSync(join(output, 'README.md'), 'utf8')
    expect(card).toContain('Inputs compared: 4 of text, 1 of pictures (0 over-long)')
  })

  it('gives the hidden states of transformers, for texts, pictures and a video', async () => {
    const { output } = await exported('qwen3-vl', { adapted: false })
    const parts = await openParts(output)
    const known = await knownInputs('qwen3-vl')
    expect(known.map(({ name }) => name)).toContain('video')
    for (const input of known)
      expect(relativeError(await hiddenStates(parts, input), input.hidden), input.name).toBeLessThan(1e-4)
  })

  it('embeds as PEFT does with the adapter, the adapter being in the language part alone', async () => {
    const [{ output }, { output: frozen }] = [
      await exported('qwen3-vl'),
      await exported('qwen3-vl', { adapted: false }),
    ]
    const parts = await openParts(output)
    for (const input of await knownInputs('qwen3-vl')) {
      const last = (await hiddenStates(parts, input)).subarray(-64)
      expect(cosine(last, input.adapted), input.name).toBeGreaterThanOrEqual(0.99999)
      expect(cosine(last, input.embedding), input.name).toBeLessThan(0.9999)
    }
    const same = (name: string): boolean =>
      readFileSync(join(output, 'onnx', name)).equals(readFileSync(join(frozen, 'onnx', name)))
    expect(['vision_encoder.onnx_data', 'embed_tokens.onnx', 'decoder_model_merged.onnx'].map(same)).toEqual([
      true,
      true,
      true,
    ])
    expect(same('decoder_model_merged.onnx_data')).toBe(false)
  })

  it('computes the features of transformers from its pixels', async () => {
    const { output } = await exported('qwen3-vl', { adapted: false })
    const { vision } = await openParts(output)
    const stored = await openSafetensors(join(tinyQwen3('qwen3-vl'), 'expected.safetensors'))
    const { inputs } = JSON.parse(readFileSync(join(tinyQwen3('qwen3-vl'), 'expected.json'), 'utf8'))
    for (const input of await knownInputs('qwen3-vl')) {
      const { grids, pixelStride } = inputs[input.name]
      if (pixelStride !== 1) continue
      const { image_features } = await vision.run(pixelsOf(await stored.read(`${input.name}.pixels`), grids))
      expect(image_features!.shape).toEqual([input.features[0]!.length / 64, 256])
      const rows = wide(input).flatMap((row) => Array.from(row))
      expect(relativeError(image_features!.data as Float32Array, rows), input.name).toBeLessThan(1e-4)
    }
  })

  it('runs in transformers.js as it is, DeepStack included', async () => {
    const { output } = await exported('qwen3-vl')
    const model = (await AutoModelForImageTextToText.from_pretrained(output, { dtype: 'fp32' })) as PreTrainedModel
    onTestFinished(async () => void (await model.dispose()))
    const stored = await openSafetensors(join(tinyQwen3('qwen3-vl'), 'expected.safetensors'))
    const { inputs } = JSON.parse(readFileSync(join(tinyQwen3('qwen3-vl'), 'expected.json'), 'utf8'))
    const js = ({ dtype, shape, data }: Tensor): JsTensor =>
      new JsTensor(dtype as 'float32', data as Float32Array, shape)
    for (const { name, ids, adapted } of await knownInputs('qwen3-vl')) {
      const { grids, pixelStride } = inputs[name]
      if (grids !== undefined && pixelStride !== 1) continue // a video, of which it knows nothing
      const shape = [1, ids.length]
      const shown = grids === undefined ? {} : pixelsOf(await stored.read(`${name}.pixels`), grids)
      const tokens = {
        input_ids: int64(shape, ids),
        attention_mask: int64(
          shape,
          ids.map(() => 1),
        ),
      }
      const feeds = Object.entries({ ...tokens, ...shown }).map(([key, tensor]) => [key, js(tensor as Tensor)])
      const { last_hidden_state } = await model(Object.fromEntries(feeds))
      expect(cosine((last_hidden_state.data as Float32Array).subarray(-64), adapted), name).toBeGreaterThan(0.99999)
    }
  })

  it('is an encoder again, from files to embeddings, a text and a picture to a batch', async () => {
    const { output, encoder, adapter } = await exported('qwen3-vl')
    const inputs: EncoderInput[] = [
      { text: 'Lighthouses\nThe lamp turns once in nine seconds.' },
      { text: 'The long bridge at Orrin', images: [picture('tall.png')] },
      { text: '', images: [picture('wide.png'), picture('tall.png')] },
    ]
    const trained = await openEmbedder(encoder, { threads: 1, adapter: adapter! })
    onTestFinished(() => trained.close())
    const wanted = await trained.embed(inputs, 'node')
    const profile = await readEncoder(output)
    expect(profile).toMatchObject({ kind: 'onnx', architecture: 'qwen3_vl', maxLength: encoder.maxLength })
    for (const tokenBudget of [60, 4096]) {
      const again = await openEmbedder(profile, { threads: 1, tokenBudget })
      onTestFinished(() => again.close())
      const found = await again.embed(inputs, 'node')
      expect([...found.tokens]).toEqual([...wanted.tokens])
      expect(relativeError(found.embeddings, wanted.embeddings)).toBeLessThan(1e-5)
    }
    await expect(encoderGraph(profile, [], 0)).rejects.toThrow(/is not trained.*checkpoint/)
  })

  it('is compared with the trained one on held-out items of every modality', async () => {
    const folder = temporaryFolder()
    cpSync(picture('wide.png'), join(folder, 'wide.png'))
    const frames = ['-framerate', '1/30', '-i', picture('frame%d.png'), '-pix_fmt', 'gbrp', '-c:v', 'ffv1']
    if (hasFfmpeg) execFileSync('ffmpeg', ['-v', 'error', ...frames, join(folder, 'film.mkv')])
    const items: Item[] = [
      { id: 'text', modality: 'text', title: 'Clocks', text: 'The clock is old. It runs. Who knows how long.' },
      {
        id: 'table',
        modality: 'table',
        header: ['Town', 'Built'],
        rows: [
          ['Orrin', '1871'],
          ['Velm', '1790'],
        ],
      },
      { id: 'image', modality: 'image', title: 'A bridge', image: 'wide.png' },
      ...(hasFfmpeg
        ? [{ id: 'video', modality: 'video' as const, title: 'Ships', video: 'film.mkv', start: 0, end: 60 }]
        : []),
    ]
    const instances = items.map((item): CheckInstance => {
      const hierarchy = buildHierarchy(item)
      const gold = hierarchy.leaves.map((_, leaf) => leaf === 0)
      return { benchmark: 'made-up', question: `What of the ${item.id}?`, hierarchy, folder, gold }
    })
    const check = (await exported('qwen3-vl', { instances })).check
    // a picture's one node and the built-in picture; a table and its rows; built-in texts and the nodes of one
    expect(check.compared).toMatchObject({ text: 9, table: 3, image: 2, video: hasFfmpeg ? 3 : 0 })
    expect(check.minCosine).toBeGreaterThan(0.999999)
    expect(check.refinement).toMatchObject({ instances: items.length, sameKept: 1 })
    expect(check.refinement?.exported).toEqual(check.refinement?.trained)
    // media that are gone stop the export, by name
    rmSync(join(folder, 'wide.png'))
    await expect(exported('qwen3-vl', { instances })).rejects.toThrow(/wide\.png/)
  })

  it('keeps the instruction and the number of dimensions that it was trained with', async () => {
    const encoder = await readEncoder(tinyQwen3('qwen3-vl'), {
      dimensions: 24,
      instructions: { node: 'Represent the part of a page.' },
    })
    const { output } = await exported('qwen3-vl', { encoder })
    expect(await readEncoder(output)).toMatchObject({
      dimension: 24,
      width: 64,
      prompts: { node: 'Represent the part of a page.' },
    })
  })

  it('is opened by the graph of its first type, by whoever opens it, unless another is named', async () => {
    const { output } = await exported('qwen3-vl', { types: ['int8', 'fp16', 'fp32'] })
    const graph = async (options: { onnxFile?: string } = {}): Promise<string> =>
      basename((await readEncoderPair(output, { queryEncoder: tinyQwen3('qwen3-vl'), ...options })).encoder.weights)
    expect(await graph()).toBe('decoder_model_merged_int8.onnx')
    const onnxFile = 'decoder_model_merged_fp16.onnx'
    expect(await graph({ onnxFile })).toBe(onnxFile)
    // what is trained or compared against it finds the same graph again
    const again = await readEncoder(output)
    const settings = canopySettings(again, await readEncoder(output, { onnxFile }), {
      ...{ title: true, tableFormat: 'markdown', branching: 2 },
    })
    expect([settings.base.onnxFile, settings.queryEncoder.onnxFile]).toEqual([undefined, onnxFile])
    writeFileSync(join(output, 'canopy.json'), JSON.stringify({ onnxFile: '../model.onnx' }))
    await expect(readEncoder(output)).rejects.toThrow(/canopy\.json: "onnxFile": expected the name of a graph/)
  })

  it('refines texts with the query encoder that it carries', async () => {
    const { output } = await exported('qwen3-vl', { bundle: true })
    expect(existsSync(join(output, 'query-encoder', 'preprocessor_config.json'))).toBe(true)
    const pair = await readEncoderPair(output)
    const encoders = await openPair(pair, { threads: 1 })
    onTestFinished(() => encoders.close())
    const [refined] = await refineItems(encoders, pair.settings, 'Who counted?', [
      'The clock is old. It runs. Who knows.',
    ])
    expect(refined).toMatchObject({ leaves: 3 })
  })

  it('is not exported once more, and misses its parts by name', async () => {
    const { output } = await exported('qwen3-vl')
    const encoder = await readEncoder(output)
    await expect(exported('qwen3-vl', { encoder, adapted: false })).rejects.toThrow(/is an export already/)
    rmSync(join(output, 'onnx', 'vision_encoder.onnx'))
    await expect(readEncoder(output)).rejects.toThrow(/vision_encoder\.onnx: The encoder's part .* is missing/)
    const other = readEncoder(output, { kind: 'onnx', onnxFile: 'decoder_model_merged_q4.onnx' })
    await expect(other).rejects.toThrow(
      /No .*decoder_model_merged_q4\.onnx\. The graphs in that folder that can be chosen are decoder_model_merged\.onnx: name one/,
    )
  })
})

/** Pixel values of the fixtures' bytes, with their grids. */
function pixelsOf({ shape, data }: Tensor, grids: number[][]): Record<string, Tensor> {
  const pixels = Float32Array.from(data as Uint8Array, (value) => value / 127.5 - 1)
  return {
    pixel_values: { dtype: 'float32', shape, data: pixels },
    image_grid_thw: int64([grids.length, 3], grids.flat()),
  }
}

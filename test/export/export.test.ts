import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { basename, join } from 'node:path'
import { env, pipeline } from '@huggingface/transformers'
import { describe, expect, it, onTestFinished } from 'vitest'
import {
  type Adapter,
  type CanopySettings,
  canopySettings,
  type Embedder,
  type EncoderProfile,
  openEmbedder,
  openPair,
  readAdapter,
  readCanopySettings,
  readEncoder,
  readEncoderPair,
  refineItems,
} from '../../src/encoder/index.ts'
import { addTrainingQuestion, emptyTrainingData, readTrainingData } from '../../src/eval/index.ts'
import { MERGED_BOUNDS } from '../../src/export/closeness.ts'
import { type CheckInstance, type ExportOptions, exportEncoder } from '../../src/export/index.ts'
import { failures, referenceOf, selfCheck } from '../../src/export/self-check.ts'
import { buildHierarchy } from '../../src/hierarchy/index.ts'
import { decodeModel, openSession } from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { sha256File } from '../../src/support/files.ts'
import { expected, expectedAdapter, largestDifference, tinyBert } from '../encoder/fixtures.ts'
import { snapshot, temporaryFolder } from '../support/temporary.ts'

type Variant = 'mean' | 'cls'

interface Setup {
  encoder: EncoderProfile
  adapter: Adapter | undefined
  settings: CanopySettings
  options: ExportOptions
  parent: string
  output: string
}

/** What is needed to export a fixture; `mean` has an adapter. */
async function setup(variant: Variant, more: Partial<ExportOptions> = {}): Promise<Setup> {
  const encoder = await readEncoder(tinyBert(variant))
  const adapter = variant === 'mean' ? await readAdapter(join(tinyBert('mean'), 'adapter'), encoder) : undefined
  const settings = canopySettings(encoder, encoder, { title: true, tableFormat: 'markdown', branching: 2 })
  const parent = temporaryFolder()
  const output = join(parent, 'exported')
  const common = { encoder, adapter, queryEncoder: encoder, settings, output, version: '0', threads: 1 }
  return { encoder, adapter, settings, parent, output, options: { ...common, ...more } }
}

async function open(profile: EncoderProfile, options: { adapter?: Adapter; tokenBudget?: number } = {}) {
  const embedder: Embedder = await openEmbedder(profile, { threads: 1, ...options })
  onTestFinished(() => embedder.close())
  return embedder
}

const json = (...path: string[]): Record<string, unknown> => JSON.parse(readFileSync(join(...path), 'utf8'))

/** Held-out items over words of the fixture's vocabulary, the gold in turn in every leaf. */
const instances: CheckInstance[] = Array.from({ length: 6 }, (_, i) => {
  const sentences = Array.from({ length: 2 + (i % 4) }, (_, s) => `The ${['a', 'b', 'c'][(i + s) % 3]} is ${s} ${i}. `)
  const hierarchy = buildHierarchy({ id: `i${i}`, modality: 'text', title: `t ${i}`, text: sentences.join('') })
  const gold = hierarchy.leaves.map((_, leaf) => leaf === i % hierarchy.leaves.length)
  return { benchmark: 'made-up', question: `What is ${i}?`, hierarchy, gold }
})

describe('the exported folder', () => {
  it('holds what other programs look for, with the tokenizer cutting at the trained limit', async () => {
    const trainingData = emptyTrainingData()
    const question = { id: 'q', benchmark: 'b', split: 'train', question: '?', answers: [], gold: [] }
    addTrainingQuestion(trainingData, { ...question, source: 's' })
    const { options, output, parent, settings } = await setup('mean', { trainingData, table: '| measured |' })
    await exportEncoder(options)
    expect(readdirSync(parent)).toEqual(['exported'])
    const files = Object.keys(await snapshot(output)).map((file) => file.slice(output.length + 1))
    expect(files.sort()).toEqual([
      '1_Pooling/config.json',
      'README.md',
      'canopy.json',
      'config.json',
      'config_sentence_transformers.json',
      'modules.json',
      'onnx/model.onnx',
      'sentence_bert_config.json',
      'tokenizer.json',
      'tokenizer_config.json',
      'training-data.json',
    ])
    // the checkpoint says 512 in one file, 16 in another and 24 where it counts
    expect(json(output, 'tokenizer_config.json')).toMatchObject({ model_max_length: 24 })
    expect(json(output, 'sentence_bert_config.json')).toMatchObject({ max_seq_length: 24 })
    expect(json(output, 'tokenizer.json')).toMatchObject({ truncation: null, padding: null })
    expect(json(output, 'config.json')).toMatchObject({ model_type: 'bert', hidden_size: 32 })
    expect(json(output, '1_Pooling/config.json')).toMatchObject({
      word_embedding_dimension: 32,
      pooling_mode_mean_tokens: true,
      pooling_mode_cls_token: false,
    })
    expect(await readCanopySettings(output)).toEqual({
      ...settings,
      files: { 'onnx/model.onnx': await sha256File(join(output, 'onnx', 'model.onnx')) },
      onnxFile: 'model.onnx',
    })
    expect(await readTrainingData(output)).toEqual(trainingData)
    const card = readFileSync(join(output, 'README.md'), 'utf8')
    expect(card).toMatch(/^---\nlibrary_name: sentence-transformers\n/)
    expect(card).toContain('| measured |')
    expect(card).toContain('| maximum length | 24 tokens; what is longer is cut |')
  })

  it('has a graph of standard operators, opset 17 at most, with int64 inputs of any batch and length', async () => {
    const { options, output } = await setup('mean')
    await exportEncoder(options)
    const file = join(output, 'onnx', 'model.onnx')
    const graph = decodeModel(readFileSync(file), file)
    expect(graph.opset).toBeLessThanOrEqual(17)
    expect(graph.domains ?? {}).toEqual({})
    expect([...new Set(graph.nodes.map((node) => node.domain))]).toEqual([''])
    expect(graph.inputs).toEqual(['input_ids', 'attention_mask', 'token_type_ids'])
    for (const name of graph.inputs)
      expect(graph.types.get(name)).toEqual({ dtype: 'int64', shape: ['batch', 'sequence'] })
    expect(graph.outputs).toEqual(['last_hidden_state'])
    for (const tensor of graph.initializers.values()) expect('data' in tensor).toBe(true)

    const session = await openSession(file, { threads: 1 })
    for (const shape of [
      [1, 3],
      [5, 24],
    ]) {
      const data = new BigInt64Array(shape[0]! * shape[1]!).fill(1n)
      const feed = { dtype: 'int64', shape, data } as const
      const { last_hidden_state } = await session.run(Object.fromEntries(graph.inputs.map((name) => [name, feed])))
      expect(last_hidden_state?.shape).toEqual([...shape, 32])
    }
    await session.release()
  })

  it.each(['mean', 'cls'] as const)(
    'gives the embeddings that were trained, however texts are batched, over-long ones too (%s)',
    async (variant) => {
      const { options, output, encoder, adapter } = await setup(variant)
      const check = await exportEncoder(options)
      expect(check.truncated).toBeGreaterThan(0)
      expect(check.minCosine).toBeGreaterThan(0.999999)

      const profile = await readEncoder(output)
      expect(profile).toMatchObject({
        kind: 'onnx',
        pooling: encoder.pooling,
        normalize: encoder.normalize,
        maxLength: encoder.maxLength,
        prompts: { node: encoder.prompts.node },
      })
      const { texts, node } = expected(variant)
      const python = variant === 'mean' ? expectedAdapter().embeddings : node
      const packed = await open(encoder, adapter === undefined ? {} : { adapter })
      const trained = (await packed.embedTexts(texts, 'node')).embeddings
      const rows = texts.map((_, i) => Array.from(trained.subarray(i * 32, (i + 1) * 32)))
      // small budgets put every text into a batch of its own, large ones pad all to the longest
      for (const tokenBudget of [24, 100, 4096]) {
        const exported = await open(profile, { tokenBudget })
        const { embeddings, truncated } = await exported.embedTexts(texts, 'node')
        expect(truncated).toContain(true)
        expect(largestDifference(embeddings, rows)).toBeLessThan(2e-5)
        expect(largestDifference(embeddings, python)).toBeLessThan(1e-4)
      }
    },
  )

  it.each(['mean', 'cls'] as const)('gives them in transformers.js, as a local folder (%s)', async (variant) => {
    const { options, output, encoder, adapter } = await setup(variant)
    await exportEncoder(options)
    const packed = await open(encoder, adapter === undefined ? {} : { adapter })
    const inputs = expected(variant).texts.map((text) => ({ text }))
    const encoded = await packed.reader.encode(inputs, 'node')
    // transformers.js cuts [SEP] off an over-long text, and lower-cases a final sigma as JavaScript does: its tokens differ there
    const texts = expected(variant).texts.filter((text, i) => !/Σ/.test(text) && !encoded[i]!.truncated)
    expect(texts.length).toBeGreaterThan(4)
    const trained = (await packed.embedTexts(texts, 'node')).embeddings
    const { allowRemoteModels } = env
    env.allowRemoteModels = false
    const extract = await pipeline('feature-extraction', output, { dtype: 'fp32' })
    onTestFinished(async () => {
      env.allowRemoteModels = allowRemoteModels
      await extract.dispose()
    })
    const prompted = texts.map((text) => encoder.prompts.node + text)
    const { pooling, normalize } = encoder
    const { data, dims } = await extract(prompted, { pooling: pooling === 'mean' ? 'mean' : 'cls', normalize })
    expect(dims).toEqual([texts.length, 32])
    const rows = texts.map((_, i) => Array.from(trained.subarray(i * 32, (i + 1) * 32)))
    expect(largestDifference(data as Float32Array, rows)).toBeLessThan(2e-5)
  })

  it('without an adapter is the checkpoint itself', async () => {
    const { options, output, encoder } = await setup('mean', { adapter: undefined })
    await exportEncoder(options)
    const { texts, embeddings } = expected('mean')
    const exported = await open(await readEncoder(output))
    expect(largestDifference((await exported.embedTexts(texts, 'node')).embeddings, embeddings)).toBeLessThan(1e-5)
    expect(encoder.prompts.node).toBe('')
  })

  it('carries its query encoder when bundled, and says whose it is otherwise', async () => {
    const bundled = await setup('mean', { bundle: true })
    await exportEncoder(bundled.options)
    const pair = await readEncoderPair(bundled.output)
    expect(pair).toMatchObject({ trained: true, query: { fingerprint: bundled.encoder.fingerprint } })
    const encoders = await openPair(pair, { threads: 1 })
    onTestFinished(() => encoders.close())
    const items = ['The a is b. The c is d. It is e.']
    const [refined] = await refineItems(encoders, pair.settings, 'What is a?', items)
    expect(refined).toMatchObject({ leaves: 3 })
    // the tokenizer drops control characters
    expect(await refineItems(encoders, pair.settings, 'What\0 is a?\0', items)).toEqual([refined])

    const alone = await setup('mean')
    await exportEncoder(alone.options)
    await expect(readEncoderPair(alone.output)).rejects.toThrow(/frozen query encoder mean.*--query-encoder/)
    const other = tinyBert('cls')
    await expect(readEncoderPair(alone.output, { queryEncoder: other })).rejects.toThrow(
      /canopy\.json: .*trained with the query encoder mean .*but the one given is cls .*--query-encoder/,
    )
    await expect(readEncoderPair(bundled.output, { queryEncoder: other })).rejects.toThrow(/cannot be compared/)
    expect((await readEncoderPair(alone.output, { queryEncoder: tinyBert('mean') })).query.id).toBe('mean')
  })

  it('carries a query encoder whose model lies in a folder of its own, pooling elsewhere', async () => {
    const { options, output, encoder } = await setup('mean')
    const folder = join(temporaryFolder(), 'modules')
    cpSync(tinyBert('mean'), join(folder, '0_Transformer'), { recursive: true })
    for (const name of ['modules.json', 'config_sentence_transformers.json', '1_Pooling', '2_Normalize', 'adapter'])
      rmSync(join(folder, '0_Transformer', name), { recursive: true, force: true })
    cpSync(join(tinyBert('mean'), '1_Pooling'), join(folder, 'parts', 'pooling'), { recursive: true })
    const modules = json(tinyBert('mean'), 'modules.json') as unknown as { path: string }[]
    modules[0]!.path = '0_Transformer'
    modules[1]!.path = 'parts/pooling'
    writeFileSync(join(folder, 'modules.json'), JSON.stringify(modules))
    cpSync(
      join(tinyBert('mean'), 'config_sentence_transformers.json'),
      join(folder, 'config_sentence_transformers.json'),
    )
    const queryEncoder = await readEncoder(folder)
    expect(queryEncoder.modelFolder).toBe(join(folder, '0_Transformer'))
    const settings = canopySettings(encoder, queryEncoder, { title: true, tableFormat: 'markdown', branching: 2 })
    await exportEncoder({ ...options, queryEncoder, settings, bundle: true })
    rmSync(folder, { recursive: true })
    const pair = await readEncoderPair(output)
    expect(pair.query.fingerprint).toBe(queryEncoder.fingerprint)
    const encoders = await openPair(pair, { threads: 1 })
    onTestFinished(() => encoders.close())
    const [refined] = await refineItems(encoders, pair.settings, 'What is a?', ['The a is b. The c is d. It is e.'])
    expect(refined).toMatchObject({ leaves: 3 })
  })

  it('has the same bytes when it is exported again, in place of the old one', async () => {
    const { options, output, parent } = await setup('mean', { instances })
    await exportEncoder(options)
    const before = await snapshot(output)
    await exportEncoder(options)
    expect(await snapshot(output)).toEqual(before)
    expect(readdirSync(parent)).toEqual(['exported'])
  })
})

describe('the self-check', () => {
  it('compares refinement on held-out items', async () => {
    const { options } = await setup('mean', { instances })
    const { refinement, compared } = await exportEncoder(options)
    expect(refinement).toMatchObject({ instances: 6, sameKept: 1, lost: 0, gained: 0 })
    expect(refinement?.exported).toEqual(refinement?.trained)
    expect(compared.text).toBeGreaterThan(instances.length)
    expect(refinement?.decisions).toBeGreaterThan(0)
  })

  it('fails where decisions get worse by more than is allowed, unless that is forced', async () => {
    const { options, encoder, adapter, parent, output } = await setup('mean', { types: ['int4'] })
    // the trained encoder decides rightly: what it keeps is gold
    const pair = await openPair(
      { ...(await readEncoderPair(tinyBert('mean'))), encoder, adapter, query: encoder },
      { threads: 1 },
    )
    onTestFinished(() => pair.close())
    const items = Array.from({ length: 40 }, (_, i) =>
      Array.from({ length: 8 }, (_, s) => `The ${'abcde'[(i * s + s) % 5]} is ${(7 * s + i) % 10} ${s} ${i}. `).join(
        '',
      ),
    )
    const made: CheckInstance[] = []
    for (const [i, text] of items.entries()) {
      const hierarchy = buildHierarchy({ id: `i${i}`, modality: 'text', text })
      const question = `What is ${i}?`
      const [refined] = await refineItems(pair, options.settings, question, [text])
      const gold = hierarchy.leaves.map((_, leaf) => refined!.kept.some(({ from, to }) => from <= leaf && leaf < to))
      made.push({ benchmark: 'made-up', question, hierarchy, gold })
    }
    const failing = { ...options, instances: made, maxAccuracyLoss: 0.5 }
    const seen: number[] = []
    const onChecked: ExportOptions['onChecked'] = ({ loss }) => seen.push(loss.points!)
    await expect(exportEncoder({ ...failing, onChecked })).rejects.toThrow(
      /exported: The exported encoder decides worse .* not kept: int4: decision accuracy falls by \d+\.\d points.*at most 0\.5 are allowed.*--max-accuracy-loss.*--force/,
    )
    expect(readdirSync(parent)).toEqual([])
    expect(seen).toEqual([expect.any(Number)])
    const { loss, refinement } = await exportEncoder({ ...failing, force: true })
    expect(loss).toMatchObject({ verdict: 'lost', allowed: 0.5 })
    expect(loss.points).toBeCloseTo((100 * (refinement!.lost - refinement!.gained)) / refinement!.decisions, 9)
    expect(readFileSync(join(output, 'README.md'), 'utf8')).toContain('The export was forced.**')
    expect((await exportEncoder({ ...failing, maxAccuracyLoss: 100 })).loss.verdict).toBe('kept')
  })

  it('fails for files that are not what was trained', async () => {
    const { options, output, encoder, adapter } = await setup('mean')
    // merged with a scale that is 10 % too large, and not merged at all
    const wrong = { ...adapter!, targets: adapter!.targets.map((target) => ({ ...target, alpha: 1.1 * target.alpha })) }
    for (const merged of [wrong, undefined]) {
      await exportEncoder({ ...options, adapter: merged })
      const reference = await referenceOf({
        trained: () => openEmbedder(encoder, { adapter: adapter!, threads: 1 }),
        query: () => openEmbedder(encoder, { threads: 1 }),
        instances,
        rendering: { title: true },
        picture: 'not looked at',
      })
      const written = await readEncoder(output)
      const check = await selfCheck(reference, () => openEmbedder(written, { threads: 1 }))
      expect(check.minCosine).toBeLessThan(MERGED_BOUNDS.float32.minCosine)
      expect(failures(check)).toEqual([
        expect.stringMatching(/smallest cosine to the trained encoder is 0\.\d+, below 0\.99999/),
        expect.stringMatching(/largest difference to the trained encoder is \d\.\d\de-\d, above 0\.0001/),
      ])
    }
  })

  it('never passes numbers that are none', () => {
    const fine = {
      compared: { text: 1, table: 0, image: 0, video: 0 },
      truncated: 0,
      cutAlike: true,
      minCosine: 1,
      maxDifference: 0,
      bounds: MERGED_BOUNDS.float32,
    }
    expect(failures(fine)).toEqual([])
    expect(failures({ ...fine, minCosine: Number.NaN })).toHaveLength(1)
    expect(failures({ ...fine, maxDifference: Number.NaN })).toHaveLength(1)
  })

  it('leaves nothing behind when the written model is not the trained one, and an old export as it was', async () => {
    const { options, output, parent } = await setup('mean')
    const frozen = join(parent, 'frozen')
    await exportEncoder({ ...options, adapter: undefined, output: frozen })
    // between writing and checking, the model without the adapter takes the place of the merged one
    const onProgress: ExportOptions['onProgress'] = ({ phase, done }) => {
      if (phase !== 'writing' || done !== 1) return
      const temporary = readdirSync(parent).find((name) => name.startsWith('.exported'))
      copyFileSync(join(frozen, 'onnx/model.onnx'), join(parent, temporary as string, 'onnx/model.onnx'))
    }
    const failing = (): Promise<unknown> => exportEncoder({ ...options, onProgress })
    await expect(failing()).rejects.toThrow(/exported: .*failed its self-check and was not kept: the smallest cosine/)
    expect(readdirSync(parent)).toEqual(['frozen'])
    await exportEncoder(options)
    const before = await snapshot(output)
    await expect(failing()).rejects.toThrow(InputError)
    expect(await snapshot(output)).toEqual(before)
    expect(readdirSync(parent).sort()).toEqual(['exported', 'frozen'])
  })

  it('may be interrupted, which leaves nothing behind', async () => {
    for (const [phase, done] of [
      ['writing', 0],
      ['writing', 1],
      ['self-check', 0],
      ['self-check', 1],
    ] as const) {
      const stop = new AbortController()
      const { options, parent } = await setup('mean', {
        instances,
        signal: stop.signal,
        onProgress: (event) => event.phase === phase && event.done === done && stop.abort(),
      })
      await expect(exportEncoder(options)).rejects.toMatchObject({ name: 'AbortError' })
      expect(readdirSync(parent)).toEqual([])
    }
  })
})

describe('an export refuses', () => {
  it('to replace what is not an export: files, a dataset, an adapter', async () => {
    const { options, output, parent } = await setup('mean')
    mkdirSync(output)
    await exportEncoder(options) // an empty folder is nobody's
    expect(existsSync(join(output, 'canopy.json'))).toBe(true)

    const file = join(parent, 'file')
    writeFileSync(file, 'mine')
    const folder = join(parent, 'folder')
    mkdirSync(folder)
    writeFileSync(join(folder, 'dataset.json'), '{}')
    // an adapter's folder has a canopy.json too
    const adapter = join(parent, 'adapter')
    cpSync(join(tinyBert('mean'), 'adapter'), adapter, { recursive: true })
    writeFileSync(join(adapter, 'canopy.json'), JSON.stringify(options.settings))
    const broken = join(parent, 'broken')
    mkdirSync(broken)
    writeFileSync(join(broken, 'canopy.json'), '{"files"')
    const before = await snapshot(parent)
    for (const place of [file, folder, adapter, broken])
      await expect(exportEncoder({ ...options, output: place })).rejects.toThrow(
        new RegExp(`${basename(place)}: .*not an exported encoder.*--output`),
      )
    expect(await snapshot(parent)).toEqual(before)
  })

  it('to replace the encoders that it is made from, by whatever name', async () => {
    const { options, parent } = await setup('mean', { bundle: true })
    const own = join(parent, 'models', 'bert')
    cpSync(tinyBert('mean'), own, { recursive: true })
    const encoder = await readEncoder(own)
    symlinkSync(own, join(parent, 'link'))
    for (const output of [own, join(parent, 'models'), join(parent, 'link'), join(own, '..', 'bert')])
      await expect(exportEncoder({ ...options, encoder, output })).rejects.toThrow(/would replace what it is made from/)
    // a query encoder that lies in an earlier export
    const first = join(parent, 'first')
    await exportEncoder({ ...options, output: first })
    const queryEncoder = await readEncoder(join(first, 'query-encoder'))
    await expect(exportEncoder({ ...options, queryEncoder, output: first })).rejects.toThrow(
      /would replace what it is made from/,
    )
    await exportEncoder({ ...options, encoder, queryEncoder, output: join(own, 'canopy') })
    expect((await readEncoder(own)).fingerprint).toBe(encoder.fingerprint)
  })

  it('the export of an adapter over an ONNX folder of another name by it', async () => {
    const { options, output, parent } = await setup('mean')
    await exportEncoder(options)
    const encoder = await readEncoder(output)
    const again = join(parent, 'again')
    await exportEncoder({ ...options, adapter: undefined, encoder, queryEncoder: encoder, output: again })
    expect(readFileSync(join(again, 'onnx', 'model.onnx')).length).toBeGreaterThan(0)
  })
})

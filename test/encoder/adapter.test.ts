import { cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import {
  type Adapter,
  adapterHash,
  CANOPY_FILE,
  type CanopySettings,
  canopySettings,
  changesNothing,
  defaultTargets,
  initialLora,
  type LoraTarget,
  linearModules,
  loraA,
  loraB,
  loraShapes,
  mergedWeight,
  openEmbedder,
  readAdapter,
  readAdapterInfo,
  readEncoder,
  readEncoderPair,
  selectTargets,
  writeAdapter,
} from '../../src/encoder/index.ts'
import { openSafetensors, type Tensor, writeSafetensors } from '../../src/onnx/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { expected, tinyBert } from './fixtures.ts'

const profile = await readEncoder(tinyBert('mean'))
const modules = linearModules(profile)
const peftFolder = join(tinyBert('mean'), 'adapter')

function adapterOver(patterns: string[], rank = 2, seed = '1'): Adapter {
  const targets = selectTargets(modules, patterns).map((module) => ({ ...module, rank, alpha: 4 }))
  const tensors = initialLora(targets, seed)
  for (const { module } of targets) tensors.get(loraB(module))?.fill(0.125)
  return { targets, tensors, baseFingerprint: profile.fingerprint }
}

/** A copy of PEFT's adapter with other keys and settings. */
async function changed(
  rename: (key: string) => string,
  config: Record<string, unknown> = {},
  reshape: (tensor: Tensor) => Tensor = (t) => t,
): Promise<string> {
  const folder = join(temporaryFolder(), 'adapter')
  cpSync(peftFolder, folder, { recursive: true })
  const stored = await openSafetensors(join(peftFolder, 'adapter_model.safetensors'))
  const tensors = new Map<string, Tensor>()
  for (const key of stored.tensors.keys()) tensors.set(rename(key), reshape(await stored.read(key)))
  await writeSafetensors(join(folder, 'adapter_model.safetensors'), tensors)
  const file = join(folder, 'adapter_config.json')
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), ...config }))
  return folder
}

describe('selectTargets', () => {
  it('matches path endings as PEFT does, regular expressions against the whole path', () => {
    const names = (patterns: string[]) => selectTargets(modules, patterns).map((m) => m.module)
    expect(names(['query'])).toEqual([0, 1].map((n) => `encoder.layer.${n}.attention.self.query`))
    expect(names(['output.dense'])).toHaveLength(4)
    expect(names(['attention.output.dense'])).toHaveLength(2)
    expect(names(['.*layer\\.1\\..*(query|value)'])).toEqual([
      'encoder.layer.1.attention.self.query',
      'encoder.layer.1.attention.self.value',
    ])
    expect(names(['value', 'query', 'query'])).toHaveLength(4)
    expect(names(defaultTargets(profile))).toHaveLength(12)
  })

  it('says which modules there are when a pattern matches none', () => {
    expect(() => selectTargets(modules, ['query', 'q_proj'])).toThrow(
      /"q_proj".*encoder\.layer\.\*\.attention\.self\.query/,
    )
    expect(() => selectTargets(modules, ['(query'])).toThrow(/no regular expression/)
  })
})

describe('initialLora', () => {
  it('leaves the encoder exactly as it is', async () => {
    const targets = selectTargets(modules, ['all-linear']).map((m) => ({ ...m, rank: 4, alpha: 8 }))
    const adapter: Adapter = { targets, tensors: initialLora(targets, 'seed'), baseFingerprint: undefined }
    const [plain, adapted] = [await openEmbedder(profile), await openEmbedder(profile, { adapter })]
    const { texts } = expected('mean')
    expect((await adapted.embedTexts(texts, 'node')).embeddings).toEqual(
      (await plain.embedTexts(texts, 'node')).embeddings,
    )
    await plain.close()
    await adapted.close()
  })

  it('draws A within PEFT’s bounds, B zero, repeatably and differently for each module', () => {
    const targets = selectTargets(modules, ['query']).map((m) => ({ ...m, rank: 16, alpha: 8 }))
    const [one, again, other] = [initialLora(targets, 'a'), initialLora(targets, 'a'), initialLora(targets, 'b')]
    const [first, second] = targets.map((t) => loraA(t.module)) as [string, string]
    expect(one).toEqual(again)
    expect(one.get(first)).not.toEqual(other.get(first))
    expect(one.get(first)).not.toEqual(one.get(second))
    const a = one.get(first) as Float32Array
    const bound = 1 / Math.sqrt(32)
    expect(a.every((x) => Math.abs(x) <= bound)).toBe(true)
    expect(a.some((x) => x > 0.9 * bound) && a.some((x) => x < -0.9 * bound)).toBe(true)
    expect(one.get(loraB(targets[0]!.module))?.every((x) => x === 0)).toBe(true)
  })
})

describe('adapters on disk', () => {
  it('are the same after writing and reading, with what was kept beside them', async () => {
    const adapter = adapterOver(['query', 'output.dense'])
    const folder = join(temporaryFolder(), 'adapter')
    await writeAdapter(folder, adapter, profile, { seed: 3 })
    expect(await readAdapter(folder, profile)).toEqual(adapter)
    expect(await readAdapterInfo(folder)).toEqual({ seed: 3 })
    expect(readdirSync(folder).sort()).toEqual([
      'adapter_config.json',
      'adapter_model.safetensors',
      'canopy_adapter.json',
    ])
  })

  it('keep ranks and alphas that differ between modules', async () => {
    const adapter = adapterOver(['query', 'value'])
    const odd = adapter.targets[1]!
    odd.rank = 3
    odd.alpha = 7
    adapter.tensors.set(loraA(odd.module), new Float32Array(3 * 32).fill(0.5))
    adapter.tensors.set(loraB(odd.module), new Float32Array(32 * 3).fill(0.25))
    const folder = join(temporaryFolder(), 'adapter')
    await writeAdapter(folder, adapter, profile)
    expect(await readAdapter(folder, profile)).toEqual(adapter)
  })

  it('name their targets by short endings where these select nothing else, by full paths otherwise', async () => {
    const targetsOf = async (patterns: string[]) => {
      const folder = join(temporaryFolder(), 'adapter')
      await writeAdapter(folder, adapterOver(patterns), profile)
      return JSON.parse(readFileSync(join(folder, 'adapter_config.json'), 'utf8')).target_modules
    }
    expect(await targetsOf(['query', 'key'])).toEqual(['attention.self.key', 'attention.self.query'])
    expect(await targetsOf(['.*layer\\.1\\..*query'])).toEqual(['encoder.layer.1.attention.self.query'])
    // "output.dense" alone would also select attention.output.dense
    expect(await targetsOf(['.*\\d\\.output\\.dense'])).toEqual([
      'encoder.layer.0.output.dense',
      'encoder.layer.1.output.dense',
    ])
  })

  it('are written as the same bytes for the same content', async () => {
    const folders = ['a', 'b'].map((name) => join(temporaryFolder(), name))
    for (const folder of folders) await writeAdapter(folder, adapterOver(['query']), profile)
    const bytes = folders.map((folder) => readFileSync(join(folder, 'adapter_model.safetensors')))
    expect(bytes[0]).toEqual(bytes[1])
  })

  it('are read from PEFT, head prefixes and adapter names in the keys included', async () => {
    const original = await readAdapter(peftFolder, profile)
    expect(original.targets).toHaveLength(12)
    expect(original.targets[0]).toMatchObject({ rank: 4, alpha: 6 })
    expect(original.baseFingerprint).toBeUndefined()
    const variants = [
      (key: string) => key.replace('base_model.model.', 'base_model.model.bert.'),
      (key: string) => key.replace('base_model.model.', 'base_model.model.model.'),
      (key: string) => key.replace('base_model.model.', ''),
      (key: string) => key.replace('.weight', '.default.weight'),
    ]
    for (const rename of variants) expect(await readAdapter(await changed(rename), profile)).toEqual(original)
  })

  it('scale by the square root of the rank where PEFT’s rank-stabilised LoRA does', async () => {
    const stable = await readAdapter(await changed((key) => key, { use_rslora: true }), profile)
    expect(stable.targets[0]!.alpha / 4).toBeCloseTo(6 / Math.sqrt(4), 12)
  })

  it('follow rank_pattern and alpha_pattern as PEFT does', async () => {
    const patterns = { alpha_pattern: { 'layer.0.attention.self.query': 9, '.*value': 5 } }
    const { targets } = await readAdapter(await changed((key) => key, patterns), profile)
    const alpha = (end: string) => targets.filter((t) => t.module.endsWith(end)).map((t) => t.alpha)
    expect([alpha('query'), alpha('value'), alpha('key')]).toEqual([
      [9, 6],
      [5, 5],
      [6, 6],
    ])
  })

  it('follow a pattern that is the full path in the class that was adapted', async () => {
    const inHead = (key: string) => key.replace('base_model.model.', 'base_model.model.bert.model.')
    const patterns = { alpha_pattern: { 'bert.model.encoder.layer.0.attention.self.query': 9 } }
    const { targets } = await readAdapter(await changed(inHead, patterns), profile)
    expect(targets.filter((t) => t.alpha === 9).map((t) => t.module)).toEqual(['encoder.layer.0.attention.self.query'])
  })

  it('are refused over another encoder, by fingerprint where it is known and by shape otherwise', async () => {
    const folder = join(temporaryFolder(), 'adapter')
    await writeAdapter(folder, adapterOver(['query']), profile)
    await expect(readAdapter(folder, await readEncoder(tinyBert('cls')))).rejects.toThrow(
      /trained over the encoder "mean".*not over "cls"/,
    )
    const transposed = await changed(
      (key) => key,
      {},
      (t) => ({ ...t, shape: [...t.shape].reverse() }),
    )
    await expect(readAdapter(transposed, profile)).rejects.toThrow(
      /12 of 12 modules .* first encoder\.layer\.0\.attention\.self\.query \(32 x 32\): lora_A is \[32, 4\] instead of \[4, 32\], lora_B is .*another model/,
    )
  })

  it('name the first keys that fit no module', async () => {
    const folder = await changed((key) => key.replace('encoder.layer', 'layers'))
    await expect(readAdapter(folder, profile)).rejects.toThrow(
      /24 of 24 keys name no linear module.*"base_model\.model\.layers\.0/,
    )
    const half = await changed((key) => key.replace('layer.1.attention.self.query.lora_B', 'layer.9.x.lora_B'))
    await expect(readAdapter(half, profile)).rejects.toThrow(/1 of 24 keys/)
  })

  it.each([
    [{ peft_type: 'IA3' }, /"IA3"; only LORA/],
    [{ use_dora: true }, /"use_dora": true is not supported/],
    [{ bias: 'all' }, /"bias": "all" is not supported/],
    [
      { modules_to_save: ['classifier', 'LayerNorm'] },
      /"modules_to_save": \["LayerNorm"\] is not supported.*merge_and_unload/,
    ],
    [{ r: 'four' }, /"r": /],
    [{ init_lora_weights: 'pissa_niter_4' }, /"init_lora_weights": "pissa_niter_4" is not supported/],
    [{ init_lora_weights: 'loftq' }, /"init_lora_weights": "loftq" is not supported/],
    [{ rank_pattern: { 'query(': 4 } }, /"query\(" is no regular expression/],
  ])('are refused with settings that change what they compute: %j', async (config, message) => {
    await expect(readAdapter(await changed((key) => key, config), profile)).rejects.toThrow(message)
  })

  it('are read where they start from another draw, which leaves the encoder as it is', async () => {
    const drawn = await readAdapter(await changed((key) => key, { init_lora_weights: 'gaussian' }), profile)
    expect(drawn).toEqual(await readAdapter(peftFolder, profile))
  })

  it('are refused where a file holds several', async () => {
    const folder = await changed((key) => key)
    const file = join(folder, 'adapter_model.safetensors')
    const stored = await openSafetensors(file)
    const tensors = new Map<string, Tensor>()
    for (const key of stored.tensors.keys())
      for (const name of ['.default.weight', '.other.weight'])
        tensors.set(key.replace('.weight', name), await stored.read(key))
    await writeSafetensors(file, tensors)
    await expect(readAdapter(folder, profile)).rejects.toThrow(
      /lora_A\.default\.weight" and ".*lora_A\.other\.weight" are the same matrix.*more than one adapter/,
    )
  })

  it('say what is missing', async () => {
    await expect(readAdapter(temporaryFolder(), profile)).rejects.toThrow(/adapter_config\.json: There is no such file/)
  })
})

describe('canopy.json beside an adapter', () => {
  it('has to fit the files of both encoders', async () => {
    const folder = join(temporaryFolder(), 'adapter')
    await writeAdapter(folder, adapterOver(['query']), profile)
    const settings = canopySettings(profile, profile, { title: false, tableFormat: 'markdown', branching: 3 })
    const read = (more: Partial<CanopySettings>) => {
      writeFileSync(join(folder, CANOPY_FILE), JSON.stringify({ ...settings, ...more }))
      return readEncoderPair(tinyBert('mean'), { adapter: folder })
    }
    expect((await read({})).settings).toEqual(settings)
    await expect(read({ maxLength: 7 })).rejects.toThrow(/canopy\.json: .*maximum length was 7 tokens, is/)
    await expect(read({ prompts: { ...settings.prompts, node: 'odd: ' } })).rejects.toThrow(/prompt .* was "odd: ", is/)
    const other = { ...settings.queryEncoder, id: 'other', fingerprint: '0'.repeat(64) }
    await expect(read({ queryEncoder: other })).rejects.toThrow(/trained with the query encoder other/)
  })
})

describe('mergedWeight and adapterHash', () => {
  it('adds alpha / rank · B A', () => {
    const target = { module: 'm', inputs: 2, outputs: 2, rank: 1, alpha: 3 }
    const tensors = new Map([
      [loraA('m'), Float32Array.of(1, 2)],
      [loraB('m'), Float32Array.of(10, 20)],
    ])
    const adapter = { targets: [target], tensors, baseFingerprint: undefined }
    expect([...mergedWeight(Float32Array.of(1, 1, 1, 1), adapter, target)]).toEqual([31, 61, 61, 121])
    expect(loraShapes([target])).toEqual([
      { name: 'm.lora_A.weight', shape: [1, 2] },
      { name: 'm.lora_B.weight', shape: [2, 1] },
    ])
  })

  it('hashes ranks, alphas and matrices', () => {
    const base = adapterOver(['query'])
    const alpha = { ...base, targets: base.targets.map((t) => ({ ...t, alpha: 5 })) }
    expect(new Set([base, alpha, adapterOver(['query'], 2, '2')].map(adapterHash)).size).toBe(3)
    expect(adapterHash(adapterOver(['query']))).toBe(adapterHash(base))
  })
})

describe('an adapter before its first step', () => {
  it('changes nothing, as one whose every B is 0', () => {
    const trained = adapterOver(['query'])
    const fresh = { ...trained, tensors: initialLora(trained.targets, '1') }
    expect([changesNothing(fresh), changesNothing(trained)]).toEqual([true, false])
    // one number is enough
    const [{ module }] = fresh.targets as [LoraTarget]
    fresh.tensors.get(loraB(module))![0] = 1e-6
    expect(changesNothing(fresh)).toBe(false)
  })
})

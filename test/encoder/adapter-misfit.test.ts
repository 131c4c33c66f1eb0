import { cpSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import { encoderModules, initialLora, readAdapter, readEncoder, writeAdapter } from '../../src/encoder/index.ts'
import { isSelected, patternValue } from '../../src/encoder/lora/peft-selection.ts'
import { graphNames, matchKeys } from '../../src/encoder/lora/stored-matrices.ts'
import { openSafetensors, type Tensor, writeSafetensors } from '../../src/onnx/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { tinyBert } from './fixtures.ts'
import { qwen3Profile } from './qwen3-known.ts'

const peftFolder = join(tinyBert('mean'), 'adapter')

/** A copy of PEFT's adapter of two layers, with other keys and settings; keys renamed to '' go. */
async function changed(rename: (key: string) => string, config: Record<string, unknown> = {}): Promise<string> {
  const folder = join(temporaryFolder(), 'adapter')
  cpSync(peftFolder, folder, { recursive: true })
  const stored = await openSafetensors(join(peftFolder, 'adapter_model.safetensors'))
  const tensors = new Map<string, Tensor>()
  for (const key of stored.tensors.keys()) if (rename(key) !== '') tensors.set(rename(key), await stored.read(key))
  await writeSafetensors(join(folder, 'adapter_model.safetensors'), tensors)
  const file = join(folder, 'adapter_config.json')
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), ...config }))
  return folder
}

const same = (key: string): string => key
const vocabularyFrom = ['a lamp turns once']
async function bert(size: { hidden: number; layers: number }) {
  const folder = join(temporaryFolder(), 'other')
  await createRandomBert(folder, { seed: 1, vocabularyFrom, heads: 4, maxLength: 32, intermediate: 64, ...size })
  return readEncoder(folder, { pooling: 'mean' })
}

describe('an adapter for another base names the first modules that do not fit', () => {
  it('of another width, with the shapes', async () => {
    await expect(readAdapter(peftFolder, await bert({ hidden: 48, layers: 2 }))).rejects.toThrow(
      /12 of 12 modules .*"other".*first encoder\.layer\.0\.attention\.self\.query \(48 x 48\): lora_A is \[4, 32\] instead of \[4, 48\], lora_B is \[32, 4\] instead of \[48, 4\]; encoder\.layer\.0\.attention\.self\.key.*another model/,
    )
  })

  it('of fewer layers, and of more', async () => {
    await expect(readAdapter(peftFolder, await bert({ hidden: 32, layers: 1 }))).rejects.toThrow(
      /12 of 24 keys name no linear module of the encoder "other", first "base_model\.model\.encoder\.layer\.1\..*of 2 layers or more; the encoder has 1\./,
    )
    await expect(readAdapter(peftFolder, await bert({ hidden: 32, layers: 4 }))).rejects.toThrow(
      /no matrices for 12 modules .* adapts, first "encoder\.layer\.2\.attention\.self\.query".*fewer layers/,
    )
  })

  it('of another architecture', async () => {
    await expect(readAdapter(peftFolder, await qwen3Profile('qwen3'))).rejects.toThrow(
      /24 of 24 keys .*encoder\.layer\.0\.attention\.output\.dense\.lora_A\.weight" \[4, 32\].*called like "layers\.0\.self_attn/,
    )
  })

  it('that says which encoder it is for, too', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const folder = join(temporaryFolder(), 'adapter')
    const adapter = await readAdapter(peftFolder, profile)
    await writeAdapter(folder, adapter, profile)
    await expect(readAdapter(folder, await bert({ hidden: 48, layers: 2 }))).rejects.toThrow(
      /trained over the encoder "mean".*12 of 12 modules of the adapter do not fit/,
    )
  })

  it('where adapter_config.json is of another adapter', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    await expect(readAdapter(await changed(same, { r: 8 }), profile)).rejects.toThrow(
      /lora_A is \[4, 32\] instead of \[8, 32\].*or its adapter_config\.json is/,
    )
    await expect(readAdapter(await changed(same, { target_modules: ['query', 'key'] }), profile)).rejects.toThrow(
      /matrices for 8 modules that "target_modules" .* do not name, first "encoder\.layer\.0\.attention\.self\.value"/,
    )
    const one = (key: string) => (key.includes('layer.0.output.dense') ? '' : key)
    await expect(readAdapter(await changed(one), profile)).rejects.toThrow(
      /no matrices for 1 modules .*"encoder\.layer\.0\.output\.dense"/,
    )
  })
})

describe('an adapter over a graph', () => {
  const shape = { dtype: 'F32', file: '', offset: 0, length: 0 }
  const stored = (paths: string[]) =>
    new Map(
      paths.flatMap((path) =>
        (['A', 'B'] as const).map((half) => [
          `base_model.model.${path}.lora_${half}.weight`,
          { ...shape, shape: half === 'A' ? [4, 8] : [8, 4] },
        ]),
      ),
    )
  const module = (name: string, outputs: number, uses?: number) => ({
    ...{ module: name, inputs: 8, outputs, standard: true, storage: 'fp32' as const },
    ...(uses !== undefined && { uses }),
  })

  it('whose maps are fused names the fused one', () => {
    const modules = [module('layers.0.self_attn.qkv_proj', 24), module('layers.0.self_attn.o_proj', 8)]
    expect(() => matchKeys(stored(['layers.0.self_attn.q_proj']), modules, 'fused', 'f')).toThrow(
      /layers\.0\.self_attn\.q_proj together with others as one fused map, layers\.0\.self_attn\.qkv_proj \(24 x 8\)/,
    )
  })

  it('may have names that PEFT finds in no checkpoint: of maps that are fused, and of those without a name', () => {
    const names = [
      'layers.0.self_attn.qkv_proj',
      'layers.0.self_attn.o_proj',
      'linear.7',
      'h.1.attn.c_attn',
      'x.linear',
    ]
    expect(graphNames(names.map((name) => module(name, 8)))).toEqual([names[0], names[2], names[3]])
  })

  it('whose weights are tied names the one that is shared', () => {
    const modules = [module('layers.0.mlp.up_proj', 8, 2)]
    expect(() => matchKeys(stored(['layers.0.mlp.up_proj', 'layers.1.mlp.up_proj']), modules, 'tied', 'f')).toThrow(
      /tied: 2 products .* share the weight of layers\.0\.mlp\.up_proj, so layers\.1\.mlp\.up_proj has none/,
    )
  })

  it('has modules that one path in the file could mean, only by their whole names', () => {
    const modules = [module('layers.0.up', 8), module('model.layers.0.up', 8)]
    const { matrices } = matchKeys(stored(['model.layers.0.up']), modules, 'both', 'f')
    expect([...matrices.keys()]).toEqual(['model.layers.0.up'])
  })
})

describe('a damaged adapter', () => {
  it.each([Number.NaN, Number.POSITIVE_INFINITY])('names the matrix that holds %d', async (value) => {
    const folder = await changed(same)
    const file = join(folder, 'adapter_model.safetensors')
    const stored = await openSafetensors(file)
    const tensors = new Map<string, Tensor>()
    for (const [key, { shape }] of stored.tensors) {
      const data = Float32Array.from(await stored.readTensor(key))
      if (key.includes('layer.1.output.dense.lora_B')) data[3] = value
      tensors.set(key, { dtype: 'float32', shape, data })
    }
    await writeSafetensors(file, tensors)
    await expect(readAdapter(folder, await readEncoder(tinyBert('mean')))).rejects.toThrow(
      /adapter_model\.safetensors: The matrix "base_model\.model\.encoder\.layer\.1\.output\.dense\.lora_B\.weight" holds numbers that are not finite/,
    )
  })
})

describe('patterns that would take for ever', () => {
  // takes twice as long with every letter of a path
  const endless = '([a-z0-9.]+)+!'

  it.each([
    ['rank_pattern', { rank_pattern: { [endless]: 4 } }],
    ['target_modules', { target_modules: endless }],
  ])('are given up: %s', async (_, config) => {
    await expect(readAdapter(await changed(same, config), await readEncoder(tinyBert('mean')))).rejects.toThrow(
      /adapter_config\.json: The patterns in it .* took more than 2 seconds/,
    )
  })
})

describe('what is no plain low-rank update', () => {
  it('is named by its keys', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const last = 'base_model.model.encoder.layer.1.output.dense.lora_B.weight'
    const named = async (key: string) => readAdapter(await changed((k) => (k === last ? key : k)), profile)
    const path = 'base_model.model.encoder.layer.1.output.dense'
    await expect(named(`${path}.lora_magnitude_vector`)).rejects.toThrow(/DoRA's.*merge_and_unload/)
    await expect(named(`${path}.lora_B.bias`)).rejects.toThrow(/biases of its own/)
    await expect(named('base_model.model.embeddings.word_embeddings.lora_embedding_A')).rejects.toThrow(
      /embedding table is adapted/,
    )
    await expect(named('base_model.model.embeddings.LayerNorm.weight')).rejects.toThrow(/whole parameters/)
  })

  it('nor a pickle', async () => {
    const folder = await changed(same)
    renameSync(join(folder, 'adapter_model.safetensors'), join(folder, 'adapter_model.bin'))
    await expect(readAdapter(folder, await readEncoder(tinyBert('mean')))).rejects.toThrow(
      /adapter_model\.bin: The matrices are a pickle.*save_pretrained\(…\) writes them again as adapter_model\.safetensors/,
    )
  })
})

describe('the modules that PEFT selects', () => {
  const path = 'encoder.layer.1.attention.self.query'
  it.each([
    [{ target_modules: ['query'] }, true],
    [{ target_modules: ['uery'] }, false],
    [{ target_modules: [path], layers_to_transform: [0] }, true],
    [{ target_modules: ['query'], layers_to_transform: [0] }, false],
    [{ target_modules: ['query'], layers_to_transform: 1, layers_pattern: ['h', 'layer'] }, true],
    [{ target_modules: ['query'], layers_to_transform: 1, layers_pattern: 'h' }, false],
    [{ target_modules: 'query' }, false],
    [{ target_modules: '.*query' }, true],
    [{ target_modules: '(?i).*QUERY' }, true],
    [{ target_modules: '.*\\.(?P<n>1)\\..*' }, true],
    [{ target_modules: 'All-Linear', exclude_modules: ['self.query'] }, false],
    [{ target_modules: 'all-linear', exclude_modules: 'query' }, true],
    [{ target_modules: null }, undefined],
    [{ target_modules: '(?<!x' }, undefined],
  ])('%j: %s', (selection, wanted) => {
    expect(isSelected(selection, path)).toBe(wanted)
  })

  it('have the value of the first pattern that matches from the start or after a dot', () => {
    const value = (patterns: Record<string, number>) => patternValue(patterns, path, 'f')
    expect(value({ 'self.query': 1, query: 2 })).toBe(1)
    expect(value({ '^encoder.layer.1.*': 1 })).toBe(1)
    expect(value({ '^layer.1.*': 1, ery: 2, 'layer\\.\\d+\\..*(query|key)': 3 })).toBe(3)
    expect(value({ 'key|query': 4 })).toBe(4)
    expect(value({})).toBeUndefined()
  })

  it('are written so that patterns of names that end others match one alone', async () => {
    const profile = await readEncoder(tinyBert('mean'))
    const [module] = await encoderModules(profile)
    const targets = ['a.up', 'up', 'b(1).up'].map((name, i) => ({ ...module!, module: name, rank: 1 + i, alpha: 2 }))
    const folder = join(temporaryFolder(), 'adapter')
    await writeAdapter(folder, { targets, tensors: initialLora(targets, '1'), baseFingerprint: undefined }, profile)
    const { r, rank_pattern } = JSON.parse(readFileSync(join(folder, 'adapter_config.json'), 'utf8'))
    expect(r).toBe(1)
    for (const { module, rank } of targets) expect(patternValue(rank_pattern, module, 'f') ?? r).toBe(rank)
    expect(Object.keys(rank_pattern)).toContain('^up')
  })
})

import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { loadTokenizer, openWeights, packedEncoder, readEncoder } from '../../src/encoder/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { tinyBert } from './fixtures.ts'

/** A copy of the fixture in which JSON files can be changed. */
function copy(variant: 'mean' | 'cls' = 'mean') {
  const folder = join(temporaryFolder(), 'tiny')
  cpSync(tinyBert(variant), folder, { recursive: true })
  return {
    folder,
    edit(file: string, change: (json: Record<string, unknown>) => unknown): void {
      const path = join(folder, file)
      const json = JSON.parse(readFileSync(path, 'utf8'))
      writeFileSync(path, JSON.stringify(change(json) ?? json))
    },
    remove: (file: string) => rmSync(join(folder, file)),
  }
}

describe('readEncoder', () => {
  it('takes pooling, normalisation, prompts and length from the files of the checkpoint', async () => {
    expect(await readEncoder(tinyBert('mean'))).toMatchObject({
      kind: 'checkpoint',
      id: 'mean',
      architecture: 'bert',
      pooling: 'mean',
      normalize: true,
      prompts: { query: 'find: ', node: '' },
      maxLength: 24,
      dimension: 32,
      lowerCase: false,
    })
    expect(await readEncoder(tinyBert('cls'))).toMatchObject({
      pooling: 'cls',
      normalize: false,
      prompts: { query: 'query: ', node: 'passage: ' },
    })
  })

  it('falls back to model_max_length, then to the number of positions', async () => {
    const { folder, edit, remove } = copy()
    remove('sentence_bert_config.json')
    expect((await readEncoder(folder)).maxLength).toBe(64)
    edit('tokenizer_config.json', (json) => ({ ...json, model_max_length: 40 }))
    expect((await readEncoder(folder)).maxLength).toBe(40)
    edit('tokenizer_config.json', (json) => ({ ...json, model_max_length: 1e30 }))
    expect((await readEncoder(folder)).maxLength).toBe(64)
  })

  it('never lets a text be longer than the model has positions', async () => {
    const { folder, edit } = copy()
    edit('sentence_bert_config.json', (json) => ({ ...json, max_seq_length: 512 }))
    expect((await readEncoder(folder)).maxLength).toBe(64)
  })

  it('reads the form in which sentence-transformers 6 saves pooling', async () => {
    const { folder, edit } = copy()
    edit('1_Pooling/config.json', () => ({ embedding_dimension: 32, pooling_mode: 'lasttoken', include_prompt: true }))
    edit('modules.json', (json) => {
      const modules = json as unknown as { type: string }[]
      modules[1]!.type = 'sentence_transformers.sentence_transformer.modules.pooling.Pooling'
      return modules
    })
    expect((await readEncoder(folder)).pooling).toBe('last')
  })

  it('gives a side without a prompt of its own the default prompt, unless that is the other side’s', async () => {
    const { folder, edit } = copy()
    edit('config_sentence_transformers.json', () => ({ prompts: { all: 'x: ' }, default_prompt_name: 'all' }))
    expect((await readEncoder(folder)).prompts).toEqual({ query: 'x: ', node: 'x: ' })
    edit('config_sentence_transformers.json', () => ({ prompts: {}, default_prompt_name: 'toString' }))
    await expect(readEncoder(folder)).rejects.toThrow(/"prompts" has no such prompt/)
    edit('config_sentence_transformers.json', () => ({ prompts: { query: 'q: ' }, default_prompt_name: 'query' }))
    expect((await readEncoder(folder)).prompts).toEqual({ query: 'q: ', node: '' })
  })

  it('takes id and revision from the path inside a Hugging Face cache', async () => {
    const commit = '0123456789abcdef0123456789abcdef01234567'
    const folder = join(temporaryFolder(), 'models--some--tiny', 'snapshots', commit)
    mkdirSync(join(folder, '..'), { recursive: true })
    cpSync(tinyBert('mean'), folder, { recursive: true })
    expect(await readEncoder(folder)).toMatchObject({ id: 'some/tiny', revision: commit })
  })

  it('has a fingerprint that follows what is computed and nothing else', async () => {
    const { folder, edit } = copy()
    const original = (await readEncoder(tinyBert('mean'))).fingerprint
    expect((await readEncoder(folder)).fingerprint).toBe(original)
    edit('config.json', (json) => ({ ...json, transformers_version: '0', _name_or_path: 'elsewhere' }))
    expect((await readEncoder(folder)).fingerprint).toBe(original)
    const seen = new Set([original])
    const changed = async () => seen.add((await readEncoder(folder)).fingerprint)
    edit('config_sentence_transformers.json', () => ({ prompts: { query: 'other: ' } }))
    await changed()
    edit('sentence_bert_config.json', (json) => ({ ...json, max_seq_length: 20 }))
    await changed()
    edit('config.json', (json) => ({ ...json, hidden_act: 'relu' }))
    await changed()
    const weights = join(folder, 'model.safetensors')
    const bytes = readFileSync(weights)
    bytes[bytes.length - 1]! ^= 1
    writeFileSync(weights, bytes)
    await changed()
    expect(seen.size).toBe(5)
  })

  const faults: [string, (c: ReturnType<typeof copy>) => void, RegExp][] = [
    ['no weights', (c) => c.remove('model.safetensors'), /looked for model\.safetensors.*onnx\/model\.onnx.*Download/],
    ['no config', (c) => c.remove('config.json'), /config\.json: There is no such file.*Download/],
    ['no tokenizer', (c) => c.remove('tokenizer.json'), /No tokenizer\.json/],
    ['no modules', (c) => c.remove('modules.json'), /modules\.json: There is no such file.*pooling/],
    [
      'broken JSON',
      (c) => writeFileSync(join(c.folder, 'config.json'), '{'),
      /config\.json: The file is not valid JSON/,
    ],
    [
      'another architecture',
      (c) => c.edit('config.json', (j) => ({ ...j, model_type: 't5' })),
      /"t5" are not supported/,
    ],
    [
      'another activation',
      (c) => c.edit('config.json', (j) => ({ ...j, hidden_act: 'silu' })),
      /"hidden_act" is "silu"/,
    ],
    [
      'relative positions',
      (c) => c.edit('config.json', (j) => ({ ...j, position_embedding_type: 'relative_key' })),
      /"position_embedding_type" is "relative_key"/,
    ],
    [
      'a pooling it does not know',
      (c) => c.edit('1_Pooling/config.json', (j) => ({ ...j, pooling_mode_max_tokens: true })),
      /Pooling by .*"max".* is not supported/,
    ],
    [
      'pooling without the prompt',
      (c) => c.edit('1_Pooling/config.json', (j) => ({ ...j, include_prompt: false })),
      /"include_prompt": false/,
    ],
    [
      'a Dense module',
      (c) => c.edit('modules.json', (j) => [...(j as unknown as unknown[]), { path: '3_Dense', type: 'x.Dense' }]),
      /The module "Dense" is not supported/,
    ],
    [
      'a module outside the folder',
      (c) => {
        c.edit('modules.json', (j) => {
          const modules = j as unknown as { path: string }[]
          modules[1]!.path = '../..'
          return modules
        })
      },
      /leaves the folder/,
    ],
  ]
  it.each(faults)('names the fault: %s', async (_, spoil, message) => {
    const c = copy()
    spoil(c)
    await expect(readEncoder(c.folder)).rejects.toThrow(message)
  })

  it('names a folder that is not there', async () => {
    await expect(readEncoder(join(temporaryFolder(), 'nowhere'))).rejects.toThrow(/nowhere does not exist/)
  })
})

describe('parts that do not fit together', () => {
  it('a tokenizer with more tokens than the model has embeddings', async () => {
    const { folder, edit } = copy()
    edit('config.json', (json) => ({ ...json, vocab_size: 299 }))
    await expect(loadTokenizer(await readEncoder(folder))).rejects.toThrow(/tokenizer does not fit the model.*299/)
  })

  it('weights of another size than the configuration’s', async () => {
    const { folder, edit } = copy()
    edit('config.json', (json) => ({ ...json, intermediate_size: 128 }))
    const profile = await readEncoder(folder)
    const { weights } = await openWeights(profile)
    expect(() => packedEncoder(profile, weights)).toThrow(/intermediate\.dense\.weight" is \[64, 32\].*\[128, 32\]/)
  })

  it('a layer that the weights lack', async () => {
    const { folder, edit } = copy()
    edit('config.json', (json) => ({ ...json, num_hidden_layers: 3 }))
    const profile = await readEncoder(folder)
    const { weights } = await openWeights(profile)
    expect(() => packedEncoder(profile, weights)).toThrow(/encoder\.layer\.2\..*is missing/)
  })
})

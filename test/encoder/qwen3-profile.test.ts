import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import {
  loadTokenizer,
  openEmbedder,
  openReader,
  openWeights,
  packedEncoder,
  readEncoder,
} from '../../src/encoder/index.ts'
import { openSafetensors, type Tensor, writeSafetensors } from '../../src/onnx/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { tinyBert } from './fixtures.ts'
import { cosine, type Kind, knownInputs, tinyQwen3 } from './qwen3-known.ts'

/** A copy of a fixture in which JSON files can be changed. */
function copy(kind: Kind) {
  const folder = join(temporaryFolder(), 'tiny')
  cpSync(tinyQwen3(kind), folder, { recursive: true })
  return {
    folder,
    edit(file: string, change: (json: Record<string, unknown>) => unknown): void {
      const path = join(folder, file)
      const json = JSON.parse(readFileSync(path, 'utf8'))
      writeFileSync(path, JSON.stringify(change(json) ?? json))
    },
    write: (file: string, json: unknown) => writeFileSync(join(folder, file), JSON.stringify(json)),
  }
}

/** The tokens of a short text. */
async function idsOf(folder: string): Promise<number[]> {
  const reader = await openReader(await readEncoder(folder))
  const [encoded] = await reader.encode([{ text: 'a' }], 'node')
  await reader.close()
  return [...encoded!.sequence.ids]
}

/** The checkpoint in two files that an index joins. */
async function shard(folder: string): Promise<void> {
  const stored = await openSafetensors(folder)
  const names = [...stored.tensors.keys()]
  const index: Record<string, string> = {}
  for (const part of [1, 2]) {
    const file = `model-0000${part}-of-00002.safetensors`
    const tensors = new Map<string, Tensor>()
    for (const [i, name] of names.entries())
      if (i % 2 === part - 1) {
        tensors.set(name, await stored.read(name))
        index[name] = file
      }
    await writeSafetensors(join(folder, file), tensors)
  }
  rmSync(join(folder, 'model.safetensors'))
  writeFileSync(join(folder, 'model.safetensors.index.json'), JSON.stringify({ metadata: {}, weight_map: index }))
}

describe('a Qwen3-VL folder', () => {
  it('without sentence-transformers’ files is read as the released code uses it', async () => {
    const { folder, edit } = copy('qwen3-vl')
    edit('tokenizer_config.json', (json) => ({ ...json, model_max_length: 262144 }))
    edit('config.json', (json) => {
      const { text_config: text } = json as { text_config: Record<string, unknown> }
      return { ...json, text_config: { ...text, max_position_embeddings: 262144 } }
    })
    expect(await readEncoder(folder)).toMatchObject({
      architecture: 'qwen3_vl',
      pooling: 'last',
      normalize: true,
      maxLength: 8192,
      dimension: 64,
      width: 64,
      prompts: { query: "Represent the user's input.", node: "Represent the user's input." },
    })
  })

  it('is cut at what its own files allow', async () => {
    expect((await readEncoder(tinyQwen3('qwen3-vl'))).maxLength).toBe(4096)
    const { folder, write } = copy('qwen3-vl')
    write('sentence_bert_config.json', { max_seq_length: 512 })
    expect((await readEncoder(folder)).maxLength).toBe(512)
  })

  it('takes instructions from its files, and others where they are stated', async () => {
    const { folder, write } = copy('qwen3-vl')
    write('config_sentence_transformers.json', { prompts: { query: 'Find it.', document: '' } })
    expect((await readEncoder(folder)).prompts).toEqual({ query: 'Find it.', node: "Represent the user's input." })
    const stated = await readEncoder(folder, { instructions: { node: 'Represent the page.' } })
    expect(stated.prompts).toEqual({ query: 'Find it.', node: 'Represent the page.' })
    expect(stated.stated).toEqual({ instructions: { node: 'Represent the page.' } })
    expect((await readEncoder(folder, { instructions: {} })).stated).toEqual({})
    expect(stated.fingerprint).not.toBe((await readEncoder(folder)).fingerprint)
    await expect(readEncoder(folder, { instructions: { query: ' ' } })).rejects.toThrow(
      /instruction for a query is empty/,
    )
  })

  it('writes conversations as sentence-transformers does with its files', async () => {
    const { folder, write } = copy('qwen3-vl')
    const released = await idsOf(folder)
    const answer = (await loadTokenizer(await readEncoder(folder))).pieces('<|im_start|>assistant\n')
    expect(released.slice(-answer.length)).toEqual(answer)
    const saved = { modality_config: { message: { format: 'structured' } } }
    write('sentence_bert_config.json', {
      ...saved,
      processing_kwargs: { chat_template: { add_generation_prompt: true } },
    })
    expect(await idsOf(folder)).toEqual(released)
    write('sentence_bert_config.json', saved)
    expect(await idsOf(folder)).toEqual(released.slice(0, -answer.length))
  })

  it('has a fingerprint that follows its template and what it does to pixels', async () => {
    const { folder, edit } = copy('qwen3-vl')
    const seen = new Set([(await readEncoder(folder)).fingerprint])
    edit('chat_template.json', (json) => ({ chat_template: `${json.chat_template} ` }))
    seen.add((await readEncoder(folder)).fingerprint)
    edit('preprocessor_config.json', (json) => ({ ...json, image_mean: [0.4, 0.5, 0.5] }))
    seen.add((await readEncoder(folder)).fingerprint)
    expect(seen.size).toBe(3)
  })
})

describe('an encoder of texts', () => {
  it('names a text without tokens where its tokenizer puts none around it', async () => {
    const { folder, edit } = copy('qwen3')
    edit('tokenizer.json', (json) => ({ ...json, post_processor: null }))
    const reader = await openReader(await readEncoder(folder))
    await expect(reader.encode([{ text: 'a' }, { text: '' }], 'node')).rejects.toThrow(/The text "" has no tokens/)
  })

  it('takes no instructions', async () => {
    await expect(readEncoder(tinyQwen3('qwen3'), { instructions: { query: 'Find it.' } })).rejects.toThrow(
      /qwen3 takes no instructions: leave "instructions" out of the configuration.*config_sentence_transformers\.json/,
    )
  })
})

describe('files of different models in one folder', () => {
  it.each([
    ['qwen3-vl', 'qwen3'],
    ['qwen3', 'qwen3-vl'],
  ] as const)('are named: the weights of %s and the config.json of %s', async (kind, other) => {
    const { folder } = copy(kind)
    cpSync(join(tinyQwen3(other), 'config.json'), join(folder, 'config.json'))
    const [weights, stated] = [kind, other].map((name) => name.replace('-', '_'))
    await expect(readEncoder(folder)).rejects.toThrow(
      new RegExp(
        `config\\.json: "model_type" is "${stated}", but the weights .* of a "${weights}": .*different models`,
      ),
    )
  })
})

describe('a checkpoint in shards', () => {
  it('whose index is missing says that', async () => {
    const { folder } = copy('qwen3')
    await shard(folder)
    rmSync(join(folder, 'model.safetensors.index.json'))
    await expect(readEncoder(folder)).rejects.toThrow(
      /index\.json: \d+ parts of the weights are there, but not model\.safetensors\.index\.json/,
    )
  })

  it('embeds as in one file', async () => {
    const { folder } = copy('qwen3')
    await shard(folder)
    const embedder = await openEmbedder(await readEncoder(folder), { threads: 1 })
    const known = (await knownInputs('qwen3')).find(({ name }) => name === 'short')!
    const { embeddings } = await embedder.embed([{ text: 'a' }], 'node')
    await embedder.close()
    expect(cosine(embeddings, known.embedding)).toBeGreaterThanOrEqual(0.99999)
  })

  it('names the shard that is missing', async () => {
    const { folder } = copy('qwen3-vl')
    await shard(folder)
    rmSync(join(folder, 'model-00002-of-00002.safetensors'))
    await expect(readEncoder(folder)).rejects.toThrow(
      /part model-00002-of-00002\.safetensors, which model\.safetensors\.index\.json names, is missing.*Download/,
    )
  })
})

describe('a configuration', () => {
  it('of another architecture is refused with those that are supported', async () => {
    const { folder, edit } = copy('qwen3-vl')
    edit('config.json', (json) => ({ ...json, model_type: 'qwen2_vl' }))
    await expect(readEncoder(folder)).rejects.toThrow(
      /"qwen2_vl" are not supported \(supported: bert, qwen3, qwen3_vl\)/,
    )
  })

  it('of other sizes than the weights’ is refused with the tensor', async () => {
    const { folder, edit } = copy('qwen3')
    edit('config.json', (json) => ({ ...json, intermediate_size: 80 }))
    const profile = await readEncoder(folder)
    const { weights } = await openWeights(profile)
    expect(() => packedEncoder(profile, weights)).toThrow(/gate_proj\.weight" is \[96, 64\].*\[80, 64\]/)
  })

  it('without a part that the vision tower needs is refused with the field', async () => {
    const { folder, edit } = copy('qwen3-vl')
    edit('config.json', ({ vision_config: _, ...json }) => json)
    await expect(readEncoder(folder)).rejects.toThrow(/config\.json: "vision_config" is missing/)
  })
})

/** x / ‖x‖ of the first n numbers. */
function shortened(embedding: ArrayLike<number>, n: number): number[] {
  const kept = Array.from(embedding).slice(0, n)
  const norm = Math.hypot(...kept)
  return kept.map((x) => x / norm)
}

describe('fewer dimensions', () => {
  const folders: [string, string][] = [
    ['bert', tinyBert('mean')],
    ['qwen3', tinyQwen3('qwen3')],
    ['qwen3_vl', tinyQwen3('qwen3-vl')],
    ['an ONNX graph', join(import.meta.dirname, '..', 'fixtures', 'onnx', 'tiny-bert-plain')],
  ]
  it.each(folders)('are the first numbers, of length 1: %s', async (_, folder) => {
    const pooling = folder.includes('onnx') ? { pooling: 'mean' as const, normalize: true } : {}
    const texts = [{ text: 'The lamp turns once.' }, { text: 'a' }]
    const embed = async (dimensions?: number) => {
      const profile = await readEncoder(folder, { ...pooling, ...(dimensions && { dimensions }) })
      const embedder = await openEmbedder(profile, { threads: 1 })
      const { embeddings } = await embedder.embed(texts, 'node')
      await embedder.close()
      return { embeddings, profile }
    }
    const whole = await embed()
    const short = await embed(8)
    expect(short.profile).toMatchObject({ dimension: 8, width: whole.profile.width })
    expect(short.profile.fingerprint).not.toBe(whole.profile.fingerprint)
    texts.forEach((_, i) => {
      const own = whole.embeddings.slice(i * whole.profile.dimension, (i + 1) * whole.profile.dimension)
      shortened(own, 8).forEach((x, k) => {
        expect(short.embeddings[8 * i + k]).toBeCloseTo(x, 6)
      })
    })
  })

  it('come from config_sentence_transformers.json where they are not stated', async () => {
    const { folder, edit } = copy('qwen3')
    edit('config_sentence_transformers.json', (json) => ({ ...json, truncate_dim: 16 }))
    expect((await readEncoder(folder)).dimension).toBe(16)
    expect(await readEncoder(folder, { dimensions: 64 })).toMatchObject({ dimension: 64, stated: { dimensions: 64 } })
  })

  it.each([0, 65, 1.5])('are refused where they cannot be had: %s', async (dimensions) => {
    await expect(readEncoder(tinyQwen3('qwen3'), { dimensions })).rejects.toThrow(/a whole number from 1 to 64/)
  })
})

import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { defaultTargets, linearModules, openWeights, readEncoder, selectTargets } from '../../src/encoder/index.ts'
import { qwen3Config, qwen3Packed } from '../../src/encoder/qwen3/index.ts'
import {
  bfloat16ToFloat32,
  float32ToFloat16,
  openSafetensors,
  openSession,
  type Tensor,
  writeSafetensors,
} from '../../src/onnx/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { cosine, type Kind, knownInputs, packedInputs, sideBySide, tinyQwen3 } from './qwen3-known.ts'

function copy(kind: Kind): string {
  const folder = join(temporaryFolder(), kind)
  cpSync(tinyQwen3(kind), folder, { recursive: true })
  return folder
}

/** Writes the checkpoint's tensors anew; `change` gives each its name and content, or leaves it out. */
async function rewrite(folder: string, change: (name: string, tensor: Tensor) => [string, Tensor] | undefined) {
  const file = join(folder, 'model.safetensors')
  const stored = await openSafetensors(file)
  const tensors = new Map<string, Tensor>()
  for (const name of stored.tensors.keys()) {
    const made = change(name, await stored.read(name))
    if (made !== undefined) tensors.set(...made)
  }
  rmSync(file)
  await writeSafetensors(file, tensors)
}

async function leastCosine(folder: string, kind: Kind): Promise<number> {
  const profile = await readEncoder(folder)
  const { weights, folder: externalFolder } = await openWeights(profile)
  const session = await openSession(qwen3Packed(profile, weights), { externalFolder, threads: 1 })
  const inputs = await knownInputs(kind)
  const { embeddings } = await session.run(packedInputs(sideBySide([inputs]), kind, 64))
  await session.release()
  return Math.min(
    ...inputs.map(({ embedding }, i) =>
      cosine((embeddings!.data as Float32Array).subarray(i * 64, (i + 1) * 64), embedding),
    ),
  )
}

const graphOf = async (folder: string) => {
  const profile = await readEncoder(folder)
  return qwen3Packed(profile, (await openWeights(profile)).weights)
}

const inPrecision = (tensor: Tensor, dtype: 'float32' | 'float16'): Tensor => {
  const floats = bfloat16ToFloat32(tensor.data as Uint16Array)
  return { dtype, shape: tensor.shape, data: dtype === 'float32' ? floats : float32ToFloat16(floats) }
}

describe('the weights of a Qwen3 checkpoint', () => {
  it.each([
    ['qwen3', '', 'model.'],
    ['qwen3-vl', 'model.', ''],
    ['qwen3-vl', 'model.language_model.', 'language_model.model.'],
  ] as const)('go by names with and without what stands before them (%s, "%s" as "%s")', async (kind, from, to) => {
    const folder = copy(kind)
    await rewrite(folder, (name, tensor) => [name.startsWith(from) ? to + name.slice(from.length) : name, tensor])
    expect(await leastCosine(folder, kind)).toBeGreaterThan(0.99999)
  })

  it.each(['float32', 'float16'] as const)('may be stored as %s', async (dtype) => {
    const folder = copy('qwen3')
    await rewrite(folder, (name, tensor) => [name, inPrecision(tensor, dtype)])
    expect(await leastCosine(folder, 'qwen3')).toBeGreaterThan(0.99999)
  })

  it.each(['qwen3', 'qwen3-vl'] as const)(
    'may hold the table under the name of the head tied to it: %s',
    async (kind) => {
      const folder = copy(kind)
      const table = kind === 'qwen3' ? 'embed_tokens.weight' : 'model.language_model.embed_tokens.weight'
      await rewrite(folder, (name, tensor) => [name === table ? 'lm_head.weight' : name, tensor])
      expect(await leastCosine(folder, kind)).toBeGreaterThan(0.99999)
      const config = join(folder, 'config.json')
      const untied = { ...JSON.parse(readFileSync(config, 'utf8')), tie_word_embeddings: false }
      writeFileSync(config, JSON.stringify(untied))
      await expect(graphOf(folder)).rejects.toThrow(`The tensor "${table}" is missing`)
    },
  )

  it('leave the table as it is stored', async () => {
    const { nodes, initializers } = await graphOf(copy('qwen3-vl'))
    expect(initializers.get('language_model.embed_tokens.weight')?.dtype).toBe('bfloat16')
    const readers = nodes.filter(({ inputs }) => inputs.includes('language_model.embed_tokens.weight'))
    expect(readers.map(({ op }) => op)).toEqual(['Gather'])
  })

  it('are refused where a tensor is missing, of another shape, or of no Qwen3', async () => {
    const folder = copy('qwen3-vl')
    const norm = 'model.language_model.layers.2.self_attn.k_norm.weight'
    await rewrite(folder, (name, tensor) => [name, name === norm ? { ...tensor, shape: [4, 4] } : tensor])
    await expect(graphOf(folder)).rejects.toThrow(`The tensor "${norm}" is [4, 4], but config.json makes it [16]`)
    await rewrite(folder, (name, tensor) => (name === norm ? undefined : [name, tensor]))
    await expect(graphOf(folder)).rejects.toThrow(`The tensor "${norm}" is missing`)
    await rewrite(folder, (name, tensor) => (name.includes('visual') ? [name, tensor] : undefined))
    await expect(graphOf(folder)).rejects.toThrow('the files hold no Qwen3 language model')
  })

  it('are refused where a file that the index names is missing', async () => {
    const folder = copy('qwen3')
    const { tensors } = await openSafetensors(join(folder, 'model.safetensors'))
    const part = 'model-00001-of-00002.safetensors'
    writeFileSync(
      join(folder, 'model.safetensors.index.json'),
      JSON.stringify({ weight_map: Object.fromEntries([...tensors.keys()].map((name) => [name, part])) }),
    )
    rmSync(join(folder, 'model.safetensors'))
    await expect(readEncoder(folder)).rejects.toThrow(/part model-00001-of-00002\.safetensors.*is missing/)
  })

  it('have the linear maps of the class that AutoModel builds', async () => {
    const [text, vision] = await Promise.all([readEncoder(tinyQwen3('qwen3')), readEncoder(tinyQwen3('qwen3-vl'))])
    expect(linearModules(text)).toHaveLength(28)
    expect(linearModules(text)[0]).toEqual({ module: 'layers.0.self_attn.q_proj', inputs: 64, outputs: 64 })
    const targets = selectTargets(linearModules(vision), defaultTargets(vision))
    expect(targets).toHaveLength(24)
    expect(targets[5]).toEqual({ module: 'language_model.layers.0.mlp.down_proj', inputs: 96, outputs: 64 })
  })
})

describe('the configuration of a Qwen3 model', () => {
  const read = (kind: Kind) => JSON.parse(readFileSync(join(tinyQwen3(kind), 'config.json'), 'utf8'))

  it('may write rotary settings as transformers did before 5.0', () => {
    const { rope_parameters, ...text } = read('qwen3-vl').text_config
    const old = {
      ...read('qwen3-vl'),
      text_config: {
        ...text,
        rope_theta: 5_000_000,
        rope_scaling: { mrope_interleaved: true, mrope_section: [3, 3, 2], rope_type: 'default' },
      },
    }
    expect(rope_parameters.mrope_section).toEqual([4, 2, 2])
    expect(qwen3Config(old, 'config.json')).toMatchObject({ theta: 5_000_000, sections: [3, 3, 2], deepstack: 3 })
  })

  it('has the defaults of transformers’ classes where it says nothing', () => {
    const without = ({
      head_dim,
      num_key_value_heads,
      rms_norm_eps,
      rope_parameters,
      ...rest
    }: Record<string, unknown>) => rest
    const common = { headWidth: 128, kvHeads: 4, epsilon: 1e-6 }
    expect(qwen3Config(without(read('qwen3')), 'config.json')).toMatchObject({ ...common, theta: 10_000 })
    const vision = { ...read('qwen3-vl'), text_config: without(read('qwen3-vl').text_config) }
    const sections = [24, 20, 20]
    expect(qwen3Config(vision, 'config.json')).toMatchObject({ ...common, theta: 500_000, sections })
  })

  it.each([
    ['qwen3', { hidden_size: undefined }, '"hidden_size" is missing'],
    ['qwen3', { num_attention_heads: 3 }, '"num_attention_heads" is 3: is no multiple of num_key_value_heads'],
    ['qwen3', { hidden_act: 'gelu' }, '"hidden_act" is "gelu"'],
    ['qwen3', { use_sliding_window: true }, 'sliding-window attention is not supported'],
    ['qwen3', { rope_parameters: { rope_type: 'yarn', rope_theta: 1e4 } }, '"rope_parameters.rope_type" is "yarn"'],
    ['qwen3', { model_type: 'qwen2' }, '"model_type" is "qwen2", not qwen3 or qwen3_vl'],
    ['qwen3-vl', { text_config: {} }, '"text_config.vocab_size" is missing'],
  ] as const)('of %s is refused with %j', (kind, change, message) => {
    expect(() => qwen3Config({ ...read(kind), ...change }, 'config.json')).toThrow(message)
  })
})

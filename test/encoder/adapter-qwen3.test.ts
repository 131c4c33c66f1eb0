import { cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { encoderModules, readAdapter, readEncoder, writeAdapter } from '../../src/encoder/index.ts'
import { openSafetensors, type Tensor, writeSafetensors } from '../../src/onnx/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { type Kind, qwen3Profile, tinyQwen3 } from './qwen3-known.ts'

const peftFolder = (kind: Kind): string => join(tinyQwen3(kind), 'adapter')

async function tensorsOf(folder: string): Promise<Map<string, Tensor>> {
  const stored = await openSafetensors(join(folder, 'adapter_model.safetensors'))
  const tensors = new Map<string, Tensor>()
  for (const key of [...stored.tensors.keys()].sort()) tensors.set(key, await stored.read(key))
  return tensors
}

/** A copy of PEFT's adapter with other keys and settings. */
async function changed(
  kind: Kind,
  rename: (key: string) => string,
  config: Record<string, unknown> = {},
): Promise<string> {
  const folder = join(temporaryFolder(), 'adapter')
  cpSync(peftFolder(kind), folder, { recursive: true })
  const tensors = new Map([...(await tensorsOf(folder))].map(([key, tensor]) => [rename(key), tensor]))
  await writeSafetensors(join(folder, 'adapter_model.safetensors'), tensors)
  const file = join(folder, 'adapter_config.json')
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), ...config }))
  return folder
}

describe.each(['qwen3', 'qwen3-vl'] as const)('an adapter of %s', (kind) => {
  it('is written with the keys and numbers that PEFT writes over AutoModel', async () => {
    const profile = await qwen3Profile(kind)
    const folder = join(temporaryFolder(), 'adapter')
    await writeAdapter(folder, await readAdapter(peftFolder(kind), profile), profile)
    expect(await tensorsOf(folder)).toEqual(await tensorsOf(peftFolder(kind)))
    const config = JSON.parse(readFileSync(join(folder, 'adapter_config.json'), 'utf8'))
    expect(config).toMatchObject({ r: 4, lora_alpha: 8, rank_pattern: {}, alpha_pattern: {} })
    // as endings, which name nothing of the vision tower
    expect(config.target_modules).toEqual([
      'mlp.down_proj',
      'mlp.gate_proj',
      'mlp.up_proj',
      'self_attn.k_proj',
      'self_attn.q_proj',
      'self_attn.v_proj',
    ])
  })

  it('is read with the prefixes of classes with a head, old and new', async () => {
    const profile = await qwen3Profile(kind)
    const original = await readAdapter(peftFolder(kind), profile)
    expect(original.targets).toHaveLength(24)
    const inner = /^base_model\.model\.(?:language_model\.)?/
    for (const outer of ['', 'model.', 'model.language_model.', 'language_model.model.'])
      for (const wrapped of ['base_model.model.', '']) {
        const folder = await changed(kind, (key) => wrapped + outer + key.replace(inner, ''))
        expect(await readAdapter(folder, profile)).toEqual(original)
      }
  })

  it('takes ranks and alphas by the paths that modules have in the class that was adapted, as PEFT does', async () => {
    const profile = await qwen3Profile(kind)
    const [first] = (await encoderModules(profile)).map(({ module }) => module)
    const alphas = async (rename: (key: string) => string, pattern: string) => {
      const folder = await changed(kind, rename, { alpha_pattern: { [pattern]: 3 } })
      return (await readAdapter(folder, profile)).targets.map(({ alpha }) => alpha)
    }
    const [one, none] = [[3, ...Array(23).fill(8)], Array(24).fill(8)]
    expect(await alphas((key) => key, first!)).toEqual(one)
    expect(await alphas((key) => key, `^${first}`)).toEqual(one)
    const inHead = (key: string) => key.replace('base_model.model.', 'base_model.model.model.')
    expect(await alphas(inHead, `model.${first}`)).toEqual(one)
    expect(await alphas(inHead, `^model\\.${first}`)).toEqual(one)
    expect(await alphas(inHead, `^${first}`)).toEqual(none)
    expect(await alphas((key) => key, `model.${first}`)).toEqual(none)
  })
})

describe('an adapter over a vision tower', () => {
  it('is refused, as the tower stays as it is', async () => {
    const folder = await changed('qwen3-vl', (key) =>
      key.replace(/language_model\.layers\.0\.self_attn.q_proj/, 'visual.blocks.0.attn.qkv'),
    )
    await expect(readAdapter(folder, await qwen3Profile('qwen3-vl'))).rejects.toThrow(
      /2 of 48 keys name no linear module.*"base_model\.model\.visual\.blocks.*vision tower stays as it is/,
    )
  })
})

describe('the precision of weights', () => {
  it('is found in checkpoints whose tensors stand in a class with a head', async () => {
    const modules = await encoderModules(await readEncoder(tinyQwen3('qwen3-vl')))
    expect(new Set(modules.map(({ storage }) => storage))).toEqual(new Set(['bf16']))
  })
})

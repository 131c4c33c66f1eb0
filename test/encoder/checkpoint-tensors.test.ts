import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { checkpointTensors } from '../../src/encoder/index.ts'
import { openSafetensors } from '../../src/onnx/index.ts'

const fixtures = join(import.meta.dirname, '../fixtures')

/** Names and shapes of a checkpoint's file, as the class that AutoModel builds has them. */
async function stored(folder: string): Promise<Map<string, number[]>> {
  const { tensors } = await openSafetensors(join(fixtures, folder))
  return new Map([...tensors].map(([name, { shape }]) => [name.replace(/^(model|bert)\./, ''), shape]))
}

const config = (folder: string): Record<string, unknown> =>
  JSON.parse(readFileSync(join(fixtures, folder, 'config.json'), 'utf8'))

const byName = (shapes: Map<string, number[]>) => Object.fromEntries([...shapes].sort(([a], [b]) => (a < b ? -1 : 1)))

describe('the tensors of a configuration', () => {
  it.each(['qwen3', 'qwen3-vl'])('are those that Hugging Face transformers saved (%s)', async (folder) => {
    expect(byName(checkpointTensors(config(folder), folder))).toEqual(byName(await stored(folder)))
  })

  it('are those of BertModel, whose pooler checkpoints of sentence encoders may lack', async () => {
    const tensors = checkpointTensors(config('tiny-bert/mean'), 'tiny-bert')
    const pooler = [...tensors].filter(([name]) => name.startsWith('pooler.'))
    const lacking = new Map([...(await stored('tiny-bert/mean')), ...pooler])
    expect(byName(tensors)).toEqual(byName(lacking))
    expect(Object.fromEntries(pooler)).toEqual({ 'pooler.dense.weight': [32, 32], 'pooler.dense.bias': [32] })
  })

  it('have biases in attention where the configuration says so', () => {
    const tensors = checkpointTensors({ ...config('qwen3'), attention_bias: true }, 'config.json')
    expect(tensors.get('layers.0.self_attn.k_proj.bias')).toEqual([32])
    expect(tensors.has('layers.0.mlp.up_proj.bias')).toBe(false)
  })

  it('are not known of other architectures', () => {
    expect(() => checkpointTensors({ model_type: 'llama' }, 'config.json')).toThrow(
      'config.json: "model_type" is "llama"; the architectures whose checkpoints are supported are bert, qwen3, qwen3_vl.',
    )
    expect(() => checkpointTensors({ model_type: 'constructor' }, 'config.json')).toThrow('"constructor"')
  })
})

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import {
  type EncoderProfile,
  encoderGraph,
  openWeights,
  plainEncoder,
  type TokenSequence,
} from '../../src/encoder/index.ts'
import { openSafetensors, openSession, type Tensor } from '../../src/onnx/index.ts'
import { type Kind, qwen3Profile, relativeError } from './qwen3-known.ts'

/** A language model of an unusual configuration, and what transformers computes of it; see bench/peers/make_qwen3_variants.py. */
async function variant(name: string, kind: Kind) {
  const folder = join(import.meta.dirname, '..', 'fixtures', 'qwen3-variants', name)
  const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8'))
  const width: number = (config.text_config ?? config).hidden_size
  const profile: EncoderProfile = {
    ...(await qwen3Profile(kind)),
    ...{ folder, modelFolder: folder, config, width, dimension: width, normalize: false },
  }
  const known = await openSafetensors(join(folder, 'expected.safetensors'))
  const integers = async (what: string) => (await known.read(what)).data as Int32Array
  const sequence: TokenSequence = { ids: await integers('ids') }
  let feature: Float32Array = new Float32Array()
  if (kind === 'qwen3-vl') {
    feature = await known.readTensor('features')
    const [[at], length] = [await integers('at'), known.tensors.get('features')!.shape[1]]
    sequence.positions = await integers('positions')
    sequence.visuals = [{ at: at as number, length: length as number, key: 'picture' }]
  }
  const visuals = { features: { has: () => true, get: () => feature } }
  return { profile, sequence, visuals, hidden: await known.readTensor('hidden') }
}

describe('a language model with what the configuration allows', () => {
  it.each([
    ['biased', 'qwen3'],
    ['shallow', 'qwen3-vl'],
  ] as const)('computes the states of transformers: %s', async (name, kind) => {
    const { profile, sequence, visuals, hidden } = await variant(name, kind)
    const { graph, externalFolder, feeds } = await encoderGraph(profile, [], 0, { visuals })
    const session = await openSession(graph, { threads: 1, externalFolder: externalFolder! })
    const data = Int32Array.from(sequence.ids, (_, i) => i)
    const last: Tensor = { dtype: 'int32', shape: [data.length], data }
    const { embeddings } = await session.run({ ...feeds([sequence]), last })
    await session.release()
    expect(relativeError(embeddings!.data as Float32Array, hidden)).toBeLessThan(1e-5)
  })

  it('computes them in standard operators, too', async () => {
    const { profile, sequence, hidden } = await variant('biased', 'qwen3')
    const { weights, folder } = await openWeights(profile)
    const session = await openSession(plainEncoder(profile, weights), { threads: 1, externalFolder: folder })
    const row = (values: ArrayLike<number>): Tensor => {
      const data = BigInt64Array.from(Array.from(values), BigInt)
      return { dtype: 'int64', shape: [1, data.length], data }
    }
    const found = await session.run({ input_ids: row(sequence.ids), attention_mask: row(sequence.ids.map(() => 1)) })
    await session.release()
    expect(relativeError(found.last_hidden_state!.data as Float32Array, hidden)).toBeLessThan(1e-5)
  })
})

import { describe, expect, it } from 'vitest'
import { openWeights } from '../../src/encoder/index.ts'
import { qwen3Decoder, qwen3EmbedTokens, qwen3Plain } from '../../src/encoder/qwen3/index.ts'
import { type Graph, openSession, type Tensor } from '../../src/onnx/index.ts'
import { type Kind, type KnownInput, knownInputs, qwen3Profile, relativeError } from './qwen3-known.ts'

const hidden = 64

async function open(kind: Kind, make: (...args: Parameters<typeof qwen3Plain>) => Graph) {
  const profile = await qwen3Profile(kind)
  const { weights, folder } = await openWeights(profile)
  const graph = make(profile, weights)
  expect(graph.opset).toBeLessThanOrEqual(17)
  expect(graph.nodes.filter(({ domain }) => domain !== '')).toEqual([])
  return openSession(graph, { externalFolder: folder, threads: 1 })
}

const int64 = (shape: number[], values: number[]): Tensor => ({
  dtype: 'int64',
  shape,
  data: BigInt64Array.from(values, BigInt),
})

/** A value for each place of rows as long as the longest input, `pad` behind an input's end. */
const padded = (inputs: KnownInput[], value: (input: KnownInput, token: number) => number, pad = 0): Tensor => {
  const length = Math.max(...inputs.map(({ ids }) => ids.length))
  const row = (input: KnownInput) => Array.from({ length }, (_, i) => (i < input.ids.length ? value(input, i) : pad))
  return int64([inputs.length, length], inputs.flatMap(row))
}

/** The states of an input's tokens in rows of states. */
function statesOf({ data, shape }: Tensor, row: number, { ids }: KnownInput): Float32Array {
  const start = row * (shape[1] as number) * hidden
  return (data as Float32Array).subarray(start, start + ids.length * hidden)
}

describe('plain graphs', () => {
  it('compute the hidden states of transformers for padded texts', async () => {
    const inputs = await knownInputs('qwen3')
    const session = await open('qwen3', qwen3Plain)
    const found = await session.run({
      input_ids: padded(inputs, ({ ids }, i) => ids[i] as number, 480),
      attention_mask: padded(inputs, () => 1),
    })
    await session.release()
    inputs.forEach((input, row) => {
      expect(relativeError(statesOf(found.last_hidden_state!, row, input), input.hidden), input.name).toBeLessThan(1e-4)
    })
  })

  it.each(['qwen3', 'qwen3-vl'] as const)('compute the same in two parts, table and layers (%s)', async (kind) => {
    const inputs = await knownInputs(kind)
    const [table, decoder] = [await open(kind, qwen3EmbedTokens), await open(kind, qwen3Decoder)]
    const ids = padded(inputs, ({ ids }, i) => ids[i] as number)
    const [batch, length] = ids.shape as [number, number]
    const embeds = (await table.run({ input_ids: ids })).inputs_embeds!
    const deepstack = new Float32Array(3 * batch * length * hidden)
    inputs.forEach(({ isVisual, features }, row) => {
      let from = 0
      isVisual.forEach((visual, i) => {
        if (!visual) return
        const at = (row * length + i) * hidden
        const feature = (level: number) => features[level]!.subarray(from, from + hidden)
        ;(embeds.data as Float32Array).set(feature(0), at)
        for (const level of [1, 2, 3]) deepstack.set(feature(level), (level - 1) * batch * length * hidden + at)
        from += hidden
      })
    })
    const axes = [0, 1, 2].map((axis) => padded(inputs, ({ positions }, i) => positions[axis]![i] as number))
    const positions = axes.flatMap(({ data }) => Array.from(data as BigInt64Array, Number))
    const found = await decoder.run({
      inputs_embeds: embeds,
      attention_mask: padded(inputs, () => 1),
      ...(kind === 'qwen3'
        ? { position_ids: axes[0]! }
        : {
            position_ids: int64([3, batch, length], positions),
            deepstack: { dtype: 'float32', shape: [3, batch, length, hidden], data: deepstack } as Tensor,
          }),
    })
    await table.release()
    await decoder.release()
    inputs.forEach((input, row) => {
      expect(relativeError(statesOf(found.last_hidden_state!, row, input), input.hidden), input.name).toBeLessThan(1e-4)
    })
  })
})

import { join } from 'node:path'
import { describe, expect, it, vi } from 'vitest'
import { openEmbedder, readAdapter } from '../../src/encoder/index.ts'
import type { Graph } from '../../src/onnx/index.ts'
import { largestDifference } from './fixtures.ts'
import { qwen3Profile, tinyQwen3 } from './qwen3-known.ts'

const state = vi.hoisted(() => ({ stored: false, graphs: [] as unknown[] }))

// weights of 256 MiB and more stay in their file; here those of a tiny model do
vi.mock(import('../../src/onnx/cast-where-used.ts'), async (original) => {
  const { castWhereUsed } = await original()
  return {
    leavesWeightsStored: () => state.stored,
    castWhereUsed(graph) {
      const changed = castWhereUsed(graph)
      state.graphs.push(changed)
      return changed
    },
  }
})

/** Nodes that read nothing but constants. */
function constantNodes({ nodes, initializers }: Graph): string[] {
  const constant = new Set(initializers.keys())
  return nodes.flatMap(({ op, inputs, outputs }) => {
    if (!inputs.every((input) => input === '' || constant.has(input))) return []
    for (const output of outputs) constant.add(output)
    return [op]
  })
}

describe('an adapter over weights that stay in their file', () => {
  it('gives the same embeddings, and no sum of a weight and its update is computed in every run', async () => {
    const profile = await qwen3Profile('qwen3')
    const adapter = await readAdapter(join(tinyQwen3('qwen3'), 'adapter'), profile)
    const embedded = async (stored: boolean): Promise<Float32Array> => {
      state.stored = stored
      const embedder = await openEmbedder(profile, { adapter, threads: 1 })
      try {
        return (await embedder.embedTexts(['A house.', 'A house with two doors.'], 'node')).embeddings
      } finally {
        await embedder.close()
      }
    }
    const merged = await embedded(false)
    expect(state.graphs).toEqual([])
    expect(largestDifference(await embedded(true), [[...merged]])).toBeLessThan(1e-5)
    const [graph] = state.graphs as [Graph]
    // a sum is as large as the weight in float32, and ONNX Runtime would make all of them first; Mul is B times alpha / rank
    expect([...new Set(constantNodes(graph))]).toEqual(['Cast', 'Mul'])
  })
})

import { describe, expect, it } from 'vitest'
import { checkedAgainstCpu } from '../../src/encoder/embedding/device-check.ts'
import { type TokenSequence, textSequence } from '../../src/encoder/index.ts'
import type { Precision } from '../../src/onnx/index.ts'

const right = (sequences: TokenSequence[]): Float32Array =>
  Float32Array.from(sequences.flatMap(({ ids: [id = 0] }) => [id, 1, -id]))

function engines(change: (x: number, i: number) => number, precision?: Precision) {
  const asked: number[] = []
  let closed = 0
  const device = {
    async embed(sequences: TokenSequence[]) {
      asked.push(sequences.length)
      return right(sequences).map(change)
    },
    async close() {},
  }
  const cpu = { embed: async (sequences: TokenSequence[]) => right(sequences), close: async () => void closed++ }
  return { asked, engine: checkedAgainstCpu(device, 'webgpu', async () => cpu, precision), closed: () => closed }
}
const sequences = [textSequence(Int32Array.of(3)), textSequence(Int32Array.of(5))]

describe('an encoder on another device', () => {
  it('is compared with the CPU once, on the first sequence', async () => {
    const { asked, engine, closed } = engines((x) => x * 1.0001)
    expect(await engine.embed(sequences)).toEqual(right(sequences).map((x) => x * 1.0001))
    await engine.embed(sequences)
    expect(asked).toEqual([1, 2, 2])
    expect(closed()).toBe(1)
  })

  it('is allowed the rounding of bfloat16 where it computes in that', async () => {
    // cosine 0.995
    const rounded = (x: number, i: number): number => (i % 3 === 1 ? 1.5 * x : x)
    await expect(engines(rounded).engine.embed(sequences)).rejects.toThrow(/cosine 0\.99\d\d/)
    expect(await engines(rounded, 'bf16').engine.embed(sequences)).toEqual(right(sequences).map(rounded))
  })

  it('whose embeddings are others is an error, not a result', async () => {
    await expect(engines((x) => Math.abs(x)).engine.embed(sequences)).rejects.toThrow(
      /On webgpu.*cosine -?0\.\d+.*--device cpu/,
    )
    await expect(engines(() => Number.NaN).engine.embed(sequences)).rejects.toThrow(/cosine NaN/)
  })
})

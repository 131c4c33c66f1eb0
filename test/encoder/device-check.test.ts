import { describe, expect, it } from 'vitest'
import { checkedAgainstCpu } from '../../src/encoder/device-check.ts'

const right = (sequences: Int32Array[]): Float32Array =>
  Float32Array.from(sequences.flatMap(([id = 0]) => [id, 1, -id]))

function engines(change: (x: number) => number) {
  const asked: number[] = []
  let closed = 0
  const device = {
    async embed(sequences: Int32Array[]) {
      asked.push(sequences.length)
      return right(sequences).map(change)
    },
    async close() {},
  }
  const cpu = { embed: async (sequences: Int32Array[]) => right(sequences), close: async () => void closed++ }
  return { asked, engine: checkedAgainstCpu(device, 'webgpu', async () => cpu), closed: () => closed }
}
const sequences = [Int32Array.of(3), Int32Array.of(5)]

describe('an encoder on another device', () => {
  it('is compared with the CPU once, on the first sequence', async () => {
    const { asked, engine, closed } = engines((x) => x * 1.0001)
    expect(await engine.embed(sequences)).toEqual(right(sequences).map((x) => x * 1.0001))
    await engine.embed(sequences)
    expect(asked).toEqual([1, 2, 2])
    expect(closed()).toBe(1)
  })

  it('whose embeddings are others is an error, not a result', async () => {
    await expect(engines((x) => Math.abs(x)).engine.embed(sequences)).rejects.toThrow(
      /On webgpu.*cosine -?0\.\d+.*--device cpu/,
    )
    await expect(engines(() => Number.NaN).engine.embed(sequences)).rejects.toThrow(/cosine NaN/)
  })
})

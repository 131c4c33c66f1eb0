import { afterAll, describe, expect, it } from 'vitest'
import { textSequence } from '../../src/encoder/index.ts'
import { checkDevice } from '../../src/train/engine/device-check.ts'
import { type Engine, openEngine } from '../../src/train/engine/engine.ts'
import { toyEncoder } from './toy-encoder.ts'

const encoder = toyEncoder()
const engine = await openEngine({
  ...{ encoder, queries: () => new Float32Array(), loss: undefined, tokenBudget: 100, threads: 1 },
})
afterAll(() => engine.close())

const sequences = [Int32Array.of(1, 2, 3), Int32Array.of(4, 5)].map(textSequence)
/** Checks an engine whose gradients are the right ones after `change`. */
const check = (change: (x: number, i: number) => number): Promise<void> => {
  const pullBack: Engine['pullBack'] = async (...given) =>
    new Map([...(await engine.pullBack(...given))].map(([name, data]) => [name, data.map(change)]))
  return checkDevice({ pullBack }, encoder, sequences, { device: 'webgpu', precision: 'fp32', threads: 1 })
}

describe('a device', () => {
  it('is trained on when its gradients are those of the CPU, up to rounding', async () => {
    await check((x) => x)
    await check((x) => x * 1.001)
  })

  it('is refused when they are not', async () => {
    await expect(check((x) => -x)).rejects.toThrow(/On webgpu the gradients.*200 % of their norm.*--device cpu/)
    await expect(check(() => 0)).rejects.toThrow(/On webgpu/)
    await expect(check((x, i) => (i === 0 ? Number.NaN : x))).rejects.toThrow(/differ by Infinity/)
  })
})

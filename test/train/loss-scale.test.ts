import { describe, expect, it } from 'vitest'
import type { Batch } from '../../src/train/data/instances.ts'
import { type LoopParts, trainLoop } from '../../src/train/loop.ts'
import { initialState, type TrainingState } from '../../src/train/run/checkpoints.ts'
import type { MetricsLine } from '../../src/train/run/metrics.ts'
import { resolveSettings } from '../../src/train/settings.ts'
import { grown, initialLossScale, LARGEST_SCALE, lowered } from '../../src/train/step/loss-scale.ts'

const settings = await resolveSettings(undefined, { learningRate: 0.1, warmup: 0, schedule: 'constant' })
const batch = { micro: [{}], pairs: 2 } as unknown as Batch

function stateWith(scale: number): TrainingState {
  const tensors = new Map([['w', Float32Array.of(1, 2)]])
  return initialState(tensors, 4096, { scale, goodSteps: 0 })
}

/** Trains where a gradient overflows above `most`, and the loss is `loss(step)`. */
async function trained(state: TrainingState, most: number, options: { loss?: number; totalSteps?: number } = {}) {
  const { loss = 0.5, totalSteps = 8 } = options
  const lines: MetricsLine[] = []
  let scale = 0
  const parts: LoopParts = {
    ...{ settings, totalSteps, stepsPerEpoch: 4, evaluateEvery: 100, checkpointEvery: 100, longest: () => 10 },
    batch: async () => batch,
    use(current) {
      scale = current.lossScale!.scale
    },
    gradients: async () => ({
      loss,
      right: 1,
      gradients: new Map([['w', Float32Array.of(scale > most ? Number.POSITIVE_INFINITY : 1, 0)]]),
    }),
    validate: async () => undefined,
    log: async (line) => void lines.push(line),
    checkpoint: async () => {},
    warn() {},
  }
  await trainLoop(state, parts)
  return lines.slice(1)
}

describe('the loss scale of float16', () => {
  it('is halved at an overflow, whose step is not applied, until gradients are finite', async () => {
    const state = stateWith(2 ** 16)
    const lines = await trained(state, 2 ** 12)
    expect(lines.map((line) => line.loss_scale)).toEqual([16, 15, 14, 13, 12, 12, 12, 12].map((n) => 2 ** n))
    expect(lines.map(({ skipped }) => skipped !== undefined)).toEqual([true, true, true, true, ...Array(4).fill(false)])
    expect(lines[0]!.skipped).toMatch(/overflowed in float16.*lowered to 32768/)
    expect(state).toMatchObject({ skipped: 4, skippedInARow: 0, lossScale: { scale: 2 ** 12, goodSteps: 4 } })
    expect(state.optimizer.step).toBe(4)
  })

  it('cannot go below 1: gradients that overflow there stop training after three steps', async () => {
    const state = stateWith(4)
    await expect(trained(state, 0)).rejects.toThrow(/step 5: in 3 steps in a row.*--precision bf16 or fp32/)
    expect(state.lossScale).toEqual({ scale: 1, goodSteps: 0 })
  })

  it('is no remedy for a loss that is not finite', async () => {
    const state = stateWith(2 ** 16)
    await expect(trained(state, 2 ** 20, { loss: Number.NaN })).rejects.toThrow(/step 3: in 3 steps in a row the loss/)
    expect(state.lossScale!.scale).toBe(2 ** 16)
  })

  it('goes on after a resume as it would have', async () => {
    const whole = stateWith(2 ** 14)
    const lines = await trained(whole, 2 ** 12)
    const half = stateWith(2 ** 14)
    const first = await trained(half, 2 ** 12, { totalSteps: 3 })
    const resumed = structuredClone(half)
    const rest = await trained(resumed, 2 ** 12).then((found) => found)
    const scales = (of: MetricsLine[]) => of.map((line) => line.loss_scale)
    expect([...scales(first), ...scales(rest)].slice(-5)).toEqual(scales(lines).slice(-5))
    expect(resumed.lossScale).toEqual(whole.lossScale)
    expect(resumed.tensors).toEqual(whole.tensors)
  })

  it('is doubled after 2000 steps without an overflow, up to a limit', () => {
    let scale = initialLossScale()
    for (let step = 0; step < 1999; step++) scale = grown(scale)
    expect(scale).toEqual({ scale: 2 ** 16, goodSteps: 1999 })
    expect(grown(scale)).toEqual({ scale: 2 ** 17, goodSteps: 0 })
    expect(grown({ scale: LARGEST_SCALE, goodSteps: 5000 }).scale).toBe(LARGEST_SCALE)
    expect(lowered({ scale: 2, goodSteps: 7 })).toEqual({ scale: 1, goodSteps: 0 })
    expect(lowered({ scale: 1, goodSteps: 7 })).toBeUndefined()
  })
})

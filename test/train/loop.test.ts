import { describe, expect, it } from 'vitest'
import { createRandom } from '../../src/support/random.ts'
import type { Batch } from '../../src/train/data/instances.ts'
import { Interrupted, isBetter, type LoopParts, trainLoop } from '../../src/train/loop.ts'
import { initialState, type TrainingState } from '../../src/train/run/checkpoints.ts'
import type { MetricsLine, ValidationMetrics } from '../../src/train/run/metrics.ts'
import { resolveSettings } from '../../src/train/settings.ts'
import type { BatchGradients } from '../../src/train/step/gradients.ts'
import { copyTensors, type Tensors } from '../../src/train/step/optimizer.ts'

const settings = await resolveSettings(undefined, { warmup: 0, schedule: 'constant', learningRate: 0.1 })

const batch = (micro = 1): Batch => ({
  members: [],
  micro: Array.from({ length: micro }, () => ({ sequences: [], pairs: [], oversize: false })),
  instances: 1,
  pairs: 2,
  droppedPairs: 0,
  nodes: 3,
  truncatedNodes: 0,
  tokens: 9,
})

const metrics = (accuracy: number): ValidationMetrics => ({
  decision_accuracy: accuracy,
  mean_decision_accuracy: accuracy,
  edge_accuracy: accuracy,
  pair_accuracy: accuracy,
  loss: 1 - accuracy,
  decisions: 10,
  pairs: 20,
  benchmarks: {},
})

function newState(): TrainingState {
  const tensors: Tensors = new Map([['w', Float32Array.of(1, 2)]])
  return initialState(tensors, 4096)
}

/** A loop over made-up gradients: `gradient(step)` may hold anything. */
function loop(
  options: Partial<LoopParts> & { gradient?: (step: number) => number[]; loss?: (step: number) => number } = {},
) {
  const lines: MetricsLine[] = []
  const checkpoints: TrainingState[] = []
  let step = 0
  const gradients = async (): Promise<BatchGradients> => ({
    loss: options.loss?.(step) ?? 0.5,
    right: 1,
    gradients: new Map([['w', Float32Array.from(options.gradient?.(step) ?? [1, -1])]]),
  })
  const parts: LoopParts = {
    settings,
    totalSteps: 6,
    stepsPerEpoch: 3,
    evaluateEvery: 2,
    checkpointEvery: 2,
    longest: () => 256,
    gradients,
    use() {},
    warn() {},
    async batch(n) {
      step = n
      return batch()
    },
    validate: async () => metrics(0.5),
    async log(line) {
      lines.push(line)
    },
    async checkpoint(state) {
      checkpoints.push(structuredClone(state))
    },
    ...options,
  }
  return { parts, lines, checkpoints }
}

describe('the training loop', () => {
  it('logs each step once, with step 0 for the frozen encoder', async () => {
    const { parts, lines, checkpoints } = loop()
    await trainLoop(newState(), parts)
    expect(lines.map(({ step }) => step)).toEqual([0, 1, 2, 3, 4, 5, 6])
    expect(lines.map(({ validation }) => validation !== undefined)).toEqual([
      true,
      false,
      true,
      false,
      true,
      false,
      true,
    ])
    expect(lines[1]).toMatchObject({ epoch: 1, loss: 0.5, pair_accuracy: 0.5, learning_rate: 0.1 })
    expect(lines[4]!.epoch).toBe(2)
    expect(checkpoints.map(({ step }) => step)).toEqual([2, 4, 6])
  })

  it('goes on from any checkpoint to the same state', async () => {
    const gradient = (step: number): number[] => {
      const random = createRandom(`g${step}`)
      return [random.normal(), random.normal()]
    }
    const validate = async (tensors: Tensors) => metrics(Math.abs(Math.sin(100 * tensors.get('w')![0]!)))
    const whole = loop({ gradient, validate })
    const end = newState()
    await trainLoop(end, whole.parts)
    for (const checkpoint of whole.checkpoints) {
      const state = structuredClone(checkpoint)
      await trainLoop(state, loop({ gradient, validate }).parts)
      expect(state).toEqual(end)
    }
  })

  it('does not apply a step that is not finite, and counts it', async () => {
    for (const bad of [
      { gradient: (step: number) => (step === 2 ? [Number.NaN, 0] : [1, 1]) },
      { gradient: (step: number) => (step === 2 ? [Number.POSITIVE_INFINITY, 0] : [1, 1]) },
      { loss: (step: number) => (step === 2 ? Number.NaN : 1) },
    ]) {
      const before: Tensors[] = []
      const state = newState()
      const { parts, lines } = loop(bad)
      await trainLoop(state, {
        ...parts,
        async batch(n, budget) {
          before[n] = copyTensors(state.tensors)
          return parts.batch(n, budget)
        },
      })
      expect(before[3]).toEqual(before[2])
      expect(before[2]).not.toEqual(before[1])
      expect(lines.filter(({ skipped }) => skipped !== undefined).map(({ step }) => step)).toEqual([2])
      expect(state).toMatchObject({ step: 6, skipped: 1, skippedInARow: 0 })
      expect(state.optimizer.step).toBe(5)
      expect([...state.tensors.get('w')!].every(Number.isFinite)).toBe(true)
    }
  })

  it('stops after three such steps in a row, also across a resume', async () => {
    const gradient = (step: number): number[] => (step >= 3 ? [Number.NaN, 0] : [1, 1])
    const { parts, checkpoints } = loop({ gradient })
    await expect(trainLoop(newState(), parts)).rejects.toThrow(/step 5: in 3 steps in a row the gradient is not finite/)
    const resumed = structuredClone(checkpoints.at(-1)!)
    expect(resumed).toMatchObject({ step: 4, skippedInARow: 2 })
    await expect(trainLoop(resumed, loop({ gradient }).parts)).rejects.toThrow(/step 5/)
  })

  it('does not apply a step whose gradient has squares beyond float32, unless clipping brings it down', async () => {
    const gradient = (step: number): number[] => (step === 2 ? [3e38, 0] : [1, 1])
    const clipped = newState()
    await trainLoop(clipped, loop({ gradient }).parts)
    expect(clipped).toMatchObject({ skipped: 0 })
    const state = newState()
    await trainLoop(state, loop({ gradient, settings: { ...settings, clipNorm: 0 } }).parts)
    expect(state).toMatchObject({ step: 6, skipped: 1 })
    for (const { tensors, optimizer } of [state, clipped])
      for (const part of [tensors, optimizer.first, optimizer.second])
        expect([...part.get('w')!].every(Number.isFinite)).toBe(true)
  })

  it('says what is not finite, where more is known', async () => {
    const { parts, lines } = loop()
    const gradients: LoopParts['gradients'] = async (batch, tensors) => ({
      ...(await parts.gradients(batch, tensors)),
      loss: Number.NaN,
      notFinite: 'the gradient at the node [0, 3) is',
    })
    await expect(trainLoop(newState(), { ...parts, gradients })).rejects.toThrow(
      /step 3: in 3 steps in a row the gradient at the node \[0, 3\) is not finite/,
    )
    expect(lines.map(({ skipped }) => skipped)).toEqual([
      undefined,
      ...Array(2).fill('the gradient at the node [0, 3) is not finite'),
    ])
  })

  it('leaves out a batch with nothing to learn without calling it a failure', async () => {
    const state = newState()
    const { parts, lines } = loop()
    await trainLoop(state, { ...parts, batch: async () => ({ ...batch(0), pairs: 0 }) })
    expect(state.tensors).toEqual(newState().tensors)
    expect(state).toMatchObject({ step: 6, skipped: 6, skippedInARow: 0 })
    expect(JSON.stringify(lines)).not.toContain('null')
  })

  it('finishes the step, writes a checkpoint and stops when interrupted', async () => {
    const stop = new AbortController()
    const { parts, lines, checkpoints } = loop({ signal: stop.signal })
    const interrupted = trainLoop(newState(), {
      ...parts,
      async batch(n, budget) {
        if (n === 3) stop.abort()
        return parts.batch(n, budget)
      },
    })
    await expect(interrupted).rejects.toThrow(Interrupted)
    expect(lines.at(-1)!.step).toBe(3)
    expect(checkpoints.map(({ step }) => step)).toEqual([2, 3])
  })

  it('breaks a validation off when interrupted, keeps the step, and validates it first when it goes on', async () => {
    const gradient = (step: number): number[] => [step, -1]
    const whole = loop({ gradient })
    const end = newState()
    await trainLoop(end, whole.parts)

    const { parts, lines, checkpoints } = loop({ gradient })
    let validations = 0
    const validate = async (): Promise<ValidationMetrics> => {
      if (++validations === 3) throw new DOMException('stop', 'AbortError')
      return metrics(0.5)
    }
    await expect(trainLoop(newState(), { ...parts, validate })).rejects.toMatchObject({ name: 'AbortError', step: 4 })
    expect(lines.map(({ step }) => step)).toEqual([0, 1, 2, 3])
    expect(checkpoints.at(-1)).toMatchObject({ step: 4, unvalidated: { step: 4 } })

    const state = structuredClone(checkpoints.at(-1)!)
    const rest = loop({ gradient })
    await trainLoop(state, rest.parts)
    expect(state).toEqual({ ...end, unvalidated: undefined })
    const untimed = ({ seconds: _, ...line }: MetricsLine): MetricsLine => line
    expect([...lines, ...rest.lines].map(untimed)).toEqual(whole.lines.map(untimed))
  })

  it('keeps the adapter that the validation part likes best, the earliest of equals', async () => {
    const accuracies = [0.3, 0.6, 0.6, 0.5]
    const seen: Tensors[] = []
    const state = newState()
    const { parts } = loop()
    await trainLoop(state, {
      ...parts,
      async validate(tensors) {
        seen.push(copyTensors(tensors))
        return metrics(accuracies[seen.length - 1]!)
      },
    })
    expect(state.best.step).toBe(2)
    expect(state.best.tensors).toEqual(seen[1])
    expect(state.best.tensors).not.toEqual(state.tensors)
  })

  it('keeps the last adapter where there is no validation part', async () => {
    const state = newState()
    await trainLoop(state, { ...loop().parts, validate: async () => undefined })
    expect(state.best.step).toBe(6)
    expect(state.best.tensors).toEqual(state.tensors)
  })

  it('selects the lowest loss, and never a metric that is not a number', () => {
    expect(isBetter({ ...metrics(0.2), loss: 0.1 }, { ...metrics(0.9), loss: 0.2 }, 'loss')).toBe(true)
    expect(isBetter(metrics(Number.NaN), metrics(0.1), 'decision_accuracy')).toBe(false)
    expect(isBetter(metrics(0.1), metrics(Number.NaN), 'decision_accuracy')).toBe(true)
  })
})

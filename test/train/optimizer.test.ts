import { describe, expect, it } from 'vitest'
import { adamWStep, clipFactor, globalNorm, initialAdamW, type Tensors } from '../../src/train/step/optimizer.ts'

/** Three steps of torch.optim.AdamW(betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1) with clip_grad_norm_(1), torch 2.13. */
const reference = [
  {
    learningRate: 0.01,
    gradients: [
      [0.1, -2, 0.003, 1e-5],
      [1, -0.5, 0.25, 4],
    ],
    norm: 4.6176300048828125,
    values: [
      [0.4895004630088806, -1.2387499809265137, 1.9880154132843018, -0.006841053254902363],
      [0.08990004658699036, -0.18980008363723755, 0.2897002100944519, 0.38960000872612],
    ],
  },
  {
    learningRate: 0.03,
    gradients: [
      [-0.3, 0.7, 0.01, 0],
      [0.2, 0.2, -3, 0.1],
    ],
    norm: 3.1096785068511963,
    values: [
      [0.5053386092185974, -1.2274771928787231, 1.9563148021697998, -0.019015375524759293],
      [0.06389915943145752, -0.18334117531776428, 0.3098942041397095, 0.36741384863853455],
    ],
  },
  {
    learningRate: 0.02,
    gradients: [
      [5, 0, -0.02, 1e-3],
      [-0.4, 0.6, 0.8, -1],
    ],
    norm: 5.211564064025879,
    values: [
      [0.4926473796367645, -1.2211092710494995, 1.953452229499817, -0.03163420408964157],
      [0.055322933942079544, -0.18936137855052948, 0.31803858280181885, 0.3588510751724243],
    ],
  },
]

const named = ([a, b]: number[][]): Tensors =>
  new Map([
    ['a', Float32Array.from(a!)],
    ['b', Float32Array.from(b!)],
  ])

describe('AdamW', () => {
  it('takes the steps of torch.optim.AdamW with clipping', () => {
    const tensors = named([
      [0.5, -1.25, 2, 0],
      [0.1, -0.2, 0.3, 0.4],
    ])
    const state = initialAdamW(tensors)
    for (const { learningRate, gradients, norm, values } of reference) {
      const g = named(gradients)
      expect(globalNorm(g)).toBeCloseTo(norm, 5)
      const settings = { betas: [0.9, 0.98], epsilon: 1e-6, weightDecay: 0.1 } as const
      adamWStep(tensors, g, state, learningRate, settings, clipFactor(globalNorm(g), 1))
      ;[...tensors.values()].forEach((data, t) => {
        data.forEach((x, i) => {
          expect(Math.abs(x - values[t]![i]!)).toBeLessThan(2e-6)
        })
      })
    }
    expect(state.step).toBe(3)
  })

  it('decays weights apart from the gradient', () => {
    const tensors: Tensors = new Map([['w', Float32Array.of(2)]])
    adamWStep(tensors, new Map([['w', Float32Array.of(0)]]), initialAdamW(tensors), 0.1, {
      betas: [0.9, 0.999],
      epsilon: 1e-8,
      weightDecay: 0.5,
    })
    expect(tensors.get('w')![0]).toBeCloseTo(2 * (1 - 0.1 * 0.5), 6)
  })

  it('has a norm that is not finite as soon as one element is not', () => {
    expect(globalNorm(new Map([['w', Float32Array.of(1, Number.NaN)]]))).toBeNaN()
    expect(globalNorm(new Map([['w', Float32Array.of(1, -Infinity)]]))).toBe(Infinity)
  })

  it('clips only what is longer than the limit, and nothing where the limit is 0', () => {
    expect(clipFactor(0.5, 1)).toBe(1)
    expect(clipFactor(4, 1)).toBeCloseTo(0.25, 6)
    expect(clipFactor(4, 0)).toBe(1)
  })
})

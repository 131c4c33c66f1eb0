import { afterAll, describe, expect, it } from 'vitest'
import { createRandom } from '../../src/support/random.ts'
import { openEngine } from '../../src/train/engine.ts'
import type { WeightedPair } from '../../src/train/loss.ts'
import { accumulate, type Tensors, zerosLike } from '../../src/train/optimizer.ts'
import { DIMENSION, normal, relativeError, toyEncoder, toyTensors, unitRows, VOCABULARY } from './toy-encoder.ts'

const QUESTIONS = 3
const random = createRandom('engine')
const sequences = Array.from({ length: 17 }, () =>
  Int32Array.from({ length: 1 + random.int(9) }, () => random.int(VOCABULARY)),
)
const pairs: WeightedPair[] = Array.from({ length: 25 }, () => ({
  preferred: random.int(sequences.length),
  other: random.int(sequences.length),
  question: random.int(QUESTIONS),
  weight: random.next() / 10,
}))
const queries = unitRows(normal('questions', QUESTIONS * DIMENSION), DIMENSION)
const tensors = toyTensors()

const engines = await Promise.all(
  [1000, 20].map((tokenBudget) =>
    openEngine({
      encoder: toyEncoder(),
      queries,
      loss: { loss: 'logistic', tau: 0.3, margin: 0.1 },
      tokenBudget,
      threads: 1,
    }),
  ),
)
const [whole, small] = engines as [(typeof engines)[0], (typeof engines)[0]]
afterAll(async () => {
  for (const engine of engines) await engine.close()
})

const close = (a: Tensors, b: Tensors): void => {
  expect([...a.keys()]).toEqual([...b.keys()])
  for (const [name, data] of a) {
    expect(data.some((x) => x !== 0)).toBe(true)
    expect(relativeError(data, b.get(name)!)).toBeLessThan(1e-5)
  }
}

/** Loss by the definition, from embeddings computed here. */
function bruteForce(t: Tensors): number {
  const encoder = toyEncoder()
  const w = normal('w', VOCABULARY * DIMENSION)
  const [a, b] = [t.get('toy.lora_A.weight')!, t.get('toy.lora_B.weight')!]
  const rank = encoder.trainable.get('toy.lora_A.weight')![0]!
  const embed = (ids: Int32Array): number[] => {
    const row = Array.from({ length: DIMENSION }, (_, d) => {
      let sum = 0
      for (const id of ids) {
        sum += w[id * DIMENSION + d]!
        for (let r = 0; r < rank; r++) sum += a[r * VOCABULARY + id]! * b[d * rank + r]!
      }
      return sum
    })
    const length = Math.hypot(...row)
    return row.map((x) => x / length)
  }
  const score = (node: number, question: number): number =>
    embed(sequences[node]!).reduce((sum, x, d) => sum + x * queries[question * DIMENSION + d]!, 0)
  return pairs.reduce(
    (sum, { preferred, other, question, weight }) =>
      sum + weight * Math.log1p(Math.exp(-(score(preferred, question) - score(other, question)) / 0.3)),
    0,
  )
}

describe('the training graphs', () => {
  it('compute the loss and its gradient', async () => {
    const { loss, gradients } = await whole.onePass({ sequences, pairs }, tensors)
    expect(loss).toBeCloseTo(bruteForce(tensors), 4)
    const numeric = new Map(
      [...tensors].map(([name, data]) => [
        name,
        Float32Array.from(data, (_, i) => {
          const moved = (by: number): number => {
            const copy = new Map([...tensors].map(([n, d]) => [n, d.slice()]))
            copy.get(name)![i]! += by
            return bruteForce(copy)
          }
          return (moved(1e-3) - moved(-1e-3)) / 2e-3
        }),
      ]),
    )
    for (const [name, data] of gradients) expect(relativeError(data, numeric.get(name)!)).toBeLessThan(5e-3)
  })

  it('give the same in two passes over parts within the budget', async () => {
    const one = await whole.onePass({ sequences, pairs }, tensors)
    const two = await small.twoPass({ sequences, pairs }, tensors)
    expect(two.loss).toBeCloseTo(one.loss, 5)
    two.differences.forEach((d, p) => {
      expect(d).toBeCloseTo(one.differences[p]!, 5)
    })
    close(two.gradients, one.gradients)
  })

  it('give the same summed over micro-batches', async () => {
    const one = await whole.onePass({ sequences, pairs }, tensors)
    const sum = zerosLike(tensors)
    let loss = 0
    for (let start = 0; start < pairs.length; start += 6) {
      const part = await whole.onePass({ sequences, pairs: pairs.slice(start, start + 6) }, tensors)
      loss += part.loss
      accumulate(sum, part.gradients)
    }
    expect(loss).toBeCloseTo(one.loss, 5)
    close(sum, one.gradients)
  })

  it('are repeatable to the bit', async () => {
    const first = await whole.onePass({ sequences, pairs }, tensors)
    const again = await whole.onePass({ sequences, pairs }, tensors)
    expect(again).toEqual(first)
  })

  it('embed any number of sequences, in their order, with unit length', async () => {
    const all = await whole.embed(sequences, tensors)
    const parts = await small.embed(sequences, tensors)
    expect(relativeError(parts, all)).toBeLessThan(1e-6)
    for (let row = 0; row < sequences.length; row++)
      expect(Math.hypot(...all.subarray(row * DIMENSION, (row + 1) * DIMENSION))).toBeCloseTo(1, 5)
  })
})

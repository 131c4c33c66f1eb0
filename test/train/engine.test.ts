import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { type TokenSequence, textSequence } from '../../src/encoder/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { openEngine } from '../../src/train/engine/engine.ts'
import type { WeightedPair } from '../../src/train/loss/pairwise.ts'
import { accumulate, type Tensors, zerosLike } from '../../src/train/step/optimizer.ts'
import {
  DIMENSION,
  normal,
  relativeError,
  rowsOf,
  toyEncoder,
  toyTensors,
  unitRows,
  VOCABULARY,
} from './toy-encoder.ts'

const QUESTIONS = 3
const random = createRandom('engine')
const sequences = Array.from({ length: 17 }, () =>
  textSequence(Int32Array.from({ length: 1 + random.int(9) }, () => random.int(VOCABULARY))),
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
      queries: rowsOf(queries, DIMENSION),
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
  const embed = ({ ids }: TokenSequence): number[] => {
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

  it('pull a gradient at the embeddings back to the trainable tensors, the same in parts', async () => {
    const slope = normal('slope', sequences.length * DIMENSION)
    const at = (t: Tensors): Promise<number> =>
      whole.embed(sequences, t).then((rows) => rows.reduce((sum, x, i) => sum + x * slope[i]!, 0))
    const gradients = await whole.pullBack(sequences, slope, tensors)
    close(await small.pullBack(sequences, slope, tensors), gradients)
    const moved = (by: number): Tensors => {
      const copy = new Map([...tensors].map(([n, d]) => [n, d.slice()]))
      copy.get('toy.lora_B.weight')![4]! += by
      return copy
    }
    const numeric = ((await at(moved(1e-2))) - (await at(moved(-1e-2)))) / 2e-2
    expect(gradients.get('toy.lora_B.weight')![4]).toBeCloseTo(numeric, 2)
  })

  describe('where embeddings degenerate', () => {
    const ways = ['onePass', 'twoPass'] as const
    const finite = (t: Tensors): boolean => [...t.values()].every((data) => data.every(Number.isFinite))
    const pair = (weight = 1): WeightedPair[] => [{ preferred: 0, other: 1, question: 0, weight }]

    it('take identical ones of different tokens for a difference of zero, with a finite gradient', async () => {
      // The same bag of words in another order.
      const same = [Int32Array.of(1, 2, 3), Int32Array.of(3, 1, 2)].map(textSequence)
      for (const way of ways) {
        const { loss, differences, gradients } = await whole[way]({ sequences: same, pairs: pair() }, tensors)
        expect(loss).toBeCloseTo(Math.log(2), 6)
        expect(differences[0]).toBeCloseTo(0, 6)
        expect(finite(gradients)).toBe(true)
      }
    })

    it('score one of norm zero as 0, with a finite gradient', async () => {
      const empty = [new Int32Array(0), Int32Array.of(3, 1, 2)].map(textSequence)
      for (const way of ways) {
        const { loss, differences, gradients } = await whole[way]({ sequences: empty, pairs: pair() }, tensors)
        const rows = await whole.embed(empty, tensors)
        expect([...rows.subarray(0, DIMENSION)]).toEqual(Array(DIMENSION).fill(0))
        const score = rows.subarray(DIMENSION).reduce((sum, x, i) => sum + x * queries[i]!, 0)
        expect(differences[0]).toBeCloseTo(-score, 5)
        expect(loss).toBeCloseTo(Math.log1p(Math.exp(score / 0.3)), 5)
        expect(finite(gradients)).toBe(true)
      }
    })

    it('give a loss and a gradient that are not finite for tensors that overflow, so that the step is not applied', async () => {
      const huge = new Map([...tensors].map(([name, data]) => [name, data.map(() => 3e38)]))
      for (const way of ways) {
        const { loss, gradients } = await whole[way]({ sequences, pairs: pair() }, huge)
        expect(Number.isFinite(loss) && finite(gradients)).toBe(false)
      }
    })
  })
})

describe('a session that cannot be opened', () => {
  it('may be tried again, and does not keep the engine from closing', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'canopy-engine-'))
    const encoder = toyEncoder()
    const data = Buffer.from((encoder.graph.initializers.get('w') as { data: Float32Array }).data.buffer)
    const external = { file: 'w.bin', offset: 0, length: data.length }
    const w = { dtype: 'float32' as const, shape: [VOCABULARY, DIMENSION], external }
    const graph = { ...encoder.graph, initializers: new Map(encoder.graph.initializers).set('w', w) }
    const engine = await openEngine({
      encoder: { ...encoder, graph, externalFolder: folder },
      ...{ queries: rowsOf(queries, DIMENSION), loss: undefined, tokenBudget: 1000, threads: 1 },
    })
    try {
      await expect(engine.embed(sequences, tensors)).rejects.toThrow(/cannot load the graph/)
      writeFileSync(join(folder, 'w.bin'), data)
      expect(await engine.embed(sequences, tensors)).toEqual(await whole.embed(sequences, tensors))
      rmSync(join(folder, 'w.bin'))
      await expect(engine.pullBack(sequences, new Float32Array(17 * DIMENSION), tensors)).rejects.toThrow()
    } finally {
      await engine.close()
      rmSync(folder, { recursive: true })
    }
  })
})

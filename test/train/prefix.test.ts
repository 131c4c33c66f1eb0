import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import {
  defaultTargets,
  type FeatureStore,
  initialLora,
  linearModules,
  readEncoder,
  selectTargets,
  sharedTokens,
  type TokenSequence,
} from '../../src/encoder/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { assembleBatch, type Instance } from '../../src/train/data/instances.ts'
import { loraEncoder } from '../../src/train/engine/encoder.ts'
import { type Engine, openEngine } from '../../src/train/engine/engine.ts'
import type { WeightedPair } from '../../src/train/loss/pairwise.ts'
import { chooseBudget } from '../../src/train/step/budget.ts'
import type { Tensors } from '../../src/train/step/optimizer.ts'
import { normal, rowsOf, unitRows } from './toy-encoder.ts'

const WIDTH = 64
const QUESTIONS = 2
/** Rows of each picture's features. */
const PICTURES = new Map([
  ['a', 4],
  ['b', 4],
  ['c', 6],
])
/** Merged features and three DeepStack levels. */
const features: FeatureStore = {
  has: (key) => PICTURES.has(key),
  get: (key) => normal(`features/${key}`, 4 * (PICTURES.get(key) as number) * WIDTH).map((x) => 0.3 * x),
}

const random = createRandom('prefix')
const words = (count: number): number[] => Array.from({ length: count }, () => 20 + random.int(200))

/** Two items' nodes: a prompt, a title, ranges of an item's words, and a suffix; one node is there twice. */
function textNodes(): TokenSequence[] {
  const prompt = words(5)
  const suffix = words(2)
  return [0, 1].flatMap(() => {
    const title = words(4)
    const content = words(24)
    const ranges = [
      [0, 24],
      [0, 12],
      [12, 24],
      [0, 6],
      [6, 12],
      [6, 12],
    ]
    return ranges.map(([from, to]) => ({
      ids: Int32Array.from([...prompt, ...title, ...content.slice(from, to), ...suffix]),
    }))
  })
}

/** Nodes that see one, two or three pictures after a prompt; a picture's tokens have positions on three axes. */
function pictureNodes(): TokenSequence[] {
  const prompt = words(3)
  const suffix = words(3)
  return [['a'], ['a', 'b'], ['a', 'c'], ['b', 'a'], ['a', 'b', 'c']].map((keys) => {
    const ids = [...prompt]
    const places = prompt.map((_, i) => [i, i, i])
    let next = ids.length
    const visuals = keys.map((key) => {
      const length = PICTURES.get(key) as number
      const at = ids.length
      for (let i = 0; i < length; i++) {
        ids.push(486)
        places.push([next, next + (i >> 1), next + (i % 2)])
      }
      next += length / 2
      return { at, length, key }
    })
    for (const id of suffix) {
      ids.push(id)
      places.push([next, next, next])
      next++
    }
    const positions = Int32Array.from([0, 1, 2].flatMap((axis) => places.map((place) => place[axis] as number)))
    return { ids: Int32Array.from(ids), positions, visuals }
  })
}

const largest = (a: ArrayLike<number>, b: ArrayLike<number>): number =>
  Array.from(a).reduce((worst, x, i) => Math.max(worst, Math.abs(x - (b[i] as number))), 0)

const nodes: [string, TokenSequence[]][] = [
  ['qwen3', textNodes()],
  ['qwen3-vl', [...pictureNodes(), ...textNodes()]],
]

describe.each(nodes)('sharing prefixes, %s', async (name, sequences) => {
  const profile = await readEncoder(join(import.meta.dirname, '..', 'fixtures', name))
  const targets = selectTargets(linearModules(profile), defaultTargets(profile)).map((module) => ({
    ...module,
    rank: 4,
    alpha: 8,
  }))
  // B is zero at the start of training, and A has no gradient then
  const tensors: Tensors = new Map(
    [...initialLora(targets, 'lora')].map(([key, data]) => [key, normal(key, data.length).map((x) => 0.1 * x)]),
  )
  const pairs: WeightedPair[] = sequences.map((_, n) => ({
    preferred: n,
    other: (n * 5 + 1) % sequences.length,
    question: n % QUESTIONS,
    weight: 1 / sequences.length,
  }))
  const queries = rowsOf(unitRows(normal('questions', QUESTIONS * WIDTH), WIDTH), WIDTH)
  const engines: Engine[] = []
  const open = async (share: boolean, tokenBudget: number): Promise<Engine> => {
    const encoder = await loraEncoder(profile, targets, 0, { share, visuals: { features } })
    const loss = { loss: 'logistic', tau: 0.1, margin: 0.1 } as const
    const engine = await openEngine({ encoder, queries, loss, tokenBudget, threads: 1 })
    engines.push(engine)
    return engine
  }
  const shared = await open(true, 4096)
  const apart = await open(false, 4096)
  const small = await open(true, 64)
  afterAll(async () => {
    for (const engine of engines) await engine.close()
  })

  it('computes far fewer tokens', async () => {
    const { computed, total } = sharedTokens(sequences)
    expect(computed).toBeLessThan(0.7 * total)
    const encoder = await loraEncoder(profile, targets, 0, { visuals: { features } })
    // so narrow an encoder takes several short rows, which repeat prefixes
    expect(encoder.computed?.(sequences)).toBeGreaterThanOrEqual(computed)
    expect(encoder.computed?.(sequences)).toBeLessThan(0.8 * total)
  })

  it('leaves embeddings as they are, in one run or several', async () => {
    const expected = await apart.embed(sequences, tensors)
    expect(largest(await shared.embed(sequences, tensors), expected)).toBeLessThan(1e-5)
    expect(largest(await small.embed(sequences, tensors), expected)).toBeLessThan(1e-5)
    expect(largest(expected.subarray(0, WIDTH), expected.subarray(WIDTH, 2 * WIDTH))).toBeGreaterThan(0.01)
  })

  it('adds up the gradients of branches', async () => {
    const batch = { sequences, pairs }
    const expected = await apart.onePass(batch, tensors)
    for (const result of [await shared.onePass(batch, tensors), await small.twoPass(batch, tensors)]) {
      expect(result.loss).toBeCloseTo(expected.loss, 5)
      expect(largest(result.differences, expected.differences)).toBeLessThan(1e-5)
      for (const [key, gradient] of expected.gradients) {
        const size = gradient.reduce((most, x) => Math.max(most, Math.abs(x)), 0)
        expect(size).toBeGreaterThan(0)
        expect(largest(result.gradients.get(key) as Float32Array, gradient) / Math.max(1, size)).toBeLessThan(1e-5)
      }
    }
  })
})

describe('assembleBatch', () => {
  it('fills micro-batches by the tokens that are computed', async () => {
    const profile = await readEncoder(join(import.meta.dirname, '..', 'fixtures', 'qwen3'))
    const nodes = Array.from({ length: 4 }, textNodes).flatMap((all) => [all.slice(0, 6), all.slice(6)])
    const instances = nodes.map((sequences, n): Instance => {
      const pair = { preferred: 0, other: 1, kind: 'gold-child' as const, number: 0 }
      return {
        item: `item ${n}`,
        preferences: { question: '', item: `item ${n}`, nodes: [], pairs: [] },
        ...{ places: [], question: 0, benchmark: 0, sequences, nodes: sequences.length, truncated: 0 },
        decisions: [{ learnable: [pair], equal: [] }],
      }
    })
    const weights = { 'fully-gold': 1, 'gold-child': 1, 'non-gold-child': 1, 'sibling-separation': 1 }
    const settings = { kindWeights: weights, weighting: 'item' as const, benchmarkWeights: {} }
    const [shared, apart] = await Promise.all(
      [true, false].map(async (share) => {
        const { tokens, computed } = await loraEncoder(profile, [], 0, { share })
        const batch = assembleBatch(instances, settings, [''], tokens, 400, 200, computed)
        for (const { sequences } of batch.micro) expect(tokens(sequences)).toBeLessThanOrEqual(200)
        return batch
      }),
    )
    expect(shared?.micro.length).toBeLessThan(0.8 * (apart?.micro.length as number))
    expect(shared?.tokens).toBe(apart?.tokens)
    expect(shared?.computedTokens).toBeLessThan(0.8 * (shared?.tokens as number))
    expect(apart?.computedTokens).toBeUndefined()
  })
})

describe('chooseBudget', () => {
  it('tries budgets over sequences of which next to nothing is shared', async () => {
    const tried: number[] = []
    const plenty = { used: async () => 1, available: async () => 2 ** 40 }
    await chooseBudget({
      run: async (all) => tried.push(sharedTokens(all).computed),
      longest: 100,
      most: 4096,
      memory: plenty,
      clock: () => tried.reduce((sum, tokens) => sum + tokens, 0),
    })
    for (const [i, tokens] of [1024, 2048, 4096].entries()) expect(tried[2 * i]).toBeGreaterThan(0.95 * tokens)
  })
})

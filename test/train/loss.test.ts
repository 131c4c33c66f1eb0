import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import { GraphBuilder, openSession, type Tensor } from '../../src/onnx/index.ts'
import { addLoss, lossValues, pairLoss, pairWeights } from '../../src/train/loss/pairwise.ts'
import { normal, relativeError, unitRows } from './toy-encoder.ts'

const group = fc.record({
  omega: fc.oneof(fc.constant(0), fc.double({ min: 0.01, max: 5, noNaN: true })),
  pairs: fc.array(fc.constantFrom(...([0, 0.5, 1, 3] as number[])), { maxLength: 6 }),
})

describe('the shares of pairs in the loss', () => {
  it('sum up to L = Σ ω [Σ w ℓ / Σ w] / Σ ω', () => {
    fc.assert(
      fc.property(fc.array(group, { maxLength: 8 }), fc.nat(), (groups, salt) => {
        const loss = (g: number, p: number): number => Math.sin(salt + 17 * g + p) + 2
        let above = 0
        let below = 0
        groups.forEach(({ omega, pairs }, g) => {
          const weights = pairs.reduce((a, b) => a + b, 0)
          if (weights === 0) return
          above += (omega * pairs.reduce((sum, w, p) => sum + w * loss(g, p), 0)) / weights
          below += omega
        })
        const shares = pairWeights(groups)
        const total = shares.flatMap((row, g) => row.map((share, p) => share * loss(g, p))).reduce((a, b) => a + b, 0)
        expect(total).toBeCloseTo(below > 0 ? above / below : 0, 9)
      }),
    )
  })

  it('give every group the same part, however many pairs it has', () => {
    const shares = pairWeights([
      { omega: 1, pairs: [1, 1, 1, 1] },
      { omega: 1, pairs: [1] },
    ])
    expect(shares).toEqual([[0.125, 0.125, 0.125, 0.125], [0.5]])
  })
})

for (const loss of ['logistic', 'hinge'] as const) {
  describe(`the ${loss} loss in the graph`, () => {
    const settings = { loss, tau: 0.2, margin: 0.3 }
    const [nodes, dimension, pairs] = [5, 4, 7]
    const embeddings = unitRows(normal('embeddings', nodes * dimension), dimension)
    const queries = unitRows(normal('queries', pairs * dimension), dimension)
    const weights = Float32Array.from({ length: pairs }, (_, p) => 0.05 + p / 10)
    // The last pair is one of a node with itself.
    const ends = Array.from(
      { length: pairs },
      (_, p) => [p % nodes, p === pairs - 1 ? p % nodes : (3 * p + 1) % nodes] as const,
    )
    const matrix = new Float32Array(pairs * nodes)
    ends.forEach(([preferred, other], p) => {
      matrix[p * nodes + preferred]! += 1
      matrix[p * nodes + other]! -= 1
    })
    const dot = (e: Float32Array, node: number, p: number): number =>
      Array.from({ length: dimension }, (_, i) => e[node * dimension + i]! * queries[p * dimension + i]!).reduce(
        (a, b) => a + b,
      )
    const difference = (e: Float32Array, p: number): number => dot(e, ends[p]![0], p) - dot(e, ends[p]![1], p)
    const bruteForce = (e: Float32Array): number =>
      ends.reduce((sum, _, p) => {
        const d = difference(e, p)
        return sum + weights[p]! * (loss === 'hinge' ? Math.max(0, 0.3 - d) : Math.log(1 + Math.exp(-d / 0.2)))
      }, 0)
    const float = (data: Float32Array, shape: number[]): Tensor => ({ dtype: 'float32', shape, data })

    it('agrees with brute force in value, differences and gradient', async () => {
      const g = new GraphBuilder()
      addLoss(g, g.input('embeddings', 'float32', ['nodes', dimension]), settings)
      const { graph, gradients } = addGradients(g.build(), { [lossValues.loss]: 1 }, ['embeddings'])
      const gradient = gradients.get('embeddings')!
      const session = await openSession({ ...graph, outputs: [...graph.outputs, gradient] })
      const out = await session.run({
        embeddings: float(embeddings, [nodes, dimension]),
        [lossValues.pairs]: float(matrix, [pairs, nodes]),
        [lossValues.queries]: float(queries, [pairs, dimension]),
        [lossValues.weights]: float(weights, [pairs]),
      })
      await session.release()
      expect(Number(out[lossValues.loss]!.data[0])).toBeCloseTo(bruteForce(embeddings), 5)
      const d = out[lossValues.differences]!.data as Float32Array
      d.forEach((x, p) => {
        expect(x).toBeCloseTo(difference(embeddings, p), 5)
      })
      expect(d[pairs - 1]).toBe(0)
      const numeric = Float32Array.from(embeddings, (_, i) => {
        const moved = (by: number): number => {
          const e = Float32Array.from(embeddings)
          e[i]! += by
          return bruteForce(e)
        }
        return (moved(1e-3) - moved(-1e-3)) / 2e-3
      })
      expect(relativeError(out[gradient]!.data as Float32Array, numeric)).toBeLessThan(2e-3)
    })

    it('is the one outside the graph', () => {
      for (const d of [-3, -0.1, 0, 0.1, 0.3, 4])
        expect(pairLoss(d, settings)).toBeCloseTo(
          loss === 'hinge' ? Math.max(0, 0.3 - d) : Math.log(1 + Math.exp(-d / 0.2)),
          9,
        )
      expect(Number.isFinite(pairLoss(-2, { ...settings, tau: 1e-3 }))).toBe(true)
    })
  })
}

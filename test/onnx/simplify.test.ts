import { describe, expect, it } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import { type Graph, GraphBuilder, openSession, prune, simplify } from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'

const width = 8
const operators = (graph: Graph): string[] => graph.nodes.map(({ op }) => op)

/** A graph x [3, 5, width] -> y, and the same simplified. */
function both(make: (g: GraphBuilder, x: string) => string): [Graph, Graph] {
  const g = new GraphBuilder()
  g.output(make(g, g.input('x', 'float32', [3, 5, width])), 'y')
  return [g.build(), simplify(g.build())]
}

/** y and the gradient of its sum at x. */
async function run(graph: Graph): Promise<Float32Array[]> {
  const { graph: whole, gradients } = addGradients(graph, { y: 1 }, ['x'])
  const outputs = ['y', gradients.get('x') as string]
  const session = await openSession(prune({ ...whole, outputs }), { threads: 1 })
  const random = createRandom('simplify')
  const data = Float32Array.from({ length: 3 * 5 * width }, () => random.normal())
  const found = await session.run({ x: { dtype: 'float32', shape: [3, 5, width], data } })
  await session.release()
  return outputs.map((name) => found[name]?.data as Float32Array)
}

async function expectEqual([graph, simple]: [Graph, Graph]): Promise<void> {
  const [before, after] = [await run(graph), await run(simple)]
  before.forEach((values, i) => {
    for (const [k, value] of values.entries()) expect(after[i]?.[k]).toBeCloseTo(value, 5)
  })
}

const vector = (g: GraphBuilder, name: string, from: number): string =>
  g.initializer(name, {
    dtype: 'float32',
    shape: [width],
    data: Float32Array.from({ length: width }, (_, i) => from + i / 10),
  })

describe('simplify', () => {
  const erf = (g: GraphBuilder, x: string): string => g.erf(g.div(x, g.scalar(Math.SQRT2)))
  it.each<[string, (g: GraphBuilder, x: string) => string]>([
    ['x (1 + erf) ½', (g, x) => g.mul(g.mul(x, g.add(erf(g, x), g.scalar(1))), g.scalar(0.5))],
    ['(½ x) (1 + erf)', (g, x) => g.mul(g.mul(x, g.scalar(0.5)), g.add(g.scalar(1), erf(g, x)))],
    [
      'x (½ (erf(x · 0.7071) + 1))',
      (g, x) => g.mul(x, g.mul(g.add(g.erf(g.mul(x, g.scalar(Math.SQRT1_2))), g.scalar(1)), g.scalar(0.5))),
    ],
    ['x (1 + erf) / 2', (g, x) => g.div(g.mul(g.add(erf(g, x), g.scalar(1)), x), g.scalar(2))],
  ])('writes Gelu for %s', async (_, make) => {
    const graphs = both(make)
    expect(operators(graphs[1])).toEqual(['Gelu', 'Identity'])
    await expectEqual(graphs)
  })

  it('leaves what only looks like Gelu', () => {
    const tail = (g: GraphBuilder, x: string, e: string) => g.mul(g.mul(x, g.add(e, g.scalar(1))), g.scalar(0.5))
    for (const make of [
      (g: GraphBuilder, x: string) => tail(g, x, g.erf(g.div(x, g.scalar(1.5)))),
      (g: GraphBuilder, x: string) => tail(g, g.neg(x), erf(g, x)),
      (g: GraphBuilder, x: string) => {
        const e = erf(g, x)
        return g.add(tail(g, x, e), e)
      },
    ]) {
      const [graph, simple] = both(make)
      expect(operators(simple)).toEqual(operators(graph))
    }
  })

  it.each([true, false])(
    'writes LayerNormalization for a mean and a variance (differences shared: %s)',
    async (shared) => {
      const graphs = both((g, x) => {
        const centre = () => g.sub(x, g.reduceMean(x, [-1], true))
        const d = centre()
        const deviation = g.sqrt(g.add(g.reduceMean(g.pow(d, g.scalar(2)), [-1], true), g.scalar(1e-5)))
        const scaled = g.mul(g.div(shared ? d : centre(), deviation), vector(g, 'gamma', 0.5))
        return g.add(scaled, vector(g, 'beta', -0.3))
      })
      expect(operators(graphs[1])).toEqual(['LayerNormalization', 'Identity'])
      await expectEqual(graphs)
    },
  )

  it('leaves a normalisation over another axis', () => {
    const [graph, simple] = both((g, x) => {
      const d = g.sub(x, g.reduceMean(x, [1], true))
      const deviation = g.sqrt(g.add(g.reduceMean(g.mul(d, d), [1], true), g.scalar(1e-5)))
      return g.add(g.mul(g.div(d, deviation), vector(g, 'gamma', 0.5)), vector(g, 'beta', -0.3))
    })
    expect(operators(simple)).toEqual(operators(graph))
  })

  it('leaves a normalisation whose scale or shift is one number for all columns', () => {
    const one = (g: GraphBuilder, name: string) =>
      g.initializer(name, { dtype: 'float32', shape: [1], data: Float32Array.of(2) })
    const [graph, simple] = both((g, x) => {
      const d = g.sub(x, g.reduceMean(x, [-1], true))
      const deviation = g.sqrt(g.add(g.reduceMean(g.mul(d, d), [-1], true), g.scalar(1e-5)))
      return g.add(g.mul(g.div(d, deviation), one(g, 'gamma')), one(g, 'beta'))
    })
    expect(operators(simple)).toEqual(operators(graph))
  })

  it('leaves numbers that add axes', () => {
    const wide = (g: GraphBuilder, n: number) => g.constant([n], 'float32', [1, 1, 1, 1])
    for (const make of [
      (g: GraphBuilder, x: string) => g.mul(g.mul(x, g.add(erf(g, x), g.scalar(1))), wide(g, 0.5)),
      (g: GraphBuilder, x: string) => g.mul(g.matmul(x, g.transpose(x, [0, 2, 1])), wide(g, 3)),
    ]) {
      const [graph, simple] = both(make)
      expect(operators(simple)).toEqual(operators(graph))
    }
  })

  it('puts a number that scales a product of batches into the product', async () => {
    const graphs = both((g, x) => g.div(g.matmul(x, g.transpose(x, [0, 2, 1])), g.scalar(3)))
    expect(operators(graphs[1])).toEqual(['Transpose', 'FusedMatMul', 'Identity'])
    await expectEqual(graphs)
    const [kept] = both((g, x) => {
      const product = g.matmul(x, g.transpose(x, [0, 2, 1]))
      return g.add(product, g.mul(product, g.scalar(3)))
    })
    expect(operators(simplify(kept))).toContain('MatMul')
  })
})

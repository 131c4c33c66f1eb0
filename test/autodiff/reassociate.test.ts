import { describe, expect, it } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import { type Graph, GraphBuilder, openSession, prune, type Tensor } from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'

const [tokens, inputs, outputs] = [40, 12, 9]

/** y = x (W + 2 B A)ᵀ, or x with the update beside it, and the gradients at A and B for a gradient `dy` at y. */
function lowRank(rank: number, form: 'merged' | 'beside', wrt: string[]) {
  const g = new GraphBuilder()
  const x = g.input('x', 'float32', ['tokens', inputs])
  const w = g.input('w', 'float32', [outputs, inputs])
  const a = g.input('a', 'float32', [rank, inputs])
  const b = g.input('b', 'float32', [outputs, rank])
  const dy = g.input('dy', 'float32', ['tokens', outputs])
  if (form === 'merged') g.output(g.gemm(x, g.gemm(b, a, w, { alpha: 2, name: 'update' }), null, { transB: true }), 'y')
  else {
    const plain = g.gemm(x, w, null, { transB: true })
    g.output(g.gemm(g.gemm(x, a, null, { transB: true }), b, plain, { transB: true, alpha: 2 }), 'y')
  }
  const { graph, gradients } = addGradients(g.build(), { y: dy }, wrt)
  return prune({ ...graph, outputs: wrt.map((name) => gradients.get(name) as string) })
}

async function run(graph: Graph, rank: number): Promise<Float32Array[]> {
  const random = createRandom('reassociate')
  const shapes = {
    x: [tokens, inputs],
    w: [outputs, inputs],
    a: [rank, inputs],
    b: [outputs, rank],
    dy: [tokens, outputs],
  }
  const feeds: Record<string, Tensor> = Object.fromEntries(
    Object.entries(shapes).map(([name, shape]) => {
      const data = Float32Array.from({ length: shape[0]! * shape[1]! }, () => random.normal())
      return [name, { dtype: 'float32' as const, shape, data }]
    }),
  )
  const session = await openSession(graph, { threads: 1 })
  const found = await session.run(Object.fromEntries([...session.inputs.keys()].map((name) => [name, feeds[name]!])))
  await session.release()
  return graph.outputs.map((name) => found[name]!.data as Float32Array)
}

/** Gemms that sum over tokens into a matrix as large as the weight. */
const weightGradients = (graph: Graph): number =>
  graph.nodes.filter(({ outputs: [y] }) => {
    const shape = graph.types.get(y as string)?.shape ?? []
    return shape[0] === outputs && shape[1] === inputs && !(y as string).startsWith('update')
  }).length

describe('the gradient of a low-rank update that is added to its weight', () => {
  it('takes no product of the size of the weight over all tokens', async () => {
    const merged = lowRank(2, 'merged', ['a', 'b'])
    expect(weightGradients(merged)).toBe(0)
    const [found, expected] = [await run(merged, 2), await run(lowRank(2, 'beside', ['a', 'b']), 2)]
    found.forEach((gradient, i) => {
      for (const [k, value] of gradient.entries()) expect(value).toBeCloseTo(expected[i]![k]!, 4)
    })
  })

  it('goes through the gradient of the weight where that is cheaper, or asked for', async () => {
    expect(weightGradients(lowRank(8, 'merged', ['a', 'b']))).toBe(1)
    const asked = lowRank(2, 'merged', ['a', 'b', 'w'])
    expect(weightGradients(asked)).toBe(1)
    const [found, expected] = [await run(asked, 2), await run(lowRank(2, 'beside', ['a', 'b', 'w']), 2)]
    found.forEach((gradient, i) => {
      for (const [k, value] of gradient.entries()) expect(value).toBeCloseTo(expected[i]![k]!, 4)
    })
  })
})

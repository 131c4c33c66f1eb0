import { describe, expect, it } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import { checkGraph, type Graph, GraphBuilder, openSession, prune, type Tensor } from '../../src/onnx/index.ts'
import { compareGradients } from './finite-differences.ts'

const numbers = (n: number, seed = 1) => Array.from({ length: n }, (_, i) => Math.sin(1.7 * i + seed))
const f32 = (shape: number[], data: number[]): Tensor => ({ dtype: 'float32', shape, data: Float32Array.from(data) })
const f64 = (shape: number[], data: number[]): Tensor => ({ dtype: 'float64', shape, data: Float64Array.from(data) })

/** Runs the gradient graph and returns the gradients by the name of the value. */
async function gradientsOf(
  graph: Graph,
  seeds: Record<string, string | 1>,
  wrt: string[],
  feeds: Record<string, Tensor>,
): Promise<Record<string, number[]>> {
  const { graph: whole, gradients } = addGradients(graph, seeds, wrt)
  checkGraph(whole)
  const session = await openSession(
    prune({ ...whole, outputs: [...new Set(gradients.values())] }, { unusedInputs: false }),
    { threads: 1 },
  )
  const result = await session.run(feeds)
  await session.release()
  return Object.fromEntries(
    [...gradients].map(([value, gradient]) => [value, Array.from(result[gradient]!.data as Float64Array)]),
  )
}

const operators = (graph: Graph) => graph.nodes.map((node) => node.op)

describe('the reverse walk', () => {
  it('names the operator and the node when a rule is missing', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [3, 3])
    g.output(g.one('Det', [x], { name: 'volume', types: [{ dtype: 'float32', shape: [] }] }))
    const [out] = g.build().outputs
    expect(() => addGradients(g.build(), { [out!]: 1 }, ['x'])).toThrow('No gradient for: Det (node "volume")')
  })

  it('needs no rule for an operator off the path', () => {
    const g = new GraphBuilder()
    const [x, frozen] = [g.input('x', 'float32', [3]), g.input('frozen', 'float32', [3])]
    const y = g.mul(x, g.one('CumSum', [frozen, g.scalar(0, 'int64')]))
    expect([...addGradients(g.build(), { [y]: 1 }, ['x']).gradients.keys()]).toEqual(['x'])
  })

  it('says that a gradient through a second output has no rule', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2, 3])
    const [, mean] = g.node('LayerNormalization', [x, g.constant([1, 1, 1], 'float32')], { outputs: 3, name: 'norm' })
    expect(() => addGradients(g.build(), { [mean!]: 1 }, ['x'])).toThrow(
      'No gradient for: output 1 of LayerNormalization (node "norm")',
    )
  })

  it('computes no gradient of a frozen matrix', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [5, 4])
    const [w1, w2] = [g.input('w1', 'float32', [4, 4]), g.input('w2', 'float32', [4, 4])]
    const y = g.gemm(g.tanh(g.gemm(x, w1)), w2)
    const before = operators(g.build()).filter((op) => op === 'Gemm').length
    const { graph, gradients } = addGradients(g.build(), { [y]: 1 }, ['w1'])
    // d tanh = dy·w2ᵀ and dw1 = xᵀ·d: neither dw2 nor dx
    expect(operators(graph).filter((op) => op === 'Gemm').length - before).toBe(2)
    expect([...gradients.keys()]).toEqual(['w1'])
    expect(graph.types.get(gradients.get('w1')!)).toEqual({ dtype: 'float32', shape: [4, 4] })
  })

  it('leaves the graph it is given as it was', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2, 3])
    const y = g.layerNorm(x, g.constant([1, 2, 3], 'float32'), g.constant([0, 0, 0], 'float32'), 1e-5)
    const graph = g.build()
    const copy = structuredClone(graph)
    const added = addGradients(graph, { [y]: 1 }, ['x'])
    expect(graph).toEqual(copy)
    expect(added.graph.nodes.length).toBeGreaterThan(graph.nodes.length)
    expect(added.graph.outputs).toEqual(graph.outputs)
  })

  it('has no entry for a value without a path to a seed, nor for integers', () => {
    const g = new GraphBuilder()
    const [x, other] = [g.input('x', 'float32', [3]), g.input('other', 'float32', [3])]
    const index = g.input('index', 'int64', [2])
    const y = g.gather(x, index)
    g.output(g.exp(other))
    expect([...addGradients(g.build(), { [y]: 1 }, ['x', 'other', 'index']).gradients.keys()]).toEqual(['x'])
  })

  it('stops at steps and at integers', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [3])
    const y = g.add(g.one('Floor', [x]), g.cast(g.cast(x, 'int32'), 'float32'))
    expect(addGradients(g.build(), { [y]: 1 }, ['x']).gradients.size).toBe(0)
  })

  it('refuses a value that the graph does not have', () => {
    const g = new GraphBuilder()
    const y = g.exp(g.input('x', 'float32', [3]))
    expect(() => addGradients(g.build(), { [y]: 1 }, ['z'])).toThrow('The graph has no value "z"')
  })

  it('adds up over the uses of a value', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float64', [3])
    const y = g.add(g.mul(x, x), g.add(x, g.mul(g.exp(x), x)))
    const at = [0.5, -1, 2]
    const { x: dx } = await gradientsOf(g.build(), { [y]: 1 }, ['x'], { x: f64([3], at) })
    at.forEach((v, i) => {
      expect(dx![i]).toBeCloseTo(2 * v + 1 + Math.exp(v) * (1 + v), 12)
    })
  })

  it('gives the derivative of x·x', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float64', [2])
    const { x: dx } = await gradientsOf(g.build(), { [g.mul(x, x)]: 1 }, ['x'], { x: f64([2], [3, -4]) })
    expect(dx).toEqual([6, -8])
  })

  it('takes the gradient at an output from a value of the graph, and several seeds', async () => {
    const g = new GraphBuilder()
    const [x, dy] = [g.input('x', 'float64', ['n']), g.input('dy', 'float64', ['n'])]
    const [square, double] = [g.mul(x, x), g.add(x, x)]
    const { x: dx } = await gradientsOf(g.build(), { [square]: dy, [double]: 1 }, ['x'], {
      x: f64([2], [3, -4]),
      dy: f64([2], [10, 100]),
    })
    expect(dx).toEqual([62, -798])
  })

  it('differentiates with respect to a value inside the graph', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float64', [2])
    const inner = g.exp(x)
    const y = g.mul(inner, inner)
    const found = await gradientsOf(g.build(), { [y]: 1 }, ['x', inner], { x: f64([2], [0, 1]) })
    expect(found[inner]![1]).toBeCloseTo(2 * Math.E, 12)
    expect(found.x![1]).toBeCloseTo(2 * Math.E ** 2, 12)
  })

  it('is finite at a zero vector, through ReduceL2 and through a square root', async () => {
    for (const norm of [
      (g: GraphBuilder, x: string) =>
        g.one('ReduceL2', [x], { attributes: { axes: { ints: [1] }, keepdims: { i: 1 } } }),
      (g: GraphBuilder, x: string) => g.sqrt(g.reduceSum(g.mul(x, x), [1], true)),
    ]) {
      const g = new GraphBuilder()
      const x = g.input('x', 'float32', [2, 3])
      const y = g.div(x, g.max(norm(g, x), g.scalar(1e-12)))
      const { x: dx } = await gradientsOf(g.build(), { [y]: 1 }, ['x'], { x: f32([2, 3], [0, 0, 0, 3, 0, 4]) })
      expect(dx!.every(Number.isFinite)).toBe(true)
      // x/‖x‖ at (3, 0, 4), seed (1, 1, 1): (1 − 0.6·1.4, 1, 1 − 0.8·1.4)/5
      for (const [i, v] of [0.032, 0.2, -0.024].entries()) expect(dx![3 + i]).toBeCloseTo(v, 6)
    }
  })

  it('gives identical inputs a zero gradient of their distance, not NaN', async () => {
    const g = new GraphBuilder()
    const [a, b] = [g.input('a', 'float32', [3]), g.input('b', 'float32', [3])]
    const distance = g.one('ReduceL2', [g.sub(a, b)], { attributes: { keepdims: { i: 0 } } })
    const same = f32([3], [1, 2, 3])
    const { a: da, b: db } = await gradientsOf(g.build(), { [distance]: 1 }, ['a', 'b'], { a: same, b: same })
    expect([...da!, ...db!].every((v) => v === 0)).toBe(true)
  })

  it('splits ties of ReduceMax evenly and gives ties of Max to the first', async () => {
    const g = new GraphBuilder()
    const [x, z] = [g.input('x', 'float64', [4]), g.input('z', 'float64', [4])]
    const reduced = g.reduceMax(x, [0])
    const { x: dx } = await gradientsOf(g.build(), { [reduced]: 1 }, ['x'], { x: f64([4], [2, 5, 5, 1]) })
    expect(dx).toEqual([0, 0.5, 0.5, 0])
    const larger = g.max(x, z)
    const found = await gradientsOf(g.build(), { [larger]: 1 }, ['x', 'z'], {
      x: f64([4], [2, 5, 5, 1]),
      z: f64([4], [2, 6, 4, 1]),
    })
    expect(found.x).toEqual([1, 0, 1, 1])
    expect(found.z).toEqual([0, 1, 0, 0])
  })

  it('keeps the softplus of large numbers finite', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [3])
    const { x: dx } = await gradientsOf(g.build(), { [g.softplus(x)]: 1 }, ['x'], { x: f32([3], [-200, 0, 200]) })
    expect(dx![0]).toBeCloseTo(0, 6)
    expect(dx![1]).toBeCloseTo(0.5, 6)
    expect(dx![2]).toBeCloseTo(1, 6)
  })

  it('keeps the derivative of GELU finite and right far from 0', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [5])
    const y = g.one('Gelu', [x], { domain: 'com.microsoft' })
    const { x: dx } = await gradientsOf(g.build(), { [y]: 1 }, ['x'], { x: f32([5], [-100, -20, 0, 20, 100]) })
    for (const [i, v] of [0, 0, 0.5, 1, 1].entries()) expect(dx![i]).toBeCloseTo(v, 6)
  })
})

describe('a transformer layer with low-rank adapters', () => {
  const [rows, length, heads, width, rank] = [2, 3, 2, 2, 2]
  const hidden = heads * width

  const layer = (g: GraphBuilder, x: string, lora: string[]) => {
    const frozen = (shape: number[], seed: number) =>
      g.constant(
        numbers(
          shape.reduce((a, b) => a * b),
          seed,
        ),
        'float32',
        shape,
      )
    const linear = (input: string, k: number) => {
      const y = g.gemm(input, frozen([hidden, hidden], k), frozen([hidden], k + 9), { transB: true })
      const down = g.gemm(input, lora[2 * k] as string, null, { transB: true })
      return g.gemm(down, lora[2 * k + 1] as string, y, { transB: true, alpha: 2 })
    }
    const split = (v: string) => g.transpose(g.reshape(v, ['rows', 'length', heads, width]), [0, 2, 1, 3])
    const [q, k, v] = [0, 1, 2].map((i) => split(linear(x, i))) as [string, string, string]
    const scores = g.fusedMatmul(q, k, { transB: true, alpha: 1 / Math.sqrt(width) })
    const context = g.transpose(g.matmul(g.softmax(scores), v), [0, 2, 1, 3])
    const attended = g.add(g.reshape(context, ['tokens', hidden]), x)
    const normal = g.layerNorm(attended, frozen([hidden], 5), frozen([hidden], 6), 0.1)
    return g.add(g.one('Gelu', [linear(normal, 3)], { domain: 'com.microsoft' }), normal)
  }
  const build = (g: GraphBuilder, [ids, x, ...lora]: string[]) => {
    const like = g.reshape(ids!, ['tokens'])
    return layer(g, layer(g, g.add(x!, g.unsqueeze(g.cast(like, 'float32'), [1])), lora), lora)
  }
  const adapters = [0, 1, 2, 3].flatMap((k) => [
    { shape: [rank, hidden], values: numbers(rank * hidden, 20 + k) },
    { shape: [hidden, rank], values: numbers(rank * hidden, 30 + k) },
  ])

  it('agrees with finite differences in every adapter and in its input', async () => {
    const comparisons = await compareGradients(
      (g, x) => build(g, x),
      [
        { shape: [rows, length], values: numbers(rows * length).map(Math.round), dtype: 'int32' },
        { shape: [rows * length, hidden], values: numbers(rows * length * hidden, 3) },
        ...adapters,
      ],
      {
        dtype: 'float32',
        shapes: [
          ['rows', 'length'],
          ['tokens', hidden],
        ],
        step: 0.02,
      },
    )
    expect(comparisons.length).toBe(9)
    for (const c of comparisons) expect(c.error, `input ${c.input}`).toBeLessThan(3e-3)
  })

  it('adds the adapters’ part to a gradient inside a Gemm', () => {
    const g = new GraphBuilder()
    const ids = g.input('ids', 'int32', ['rows', 'length'])
    const x = g.input('x', 'float32', ['tokens', hidden])
    const lora = adapters.map(({ shape }, i) => g.input(`lora${i}`, 'float32', shape))
    const y = build(g, [ids, x, ...lora])
    const forward = g.build()
    const { graph, gradients } = addGradients(forward, { [y]: 1 }, ['x', ...lora])
    const inner = graph.nodes.slice(forward.nodes.length)
    const thin = inner.filter((n) => n.op === 'Gemm' && graph.types.get(n.inputs[0]!)!.shape[1] === rank)
    // two layers of four adapted maps: each sends one thin product to its input, none into an Add of its own
    const sums = thin.filter((n) => n.inputs.length === 3)
    expect(sums.length).toBe(8)
    expect(gradients.size).toBe(9)
    checkGraph(graph)
  })
})

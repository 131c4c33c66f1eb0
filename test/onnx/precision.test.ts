import { describe, expect, it } from 'vitest'
import {
  bfloat16ToFloat32,
  checkGraph,
  float32ToBfloat16,
  type Graph,
  GraphBuilder,
  inHalfPrecision,
  openSession,
  type Tensor,
} from '../../src/onnx/index.ts'

const floats = (shape: number[], ...values: number[]): Tensor => ({
  dtype: 'float32',
  shape,
  data: Float32Array.from(values),
})

async function run(graph: Graph, feeds: Record<string, Tensor>): Promise<Float32Array> {
  checkGraph(graph)
  const session = await openSession(graph, { threads: 1 })
  try {
    return (await session.run(feeds)).y!.data as Float32Array
  } finally {
    await session.release()
  }
}

/** Types of the first input and of the output of the nodes of one operator, in order. */
const typesOf = (graph: Graph, op: string): string[] =>
  graph.nodes
    .filter((node) => node.op === op)
    .map(({ inputs, outputs }) => [inputs[0]!, outputs[0]!].map((name) => graph.types.get(name)!.dtype).join(' -> '))

/**
 * Layers of x + w·norm(x), normalised at the end: the stream of residuals of a pre-norm encoder.
 *
 * @param rounded what is done to every value of the stream
 */
function residuals(layers: number, rounded = (_: GraphBuilder, x: string) => x): Graph {
  const g = new GraphBuilder()
  const w = g.input('w', 'float32', [2, 2])
  const norm = (x: string) => g.layerNorm(x, g.constant([1, 1], 'float32'), g.constant([0, 0], 'float32'), 1e-5)
  let x = g.gather(g.initializer('table', floats([2, 2], 40000, -40000, 1, 2)), g.input('ids', 'int64', ['tokens']))
  for (let i = 0; i < layers; i++) x = rounded(g, g.add(x, g.matmul(norm(x), w)))
  g.output(norm(x), 'y')
  return g.build()
}
const residualFeeds = {
  w: floats([2, 2], 20000, 0, 0, 20000),
  ids: { dtype: 'int64', shape: [1], data: BigInt64Array.of(0n) } as Tensor,
}
const inFloat16 = (g: GraphBuilder, x: string): string => g.cast(g.cast(x, 'float16'), 'float32')

describe('half precision', () => {
  it('is not for products with whole numbers that are inputs, such as positions', async () => {
    const g = new GraphBuilder()
    const positions = g.cast(g.input('positions', 'int32', ['n', 1]), 'float32')
    g.output(g.gemm(positions, g.constant([1, 0.5], 'float32', [1, 2])), 'y')
    const graph = inHalfPrecision(g.build(), 'bf16', { trainable: [], emulate: true })
    expect(await run(graph, { positions: { dtype: 'int32', shape: [1, 1], data: Int32Array.of(4097) } })).toEqual(
      Float32Array.of(4097, 2048.5),
    )
  })

  it('is for products and what lies between them; the rest, inputs and outputs stay in float32', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', ['n', 4])
    const h = g.layerNorm(x, g.constant([1, 1, 1, 1], 'float32'), g.constant([0, 0, 0, 0], 'float32'), 1e-5)
    const w = g.initializer('w', floats([4, 4], ...new Array(16).fill(0.5)))
    const biased = g.add(g.matmul(h, w), g.constant([1, 2, 3, 4], 'float32'))
    const p = g.softmax(g.matmul(g.transpose(biased, [1, 0]), biased))
    const sum = g.reduceSum(p, [0], true)
    g.output(g.gemm(sum, w), 'y')
    const graph = inHalfPrecision(g.build(), 'fp16', { trainable: ['x'] })
    checkGraph(graph)
    expect(typesOf(graph, 'MatMul')).toEqual(['float16 -> float16', 'float16 -> float16'])
    expect(typesOf(graph, 'Add')).toEqual(['float16 -> float16'])
    expect(typesOf(graph, 'Transpose')).toEqual(['float16 -> float16'])
    expect(typesOf(graph, 'Gemm')).toEqual(['float16 -> float16'])
    for (const op of ['LayerNormalization', 'Softmax', 'ReduceSum'])
      expect(typesOf(graph, op)).toEqual(['float32 -> float32'])
    expect(graph.types.get('x')!.dtype).toBe('float32')
    expect(graph.types.get('y')!.dtype).toBe('float32')
    expect(graph.initializers.get('w')!.dtype).toBe('float32')
  })

  it('is not for products of what is fed: pooling, pairs and queries', () => {
    const g = new GraphBuilder()
    const pool = g.input('pool', 'float32', ['nodes', 'tokens'])
    const x = g.input('x', 'float32', ['tokens', 4])
    const w = g.input('w', 'float32', [4, 4])
    g.output(g.gemm(pool, g.gemm(g.layerNorm(x, w, w, 1e-5), w)), 'y')
    g.output(g.gemm(g.transpose(pool, [1, 0]), pool), 'z')
    const graph = inHalfPrecision(g.build(), 'bf16', { trainable: ['x', 'w'] })
    expect(typesOf(graph, 'Gemm')).toEqual(['bfloat16 -> bfloat16', 'float32 -> float32', 'float32 -> float32'])
  })

  it('does not reach sums of activations, where C of a Gemm carries one in too', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [1, 1])
    const w = g.input('w', 'float32', [1, 1])
    g.output(g.gemm(g.sqrt(x), w, g.mul(x, x), { beta: 2 }), 'y')
    const half = inHalfPrecision(g.build(), 'fp16', { trainable: ['x', 'w'], emulate: true })
    // 256² is 65 536, more than float16 has
    const y = await run(half, { x: floats([1, 1], 256), w: floats([1, 1], 0.5) })
    expect(y[0]).toBe(16 * 0.5 + 2 * 65536)
  })

  it('keeps residuals that outgrow float16 finite, where a stream in float16 gives NaN', async () => {
    const expected = await run(residuals(6), residualFeeds)
    expect((await run(residuals(6, inFloat16), residualFeeds)).every(Number.isNaN)).toBe(true)
    const found = await run(inHalfPrecision(residuals(6), 'fp16', { trainable: ['w'], emulate: true }), residualFeeds)
    found.forEach((x, i) => {
      expect(x).toBeCloseTo(expected[i]!, 2)
    })
  })

  it('lets a product that outgrows float16 come out infinite', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [1, 1])
    g.output(g.matmul(x, g.input('w', 'float32', [1, 1])), 'y')
    const half = inHalfPrecision(g.build(), 'fp16', { trainable: ['x', 'w'], emulate: true })
    const feeds = { x: floats([1, 1], 300), w: floats([1, 1], 300) }
    expect(await run(half, feeds)).toEqual(Float32Array.of(Number.POSITIVE_INFINITY))
  })

  it('rounds, when it is emulated, what goes into a product and what comes out', async () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [1, 1])
    g.output(g.matmul(x, g.input('w', 'float32', [1, 1])), 'y')
    const half = inHalfPrecision(g.build(), 'bf16', { trainable: ['x', 'w'], emulate: true })
    const round = (value: number): number => bfloat16ToFloat32(float32ToBfloat16(Float32Array.of(value)))[0]!
    const [a, b] = [1.2345678, 7.654321]
    expect(await run(half, { x: floats([1, 1], a), w: floats([1, 1], b) })).toEqual(
      Float32Array.of(round(round(a) * round(b))),
    )
  })

  it('gives a float16 graph that ONNX Runtime loads and runs', async () => {
    const graph = residuals(2)
    const half = inHalfPrecision(graph, 'fp16', { trainable: ['w'] })
    expect(typesOf(half, 'MatMul')).toEqual(['float16 -> float16', 'float16 -> float16'])
    const expected = await run(graph, residualFeeds)
    ;(await run(half, residualFeeds)).forEach((x, i) => {
      expect(x).toBeCloseTo(expected[i]!, 2)
    })
  })
})

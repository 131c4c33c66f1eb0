import { expect } from 'vitest'
import {
  type Dim,
  type DType,
  encodeModel,
  type Graph,
  GraphBuilder,
  lower,
  openSession,
  type Tensor,
} from '../../src/onnx/index.ts'
import { compareGradients } from '../autodiff/finite-differences.ts'

/** An input of a graph under test. */
export interface Input {
  shape: number[]
  /** Normally distributed where absent. */
  values?: number[]
  /** float32 where absent. */
  dtype?: DType
  /** The declared shape, where it has symbols. */
  dims?: Dim[]
}

export interface Comparison {
  /** Largest difference from the original's outputs, over the largest number in them. */
  tolerance?: number
  opset?: number
  /** Inputs whose gradients are checked against finite differences; all floats where absent. */
  gradients?: number[]
}

/** Normally distributed numbers, the same for the same seed. */
export function normal(count: number, seed: number): number[] {
  const uniform = (i: number) => {
    const u = Math.sin(i * 12.9898 + seed * 78.233) * 43758.5453
    return u - Math.floor(u)
  }
  return Array.from(
    { length: count },
    (_, i) => Math.sqrt(-2 * Math.log(uniform(2 * i + 1) + 1e-9)) * Math.cos(2 * Math.PI * uniform(2 * i + 2)),
  )
}

export const count = (shape: number[]) => shape.reduce((a, b) => a * b, 1)

export const float = (shape: number[], seed: number, scale = 1): Tensor => ({
  dtype: 'float32',
  shape,
  data: Float32Array.from(normal(count(shape), seed), (v) => v * scale),
})

const arrays = {
  int32: (v: number[]) => Int32Array.from(v),
  int64: (v: number[]) => BigInt64Array.from(v, BigInt),
  bool: (v: number[]) => Uint8Array.from(v),
  uint8: (v: number[]) => Uint8Array.from(v),
  float16: (v: number[]) => Uint16Array.from(v),
}

function tensor({ shape, values, dtype = 'float32' }: Input, seed: number): Tensor {
  if (dtype === 'float32') return { dtype, shape, data: Float32Array.from(values ?? normal(count(shape), seed)) }
  return { dtype, shape, data: arrays[dtype as keyof typeof arrays](values ?? []) }
}

/** A graph of inputs x0, x1, … and the outputs that `build` returns. */
export function graphOf(
  inputs: Input[],
  build: (g: GraphBuilder, x: string[]) => string[],
  opset = 17,
): { graph: Graph; feeds: Record<string, Tensor> } {
  const g = new GraphBuilder(opset)
  const names = inputs.map(({ shape, dtype, dims }, i) => g.input(`x${i}`, dtype ?? 'float32', dims ?? shape))
  for (const output of build(g, names)) g.output(output)
  return { graph: g.build(), feeds: Object.fromEntries(inputs.map((input, i) => [`x${i}`, tensor(input, i + 1)])) }
}

/** What a graph computes, with ONNX Runtime's own handling of quantised operators where `asFile`. */
export async function run(
  graph: Graph,
  feeds: Record<string, Tensor>,
  asFile = false,
): Promise<Record<string, Tensor>> {
  const session = await openSession(asFile ? encodeModel(graph) : graph, { threads: 1 })
  try {
    return await session.run(Object.fromEntries(graph.inputs.map((name) => [name, feeds[name] as Tensor])))
  } finally {
    await session.release()
  }
}

/** Checks that two tensors are of one shape and that their numbers differ by at most `tolerance` times the largest. */
export function expectClose(found: Tensor, wanted: Tensor, tolerance: number): void {
  expect(found.shape).toEqual(wanted.shape)
  const [a, b] = [Array.from(found.data, Number), Array.from(wanted.data, Number)]
  const largest = b.reduce((m, v) => Math.max(m, Math.abs(v)), 0)
  const difference = a.reduce((m, v, i) => Math.max(m, Math.abs(v - b[i]!)), 0)
  expect(a.every(Number.isFinite)).toBe(true)
  expect(difference / largest).toBeLessThanOrEqual(tolerance)
}

/**
 * Checks that lowering a graph replaces `ops`, leaves what it computes as ONNX Runtime does, and leads to gradients that
 * agree with finite differences. Returns the lowered graph.
 */
export async function expectLowered(
  ops: string[],
  inputs: Input[],
  build: (g: GraphBuilder, x: string[]) => string[],
  options: Comparison = {},
): Promise<Graph> {
  const { graph, feeds } = graphOf(inputs, build, options.opset)
  const result = lower(graph)
  expect(Object.keys(result.lowered).sort()).toEqual([...ops].sort())
  for (const node of result.graph.nodes) expect(ops).not.toContain(node.op)
  // weights stay as they are stored, under their names
  for (const [name, tensor] of graph.initializers)
    if (result.graph.initializers.has(name))
      expect((result.graph.initializers.get(name) as Tensor).data).toBe((tensor as Tensor).data)
  const [original, lowered] = [await run(graph, feeds, true), await run(result.graph, feeds)]
  expect(Object.keys(lowered)).toEqual(graph.outputs)
  for (const name of graph.outputs) expectClose(lowered[name]!, original[name]!, options.tolerance ?? 1e-5)
  await expectGradients(result.graph, inputs, feeds, options.gradients)
  return result.graph
}

async function expectGradients(
  graph: Graph,
  inputs: Input[],
  feeds: Record<string, Tensor>,
  wanted?: number[],
): Promise<void> {
  const given = inputs.map((input, i) => ({
    shape: input.shape,
    values: Array.from(feeds[`x${i}`]!.data, Number),
    ...(input.dtype === undefined ? {} : { dtype: input.dtype }),
    fixed: wanted !== undefined && !wanted.includes(i),
  }))
  const splice = (g: GraphBuilder) => {
    for (const [name, value] of graph.initializers) g.initializer(name, value)
    for (const node of graph.nodes)
      g.take(
        node,
        node.outputs.map((output) => graph.types.get(output)),
      )
    return graph.outputs.filter((output) => graph.types.get(output)?.dtype === 'float32')
  }
  const shapes = inputs.map(({ shape, dims }) => dims ?? shape)
  const comparisons = await compareGradients(splice, given, { dtype: 'float32', shapes, opset: graph.opset })
  for (const { input, error } of comparisons) expect(error, `gradient of x${input}`).toBeLessThan(4e-3)
}

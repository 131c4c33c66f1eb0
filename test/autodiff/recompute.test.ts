import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { InferenceSession } from 'onnxruntime-node'
import { describe, expect, it, vi } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import { type Graph, GraphBuilder, openSession, prune, type Tensor } from '../../src/onnx/index.ts'
import { executionOrder } from '../../src/train/memory/order.ts'
import { valueMemory } from '../../src/train/memory/values.ts'

const width = 8

/** Layers x + softmax(tanh(x W)) U, the part between the products marked if it is to be computed again. */
function layers(count: number, isMarked: boolean): Graph {
  const g = new GraphBuilder()
  let x = g.input('x', 'float32', ['n', width])
  for (let i = 0; i < count; i++) {
    const wide = g.gemm(x, g.input(`w${i}`, 'float32', [width, 4 * width]))
    const between = () => g.softmax(g.tanh(wide))
    const inner = isMarked ? g.again(between) : between()
    x = g.add(x, g.gemm(inner, g.input(`u${i}`, 'float32', [4 * width, width]), null, { name: `product${i}` }))
  }
  g.output(x, 'y')
  return g.build()
}

const matrices = (count: number): string[] => Array.from({ length: count }, (_, i) => [`w${i}`, `u${i}`]).flat()

function backward(forward: Graph, count: number): { graph: Graph; gradients: Map<string, string> } {
  const g = GraphBuilder.from(forward)
  const seed = g.input('seed', 'float32', ['n', width])
  const { graph, gradients } = addGradients(g.build(), { y: seed }, matrices(count))
  return { graph: prune({ ...graph, outputs: ['y', ...gradients.values()] }), gradients }
}

const random = (shape: number[], seed: number): Tensor => ({
  dtype: 'float32',
  shape,
  data: Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => Math.sin(1 + 3.7 * i + seed)),
})

describe('what is marked to be computed again', () => {
  const count = 3

  it('gives the same gradients to the last bit', async () => {
    const feeds: Record<string, Tensor> = { x: random([5, width], 0), seed: random([5, width], 1) }
    for (let i = 0; i < count; i++) {
      feeds[`w${i}`] = random([width, 4 * width], 2 + i)
      feeds[`u${i}`] = random([4 * width, width], 9 + i)
    }
    const found = await Promise.all(
      [true, false].map(async (isMarked) => {
        const { graph, gradients } = backward(layers(count, isMarked), count)
        const session = await openSession(graph, { threads: 1 })
        const results = await session.run(feeds)
        await session.release()
        return matrices(count).map((name) => results[gradients.get(name) as string]!.data)
      }),
    )
    expect(found[0]).toEqual(found[1])
    expect(found[0]!.flatMap((data) => Array.from(data as Float32Array)).some((x) => x !== 0)).toBe(true)
  })

  it('is computed twice in a run, too, not merged into one by ONNX Runtime', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'canopy-again-'))
    const { create } = InferenceSession
    const created: InferenceSession[] = []
    const profiled = vi.spyOn(InferenceSession, 'create').mockImplementation(async (...args: unknown[]) => {
      const [model, options] = args as [Uint8Array, InferenceSession.SessionOptions]
      const profile = { enableProfiling: true, profileFilePrefix: join(folder, 'profile') }
      created.push(await create.call(InferenceSession, model, { ...options, ...profile }))
      return created[0] as InferenceSession
    })
    const { graph } = backward(layers(1, true), 1)
    const session = await openSession(graph, { threads: 1 })
    profiled.mockRestore()
    await session.run({
      ...{ x: random([5, width], 0), seed: random([5, width], 1) },
      ...{ w0: random([width, 4 * width], 2), u0: random([4 * width, width], 3) },
    })
    created[0]?.endProfiling()
    await session.release()
    const events: { args?: { op_name?: string } }[] = JSON.parse(
      readFileSync(join(folder, readdirSync(folder)[0] as string), 'utf8'),
    )
    rmSync(folder, { recursive: true })
    expect(events.filter(({ args }) => args?.op_name === 'Softmax')).toHaveLength(2)
  })

  it('is not kept between the passes', () => {
    const { graph } = backward(layers(count, true), count)
    const once = backward(layers(count, false), count).graph
    const counts = (nodes: Graph['nodes'], op: string) => nodes.filter((node) => node.op === op).length
    expect([counts(graph.nodes, 'Softmax'), counts(once.nodes, 'Softmax')]).toEqual([2 * count, count])
    expect([counts(graph.nodes, 'Tanh'), counts(once.nodes, 'Tanh')]).toEqual([2 * count, count])
    // of a layer its first product stays, not the tanh and the softmax of it
    const grown = (isMarked: boolean) => {
      const peak = (layerCount: number) =>
        valueMemory(backward(layers(layerCount, isMarked), layerCount).graph)({ n: 1000 }).peak
      return (peak(12) - peak(4)) / 8 / (4 * 1000 * width)
    }
    expect(grown(true)).toBeLessThan(6)
    expect(grown(false)).toBeGreaterThan(8)
  })
})

describe('the order of a backward pass', () => {
  it('makes the gradients of a layer before it goes on to the one in front', () => {
    const { graph, gradients } = backward(layers(3, false), 3)
    const order = executionOrder(graph).flatMap(({ outputs }) => outputs)
    const at = (name: string) => order.indexOf(gradients.get(name) as string)
    expect(at('u2')).toBeLessThan(at('w2'))
    expect(at('w2')).toBeLessThan(at('u1'))
    expect(at('w1')).toBeLessThan(at('u0'))
  })

  it('makes a slope after the gradient that it is multiplied with', () => {
    const order = executionOrder(backward(layers(3, false), 3).graph)
    for (const layer of [0, 1, 2]) {
      // 1 − tanh², and the product with U that the gradient comes through
      const tanh = order.filter(({ op }) => op === 'Tanh')[layer]!.outputs[0]
      const slope = order.findIndex(({ op, inputs }) => op === 'Mul' && inputs.every((input) => input === tanh))
      const arriving = order.findIndex(({ name, inputs }) => inputs[1] === `u${layer}` && name !== `product${layer}`)
      expect(arriving).toBeGreaterThan(0)
      expect(slope).toBeGreaterThan(arriving)
    }
  })

  it('computes again what a layer needs when its gradients are made', () => {
    const { graph, gradients } = backward(layers(3, true), 3)
    const order = executionOrder(graph)
    const at = (name: string) => order.findIndex(({ outputs }) => outputs.includes(gradients.get(name) as string))
    const again = order.flatMap(({ name }, i) => (name.startsWith('Tanh') && name.endsWith('_again') ? [i] : []))
    expect(again).toHaveLength(3)
    expect(again[1]).toBeGreaterThan(at('w2'))
    expect(again[2]).toBeGreaterThan(at('w1'))
  })
})

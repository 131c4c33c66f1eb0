import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import {
  loraShapes,
  openEmbedder,
  openWeights,
  packedEncoder,
  packedFeeds,
  packSequences,
  readAdapter,
  readEncoder,
  textSequence,
} from '../../src/encoder/index.ts'
import { GraphBuilder, openSafetensors, openSession, prune, type Tensor } from '../../src/onnx/index.ts'
import { expected, expectedAdapter, tinyBert } from './fixtures.ts'

const profile = await readEncoder(tinyBert('mean'))
const dimension = 32

/** d(loss)/d(nodes) and the loss for weighted pairs on d = q·(preferred - other), embeddings being of length 1. */
function pairLoss(kind: 'logistic' | 'hinge', queries: Float32Array, nodes: Float32Array) {
  const { pairs, tau, margin } = expectedAdapter()
  const gradient = new Float32Array(nodes.length)
  let loss = 0
  for (const [query, preferred, other, weight] of pairs) {
    let d = 0
    for (let k = 0; k < dimension; k++)
      d += queries[query * dimension + k]! * (nodes[preferred * dimension + k]! - nodes[other * dimension + k]!)
    loss += weight * (kind === 'logistic' ? Math.log1p(Math.exp(-d / tau)) : Math.max(0, margin - d))
    const slope = kind === 'logistic' ? -1 / tau / (1 + Math.exp(d / tau)) : d < margin ? -1 : 0
    for (let k = 0; k < dimension; k++) {
      const q = weight * slope * queries[query * dimension + k]!
      gradient[preferred * dimension + k]! += q
      gradient[other * dimension + k]! -= q
    }
  }
  return { gradient, loss }
}

describe('gradients of a pair loss through the packed graph', () => {
  it.each(['logistic', 'hinge'] as const)('agree with PyTorch and PEFT for every LoRA matrix (%s)', async (kind) => {
    const adapter = await readAdapter(join(tinyBert('mean'), 'adapter'), profile)
    const { weights, folder } = await openWeights(profile)
    const forward = packedEncoder(profile, weights, { lora: adapter.targets })
    const g = GraphBuilder.from(forward)
    const seed = g.input('seed', 'float32', ['nodes', dimension])
    const names = loraShapes(adapter.targets).map(({ name }) => name)
    const { graph, gradients } = addGradients(g.build(), { embeddings: seed }, names)
    graph.outputs = ['embeddings', ...names.map((name) => gradients.get(name) as string)]
    const session = await openSession(prune(graph), { externalFolder: folder, threads: 1 })

    const embedder = await openEmbedder(profile, { threads: 1 })
    const queries = await embedder.embedTexts(expected('mean').texts, 'node')
    await embedder.close()
    const matrices: Record<string, Tensor> = Object.fromEntries(
      loraShapes(adapter.targets).map(({ name, shape }) => [
        name,
        { dtype: 'float32', shape, data: adapter.tensors.get(name) as Float32Array },
      ]),
    )
    // rows shared by several texts, one of them cut at the maximum length
    const batch = packSequences(
      expected('mean').ids.map((ids) => textSequence(Int32Array.from(ids))),
      48,
    )
    expect(batch.rows).toBeLessThan(batch.nodes)
    const run = (data: Float32Array) =>
      session.run({
        ...packedFeeds(batch, 'mean'),
        ...matrices,
        seed: { dtype: 'float32', shape: [batch.nodes, dimension], data },
      })
    const nodes = (await run(new Float32Array(batch.nodes * dimension))).embeddings!.data as Float32Array
    const { gradient, loss } = pairLoss(kind, queries.embeddings, nodes)
    expect(loss).toBeCloseTo(expectedAdapter().losses[kind], 5)
    const found = await run(gradient)
    await session.release()

    const reference = await openSafetensors(join(tinyBert('mean'), 'gradients.safetensors'))
    for (const name of names) {
      const ours = found[gradients.get(name) as string]!.data as Float32Array
      const theirs = await reference.readTensor(`${kind}/${name}`)
      const difference = Math.hypot(...ours.map((x, i) => x - theirs[i]!))
      expect(difference / Math.hypot(...theirs), name).toBeLessThan(1e-4)
    }
  })
})

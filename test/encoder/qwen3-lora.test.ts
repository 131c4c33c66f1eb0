import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import { initialLora, type LoraOptions, loraShapes, openWeights, readAdapter } from '../../src/encoder/index.ts'
import { qwen3Packed } from '../../src/encoder/qwen3/index.ts'
import { GraphBuilder, openSession, prune, type Tensor } from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'
import {
  asTrie,
  cosine,
  type Kind,
  type KnownInput,
  knownGradients,
  knownInputs,
  type Layout,
  packedInputs,
  qwen3Profile,
  relativeError,
  sideBySide,
  tinyQwen3,
} from './qwen3-known.ts'

const hidden = 64
const updates = ['merged', 'beside'] as const

type Matrices = Map<string, Float32Array>

/** The encoder with the fixture's adapter: embeddings of nodes, and gradients of the sum of seed ∘ embeddings. */
async function openAdapted(kind: Kind, update: LoraOptions['update'] = 'merged') {
  const profile = await qwen3Profile(kind)
  const { weights, folder } = await openWeights(profile)
  const { targets, tensors } = await readAdapter(join(tinyQwen3(kind), 'adapter'), profile)
  const g = GraphBuilder.from(qwen3Packed(profile, weights, { lora: targets, update }))
  const seed = g.input('seed', 'float32', ['nodes', hidden])
  const shapes = loraShapes(targets)
  const names = shapes.map(({ name }) => name)
  const { graph, gradients } = addGradients(g.build(), { embeddings: seed }, names)
  graph.outputs = ['embeddings', ...names.map((name) => gradients.get(name) as string)]
  const session = await openSession(prune(graph), { externalFolder: folder, threads: 1 })
  return {
    profile,
    targets,
    names,
    tensors: tensors as Matrices,
    async run(layout: Layout, matrices: Matrices, seeds: Float32Array) {
      const found = await session.run({
        ...packedInputs(layout, kind, hidden),
        ...Object.fromEntries(
          shapes.map(({ name, shape }): [string, Tensor] => [
            name,
            { dtype: 'float32', shape, data: matrices.get(name) as Float32Array },
          ]),
        ),
        seed: { dtype: 'float32', shape: [layout.last.length, hidden], data: seeds },
      })
      const data = (name: string) => found[name]?.data as Float32Array
      return {
        embeddings: data('embeddings'),
        gradients: new Map(names.map((name) => [name, data(gradients.get(name) as string)])),
      }
    },
    release: () => session.release(),
  }
}

const directions = (inputs: KnownInput[]) => Float32Array.from(inputs.flatMap(({ direction }) => Array.from(direction)))

const dot = (a: Float32Array, b: Float32Array) => a.reduce((sum, x, i) => sum + x * (b[i] as number), 0)

describe.each(['qwen3', 'qwen3-vl'] as const)('a %s encoder with LoRA', (kind) => {
  it.each(updates)('computes the embeddings of PEFT (%s)', async (update) => {
    const inputs = await knownInputs(kind)
    const adapted = await openAdapted(kind, update)
    const { embeddings } = await adapted.run(sideBySide([inputs]), adapted.tensors, directions(inputs))
    inputs.forEach(({ name, adapted: expected, embedding }, i) => {
      const ours = embeddings.subarray(i * hidden, (i + 1) * hidden)
      expect(relativeError(ours, expected), name).toBeLessThan(1e-4)
      expect(cosine(ours, expected), name).toBeGreaterThan(0.99999)
      expect(cosine(ours, embedding), name).toBeLessThan(0.999)
    })
    await adapted.release()
  })

  it.each(updates)('has the gradients of PEFT for every matrix (%s)', async (update) => {
    const inputs = await knownInputs(kind)
    const adapted = await openAdapted(kind, update)
    const known = await knownGradients(kind, adapted.names)
    for (const layout of [sideBySide([inputs.slice(0, 2), inputs.slice(2)]), asTrie(inputs)]) {
      const { gradients } = await adapted.run(layout, adapted.tensors, directions(inputs))
      for (const [name, expected] of known) {
        expect(Math.hypot(...expected), name).toBeGreaterThan(0)
        expect(relativeError(gradients.get(name)!, expected), name).toBeLessThan(1e-3)
      }
    }
    await adapted.release()
  })

  it('has the gradients that finite differences show', async () => {
    const inputs = (await knownInputs(kind)).slice(0, 4)
    const adapted = await openAdapted(kind)
    const layout = asTrie(inputs)
    const seeds = directions(inputs)
    const loss = async (matrices: Matrices) => dot((await adapted.run(layout, matrices, seeds)).embeddings, seeds)
    const { gradients } = await adapted.run(layout, adapted.tensors, seeds)
    const random = createRandom('directions')
    for (const part of ['q_proj', 'k_proj', 'v_proj', 'gate_proj', 'up_proj', 'down_proj']) {
      const step: Matrices = new Map()
      for (const [name, data] of adapted.tensors)
        if (name.includes(part))
          step.set(
            name,
            data.map(() => random.normal()),
          )
      const moved = (size: number): Matrices =>
        new Map([...adapted.tensors].map(([name, x]) => [name, x.map((v, i) => v + size * (step.get(name)?.[i] ?? 0))]))
      const difference = async (size: number) => (await loss(moved(size))) - (await loss(moved(-size)))
      // of fourth order: steps that are large beside rounding have a curvature of their own
      const size = 4e-3
      const numeric = (8 * (await difference(size)) - (await difference(2 * size))) / (12 * size)
      const parts = [...step].map(([name, direction]) => ({ gradient: gradients.get(name)!, direction }))
      const analytic = parts.reduce((sum, { gradient, direction }) => sum + dot(gradient, direction), 0)
      const scale = Math.hypot(...parts.map(({ gradient }) => Math.hypot(...gradient)))
      expect(Math.abs(numeric - analytic) / scale, part).toBeLessThan(2e-3)
    }
    await adapted.release()
  })

  it.each(updates)('is the frozen encoder to the last bit while B is 0 (%s)', async (update) => {
    const inputs = await knownInputs(kind)
    const layout = sideBySide([inputs.slice(0, 3), inputs.slice(3)])
    const adapted = await openAdapted(kind, update)
    const { embeddings } = await adapted.run(layout, initialLora(adapted.targets, 'start'), directions(inputs))
    const { weights, folder } = await openWeights(adapted.profile)
    const frozen = await openSession(qwen3Packed(adapted.profile, weights), { externalFolder: folder, threads: 1 })
    const expected = await frozen.run(packedInputs(layout, kind, hidden))
    expect(embeddings).toEqual(expected.embeddings!.data)
    await adapted.release()
    await frozen.release()
  })
})

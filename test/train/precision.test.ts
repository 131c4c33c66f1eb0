import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import {
  chosenModules,
  defaultTargets,
  encoderModules,
  initialLora,
  linearModules,
  readEncoder,
  selectTargets,
  textSequence,
} from '../../src/encoder/index.ts'
import { openSession, type Placement } from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { loraEncoder } from '../../src/train/engine/encoder.ts'
import { type Engine, openEngine } from '../../src/train/engine/engine.ts'
import { trainingGraphs } from '../../src/train/engine/graph.ts'
import type { Tensors } from '../../src/train/step/optimizer.ts'
import { softwareVulkan } from '../support/vulkan.ts'
import { normal, rowsOf, unitRows } from './toy-encoder.ts'

const vulkan = softwareVulkan()
const random = createRandom('precision')
const profile = await readEncoder(join(import.meta.dirname, '../fixtures/tiny-bert/mean'))
const targets = selectTargets(linearModules(profile), defaultTargets(profile)).map((module) => ({
  ...module,
  rank: 4,
  alpha: 8,
}))
const encoder = await loraEncoder(profile, targets, 0)
const tensors = initialLora(targets, 'precision')
for (const [name, data] of tensors) if (name.includes('lora_B')) data.set(normal(name, data.length).map((x) => x / 20))

const sequences = Array.from({ length: 10 }, () =>
  textSequence(Int32Array.from({ length: 4 + random.int(12) }, () => 1 + random.int(60))),
)
const pairs = Array.from({ length: 20 }, () => {
  const preferred = random.int(sequences.length)
  return { preferred, other: (preferred + 1) % sequences.length, question: random.int(3), weight: 0.05 }
})
const queries = rowsOf(unitRows(normal('questions', 3 * encoder.dimension), encoder.dimension), encoder.dimension)
const batch = { sequences, pairs }

const opened: Engine[] = []
afterAll(async () => {
  for (const engine of opened) await engine.close()
})
async function engineOf(options: Partial<Parameters<typeof openEngine>[0]> = {}): Promise<Engine> {
  const loss = { loss: 'logistic', tau: 0.3, margin: 0.1 } as const
  const engine = await openEngine({ encoder, queries, loss, tokenBudget: 1000, threads: 1, ...options })
  opened.push(engine)
  return engine
}

/** ‖a − b‖ / ‖b‖ over all tensors together. */
function difference(a: Tensors, b: Tensors): number {
  let [above, below] = [0, 0]
  for (const [name, data] of b)
    data.forEach((x, i) => {
      above += (a.get(name)![i]! - x) ** 2
      below += x ** 2
    })
  return Math.sqrt(above / below)
}

const exact = await (await engineOf()).onePass(batch, tensors)

describe('training in half precision', () => {
  it.each([
    ['bf16', 0.05],
    ['fp16', 0.01],
  ] as const)('%s gives the gradients of float32 to its own rounding', async (precision, most) => {
    const engine = await engineOf({ precision })
    engine.lossScale = precision === 'fp16' ? 2 ** 12 : 1
    const { loss, gradients } = await engine.onePass(batch, tensors)
    expect(Math.abs(loss - exact.loss)).toBeLessThan(2e-3)
    const error = difference(gradients, exact.gradients)
    expect(error).toBeLessThan(most)
    expect(error).toBeGreaterThan(1e-5)
  })

  it('gives the same in two passes over parts within the budget', async () => {
    const engine = await engineOf({ precision: 'fp16' })
    engine.lossScale = 2 ** 12
    const one = await engine.onePass(batch, tensors)
    engine.tokenBudget = 30
    const two = await engine.twoPass(batch, tensors)
    expect(two.loss).toBeCloseTo(one.loss, 4)
    expect(difference(two.gradients, one.gradients)).toBeLessThan(0.01)
  })

  it('needs a loss scale in float16: without it small gradients vanish, with one too large they overflow', async () => {
    const engine = await engineOf({ precision: 'fp16' })
    const faint = { sequences, pairs: pairs.map((pair) => ({ ...pair, weight: pair.weight * 2 ** -16 })) }
    const expected: Tensors = new Map([...exact.gradients].map(([name, x]) => [name, x.map((v) => v * 2 ** -16)]))
    const errors: number[] = []
    for (const scale of [1, 2 ** 24]) {
      engine.lossScale = scale
      errors.push(difference((await engine.onePass(faint, tensors)).gradients, expected))
    }
    expect(errors[0]).toBeGreaterThan(0.1)
    expect(errors[1]).toBeLessThan(0.01)

    engine.lossScale = 2 ** 24
    const { loss, gradients } = await engine.onePass(
      { sequences, pairs: pairs.map((p) => ({ ...p, weight: 1e3 })) },
      tensors,
    )
    expect(Number.isFinite(loss)).toBe(true)
    expect([...gradients.values()].some((data) => !data.every(Number.isFinite))).toBe(true)
  })
})

describe('training an imported graph in half precision', () => {
  it.each(['tiny-bert-fused', 'tiny-qwen3-gqa'])(
    '%s: products but those of pooling, and float32 gradients',
    async (name) => {
      const imported = await readEncoder(join(import.meta.dirname, '../fixtures/onnx', name))
      const modules = chosenModules(await encoderModules(imported), null)
      const lora = modules.map(({ module, inputs, outputs }) => ({ module, inputs, outputs, rank: 4, alpha: 8 }))
      const graphs = await loraEncoder(imported, lora, 0, { update: 'beside' })
      const matrices: Tensors = new Map(
        [...graphs.trainable].map(([key, shape]) => [key, normal(key, shape[0]! * shape[1]!).map((x) => x / 20)]),
      )
      const slope = normal('slope', sequences.length * graphs.dimension)
      const gradientsIn = async (precision: 'fp32' | 'fp16') => {
        const engine = await engineOf({ encoder: graphs, loss: undefined, precision })
        return engine.pullBack(sequences, slope, matrices)
      }
      expect(difference(await gradientsIn('fp16'), await gradientsIn('fp32'))).toBeLessThan(0.01)

      const { pullBack } = trainingGraphs(graphs.graph, [...graphs.trainable.keys()], undefined, graphs.unitLength, {
        precision: 'fp16',
      })
      const types = pullBack.graph.nodes
        .filter(({ op }) => ['MatMul', 'Gemm', 'FusedMatMul'].includes(op))
        .map(({ inputs }) => pullBack.graph.types.get(inputs[0]!)!.dtype)
      expect(types.filter((type) => type === 'float32').length).toBe(2)
      expect(types.filter((type) => type === 'float16').length).toBe(types.length - 2)
      // ONNX Runtime checks every type when it loads a graph
      await (await openSession(pullBack.graph, { externalFolder: graphs.externalFolder! })).release()
    },
  )
})

describe('training Qwen3-VL in half precision', () => {
  it.each([
    ['bf16', 0.1],
    ['fp16', 0.02],
  ] as const)('%s gives the gradients of float32 to its own rounding', async (precision, most) => {
    const qwen = await readEncoder(join(import.meta.dirname, '../fixtures/qwen3-vl'))
    const modules = selectTargets(linearModules(qwen), defaultTargets(qwen))
    const lora = modules.map((module) => ({ ...module, rank: 4, alpha: 8 }))
    const graphs = await loraEncoder(qwen, lora, 0, { update: 'beside' })
    const matrices = initialLora(lora, 'qwen')
    for (const [name, data] of matrices)
      if (name.includes('lora_B')) data.set(normal(name, data.length).map((x) => x / 20))
    const slope = normal('qwen slope', sequences.length * graphs.dimension)
    const gradientsIn = async (chosen: 'fp32' | typeof precision) => {
      const engine = await engineOf({ encoder: graphs, loss: undefined, precision: chosen })
      return engine.pullBack(sequences, slope, matrices)
    }
    expect(difference(await gradientsIn(precision), await gradientsIn('fp32'))).toBeLessThan(most)
    if (precision === 'bf16') return
    const { pullBack } = trainingGraphs(graphs.graph, [...matrices.keys()], undefined, graphs.unitLength, { precision })
    // ONNX Runtime checks every type when it loads a graph
    await (await openSession(pullBack.graph, { externalFolder: graphs.externalFolder! })).release()
  })
})

describe('training on another device', () => {
  it.skipIf(!vulkan)('gives the loss and the gradients of the CPU, all of it on the device but shapes', async () => {
    let placement: Placement | undefined
    const engine = await engineOf({
      device: 'webgpu',
      onPlacement: (found) => {
        placement = found
      },
    })
    const { loss, differences, gradients } = await engine.onePass(batch, tensors)
    expect(loss).toBeCloseTo(exact.loss, 5)
    differences.forEach((d, p) => {
      expect(d).toBeCloseTo(exact.differences[p]!, 4)
    })
    expect(difference(gradients, exact.gradients)).toBeLessThan(1e-4)
    expect(placement!.onDevice).toBeGreaterThan(100)
    expect(Object.keys(placement!.onCpu)).toEqual(['Concat'])
  })
})

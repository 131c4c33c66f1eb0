import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import {
  decodeModel,
  type Graph,
  inferTypes,
  lower,
  openSession,
  type Tensor,
  upgradeOpset,
} from '../../src/onnx/index.ts'
import { InputError } from '../../src/support/errors.ts'

const folder = join(import.meta.dirname, '../fixtures/onnx')
const fileOf = (name: string) => join(folder, name, 'onnx/model.onnx')

/** What is lowered of each export, and how far its result may be from what ONNX Runtime makes of the file itself. */
const exports: Record<string, { lowered: Record<string, number>; tolerance: number }> = {
  'tiny-bert-plain': { lowered: {}, tolerance: 1e-6 },
  'tiny-bert-opset11': { lowered: {}, tolerance: 1e-6 },
  'tiny-bert-dynamo': { lowered: {}, tolerance: 2e-6 },
  'tiny-bert-fused': {
    lowered: { EmbedLayerNormalization: 1, Attention: 2, SkipLayerNormalization: 4 },
    tolerance: 1e-5,
  },
  'tiny-bert-fused-mha': {
    lowered: { EmbedLayerNormalization: 1, MultiHeadAttention: 2, SkipLayerNormalization: 4 },
    tolerance: 1e-5,
  },
  'tiny-bert-fp16': { lowered: { 'float16 weights': 37 }, tolerance: 3e-3 },
  'tiny-bert-fused-fp16': {
    lowered: { 'float16 weights': 29, EmbedLayerNormalization: 1, Attention: 2, SkipLayerNormalization: 4 },
    tolerance: 3e-3,
  },
  // activations of 8 bits in the file, of 32 here
  'tiny-bert-int8': { lowered: { DynamicQuantizeLinear: 8, MatMulInteger: 12 }, tolerance: 0.1 },
  'tiny-bert-qdq': { lowered: { QuantizeLinear: 35, DequantizeLinear: 35 }, tolerance: 0.2 },
  'tiny-bert-q4': { lowered: { MatMulNBits: 12 }, tolerance: 1e-5 },
  'tiny-qwen3-plain': { lowered: {}, tolerance: 1e-6 },
  'tiny-qwen3-positions': { lowered: {}, tolerance: 1e-6 },
  'tiny-qwen3-dynamo': { lowered: {}, tolerance: 1e-6 },
  'tiny-qwen3-gqa': { lowered: { GroupQueryAttention: 2, SkipSimplifiedLayerNormalization: 4 }, tolerance: 1e-5 },
  'tiny-qwen3-rotary': {
    lowered: { RotaryEmbedding: 4, GroupQueryAttention: 2, SkipSimplifiedLayerNormalization: 4 },
    tolerance: 1e-5,
  },
  'tiny-qwen3-q4': {
    lowered: { MatMulNBits: 14, GroupQueryAttention: 2, SkipSimplifiedLayerNormalization: 4 },
    tolerance: 1e-5,
  },
}

const idsOf = (name: string): number[][] =>
  (JSON.parse(readFileSync(join(folder, name, 'expected.json'), 'utf8')) as { ids: number[][] }).ids

/** Texts of different lengths as the inputs of a graph, padded on the right. */
function padded(graph: Graph, ids: number[][]): Record<string, Tensor> {
  const [rows, length] = [ids.length, Math.max(...ids.map((text) => text.length))]
  const numbers: Record<string, (row: number, at: number) => number> = {
    input_ids: (row, at) => ids[row]![at] ?? 0,
    attention_mask: (row, at) => (at < ids[row]!.length ? 1 : 0),
    position_ids: (_, at) => at,
    token_type_ids: () => 0,
  }
  return Object.fromEntries(
    graph.inputs.map((name): [string, Tensor] => {
      const { dtype, shape } = graph.types.get(name)!
      const number = numbers[name]
      // keys and values of no earlier tokens
      if (number === undefined)
        return [name, { dtype, shape: [rows, Number(shape[1]), 0, Number(shape[3])], data: new Float32Array() }]
      const data = BigInt64Array.from({ length: rows * length }, (_, i) =>
        BigInt(number(Math.floor(i / length), i % length)),
      )
      return [name, { dtype, shape: [rows, length], data }]
    }),
  )
}

/** The hidden states of the texts' tokens, padding left out. */
async function hiddenStates(source: Graph | string, original: Graph, ids: number[][]): Promise<number[]> {
  const session = await openSession(source)
  try {
    const { last_hidden_state: states } = await session.run(padded(original, ids))
    const [, length, width] = states!.shape as [number, number, number]
    const values = Array.from(states!.data as Float32Array)
    return ids.flatMap((text, row) => values.slice(row * length * width, (row * length + text.length) * width))
  } finally {
    await session.release()
  }
}

/** The hidden states that an export computes in ONNX Runtime, and those of its lowered graph. */
async function both(name: string) {
  const original = decodeModel(readFileSync(fileOf(name)), fileOf(name))
  const { graph, lowered } = lower(inferTypes(upgradeOpset(original)))
  const ids = idsOf(name)
  return {
    original,
    graph,
    lowered,
    file: await hiddenStates(fileOf(name), original, ids),
    found: await hiddenStates(graph, original, ids),
  }
}

/** Largest difference over the largest number. */
const difference = (a: number[], b: number[]): number =>
  a.reduce((m, v, i) => Math.max(m, Math.abs(v - b[i]!)), 0) / b.reduce((m, v) => Math.max(m, Math.abs(v)), 0)

describe('exports of encoders, lowered', () => {
  for (const [name, { lowered, tolerance }] of Object.entries(exports))
    it(`${name} computes what the file does`, async () => {
      const result = await both(name)
      expect(result.lowered).toEqual(lowered)
      expect(difference(result.found, result.file)).toBeLessThan(tolerance)
      // every value has a type, and matrices are stored as they were
      for (const { outputs } of result.graph.nodes)
        for (const output of outputs) if (output !== '') expect(result.graph.types.has(output), output).toBe(true)
      for (const [weight, tensor] of result.graph.initializers) {
        const before = result.original.initializers.get(weight)
        if (before !== undefined && before.shape.length > 1 && 'data' in tensor && 'data' in before)
          expect(tensor.data.byteLength, weight).toBe(before.data.byteLength)
      }
    })

  for (const name of ['tiny-bert-fused', 'tiny-bert-fused-mha', 'tiny-bert-q4', 'tiny-qwen3-rotary'])
    it(`${name} with a node that lacks an input or an attribute is lowered or refused with a message`, () => {
      const graph = inferTypes(decodeModel(readFileSync(fileOf(name)), fileOf(name)))
      const seen = new Set<string>()
      graph.nodes.forEach((node, at) => {
        if (node.domain === '' || seen.has(node.op)) return
        seen.add(node.op)
        const broken = [
          ...node.inputs.map((_, i) => ({ ...node, inputs: node.inputs.map((input, j) => (i === j ? '' : input)) })),
          ...node.inputs.map((_, i) => ({ ...node, inputs: node.inputs.slice(0, i) })),
          { ...node, attributes: {} },
        ]
        for (const instead of broken)
          try {
            lower({ ...graph, nodes: graph.nodes.with(at, instead) })
          } catch (e) {
            expect(e, `${node.op}: ${(e as Error).stack}`).toBeInstanceOf(InputError)
          }
      })
      expect(seen.size).toBeGreaterThan(0)
    })

  for (const name of ['tiny-bert-int8', 'tiny-bert-qdq'])
    it(`${name} is nearer to the float model than the file is, whose activations are quantised`, async () => {
      const [{ file, found }, plain] = [await both(name), await both('tiny-bert-plain')]
      expect(difference(found, plain.file)).toBeLessThan(difference(file, plain.file))
    })
})

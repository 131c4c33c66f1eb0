import type { Attribute, Tensor } from '../../../src/onnx/index.ts'
import { type Case, type Draw, i, matrices } from './draw.ts'

const microsoft = 'com.microsoft'

/** Attention and its like, whose inputs' sizes hang together: batch, sequence, heads and the width of one. */
function attentionSizes(d: Draw) {
  const [b, s, h, w] = [d.int(1, 3), d.int(1, 4), d.int(1, 3), 4 * d.int(1, 2)]
  return { b, s, h, w, size: h * w }
}

const skipNormalisation =
  (op: string, affine: number): Case =>
  (d) => {
    const shape = d.shape(3, 3)
    const vector = [shape[2] as number]
    const rest = Array.from({ length: affine }, () => d.input(vector))
    const outputs = d.flag() ? 1 : ['out', '', '', 'sum']
    return d.g.node(op, [d.input(shape), d.input(shape), ...rest], { domain: microsoft, outputs }).filter(Boolean)
  }

const quantised = (d: Draw, shape: number[], dtype: 'int8' | 'uint8' = 'uint8') =>
  d.g.cast(d.input(shape, 'int64'), dtype)
const scalar = (d: Draw, value: number) => d.g.constant([value], 'float32', [])
const zero = (d: Draw, dtype: 'int8' | 'uint8' = 'uint8') => d.g.cast(d.g.constant([0], 'int64', []), dtype)

/** Token ids [batch, sequence] as often as asked for, and embedding tables of known sizes with their scale and bias. */
function embedding(d: Draw) {
  const [b, s, size] = [d.int(1, 3), d.int(1, 4), 4]
  const shapes = [[6, size], [5, size], [2, size], [size], [size]]
  return {
    ids: () => d.g.cast(d.input([b, s], 'int64', Array(b * s).fill(0)), 'int32'),
    tables: shapes.map((shape) => d.g.constant(Array(shape.reduce((x, y) => x * y, 1)).fill(0), 'float32', shape)),
  }
}

/** Attention, quantised operators, and ONNX Runtime's fused ones. */
export const fusedCases: Record<string, Case> = {
  Attention: (d) => {
    const { b, s, h, w } = attentionSizes(d)
    const total = d.int(1, 4)
    if (d.flag()) {
      const [q, k, v] = [
        [b, h, s, w],
        [b, h, total, w],
        [b, h, total, 4],
      ].map((shape) => d.input(shape))
      return d.g.node('Attention', [q as string, k as string, v as string])
    }
    const attributes = { q_num_heads: i(h), kv_num_heads: i(h) }
    const inputs = [
      [b, s, h * w],
      [b, total, h * w],
      [b, total, h * 4],
    ].map((shape) => d.input(shape))
    return d.g.node('Attention', inputs, { attributes })
  },
  RotaryEmbedding: (d) => {
    const { b, s, h, w } = attentionSizes(d)
    return d.g.node('RotaryEmbedding', [d.input([b, h, s, w]), d.input([b, s, w / 2]), d.input([b, s, w / 2])])
  },
  'com.microsoft:RotaryEmbedding': (d) => {
    const { b, s, w } = attentionSizes(d)
    const positions = d.input([b, s], 'int64', Array(b * s).fill(0))
    const caches = [d.input([8, w / 2]), d.input([8, w / 2])]
    return d.g.node('RotaryEmbedding', [d.input([b, 2, s, w]), positions, ...caches], { domain: microsoft })
  },
  'com.microsoft:Attention': (d) => {
    const { b, s, h, size } = attentionSizes(d)
    const inputs = [d.input([b, s, 6]), d.input([6, 3 * size]), d.input([3 * size])]
    return d.g.node('Attention', inputs, { domain: microsoft, attributes: { num_heads: i(h) } })
  },
  QAttention: (d) => {
    const { b, s, h, size } = attentionSizes(d)
    const inputs = [quantised(d, [b, s, 6]), quantised(d, [6, 3 * size], 'int8'), d.input([3 * size])]
    const scales = [scalar(d, 0.1), scalar(d, 0.1)]
    return d.g.node('QAttention', [...inputs, ...scales, '', zero(d), zero(d, 'int8')], {
      domain: microsoft,
      attributes: { num_heads: i(h) },
    })
  },
  MultiHeadAttention: (d) => {
    const { b, s, h, size } = attentionSizes(d)
    const total = d.int(1, 4)
    const inputs = [
      [b, s, size],
      [b, total, size],
      [b, total, 2 * size],
    ].map((shape) => d.input(shape))
    return d.g.node('MultiHeadAttention', inputs, { domain: microsoft, attributes: { num_heads: i(h) } })
  },
  GroupQueryAttention: (d) => {
    const { b, s, h } = attentionSizes(d)
    const width = 8
    const inputs = [
      [b, s, 2 * h * width],
      [b, s, h * width],
      [b, s, h * width],
    ].map((shape) => d.input(shape))
    const last = d.g.cast(d.input([b], 'int64', Array(b).fill(s - 1)), 'int32')
    const total = d.g.cast(d.g.constant([s], 'int64', []), 'int32')
    return d.g.node('GroupQueryAttention', [...inputs, '', '', last, total], {
      domain: microsoft,
      outputs: 3,
      attributes: { num_heads: i(2 * h), kv_num_heads: i(h) },
    })
  },
  SkipLayerNormalization: skipNormalisation('SkipLayerNormalization', 2),
  SkipSimplifiedLayerNormalization: skipNormalisation('SkipSimplifiedLayerNormalization', 1),
  EmbedLayerNormalization: (d) => {
    const { ids, tables } = embedding(d)
    const mask = d.flag() ? [ids()] : []
    return d.g.node('EmbedLayerNormalization', [ids(), ids(), ...tables, ...mask], { domain: microsoft, outputs: 2 })
  },
  QEmbedLayerNormalization: (d) => {
    const { ids, tables } = embedding(d)
    const inputs = [ids(), ids(), ...tables.map((table) => d.g.cast(table, 'uint8')), '']
    const [scales, zeros] = [tables.map(() => scalar(d, 0.1)), tables.map(() => zero(d))]
    return d.g.node('QEmbedLayerNormalization', [...inputs, ...scales, ...zeros], { domain: microsoft, outputs: 2 })
  },
  QuantizeLinear: (d) =>
    d.g.node('QuantizeLinear', [d.input(d.shape()), scalar(d, 0.1), ...(d.flag() ? [zero(d)] : [])]),
  DequantizeLinear: (d) => d.g.node('DequantizeLinear', [quantised(d, d.shape()), scalar(d, 0.1)]),
  DynamicQuantizeLinear: (d) => d.g.node('DynamicQuantizeLinear', [d.input(d.shape())], { outputs: 3 }),
  MatMulInteger: (d) => {
    const [a, b] = matrices(d, false, false, false)
    return d.g.node('MatMulInteger', [quantised(d, a), quantised(d, b)])
  },
  QLinearMatMul: (d) => {
    const [a, b] = matrices(d, false, false, false)
    const side = (shape: number[]) => [quantised(d, shape), scalar(d, 0.1), zero(d)]
    return d.g.node('QLinearMatMul', [...side(a), ...side(b), scalar(d, 0.1), zero(d)])
  },
  MatMulIntegerToFloat: (d) => {
    const [a, b] = matrices(d, false, false, false)
    const inputs = [quantised(d, a), quantised(d, b), scalar(d, 0.1), scalar(d, 0.1)]
    return d.g.node('MatMulIntegerToFloat', inputs, { domain: microsoft })
  },
  DynamicQuantizeMatMul: (d) => {
    const [a, b] = matrices(d, false, false, false)
    return d.g.node('DynamicQuantizeMatMul', [d.input(a), quantised(d, b), scalar(d, 0.1)], { domain: microsoft })
  },
  MatMulNBits: (d) => {
    const [k, n] = [32, d.int(1, 4)]
    const weight: Tensor = { dtype: 'uint8', shape: [n, 2, 8], data: new Uint8Array(n * 16) }
    const inputs = [d.input([...d.shape(1, 2), k]), d.g.initializer('packed', weight), d.input([n * 2])]
    const attributes = { K: i(k), N: i(n), bits: i(4), block_size: i(16) }
    return d.g.node('MatMulNBits', inputs, { domain: microsoft, attributes })
  },
  ...Object.fromEntries(
    ['QLinearAdd', 'QLinearMul'].map((op): [string, Case] => [
      op,
      (d) => {
        const full = d.shape()
        const side = (shape: number[]) => [quantised(d, shape), scalar(d, 0.1), zero(d)]
        return d.g.node(op, [...side(full), ...side(d.broadcastable(full)), scalar(d, 0.1), zero(d)], {
          domain: microsoft,
        })
      },
    ]),
  ),
  ...Object.fromEntries(
    ['QLinearSigmoid', 'QLinearLeakyRelu', 'QLinearSoftmax'].map((op): [string, Case] => [
      op,
      (d) => {
        const attributes: Record<string, Attribute> = op === 'QLinearSoftmax' ? { opset: i(13) } : {}
        const inputs = [quantised(d, d.shape()), scalar(d, 0.1), zero(d), scalar(d, 0.1), zero(d)]
        return d.g.node(op, inputs, { domain: microsoft, attributes })
      },
    ]),
  ),
}

import { describe, expect, it } from 'vitest'
import {
  type Attribute,
  type Dim,
  float32ToFloat16,
  type Graph,
  type GraphBuilder,
  lower,
  type Tensor,
} from '../../src/onnx/index.ts'
import { count, expectClose, expectLowered, float, graphOf, type Input, normal, run } from './lowering.ts'

const [K, N] = [32, 6]
const x: Input = { shape: [2, 3, K], dims: ['batch', 'sequence', K] }

const bytes = (shape: number[], seed: number, dtype: 'int8' | 'uint8' = 'int8'): Tensor => {
  const values = normal(count(shape), seed).map((v) => Math.max(-127, Math.min(127, Math.round(v * 40))))
  return dtype === 'int8'
    ? { dtype, shape, data: Int8Array.from(values) }
    : { dtype, shape, data: Uint8Array.from(values, (v) => v + 128) }
}
const positive = (shape: number[], seed: number): Tensor => ({
  dtype: 'float32',
  shape,
  data: Float32Array.from(normal(count(shape), seed), (v) => 0.01 + 0.002 * Math.abs(v)),
})

/** (weight − zero point)·scale for a weight [rows, columns] with one scale and zero point, or one a column. */
function dequantised(weight: Tensor, scale: Tensor, zeroPoint?: Tensor): Tensor {
  const columns = weight.shape[1] as number
  const at = (t: Tensor, column: number) => Number(t.data[t.data.length === 1 ? 0 : column])
  return {
    dtype: 'float32',
    shape: weight.shape,
    data: Float32Array.from(weight.data as Int8Array, (q, i) => {
      const column = i % columns
      return Math.fround(q - (zeroPoint === undefined ? 0 : at(zeroPoint, column))) * at(scale, column)
    }),
  }
}

/** What com.microsoft operators return here: float32 [batch, sequence, N]. */
const contrib = (
  g: GraphBuilder,
  op: string,
  inputs: string[],
  attributes: Record<string, Attribute> = {},
  shape: Dim[] = ['batch', 'sequence', N],
): string => g.one(op, inputs, { domain: 'com.microsoft', attributes, types: [{ dtype: 'float32', shape }] })

const quantise = (g: GraphBuilder, value: string): [string, string, string] =>
  g.node('DynamicQuantizeLinear', [value], {
    outputs: 3,
    types: [
      { dtype: 'uint8', shape: g.shape(value) },
      { dtype: 'float32', shape: [] },
      { dtype: 'uint8', shape: [] },
    ],
  }) as [string, string, string]

/** The product that dynamic quantisation writes, up to the last Mul. */
function integerProduct(
  g: GraphBuilder,
  [q, scaleA, zeroA]: [string, string, string],
  [b, scaleB, zeroB]: [string, string, string],
  apart = false,
): string {
  const product = g.one('MatMulInteger', zeroB === '' ? [q, b, zeroA] : [q, b, zeroA, zeroB], {
    types: [{ dtype: 'int32', shape: ['batch', 'sequence', N] }],
  })
  const cast = g.cast(product, 'float32')
  return apart
    ? g.one('Mul', [g.mul(scaleB, cast), scaleA], { outputs: ['y'] })
    : g.one('Mul', [cast, g.mul(scaleA, scaleB)], { outputs: ['y'] })
}

/** Checks that the graph multiplies by a weight of the numbers `wanted`, and not too far from what the original does. */
async function expectProduct(
  { graph, feeds }: { graph: Graph; feeds: Record<string, Tensor> },
  wanted: Tensor,
  bias?: Tensor,
): Promise<Graph> {
  const { graph: lowered } = lower(graph)
  const plain = graphOf([x], (g, [input]) => {
    const y = g.matmul(input!, g.initializer('w', wanted))
    return [bias === undefined ? y : g.add(y, g.initializer('b', bias))]
  })
  const [y] = Object.values(await run(lowered, feeds))
  const [exact] = Object.values(await run(plain.graph, feeds))
  const [original] = Object.values(await run(graph, feeds, true))
  expectClose(y!, exact!, 1e-6)
  // activations of 8 bits: a step is 1/255 of their range
  expectClose(y!, original!, 0.02)
  return lowered
}

describe('dynamic quantisation', () => {
  const forms: [string, Tensor, Tensor, Tensor | undefined][] = [
    ['int8, one scale, no zero point', bytes([K, N], 3), positive([], 4), undefined],
    [
      'int8, one scale of shape [1] and a zero point',
      bytes([K, N], 3),
      positive([1], 4),
      { dtype: 'int8', shape: [1], data: Int8Array.of(3) },
    ],
    [
      'uint8, one scale and zero point',
      bytes([K, N], 3, 'uint8'),
      positive([], 4),
      { dtype: 'uint8', shape: [], data: Uint8Array.of(121) },
    ],
    [
      'int8, a scale and zero point a column',
      bytes([K, N], 3),
      positive([N], 4),
      { dtype: 'int8', shape: [N], data: Int8Array.of(0, 3, -2, 0, 1, 5) },
    ],
    [
      'int8, a scale a column, one zero point',
      bytes([K, N], 3),
      positive([N], 4),
      { dtype: 'int8', shape: [], data: Int8Array.of(0) },
    ],
  ]
  for (const [name, weight, scale, zeroPoint] of forms) {
    const parts = (g: GraphBuilder): [string, string, string] => [
      g.initializer('weight', weight),
      g.initializer('weight_scale', scale),
      zeroPoint === undefined ? '' : g.initializer('weight_zero_point', zeroPoint),
    ]
    const wanted = dequantised(weight, scale, zeroPoint)

    for (const apart of [false, true])
      it(`${name}${apart ? ', scales applied one after the other' : ''}`, async () => {
        const lowered = await expectProduct(
          graphOf([x], (g, [input]) => [integerProduct(g, quantise(g, input!), parts(g), apart)]),
          wanted,
        )
        const product = lowered.nodes.find((node) => node.outputs[0] === 'y')
        expect(product).toMatchObject({ op: 'MatMul', inputs: ['x0', expect.any(String)] })
        expect(lowered.initializers.get('weight')).toBe(weight)
        expect(lowered.nodes.map((node) => node.op)).not.toContain('DynamicQuantizeLinear')
      })

    it(`${name}, as DynamicQuantizeMatMul with a bias`, () =>
      expectProduct(
        graphOf([x], (g, [input]) => [
          contrib(g, 'DynamicQuantizeMatMul', [input!, ...parts(g), g.initializer('bias', float([N], 9))]),
        ]),
        wanted,
        float([N], 9),
      ))

    it(`${name}, as MatMulIntegerToFloat`, () =>
      expectProduct(
        graphOf([x], (g, [input]) => {
          const [q, scaleA, zeroA] = quantise(g, input!)
          const [b, scaleB, zeroB] = parts(g)
          return [contrib(g, 'MatMulIntegerToFloat', [q, b, scaleA, scaleB, zeroA, zeroB])]
        }),
        wanted,
      ))
  }

  it('one quantisation of x for several products', async () => {
    const { graph } = graphOf([x], (g, [input]) => {
      const quantised = quantise(g, input!)
      return ['first', 'second'].map((name, i) => {
        const [q, scaleA, zeroA] = quantised
        const weight = g.initializer(name, bytes([K, N], i))
        const scale = g.initializer(`${name}_scale`, positive([], i))
        const product = g.one('MatMulInteger', [q, weight, zeroA], {
          types: [{ dtype: 'int32', shape: ['batch', 'sequence', N] }],
        })
        return g.mul(g.cast(product, 'float32'), g.mul(scaleA, scale))
      })
    })
    const { graph: lowered, lowered: what } = lower(graph)
    expect(what).toEqual({ DynamicQuantizeLinear: 1, MatMulInteger: 2 })
    expect(lowered.nodes.map((node) => node.op).sort()).toEqual([
      'DequantizeLinear',
      'DequantizeLinear',
      'MatMul',
      'MatMul',
    ])
  })

  it('a product of two activations', async () => {
    const inputs: Input[] = [{ shape: [2, 3, 8] }, { shape: [2, 8, N] }]
    const { graph, feeds } = graphOf(inputs, (g, [a, b]) => {
      const [q, scaleA, zeroA] = quantise(g, a!)
      const [p, scaleB, zeroB] = quantise(g, b!)
      const product = g.one('MatMulInteger', [q, p, zeroA, zeroB], { types: [{ dtype: 'int32', shape: [2, 3, N] }] })
      return [g.mul(g.cast(product, 'float32'), g.mul(scaleA, scaleB))]
    })
    const { graph: lowered } = lower(graph)
    expect(lowered.nodes.map((node) => [node.op, ...node.inputs])).toEqual([['MatMul', 'x0', 'x1']])
    const [original, y] = [await run(graph, feeds, true), await run(lowered, feeds)]
    expectClose(y[graph.outputs[0]!]!, original[graph.outputs[0]!]!, 0.05)
  })

  it('takes no other factor of a product for its scale', () => {
    const { graph } = graphOf([x, { shape: [2, 3, N], dims: ['batch', 'sequence', N] }], (g, [input, gate]) => {
      const [q, scale, zero] = quantise(g, input!)
      const product = g.one('MatMulInteger', [q, g.initializer('w', bytes([K, N], 3)), zero], {
        types: [{ dtype: 'int32', shape: ['batch', 'sequence', N] }],
      })
      return [g.mul(g.mul(g.cast(product, 'float32'), scale), gate!)]
    })
    expect(() => lower(graph)).toThrow('MatMulInteger computes on quantised activations')
  })

  it('is refused where the product is not made float again', () => {
    const { graph } = graphOf([x], (g, [input]) => {
      const [q, , zero] = quantise(g, input!)
      return g.node('MatMulInteger', [q, g.initializer('w', bytes([K, N], 3)), zero], {
        name: 'lonely',
        types: [{ dtype: 'int32', shape: ['batch', 'sequence', N] }],
      })
    })
    expect(() => lower(graph)).toThrow('node "lonely" (MatMulInteger): MatMulInteger computes on quantised activations')
  })

  it('QAttention', async () => {
    const [B, S, hidden] = [2, 4, 16]
    const weight = bytes([hidden, 3 * hidden], 3)
    const scale = positive([3 * hidden], 4)
    const bias = float([3 * hidden], 5)
    const inputs: Input[] = [
      { shape: [B, S, hidden], dims: ['batch', 'sequence', hidden] },
      { shape: [B], values: [4, 2], dtype: 'int32', dims: ['batch'] },
    ]
    const attributes = { num_heads: { i: 2 } }
    const types = [{ dtype: 'float32' as const, shape: ['batch', 'sequence', hidden] }]
    const quantised = graphOf(inputs, (g, [input, mask]) => {
      const [q, scaleA, zeroA] = quantise(g, input!)
      const zeroB = g.initializer('zero', { dtype: 'int8', shape: [3 * hidden], data: new Int8Array(3 * hidden) })
      const [w, s, b] = [g.initializer('weight', weight), g.initializer('scale', scale), g.initializer('bias', bias)]
      return g.node('QAttention', [q, w, b, scaleA, s, mask!, zeroA, zeroB], {
        domain: 'com.microsoft',
        attributes,
        types,
      })
    })
    const exact = graphOf(inputs, (g, [input, mask]) => {
      const [w, b] = [g.initializer('weight', dequantised(weight, scale)), g.initializer('bias', bias)]
      return g.node('Attention', [input!, w, b, mask!], { domain: 'com.microsoft', attributes, types })
    })
    const result = lower(quantised.graph)
    expect(result.lowered).toEqual({ DynamicQuantizeLinear: 1, QAttention: 1 })
    const [y] = Object.values(await run(result.graph, quantised.feeds))
    expectClose(y!, Object.values(await run(exact.graph, exact.feeds))[0]!, 1e-5)
    expectClose(y!, Object.values(await run(quantised.graph, quantised.feeds, true))[0]!, 0.03)
  })
})

it('QEmbedLayerNormalization', async () => {
  const hidden = 8
  const ids: Input = { shape: [2, 3], values: [0, 3, 1, 2, 2, 4], dtype: 'int32', dims: ['batch', 'sequence'] }
  const segments: Input = { ...ids, values: [0, 0, 1, 1, 0, 1] }
  const tensors: Tensor[] = [[5, hidden], [4, hidden], [2, hidden], [hidden], [hidden]].map((shape, i) =>
    bytes(shape, i + 3, 'uint8'),
  )
  const scale: Tensor = { dtype: 'float32', shape: [], data: Float32Array.of(0.02) }
  const zero: Tensor = { dtype: 'uint8', shape: [], data: Uint8Array.of(126) }
  const { graph, feeds } = graphOf([ids, segments], (g, [words, kinds]) => {
    const each = (name: string, tensor: Tensor) => tensors.map((_, i) => g.initializer(`${name}${i}`, tensor))
    const tables = tensors.map((tensor, i) => g.initializer(`table${i}`, tensor))
    const inputs = [words!, kinds!, ...tables, '', ...each('scale', scale), ...each('zero', zero)]
    const hiddenType = { dtype: 'float32' as const, shape: ['batch', 'sequence', hidden] }
    return g
      .node('QEmbedLayerNormalization', inputs, {
        domain: 'com.microsoft',
        outputs: 2,
        types: [hiddenType, { dtype: 'int32', shape: ['batch'] }],
      })
      .slice(0, 1)
  })
  const result = lower(graph)
  expect(result.lowered).toEqual({ QEmbedLayerNormalization: 1 })
  const [a, b] = [await run(result.graph, feeds), await run(graph, feeds, true)]
  expectClose(Object.values(a)[0]!, Object.values(b)[0]!, 1e-5)
})

describe('quantised and dequantised tensors (QDQ)', () => {
  const scalar = (g: GraphBuilder, name: string, scale: number, zero: number): [string, string] => [
    g.initializer(`${name}_scale`, { dtype: 'float32', shape: [], data: Float32Array.of(scale) }),
    g.initializer(`${name}_zero`, { dtype: 'uint8', shape: [], data: Uint8Array.of(zero) }),
  ]
  const around = (g: GraphBuilder, name: string, value: string, scale = 0.03): string => {
    const parts = scalar(g, name, scale, 128)
    return g.one('DequantizeLinear', [g.one('QuantizeLinear', [value, ...parts]), ...parts])
  }

  it('activations pass as they are, weights stay quantised', async () => {
    const [weight, scale] = [bytes([K, N], 3), positive([N], 4)]
    const { graph, feeds } = graphOf([x], (g, [input]) => {
      const w = g.one(
        'DequantizeLinear',
        [
          g.initializer('weight', weight),
          g.initializer('scale', scale),
          g.initializer('zero', { dtype: 'int8', shape: [N], data: new Int8Array(N) }),
        ],
        { attributes: { axis: { i: 1 } } },
      )
      return [around(g, 'y', g.matmul(around(g, 'x', input!), w), 0.1)]
    })
    const result = lower(graph)
    expect(result.lowered).toEqual({ QuantizeLinear: 2, DequantizeLinear: 2 })
    const plain = graphOf([x], (g, [input]) => [g.matmul(input!, g.initializer('w', dequantised(weight, scale)))])
    const [y] = Object.values(await run(result.graph, feeds))
    expectClose(y!, Object.values(await run(plain.graph, feeds))[0]!, 1e-6)
    expectClose(y!, Object.values(await run(graph, feeds, true))[0]!, 0.02)
  })

  it('operators on quantised tensors compute on floats', async () => {
    const weight = bytes([K, N], 3)
    const { graph, feeds } = graphOf([x], (g, [input]) => {
      const [xs, ys, zs] = [scalar(g, 'x', 0.03, 128), scalar(g, 'y', 0.1, 128), scalar(g, 'z', 0.3, 120)]
      const parts = [
        g.initializer('weight', weight),
        g.initializer('scale', positive([], 4)),
        g.initializer('zero', { dtype: 'int8', shape: [], data: Int8Array.of(2) }),
      ]
      const type = { dtype: 'uint8' as const, shape: ['batch', 'sequence', N] }
      const q = g.one('QuantizeLinear', [input!, ...xs])
      const y = g.one('QLinearMatMul', [q, ...xs, ...parts, ...ys], { types: [type] })
      const binary = (op: string) => g.one(op, [y, ...ys, y, ...ys, ...zs], { domain: 'com.microsoft', types: [type] })
      return ['QLinearAdd', 'QLinearMul'].map((op) => g.one('DequantizeLinear', [binary(op), ...zs]))
    })
    const result = lower(graph)
    expect(result.lowered).toEqual({
      QuantizeLinear: 1,
      DequantizeLinear: 2,
      QLinearMatMul: 1,
      QLinearAdd: 1,
      QLinearMul: 1,
    })
    expect(result.graph.initializers.get('weight')).toBe(weight)
    const [a, b] = [await run(result.graph, feeds), await run(graph, feeds, true)]
    for (const name of graph.outputs) expectClose(a[name]!, b[name]!, 0.05)
  })

  it('rows of a table are picked before they are made float', async () => {
    const ids: Input = { shape: [2, 3], values: [0, 3, 1, 2, 2, 4], dtype: 'int64', dims: ['batch', 'sequence'] }
    const { graph, feeds } = graphOf([ids], (g, [at]) => {
      const parts = [g.initializer('table', bytes([5, 4], 3, 'uint8')), ...scalar(g, 'table', 0.03, 130)]
      return [g.neg(g.gather(g.one('DequantizeLinear', parts), at!))]
    })
    const { graph: lowered } = lower(graph)
    expect(lowered.nodes.map(({ op }) => op)).toEqual(['Gather', 'DequantizeLinear', 'Neg'])
    expect(lowered.nodes[0]!.inputs).toEqual(['table', 'x0'])
    const [a, b] = [await run(lowered, feeds), await run(graph, feeds, true)]
    expectClose(Object.values(a)[0]!, Object.values(b)[0]!, 0)
  })

  it('a constant keeps its rounding', async () => {
    const { graph, feeds } = graphOf([x], (g, [input]) => [
      g.matmul(input!, around(g, 'w', g.initializer('weight', float([K, N], 3, 0.5)))),
    ])
    const result = lower(graph)
    expect(result.lowered).toEqual({})
    const [a, b] = [await run(result.graph, feeds), await run(graph, feeds, true)]
    expectClose(Object.values(a)[0]!, Object.values(b)[0]!, 0.02)
  })
})

describe('weights of few bits', () => {
  const nbits =
    (bits: number, block: number, width: number, more: (g: GraphBuilder, blocks: number) => string[] = () => []) =>
    (g: GraphBuilder, [input]: string[]) => {
      const blocks = Math.ceil(width / block)
      const packed = { dtype: 'uint8' as const, shape: [N, blocks, (block * bits) / 8] }
      const b = g.initializer('weight', { ...packed, data: bytes(packed.shape, 3, 'uint8').data })
      const scales = g.initializer('scales', positive([N, blocks], 4))
      return [
        contrib(g, 'MatMulNBits', [input!, b, scales, ...more(g, blocks)], {
          K: { i: width },
          N: { i: N },
          bits: { i: bits },
          block_size: { i: block },
        }),
      ]
    }
  const rows = (width: number): Input => ({ shape: [2, 3, width], dims: ['batch', 'sequence', width] })
  const packedZeros = (bits: number) => (g: GraphBuilder, blocks: number) => {
    const shape = [N, Math.ceil((blocks * bits) / 8)]
    return [g.initializer('zeros', bytes(shape, 5, 'uint8'))]
  }

  for (const opset of [17, 21])
    for (const bits of [2, 4, 8]) {
      // ONNX Runtime multiplies 8-bit blocks in int8 on some machines.
      const options = { opset, tolerance: bits === 8 ? 0.01 : 1e-5 }
      const name = `${bits} bits, operator set ${opset}`
      it(`${name}, without zero points`, () => expectLowered(['MatMulNBits'], [rows(K)], nbits(bits, 16, K), options))
      it(`${name}, with packed zero points`, () =>
        expectLowered(['MatMulNBits'], [rows(K)], nbits(bits, 16, K, packedZeros(bits)), options))
      it(`${name}, the last block not full, its zero points in half a byte`, () =>
        expectLowered(['MatMulNBits'], [rows(40)], nbits(bits, 16, 40, packedZeros(bits)), options))
    }

  it('4 bits with a bias', () =>
    expectLowered(
      ['MatMulNBits'],
      [rows(K)],
      nbits(4, 16, K, (g) => ['', '', g.initializer('bias', float([N], 6))]),
    ))

  it('4 bits with zero points that are floats', () =>
    expectLowered(
      ['MatMulNBits'],
      [rows(K)],
      nbits(4, 16, K, (g, blocks) => [g.initializer('zeros', positive([N, blocks], 6))]),
    ))

  for (const [type, name] of ['FP4', 'NF4'].entries())
    it(`4-bit codes of bitsandbytes, ${name}`, () =>
      expectLowered(['MatMulBnb4'], [rows(K)], (g, [input]) => {
        const b = g.initializer('weight', bytes([(N * K) / 2], 3, 'uint8'))
        const scales = g.initializer('absmax', positive([(N * K) / 16], 4))
        const attributes = { K: { i: K }, N: { i: N }, block_size: { i: 16 }, quant_type: { i: type } }
        return [contrib(g, 'MatMulBnb4', [input!, b, scales], attributes)]
      }))

  it('4 bits in a graph of float16', async () => {
    const { graph, feeds } = graphOf([rows(K)], (g, [input]) => {
      const scales = positive([N, 2], 4)
      const half = {
        dtype: 'float16' as const,
        shape: scales.shape,
        data: float32ToFloat16(scales.data as Float32Array),
      }
      const b = g.initializer('weight', { dtype: 'uint8', shape: [N, 2, 8], data: bytes([N, 2, 8], 3, 'uint8').data })
      const y = g.one('MatMulNBits', [g.cast(input!, 'float16'), b, g.initializer('scales', half)], {
        domain: 'com.microsoft',
        attributes: { K: { i: K }, N: { i: N }, bits: { i: 4 }, block_size: { i: 16 } },
        types: [{ dtype: 'float16', shape: ['batch', 'sequence', N] }],
      })
      return [g.cast(y, 'float32')]
    })
    const result = lower(graph)
    expect(result.lowered).toEqual({ 'float16 weights': 1, MatMulNBits: 1 })
    const [a, b] = [await run(result.graph, feeds), await run(graph, feeds, true)]
    expectClose(Object.values(a)[0]!, Object.values(b)[0]!, 3e-3)
  })

  it('reads the bytes of the packed weight in place, for one product', () => {
    const { graph } = graphOf([rows(K)], nbits(4, 16, K))
    const { graph: lowered } = lower(graph)
    const [stored, read] = [graph, lowered].map((g) => g.initializers.get('weight') as Tensor)
    expect(read!.data).toBe(stored!.data)
    expect(lowered.nodes.map(({ op }) => op)).toEqual(['Reshape', 'DequantizeLinear', 'Reshape', 'FusedMatMul'])
    expect(lowered.nodes.at(-1)!.inputs[0]).toBe('x0')
  })

  it('that other nodes read too', async () => {
    const { graph, feeds } = graphOf([rows(K)], (g, x) => {
      const [y] = nbits(4, 16, K)(g, x)
      return [y!, g.neg(g.cast('weight', 'float32'))]
    })
    const [a, b] = [await run(lower(graph).graph, feeds), await run(graph, feeds, true)]
    for (const name of graph.outputs) expectClose(a[name]!, b[name]!, 1e-5)
  })

  const ids: Input = { shape: [2, 3], values: [0, 3, 1, 2, 2, 4], dtype: 'int64', dims: ['batch', 'sequence'] }
  for (const [bits, zeros] of [
    [4, false],
    [4, true],
    [8, true],
  ] as const)
    it(`a table of ${bits} bits${zeros ? ' with zero points' : ''}`, async () => {
      const { graph, feeds } = graphOf([ids], (g, [at]) => {
        const table = g.initializer('table', bytes([5, (K * bits) / 8], 3, 'uint8'))
        const scales = g.initializer('scales', positive([5, 2], 4))
        const zero = zeros ? [g.initializer('zeros', bytes([5, Math.ceil((2 * bits) / 8)], 5, 'uint8'))] : []
        return [
          contrib(
            g,
            'GatherBlockQuantized',
            [table, at!, scales, ...zero],
            { bits: { i: bits }, block_size: { i: 16 }, quantize_axis: { i: 1 } },
            ['batch', 'sequence', K],
          ),
        ]
      })
      const result = lower(graph)
      expect(result.lowered).toEqual({ GatherBlockQuantized: 1 })
      const [a, b] = [await run(result.graph, feeds), await run(graph, feeds, true)]
      expectClose(Object.values(a)[0]!, Object.values(b)[0]!, 1e-6)
    })

  for (const dtype of ['int4', 'uint4'] as const)
    it(`a table of ${dtype}`, async () => {
      const { graph, feeds } = graphOf(
        [ids],
        (g, [at]) => {
          const four = (shape: number[], seed: number): Tensor => ({
            dtype,
            shape,
            data: bytes([Math.ceil(count(shape) / 2)], seed, 'uint8').data,
          })
          const inputs = [g.initializer('table', four([5, K], 3)), at!, g.initializer('scales', positive([5, 2], 4))]
          return [
            contrib(
              g,
              'GatherBlockQuantized',
              [...inputs, g.initializer('zeros', four([5, 2], 5))],
              { block_size: { i: 16 }, quantize_axis: { i: 1 } },
              ['batch', 'sequence', K],
            ),
          ]
        },
        21,
      )
      const result = lower(graph)
      const [a, b] = [await run(result.graph, feeds), await run(graph, feeds, true)]
      expectClose(Object.values(a)[0]!, Object.values(b)[0]!, 1e-6)
    })

  it('blocks of int4 in DequantizeLinear of opset 21 stay', async () => {
    const { graph, feeds } = graphOf(
      [x],
      (g, [input]) => {
        const w = g.initializer('weight', {
          dtype: 'int4',
          shape: [K, N],
          data: bytes([(K * N) / 2], 3, 'uint8').data as Uint8Array,
        })
        const scales = g.initializer('scales', positive([2, N], 4))
        const attributes = { axis: { i: 0 }, block_size: { i: 16 } }
        return [g.matmul(input!, g.one('DequantizeLinear', [w, scales], { attributes }))]
      },
      21,
    )
    const result = lower(graph)
    expect(result.lowered).toEqual({})
    const [a, b] = [await run(result.graph, feeds), await run(graph, feeds, true)]
    expectClose(Object.values(a)[0]!, Object.values(b)[0]!, 0.01)
  })
})

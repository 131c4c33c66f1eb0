import { describe, expect, it } from 'vitest'
import {
  type Attribute,
  type Dim,
  float32ToBfloat16,
  float32ToFloat16,
  type GraphBuilder,
  lower,
  type Tensor,
} from '../../src/onnx/index.ts'
import { expectClose, expectLowered, float, graphOf, type Input, run } from './lowering.ts'

const [B, S, hidden] = [2, 5, 8]
const rows: Input = { shape: [B, S, hidden], dims: ['batch', 'sequence', hidden] }
const vector = (g: GraphBuilder, name: string, seed: number) => g.initializer(name, float([hidden], seed))

const contrib = (
  g: GraphBuilder,
  op: string,
  inputs: string[],
  outputs: string[],
  attributes: Record<string, Attribute> = {},
  types: (Dim[] | undefined)[] = [],
): string[] =>
  g.node(op, inputs, {
    domain: 'com.microsoft',
    attributes,
    outputs,
    types: outputs.map((_, i) => ({ dtype: 'float32', shape: types[i] ?? ['batch', 'sequence', hidden] })),
  })

describe('fused normalisations', () => {
  const epsilon = { epsilon: { f: 1e-5 } }

  it('SkipLayerNormalization', () =>
    expectLowered(['SkipLayerNormalization'], [rows, rows], (g, [x, skip]) =>
      contrib(g, 'SkipLayerNormalization', [x!, skip!, vector(g, 'gamma', 3), vector(g, 'beta', 4)], ['y'], epsilon),
    ))

  it('SkipLayerNormalization with a bias, without beta, and with the sum that it normalises', () =>
    expectLowered(['SkipLayerNormalization'], [rows, rows], (g, [x, skip]) => {
      const inputs = [x!, skip!, vector(g, 'gamma', 3), '', vector(g, 'bias', 5)]
      const [y, , , sum] = contrib(g, 'SkipLayerNormalization', inputs, ['y', '', '', 'sum'])
      return [y!, sum!]
    }))

  it('SkipLayerNormalization of one skip for the whole batch', () =>
    expectLowered(
      ['SkipLayerNormalization'],
      [rows, { shape: [S, hidden], dims: ['sequence', hidden] }],
      (g, [x, skip]) =>
        contrib(g, 'SkipLayerNormalization', [x!, skip!, vector(g, 'gamma', 3), vector(g, 'beta', 4)], ['y']),
    ))

  it('SkipSimplifiedLayerNormalization, with and without a bias', () =>
    expectLowered(['SkipSimplifiedLayerNormalization'], [rows, rows], (g, [x, skip]) => {
      const gamma = vector(g, 'gamma', 3)
      const [y, , , sum] = contrib(
        g,
        'SkipSimplifiedLayerNormalization',
        [x!, skip!, gamma, vector(g, 'bias', 5)],
        ['y', '', '', 'sum'],
      )
      return [sum!, ...contrib(g, 'SkipSimplifiedLayerNormalization', [x!, y!, gamma], ['z'], epsilon)]
    }))

  const ids: Input = {
    shape: [B, S],
    values: [1, 5, 2, 0, 3, 4, 4, 1, 6, 2],
    dtype: 'int32',
    dims: ['batch', 'sequence'],
  }
  const segments: Input = { ...ids, values: [0, 0, 1, 1, 1, 0, 1, 0, 0, 0] }
  const words: Input = { shape: [7, hidden] }
  const tables = (g: GraphBuilder) => [
    g.initializer('positions', float([9, hidden], 4)),
    g.initializer('segments', float([2, hidden], 5)),
    vector(g, 'gamma', 6),
    vector(g, 'beta', 7),
  ]

  it('EmbedLayerNormalization', () =>
    expectLowered(['EmbedLayerNormalization'], [ids, segments, words], (g, [x, kinds, table]) =>
      contrib(g, 'EmbedLayerNormalization', [x!, kinds!, table!, ...tables(g)], ['y', 'unread']).slice(0, 1),
    ))

  it('EmbedLayerNormalization without segments, at given positions, with the number of tokens and the sum', () =>
    expectLowered(
      ['EmbedLayerNormalization'],
      [
        ids,
        { ...ids, values: [1, 1, 1, 0, 0, 1, 1, 1, 1, 0] },
        { ...ids, values: [3, 2, 1, 0, 8, 0, 1, 2, 3, 4] },
        words,
      ],
      (g, [x, mask, at, table]) => {
        const [positions, , gamma, beta] = tables(g) as [string, string, string, string]
        return g.node('EmbedLayerNormalization', [x!, '', table!, positions, '', gamma, beta, mask!, at!], {
          domain: 'com.microsoft',
          outputs: ['y', 'tokens', 'sum'],
          types: [
            { dtype: 'float32', shape: ['batch', 'sequence', hidden] },
            { dtype: 'int32', shape: ['batch'] },
            { dtype: 'float32', shape: ['batch', 'sequence', hidden] },
          ],
        })
      },
    ))
})

describe('other fused operators', () => {
  for (const activation of ['Relu', 'Sigmoid', 'Tanh'])
    it(`FusedGemm with ${activation}`, () =>
      expectLowered(['FusedGemm'], [{ shape: [3, hidden] }, { shape: [4, hidden] }, { shape: [4] }], (g, x) =>
        contrib(
          g,
          'FusedGemm',
          x,
          ['y'],
          { transB: { i: 1 }, alpha: { f: 0.5 }, beta: { f: 2 }, activation: { s: activation } },
          [[3, 4]],
        ),
      ))

  it('BiasSoftmax, for which ONNX Runtime has no kernel on the CPU', async () => {
    const inputs: Input[] = [{ shape: [2, 3, 4] }, { shape: [2, 1, 4] }]
    const attributes = { axis: { i: 2 }, is_inner_broadcast: { i: 1 } }
    const fused = graphOf(inputs, (g, x) => contrib(g, 'BiasSoftmax', x, ['y'], attributes, [[2, 3, 4]]))
    const plain = graphOf(inputs, (g, [x, bias]) => [g.softmax(g.add(x!, bias!))])
    const [lowered, wanted] = [await run(lower(fused.graph).graph, fused.feeds), await run(plain.graph, plain.feeds)]
    expectClose(lowered.y!, Object.values(wanted)[0]!, 0)
  })

  it('Dropout outside training', () =>
    expectLowered(['Dropout'], [rows], (g, [x]) => [g.one('Dropout', [g.neg(x!), g.scalar(0.5)])]))
})

describe('half precision', () => {
  /** A graph of float16 or bfloat16 between int64 ids and its output. */
  const halfGraph = (
    dtype: 'float16' | 'bfloat16',
    inputs: Input[],
    build: (g: GraphBuilder, x: string[], half: (name: string, t: Tensor) => string) => string[],
  ) =>
    graphOf(inputs, (g, x) =>
      build(g, x, (name, { shape, data }) => {
        const values = data as Float32Array
        const bits = dtype === 'float16' ? float32ToFloat16(values) : float32ToBfloat16(values)
        return g.initializer(name, { dtype, shape, data: bits })
      }),
    )
  const ids: Input = { shape: [2, 3], values: [0, 3, 1, 2, 2, 4], dtype: 'int64', dims: ['batch', 'sequence'] }
  const mask: Input = { shape: [2, 3], values: [1, 1, 0, 1, 1, 1], dtype: 'int64', dims: ['batch', 'sequence'] }

  it('computes in float32 with the weights as they are stored', async () => {
    const { graph, feeds } = halfGraph('float16', [ids, mask], (g, [words, visible], half) => {
      const x = g.gather(half('table', float([5, 4], 1)), words!)
      const product = g.matmul(x, half('weight', float([4, 4], 2)))
      // the lowest float16, as exporters write masks
      const hidden = g.mul(
        g.sub(half('one', { dtype: 'float32', shape: [], data: Float32Array.of(1) }), g.cast(visible!, 'float16')),
        half('lowest', { dtype: 'float32', shape: [], data: Float32Array.of(-65504) }),
      )
      const scores = g.add(g.matmul(product, g.transpose(x, [0, 2, 1])), g.unsqueeze(hidden, [1]))
      return [g.matmul(g.softmax(scores), x)]
    })
    const { graph: lowered, lowered: what } = lower(graph)
    expect(what).toEqual({ 'float16 weights': 2 })
    for (const name of ['table', 'weight']) expect(lowered.initializers.get(name)).toBe(graph.initializers.get(name))
    const stored = [...lowered.types].filter(([, { dtype }]) => dtype === 'float16').map(([name]) => name)
    const picked = lowered.nodes.find(({ op }) => op === 'Gather')!
    expect(picked.inputs).toEqual(['table', 'x0'])
    expect(stored.sort()).toEqual(['table', 'weight', ...picked.outputs].sort())
    const [output] = graph.outputs as [string]
    const [half, full] = [await run(graph, feeds, true), await run(lowered, feeds)]
    expect([half[output]!.dtype, full[output]!.dtype]).toEqual(['float16', 'float32'])
    expectClose(full[output]!, asFloat(half[output]!), 2e-3)
  })

  it('of bfloat16, which ONNX Runtime does not run on the CPU', async () => {
    const { graph, feeds } = halfGraph('bfloat16', [ids], (g, [words], half) => [
      g.matmul(g.gather(half('table', float([5, 4], 1)), words!), half('weight', float([4, 4], 2))),
    ])
    const { graph: lowered } = lower(graph)
    const [y] = Object.values(await run(lowered, feeds))
    expect(y).toMatchObject({ dtype: 'float32', shape: [2, 3, 4] })
  })

  it('converts inputs, constants of attributes, and casts', async () => {
    const { graph } = graphOf([{ shape: [2, 3], dtype: 'float16' }], (g, [x]) => {
      const fill = g.one('ConstantOfShape', [g.constant([2, 3], 'int64')], {
        attributes: { value: { t: { dtype: 'float16', shape: [1], data: float32ToFloat16(Float32Array.of(0.5)) } } },
      })
      return [g.cast(g.cast(g.add(x!, fill), 'float32'), 'float16')]
    })
    const { graph: lowered } = lower(graph)
    expect(lowered.types.get('x0')).toEqual({ dtype: 'float32', shape: [2, 3] })
    const x = float([2, 3], 1)
    const [y] = Object.values(await run(lowered, { x0: x }))
    expect(Array.from(y!.data, Number)).toEqual(Array.from(x.data as Float32Array, (v) => Math.fround(v + 0.5)))
  })
})

const asFloat = ({ shape, data }: Tensor): Tensor => ({
  dtype: 'float32',
  shape,
  data: Float32Array.from(data as Uint16Array, halfToNumber),
})

function halfToNumber(bits: number): number {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023]
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1 + fraction / 1024) * 2 ** (exponent - 15)
}

describe('lowering', () => {
  it('leaves graphs of known operators as they are', () => {
    const { graph } = graphOf([rows], (g, [x]) => [
      g.softmax(g.gelu(g.matmul(x!, g.initializer('w', float([hidden, 4], 1))))),
    ])
    const result = lower(graph)
    expect(result.lowered).toEqual({})
    expect(result.graph.nodes).toEqual(graph.nodes)
    expect(result.graph.initializers).toEqual(graph.initializers)
    expect(result.graph.types).toEqual(graph.types)
  })

  it('gives the values that it makes anew their old names, wherever they are read', async () => {
    const { graph } = graphOf([rows, rows], (g, [x, skip]) => {
      const norm = contrib(g, 'SkipLayerNormalization', [x!, skip!, vector(g, 'gamma', 3)], ['norm'])[0]!
      return [g.add(norm, g.one('Dropout', [norm], { outputs: ['dropped'] })), norm]
    })
    const { graph: lowered } = lower(graph)
    const produced = new Map(lowered.nodes.flatMap((node) => node.outputs.map((output) => [output, node.op])))
    expect(produced.get('norm')).toBe('LayerNormalization')
    expect(produced.get('dropped')).toBe('Identity')
    expect(lowered.outputs).toEqual(graph.outputs)
    for (const [name, type] of graph.types) if (lowered.types.has(name)) expect(lowered.types.get(name)).toEqual(type)
  })

  it('leaves the graph given as it was', () => {
    const { graph } = graphOf([rows, rows], (g, [x, skip]) =>
      contrib(g, 'SkipLayerNormalization', [x!, skip!, vector(g, 'gamma', 3)], ['norm']),
    )
    const before = structuredClone(graph)
    lower(graph)
    expect(graph).toEqual(before)
  })

  /** The message of lowering one fused node. */
  const refusal = (
    op: string,
    inputs: Input[],
    attributes: Record<string, Attribute>,
    more: (g: GraphBuilder, x: string[]) => string[] = (_, x) => x,
  ) => {
    const { graph } = graphOf(inputs, (g, x) =>
      g.node(op, more(g, x), {
        name: 'layer.0/fused',
        domain: 'com.microsoft',
        attributes,
        types: [{ dtype: 'float32', shape: [B, S, hidden] }],
      }),
    )
    return () => lower(graph)
  }
  const packed = (g: GraphBuilder, [x]: string[]) => [x!, g.initializer('w', float([hidden, 3 * hidden], 1))]

  it('names the node, the attribute and the way out for what it does not know', () => {
    expect(refusal('Attention', [rows], { num_heads: { i: 2 }, do_rotary: { i: 1 } }, packed)).toThrow(
      'node "layer.0/fused" (Attention): the attribute do_rotary = 1 is not supported. Export the model without this optimisation',
    )
    expect(refusal('Attention', [rows], { num_heads: { i: 3 } }, packed)).toThrow('8 columns are no 3 heads')
    expect(refusal('FusedGemm', [{ shape: [2, 3] }, { shape: [3, 2] }], { activation: { s: 'LeakyRelu' } })).toThrow(
      'the activation "LeakyRelu" is not supported',
    )
  })

  it('refuses keys and values of earlier runs, but for those that a caller can leave out', () => {
    const past = (g: GraphBuilder, x: string[]) => [...packed(g, x), '', '', x[1]!]
    const attributes = { num_heads: { i: 2 } }
    const shape = [2, B, 2, 3, 4]
    expect(refusal('Attention', [rows, { shape }], attributes, past)).toThrow(
      'it reads past keys and values, "x1" of length 3. Export the model for feature extraction',
    )
    const dims = [2, 'batch', 2, 'past', 4]
    expect(refusal('Attention', [rows, { shape, dims }], attributes, past)).not.toThrow()
    const computed = (g: GraphBuilder, x: string[]) => [...packed(g, x), '', '', g.neg(x[1]!)]
    expect(refusal('Attention', [rows, { shape, dims }], attributes, computed)).toThrow(/ of length past\. Export/)
  })

  it('says which operators compute on quantised activations', () => {
    expect(refusal('QGemm', [{ shape: [2, 3] }], {})).toThrow(
      'node "layer.0/fused" (QGemm): QGemm computes on quantised activations. Train the float model',
    )
  })
})

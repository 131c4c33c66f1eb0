import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type Attribute, type Dim, type GraphBuilder, lower, type Tensor } from '../../src/onnx/index.ts'
import { expectClose, expectLowered, float, graphOf, type Input, run } from './lowering.ts'

const contrib = (
  g: GraphBuilder,
  op: string,
  inputs: string[],
  attributes: Record<string, Attribute>,
  shapes: Dim[][],
): string[] =>
  g.node(op, inputs, {
    domain: 'com.microsoft',
    attributes,
    outputs: shapes.length,
    types: shapes.map((shape) => ({ dtype: 'float32', shape })),
  })

const [B, S, hidden, heads] = [2, 5, 12, 3]
const x: Input = { shape: [B, S, hidden], dims: ['batch', 'sequence', hidden] }

describe('com.microsoft Attention', () => {
  /** Attention over x0 with inputs after the bias, and attributes. */
  const attention = (
    more: (x: string[]) => string[],
    attributes: Record<string, Attribute> = {},
    sizes = [hidden, hidden, hidden],
  ) => {
    const columns = sizes.reduce((a, b) => a + b, 0)
    return (g: GraphBuilder, inputs: string[]) => {
      const weights = g.initializer('qkv.weight', float([hidden, columns], 7, 0.4))
      const bias = g.initializer('qkv.bias', float([columns], 8))
      return contrib(
        g,
        'Attention',
        [inputs[0]!, weights, bias, ...more(inputs)],
        { num_heads: { i: heads }, ...attributes },
        [[...g.shape(inputs[0]!).slice(0, 2), sizes[2]!]],
      )
    }
  }

  it('keeps the packed weights in one product', async () => {
    const graph = await expectLowered(
      ['Attention'],
      [x],
      attention(() => []),
    )
    const product = graph.nodes.find((node) => node.inputs.includes('qkv.weight'))
    expect(product).toMatchObject({ op: 'MatMul', inputs: ['x0', 'qkv.weight'] })
    const sum = graph.nodes.find((node) => node.inputs.includes(product!.outputs[0]!))
    const parts = graph.nodes.find((node) => node.inputs.includes(sum!.outputs[0]!))
    expect([sum!.op, parts!.op]).toEqual(['Add', 'Split'])
  })

  it('with values of another width than queries and keys', () =>
    expectLowered(
      ['Attention'],
      [x],
      attention(() => [], { qkv_hidden_sizes: { ints: [hidden, hidden, 6] } }, [hidden, hidden, 6]),
    ))

  it('causal, with a scale of its own', () =>
    expectLowered(
      ['Attention'],
      [x],
      attention(() => [], { unidirectional: { i: 1 }, scale: { f: 0.7 } }),
    ))

  const masks: [string, Input][] = [
    ['lengths', { shape: [B], values: [5, 3], dtype: 'int32', dims: ['batch'] }],
    [
      '0 and 1 for each key',
      { shape: [B, S], values: [1, 1, 1, 1, 1, 0, 1, 1, 1, 0], dtype: 'int32', dims: ['batch', 'sequence'] },
    ],
    [
      '0 and 1 for each query and key',
      {
        shape: [B, S, S],
        values: Array.from({ length: B * S * S }, (_, i) => (i % 3 === 1 ? 0 : 1)),
        dtype: 'int32',
        dims: ['batch', 'sequence', 'sequence'],
      },
    ],
  ]
  for (const [name, mask] of masks) {
    it(`with a mask of ${name}`, () =>
      expectLowered(
        ['Attention'],
        [x, mask],
        attention(([, m]) => [m!]),
      ))
    it(`causal, with a mask of ${name} and a filter value`, () =>
      expectLowered(
        ['Attention'],
        [x, mask],
        attention(([, m]) => [m!], { unidirectional: { i: 1 }, mask_filter_value: { f: -50 } }),
      ))
  }

  // its keys keep their weights among each other: the filter value is added to all of them
  it('with a mask that leaves a text no key', () =>
    expectLowered(
      ['Attention'],
      [x, { shape: [B, S], values: [1, 1, 1, 1, 1, 0, 0, 0, 0, 0], dtype: 'int32', dims: ['batch', 'sequence'] }],
      attention(([, m]) => [m!], { mask_filter_value: { f: -50 } }),
    ))

  it('with a mask of ends and starts', () =>
    expectLowered(
      ['Attention'],
      [{ shape: [B, S, hidden] }, { shape: [2 * B], values: [4, 5, 1, 2], dtype: 'int32' }],
      attention(([, m]) => [m!]),
    ))

  it('with a bias of the scores', () =>
    expectLowered(
      ['Attention'],
      [x, { shape: [1, heads, S, S], dims: [1, heads, 'sequence', 'sequence'] }],
      attention(([, bias]) => ['', '', bias!]),
    ))

  it('with the keys and values that it computed', () =>
    expectLowered(['Attention'], [x], (g, [input]) => {
      const weights = g.initializer('w', float([hidden, 3 * hidden], 7, 0.4))
      const past = g.initializer('past', { dtype: 'float32', shape: [2, B, heads, 0, 4], data: new Float32Array() })
      const bias = g.initializer('b', float([3 * hidden], 8))
      return contrib(g, 'Attention', [input!, weights, bias, '', past], { num_heads: { i: heads } }, [
        ['batch', 'sequence', hidden],
        [2, 'batch', heads, 'sequence', 4],
      ])
    }))
})

describe('com.microsoft MultiHeadAttention', () => {
  const T = 4
  const keys: Input = { shape: [B, T, hidden], dims: ['batch', 'keys', hidden] }
  const values: Input = { shape: [B, T, 6], dims: ['batch', 'keys', 6] }
  const multiHead =
    (more: (x: string[]) => string[], attributes: Record<string, Attribute> = {}, width = 6) =>
    (g: GraphBuilder, inputs: string[]) =>
      contrib(
        g,
        'MultiHeadAttention',
        [...inputs.slice(0, 3), ...more(inputs)],
        { num_heads: { i: heads }, ...attributes },
        [[...g.shape(inputs[0]!).slice(0, 2), width]],
      )

  it('over keys of another length, values of another width', () =>
    expectLowered(
      ['MultiHeadAttention'],
      [x, keys, values],
      multiHead(() => []),
    ))

  it('with the projections’ bias', () =>
    expectLowered(
      ['MultiHeadAttention'],
      [x, keys, values, { shape: [2 * hidden + 6] }],
      multiHead(([, , , bias]) => [bias!], { scale: { f: 0.3 } }),
    ))

  for (const [name, mask] of [
    ['lengths', { shape: [B], values: [4, 2], dtype: 'int32', dims: ['batch'] }],
    ['each key', { shape: [B, T], values: [1, 1, 1, 0, 0, 1, 1, 1], dtype: 'int32', dims: ['batch', 'keys'] }],
    [
      'each query and key',
      {
        shape: [B, S, T],
        values: Array.from({ length: B * S * T }, (_, i) => (i % 3 === 1 ? 0 : 1)),
        dtype: 'int32',
        dims: ['batch', 'sequence', 'keys'],
      },
    ],
  ] satisfies [string, Input][])
    it(`with a mask of ${name}`, () =>
      expectLowered(
        ['MultiHeadAttention'],
        [x, keys, values, mask],
        multiHead(([, , , m]) => ['', m!]),
      ))

  it('with a length of 0', () =>
    expectLowered(
      ['MultiHeadAttention'],
      [x, keys, values, { shape: [B], values: [4, 0], dtype: 'int32', dims: ['batch'] }],
      multiHead(([, , , m]) => ['', m!], { mask_filter_value: { f: -50 } }),
    ))

  it('with a bias of the scores', () =>
    expectLowered(
      ['MultiHeadAttention'],
      [x, keys, values, { shape: [B, 1, S, T], dims: ['batch', 1, 'sequence', 'keys'] }],
      multiHead(([, , , bias]) => ['', '', bias!]),
    ))

  it('causal', () =>
    expectLowered(
      ['MultiHeadAttention'],
      [x, x, x],
      multiHead(() => [], { unidirectional: { i: 1 } }, hidden),
    ))

  for (const form of ['queries, keys and values', 'keys and values'])
    it(`with ${form} packed, which ONNX Runtime's CPU does not run`, async () => {
      const width = hidden / heads
      const part = (n: number) => float([B, S, hidden], n)
      // [batch, length, heads, parts, width]
      const pack = (parts: Tensor[]): Tensor => {
        const data = new Float32Array(B * S * hidden * parts.length)
        parts.forEach((tensor, n) => {
          tensor.data.forEach((v: number | bigint, i: number) => {
            data[(Math.floor(i / width) * parts.length + n) * width + (i % width)] = Number(v)
          })
        })
        return { dtype: 'float32', shape: [B, S, heads, parts.length, width], data }
      }
      const apart = { x0: part(1), x1: part(2), x2: part(3) }
      const packed: Tensor[] =
        form === 'keys and values' ? [apart.x0, pack([apart.x1, apart.x2])] : [pack(Object.values(apart))]
      const build = (g: GraphBuilder, inputs: string[]) =>
        contrib(g, 'MultiHeadAttention', inputs, { num_heads: { i: heads } }, [[B, S, hidden]])
      const { graph } = graphOf(
        packed.map(({ shape }) => ({ shape })),
        build,
      )
      const found = await run(lower(graph).graph, Object.fromEntries(packed.map((tensor, i) => [`x${i}`, tensor])))
      const wanted = await run(graphOf(Array<Input>(3).fill({ shape: [B, S, hidden] }), build).graph, apart)
      expectClose(Object.values(found)[0]!, Object.values(wanted)[0]!, 1e-5)
    })

  it('over keys and values that are split into heads already', () =>
    expectLowered(
      ['MultiHeadAttention'],
      [x, ...Array<Input>(2).fill({ shape: [B, heads, T, 4], dims: ['batch', heads, 'keys', 4] })],
      multiHead(() => [], {}, hidden),
    ))
})

describe('com.microsoft GroupQueryAttention', () => {
  const [B, S, queryHeads, keyHeads, width] = [1, 3, 4, 2, 16]
  const lengths: Input = { shape: [B], values: [S - 1], dtype: 'int32', dims: ['batch'] }
  const query: Input = { shape: [B, S, queryHeads * width], dims: ['batch', 'sequence', queryHeads * width] }
  const key: Input = { shape: [B, S, keyHeads * width], dims: ['batch', 'sequence', keyHeads * width] }
  const grouped =
    (attributes: Record<string, Attribute>, packed = false, positions = false) =>
    (g: GraphBuilder, inputs: string[]) => {
      const total = g.constant([S], 'int32', [])
      const angles = float([16, width / 2], 3)
      const table = (name: string, f: (x: number) => number) =>
        g.initializer(name, {
          dtype: 'float32',
          shape: angles.shape,
          data: Float32Array.from(angles.data as Float32Array, f),
        })
      const rotary = 'do_rotary' in attributes ? [table('cos', Math.cos), table('sin', Math.sin)] : ['', '']
      const [q, k, v] = packed ? [inputs[0]!, '', ''] : (inputs as [string, string, string])
      const seqlens = packed ? inputs[1]! : inputs[3]!
      const past = (name: string) =>
        g.initializer(name, { dtype: 'float32', shape: [B, keyHeads, 0, width], data: new Float32Array() })
      return contrib(
        g,
        'GroupQueryAttention',
        [
          q,
          k,
          v,
          past('past_key'),
          past('past_value'),
          seqlens,
          total,
          ...rotary,
          ...(positions ? [inputs.at(-1)!] : []),
        ],
        { num_heads: { i: queryHeads }, kv_num_heads: { i: keyHeads }, ...attributes },
        [
          ['batch', 'sequence', queryHeads * width],
          ['batch', keyHeads, 'sequence', width],
          ['batch', keyHeads, 'sequence', width],
        ],
      )
    }
  const apart = [query, key, key, lengths]

  it('causal, keys and values shared by groups of heads', () =>
    expectLowered(['GroupQueryAttention'], apart, grouped({ scale: { f: 0.5 } })))
  it('with soft-capped scores', () => expectLowered(['GroupQueryAttention'], apart, grouped({ softcap: { f: 1.5 } })))
  it('within a window', () => expectLowered(['GroupQueryAttention'], apart, grouped({ local_window_size: { i: 2 } })))
  it('with rotary embeddings', () => expectLowered(['GroupQueryAttention'], apart, grouped({ do_rotary: { i: 1 } })))
  it('with interleaved rotary embeddings', () =>
    expectLowered(['GroupQueryAttention'], apart, grouped({ do_rotary: { i: 1 }, rotary_interleaved: { i: 1 } })))
  it('with rotary embeddings at given positions', () =>
    expectLowered(
      ['GroupQueryAttention'],
      [
        ...apart,
        { shape: [B, S], values: Array.from({ length: S }, (_, i) => i), dtype: 'int64', dims: ['batch', 'sequence'] },
      ],
      grouped({ do_rotary: { i: 1 } }, false, true),
    ))
  it('with queries, keys and values packed', () => {
    const columns = (queryHeads + 2 * keyHeads) * width
    return expectLowered(
      ['GroupQueryAttention'],
      [{ shape: [B, S, columns], dims: ['batch', 'sequence', columns] }, lengths],
      grouped({ do_rotary: { i: 1 } }, true),
    )
  })
})

describe('attention of any size', () => {
  const size = (max: number) => fc.integer({ min: 1, max })

  /** Checks an operator whose output is [batch, length, columns] against its lowered form. */
  const expectSame = async (
    op: string,
    inputs: Input[],
    columns: number,
    attributes: Record<string, Attribute>,
    build: (g: GraphBuilder, x: string[]) => string[],
  ) => {
    const { graph, feeds } = graphOf(inputs, (g, x) =>
      contrib(g, op, build(g, x), attributes, [[...g.shape(x[0]!).slice(0, 2), columns]]),
    )
    const [found, wanted] = [await run(lower(graph).graph, feeds), await run(graph, feeds, true)]
    expectClose(Object.values(found)[0]!, Object.values(wanted)[0]!, 1e-5)
  }

  it('MultiHeadAttention', () =>
    fc.assert(
      fc.asyncProperty(
        fc.record({ batch: size(3), queries: size(5), keys: size(5), heads: size(4), width: size(5), wide: size(5) }),
        fc.constantFrom('none', 'lengths', 'keys', 'pairs'),
        fc.infiniteStream(fc.integer({ min: 0, max: 1 })),
        async ({ batch, queries, keys, heads, width, wide }, form, bits) => {
          const shapes = { none: [], lengths: [batch], keys: [batch, keys], pairs: [batch, queries, keys] }
          const shape = shapes[form]
          const draw = () => bits.next().value as number
          const values = Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () =>
            form === 'lengths' ? 1 + draw() * (keys - 1) : draw(),
          )
          const mask: Input[] = form === 'none' ? [] : [{ shape, values, dtype: 'int32' }]
          await expectSame(
            'MultiHeadAttention',
            [
              { shape: [batch, queries, heads * width] },
              { shape: [batch, keys, heads * width] },
              { shape: [batch, keys, heads * wide] },
              ...mask,
            ],
            heads * wide,
            { num_heads: { i: heads } },
            (_, [q, k, v, m]) => [q!, k!, v!, '', m ?? ''],
          )
        },
      ),
      { numRuns: 40 },
    ))

  it('GroupQueryAttention over texts padded on the right', () =>
    fc.assert(
      fc.asyncProperty(
        fc.record({ length: size(6), keyHeads: size(3), groups: size(3), window: fc.constantFrom(-1, 1, 2, 4) }),
        fc.array(size(6), { minLength: 1, maxLength: 3 }),
        async ({ length, keyHeads, groups, window }, sizes) => {
          const lengths = sizes.map((n) => Math.min(n, length))
          lengths[0] = length
          const [batch, width, heads] = [lengths.length, 16, keyHeads * groups]
          const inputs: Input[] = [
            { shape: [batch, length, heads * width] },
            { shape: [batch, length, keyHeads * width] },
            { shape: [batch, length, keyHeads * width] },
            { shape: [batch], values: lengths.map((n) => n - 1), dtype: 'int32' },
          ]
          const attributes = {
            num_heads: { i: heads },
            kv_num_heads: { i: keyHeads },
            local_window_size: { i: window },
          }
          const { graph, feeds } = graphOf(inputs, (g, [q, k, v, seqlens]) => {
            const total = g.constant([length], 'int32', [])
            return contrib(g, 'GroupQueryAttention', [q!, k!, v!, '', '', seqlens!, total], attributes, [
              [batch, length, heads * width],
              [batch, keyHeads, length, width],
              [batch, keyHeads, length, width],
            ]).slice(0, 1)
          })
          const [found, wanted] = [await run(lower(graph).graph, feeds), await run(graph, feeds, true)]
          // rows of padding are left open
          const columns = heads * width
          const rows = (result: Record<string, { data: ArrayLike<unknown> }>) =>
            lengths.flatMap((n, row) =>
              Array.from(Object.values(result)[0]!.data as Float32Array).slice(
                row * length * columns,
                (row * length + n) * columns,
              ),
            )
          const [a, b] = [rows(found), rows(wanted)]
          expect(a.reduce((m, v, i) => Math.max(m, Math.abs(v - b[i]!)), 0)).toBeLessThan(1e-5)
        },
      ),
      { numRuns: 40 },
    ))
})

describe('Attention of opset 23', () => {
  const standard =
    (shape: Dim[], attributes: Record<string, Attribute> = {}) =>
    (g: GraphBuilder, inputs: string[]) =>
      g.node('Attention', inputs, { attributes, types: [{ dtype: 'float32', shape }] })
  const split = (heads: number, length: number, width: number): Input => ({ shape: [B, heads, length, width] })
  const opset = 23

  it('over heads, fewer of keys than of queries', () =>
    expectLowered(
      ['Attention'],
      [split(4, S, 8), split(2, 3, 8), split(2, 3, 5)],
      standard([B, 4, S, 5], { scale: { f: 0.4 }, softcap: { f: 2 } }),
      { opset },
    ))
  it('over rows of joined heads, causal', () =>
    expectLowered(
      ['Attention'],
      [x, x, x],
      standard(['batch', 'sequence', hidden], {
        is_causal: { i: 1 },
        q_num_heads: { i: heads },
        kv_num_heads: { i: heads },
      }),
      { opset },
    ))
  it('with a mask of booleans', () =>
    expectLowered(
      ['Attention'],
      [
        split(3, S, 4),
        split(3, S, 4),
        split(3, S, 4),
        {
          shape: [B, 1, S, S],
          values: Array.from({ length: B * S * S }, (_, i) => (i % 3 === 1 ? 0 : 1)),
          dtype: 'bool',
        },
      ],
      standard([B, 3, S, 4]),
      { opset },
    ))
  // query 1 of text 0 sees no key; with the causal mask, query 0 of text 1 does not either
  const unseen = (b: number, q: number, k: number) => (b === 0 && q === 1) || (b === 1 && k === 0)
  const places = Array.from({ length: B * S * S }, (_, i) =>
    unseen(Math.floor(i / (S * S)), Math.floor(i / S) % S, i % S),
  )
  const masks: [string, Input][] = [
    ['booleans', { shape: [B, 1, S, S], values: places.map((no) => (no ? 0 : 1)), dtype: 'bool' }],
    ['numbers', { shape: [B, 1, S, S], values: places.map((no, i) => (no ? Number.NEGATIVE_INFINITY : i / 9)) }],
  ]
  for (const [what, mask] of masks)
    for (const causal of [0, 1])
      it(`gives 0, and no gradient, to a query that a mask of ${what} leaves no key${causal ? ', causal' : ''}`, () =>
        expectLowered(
          ['Attention'],
          [split(3, S, 4), split(3, S, 4), split(3, S, 4), mask],
          standard([B, 3, S, 4], { is_causal: { i: causal } }),
          { opset, gradients: [0, 1, 2] },
        ))
  it('with a bias, causal', () =>
    expectLowered(
      ['Attention'],
      [split(3, S, 4), split(3, S, 4), split(3, S, 4), { shape: [S, S] }],
      standard([B, 3, S, 4], { is_causal: { i: 1 } }),
      { opset },
    ))
})

describe('rotary embeddings', () => {
  const cosines = (g: GraphBuilder, half: number) => {
    const angles = float([16, half], 3)
    const table = (name: string, f: (x: number) => number) =>
      g.initializer(name, {
        dtype: 'float32',
        shape: angles.shape,
        data: Float32Array.from(angles.data as Float32Array, f),
      })
    return [table('cos', Math.cos), table('sin', Math.sin)]
  }
  const positions: Input = {
    shape: [B, S],
    values: [0, 1, 2, 3, 4, 9, 8, 7, 6, 5],
    dtype: 'int64',
    dims: ['batch', 'sequence'],
  }
  const first: Input = { shape: [1], values: [3], dtype: 'int64' }
  const rows: Input = { shape: [B, S, 24], dims: ['batch', 'sequence', 24] }
  const split: Input = { shape: [B, heads, S, 8], dims: ['batch', heads, 'sequence', 8] }
  const rotary =
    (half: number, attributes: Record<string, Attribute> = {}) =>
    (g: GraphBuilder, [input, at]: string[]) =>
      contrib(g, 'RotaryEmbedding', [input!, at!, ...cosines(g, half)], attributes, [g.shape(input!)])
  const partly = { num_heads: { i: heads }, rotary_embedding_dim: { i: 4 } }

  for (const interleaved of [0, 1]) {
    const style = { interleaved: { i: interleaved } }
    const name = interleaved ? 'interleaved' : 'in halves'
    it(`of rows, ${name}, at given positions`, () =>
      expectLowered(['RotaryEmbedding'], [rows, positions], rotary(4, style)))
    it(`of heads, ${name}, from a first position on`, () =>
      expectLowered(['RotaryEmbedding'], [split, first], rotary(4, style)))
    it(`of a part of each head, ${name}`, () =>
      expectLowered(['RotaryEmbedding'], [rows, positions], rotary(2, { ...style, ...partly })))
    it(`of opset 23, ${name}`, () =>
      expectLowered(
        ['RotaryEmbedding'],
        [rows, positions],
        (g, [input, at]) => [
          g.one('RotaryEmbedding', [input!, ...cosines(g, 4), at!], {
            attributes: { num_heads: { i: heads }, ...style },
          }),
        ],
        { opset: 23 },
      ))
  }

  it('of opset 23 with angles for each token', () =>
    expectLowered(
      ['RotaryEmbedding'],
      [
        split,
        { shape: [B, S, 4], dims: ['batch', 'sequence', 4] },
        { shape: [B, S, 4], dims: ['batch', 'sequence', 4] },
      ],
      (g, inputs) => [g.one('RotaryEmbedding', inputs)],
      { opset: 23 },
    ))
})

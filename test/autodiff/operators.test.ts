import { describe, expect, it } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import type { Attribute, Dim } from '../../src/onnx/index.ts'
import { GraphBuilder } from '../../src/onnx/index.ts'
import { compareGradients, type Input, type Options } from './finite-differences.ts'

/** Numbers in [low, high], from a seed. */
function uniform(shape: number[], seed: number, low = -2, high = 2): number[] {
  return Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => {
    const u = Math.sin((i + 1) * 12.9898 + seed * 78.233) * 43758.5453
    return low + (high - low) * (u - Math.floor(u))
  })
}

/** Numbers at least 0.2 from each of `kinks`. */
function away(shape: number[], kinks: number[], low = -2, high = 2): number[] {
  return uniform(shape, 5, low, high).map((v) =>
    kinks.reduce((x, k) => (Math.abs(x - k) < 0.2 ? k + (x < k ? -0.2 : 0.2) : x), v),
  )
}

type Build = (g: GraphBuilder, x: string[]) => string | string[]

const input = (shape: number[], seed = 1, low?: number, high?: number): Input => ({
  shape,
  values: uniform(shape, seed, low, high),
})
const index = (shape: number[], ...values: number[]): Input => ({ shape, values, dtype: 'int64' })

/** Gradients agree with finite differences, for fixed sizes and for symbols. */
async function agree(build: Build, inputs: Input[], options: Options = {}): Promise<void> {
  for (const symbolic of [false, true])
    for (const c of await compareGradients(build, inputs, { symbolic, ...options })) {
      expect(c.shape).toEqual(inputs[c.input]!.shape)
      expect(
        c.error,
        `input ${c.input}: ${c.analytic.join(' ')} against differences ${c.numeric.join(' ')}`,
      ).toBeLessThan(options.dtype === 'float32' ? 3e-3 : 1e-6)
    }
}

const node =
  (op: string, attributes: Record<string, Attribute> = {}, outputs?: number): Build =>
  (g, x) => {
    const made = g.node(op, x, { attributes, ...(outputs === undefined ? {} : { outputs }) })
    return made[0] as string
  }

const i = (n: number): Attribute => ({ i: n })
const f = (n: number): Attribute => ({ f: n })
const ints = (...values: number[]): Attribute => ({ ints: values })
const float32: Options = { dtype: 'float32' }

describe('functions of one number', () => {
  const shape = [2, 3]
  const cases: [string, { values?: number[]; attributes?: Record<string, Attribute>; opset?: number }][] = [
    ['Tan', { values: uniform(shape, 1, -1, 1) }],
    ['Sinh', {}],
    ['Cosh', {}],
    ['Asin', { values: uniform(shape, 1, -0.8, 0.8) }],
    ['Acos', { values: uniform(shape, 1, -0.8, 0.8) }],
    ['Atan', {}],
    ['Asinh', {}],
    ['Acosh', { values: uniform(shape, 1, 1.5, 3) }],
    ['Atanh', { values: uniform(shape, 1, -0.8, 0.8) }],
    ['LeakyRelu', { values: away(shape, [0]), attributes: { alpha: f(0.3) } }],
    ['ThresholdedRelu', { values: away(shape, [0.5]), attributes: { alpha: f(0.5) } }],
    ['Elu', { values: away(shape, [0]), attributes: { alpha: f(1.5) } }],
    ['Selu', { values: away(shape, [0]) }],
    ['Celu', { values: away(shape, [0]), attributes: { alpha: f(2) } }],
    ['HardSigmoid', { values: away(shape, [-2.5, 2.5], -4, 4) }],
    ['HardSwish', { values: away(shape, [-3, 3], -5, 5) }],
    ['Softsign', { values: away(shape, [0]) }],
    ['Mish', { opset: 18 }],
    ['Shrink', { values: away(shape, [-0.5, 0.5]), attributes: { bias: f(0.25) } }],
    ['Dropout', {}],
  ]
  for (const [op, { values = uniform(shape, 1), attributes, opset }] of cases)
    it(op, () => agree(node(op, attributes), [{ shape, values }], { ...float32, ...(opset ? { opset } : {}) }))

  it('com.microsoft QuickGelu with its own alpha', () =>
    agree(
      (g, [x]) => g.one('QuickGelu', [x!], { domain: 'com.microsoft', attributes: { alpha: f(1.2) } }),
      [input(shape)],
      float32,
    ))
  it('CastLike takes the gradient back to the element type of its input', () =>
    agree((g, [x]) => g.cast(g.exp(g.one('CastLike', [x!, g.scalar(1, 'float64')])), 'float32'), [input([3])], float32))
  it('Dropout in training mode is refused', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2])
    const y = g.one('Dropout', [x, g.scalar(0.5), g.constant([1], 'bool', [])])
    expect(() => addGradients(g.build(), { [y]: 1 }, [x])).toThrow(/No gradient for: Dropout in training mode/)
  })
})

describe('functions of several numbers', () => {
  it('PRelu, its slope broadcast', () =>
    agree(node('PRelu'), [{ shape: [2, 3, 2], values: away([2, 3, 2], [0]) }, input([3, 1], 2)], float32))
  it('Mean of three, broadcast', () => agree(node('Mean'), [input([2, 3]), input([3], 2), input([2, 1], 3)], float32))
  it('Mod of floats', () =>
    agree(node('Mod', { fmod: i(1) }), [
      { shape: [4], values: [5.3, -5.3, 2.2, -0.9] },
      { shape: [4], values: [2.1, 1.4, -0.8, 3] },
    ]))
})

describe('reductions', () => {
  for (const keepdims of [0, 1])
    for (const op of ['ReduceL1', 'ReduceLogSum', 'ReduceLogSumExp', 'ReduceProd']) {
      const values = op === 'ReduceL1' ? away([2, 3, 2], [0]) : uniform([2, 3, 2], 3, 0.3, 1.5)
      it(`${op}, keepdims ${keepdims}`, () =>
        agree(
          (g, [x]) => g.exp(g.one(op, [x!], { attributes: { axes: { ints: [0, -1] }, keepdims: i(keepdims) } })),
          [{ shape: [2, 3, 2], values: values.map((v) => v / 2) }],
          op === 'ReduceLogSumExp' ? {} : float32,
        ))
    }
  it('ReduceProd of rows with no, one and two zeros', () =>
    agree(
      node('ReduceProd', { axes: { ints: [1] } }),
      [{ shape: [3, 3], values: [2, 0.5, -1, 0, 3, 2, 0, 0, 2] }],
      float32,
    ))
  for (const [exclusive, reverse] of [
    [0, 0],
    [1, 0],
    [0, 1],
    [1, 1],
  ] as const)
    it(`CumSum, exclusive ${exclusive}, reverse ${reverse}`, () =>
      agree(
        (g, [x]) =>
          g.exp(
            g.one('CumSum', [g.mul(x!, g.scalar(0.3, 'float64')), g.constant([1], 'int64', [])], {
              attributes: { exclusive: i(exclusive), reverse: i(reverse) },
            }),
          ),
        [input([2, 4])],
      ))
  it('TopK', () =>
    agree(
      (g, [x]) => g.exp(g.node('TopK', [x!, g.constant([2], 'int64')], { outputs: 2, attributes: { axis: i(0) } })[0]!),
      [{ shape: [4, 2], values: [0.1, 2, -1, 0.5, 1, -0.4, 0.6, 1.2] }],
    ))
})

describe('Einsum', () => {
  const cases: [string, number[][]][] = [
    [
      'ij,jk->ik',
      [
        [2, 3],
        [3, 2],
      ],
    ],
    [
      'bhqd,bhkd->bhqk',
      [
        [1, 2, 3, 2],
        [1, 2, 2, 2],
      ],
    ],
    [
      '...ij,...jk->...ik',
      [
        [2, 2, 3],
        [2, 3, 2],
      ],
    ],
    ['ij->ji', [[2, 3]]],
    ['ij->i', [[2, 3]]],
    ['ij->', [[2, 3]]],
    ['i,j', [[2], [3]]],
    [
      'ij,jk,kl->il',
      [
        [2, 3],
        [3, 2],
        [2, 2],
      ],
    ],
    [
      'bij,bj->bi',
      [
        [1, 2, 3],
        [2, 3],
      ],
    ],
  ]
  for (const [equation, shapes] of cases)
    it(equation, () =>
      agree(
        node('Einsum', { equation: { s: equation } }),
        shapes.map((shape, k) => input(shape, k)),
        // a batch of 1 that broadcasts is a size, not a symbol
        equation.startsWith('bij') ? { shapes: shapes as Dim[][] } : {},
      ),
    )
  it('of a diagonal is refused', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2, 2])
    const y = g.one('Einsum', [x], { attributes: { equation: { s: 'ii->i' } } })
    expect(() => addGradients(g.build(), { [y]: 1 }, [x])).toThrow(/No gradient for: Einsum "ii->i".*node "Einsum"/)
  })
})

describe('moving and picking', () => {
  for (const upper of [0, 1])
    it(`Trilu, upper ${upper}, beside the diagonal`, () =>
      agree(
        (g, [x]) => g.exp(g.one('Trilu', [x!, g.constant([1], 'int64', [])], { attributes: { upper: i(upper) } })),
        [input([2, 3, 4])],
      ))
  it('ScatterElements, data and updates', () =>
    agree(
      (g, [x, at, u]) => g.exp(g.one('ScatterElements', [x!, at!, u!], { attributes: { axis: i(1) } })),
      [input([2, 4]), index([2, 2], 0, -1, 2, 1), input([2, 2], 2)],
    ))
  it('ScatterElements that adds', () =>
    agree(
      (g, [x, at, u]) => g.exp(g.one('ScatterElements', [x!, at!, u!], { attributes: { reduction: { s: 'add' } } })),
      [input([3, 2]), index([2, 2], 0, 2, 0, 1), input([2, 2], 2)],
      { opset: 18 },
    ))
  it('ScatterND, data and updates', () =>
    agree((g, x) => g.exp(g.one('ScatterND', x)), [input([4, 3]), index([2, 1], 1, -1), input([2, 3], 2)]))
  it('GatherND, rows taken several times, negative indices', () =>
    agree((g, x) => g.exp(g.one('GatherND', x)), [input([3, 2, 2]), index([4, 2], 0, 1, -1, 0, 0, 1, 2, -1)], {
      shapes: [
        ['a', 'b', 'c'],
        ['n', 2],
      ],
    }))
  it('GatherND in a batch', () =>
    agree(
      (g, x) => g.exp(g.one('GatherND', x, { attributes: { batch_dims: i(1) } })),
      [input([2, 3, 2]), index([2, 2, 1], 0, 2, -1, -1)],
      {
        shapes: [
          ['a', 'b', 'c'],
          ['a', 'n', 1],
        ],
      },
    ))
  it('Pad, cut and filled, its constant included', () =>
    agree(
      (g, [x, c]) => g.exp(g.one('Pad', [x!, g.constant([1, -1, 0, 2], 'int64'), c!])),
      [input([3, 2]), input([], 2)],
    ))
  it('Tile', () => agree((g, [x]) => g.exp(g.one('Tile', [x!, g.constant([2, 1, 3], 'int64')])), [input([2, 1, 3])]))
  it('Tile by numbers that are known only at run time', () =>
    agree((g, x) => g.exp(g.one('Tile', x)), [input([2, 3]), index([2], 2, 3)]))
  for (const mode of ['DCR', 'CRD'])
    it(`DepthToSpace, mode ${mode}`, () =>
      agree(node('DepthToSpace', { blocksize: i(2), mode: { s: mode } }), [input([1, 8, 2, 3])], {
        ...float32,
        symbolic: false,
      }))
  it('SpaceToDepth', () =>
    agree(node('SpaceToDepth', { blocksize: i(2) }), [input([1, 2, 4, 2])], { ...float32, symbolic: false }))
  it('ReverseSequence', () =>
    agree(
      (g, x) => g.exp(g.one('ReverseSequence', x, { attributes: { time_axis: i(1), batch_axis: i(0) } })),
      [input([2, 3]), index([2], 2, 3)],
      float32,
    ))
  for (const [starts, ends, steps] of [
    [
      [1, 0],
      [4, 3],
      [2, 1],
    ],
    [
      [-1, 2],
      [-5, 3],
      [-2, 1],
    ],
    [
      [3, 0],
      [-9, 9],
      [-1, 2],
    ],
  ] as const)
    it(`Slice from ${starts} to ${ends} in steps of ${steps}`, () =>
      agree(
        (g, [x]) =>
          g.exp(g.one('Slice', [x!, ...[starts, ends, [0, 1], steps].map((v) => g.constant([...v], 'int64'))])),
        [input([4, 3])],
      ))
  it('Slice whose bounds are known only at run time', () =>
    agree((g, x) => g.exp(g.one('Slice', x)), [input([4, 3]), index([1], -3), index([1], 3)]))
})

describe('normalisations', () => {
  const x = input([2, 4, 3], 1)
  const channels = [input([4], 2), input([4], 3)]
  it('InstanceNormalization', () =>
    agree(node('InstanceNormalization', { epsilon: f(0.1) }), [x, ...channels], float32))
  it('GroupNormalization, scale per channel', () =>
    agree(node('GroupNormalization', { num_groups: i(2), epsilon: f(0.1) }), [x, ...channels], {
      ...float32,
      opset: 21,
      symbolic: false,
    }))
  it('GroupNormalization before opset 21, scale per group', () =>
    agree(node('GroupNormalization', { num_groups: i(2), epsilon: f(0.1) }), [x, input([2], 2), input([2], 3)], {
      ...float32,
      opset: 18,
      symbolic: false,
    }))
  it('BatchNormalization at inference', () =>
    agree(node('BatchNormalization', { epsilon: f(0.1) }), [x, ...channels, input([4], 4), input([4], 5, 0.5, 2)]))
  it('MeanVarianceNormalization', () => agree(node('MeanVarianceNormalization'), [input([2, 2, 2, 3])], float32))
  for (const p of [1, 2])
    it(`LpNormalization, p = ${p}`, () =>
      agree(node('LpNormalization', { p: i(p), axis: i(1) }), [{ shape: [2, 3], values: away([2, 3], [0]) }], {}))
  it('LayerNormalization over the last two axes and without bias', () =>
    agree(node('LayerNormalization', { axis: i(1), epsilon: f(0.1) }), [x, input([4, 3], 2)], float32))
  for (const axis of [0, 1]) it(`Softmax over axis ${axis}`, () => agree(node('Softmax', { axis: i(axis) }), [x]))
})

describe('convolutions and poolings', () => {
  const image = input([2, 2, 5, 4])
  for (const [name, attributes] of Object.entries({
    plain: {},
    'padded, strides, dilations': { pads: ints(1, 0, 2, 1), strides: ints(2, 1), dilations: ints(1, 2) },
    'strides that leave a rest': { strides: ints(2, 3) },
    'padded to the same size': { auto_pad: { s: 'SAME_UPPER' }, strides: ints(2, 2) },
  }))
    it(`Conv, ${name}`, () =>
      agree(node('Conv', attributes), [image, input([3, 2, 2, 2], 2), input([3], 3)], {
        ...float32,
        // the padding that SAME means depends on the sizes
        shapes: 'auto_pad' in attributes ? [[2, 2, 5, 4]] : [['n', 2, 'h', 'w']],
        symbolic: false,
      }))
  it('Conv of channels apart, the kernel constant', () =>
    agree(
      node('Conv', { group: i(2), pads: ints(1, 1) }),
      [input([1, 4, 5]), { ...input([4, 2, 3], 2), fixed: true }],
      { ...float32, symbolic: false },
    ))
  it('the kernel of a grouped Conv is refused', () => {
    const g = new GraphBuilder()
    const [x, w] = [g.input('x', 'float32', [1, 4, 5]), g.input('w', 'float32', [4, 2, 3])]
    const y = g.one('Conv', [x, w], { attributes: { group: i(2) } })
    expect(() => addGradients(g.build(), { [y]: 1 }, [w])).toThrow(/No gradient for: the kernel of a grouped Conv/)
  })
  for (const include of [0, 1])
    it(`AveragePool, count_include_pad ${include}`, () => {
      const attributes = { kernel_shape: ints(2, 3), strides: ints(2, 1), pads: ints(1, 1, 0, 1) }
      return agree(node('AveragePool', { ...attributes, count_include_pad: i(include) }), [image], {
        ...float32,
        shapes: [['n', 2, 'h', 'w']],
        symbolic: false,
      })
    })
  it('MaxPool', () =>
    agree(
      (g, [x]) => g.exp(node('MaxPool', { kernel_shape: ints(2, 2), strides: ints(1, 2) })(g, [x!]) as string),
      [{ shape: [1, 2, 3, 4], values: Array.from({ length: 24 }, (_, k) => ((k * 7) % 24) / 12) }],
      float32,
    ))
  for (const op of ['GlobalAveragePool', 'GlobalMaxPool'])
    it(op, () =>
      agree(
        (g, [x]) => g.exp(g.one(op, [x!])),
        [{ shape: [1, 2, 3, 4], values: Array.from({ length: 24 }, (_, k) => ((k * 7) % 24) / 12) }],
        float32,
      ),
    )
})

describe('rotary positions', () => {
  const cos = input([2, 3, 2], 2)
  const sin = input([2, 3, 2], 3)
  for (const interleaved of [0, 1])
    it(`RotaryEmbedding, interleaved ${interleaved}`, () =>
      agree(
        node('RotaryEmbedding', { interleaved: i(interleaved) }),
        [input([2, 2, 3, 4]), { ...cos, fixed: true }, { ...sin, fixed: true }],
        { ...float32, opset: 23, symbolic: false },
      ))
  it('com.microsoft RotaryEmbedding', () =>
    agree(
      (g, inputs) => g.one('RotaryEmbedding', inputs, { domain: 'com.microsoft' }),
      [
        input([1, 2, 3, 4]),
        index([1, 3], 0, 1, 2),
        { ...input([3, 2], 2), fixed: true },
        { ...input([3, 2], 3), fixed: true },
      ],
      { ...float32, symbolic: false },
    ))
})

describe('what has no gradient', () => {
  it('steps', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', [2, 3])
    for (const op of ['Hardmax', 'Floor', 'Ceil', 'Round', 'Sign'])
      expect(addGradients(g.build(), { [g.one(op, [x])]: 1 }, [x]).gradients.size, op).toBe(0)
  })

  it('integers, booleans and the arithmetic of shapes are never differentiated', () => {
    const g = new GraphBuilder()
    const x = g.input('x', 'float32', ['n', 4])
    // none of these operators has a rule: the walk must not ask for one
    const shape = g.one('Shape', [x])
    const half = g.one('BitShift', [g.cast(shape, 'uint8'), g.cast(g.constant([1], 'int64'), 'uint8')], {
      attributes: { direction: { s: 'RIGHT' } },
    })
    const target = g.concat([g.constant([-1], 'int64'), g.slice(g.cast(half, 'int64'), 0, 1, 2)], 0)
    const where = g.one('ArgMax', [x], { attributes: { axis: i(1) } })
    const best = g.one('IsNaN', [x])
    const rows = g.one('Reshape', [x, target], { types: [{ dtype: 'float32', shape: ['m', 2] }] })
    const y = g.mul(g.one('ReduceSum', [rows]), g.one('ReduceMax', [g.cast(where, 'float32')]))
    const z = g.add(y, g.one('ReduceMax', [g.cast(best, 'float32')]))
    const { graph, gradients } = addGradients(g.build(), { [z]: 1 }, [x])
    expect(graph.types.get(gradients.get(x)!)).toEqual({ dtype: 'float32', shape: ['n', 4] })
    const ints = graph.nodes
      .flatMap((n) => n.outputs)
      .filter((name) => [...gradients.values()].includes(name) && graph.types.get(name)?.dtype !== 'float32')
    expect(ints).toEqual([])
  })

  it('the scale of a quantised weight', () => {
    const g = new GraphBuilder()
    const scale = g.input('scale', 'float32', [])
    const y = g.one('DequantizeLinear', [g.cast(g.constant([1, 2], 'int64'), 'int8'), scale])
    expect(() => addGradients(g.build(), { [y]: 1 }, [scale])).toThrow(/the scale of DequantizeLinear/)
  })
})

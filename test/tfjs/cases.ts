import type { Attribute, GraphBuilder } from '../../src/onnx/index.ts'
import type { Case, CaseInput } from './compare.ts'

const x = (shape: number[], more: Partial<CaseInput> = {}): CaseInput => ({ shape, ...more })
const positive = (shape: number[]): CaseInput => ({ shape, range: [0.5, 3] })
const int = (values: number[], shape = [values.length], dtype: CaseInput['dtype'] = 'int64'): CaseInput => ({
  shape,
  values,
  ...(dtype === undefined ? {} : { dtype }),
})
const bool = (values: number[], shape = [values.length]): CaseInput => ({ shape, values, dtype: 'bool' })

type Attributes = Record<string, Attribute>
const i = (value: number): Attribute => ({ i: value })
const ints = (...values: number[]): Attribute => ({ ints: values })

/** The node `op` over all inputs. */
const node =
  (op: string, attributes: Attributes = {}, domain = '') =>
  (g: GraphBuilder, inputs: string[]): string =>
    g.one(op, inputs, { attributes, domain })

const several =
  (op: string, outputs: number, attributes: Attributes = {}) =>
  (g: GraphBuilder, inputs: string[]): string[] =>
    g.node(op, inputs, { attributes, outputs })

/** The node `op` over the inputs and a constant vector of integers, as axes and shapes mostly are. */
const withInts =
  (op: string, values: number[], attributes: Attributes = {}) =>
  (g: GraphBuilder, inputs: string[]): string =>
    g.one(op, [...inputs, g.constant(values, 'int64')], { attributes })

const contrib = 'com.microsoft'
const elementwise = (op: string, input: CaseInput = x([2, 3, 4]), domain = ''): [string, Case] => [
  op,
  { inputs: [input], build: node(op, {}, domain) },
]
const steps = (op: string): [string, Case] => [
  op,
  { inputs: [x([2, 3, 4])], build: node(op), forwardOnly: 'its gradient is 0 everywhere' },
]
const binary = (op: string, b: CaseInput = x([3, 1])): [string, Case] => [
  op,
  { inputs: [x([2, 3, 4]), b], build: node(op) },
]
const reduction = (op: string, name: string, attributes: Attributes): [string, Case] => [
  `${op} ${name}`,
  { inputs: [positive([2, 3, 4])], build: node(op, attributes) },
]

/** Every operator of the engine by itself, its cases by name; the name starts with the operator. */
export const cases: [string, Case][] = [
  binary('Add'),
  binary('Sub'),
  binary('Mul', x([1, 4])),
  binary('Div', positive([3, 1])),
  binary('Max'),
  binary('Min'),
  ['Sum', { inputs: [x([2, 3]), x([3]), x([2, 1])], build: node('Sum') }],
  ['Pow', { inputs: [positive([2, 3]), x([3])], build: node('Pow') }],
  ['Pow squares', { inputs: [x([2, 3])], build: (g, [a]) => g.pow(a!, g.scalar(2)) }],
  ['Pow cubes', { inputs: [x([2, 3])], build: (g, [a]) => g.pow(a!, g.scalar(3)) }],
  ['Pow by an integer', { inputs: [x([2, 3])], build: (g, [a]) => g.pow(a!, g.scalar(3, 'int64')) }],
  elementwise('Neg'),
  elementwise('Abs'),
  elementwise('Sqrt', positive([2, 3])),
  elementwise('Exp'),
  elementwise('Log', positive([2, 3])),
  elementwise('Sin'),
  elementwise('Cos'),
  elementwise('Erf'),
  elementwise('Tanh'),
  elementwise('Sigmoid'),
  elementwise('Softplus'),
  elementwise('Relu'),
  elementwise('Reciprocal', positive([2, 3])),
  elementwise('Identity'),
  elementwise('Tan', x([2, 3], { range: [-1, 1] })),
  elementwise('Sinh'),
  elementwise('Cosh'),
  elementwise('Asin', x([2, 3], { range: [-0.9, 0.9] })),
  elementwise('Acos', x([2, 3], { range: [-0.9, 0.9] })),
  elementwise('Atan'),
  elementwise('Asinh'),
  elementwise('Acosh', x([2, 3], { range: [1.5, 3] })),
  elementwise('Atanh', x([2, 3], { range: [-0.9, 0.9] })),
  elementwise('LeakyRelu'),
  elementwise('ThresholdedRelu'),
  elementwise('Elu'),
  elementwise('Celu'),
  elementwise('Selu'),
  elementwise('HardSigmoid'),
  elementwise('HardSwish'),
  elementwise('Softsign'),
  ['Mish', { inputs: [x([2, 3, 4])], build: node('Mish'), opset: 18 }],
  ['Shrink', { inputs: [x([2, 3, 4])], build: node('Shrink', { bias: { f: 0.25 } }) }],
  ['PRelu', { inputs: [x([2, 3, 4]), x([3, 1])], build: node('PRelu') }],
  ['Mod', { inputs: [x([2, 3, 4], { range: [-5, 5] }), positive([4])], build: node('Mod', { fmod: i(1) }) }],
  ['Mean', { inputs: [x([2, 3]), x([3])], build: node('Mean') }],
  steps('Floor'),
  steps('Ceil'),
  steps('Round'),
  steps('Sign'),
  elementwise('Gelu', x([2, 8]), contrib),
  elementwise('FastGelu', x([2, 8]), contrib),
  elementwise('QuickGelu', x([2, 8]), contrib),
  ['Gelu by tanh', { inputs: [x([2, 8])], build: node('Gelu', { approximate: { s: 'tanh' } }), opset: 20 }],
  ['BiasGelu', { inputs: [x([2, 8]), x([8])], build: node('BiasGelu', {}, contrib) }],
  ['FastGelu with a bias', { inputs: [x([2, 8]), x([8])], build: node('FastGelu', {}, contrib) }],
  ['Clip', { inputs: [x([2, 9])], build: (g, [a]) => g.one('Clip', [a!, g.scalar(-1), g.scalar(0.5)]) }],
  ['Clip above', { inputs: [x([2, 9])], build: (g, [a]) => g.one('Clip', [a!, '', g.scalar(0.5)]) }],

  ['MatMul', { inputs: [x([3, 4]), x([4, 5])], build: node('MatMul') }],
  ['MatMul of many by one', { inputs: [x([2, 3, 4]), x([4, 5])], build: node('MatMul') }],
  ['MatMul of one by many', { inputs: [x([3, 4]), x([2, 4, 5])], build: node('MatMul') }],
  ['MatMul broadcast', { inputs: [x([2, 1, 3, 4]), x([2, 4, 5])], build: node('MatMul') }],
  ['MatMul of a vector', { inputs: [x([4]), x([2, 4, 5])], build: node('MatMul') }],
  ['MatMul by a vector', { inputs: [x([2, 3, 4]), x([4])], build: node('MatMul') }],
  ...[0, 1].flatMap((transA) =>
    [0, 1].map((transB): [string, Case] => [
      `FusedMatMul ${transA}${transB}`,
      {
        inputs: [x([2, ...(transA ? [4, 3] : [3, 4])]), x([2, ...(transB ? [5, 4] : [4, 5])])],
        build: (g, [a, b]) => g.fusedMatmul(a!, b!, { transA: transA === 1, transB: transB === 1, alpha: 0.5 }),
      },
    ]),
  ),
  [
    'Gemm',
    {
      inputs: [x([4, 3]), x([5, 4]), x([5])],
      build: (g, [a, b, c]) => g.gemm(a!, b!, c!, { transA: true, transB: true, alpha: 0.5, beta: 2 }),
    },
  ],
  ['Gemm without C', { inputs: [x([3, 4]), x([4, 5])], build: (g, [a, b]) => g.gemm(a!, b!) }],

  ['Softmax', { inputs: [x([2, 3, 4])], build: (g, [a]) => g.softmax(a!) }],
  ['Softmax along an inner axis', { inputs: [x([2, 3, 4])], build: (g, [a]) => g.softmax(a!, 1) }],
  ['LogSoftmax', { inputs: [x([2, 3, 4])], build: node('LogSoftmax', { axis: i(-1) }) }],
  ['LayerNormalization', { inputs: [x([2, 3, 4]), x([4]), x([4])], build: node('LayerNormalization') }],
  [
    'LayerNormalization of two axes',
    { inputs: [x([2, 3, 4]), x([3, 4])], build: node('LayerNormalization', { axis: i(1) }) },
  ],
  [
    'SimplifiedLayerNormalization',
    { inputs: [x([2, 3, 4]), x([4])], build: node('SimplifiedLayerNormalization', { axis: i(-1) }) },
  ],
  ['RMSNormalization', { inputs: [x([2, 3, 4]), x([4])], build: node('RMSNormalization'), opset: 23 }],

  ['InstanceNormalization', { inputs: [x([2, 3, 4, 2]), x([3]), x([3])], build: node('InstanceNormalization') }],
  [
    'GroupNormalization',
    {
      inputs: [x([2, 6, 4]), x([6]), x([6])],
      build: node('GroupNormalization', { num_groups: i(3) }),
      opset: 21,
    },
  ],
  ['MeanVarianceNormalization', { inputs: [x([2, 3, 4, 2])], build: node('MeanVarianceNormalization') }],
  [
    'BatchNormalization',
    { inputs: [x([2, 3, 4]), x([3]), x([3]), x([3]), positive([3])], build: node('BatchNormalization') },
  ],
  ['LpNormalization', { inputs: [x([2, 3, 4])], build: node('LpNormalization', { axis: i(1) }) }],
  ['LpNormalization of order 1', { inputs: [x([2, 3])], build: node('LpNormalization', { p: i(1) }) }],
  ['Hardmax', { inputs: [x([2, 3, 4])], build: node('Hardmax'), forwardOnly: 'its gradient is 0 everywhere' }],

  reduction('ReduceSum', 'everything', {}),
  reduction('ReduceL1', 'one axis', { axes: ints(1) }),
  reduction('ReduceLogSum', 'one axis', { axes: ints(1) }),
  reduction('ReduceLogSumExp', 'one axis', { axes: ints(1) }),
  reduction('ReduceProd', 'the last axis', { axes: ints(2) }),
  ['ReduceSum one axis', { inputs: [x([2, 3, 4])], build: withInts('ReduceSum', [1], { keepdims: i(0) }) }],
  ['ReduceSum no axes', { inputs: [x([2, 3])], build: node('ReduceSum', { noop_with_empty_axes: i(1) }) }],
  reduction('ReduceMean', 'two axes', { axes: ints(0, -1) }),
  reduction('ReduceMax', 'one axis', { axes: ints(1), keepdims: i(0) }),
  reduction('ReduceMin', 'everything', {}),
  reduction('ReduceL2', 'the last axis', { axes: ints(-1) }),
  reduction('ReduceSumSquare', 'one axis', { axes: ints(1) }),

  ['Reshape', { inputs: [x([2, 3, 4])], build: withInts('Reshape', [0, -1]) }],
  ['Squeeze', { inputs: [x([2, 1, 3, 1])], build: withInts('Squeeze', [1]) }],
  ['Unsqueeze', { inputs: [x([2, 3])], build: withInts('Unsqueeze', [0, -1]) }],
  ['Flatten', { inputs: [x([2, 3, 4])], build: node('Flatten', { axis: i(2) }) }],
  ['Transpose', { inputs: [x([2, 3, 4])], build: node('Transpose', { perm: ints(2, 0, 1) }) }],
  ['Transpose reversed', { inputs: [x([2, 3, 4])], build: node('Transpose') }],
  ['Expand', { inputs: [x([3, 1])], build: withInts('Expand', [2, 1, 4]) }],
  ['Expand to six axes', { inputs: [x([1, 3, 1, 1, 2, 1])], build: withInts('Expand', [2, 3, 2, 1, 2, 2]) }],
  ['Concat', { inputs: [x([2, 3]), x([2, 1]), x([2, 2])], build: node('Concat', { axis: i(-1) }) }],
  ['Split', { inputs: [x([2, 6])], build: several('Split', 3, { axis: i(1) }) }],
  [
    'Split into named sizes',
    { inputs: [x([5, 2])], build: (g, [a]) => g.node('Split', [a!, g.constant([1, 4], 'int64')], { outputs: 2 }) },
  ],
  [
    'Slice',
    {
      inputs: [x([4, 5, 6])],
      build: (g, [a]) =>
        g.one('Slice', [
          a!,
          g.constant([1, -4], 'int64'),
          g.constant([2 ** 31, -1], 'int64'),
          g.constant([0, -1], 'int64'),
        ]),
    },
  ],
  [
    'Slice in steps',
    {
      inputs: [x([4, 5])],
      build: (g, [a]) =>
        g.one('Slice', [
          a!,
          ...[
            [3, 0],
            [-100, 5],
            [0, 1],
            [-1, 2],
          ].map((values) => g.constant(values, 'int64')),
        ]),
      forwardOnly: 'src/autodiff has no gradient for steps',
    },
  ],
  ['Gather', { inputs: [x([5, 3]), int([4, 0, 4, -1, 2, 0], [2, 3])], build: (g, [a, b]) => g.gather(a!, b!) }],
  ['Gather along the last axis', { inputs: [x([2, 5]), int([1, 1])], build: (g, [a, b]) => g.gather(a!, b!, -1) }],
  ['Gather one', { inputs: [x([2, 5, 3])], build: (g, [a]) => g.gather(a!, g.scalar(2, 'int64'), 1) }],
  [
    'GatherElements',
    { inputs: [x([2, 4]), int([3, 0, 0, -1, 1, 1], [2, 3])], build: node('GatherElements', { axis: i(1) }) },
  ],
  [
    'ScatterElements',
    {
      inputs: [x([3, 4]), int([2, 0, 1, 0, 1, 2], [2, 3]), x([2, 3])],
      build: (g, inputs) => g.one('ScatterElements', inputs, { types: [{ dtype: 'float32', shape: [3, 4] }] }),
    },
  ],
  [
    'ScatterElements adding',
    {
      inputs: [x([3, 4]), int([0, 0, 1, 1, 1, 0], [2, 3]), x([2, 3])],
      build: (g, inputs) =>
        g.one('ScatterElements', inputs, {
          attributes: { reduction: { s: 'add' } },
          types: [{ dtype: 'float32', shape: [3, 4] }],
        }),
    },
  ],
  ['Conv', { inputs: [x([2, 3, 7]), x([4, 3, 3]), x([4])], build: node('Conv', { pads: ints(1, 1) }) }],
  [
    'Conv of two axes, in groups, strided and dilated',
    {
      inputs: [x([2, 4, 7, 6]), x([6, 2, 3, 2], { fixed: true })],
      build: node('Conv', { group: i(2), strides: ints(2, 1), dilations: ints(1, 2), pads: ints(1, 0, 0, 1) }),
    },
  ],
  ['AveragePool', { inputs: [x([2, 3, 7])], build: node('AveragePool', { kernel_shape: ints(3), pads: ints(1, 0) }) }],
  [
    'AveragePool counting the padding',
    {
      inputs: [x([1, 2, 5, 5])],
      build: node('AveragePool', { kernel_shape: ints(2, 2), pads: ints(1, 1, 0, 0), count_include_pad: i(1) }),
    },
  ],
  [
    'MaxPool',
    { inputs: [x([2, 3, 7])], build: node('MaxPool', { kernel_shape: ints(3), strides: ints(2), pads: ints(1, 1) }) },
  ],
  ['GlobalAveragePool', { inputs: [x([2, 3, 4, 2])], build: node('GlobalAveragePool') }],
  ['GlobalMaxPool', { inputs: [x([2, 3, 4])], build: node('GlobalMaxPool') }],
  ['DepthToSpace', { inputs: [x([2, 8, 2, 3])], build: node('DepthToSpace', { blocksize: i(2) }) }],
  [
    'DepthToSpace, columns first',
    { inputs: [x([2, 8, 2, 3])], build: node('DepthToSpace', { blocksize: i(2), mode: { s: 'CRD' } }) },
  ],
  ['SpaceToDepth', { inputs: [x([2, 2, 4, 6])], build: node('SpaceToDepth', { blocksize: i(2) }) }],
  ['ReverseSequence', { inputs: [x([4, 3, 2]), int([4, 1, 3])], build: node('ReverseSequence') }],
  [
    'TopK',
    {
      inputs: [x([2, 5, 3])],
      build: (g, [a]) => g.node('TopK', [a!, g.constant([2], 'int64')], { attributes: { axis: i(1) }, outputs: 2 }),
    },
  ],
  ['Tile', { inputs: [x([2, 3])], build: (g, [a]) => g.one('Tile', [a!, g.constant([2, 3], 'int64')]) }],
  ['Trilu', { inputs: [x([2, 3, 4])], build: (g, [a]) => g.one('Trilu', [a!, g.scalar(1, 'int64')]) }],
  [
    'Trilu of what is below',
    { inputs: [x([3, 4])], build: (g, [a]) => g.one('Trilu', [a!], { attributes: { upper: i(0) } }) },
  ],
  [
    'Pad',
    { inputs: [x([2, 3])], build: (g, [a]) => g.one('Pad', [a!, g.constant([0, 1, 2, 0], 'int64'), g.scalar(0.5)]) },
  ],
  ['Einsum', { inputs: [x([2, 3, 4]), x([2, 5, 4])], build: node('Einsum', { equation: { s: 'bik,bjk->bij' } }) }],
  ['Einsum of one', { inputs: [x([2, 3, 4])], build: node('Einsum', { equation: { s: 'abc->ca' } }) }],
  [
    'Einsum of three',
    { inputs: [x([2, 3]), x([3, 4]), x([4])], build: node('Einsum', { equation: { s: 'ab,bc,c->a' } }) },
  ],
  ['GatherND', { inputs: [x([3, 4, 2]), int([0, 1, 2, 3, 0, 1], [3, 2])], build: node('GatherND') }],
  ['ScatterND', { inputs: [x([4, 2]), int([2, 0], [2, 1]), x([2, 2])], build: node('ScatterND') }],
  [
    'DequantizeLinear',
    {
      inputs: [
        int([-7, 3, 100, -128, 0, 5], [2, 3], 'int8'),
        x([3], { range: [0.1, 1], fixed: true }),
        int([1, 0, -2], [3], 'int8'),
      ],
      build: node('DequantizeLinear', { axis: i(1) }),
    },
  ],
  ['IsNaN', { inputs: [x([3], { values: [1, Number.NaN, 3] })], build: node('IsNaN') }],
  ['ArgMax', { inputs: [x([2, 4, 3])], build: node('ArgMax', { axis: i(1), keepdims: i(0) }) }],
  [
    'ArgMax of integers',
    { inputs: [int([0, 1, 1, 0, 0, 1], [2, 3])], build: node('ArgMax', { axis: i(-1), select_last_index: i(1) }) },
  ],
  ['ReduceSum of integers', { inputs: [int([1, 2, 3, 4, 5, 6], [2, 3])], build: withInts('ReduceSum', [1]) }],
  ['ReduceMax of integers', { inputs: [int([1, 7, 3, 4, 5, 6], [2, 3])], build: node('ReduceMax', { axes: ints(1) }) }],
  ['Where', { inputs: [bool([1, 0, 1], [3, 1]), x([2, 3, 4]), x([4])], build: node('Where') }],
  [
    'CumSum',
    {
      inputs: [x([2, 5])],
      build: (g, [a]) => g.one('CumSum', [a!, g.scalar(1, 'int64')], { types: [{ dtype: 'float32', shape: [2, 5] }] }),
    },
  ],
  [
    'CumSum of integers, reversed',
    {
      inputs: [int([1, 0, 1, 1, 1, 0], [2, 3])],
      build: (g, [a]) =>
        g.one('CumSum', [a!, g.scalar(1, 'int64')], {
          attributes: { reverse: i(1), exclusive: i(1) },
          types: [{ dtype: 'int64', shape: [2, 3] }],
        }),
    },
  ],
  ['Cast to integers', { inputs: [x([2, 3])], build: (g, [a]) => g.cast(a!, 'int64') }],
  ['Cast from integers', { inputs: [int([-3, 7])], build: (g, [a]) => g.cast(a!, 'float32') }],
  ['Equal', { inputs: [x([4], { values: [1, 2, 3, 4] }), x([1], { values: [2] })], build: node('Equal') }],
  ['Greater', { inputs: [x([4]), x([4])], build: node('Greater') }],
  ['Less of integers', { inputs: [int([1, 5, 3]), int([3])], build: node('Less') }],
  ['And', { inputs: [bool([1, 0, 1, 0]), bool([1, 1, 0, 0])], build: node('And') }],
  ['Or', { inputs: [bool([1, 0, 1, 0]), bool([1, 1, 0, 0])], build: node('Or') }],
  ['Not', { inputs: [bool([1, 0])], build: node('Not') }],
  ['Shape', { inputs: [x([2, 3, 4])], build: node('Shape', { start: i(-2) }) }],
  [
    'Range',
    {
      inputs: [x([2, 3])],
      build: (g, [a]) => {
        const length = g.gather(g.one('Shape', [a!]), g.scalar(1, 'int64'))
        return g.one('Range', [g.scalar(0, 'int64'), length, g.scalar(1, 'int64')])
      },
    },
  ],
  [
    'ConstantOfShape',
    {
      inputs: [x([2, 3])],
      build: (g, [a]) =>
        g.add(a!, g.one('ConstantOfShape', [g.one('Shape', [a!])], { types: [{ dtype: 'float32', shape: [2, 3] }] })),
    },
  ],
  ['Div of integers', { inputs: [int([7, -7, 2 ** 52 + 1]), int([2, 2, 3])], build: node('Div') }],
  ['Mul of integers', { inputs: [int([3, -(2 ** 40)]), int([5, 2 ** 10])], build: node('Mul') }],
  ['Where of integers', { inputs: [bool([1, 0]), int([1, 2]), int([3])], build: node('Where') }],
]

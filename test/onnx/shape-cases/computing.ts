import fc from 'fast-check'
import type { Attribute, DType } from '../../../src/onnx/index.ts'
import { type Case, type Draw, i, matrices } from './draw.ts'

const unary =
  (op: string, dtype: DType = 'float32', domain = ''): Case =>
  (d) =>
    d.g.node(op, [d.input(d.shape(domain === '' ? 0 : 1), dtype)], { domain })

const binary =
  (op: string, dtype: DType = 'float32'): Case =>
  (d) => {
    const full = d.shape()
    const other = d.broadcastable(full)
    return d.g.node(
      op,
      (d.flag() ? [full, other] : [other, full]).map((s) => d.input(s, dtype)),
    )
  }

const reduce =
  (op: string): Case =>
  (d) => {
    const shape = d.shape()
    const axes = d.axes(shape.length)
    const attributes = { keepdims: i(d.int(0, 1)), ...(d.flag() ? { noop_with_empty_axes: i(d.int(0, 1)) } : {}) }
    const x = d.input(shape)
    return d.g.node(op, axes.length === 0 ? [x] : [x, d.ints(axes)], { attributes })
  }

/** How a window of two axes moves. */
function moving(d: Draw): Record<string, Attribute> {
  return {
    strides: { ints: [d.int(1, 3), d.int(1, 3)] },
    ...(d.flag() ? { pads: { ints: [d.int(0, 1), d.int(0, 1), d.int(0, 1), d.int(0, 1)] } } : {}),
  }
}

/** Operators that compute: elementwise ones, products, reductions and normalisations. */
export const computingCases: Record<string, Case> = {
  ...Object.fromEntries(
    ['Neg', 'Sqrt', 'Exp', 'Log', 'Erf', 'Tanh', 'Sigmoid', 'Softplus', 'Relu', 'Abs', 'Reciprocal', 'Identity']
      .concat(['Sign', 'Sin', 'Cos', 'Floor', 'Ceil', 'Round', 'Clip', 'Gelu', 'HardSigmoid', 'Tan', 'Asin', 'Acos'])
      .concat(['Atan', 'Sinh', 'Cosh', 'Asinh', 'Acosh', 'Atanh', 'Softsign', 'LeakyRelu', 'ThresholdedRelu', 'Elu'])
      .concat(['Selu', 'Celu', 'HardSwish', 'Mish', 'Shrink', 'IsNaN', 'IsInf'])
      .map((op) => [op, unary(op)]),
  ),
  Not: unary('Not', 'bool'),
  BitwiseNot: unary('BitwiseNot', 'int64'),
  Swish: unary('Swish'),
  FastGelu: unary('FastGelu', 'float32', 'com.microsoft'),
  QuickGelu: unary('QuickGelu', 'float32', 'com.microsoft'),
  BiasGelu: (d) => {
    const shape = d.shape()
    return d.g.node('BiasGelu', [d.input(shape), d.input([shape.at(-1) as number])], { domain: 'com.microsoft' })
  },
  ...Object.fromEntries(
    ['Softmax', 'LogSoftmax', 'Hardmax', 'LpNormalization'].map((op): [string, Case] => [
      op,
      (d) => {
        const shape = d.shape()
        return d.g.node(op, [d.input(shape)], { attributes: { axis: i(d.axis(shape.length)) } })
      },
    ]),
  ),
  ...Object.fromEntries(['Add', 'Sub', 'Mul', 'Div', 'Pow'].map((op) => [op, binary(op)])),
  ...Object.fromEntries(
    ['Max', 'Min', 'Sum', 'Mean'].map((op): [string, Case] => [
      op,
      (d) => {
        const full = d.shape()
        const shapes = [full, ...Array.from({ length: d.int(0, 2) }, () => d.broadcastable(full))]
        return d.g.node(
          op,
          (d.flag() ? shapes : shapes.reverse()).map((s) => d.input(s)),
        )
      },
    ]),
  ),
  Mod: (d) => {
    const full = d.shape()
    const divisor = d.broadcastable(full)
    const three = divisor.reduce((a, b) => a * b, 1)
    return d.g.node('Mod', [d.input(full, 'int64'), d.input(divisor, 'int64', Array(three).fill(3))])
  },
  And: binary('And', 'bool'),
  Or: binary('Or', 'bool'),
  Xor: binary('Xor', 'bool'),
  BitwiseAnd: binary('BitwiseAnd', 'int64'),
  BitwiseOr: binary('BitwiseOr', 'int64'),
  BitwiseXor: binary('BitwiseXor', 'int64'),
  BitShift: (d) => {
    const full = d.shape()
    const shift = { attributes: { direction: { s: 'LEFT' } } }
    return d.g.node('BitShift', [d.input(full, 'uint8'), d.input(d.broadcastable(full), 'uint8')], shift)
  },
  PRelu: (d) => {
    const shape = d.shape()
    return d.g.node('PRelu', [d.input(shape), d.input(d.broadcastable(shape))])
  },
  Dropout: (d) => d.g.node('Dropout', [d.input(d.shape())], { outputs: d.int(1, 2) }),
  CastLike: (d) => d.g.node('CastLike', [d.input(d.shape()), d.input([1], d.pick<DType>('int64', 'bool'))]),
  ...Object.fromEntries(['Equal', 'Less', 'Greater', 'LessOrEqual', 'GreaterOrEqual'].map((op) => [op, binary(op)])),
  ...Object.fromEntries(
    ['ReduceSum', 'ReduceMean', 'ReduceMax', 'ReduceMin', 'ReduceL2', 'ReduceSumSquare']
      .concat(['ReduceProd', 'ReduceL1', 'ReduceLogSum', 'ReduceLogSumExp'])
      .map((op) => [op, reduce(op)]),
  ),
  ...Object.fromEntries(
    ['ArgMax', 'ArgMin'].map((op): [string, Case] => [
      op,
      (d) => {
        const shape = d.shape()
        const attributes = { axis: i(d.axis(shape.length)), keepdims: i(d.int(0, 1)) }
        return d.g.node(op, [d.input(shape)], { attributes })
      },
    ]),
  ),
  TopK: (d) => {
    const shape = d.shape()
    const axis = d.axis(shape.length)
    const size = shape.at(axis) as number
    return d.g.node('TopK', [d.input(shape), d.flag() ? d.ints([size]) : d.vector([size])], {
      outputs: 2,
      attributes: { axis: i(axis) },
    })
  },
  Einsum: (d) => {
    const [b, m, k, n] = [d.int(1, 3), d.int(1, 3), d.int(1, 3), d.int(1, 3)]
    const [equation, ...shapes] = d.pick<[string, ...number[][]]>(
      ['ij,jk->ik', [m, k], [k, n]],
      ['bij,bkj', [b, m, k], [b, n, k]],
      ['...ij,...jk->...ik', [b, m, k], [b, k, n]],
      ['ii->i', [m, m]],
      ['ij->', [m, k]],
    )
    return d.g.node(
      'Einsum',
      shapes.map((shape) => d.input(shape as number[])),
      { attributes: { equation: { s: equation as string } } },
    )
  },
  MatMul: (d) => {
    const [a, b] = matrices(d, false, false, true)
    const kind = d.int(0, 3)
    // a vector on either side is a row on the left, a column on the right, and vanishes from the result
    if (kind === 1) return d.g.node('MatMul', [d.input(a.slice(-1)), d.input(b)])
    if (kind === 2) return d.g.node('MatMul', [d.input(a), d.input(b.slice(-2, -1))])
    return d.g.node('MatMul', [d.input(a), d.input(b)])
  },
  FusedMatMul: (d) => {
    const [transA, transB] = [d.flag(), d.flag()]
    const [a, b] = matrices(d, transA, transB, true)
    return [d.g.fusedMatmul(d.input(a), d.input(b), { transA, transB, alpha: 0.5 })]
  },
  Gemm: (d) => {
    const [transA, transB] = [d.flag(), d.flag()]
    const [a, b] = matrices(d, transA, transB, false)
    const out = [a[transA ? 1 : 0] as number, b[transB ? 0 : 1] as number]
    const c = d.flag() ? d.input(d.broadcastable(out)) : null
    return [d.g.gemm(d.input(a), d.input(b), c, { transA, transB })]
  },
  Transpose: (d) => {
    const shape = d.shape()
    const perm = d.gen(() =>
      fc.shuffledSubarray(
        shape.map((_, at) => at),
        { minLength: shape.length },
      ),
    )
    return d.g.node('Transpose', [d.input(shape)], d.flag() ? { attributes: { perm: { ints: perm } } } : {})
  },
  LayerNormalization: (d) => {
    const shape = d.shape()
    const axis = d.axis(shape.length)
    const rest = shape.slice(axis < 0 ? axis + shape.length : axis)
    return d.g.node('LayerNormalization', [d.input(shape), d.input(rest), d.input(rest)], {
      outputs: d.int(1, 3),
      attributes: { axis: i(axis), epsilon: { f: 1e-5 } },
    })
  },
  ...Object.fromEntries(
    ['RMSNormalization', 'SimplifiedLayerNormalization'].map((op): [string, Case] => [
      op,
      (d) => {
        const shape = d.shape()
        const attributes = { axis: i(-1), epsilon: { f: 1e-5 } }
        const outputs = op === 'RMSNormalization' ? 1 : d.int(1, 2)
        return d.g.node(op, [d.input(shape), d.input(shape.slice(-1))], { attributes, outputs })
      },
    ]),
  ),
  ...Object.fromEntries(
    ['InstanceNormalization', 'GroupNormalization', 'BatchNormalization'].map((op): [string, Case] => [
      op,
      (d) => {
        const shape = d.shape(3)
        const channels = Array.from({ length: op === 'BatchNormalization' ? 4 : 2 }, () =>
          d.input([shape[1] as number]),
        )
        const attributes: Record<string, Attribute> = op === 'GroupNormalization' ? { num_groups: i(1) } : {}
        return d.g.node(op, [d.input(shape), ...channels], { attributes })
      },
    ]),
  ),
  MeanVarianceNormalization: (d) => d.g.node('MeanVarianceNormalization', [d.input(d.shape(4))]),
  LRN: (d) => d.g.node('LRN', [d.input(d.shape(4))], { attributes: { size: i(3) } }),
  Cast: (d) => [d.g.cast(d.input(d.shape(0)), d.pick<DType>('int64', 'float64', 'bool', 'float16', 'uint8'))],
  Where: (d) => {
    const full = d.shape()
    return d.g.node('Where', [d.input(full, 'bool'), d.input(d.broadcastable(full)), d.input(d.broadcastable(full))])
  },
  ...Object.fromEntries(
    ['Conv', 'ConvTranspose'].map((op): [string, Case] => [
      op,
      (d) => {
        const [n, c, h, w] = [d.int(1, 2), d.int(1, 2), d.int(3, 6), d.int(3, 6)]
        const kernel = [d.int(1, 3), d.int(1, 2)]
        const kernelShape = op === 'Conv' ? [3, c, ...kernel] : [c, 3, ...kernel]
        const weight = d.g.constant(Array(kernelShape.reduce((a, b) => a * b, 1)).fill(1), 'float32', kernelShape)
        return d.g.node(op, [d.input([n, c, h, w]), weight], { attributes: moving(d) })
      },
    ]),
  ),
  ...Object.fromEntries(
    ['MaxPool', 'AveragePool', 'LpPool'].map((op): [string, Case] => [
      op,
      (d) => {
        const [n, c, h, w] = [d.int(1, 2), d.int(1, 2), d.int(3, 6), d.int(3, 6)]
        const ceil: Record<string, Attribute> = d.flag() ? { ceil_mode: i(1) } : {}
        const kernel: Attribute = { ints: [d.int(2, 3), 2] }
        const attributes = { ...moving(d), kernel_shape: kernel, ...ceil }
        return d.g.node(op, [d.input([n, c, h, w])], { attributes, outputs: op === 'MaxPool' ? d.int(1, 2) : 1 })
      },
    ]),
  ),
  ...Object.fromEntries(
    ['GlobalAveragePool', 'GlobalMaxPool'].map((op): [string, Case] => [
      op,
      (d) => d.g.node(op, [d.input(d.shape(3))]),
    ]),
  ),
}

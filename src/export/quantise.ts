import { type ExternalTensor, floatAttribute, type Graph, intAttribute, isExternal, type Node } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { asFloats, type WeightRows } from './streams.ts'
import { byBlocks, byRows, type QuantisedWeight } from './whole-numbers.ts'
import type { Writable } from './write-model.ts'

/** Numbers of a row that share a scale in 4 bits. */
const BLOCK = 32

/**
 * The graph with its matrices in whole numbers and everything else as it was:
 *
 * - 8 bits, a scale to a row: `DequantizeLinear` (axis 0) before a `Gemm`, standard operators from opset 13 on;
 * - 4 bits, a scale to 32 numbers of a row: `MatMulNBits` (com.microsoft) in place of a `Gemm`;
 * - tables of embeddings in 8 bits for both: the numbers of a row that is looked up, times the row's scale.
 *
 * No activation is quantised by the range it has in a batch, so that a text's embedding does not depend on the texts beside it.
 * Matrices are those of `Gemm` with transB, stored [outputs, inputs] as PyTorch stores linear maps; biases, normalisations and
 * matrices with other uses keep their type.
 *
 * @param weightOf the numbers of an initializer that is a reference; writing fails with an InputError where they are not finite
 */
export function quantised(graph: Graph, weightOf: (tensor: ExternalTensor) => WeightRows, bits: 8 | 4): Writable {
  const initializers = new Map(graph.initializers)
  const streams = new Map<string, QuantisedWeight['values']>()
  const put = (name: string, tensor: QuantisedWeight['values']): string => {
    initializers.set(name, {
      ...{ dtype: tensor.dtype, shape: [...tensor.shape] },
      external: { file: name, offset: 0, length: 0 },
    })
    streams.set(name, tensor)
    return name
  }
  const matrices = matricesOf(graph)
  const stored = new Map<string, [values: string, scales: string]>()
  const store = (name: string, matrix: ExternalTensor, how: 'rows' | 'table' | 'blocks'): [string, string] => {
    const known = stored.get(name)
    if (known !== undefined) return known
    initializers.delete(name)
    const weight = finite(matrix.external.file, weightOf(matrix))
    const { values, scales } = how === 'blocks' ? byBlocks(weight, BLOCK) : byRows(weight)
    const shape = how === 'table' ? [...scales.shape, 1] : scales.shape
    const names: [string, string] = [put(`${name}/quantised`, values), put(`${name}/scales`, { ...scales, shape })]
    stored.set(name, names)
    return names
  }
  const nodes = graph.nodes.flatMap((node) => {
    const name = node.inputs[node.op === 'Gather' ? 0 : 1] ?? ''
    const matrix = matrices.get(name)
    if (matrix === undefined) return [node]
    if (node.op === 'Gather') return lookUp(node, store(name, matrix, 'table'))
    return bits === 8
      ? dequantised(node, store(name, matrix, 'rows'))
      : productOfBlocks(node, store(name, matrix, 'blocks'), matrix.shape, initializers)
  })
  return {
    graph: { ...graph, nodes, initializers },
    stream: (name, tensor) => streams.get(name) ?? asFloats(weightOf(tensor)),
  }
}

/** A weight whose reading fails at a number that is none, or infinite. */
function finite(name: string, { shape, rows }: WeightRows): WeightRows {
  return {
    shape,
    async rows(from, to) {
      const values = await rows(from, to)
      const wrong = values.find((x) => !Number.isFinite(x))
      if (wrong === undefined) return values
      throw new InputError(
        `The weight "${name}" holds ${wrong}, which no whole number stands for: export this encoder with --dtype fp32, or see whether its file is damaged.`,
      )
    },
  }
}

/** Initializers that are references to matrices with one kind of use: second factor of Gemms, or table of Gathers. */
function matricesOf(graph: Graph): Map<string, ExternalTensor> {
  const uses = new Map<string, Set<string>>()
  for (const node of graph.nodes)
    node.inputs.forEach((name, at) => {
      uses.set(name, (uses.get(name) ?? new Set()).add(useOf(node, at)))
    })
  const matrices = new Map<string, ExternalTensor>()
  for (const [name, tensor] of graph.initializers) {
    const [use, ...others] = uses.get(name) ?? []
    if (isExternal(tensor) && tensor.shape.length === 2 && others.length === 0 && use !== undefined && use !== '')
      matrices.set(name, tensor)
  }
  return matrices
}

function useOf({ op, attributes }: Node, at: number): string {
  if (op === 'Gemm' && at === 1 && intAttribute(attributes, 'transB', 0) === 1) return 'product'
  return op === 'Gather' && at === 0 && intAttribute(attributes, 'axis', 0) === 0 ? 'table' : ''
}

const made = (op: string, inputs: string[], output: string, attributes: Node['attributes'] = {}): Node => ({
  ...{ op, domain: '', name: output, inputs, attributes },
  outputs: [output],
})

/** The Gemm with its matrix multiplied by the scales of its rows. */
function dequantised(node: Node, [values, scales]: [string, string]): Node[] {
  const matrix = `${node.name}/matrix`
  return [
    made('DequantizeLinear', [values, scales], matrix, { axis: { i: 0 } }),
    { ...node, inputs: node.inputs.with(1, matrix) },
  ]
}

/** values[ids] · scales[ids] */
function lookUp(node: Node, [values, scales]: [string, string]): Node[] {
  const [ids, out] = [node.inputs[1] as string, node.outputs[0] as string]
  const at = (what: string): string => `${node.name}/${what}`
  return [
    made('Gather', [values, ids], at('quantised')),
    made('Gather', [scales, ids], at('scales')),
    made('Cast', [at('quantised')], at('values'), { to: { i: 1 } }),
    made('Mul', [at('values'), at('scales')], out),
  ]
}

/** alpha · x Wᵀ + beta · c with W in blocks. */
function productOfBlocks(
  node: Node,
  [values, scales]: [string, string],
  [outputs = 0, inputs = 0]: readonly number[],
  initializers: Graph['initializers'],
): Node[] {
  const [x, c = ''] = [node.inputs[0] as string, node.inputs[2]]
  const at = (what: string): string => `${node.name}/${what}`
  const sizes = { K: inputs, N: outputs, bits: 4, block_size: BLOCK, accuracy_level: 4 }
  const product: Node = {
    ...made('MatMulNBits', [x, values, scales], at('product')),
    domain: 'com.microsoft',
    attributes: Object.fromEntries(Object.entries(sizes).map(([name, i]) => [name, { i }])),
  }
  const nodes = [product]
  const scaled = (value: string, by: 'alpha' | 'beta'): string => {
    const factor = floatAttribute(node.attributes, by, 1)
    if (factor === 1) return value
    initializers.set(at(by), { dtype: 'float32', shape: [], data: Float32Array.of(factor) })
    nodes.push(made('Mul', [value, at(by)], at(`${by}_scaled`)))
    return at(`${by}_scaled`)
  }
  const y = scaled(at('product'), 'alpha')
  nodes.push(made(c === '' ? 'Identity' : 'Add', c === '' ? [y] : [y, scaled(c, 'beta')], node.outputs[0] as string))
  return nodes
}

import { type ExternalTensor, floatAttribute, type Graph, intAttribute, isExternal, type Node } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { asFloats, transposed, type WeightRows } from './streams.ts'
import { byBlocks, byColumns, byRows, type QuantisedWeight } from './whole-numbers.ts'
import type { Writable } from './write-model.ts'

/** Numbers of a row that share a scale in 4 bits. */
const BLOCK = 32

/**
 * The graph with its matrices in whole numbers and everything else as it was:
 *
 * - 8 bits, a scale to an output: `DequantizeLinear` before the product, standard operators from opset 13 on;
 * - 4 bits, a scale to 32 numbers of an output: `MatMulNBits` (com.microsoft) in place of the product;
 * - tables of embeddings in 8 bits for both: the numbers of a row that is looked up, times the row's scale.
 *
 * No activation is quantised by the range it has in a batch, so that a text's embedding does not depend on the texts beside it.
 * Matrices are second factors of `Gemm` and `MatMul`, stored [outputs, inputs] as PyTorch stores linear maps (transB) or [inputs,
 * outputs] as its exporter writes them; biases, normalisations and matrices with other uses keep their type.
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
  const stored = new Map<string, StoredMatrix>()
  const store = (name: string, { tensor, use }: Matrix): StoredMatrix => {
    const known = stored.get(name)
    if (known !== undefined) return known
    initializers.delete(name)
    const blocks = bits === 4 && use !== 'table'
    const turned = blocks && use === 'columns'
    const weight = finite(tensor.external.file, turned ? transposed(weightOf(tensor)) : weightOf(tensor))
    const { values, scales } = blocks ? byBlocks(weight, BLOCK) : (use === 'columns' ? byColumns : byRows)(weight)
    const names = namesOf(name, { turned, columns: !blocks && use === 'columns' })
    const shape = use === 'table' ? [...scales.shape, 1] : scales.shape
    const made = { values: put(names.values, values), scales: put(names.scales, { ...scales, shape }) }
    stored.set(name, made)
    return made
  }
  const nodes = graph.nodes.flatMap((node) => {
    const name = node.inputs[node.op === 'Gather' ? 0 : 1] ?? ''
    const matrix = matrices.get(name)
    if (matrix === undefined) return [node]
    const found = store(name, matrix)
    if (matrix.use === 'table') return lookUp(node, found)
    return bits === 8
      ? dequantised(node, found, matrix.use === 'columns' ? 1 : 0)
      : productOfBlocks(node, found, matrix, initializers)
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

/** How a matrix is used everywhere: as a factor with its outputs in rows or in columns, or as a table that is looked up by rows. */
type Use = 'rows' | 'columns' | 'table'

interface Matrix {
  tensor: ExternalTensor
  use: Use
}

/** Names of the two tensors that stand for a matrix. */
interface StoredMatrix {
  values: string
  scales: string
}

/**
 * What the whole numbers of a matrix and their scales are called.
 *
 * @param stored whether the matrix was `turned` before, and whether `columns` have scales instead of rows
 */
export function namesOf(matrix: string, { turned, columns }: { turned: boolean; columns: boolean }): StoredMatrix {
  const name = turned ? `${matrix}/transposed` : matrix
  return { values: `${name}/quantised`, scales: `${name}/${columns ? 'column_scales' : 'scales'}` }
}

/** Initializers that are references to matrices with one kind of use. */
function matricesOf(graph: Graph): Map<string, Matrix> {
  const uses = new Map<string, Set<Use | undefined>>()
  for (const node of graph.nodes)
    node.inputs.forEach((name, at) => {
      uses.set(name, (uses.get(name) ?? new Set()).add(useOf(node, at)))
    })
  const matrices = new Map<string, Matrix>()
  for (const [name, tensor] of graph.initializers) {
    const [use, ...others] = uses.get(name) ?? []
    if (isExternal(tensor) && tensor.shape.length === 2 && others.length === 0 && use !== undefined)
      matrices.set(name, { tensor, use })
  }
  return matrices
}

function useOf({ op, domain, attributes }: Node, at: number): Use | undefined {
  if (domain !== '') return undefined
  if (op === 'MatMul' && at === 1) return 'columns'
  const flag = (name: string): boolean => intAttribute(attributes, name, 0) === 1
  if (op === 'Gemm' && at === 1 && !flag('transA')) return flag('transB') ? 'rows' : 'columns'
  return op === 'Gather' && at === 0 && intAttribute(attributes, 'axis', 0) === 0 ? 'table' : undefined
}

/** What new values are named after: a node that has no name goes by its output. */
const nameOf = ({ name, outputs }: Node): string => (name === '' ? (outputs[0] as string) : name)

const made = (op: string, inputs: string[], output: string, attributes: Node['attributes'] = {}): Node => ({
  ...{ op, domain: '', name: output, inputs, attributes },
  outputs: [output],
})

/** The product with its matrix multiplied by the scales of its rows or columns. */
function dequantised(node: Node, { values, scales }: StoredMatrix, axis: 0 | 1): Node[] {
  const matrix = `${nameOf(node)}/matrix`
  return [
    made('DequantizeLinear', [values, scales], matrix, { axis: { i: axis } }),
    { ...node, inputs: node.inputs.with(1, matrix) },
  ]
}

/** values[ids] · scales[ids] */
function lookUp(node: Node, { values, scales }: StoredMatrix): Node[] {
  const [ids, out] = [node.inputs[1] as string, node.outputs[0] as string]
  const at = (what: string): string => `${nameOf(node)}/${what}`
  return [
    made('Gather', [values, ids], at('quantised')),
    made('Gather', [scales, ids], at('scales')),
    made('Cast', [at('quantised')], at('values'), { to: { i: 1 } }),
    made('Mul', [at('values'), at('scales')], out),
  ]
}

/** x W, or alpha · x op(W) + beta · c, with W in blocks. */
function productOfBlocks(
  node: Node,
  { values, scales }: StoredMatrix,
  { tensor, use }: Matrix,
  initializers: Graph['initializers'],
): Node[] {
  const [x, c = ''] = [node.inputs[0] as string, node.inputs[2]]
  const [out] = node.outputs as [string]
  const at = (what: string): string => `${nameOf(node)}/${what}`
  const [N = 0, K = 0] = use === 'rows' ? tensor.shape : tensor.shape.toReversed()
  const sizes = { K, N, bits: 4, block_size: BLOCK, accuracy_level: 4 }
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
  nodes.push(made(c === '' ? 'Identity' : 'Add', c === '' ? [y] : [y, scaled(c, 'beta')], out))
  return nodes
}

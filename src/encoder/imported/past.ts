import type { Graph, Node, Tensor, ValueType } from '../../onnx/index.ts'
import { PAST } from './feeds.ts'

/**
 * A decoder's graph without keys and values of earlier tokens: fused operators get none, `Concat` puts nothing in front, and
 * what else reads them sees a tensor of length 0.
 */
export function withoutPast(graph: Graph): Graph {
  const past = new Set(graph.inputs.filter((name) => PAST.test(name)))
  if (past.size === 0) return graph
  const nodes = graph.nodes.map((node): Node => {
    if (!node.inputs.some((name) => past.has(name))) return node
    if (node.domain === 'com.microsoft')
      return { ...node, inputs: node.inputs.map((name) => (past.has(name) ? '' : name)) }
    if (node.op !== 'Concat') return node
    const inputs = node.inputs.filter((name) => !past.has(name))
    return inputs.length === 1 ? { ...node, op: 'Identity', inputs, attributes: {} } : { ...node, inputs }
  })
  const read = new Set(nodes.flatMap(({ inputs }) => inputs))
  const initializers = new Map(graph.initializers)
  const empty = [...past]
    .filter((name) => read.has(name))
    .flatMap((name) => emptyTensor(name, graph.types.get(name) as ValueType, initializers))
  const types = new Map(graph.types)
  for (const [name, { dtype, shape }] of initializers) types.set(name, { dtype, shape })
  for (const name of past) {
    const { dtype, shape } = types.get(name) as ValueType
    if (!read.has(name)) types.delete(name)
    else types.set(name, { dtype, shape: shape.map((d, axis) => (axis === 0 || typeof d === 'number' ? d : 0)) })
  }
  return {
    ...graph,
    inputs: graph.inputs.filter((name) => !past.has(name)),
    nodes: [...empty, ...nodes],
    initializers,
    types,
  }
}

/** Nodes that make `name` a tensor of as many rows as `input_ids`, whose other unknown sizes are 0. */
function emptyTensor(name: string, type: ValueType, initializers: Graph['initializers']): Node[] {
  const value = (end: string): string => `${name}/empty/${end}`
  const constant = (end: string, numbers: number[]): string => {
    initializers.set(value(end), { dtype: 'int64', shape: [numbers.length], data: BigInt64Array.from(numbers, BigInt) })
    return value(end)
  }
  const node = (op: string, inputs: string[], output: string, attributes: Node['attributes'] = {}): Node => ({
    op,
    domain: '',
    name: value(op),
    inputs,
    outputs: [output],
    attributes,
  })
  const rest = type.shape.slice(1).map((d) => (typeof d === 'number' ? d : 0))
  const half = type.dtype === 'float16'
  const zero: Tensor = { dtype: type.dtype, shape: [1], data: half ? new Uint16Array(1) : new Float32Array(1) }
  return [
    node('Shape', ['input_ids'], value('shape')),
    node('Gather', [value('shape'), constant('first', [0])], value('rows')),
    node('Concat', [value('rows'), constant('rest', rest)], value('sizes'), { axis: { i: 0 } }),
    node('ConstantOfShape', [value('sizes')], name, { value: { t: zero } }),
  ]
}

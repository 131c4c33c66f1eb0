import { type Graph, intAttribute, type Node, sameShape } from '../onnx/index.ts'

/** Products of at most this many terms are fused. Beyond it the Gemm kernel is slower with C than without, by an Add. */
const THIN = 64

/**
 * Puts sums into the C of thin Gemms: Add(s, Gemm(A, B)) becomes Gemm(A, B, s), which saves a pass over memory. The
 * gradient of a value that a low-rank adapter reads beside a matrix is such a sum. Only nodes from index `first` on are
 * looked at, and values in `keep` stay.
 */
export function fuseSums(graph: Graph, first: number, keep: Iterable<string>): Graph {
  const kept = new Set([...keep, ...graph.outputs])
  const reads = new Map<string, number>()
  for (const node of graph.nodes) for (const value of node.inputs) reads.set(value, (reads.get(value) ?? 0) + 1)
  const shape = (value: string) => graph.types.get(value)?.shape ?? []
  const gemms = new Map<string, Node>()
  const nodes = new Set<Node>(graph.nodes.slice(0, first))
  const types = new Map(graph.types)

  for (const node of graph.nodes.slice(first)) {
    const [a = '', b = ''] = node.inputs
    const [sum = ''] = node.outputs
    const product = node.op !== 'Add' || !sameShape(shape(a), shape(b)) ? '' : gemms.has(b) ? b : gemms.has(a) ? a : ''
    const gemm = gemms.get(product)
    if (gemm === undefined) {
      nodes.add(node)
      if (isThin(node, shape) && reads.get(sum) === 1 && !kept.has(sum)) gemms.set(sum, node)
      continue
    }
    nodes.delete(gemm)
    types.delete(product)
    nodes.add({ ...gemm, inputs: [...gemm.inputs.slice(0, 2), product === b ? a : b], outputs: [sum] })
  }
  return { ...graph, nodes: [...nodes], types }
}

function isThin(node: Node, shape: (value: string) => (number | string)[]): boolean {
  if (node.op !== 'Gemm' || node.inputs.length > 2) return false
  const terms = shape(node.inputs[0] as string)[intAttribute(node.attributes, 'transA', 0) === 1 ? 0 : 1]
  return typeof terms === 'number' && terms <= THIN
}

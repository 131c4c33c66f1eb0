import { type Graph, type Node, readersOf } from '../onnx/index.ts'

/**
 * Orders the nodes from index `first` on so that a run holds few values. ONNX Runtime runs a graph depth first from the nodes that
 * no other reads, the last in the graph first; among the nodes that make a node's inputs, too, the last in the graph comes first. So
 * what does not depend on the gradient `seeds` (slopes, values computed again) is put first and runs when it is needed, after the
 * gradient that it is multiplied with; and the nodes that no other reads are put last, the other way round: a matrix's gradient is
 * made as soon as it can be, not when all others are there.
 */
export function orderBackward(graph: Graph, first: number, seeds: Iterable<string>): Graph {
  const backward = graph.nodes.slice(first)
  const readers = readersOf(graph)
  const dependent = new Set(seeds)
  const early: Node[] = []
  const late: Node[] = []
  const leaves: Node[] = []
  for (const node of backward) {
    const depends = node.inputs.some((input) => dependent.has(input))
    if (depends) for (const output of node.outputs) dependent.add(output)
    const isRead = node.outputs.some((output) => readers.has(output))
    ;(!isRead ? leaves : depends ? late : early).push(node)
  }
  return { ...graph, nodes: [...graph.nodes.slice(0, first), ...early, ...late, ...leaves.reverse()] }
}

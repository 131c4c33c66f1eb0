import type { Graph, Node } from '../../onnx/index.ts'

/**
 * The nodes in the order in which ONNX Runtime runs them one after the other: depth first from the nodes whose outputs no other
 * node reads, the last of these first, every node after those that make its inputs, of which the one with the highest number in
 * the graph comes first (`GraphViewer` and `Graph::ReverseDFSFrom` of onnxruntime/core/graph).
 */
export function executionOrder({ nodes }: Pick<Graph, 'nodes'>): Node[] {
  const maker = new Map<string, number>()
  nodes.forEach((node, i) => {
    for (const output of node.outputs) if (output !== '') maker.set(output, i)
  })
  const makers = nodes.map(({ inputs }) => {
    const found = new Set(inputs.flatMap((input) => maker.get(input) ?? []))
    return [...found].sort((a, b) => a - b)
  })
  const read = new Set(makers.flat())
  const stack = [...nodes.keys()].filter((i) => !read.has(i)).map((node) => ({ node, leaving: false }))
  const seen = new Set<number>()
  const order: Node[] = []
  for (let entry = stack.pop(); entry !== undefined; entry = stack.pop()) {
    const { node, leaving } = entry
    if (leaving) {
      order.push(nodes[node] as Node)
      continue
    }
    if (seen.has(node)) continue
    seen.add(node)
    stack.push({ node, leaving: true })
    for (const next of makers[node] as number[]) if (!seen.has(next)) stack.push({ node: next, leaving: false })
  }
  return order
}

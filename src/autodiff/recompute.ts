import type { Graph, GraphBuilder, Node } from '../onnx/index.ts'

/**
 * For a backward pass, the value to read in place of a value of the graph: one that a node marked `again` makes is computed anew,
 * once, from values that are kept. What a run holds between forward and backward pass becomes smaller by it (Chen et al. 2016, arXiv
 * 1604.06174); results stay the same to the last bit.
 */
export function recomputed(g: GraphBuilder, { nodes }: Pick<Graph, 'nodes'>): (value: string) => string {
  const makers = new Map<string, Node>()
  for (const node of nodes)
    if (node.again) for (const output of node.outputs) if (output !== '') makers.set(output, node)
  const made = new Map<string, string>()
  const again = (value: string): string => {
    const known = made.get(value)
    if (known !== undefined) return known
    const node = makers.get(value)
    if (node === undefined) return value
    // one that feeds another is made before it
    const inputs = node.inputs.map(again)
    const outputs = g.node(node.op, inputs, {
      ...{ attributes: node.attributes, domain: node.domain, name: `${node.name}_again` },
      outputs: node.outputs.length,
      types: node.outputs.map((output) => g.type(output)),
    })
    node.outputs.forEach((output, i) => {
      made.set(output, outputs[i] as string)
    })
    return made.get(value) as string
  }
  return again
}

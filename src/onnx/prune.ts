import type { Graph, Node } from './graph.ts'

/** Operators whose later outputs are optional, and cost time where they are asked for. */
const optionalOutputs = new Set(['LayerNormalization', 'SkipLayerNormalization', 'Dropout', 'MaxPool'])

/**
 * The part of a graph that its outputs need. ONNX Runtime runs every node of a graph, also those whose results nobody
 * reads, so graphs are pruned before they are serialised. Inputs stay, since they are the graph's interface, unless
 * `unusedInputs` is false. `outputs` keeps only those outputs. The graph given is left as it is.
 */
export function prune(graph: Graph, options: { outputs?: string[]; unusedInputs?: boolean } = {}): Graph {
  const outputs = options.outputs ?? graph.outputs
  for (const name of outputs) if (!graph.outputs.includes(name)) throw new Error(`The graph has no output "${name}"`)
  const needed = new Set(outputs)
  const nodes: Node[] = []
  for (let i = graph.nodes.length - 1; i >= 0; i--) {
    const node = graph.nodes[i] as Node
    if (!node.outputs.some((name) => needed.has(name))) continue
    nodes.push(optionalOutputs.has(node.op) ? withoutUnread(node, needed) : node)
    for (const name of node.inputs) needed.add(name)
  }
  nodes.reverse()
  const inputs = options.unusedInputs === false ? graph.inputs.filter((name) => needed.has(name)) : [...graph.inputs]
  const values = new Set([...needed, ...inputs, ...nodes.flatMap((node) => node.outputs)])
  return {
    ...graph,
    inputs,
    outputs: [...outputs],
    nodes,
    initializers: new Map([...graph.initializers].filter(([name]) => needed.has(name))),
    types: new Map([...graph.types].filter(([name]) => values.has(name))),
  }
}

function withoutUnread(node: Node, needed: Set<string>): Node {
  const outputs = node.outputs.map((name, i) => (i === 0 || needed.has(name) ? name : ''))
  while (outputs.at(-1) === '') outputs.pop()
  return { ...node, outputs }
}

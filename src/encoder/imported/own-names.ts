import type { Graph, Node, Subgraph } from '../../onnx/index.ts'

/** What inputs and outputs of the graphs that are made of an encoder's, for embedding and for training, are called. */
const OURS =
  /^(?:embeddings|position_ids|segments|pool|unit_embeddings|embedding_gradient|pairs|pair_queries|pair_weights|loss|loss_scale|differences|.*\.lora_[AB]\.weight)$/

/** The graph with other names for its own values that are called so: `pool` becomes `pool.value`. */
export function withOwnNames(graph: Graph): Graph {
  const kept = new Set([...graph.inputs, ...graph.outputs])
  const taken = new Set([...graph.initializers.keys(), ...graph.nodes.flatMap(({ outputs }) => outputs)])
  const names = new Map<string, string>()
  for (const name of taken) {
    if (!OURS.test(name) || kept.has(name)) continue
    let free = `${name}.value`
    while (taken.has(free)) free += '.value'
    names.set(name, free)
  }
  if (names.size === 0) return graph
  const renamed = (name: string): string => names.get(name) ?? name
  const renamedKeys = <T>(map: ReadonlyMap<string, T>): Map<string, T> =>
    new Map([...map].map(([name, value]) => [renamed(name), value]))
  const renamedGraph = <T extends Subgraph>(part: T): T => ({
    ...part,
    outputs: part.outputs.map(renamed),
    nodes: renamedNodes(part.nodes),
    initializers: renamedKeys(part.initializers),
    types: renamedKeys(part.types),
  })
  const renamedNodes = (nodes: readonly Node[]): Node[] =>
    nodes.map((node) => ({
      ...node,
      inputs: node.inputs.map(renamed),
      outputs: node.outputs.map(renamed),
      attributes: Object.fromEntries(
        Object.entries(node.attributes).map(([name, attribute]) => [
          name,
          'g' in attribute ? { g: renamedGraph(attribute.g) } : attribute,
        ]),
      ),
    }))
  return renamedGraph(graph)
}

import type { Graph, Node } from './graph.ts'

/** Value -> the nodes that read it, in the graph's order; a node that reads it twice is there once. */
export function readersOf({ nodes }: Pick<Graph, 'nodes'>): Map<string, Node[]> {
  const readers = new Map<string, Node[]>()
  for (const node of nodes)
    for (const input of new Set(node.inputs)) {
      const known = readers.get(input)
      if (known === undefined) readers.set(input, [node])
      else known.push(node)
    }
  return readers
}

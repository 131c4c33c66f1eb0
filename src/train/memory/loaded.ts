import { castWhereUsed, type Device, type Graph, isExternal, leavesWeightsStored } from '../../onnx/index.ts'
import { bytesOf } from './values.ts'

/** What a session makes of a graph when it is opened. */
export interface LoadedGraph {
  /** The graph as it is run: what does not depend on the inputs has been computed. */
  graph: Graph
  /** Bytes of the weights that runs read as they are stored. On the CPU they stay in their mapped file, once for all sessions. */
  stored: number
  /** Bytes of those of them that are tables, of which a run reads the rows that its tokens name. */
  tables: number
  /** Bytes of what the session computes from weights when it is opened, and keeps. */
  copies: number
}

/**
 * A graph as `openSession` loads it: on the CPU large weights in half precision stay as they are and nothing is computed beforehand;
 * otherwise ONNX Runtime computes every value that depends on constants alone, casts of weights among them, when it opens a session.
 */
export function loadedGraph(given: Graph, device: Device): LoadedGraph {
  const asStored = device === 'cpu' && leavesWeightsStored(given)
  const graph = asStored ? castWhereUsed(given) : given
  const constant = new Set(graph.initializers.keys())
  const nodes = asStored
    ? graph.nodes
    : graph.nodes.filter(({ inputs, outputs }) => {
        if (!inputs.every((input) => input === '' || constant.has(input))) return true
        for (const output of outputs) constant.add(output)
        return false
      })
  const read = new Set([...graph.outputs, ...nodes.flatMap(({ inputs }) => inputs)])
  const readWhole = new Set(nodes.flatMap(({ op, inputs }) => (op === 'Gather' ? inputs.slice(1) : inputs)))
  let [stored, tables, copies] = [0, 0, 0]
  for (const name of constant) {
    if (!read.has(name)) continue
    const tensor = graph.initializers.get(name)
    if (tensor === undefined || !isExternal(tensor)) copies += bytesOf(graph.types.get(name), {})
    else {
      stored += tensor.external.length
      if (!readWhole.has(name)) tables += tensor.external.length
    }
  }
  return { graph: { ...graph, nodes }, stored, tables, copies }
}

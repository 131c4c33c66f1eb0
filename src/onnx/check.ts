import type { Graph } from './graph.ts'
import { checkTensor, elementCount, elementSize, isExternal } from './tensor.ts'

/**
 * Checks what every graph must satisfy: each value has one origin (input, initializer or node output), is made before it
 * is read, and is known where the graph names it as an output; node names are unique; tensors fit their shapes.
 *
 * @throws Error naming the node or value at fault.
 */
export function checkGraph(graph: Graph): void {
  const made = new Set<string>()
  const make = (name: string, by: string) => {
    if (made.has(name)) throw new Error(`The value "${name}", made by ${by}, exists already`)
    made.add(name)
  }
  for (const name of graph.inputs) {
    make(name, 'an input')
    if (!graph.types.has(name)) throw new Error(`The type of input "${name}" is not known`)
  }
  for (const [name, tensor] of graph.initializers) {
    make(name, 'an initializer')
    if (!isExternal(tensor)) {
      checkTensor(`initializer "${name}"`, tensor)
      continue
    }
    const { offset, length } = tensor.external
    const bytes = elementCount(tensor.shape) * elementSize(tensor.dtype)
    if (!Number.isSafeInteger(offset) || offset < 0 || length !== bytes)
      throw new Error(
        `The initializer "${name}" takes ${bytes} bytes; its external data has ${length} at offset ${offset}`,
      )
  }
  const nodeNames = new Set<string>()
  for (const node of graph.nodes) {
    const label = `node "${node.name}" (${node.op})`
    if (node.name !== '' && nodeNames.has(node.name)) throw new Error(`Two nodes are named "${node.name}"`)
    nodeNames.add(node.name)
    for (const name of node.inputs)
      if (name !== '' && !made.has(name)) throw new Error(`The ${label} reads "${name}", which nothing before it makes`)
    for (const name of node.outputs) if (name !== '') make(name, label)
  }
  for (const name of graph.outputs)
    if (!made.has(name)) throw new Error(`Nothing makes the output "${name}" of the graph`)
}

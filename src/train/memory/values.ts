import { elementSize, type Graph, type Node, sizeOfDim, type ValueType } from '../../onnx/index.ts'
import { executionOrder } from './order.ts'

/** Sizes of a graph's symbols. */
export type Sizes = Readonly<Record<string, number>>

/** What the values of one run take, in bytes. */
export interface ValueMemory {
  /** Most that is held at once. */
  peak: number
  /** Name of the node at which that is. */
  at: string
  /** The graph's outputs. */
  outputs: number
}

/** Operators whose output is their first input under another shape. */
const SAME_MEMORY = new Set(['Reshape', 'Squeeze', 'Unsqueeze', 'Flatten', 'Identity'])

/**
 * Most memory that the values of a graph take at once while it runs, inputs and initializers aside, as a function of the sizes of its
 * symbols: every node's outputs, from the node that makes them to the last one that reads them; the graph's outputs to the end. Nodes
 * run one after the other in ONNX Runtime's order. A value whose size the symbols do not decide counts nothing.
 */
export function valueMemory(graph: Graph): (sizes: Sizes) => ValueMemory {
  const order = executionOrder(graph)
  const root = roots(order)
  const lastReader = new Map<string, number>()
  order.forEach(({ inputs }, i) => {
    for (const input of inputs) lastReader.set(rootOf(root, input), i)
  })
  const outputs = new Set(graph.outputs.map((output) => rootOf(root, output)))
  const made = order.map((node) => node.outputs.filter((output) => output !== '' && !root.has(output)))
  const freed = order.map((): string[] => [])
  made.forEach((values, i) => {
    for (const value of values) if (!outputs.has(value)) freed[Math.max(i, lastReader.get(value) ?? i)]?.push(value)
  })
  return (sizes) => {
    const bytes = (values: readonly string[]): number =>
      values.reduce((sum, value) => sum + bytesOf(graph.types.get(value), sizes), 0)
    let held = 0
    let most = { peak: 0, at: '' }
    order.forEach(({ name }, i) => {
      held += bytes(made[i] as string[])
      if (held > most.peak) most = { peak: held, at: name }
      held -= bytes(freed[i] as string[])
    })
    return { ...most, outputs: held }
  }
}

/** Value that shares another's memory -> the value that it is. */
function roots(order: Node[]): Map<string, string> {
  const root = new Map<string, string>()
  for (const { op, inputs, outputs } of order)
    if (SAME_MEMORY.has(op)) root.set(outputs[0] as string, rootOf(root, inputs[0] as string))
  return root
}

const rootOf = (root: Map<string, string>, value: string): string => root.get(value) ?? value

/** Bytes of a value; 0 where its size is not known. */
export function bytesOf(type: ValueType | undefined, sizes: Sizes): number {
  if (type === undefined) return 0
  let elements = 1
  for (const dim of type.shape) elements *= sizeOfDim(dim, sizes) ?? 0
  return Math.ceil(elements * elementSize(type.dtype))
}

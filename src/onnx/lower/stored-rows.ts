import type { Graph, Node } from '../graph.ts'

/**
 * Has rows of a table picked before they are made float rather than after, where the table is stored in half precision or
 * quantised with one scale: ONNX Runtime would keep a float32 copy of the whole table, two to four times its size.
 */
export function pickStoredRows(graph: Graph): Graph {
  const converted = new Map(
    graph.nodes.filter((node) => convertsTable(node, graph)).map((node) => [node.outputs[0] as string, node]),
  )
  const names = new Set([...graph.types.keys(), ...graph.nodes.flatMap((node) => [node.name, ...node.outputs])])
  const unique = (base: string): string => {
    let name = base
    while (names.has(name)) name += '_'
    names.add(name)
    return name
  }
  const types = new Map(graph.types)
  const nodes = graph.nodes.flatMap((node): Node[] => {
    const conversion = node.op === 'Gather' ? converted.get(node.inputs[0] as string) : undefined
    if (conversion === undefined) return [node]
    const [table = '', ...parameters] = conversion.inputs
    const [rows] = node.outputs as [string]
    const stored = unique(`${rows}_stored`)
    const { axis: _, ...attributes } = conversion.attributes
    const [was, is] = [graph.types.get(table), graph.types.get(rows)]
    if (was !== undefined && is !== undefined) types.set(stored, { dtype: was.dtype, shape: is.shape })
    return [
      { ...node, inputs: [table, ...node.inputs.slice(1)], outputs: [stored] },
      { ...conversion, name: unique(stored), inputs: [stored, ...parameters], outputs: [rows], attributes },
    ]
  })
  return { ...graph, nodes, types }
}

/** Element types of tables, of which ONNX Runtime picks rows; it does not of int4. */
const STORED = new Set(['float16', 'bfloat16', 'int8', 'uint8'])

/** Whether a node makes a stored table float in a way that is the same for all its numbers. */
function convertsTable({ op, inputs }: Node, { initializers }: Graph): boolean {
  const [name = '', ...parameters] = inputs
  const table = initializers.get(name)
  if (table === undefined || table.shape.length < 2 || !STORED.has(table.dtype)) return false
  if (op !== 'Cast' && op !== 'DequantizeLinear') return false
  return parameters.every((input) => input === '' || initializers.get(input)?.shape.every((d) => d === 1))
}

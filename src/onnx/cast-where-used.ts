import type { ExternalTensor, Graph, Node, Tensor } from './graph.ts'
import { byteLength } from './tensor.ts'

/**
 * The graph with the casts of its weights in half precision to float32 done by each node for itself, right before it runs, where
 * the graph has one cast for all of them. A session that folds no constants then holds none of its weights in float32: they stay
 * where they are, in the mapped file, and as many as one node reads are in memory at a time. What a cast costs does not grow with
 * the tokens of a run. Rows of a table (Gather) are taken before they are cast.
 *
 * Casts come first among the nodes: ONNX Runtime, which runs a node's inputs in the order of the nodes' numbers, the highest first,
 * leaves those with low numbers until they are needed.
 */
export function castWhereUsed(graph: Graph): Graph {
  const stored = storedWeights(graph)
  if (stored.size === 0) return graph
  const types = new Map(graph.types)
  const casts: Node[] = []
  const nodes: Node[] = []
  const cast = (input: string, output: string, name: string): Node => ({
    ...{ op: 'Cast', domain: '', name, inputs: [input], outputs: [output] },
    attributes: { to: { i: FLOAT } },
  })
  for (const node of graph.nodes) {
    if (stored.has(node.outputs[0] as string)) continue
    const weight = node.op === 'Gather' ? stored.get(node.inputs[0] as string) : undefined
    if (weight !== undefined) {
      const [rows] = node.outputs as [string]
      const taken = `${rows}.stored`
      nodes.push({ ...node, inputs: [weight, ...node.inputs.slice(1)], outputs: [taken] })
      nodes.push(cast(taken, rows, `${rows}.cast`))
      types.set(taken, { dtype: types.get(weight)!.dtype, shape: types.get(rows)!.shape })
      continue
    }
    const inputs = node.inputs.map((input, i) => {
      const from = stored.get(input)
      if (from === undefined) return input
      // nodes need not have names, and no two make the same value
      const own = `${input}.${node.outputs.find((output) => output !== '')}.${i}`
      casts.push(cast(from, own, own))
      types.set(own, types.get(input)!)
      return own
    })
    nodes.push(inputs.some((input, i) => input !== node.inputs[i]) ? { ...node, inputs } : node)
  }
  for (const value of stored.keys()) types.delete(value)
  return { ...graph, nodes: [...casts, ...nodes], types }
}

/**
 * Weights in half precision of this many bytes and more stay in their file on the CPU, and every run casts them where they are used.
 * Otherwise a session holds a copy of them in float32, twice as large, and there are several sessions: training's steps and its
 * embeddings, f0. Runs of 8 tokens take a quarter longer for it, runs of 1 024 tokens 5 %.
 */
const MAPPED_BYTES = 2 ** 28

/** Whether a session on the CPU leaves the graph's weights in half precision as they are, see {@link castWhereUsed}. */
export function leavesWeightsStored(graph: Graph): boolean {
  const bytes = [...storedWeights(graph).values()].reduce((sum, name) => {
    const { dtype, shape } = graph.initializers.get(name)!
    return sum + byteLength(dtype, shape)
  }, 0)
  return bytes >= MAPPED_BYTES
}

/** FLOAT of ONNX's TensorProto.DataType. */
const FLOAT = 1

/** Value in float32 -> the initializer in half precision that it is a cast of; not for values that have to be there by their name. */
function storedWeights({ nodes, initializers, outputs }: Graph): Map<string, string> {
  const found = new Map<string, string>()
  const named = new Set([...outputs, ...readInBranches(nodes)])
  for (const { op, inputs, outputs: made, attributes } of nodes) {
    const [from = '', to = ''] = [inputs[0], made[0]]
    const { to: type } = attributes
    if (op !== 'Cast' || type === undefined || !('i' in type) || type.i !== FLOAT || named.has(to)) continue
    if (isHalf(initializers.get(from))) found.set(to, from)
  }
  return found
}

/** What the branches of If nodes read, which see the values around them. */
function readInBranches(nodes: readonly Node[]): string[] {
  const branches = nodes.flatMap(({ attributes }) => Object.values(attributes).flatMap((a) => ('g' in a ? [a.g] : [])))
  return branches.flatMap(({ nodes: inner, outputs }) => [
    ...outputs,
    ...inner.flatMap(({ inputs }) => inputs),
    ...readInBranches(inner),
  ])
}

const isHalf = (tensor: Tensor | ExternalTensor | undefined): boolean =>
  tensor !== undefined && (tensor.dtype === 'bfloat16' || tensor.dtype === 'float16')

import { InputError } from '../../support/errors.ts'
import { GraphBuilder } from '../builder.ts'
import type { Graph, Node, ValueType } from '../graph.ts'
import { prune } from '../prune.ts'
import { inferNodeTypes } from '../shapes.ts'
import { fourBitWeights } from './blocks.ts'
import { fuseDynamicQuantisation } from './dynamic.ts'
import { toFloat32 } from './half.ts'
import type { LoweringContext } from './lowering.ts'
import { pickStoredRows } from './stored-rows.ts'
import { lowerings } from './table.ts'

export interface Lowered {
  graph: Graph
  /** How many nodes of each operator were replaced; `float16 weights` counts half-precision tensors, bfloat16 too. */
  lowered: Record<string, number>
}

/**
 * The graph in float32 and in operators that have shape and gradient rules, where it uses others: fused operators of ONNX
 * Runtime, half precision, and quantised weights, which stay as they are stored and are made float where they are read.
 * Activations are not quantised ("straight-through"), so the result computes what the quantised model approximates. The
 * values that are left keep their names, as do all weights; other operators stay as they are. A key-value cache that
 * comes in through the graph's inputs is taken to be empty, and those inputs are no longer read.
 *
 * @param graph of operator set 17 or later (`upgradeOpset`), with the types of what such operators read (`inferTypes`)
 * @throws InputError for an attribute, an input or an operator that has no such form, naming the node and the way out
 */
export function lower(graph: Graph): Lowered {
  const float = toFloat32(graph)
  const expanded = expand(fuseDynamicQuantisation(fourBitWeights(float.graph)))
  const lowered: Record<string, number> = float.casts > 0 ? { 'float16 weights': float.casts } : {}
  const left = new Set(expanded.nodes.map(signature))
  for (const node of prune(graph).nodes)
    if (Object.hasOwn(lowerings, keyOf(node)) && !left.has(signature(node)))
      lowered[node.op] = (lowered[node.op] ?? 0) + 1
  return { graph: prune(pickStoredRows(expanded)), lowered }
}

const keyOf = ({ domain, op }: Node): string => (domain === '' ? op : `${domain}:${op}`)
const signature = (node: Node): string => `${keyOf(node)} ${node.outputs[0]}`

/** Replaces every node that the table has an expansion for. */
function expand(graph: Graph): Graph {
  const g = GraphBuilder.rewriting(graph)
  const read = new Set([...graph.outputs, ...graph.nodes.flatMap((node) => node.inputs)])
  const inputs = new Set(graph.inputs)
  const constants = new Set(graph.initializers.keys())
  const memo = new Map<string, string>()
  /** A value of `graph` -> the value made in its place, and back. */
  const now = new Map<string, string>()
  const before = new Map<string, string>()

  for (const original of graph.nodes) {
    const node: Node = { ...original, inputs: original.inputs.map((input) => now.get(input) ?? input) }
    const key = keyOf(node)
    if (node.inputs.every((input) => input === '' || constants.has(input)))
      for (const output of node.outputs) constants.add(output)
    const start = g.build().nodes.length
    const context: LoweringContext = {
      node,
      x: (i) => node.inputs[i] ?? '',
      asked: (i) => (node.outputs[i] ?? '') !== '' && read.has(node.outputs[i] as string),
      isInput: (value) => inputs.has(value),
      isConstant: (value) => constants.has(value),
      g,
      shared: (name, make) => {
        const known = memo.get(name)
        if (known !== undefined) return known
        const value = make()
        memo.set(name, value)
        return value
      },
    }
    const lowering = Object.hasOwn(lowerings, key) ? lowerings[key] : undefined
    const made = lowering === undefined ? null : located(node, () => lowering(context))
    if (made === null) {
      g.take(node, typesOf(node, graph, g))
      continue
    }
    const fresh = new Set(
      g
        .build()
        .nodes.slice(start)
        .flatMap((n) => n.outputs),
    )
    node.outputs.forEach((output, i) => {
      if (!context.asked(i)) return
      const value = made[i]
      if (value === undefined || value === '')
        throw new InputError(`node "${node.name}" (${node.op}): its output ${i} is read, which is not supported`)
      const own = fresh.has(value) && !before.has(value) ? value : g.one('Identity', [value])
      now.set(output, own)
      before.set(own, output)
    })
  }
  return renamed(g.build(), before)
}

/** Errors of the builder, about types mostly, as messages about the node being lowered. */
function located<T>(node: Node, make: () => T): T {
  try {
    return make()
  } catch (e) {
    if (e instanceof InputError) throw e
    throw new InputError(
      `node "${node.name}" (${node.op}) cannot be put into standard operators: ${(e as Error).message}`,
      {},
      e,
    )
  }
}

/** Types of a node that stays: what the graph says of its outputs, else what follows from its inputs. */
function typesOf(node: Node, graph: Graph, g: GraphBuilder): (ValueType | undefined)[] {
  const inferred = (() => {
    try {
      return inferNodeTypes(node, g.build(), () => g.freshSymbol())
    } catch {
      return []
    }
  })()
  return node.outputs.map((output, i) => {
    const own = graph.types.get(output)
    const type = inferred[i]
    // A quantised value that is float now is not what the graph says of it.
    return own !== undefined && (type === undefined || type.dtype === own.dtype) ? own : type
  })
}

/** The graph with values under other names. */
function renamed(graph: Graph, names: ReadonlyMap<string, string>): Graph {
  const rename = (value: string) => names.get(value) ?? value
  return {
    ...graph,
    nodes: graph.nodes.map((node) => ({
      ...node,
      inputs: node.inputs.map(rename),
      outputs: node.outputs.map(rename),
    })),
    types: new Map([...graph.types].map(([value, type]) => [rename(value), type])),
  }
}

import { type Graph, GraphBuilder, type Node, operatorRule, readersOf } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { fuseSums } from './fuse.ts'
import { orderBackward } from './order.ts'
import { reassociate } from './reassociate.ts'
import { recomputed } from './recompute.ts'
import type { Values } from './rule.ts'
import { gradients as rules, severalOutputs } from './rules.ts'

const differentiable = new Set(['float32', 'float64', 'float16', 'bfloat16'])

export interface GradientGraph {
  /** The graph given, with nodes appended that compute the gradients. Its outputs are those of the graph given. */
  graph: Graph
  /**
   * `wrt` value -> the value that holds its gradient, of the same type. Without an entry: no path, the
   * gradient is 0. Equal gradients may share a value.
   */
  gradients: Map<string, string>
}

/**
 * Reverse-mode differentiation: appends to `graph` the nodes that compute, for each value in `wrt`, the gradient of
 * Σ seeds∘values. A seed is 1, or the name of a value of the graph that holds the gradient of something with respect to
 * the seeded value (the same shape). Only values on a path from `wrt` to a seed are differentiated: what lies off it (a
 * frozen matrix, say) costs nothing. Gradients do not flow through integers and booleans.
 *
 * Make the gradients outputs of the graph and prune it before it runs: rules may leave nodes behind that nothing reads.
 *
 * @throws InputError `No gradient for: X (node "…")` for an operator on the path without a rule.
 */
export function addGradients(graph: Graph, seeds: Record<string, string | 1>, wrt: string[]): GradientGraph {
  const g = GraphBuilder.from(graph)
  const varies = dependents(graph, wrt)
  const onlyUse = onlyUses(graph, Object.keys(seeds))
  const again = recomputed(g, graph)
  const parts = new Map<string, string[]>()
  const contribute = (value: string, part: string) => {
    const known = parts.get(value)
    if (known === undefined) parts.set(value, [part])
    else known.push(part)
  }
  const gradientOf = (value: string): string | null => {
    const all = parts.get(value)
    if (all === undefined) return null
    const total = all.reduce((a, b) => g.add(a, b))
    parts.set(value, [total])
    return total
  }

  const seeded = Object.entries(seeds).map(([value, seed]) => {
    const part = seed === 1 ? g.expand(g.cast(g.scalar(1), g.type(value).dtype), g.shape(value)) : seed
    contribute(value, part)
    return part
  })

  for (const node of graph.nodes.toReversed()) {
    const wanted = node.inputs.map((value) => varies.has(value))
    if (!wanted.includes(true)) continue
    const dys = node.outputs.map((value) => (varies.has(value) ? gradientOf(value) : null))
    if (dys.every((dy) => dy === null)) continue
    const rule = operatorRule(rules, node)
    if (rule === undefined) throw new InputError(`No gradient for: ${node.op} (node "${node.name}")`)
    const later = dys.findIndex((dy, i) => i > 0 && dy !== null)
    if (later > 0 && !severalOutputs.has(node.op))
      throw new InputError(`No gradient for: output ${later} of ${node.op} (node "${node.name}")`)
    const made = rule({
      node,
      x: padded(node.inputs.map(again)),
      y: padded(node.outputs.map(again)),
      dy: dys[0] as string,
      dys,
      g,
      onlyUse,
      gradientOf,
    })
    wanted.forEach((want, i) => {
      const gradient = made[i]
      if (!want || gradient === null || gradient === undefined) return
      const input = node.inputs[i] as string
      contribute(input, g.sumTo(gradient(), g.shape(input)))
    })
  }

  const gradients = new Map<string, string>()
  for (const value of wrt) {
    const total = gradientOf(value)
    if (total !== null) gradients.set(value, total)
  }
  const first = graph.nodes.length
  const whole = fuseSums(reassociate(g.build(), first, gradients.values()), first, gradients.values())
  return { graph: orderBackward(whole, first, seeded), gradients }
}

/** Rules look at three inputs and outputs at least, of which a node may have fewer. */
const padded = (values: string[]): Values => [values[0] ?? '', values[1] ?? '', values[2] ?? '', ...values.slice(3)]

/** The values that change, and differentiably so, when a value in `wrt` does. */
function dependents(graph: Graph, wrt: string[]): Set<string> {
  const isFloat = (value: string) => differentiable.has(graph.types.get(value)?.dtype ?? '')
  const varies = new Set<string>()
  for (const value of wrt) {
    if (!graph.types.has(value)) throw new Error(`The graph has no value "${value}"`)
    if (isFloat(value)) varies.add(value)
  }
  for (const node of graph.nodes)
    if (node.inputs.some((value) => varies.has(value)))
      for (const value of node.outputs) if (isFloat(value)) varies.add(value)
  return varies
}

/** The node that alone reads a value, for values without a seed. */
function onlyUses(graph: Graph, seeded: string[]): (value: string) => Node | undefined {
  const readers = readersOf(graph)
  return (value) => {
    const nodes = readers.get(value) ?? []
    return nodes.length === 1 && !seeded.includes(value) ? nodes[0] : undefined
  }
}

import type { Graph, Node, ValueType } from './graph.ts'
import { type Known, knownTensor } from './known.ts'
import { attentionShapes } from './shape-rules/attention.ts'
import { elementwiseShapes } from './shape-rules/elementwise.ts'
import { layoutShapes } from './shape-rules/layout.ts'
import { normalisationShapes } from './shape-rules/normalisations.ts'
import { productShapes } from './shape-rules/products.ts'
import { quantisedShapes } from './shape-rules/quantised.ts'
import { reductionShapes } from './shape-rules/reductions.ts'
import type { ShapeRule } from './shape-rules/rule.ts'
import { sizeShapes } from './shape-rules/sizes.ts'
import { windowShapes } from './shape-rules/windows.ts'

/**
 * ONNX operator -> types of its outputs, `com.microsoft:` before those whose name also is a standard operator's. One table
 * serves the graph builder and the reading of graphs made elsewhere.
 */
export const shapeRules: Record<string, ShapeRule> = {
  ...elementwiseShapes,
  ...productShapes,
  ...reductionShapes,
  ...layoutShapes,
  ...sizeShapes,
  ...normalisationShapes,
  ...windowShapes,
  ...attentionShapes,
  ...quantisedShapes,
}

/** A node's entry in a table of operators: its domain's own where the table has one, else by the operator's name. */
export function operatorRule<T>(table: Record<string, T>, { domain, op }: Node): T | undefined {
  const own = `${domain}:${op}`
  if (Object.hasOwn(table, own)) return table[own]
  return Object.hasOwn(table, op) ? table[op] : undefined
}

/**
 * Types of a node's outputs, from the shape rules. `fresh` names dimensions that nothing known equals; `values` says what
 * is known of inputs that are no constants.
 *
 * @throws Error when the operator has no rule, or when an input's type is missing or does not fit.
 */
export function inferNodeTypes(
  node: Node,
  graph: Pick<Graph, 'types' | 'initializers'>,
  fresh: () => string,
  values?: ReadonlyMap<string, Known>,
): ValueType[] {
  const rule = operatorRule(shapeRules, node)
  if (rule === undefined) throw new Error(`No shape rule for ${node.op}: pass the types of its outputs`)
  const dims = (i: number) => {
    const name = node.inputs[i] ?? ''
    const tensor = graph.initializers.get(name)
    const known = values?.get(name) ?? (tensor !== undefined && 'data' in tensor ? knownTensor(tensor) : undefined)
    return known?.elements
  }
  const types = rule({
    op: node.op,
    attributes: node.attributes,
    inputs: node.inputs.map((name) => (name === '' ? undefined : graph.types.get(name))),
    dims,
    constant: (i) => {
      const elements = dims(i)
      return elements?.every((e) => typeof e === 'number') ? (elements as number[]) : undefined
    },
    fresh,
    outputs: node.outputs.length,
  })
  for (const { shape } of types)
    if (!shape.every(isSize)) throw new RangeError(`inputs of these shapes do not fit ${node.op}`)
  return types
}

/** Rules trust their inputs' ranks; what comes of other ones is no shape. */
const isSize = (d: unknown): boolean => typeof d === 'string' || (Number.isSafeInteger(d) && (d as number) >= 0)

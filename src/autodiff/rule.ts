import type { GraphBuilder, Node } from '../onnx/index.ts'

/** Names of values, at least three of them. */
export type Values = [string, string, string, ...string[]]

/** What a rule may look at: the node, its values, and the gradients of its outputs. */
export interface RuleContext {
  node: Node
  /** The node's inputs, '' for those that it does not have. */
  x: Values
  /** The node's outputs, '' for those that it does not have. */
  y: Values
  /** The gradient of the first output. */
  dy: string
  /** The gradients of all outputs; `null` where none arrives. Only rules in `severalOutputs` need to look here. */
  dys: (string | null)[]
  /** Where the rule puts its nodes. */
  g: GraphBuilder
  /** The one node through which all of a value's gradient arrives; undefined where there are several, or a seed. */
  onlyUse(value: string): Node | undefined
  /** The gradient of a value that the walk has already passed, `null` if it has none. */
  gradientOf(value: string): string | null
}

/**
 * The gradient of one input, made only if it is wanted. It may have the shape to which the input was broadcast: the walk
 * sums it back to the input's own shape.
 */
export type Gradient = () => string

/** An operator's inputs' gradients, in order. `null`, or nothing: no gradient flows there. */
export type GradientRule = (ctx: RuleContext) => (Gradient | null)[]

import { InputError } from '../../support/errors.ts'
import type { GraphBuilder } from '../builder.ts'
import type { Dim, Node } from '../graph.ts'

/** What an expansion may look at, and where it puts its nodes. */
export interface LoweringContext {
  node: Node
  /** The value of input `i`, '' where the node does not have it. */
  x(i: number): string
  /** Whether something reads output `i`. */
  asked(i: number): boolean
  /** Whether the value is an input of the graph, which its caller chooses. */
  isInput(value: string): boolean
  /** Whether the value follows from initializers alone. */
  isConstant(value: string): boolean
  g: GraphBuilder
  /** `make`'s value, made once for all nodes that ask for the same key: the mask that every layer adds, say. */
  shared(key: string, make: () => string): string
}

/**
 * An operator in terms of others: the values of its outputs, in order. Outputs that are left out cannot be read.
 * `null`: the node stays as it is.
 */
export type Lowering = (ctx: LoweringContext) => string[] | null

/** Stops with a message that names the node, what is wrong with it and the way out. */
export function refuse(node: Node, what: string, remedy: string): never {
  throw new InputError(`node "${node.name}" (${node.op}): ${what}. ${remedy}`)
}

export const UNFUSED =
  'Export the model without this optimisation (optimum: --optimize off; onnxruntime: the model before transformers.optimizer) and use that file.'

/** Refuses attributes that are switched on; ONNX Runtime writes 0 or -1 where they are not. */
export function refuseAttributes(node: Node, names: string[]): void {
  for (const name of names) {
    const attribute = node.attributes[name]
    if (attribute !== undefined && 'i' in attribute && attribute.i > 0)
      refuse(node, `the attribute ${name} = ${attribute.i} is not supported`, UNFUSED)
  }
}

/** Refuses inputs that are there. */
export function refuseInputs(ctx: LoweringContext, inputs: Record<number, string>): void {
  for (const [i, name] of Object.entries(inputs))
    if (ctx.x(Number(i)) !== '') refuse(ctx.node, `the input ${name} is not supported`, UNFUSED)
}

/** A size that has to be a number. */
export function fixedSize(node: Node, what: string, size: Dim | undefined): number {
  if (typeof size !== 'number')
    refuse(node, `${what} has to be a number in the graph, not "${size}"`, 'Export the model with fixed widths.')
  return size
}

/** Parts of `sizes` along `axis`. */
export function split(g: GraphBuilder, x: string, axis: number, sizes: number[]): string[] {
  return g.node('Split', [x, g.constant(sizes, 'int64')], {
    attributes: { axis: { i: axis } },
    outputs: sizes.length,
  })
}

/** The integers from 0 on, below the size `dim`: an int64 vector. */
export function range(ctx: LoweringContext, dim: Dim): string {
  const { g } = ctx
  return ctx.shared(`range:${dim}`, () => {
    const size = typeof dim === 'number' ? g.scalar(dim, 'int64') : g.reshape(g.sizeOf(dim), [])
    return g.one('Range', [g.scalar(0, 'int64'), size, g.scalar(1, 'int64')], {
      types: [{ dtype: 'int64', shape: [dim] }],
    })
  })
}

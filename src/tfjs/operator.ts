import { intAttribute, normalAxis, type Tensor } from '../onnx/index.ts'
import type { Float, NodeContext, Tfjs, Value } from './values.ts'

/** What an operator works with: the node's inputs, of which at least one is a float32 tensor of the backend's. */
export interface OperatorContext extends NodeContext {
  tf: Tfjs
  x: (Value | undefined)[]
  /** Input i as a float of the backend's; an error if it is none. */
  float(i: number): Float
  /** Input i as a tensor that stays here (indices, shapes, conditions); an error if it is none. */
  host(i: number): Tensor
  optionalHost(i: number): Tensor | undefined
}

/** The tfjs expression of an ONNX operator: the node's outputs. */
export type Operator = (ctx: OperatorContext) => Value | Value[]

/** The node's axis, counted from 0. */
export const axisOf = ({ attributes }: NodeContext, rank: number, otherwise = 0): number =>
  normalAxis(intAttribute(attributes, 'axis', otherwise), rank)

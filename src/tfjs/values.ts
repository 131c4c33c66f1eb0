import type * as core from '@tensorflow/tfjs-core'
import { type Attribute, elementCount, type Node, type Tensor } from '../onnx/index.ts'

/** TensorFlow.js, of whatever package it was loaded from. */
export type Tfjs = typeof core

/** A float32 tensor in the backend's memory. */
export type Float = core.Tensor

/**
 * What a value of a graph is while it is evaluated: float32 lies in the backend's memory and can be differentiated,
 * every other element type stays here, where arithmetic on it is exact (TensorFlow.js has neither int64 nor float64).
 */
export type Value = Float | Tensor

/** Whether the value is one of ours rather than the backend's. */
export function onHost(value: Value): value is Tensor {
  return ArrayBuffer.isView(value.data)
}

/** One node's evaluation. */
export interface NodeContext {
  node: Node
  attributes: Record<string, Attribute>
  /** The operator set's version. */
  opset: number
  /** How many outputs the node has. */
  outputs: number
}

/** The integers of a small tensor: axes, sizes, bounds. Those beyond 2⁵³ (ONNX's "to the end") are near enough. */
export function integers(tensor: Tensor): number[] {
  return Array.from(tensor.data as ArrayLike<number | bigint>, Number)
}

/** A vector of sizes as ONNX passes them. */
export function int64(values: readonly number[], shape: number[] = [values.length]): Tensor {
  return { dtype: 'int64', shape, data: BigInt64Array.from(values, BigInt) }
}

/** Puts a float32 tensor of ours into the backend's memory. */
export function upload(tf: Tfjs, { data, shape }: Tensor): Float {
  return tf.tensor(data as Float32Array, shape, 'float32')
}

/** A copy of the backend's tensor here, as float32. */
export function download(value: Float): Tensor {
  return { dtype: 'float32', shape: [...value.shape], data: Float32Array.from(value.dataSync()) }
}

/** A condition of ours for `tf.where`. */
export function uploadCondition(tf: Tfjs, { data, shape }: Tensor): Float {
  return tf.tensor(data as Uint8Array, shape, 'bool')
}

/** Integers of ours for the backend, which knows int32 only. */
export function uploadIndices(tf: Tfjs, indices: Int32Array): core.Tensor1D {
  return tf.tensor1d(indices, 'int32')
}

/** The value with its elements in another shape. */
export function reshaped(tensor: Tensor, shape: number[]): Tensor {
  if (elementCount(shape) !== tensor.data.length)
    throw new RangeError(`[${tensor.shape.join(', ')}] cannot be reshaped to [${shape.join(', ')}]`)
  return { ...tensor, shape }
}

/** Where a condition on its numbers holds. */
export function hostTruth({ shape, data }: Tensor, test: (v: number) => boolean): Tensor {
  return { dtype: 'bool', shape, data: Uint8Array.from(data as Float32Array, (v) => (test(v) ? 1 : 0)) }
}

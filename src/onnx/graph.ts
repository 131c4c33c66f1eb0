/** Element types that graphs here use, by their ONNX names in lower case. */
export type DType =
  | 'float32'
  | 'float16'
  | 'bfloat16'
  | 'float64'
  | 'int4'
  | 'uint4'
  | 'int8'
  | 'uint8'
  | 'int16'
  | 'uint16'
  | 'int32'
  | 'uint32'
  | 'int64'
  | 'uint64'
  | 'bool'

/**
 * A dimension: its size, or the name of one that is known only when the graph runs. Equal names are equal sizes. Names may
 * be sums of products of other names, `batch*sequence` or `past + 1`, in the one order that `dims.ts` writes.
 */
export type Dim = number | string

export interface ValueType {
  dtype: DType
  shape: Dim[]
}

export type TensorData =
  | Float32Array
  | Float64Array
  | Int8Array
  | Uint8Array
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array

/**
 * A tensor in memory; float16 and bfloat16 as their bits in a Uint16Array, bool as a Uint8Array of 0 and 1, int4 and uint4
 * two to the byte in a Uint8Array, the first in the lower half.
 */
export interface Tensor {
  dtype: DType
  shape: number[]
  data: TensorData
}

/** A tensor that stays in a file: `length` bytes at `offset` of `file` (a bare name in the graph's external folder). */
export interface ExternalTensor {
  dtype: DType
  shape: number[]
  external: { file: string; offset: number; length: number }
}

/** One ONNX attribute, by the field of AttributeProto that carries it. */
export type Attribute =
  | { i: number }
  | { f: number }
  | { s: string }
  | { ints: number[] }
  | { floats: number[] }
  | { strings: string[] }
  | { t: Tensor }
  | { g: Subgraph }

/** A branch of an If node. It has no inputs: it reads the values of the graph around it by their names. */
export type Subgraph = Pick<Graph, 'outputs' | 'nodes' | 'initializers' | 'types'>

export interface Node {
  op: string
  /** '' for the standard operator set. */
  domain: string
  name: string
  /** Value names; '' where an optional input is absent. */
  inputs: string[]
  outputs: string[]
  attributes: Record<string, Attribute>
  /** What the exporter noted about the node (NodeProto.metadata_props), where it did. */
  metadata?: Record<string, string>
  /** Whether a backward pass computes the node again where it reads its outputs, so that they need not be kept; not in files. */
  again?: true
}

/**
 * An ONNX graph as plain data. Nodes are in topological order. Every value of a graph built here has an entry in `types`;
 * of a graph read from a file, the values whose type is known.
 */
export interface Graph {
  /** Version of the standard operator set. */
  opset: number
  /** Versions of other operator sets, where they are not 1. */
  domains?: Record<string, number>
  inputs: string[]
  outputs: string[]
  nodes: Node[]
  initializers: Map<string, Tensor | ExternalTensor>
  types: Map<string, ValueType>
}

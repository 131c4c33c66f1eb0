import {
  bytesOfData,
  dtypeNumber,
  type ExternalTensor,
  float32ToFloat16,
  type Graph,
  inHalfPrecision,
  intAttribute,
  isExternal,
  type Node,
  prune,
  type Tensor,
} from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { asFloats, blocksOf, type StreamedTensor, type WeightRows } from './streams.ts'
import type { Writable } from './write-model.ts'

export const LARGEST_FLOAT16 = 65504

/**
 * The graph with its matrices in float16 and its products computed in it; normalisations, softmax and sums of activations, which
 * could overflow, stay in float32, as do inputs and outputs (see {@link inHalfPrecision}). Tables of embeddings are stored in
 * float16. Standard operators only.
 *
 * @param weightOf the numbers of an initializer that is a reference
 */
export function halved(graph: Graph, weightOf: (tensor: ExternalTensor) => WeightRows): Writable {
  const converted = storedInHalf(inHalfPrecision(halfTables(graph), 'fp16', { trainable: [] }))
  return {
    graph: converted,
    stream: (_, tensor) =>
      tensor.dtype === 'float16' ? asHalves(tensor.external.file, weightOf(tensor)) : asFloats(weightOf(tensor)),
  }
}

/** A weight as float16, rounded to the nearest; the stream fails for a number that is too large for it. */
function asHalves(name: string, weight: WeightRows): StreamedTensor {
  return {
    dtype: 'float16',
    shape: weight.shape,
    async *parts() {
      for await (const block of blocksOf(weight)) yield bytesOfData(halves(name, block))
    },
  }
}

function halves(name: string, values: Float32Array): Uint16Array {
  const large = values.find((x) => Math.abs(x) > LARGEST_FLOAT16)
  if (large !== undefined)
    throw new InputError(
      `The weight "${name}" holds ${large}, which float16 cannot: export this encoder with --dtype fp32 or int8.`,
    )
  return float32ToFloat16(values)
}

const half = (tensor: ExternalTensor): ExternalTensor => ({ ...tensor, dtype: 'float16' })

/** Tables that are references, looked up in float16: what is found is cast to float32. */
function halfTables(graph: Graph): Graph {
  const initializers = new Map(graph.initializers)
  const types = new Map(graph.types)
  const nodes = graph.nodes.flatMap((node): Node[] => {
    const table = node.op === 'Gather' ? graph.initializers.get(node.inputs[0] ?? '') : undefined
    if (table === undefined || !isExternal(table)) return [node]
    const [name, out] = [`${node.inputs[0]}/half`, node.outputs[0] as string]
    const found = `${out}/half`
    initializers.set(name, half(table))
    types.set(name, { dtype: 'float16', shape: table.shape })
    types.set(found, { dtype: 'float16', shape: graph.types.get(out)?.shape ?? [] })
    return [
      { ...node, inputs: [name, ...node.inputs.slice(1)], outputs: [found] },
      {
        ...node,
        op: 'Cast',
        name: out,
        inputs: [found],
        outputs: [out],
        attributes: { to: { i: dtypeNumber('float32') } },
      },
    ]
  })
  return prune({ ...graph, nodes, initializers, types })
}

/** Initializers that are only cast to float16 become it. */
function storedInHalf(graph: Graph): Graph {
  const initializers = new Map(graph.initializers)
  const nodes = graph.nodes.filter(({ op, inputs, outputs, attributes }) => {
    const tensor = graph.initializers.get(inputs[0] ?? '')
    if (op !== 'Cast' || tensor === undefined || intAttribute(attributes, 'to', 0) !== dtypeNumber('float16'))
      return true
    initializers.set(outputs[0] as string, isExternal(tensor) ? half(tensor) : halfTensor(inputs[0] as string, tensor))
    return false
  })
  return prune({ ...graph, nodes, initializers })
}

function halfTensor(name: string, { shape, data }: Tensor): Tensor {
  return { dtype: 'float16', shape, data: halves(name, data as Float32Array) }
}

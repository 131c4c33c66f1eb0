import { dtypeNumber } from '../dtypes.ts'
import type { Graph, Node, Tensor } from '../graph.ts'
import { bfloat16ToFloat32, float16ToFloat32, isExternal } from '../tensor.ts'

const HALVES = new Set(['float16', 'bfloat16'])

/** Attributes that name an element type, by their TensorProto.DataType. */
const TYPE_ATTRIBUTES = ['to', 'dtype', 'output_dtype', 'softmax_precision']

/**
 * A graph of float16 or bfloat16 as one that computes in float32, with float32 inputs and outputs: weights stay as they
 * are stored and are cast where they are read, which ONNX Runtime does once when a session is made; single numbers and
 * attributes are converted. `casts` counts the weights.
 */
export function toFloat32(graph: Graph): { graph: Graph; casts: number } {
  const types = new Map(graph.types)
  for (const [name, type] of types) if (HALVES.has(type.dtype)) types.set(name, { ...type, dtype: 'float32' })
  const names = new Set([...types.keys(), ...graph.nodes.flatMap((node) => [node.name, ...node.outputs])])
  const initializers = new Map(graph.initializers)
  const casts = new Map<string, Node>()
  for (const [name, tensor] of graph.initializers) {
    if (!HALVES.has(tensor.dtype)) continue
    if (!isExternal(tensor) && tensor.data.length === 1) {
      initializers.set(name, floatTensor(tensor))
      continue
    }
    types.set(name, { dtype: tensor.dtype, shape: tensor.shape })
    let output = `${name}_float32`
    while (names.has(output)) output += '_'
    types.set(output, { dtype: 'float32', shape: tensor.shape })
    casts.set(name, {
      op: 'Cast',
      domain: '',
      name: output,
      inputs: [name],
      outputs: [output],
      attributes: { to: { i: dtypeNumber('float32') } },
    })
  }
  const read = new Set<string>()
  const nodes = graph.nodes.map((node) => {
    const inputs = node.inputs.map((input) => {
      const cast = casts.get(input)
      if (cast === undefined) return input
      read.add(input)
      return cast.outputs[0] as string
    })
    return { ...node, inputs, attributes: floatAttributes(node) }
  })
  const used = [...casts].filter(([name]) => read.has(name)).map(([, cast]) => cast)
  return { graph: { ...graph, initializers, types, nodes: [...used, ...nodes] }, casts: used.length }
}

/** The attributes with float32 for every half-precision element type and tensor. */
function floatAttributes(node: Node): Node['attributes'] {
  return Object.fromEntries(
    Object.entries(node.attributes).map(([name, attribute]) => {
      if ('t' in attribute && HALVES.has(attribute.t.dtype)) return [name, { t: floatTensor(attribute.t) }]
      const half =
        'i' in attribute &&
        TYPE_ATTRIBUTES.includes(name) &&
        [dtypeNumber('float16'), dtypeNumber('bfloat16')].includes(attribute.i)
      return [name, half ? { i: dtypeNumber('float32') } : attribute]
    }),
  )
}

function floatTensor({ dtype, shape, data }: Tensor): Tensor {
  const bits = data as Uint16Array
  return { dtype: 'float32', shape, data: dtype === 'float16' ? float16ToFloat32(bits) : bfloat16ToFloat32(bits) }
}

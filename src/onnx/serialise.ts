import { create, toBinary } from '@bufbuild/protobuf'
import {
  type AttributeProto,
  AttributeProtoSchema,
  AttributeProto_AttributeType as AttributeType,
  type GraphProto,
  GraphProtoSchema,
  ModelProtoSchema,
  type NodeProto,
  NodeProtoSchema,
  OperatorSetIdProtoSchema,
  StringStringEntryProtoSchema,
  type TensorProto,
  TensorProto_DataLocation,
  TensorProtoSchema,
  TensorShapeProto_DimensionSchema,
  TensorShapeProtoSchema,
  TypeProto_TensorSchema,
  TypeProtoSchema,
  type ValueInfoProto,
  ValueInfoProtoSchema,
} from 'onnx-buf'
import { dtypeNumber } from './dtypes.ts'
import type { Attribute, ExternalTensor, Graph, Node, Subgraph, Tensor, ValueType } from './graph.ts'
import { int64 } from './known.ts'
import { bytesOfData, checkTensor, isExternal } from './tensor.ts'

/** A protobuf message cannot be larger. */
const MAX_MODEL_BYTES = 2 ** 31 - 1

/** The lowest IR version whose release knows each operator set (onnx/docs/Versioning.md, "Released Versions"). */
function irVersion(opset: number): bigint {
  if (opset >= 25) return 13n
  if (opset >= 24) return 12n
  if (opset >= 23) return 11n
  if (opset >= 21) return 10n
  if (opset >= 19) return 9n
  if (opset >= 15) return 8n
  return 7n
}

/** What a written model says about itself. */
export interface ModelInfo {
  /** Name of the graph; `graph` where none is given. */
  name?: string
  producer?: string
  producerVersion?: string
  metadata?: Record<string, string>
  /** Initializers that a run may be fed others for (they are inputs, too), with the types that it accepts. */
  overridable?: ReadonlyMap<string, ValueType>
}

/**
 * The graph as the bytes of an ONNX model (onnx.proto, ModelProto). Tensors in memory are written into it, little-endian;
 * external ones as references to file, offset and length. Equal graphs give equal bytes.
 *
 * @throws RangeError for tensors whose data does not fit their shape, and for more than 2 GiB of data in memory, which a
 *   protobuf message cannot hold: keep such weights external.
 */
export function encodeModel(graph: Graph, info: ModelInfo = {}): Uint8Array {
  let inMemory = 0
  for (const tensor of graph.initializers.values()) if (!isExternal(tensor)) inMemory += tensor.data.byteLength
  if (inMemory > MAX_MODEL_BYTES)
    throw new RangeError(
      `The graph holds ${inMemory} bytes of tensors in memory; an ONNX file holds at most 2 GiB. Keep the weights in an external file.`,
    )
  const domains = new Map<string, number>()
  for (const node of graph.nodes) if (node.domain !== '') domains.set(node.domain, graph.domains?.[node.domain] ?? 1)
  const model = create(ModelProtoSchema, {
    irVersion: irVersion(graph.opset),
    opsetImport: [['', graph.opset] as const, ...[...domains].sort(([a], [b]) => (a < b ? -1 : 1))].map(
      ([domain, version]) => create(OperatorSetIdProtoSchema, { domain, version: BigInt(version) }),
    ),
    producerName: info.producer ?? 'canopy',
    ...(info.producerVersion === undefined ? {} : { producerVersion: info.producerVersion }),
    metadataProps: entries(info.metadata ?? {}),
    graph: create(GraphProtoSchema, {
      name: info.name ?? 'graph',
      input: [
        ...graph.inputs.map((name) => valueInfo(name, graph.types.get(name))),
        ...[...(info.overridable ?? [])].map(([name, type]) => valueInfo(name, type)),
      ],
      output: graph.outputs.map((name) => valueInfo(name, graph.types.get(name))),
      initializer: [...graph.initializers].map(([name, tensor]) => tensorProto(name, tensor)),
      node: graph.nodes.map(nodeProto),
    }),
  })
  return toBinary(ModelProtoSchema, model)
}

function nodeProto(node: Node): NodeProto {
  return create(NodeProtoSchema, {
    opType: node.op,
    domain: node.domain,
    name: node.name,
    input: node.inputs,
    output: node.outputs,
    attribute: Object.entries(node.attributes).map(([name, attribute]) => attributeProto(name, attribute)),
    metadataProps: entries(node.metadata ?? {}),
  })
}

function subgraphProto(name: string, { outputs, nodes, initializers }: Subgraph): GraphProto {
  return create(GraphProtoSchema, {
    name,
    output: outputs.map((output) => create(ValueInfoProtoSchema, { name: output })),
    initializer: [...initializers].map(([initializer, tensor]) => tensorProto(initializer, tensor)),
    node: nodes.map(nodeProto),
  })
}

function entries(record: Record<string, string>) {
  return Object.entries(record).map(([key, value]) => create(StringStringEntryProtoSchema, { key, value }))
}

function valueInfo(name: string, type: ValueType | undefined): ValueInfoProto {
  if (type === undefined) throw new Error(`The type of "${name}", an input or output of the graph, is not known`)
  const dim = type.shape.map((d) =>
    create(TensorShapeProto_DimensionSchema, {
      value: typeof d === 'number' ? { case: 'dimValue', value: BigInt(d) } : { case: 'dimParam', value: d },
    }),
  )
  const value = create(TypeProto_TensorSchema, {
    elemType: dtypeNumber(type.dtype),
    shape: create(TensorShapeProtoSchema, { dim }),
  })
  return create(ValueInfoProtoSchema, {
    name,
    type: create(TypeProtoSchema, { value: { case: 'tensorType', value } }),
  })
}

function tensorProto(name: string, tensor: Tensor | ExternalTensor): TensorProto {
  const head = { name, dataType: dtypeNumber(tensor.dtype), dims: tensor.shape.map(BigInt) }
  if (!isExternal(tensor)) {
    checkTensor(`initializer "${name}"`, tensor)
    return create(TensorProtoSchema, { ...head, rawData: bytesOfData(tensor.data) })
  }
  const { file, offset, length } = tensor.external
  return create(TensorProtoSchema, {
    ...head,
    dataLocation: TensorProto_DataLocation.EXTERNAL,
    externalData: entries({ location: file, offset: String(offset), length: String(length) }),
  })
}

function attributeProto(name: string, attribute: Attribute): AttributeProto {
  const text = (s: string) => new TextEncoder().encode(s)
  if ('i' in attribute) return create(AttributeProtoSchema, { name, type: AttributeType.INT, i: int64(attribute.i) })
  if ('f' in attribute) return create(AttributeProtoSchema, { name, type: AttributeType.FLOAT, f: attribute.f })
  if ('s' in attribute) return create(AttributeProtoSchema, { name, type: AttributeType.STRING, s: text(attribute.s) })
  if ('ints' in attribute)
    return create(AttributeProtoSchema, { name, type: AttributeType.INTS, ints: attribute.ints.map(int64) })
  if ('floats' in attribute)
    return create(AttributeProtoSchema, { name, type: AttributeType.FLOATS, floats: attribute.floats })
  if ('strings' in attribute)
    return create(AttributeProtoSchema, { name, type: AttributeType.STRINGS, strings: attribute.strings.map(text) })
  if ('g' in attribute)
    return create(AttributeProtoSchema, { name, type: AttributeType.GRAPH, g: subgraphProto(name, attribute.g) })
  return create(AttributeProtoSchema, { name, type: AttributeType.TENSOR, t: tensorProto('', attribute.t) })
}

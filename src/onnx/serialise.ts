import { create, fromBinary, toBinary } from '@bufbuild/protobuf'
import {
  type AttributeProto,
  AttributeProtoSchema,
  AttributeProto_AttributeType as AttributeType,
  GraphProtoSchema,
  ModelProtoSchema,
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
import { InputError } from '../support/errors.ts'
import type { Attribute, Dim, DType, ExternalTensor, Graph, Node, Tensor, ValueType } from './graph.ts'
import { dtypeFromNumber, dtypeNumber, inferNodeTypes } from './shapes.ts'
import { bytesOfData, checkTensor, dataFromBytes, elementCount, elementSize, isExternal } from './tensor.ts'

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
      input: graph.inputs.map((name) => valueInfo(graph, name)),
      output: graph.outputs.map((name) => valueInfo(graph, name)),
      initializer: [...graph.initializers].map(([name, tensor]) => tensorProto(name, tensor)),
      node: graph.nodes.map((node) =>
        create(NodeProtoSchema, {
          opType: node.op,
          domain: node.domain,
          name: node.name,
          input: node.inputs,
          output: node.outputs,
          attribute: Object.entries(node.attributes).map(([name, attribute]) => attributeProto(name, attribute)),
        }),
      ),
    }),
  })
  return toBinary(ModelProtoSchema, model)
}

function entries(record: Record<string, string>) {
  return Object.entries(record).map(([key, value]) => create(StringStringEntryProtoSchema, { key, value }))
}

function valueInfo(graph: Graph, name: string): ValueInfoProto {
  const type = graph.types.get(name)
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

/** Numbers beyond int64, such as the largest int64 read as a double, become its bounds. */
function int64(n: number): bigint {
  if (n >= 2 ** 63) return 2n ** 63n - 1n
  if (n < -(2 ** 63)) return -(2n ** 63n)
  return BigInt(n)
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
  return create(AttributeProtoSchema, { name, type: AttributeType.TENSOR, t: tensorProto('', attribute.t) })
}

/**
 * Reads the bytes of an ONNX model. `Constant` nodes become initializers; the types of inner values come from the shape
 * rules, else from the model's own value_info, and are absent where neither says. Fields that graphs here do not have
 * (documentation, metadata, quantisation notes) are passed over.
 *
 * @param file named in messages, where the bytes are a file's.
 * @throws InputError for bytes that are no ONNX model, tensors whose data does not fit their shape, external data whose
 *   file name leaves the model's folder, and what graphs here cannot express (subgraphs of If and Loop, functions,
 *   sparse tensors, rare element types), naming the node or tensor.
 */
export function decodeModel(bytes: Uint8Array, file?: string): Graph {
  const fail = (message: string, cause?: unknown): never => {
    throw new InputError(message, { file }, cause)
  }
  const model = (() => {
    try {
      return fromBinary(ModelProtoSchema, bytes)
    } catch (e) {
      return fail(`not an ONNX model (${(e as Error).message}); the file may be damaged or cut short`, e)
    }
  })()
  const proto = model.graph
  if (proto === undefined || model.opsetImport.length === 0)
    return fail('not an ONNX model: it has no graph or no operator set')
  if (model.functions.length > 0) fail('the model defines functions of its own, which are not supported')
  if (proto.sparseInitializer.length > 0) fail('the model has sparse initializers, which are not supported')

  const domains: Record<string, number> = {}
  let opset = 0
  for (const { domain, version } of model.opsetImport) {
    if (domain === '' || domain === 'ai.onnx') opset = Number(version)
    else domains[domain] = Number(version)
  }
  if (opset === 0) fail('the model does not name a version of the standard operator set')

  const graph: Graph = { opset, inputs: [], outputs: [], nodes: [], initializers: new Map(), types: new Map() }
  if (Object.keys(domains).length > 0) graph.domains = domains
  const place = <T>(what: string, read: () => T): T => {
    try {
      return read()
    } catch (e) {
      return fail(`${what}: ${(e as Error).message}`, e)
    }
  }

  for (const t of proto.initializer) {
    if (graph.initializers.has(t.name)) fail(`two initializers are named "${t.name}"`)
    const tensor = place(`initializer "${t.name}"`, () => tensorFromProto(t))
    graph.initializers.set(t.name, tensor)
    graph.types.set(t.name, { dtype: tensor.dtype, shape: tensor.shape })
  }
  let unnamed = 0
  const known = new Set(
    [...proto.input, ...proto.output, ...proto.valueInfo].flatMap((v) =>
      v.type?.value.case === 'tensorType'
        ? (v.type.value.value.shape?.dim ?? []).flatMap((d) => (d.value.case === 'dimParam' ? [d.value.value] : []))
        : [],
    ),
  )
  const fresh = () => {
    let name: string
    do name = `unknown_${unnamed++}`
    while (known.has(name))
    return name
  }
  for (const v of proto.input) {
    // Before IR version 4 every initializer is listed as an input as well.
    if (graph.initializers.has(v.name)) continue
    graph.inputs.push(v.name)
    const type = place(`input "${v.name}"`, () => typeFromProto(v, fresh))
    if (type === undefined) return fail(`input "${v.name}" has no shape`)
    graph.types.set(v.name, type)
  }
  const declared = new Map<string, ValueInfoProto>()
  for (const v of [...proto.valueInfo, ...proto.output]) declared.set(v.name, v)

  for (const [at, n] of proto.node.entries()) {
    const label = `node "${n.name === '' ? `#${at}` : n.name}" (${n.opType})`
    const attributes: Record<string, Attribute> = {}
    for (const a of n.attribute) {
      const attribute = place(`${label}, attribute "${a.name}"`, () => attributeFromProto(a))
      Object.defineProperty(attributes, a.name, {
        value: attribute,
        enumerable: true,
        configurable: true,
        writable: true,
      })
    }
    const domain = n.domain === 'ai.onnx' ? '' : n.domain
    if (n.opType === 'Constant' && domain === '') {
      const name = n.output[0] as string
      const tensor = place(label, () => constantTensor(attributes))
      graph.initializers.set(name, tensor)
      graph.types.set(name, { dtype: tensor.dtype, shape: tensor.shape })
      continue
    }
    const node: Node = { op: n.opType, domain, name: n.name, inputs: n.input, outputs: n.output, attributes }
    graph.nodes.push(node)
    const inferred = (() => {
      try {
        return inferNodeTypes(node, graph, fresh)
      } catch {
        return undefined
      }
    })()
    node.outputs.forEach((name, i) => {
      if (name === '') return
      const own = declared.get(name)
      const type =
        inferred?.[i] ?? (own === undefined ? undefined : place(`value "${name}"`, () => typeFromProto(own, fresh)))
      if (type !== undefined) graph.types.set(name, type)
    })
  }
  for (const v of proto.output) {
    graph.outputs.push(v.name)
    if (!graph.types.has(v.name)) {
      const type = place(`output "${v.name}"`, () => typeFromProto(v, fresh))
      if (type !== undefined) graph.types.set(v.name, type)
    }
  }
  return graph
}

function size(n: bigint): number {
  if (n < 0n || n > BigInt(Number.MAX_SAFE_INTEGER)) throw new RangeError(`${n} is no size`)
  return Number(n)
}

function typeFromProto(v: ValueInfoProto, fresh: () => string): ValueType | undefined {
  if (v.type?.value.case !== 'tensorType') return undefined
  const { elemType, shape } = v.type.value.value
  if (shape === undefined) return undefined
  return {
    dtype: dtypeFromNumber(elemType),
    shape: shape.dim.map(({ value }): Dim => {
      if (value.case === 'dimValue') return size(value.value)
      return value.case === 'dimParam' && value.value !== '' ? value.value : fresh()
    }),
  }
}

function tensorFromProto(t: TensorProto): Tensor | ExternalTensor {
  const dtype = dtypeFromNumber(t.dataType)
  const shape = t.dims.map(size)
  const bytes = elementCount(shape) * elementSize(dtype)
  if (!Number.isSafeInteger(bytes)) throw new RangeError(`[${shape.join(', ')}] is too large`)
  if (t.dataLocation === TensorProto_DataLocation.EXTERNAL) {
    const external = new Map(t.externalData.map(({ key, value }) => [key, value]))
    const file = checkExternalName(external.get('location'))
    const offset = wholeNumber('offset', external.get('offset') ?? '0')
    const length = wholeNumber('length', external.get('length') ?? String(bytes))
    if (length !== bytes)
      throw new RangeError(`${dtype} [${shape.join(', ')}] takes ${bytes} bytes, its external data has ${length}`)
    return { dtype, shape, external: { file, offset, length } }
  }
  const data = t.rawData.byteLength > 0 ? dataFromBytes(dtype, t.rawData) : typedData(dtype, t)
  if (data.length !== elementCount(shape))
    throw new RangeError(
      `shape [${shape.join(', ')}] holds ${elementCount(shape)} elements, the data has ${data.length}`,
    )
  return { dtype, shape, data }
}

/** The data of a tensor that uses the typed fields of TensorProto in place of raw_data. */
function typedData(dtype: DType, t: TensorProto): Tensor['data'] {
  switch (dtype) {
    case 'float32':
      return Float32Array.from(t.floatData)
    case 'float64':
      return Float64Array.from(t.doubleData)
    case 'int64':
      return BigInt64Array.from(t.int64Data)
    case 'int32':
      return Int32Array.from(t.int32Data)
    case 'int8':
      return Int8Array.from(t.int32Data)
    case 'uint8':
    case 'bool':
      return Uint8Array.from(t.int32Data)
    default:
      return Uint16Array.from(t.int32Data)
  }
}

function wholeNumber(what: string, text: string): number {
  const n = /^\d{1,16}$/.test(text) ? Number(text) : Number.NaN
  if (!Number.isSafeInteger(n)) throw new RangeError(`the ${what} of its external data, "${text}", is no whole number`)
  return n
}

/** External data lies beside the model: a relative path of plain names. */
function checkExternalName(location: string | undefined): string {
  if (location === undefined || location === '') throw new RangeError('its external data names no file')
  const parts = location.split('/')
  const plain = parts.every((p) => p !== '' && p !== '..' && !/[\\:\0]/.test(p))
  if (!plain) throw new RangeError(`its external data file "${location}" is not inside the model's folder`)
  return parts.filter((p) => p !== '.').join('/')
}

function attributeFromProto(a: AttributeProto): Attribute {
  const text = (b: Uint8Array) => new TextDecoder('utf-8', { fatal: true }).decode(b)
  if (a.refAttrName !== '') throw new TypeError('refers to an attribute of a function')
  switch (a.type) {
    case AttributeType.INT:
      return { i: Number(a.i) }
    case AttributeType.FLOAT:
      return { f: a.f }
    case AttributeType.STRING:
      return { s: text(a.s) }
    case AttributeType.INTS:
      return { ints: a.ints.map(Number) }
    case AttributeType.FLOATS:
      return { floats: a.floats }
    case AttributeType.STRINGS:
      return { strings: a.strings.map(text) }
    case AttributeType.TENSOR: {
      if (a.t === undefined) throw new TypeError('has no tensor')
      const tensor = tensorFromProto(a.t)
      if (isExternal(tensor)) throw new TypeError('keeps its tensor in a file')
      return { t: tensor }
    }
    default:
      throw new TypeError(`${AttributeType[a.type] ?? `type ${a.type}`} attributes are not supported`)
  }
}

function constantTensor(attributes: Record<string, Attribute>): Tensor {
  const [name, attribute] = Object.entries(attributes)[0] ?? ['', undefined]
  if (attribute !== undefined) {
    if ('t' in attribute) return attribute.t
    if ('i' in attribute) return { dtype: 'int64', shape: [], data: BigInt64Array.of(int64(attribute.i)) }
    if ('f' in attribute) return { dtype: 'float32', shape: [], data: Float32Array.of(attribute.f) }
    if ('ints' in attribute)
      return { dtype: 'int64', shape: [attribute.ints.length], data: BigInt64Array.from(attribute.ints, int64) }
    if ('floats' in attribute)
      return { dtype: 'float32', shape: [attribute.floats.length], data: Float32Array.from(attribute.floats) }
  }
  throw new TypeError(`a constant by "${name}" is not supported`)
}

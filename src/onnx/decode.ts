import { fromBinary } from '@bufbuild/protobuf'
import {
  type AttributeProto,
  AttributeProto_AttributeType as AttributeType,
  type GraphProto,
  ModelProtoSchema,
  type NodeProto,
  type TensorProto,
  TensorProto_DataLocation,
  type ValueInfoProto,
} from 'onnx-buf'
import { InputError } from '../support/errors.ts'
import { checkGraph } from './check.ts'
import { dtypeFromNumber } from './dtypes.ts'
import { inlineFunctions } from './functions.ts'
import type { Attribute, Dim, DType, ExternalTensor, Graph, Node, Subgraph, Tensor, ValueType } from './graph.ts'
import { int64 } from './known.ts'
import { byteLength, dataFromBytes, elementCount, elementSize, isExternal } from './tensor.ts'

/** Branches within branches are read to this depth. */
const MAX_DEPTH = 16

/**
 * Reads the bytes of an ONNX model. `Constant` nodes become initializers and calls of the model's own functions their
 * bodies; the types of inner values are those that the model declares, and {@link inferTypes} finds the others. Fields
 * that graphs here do not have (documentation, the model's metadata, quantisation notes) are passed over.
 *
 * @param file named in messages, where the bytes are a file's.
 * @throws InputError for bytes that are no ONNX model, a graph that {@link checkGraph} refuses, tensors whose data does not
 *   fit their shape, external data whose file name leaves the model's folder, and what graphs here cannot express (Loop and Scan, sequences and optional
 *   values, strings, sparse tensors, rare element types), naming the node or tensor.
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

  const domains: Record<string, number> = {}
  let opset = 0
  for (const { domain, version } of model.opsetImport) {
    if (isStandard(domain)) opset = Number(version)
    else if (domain !== '__proto__') domains[domain] = Number(version)
  }
  if (opset === 0) fail('the model does not name a version of the standard operator set')
  try {
    if (model.functions.length > 0) inlineFunctions(model, opset)
    const graph: Graph = { opset, ...readGraph(proto, { fresh: symbolsOf(proto), depth: 0 }) }
    if (Object.keys(domains).length > 0) graph.domains = domains
    checkGraph(graph)
    return graph
  } catch (e) {
    return fail((e as Error).message, e)
  }
}

export const isStandard = (domain: string): boolean => domain === '' || domain === 'ai.onnx'

/** Names for sizes that the model leaves open, unlike all that it uses. */
function symbolsOf(proto: GraphProto): () => string {
  const known = new Set<string>()
  for (const { type } of [...proto.input, ...proto.output, ...proto.valueInfo])
    if (type?.value.case === 'tensorType')
      for (const { value } of type.value.value.shape?.dim ?? []) if (value.case === 'dimParam') known.add(value.value)
  let counter = 0
  return () => {
    let name: string
    do name = `open_${counter++}`
    while (known.has(name))
    return name
  }
}

function place<T>(what: string, read: () => T): T {
  try {
    return read()
  } catch (e) {
    throw new Error(`${what}: ${(e as Error).message}`, { cause: e })
  }
}

interface Reading {
  /** A name for a size that the model leaves open. */
  fresh: () => string
  /** How many branches lie around what is read. */
  depth: number
}

/** Operators whose values are no tensors. */
const noTensors = /^(Sequence|SplitToSequence$|ConcatFromSequence$|Optional)/

function readGraph(proto: GraphProto, reading: Reading): Omit<Graph, 'opset' | 'domains'> {
  if (proto.sparseInitializer.length > 0) throw new Error('the model has sparse initializers, which are not supported')
  const graph: Omit<Graph, 'opset'> = { inputs: [], outputs: [], nodes: [], initializers: new Map(), types: new Map() }
  for (const t of proto.initializer) {
    if (graph.initializers.has(t.name)) throw new Error(`two initializers are named "${t.name}"`)
    graph.initializers.set(
      t.name,
      place(`initializer "${t.name}"`, () => tensorFromProto(t)),
    )
  }
  for (const v of proto.input) {
    // Before IR version 4 every initializer is listed as an input as well.
    if (graph.initializers.has(v.name)) continue
    graph.inputs.push(v.name)
    const type = place(`input "${v.name}"`, () => typeFromProto(v, reading.fresh))
    if (type === undefined) throw new Error(`input "${v.name}" has no shape`)
    graph.types.set(v.name, type)
  }
  for (const [name, { dtype, shape }] of graph.initializers) graph.types.set(name, { dtype, shape })
  for (const v of [...proto.valueInfo, ...proto.output]) {
    if (graph.types.has(v.name)) continue
    const type = place(`value "${v.name}"`, () => typeFromProto(v, reading.fresh))
    if (type !== undefined) graph.types.set(v.name, type)
  }
  const nodeNames = new Set<string>()
  for (const [at, n] of proto.node.entries()) {
    const label = `node "${n.name === '' ? `#${at}` : n.name}" (${n.opType})`
    const node = readNode(n, label, reading)
    // A name that another node has tells nothing.
    if (nodeNames.has(node.name)) node.name = ''
    nodeNames.add(node.name)
    if (node.op !== 'Constant' || node.domain !== '') {
      graph.nodes.push(node)
      continue
    }
    const name = node.outputs[0] as string
    if (graph.initializers.has(name)) throw new Error(`${label}: the value "${name}" exists already`)
    const tensor = place(label, () => constantTensor(node.attributes))
    graph.initializers.set(name, tensor)
    graph.types.set(name, { dtype: tensor.dtype, shape: tensor.shape })
  }
  graph.outputs = proto.output.map((v) => v.name)
  return graph
}

function readNode(n: NodeProto, label: string, reading: Reading): Node {
  const attributes: Record<string, Attribute> = {}
  for (const a of n.attribute) {
    const value = place(`${label}, attribute "${a.name}"`, () =>
      a.type === AttributeType.GRAPH && n.opType === 'If' && isStandard(n.domain)
        ? { g: readBranch(a.g, reading) }
        : attributeFromProto(a),
    )
    Object.defineProperty(attributes, a.name, { value, enumerable: true, configurable: true, writable: true })
  }
  const domain = isStandard(n.domain) ? '' : n.domain
  if (domain === '' && noTensors.test(n.opType))
    throw new Error(`${label}: sequences and optional values are not supported, only tensors`)
  const node: Node = { op: n.opType, domain, name: n.name, inputs: n.input, outputs: n.output, attributes }
  // PyTorch's exporter keeps the stack of every call, which is longer than all the rest
  const notes = n.metadataProps.filter(({ key }) => !key.endsWith('stack_trace'))
  if (notes.length > 0) node.metadata = Object.fromEntries(notes.map(({ key, value }) => [key, value]))
  return node
}

function readBranch(proto: GraphProto | undefined, { fresh, depth }: Reading): Subgraph {
  if (proto === undefined) throw new TypeError('has no graph')
  if (depth >= MAX_DEPTH) throw new RangeError(`more than ${MAX_DEPTH} branches lie within each other`)
  const { inputs, ...branch } = readGraph(proto, { fresh, depth: depth + 1 })
  if (inputs.length > 0) throw new TypeError('a branch of If has no inputs')
  return branch
}

function size(n: bigint): number {
  if (n < 0n || n > BigInt(Number.MAX_SAFE_INTEGER)) throw new RangeError(`${n} is no size`)
  return Number(n)
}

function typeFromProto(v: ValueInfoProto, fresh: () => string): ValueType | undefined {
  const kind = v.type?.value.case
  if (kind !== undefined && kind !== 'tensorType')
    throw new TypeError(`is of a ${kind.replace(/Type$/, '')} type; only tensors are supported`)
  if (v.type?.value.case !== 'tensorType') return undefined
  const { elemType, shape } = v.type.value.value
  if (shape === undefined) return undefined
  return {
    dtype: dtypeFromNumber(elemType),
    shape: shape.dim.map(({ value }): Dim => {
      // Some exporters write -1 for a size that is open.
      if (value.case === 'dimValue' && value.value !== -1n) return size(value.value)
      return value.case === 'dimParam' && value.value !== '' ? value.value : fresh()
    }),
  }
}

function tensorFromProto(t: TensorProto): Tensor | ExternalTensor {
  const dtype = dtypeFromNumber(t.dataType)
  const shape = t.dims.map(size)
  const bytes = byteLength(dtype, shape)
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
  if (data.byteLength !== bytes)
    throw new RangeError(
      `shape [${shape.join(', ')}] holds ${elementCount(shape)} elements, the data has ${data.byteLength / elementSize(dtype)}`,
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
    case 'uint64':
      return BigUint64Array.from(t.uint64Data)
    case 'uint32':
      return Uint32Array.from(t.uint64Data, Number)
    case 'int16':
      return Int16Array.from(t.int32Data)
    case 'int8':
      return Int8Array.from(t.int32Data)
    case 'int4':
    case 'uint4':
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
  if (!plain || parts.every((p) => p === '.'))
    throw new RangeError(`its external data file "${location}" is not inside the model's folder`)
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

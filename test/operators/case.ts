import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { create, fromBinary, toBinary } from '@bufbuild/protobuf'
import {
  GraphProtoSchema,
  ModelProtoSchema,
  OperatorSetIdProtoSchema,
  TensorProto_DataType,
  TensorProtoSchema,
} from 'onnx-buf'
import { decodeModel, type Graph, type Tensor } from '../../src/onnx/index.ts'

/**
 * A test of the ONNX project (onnx/backend/test/data/node): a model, mostly of one node, with inputs and the outputs that
 * it should give.
 */
export interface OperatorCase {
  name: string
  /** The operator that it is about: its one node's, with the domain where that is not the standard one. */
  operator: string
  graph: Graph
  bytes: Uint8Array
  inputs: Record<string, Tensor>
  expected: Record<string, Tensor>
}

/** A test that cannot be read here, and why. */
export interface Unreadable {
  name: string
  operator: string
  why: string
}

/** The tests in a folder, in the order of their names. */
export function* readCases(folder: string): Generator<OperatorCase | Unreadable> {
  for (const name of readdirSync(folder).sort()) yield readCase(join(folder, name), name)
}

function readCase(folder: string, name: string): OperatorCase | Unreadable {
  const bytes = readFileSync(join(folder, 'model.onnx'))
  const model = fromBinary(ModelProtoSchema, bytes)
  const nodes = model.graph?.node.filter((node) => node.opType !== 'Constant') ?? []
  const [first] = nodes
  const operator =
    first === undefined
      ? 'Constant'
      : nodes.length > 1
        ? SEVERAL
        : first.domain === '' || first.domain === 'ai.onnx'
          ? first.opType
          : `${first.domain}.${first.opType}`
  try {
    const graph = decodeModel(bytes)
    const data = join(folder, 'test_data_set_0')
    const inputs = Object.fromEntries(graph.inputs.map((input, i) => [input, readTensor(join(data, `input_${i}.pb`))]))
    const expected = Object.fromEntries(
      graph.outputs.map((output, i) => [output, readTensor(join(data, `output_${i}.pb`))]),
    )
    return { name, operator, graph, bytes, inputs, expected }
  } catch (e) {
    return { name, operator, why: (e as Error).message }
  }
}

/** The operator of models of several nodes: what an operator's definition as a function expands to, mostly. */
export const SEVERAL = 'several operators'

/** A tensor that lies alone in a file (onnx.proto, TensorProto). */
function readTensor(file: string): Tensor {
  const initializer = fromBinary(TensorProtoSchema, readFileSync(file))
  if (initializer.dataType === TensorProto_DataType.UNDEFINED) throw new Error('its data is no tensor')
  initializer.name = 'tensor'
  const model = create(ModelProtoSchema, {
    opsetImport: [create(OperatorSetIdProtoSchema, { version: 17n })],
    graph: create(GraphProtoSchema, { initializer: [initializer] }),
  })
  return decodeModel(toBinary(ModelProtoSchema, model)).initializers.get('tensor') as Tensor
}

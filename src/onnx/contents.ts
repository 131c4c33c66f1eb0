import { readFile } from 'node:fs/promises'
import { fromBinary } from '@bufbuild/protobuf'
import { type GraphProto, type ModelProto, ModelProtoSchema, type NodeProto } from 'onnx-buf'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'

/** What an ONNX file consists of, as far as it can be told of any file, also of one whose graph is not understood here. */
export interface ModelContents {
  /** Operators of the graph, of its branches and of the model's functions, without their domains. */
  operators: Set<string>
  /** Names of the files that hold tensors of the graph, as it writes them, in the order of their first tensor. */
  externalFiles: string[]
}

/**
 * Reads which operators and which other files an ONNX file uses.
 *
 * @throws InputError for a file that cannot be read or is no ONNX model
 */
export async function modelContents(file: string): Promise<ModelContents> {
  const bytes = await readFile(file).catch((error: unknown) => {
    throw fileError(error, 'cannot read the model', file)
  })
  const model = ((): ModelProto => {
    try {
      return fromBinary(ModelProtoSchema, bytes)
    } catch (error) {
      throw new InputError(
        `not an ONNX model (${(error as Error).message}); the file may be damaged or cut short`,
        { file },
        error,
      )
    }
  })()
  const operators = new Set<string>()
  const files = new Set<string>()
  const readNodes = (nodes: readonly NodeProto[]): void => {
    for (const { opType, attribute } of nodes) {
      operators.add(opType)
      for (const { g, graphs } of attribute) for (const branch of g === undefined ? graphs : [g]) readGraph(branch)
    }
  }
  const readGraph = (graph: GraphProto): void => {
    for (const { externalData } of graph.initializer)
      for (const { key, value } of externalData) if (key === 'location') files.add(value)
    readNodes(graph.node)
  }
  if (model.graph !== undefined) readGraph(model.graph)
  for (const { node } of model.functions) readNodes(node)
  return { operators, externalFiles: [...files] }
}

import { type EncoderProfile, encoderGraph, type TokenSequence } from '../encoder/index.ts'
import { type Graph, isExternal, loadTensor, type Tensor } from '../onnx/index.ts'

/** An encoder whose every weight is trained: its forward graph with the weights as inputs, and their values. */
export interface Student {
  /** Output `embeddings`, float32 [texts, dimension]; the weights are inputs. */
  graph: Graph
  dimension: number
  /** Whether `embeddings` have unit length. */
  unitLength: boolean
  /** Shape of each weight, in the order of every sum over them. */
  shapes: Map<string, number[]>
  /** Their values in the checkpoint. */
  weights: Map<string, Float32Array>
  /** The graph's other inputs for these sequences, in this order. */
  feeds(sequences: TokenSequence[]): Record<string, Tensor>
  /** Groups of sequences, by index, whose runs stay within a budget of tokens. */
  batches(sequences: TokenSequence[], budget: number): number[][]
}

/**
 * Reads a float32 checkpoint as an encoder to be trained whole: every weight that its embeddings depend on becomes an input of the
 * graph, embedding tables included.
 *
 * @param padId the token that fills rows up
 */
export async function readStudent(profile: EncoderProfile, padId: number): Promise<Student> {
  const { graph, externalFolder, feeds, batches } = await encoderGraph(profile, [], padId)
  const shapes = new Map<string, number[]>()
  const weights = new Map<string, Float32Array>()
  const initializers = new Map(graph.initializers)
  for (const [name, tensor] of graph.initializers) {
    // constants of the graph itself are in memory; what the file holds is to be learned
    if (!isExternal(tensor) || tensor.dtype !== 'float32') continue
    initializers.delete(name)
    const { data } = await loadTensor(name, tensor, externalFolder)
    shapes.set(name, tensor.shape)
    weights.set(name, Float32Array.from(data as Float32Array))
  }
  return {
    graph: { ...graph, initializers, inputs: [...graph.inputs, ...weights.keys()] },
    ...{ dimension: profile.dimension, unitLength: profile.normalize, shapes, weights, feeds, batches },
  }
}

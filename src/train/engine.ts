import { type Graph, openSession, type Session, type Tensor } from '../onnx/index.ts'
import { EMBEDDING_GRADIENT, type GradientGraph, trainingGraphs, UNIT_EMBEDDINGS } from './graph.ts'
import { type LossSettings, lossAtEmbeddings, lossValues, type WeightedPair } from './loss.ts'
import { accumulate, type Tensors, zerosLike } from './optimizer.ts'

/** A node encoder that can be trained: its forward graph, and how token sequences become the graph's inputs. */
export interface TrainableEncoder {
  /** Output `embeddings`, `[nodes, dimension]`; the trainable tensors are inputs. */
  graph: Graph
  /** Folder of the weights file that the graph's external tensors name. */
  externalFolder: string | undefined
  /** Whether `embeddings` have unit length. */
  unitLength: boolean
  dimension: number
  /** Shape of each trainable tensor, in the order of every sum over them. */
  trainable: Map<string, number[]>
  /** The graph's inputs for these sequences, one node each, in this order. */
  feeds(sequences: Int32Array[]): Record<string, Tensor>
  /** Tokens that a run over these sequences computes, padding included. */
  tokens(sequences: Int32Array[]): number
  /** Groups of sequences, by index, whose runs stay within a budget of tokens; a sequence over it goes alone. */
  batches(sequences: Int32Array[], budget: number): number[][]
}

/** Whole instances that are computed together: the distinct token sequences of their nodes, and their pairs. */
export interface MicroBatch {
  sequences: Int32Array[]
  pairs: WeightedPair[]
}

export interface StepResult {
  /** This micro-batch's part of the batch's loss. */
  loss: number
  /** d = s(preferred) - s(other) of each pair. */
  differences: Float32Array
  gradients: Tensors
}

/** The sessions of a training run. Close it. */
export interface Engine {
  /** Loss and gradients of a micro-batch in one run of forward and backward together. */
  onePass(batch: MicroBatch, tensors: Tensors): Promise<StepResult>
  /** The same to rounding with memory bounded by the token budget, for micro-batches over it (gradient caching). */
  twoPass(batch: MicroBatch, tensors: Tensors): Promise<StepResult>
  /** Node embeddings of unit length, `[sequences, dimension]`, in runs within the token budget. */
  embed(sequences: Int32Array[], tensors: Tensors): Promise<Float32Array>
  close(): Promise<void>
}

/**
 * Opens the sessions that train `encoder`; those of the two-pass form when they are first needed.
 *
 * @param queries unit query embeddings `[questions, dimension]`, frozen
 */
export async function openEngine(options: {
  encoder: TrainableEncoder
  queries: Float32Array
  loss: LossSettings
  tokenBudget: number
  threads: number
}): Promise<Engine> {
  const { encoder, queries, loss, tokenBudget, threads } = options
  const { dimension } = encoder
  const names = [...encoder.trainable.keys()]
  const graphs = trainingGraphs(encoder.graph, names, loss, encoder.unitLength)
  const opened = new Map<Graph, Promise<Session>>()
  const session = (graph: Graph): Promise<Session> => {
    let known = opened.get(graph)
    if (known === undefined) {
      known = openSession(graph, {
        threads,
        ...(encoder.externalFolder === undefined ? {} : { externalFolder: encoder.externalFolder }),
      })
      opened.set(graph, known)
    }
    return known
  }
  const run = async (graph: Graph, feeds: Record<string, Tensor>) => (await session(graph)).run(pick(graph, feeds))

  const trainableFeeds = (tensors: Tensors): Record<string, Tensor> =>
    Object.fromEntries([...encoder.trainable].map(([name, shape]) => [name, float(tensors.get(name)!, shape)]))
  const lossFeeds = (batch: MicroBatch): Record<string, Tensor> => {
    const count = batch.pairs.length
    const contrast = new Float32Array(count * batch.sequences.length)
    const query = new Float32Array(count * dimension)
    const weights = new Float32Array(count)
    batch.pairs.forEach((pair, p) => {
      const row = p * batch.sequences.length
      contrast[row + pair.preferred]! += 1
      contrast[row + pair.other]! -= 1
      query.set(queries.subarray(pair.question * dimension, (pair.question + 1) * dimension), p * dimension)
      weights[p] = pair.weight
    })
    return {
      [lossValues.pairs]: float(contrast, [count, batch.sequences.length]),
      [lossValues.queries]: float(query, [count, dimension]),
      [lossValues.weights]: float(weights, [count]),
    }
  }

  const embed: Engine['embed'] = async (sequences, tensors) => {
    const embeddings = new Float32Array(sequences.length * dimension)
    for (const group of encoder.batches(sequences, tokenBudget)) {
      const feeds = { ...encoder.feeds(group.map((i) => sequences[i]!)), ...trainableFeeds(tensors) }
      const part = floats((await run(graphs.embed, feeds))[UNIT_EMBEDDINGS])
      group.forEach((i, row) => {
        embeddings.set(part.subarray(row * dimension, (row + 1) * dimension), i * dimension)
      })
    }
    return embeddings
  }

  return {
    embed,
    async onePass(batch, tensors) {
      const feeds = { ...encoder.feeds(batch.sequences), ...trainableFeeds(tensors), ...lossFeeds(batch) }
      const outputs = await run(graphs.step.graph, feeds)
      return { ...lossOf(outputs), gradients: gradientsOf(graphs.step, outputs) }
    },
    async twoPass(batch, tensors) {
      const embeddings = await embed(batch.sequences, tensors)
      const atEmbeddings = lossAtEmbeddings(embeddings, queries, batch.pairs, dimension, loss)
      const gradients = zerosLike(tensors)
      for (const group of encoder.batches(batch.sequences, tokenBudget)) {
        const seed = new Float32Array(group.length * dimension)
        group.forEach((i, row) => {
          seed.set(atEmbeddings.slope.subarray(i * dimension, (i + 1) * dimension), row * dimension)
        })
        const outputs = await run(graphs.pullBack.graph, {
          ...encoder.feeds(group.map((i) => batch.sequences[i]!)),
          ...trainableFeeds(tensors),
          [EMBEDDING_GRADIENT]: float(seed, [group.length, dimension]),
        })
        accumulate(gradients, gradientsOf(graphs.pullBack, outputs))
      }
      return { loss: atEmbeddings.loss, differences: atEmbeddings.differences, gradients }
    },
    async close() {
      for (const pending of opened.values()) await (await pending).release()
      opened.clear()
    },
  }
}

function lossOf(outputs: Record<string, Tensor>): { loss: number; differences: Float32Array } {
  return { loss: floats(outputs[lossValues.loss])[0]!, differences: floats(outputs[lossValues.differences]) }
}

function gradientsOf({ gradients }: GradientGraph, outputs: Record<string, Tensor>): Tensors {
  return new Map([...gradients].map(([name, output]) => [name, floats(outputs[output])]))
}

function float(data: Float32Array, shape: number[]): Tensor {
  return { dtype: 'float32', shape, data }
}

function floats(tensor: Tensor | undefined): Float32Array {
  if (!(tensor?.data instanceof Float32Array)) throw new TypeError('A training graph gave no float32 output')
  return tensor.data
}

/** The feeds that a graph has inputs for: pruning may leave some out. */
function pick(graph: Graph, feeds: Record<string, Tensor>): Record<string, Tensor> {
  return Object.fromEntries(graph.inputs.map((name) => [name, feeds[name]!]))
}

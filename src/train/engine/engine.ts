import { runTokens, type TokenSequence } from '../../encoder/index.ts'
import {
  type Device,
  type Graph,
  openSession,
  type Placement,
  type Precision,
  type Session,
  type Tensor,
} from '../../onnx/index.ts'
import type { QueryRows } from '../data/query-file.ts'
import { type LossSettings, lossValues, type WeightedPair } from '../loss/pairwise.ts'
import type { Tensors } from '../step/optimizer.ts'
import { isOutOfMemory } from '../step/out-of-memory.ts'
import { EMBEDDING_GRADIENT, type GradientGraph, LOSS_SCALE, trainingGraphs, UNIT_EMBEDDINGS } from './graph.ts'
import { engineOver, type Passes } from './passes.ts'

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
  feeds(sequences: TokenSequence[]): Record<string, Tensor>
  /** Tokens that a run over these sequences computes, padding included. */
  tokens(sequences: TokenSequence[]): number
  /**
   * Groups of sequences, by index, whose runs stay within a budget of tokens; a sequence over it goes alone, or with some that are
   * nearly contained in it.
   *
   * @param wanted tokens that a run should have where more would be within the budget
   */
  batches(sequences: TokenSequence[], budget: number, wanted?: number): number[][]
  /**
   * Tokens that a run over these sequences computes, without padding, where what they begin with alike is computed once; absent for
   * an encoder that shares nothing.
   */
  computed?: ((sequences: TokenSequence[]) => number) | undefined
}

/** Whole instances that are computed together: the distinct token sequences of their nodes, and their pairs. */
export interface MicroBatch {
  sequences: TokenSequence[]
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
  /** Most tokens, padding included, that a run computes at once; it may change between runs. */
  tokenBudget: number
  /** What the loss is multiplied by on its way back through a graph in float16; gradients come back without it. */
  lossScale: number
  /** Loss and gradients of a micro-batch in one run of forward and backward together; for a built-in loss, as `twoPass`. */
  onePass(batch: MicroBatch, tensors: Tensors): Promise<StepResult>
  /** The same to rounding with memory bounded by the token budget, for micro-batches over it (gradient caching). */
  twoPass(batch: MicroBatch, tensors: Tensors): Promise<StepResult>
  /**
   * Gradients of the trainable tensors, given the loss's gradient at the embeddings of unit length (a vector-Jacobian product),
   * in runs within the token budget.
   *
   * @param slope `[sequences, dimension]`
   */
  pullBack(sequences: TokenSequence[], slope: Float32Array, tensors: Tensors): Promise<Tensors>
  /** Node embeddings of unit length, `[sequences, dimension]`, in runs within the token budget. */
  embed(sequences: TokenSequence[], tensors: Tensors): Promise<Float32Array>
  close(): Promise<void>
}

/**
 * Opens the sessions that train `encoder`; those of the two-pass form when they are first needed.
 *
 * @param loss the built-in loss; undefined for one that is computed outside, from `embed` to `pullBack`
 */
export async function openEngine(options: {
  encoder: TrainableEncoder
  queries: QueryRows
  loss: LossSettings | undefined
  tokenBudget: number
  threads: number
  /** Where the graphs run; the CPU where absent. */
  device?: Device
  /** What matrix products are computed in; float32 where absent. On the CPU the others are only emulated, by rounding. */
  precision?: Precision
  onPlacement?: (placement: Placement) => void
}): Promise<Engine> {
  const { encoder, loss, threads, device = 'cpu', precision = 'fp32', onPlacement } = options
  const names = [...encoder.trainable.keys()]
  const graphs = trainingGraphs(encoder.graph, names, loss, encoder.unitLength, {
    precision,
    emulate: device === 'cpu',
  })
  const opened = new Map<Graph, Promise<Session>>()
  const session = (graph: Graph): Promise<Session> => {
    let known = opened.get(graph)
    if (known === undefined) {
      known = openSession(graph, {
        threads,
        device,
        ...(onPlacement === undefined ? {} : { onPlacement }),
        ...(encoder.externalFolder === undefined ? {} : { externalFolder: encoder.externalFolder }),
      })
      opened.set(graph, known)
      // One that could not be opened, for want of memory say, may be tried again.
      known.catch(() => opened.delete(graph))
    }
    return known
  }
  const close = async (): Promise<void> => {
    const sessions = [...opened.values()]
    opened.clear()
    for (const pending of sessions) await (await pending).release()
  }
  const run = async (graph: Graph, feeds: Record<string, Tensor>) => {
    try {
      return await (await session(graph)).run(pick(graph, feeds))
    } catch (error) {
      // A session keeps all memory that it ever took: smaller runs, of other sessions perhaps, need it back.
      if (isOutOfMemory(error)) await close()
      throw error
    }
  }

  const passes: Passes = {
    embed: async (feeds) => floats((await run(graphs.embed, feeds))[UNIT_EMBEDDINGS]),
    async step(feeds, lossScale) {
      const { graph } = graphs.step!
      const outputs = await run(graph, { ...feeds, [LOSS_SCALE]: float(Float32Array.of(lossScale), []) })
      const scale = precision === 'fp16' ? lossScale : 1
      return { ...lossOf(outputs), gradients: gradientsOf(graphs.step!, outputs, scale) }
    },
    async pullBack(feeds, seed, lossScale) {
      if (lossScale !== 1) scaleBy(floats(seed), lossScale)
      const outputs = await run(graphs.pullBack.graph, { ...feeds, [EMBEDDING_GRADIENT]: seed })
      return gradientsOf(graphs.pullBack, outputs, lossScale)
    },
    close,
  }
  return engineOver(passes, { ...options, runTokens: runTokens(device) })
}

function lossOf(outputs: Record<string, Tensor>): { loss: number; differences: Float32Array } {
  return { loss: floats(outputs[lossValues.loss])[0]!, differences: floats(outputs[lossValues.differences]) }
}

/** The gradients among a graph's outputs, without the factor by which they were scaled. */
function gradientsOf({ gradients }: GradientGraph, outputs: Record<string, Tensor>, scale: number): Tensors {
  const found: Tensors = new Map([...gradients].map(([name, output]) => [name, floats(outputs[output])]))
  // Equal gradients may be one and the same output.
  if (scale !== 1) for (const data of new Set(found.values())) scaleBy(data, 1 / scale)
  return found
}

function scaleBy(data: Float32Array, factor: number): void {
  for (let i = 0; i < data.length; i++) data[i]! *= factor
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

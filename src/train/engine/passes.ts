import type { TokenSequence } from '../../encoder/index.ts'
import type { Tensor } from '../../onnx/index.ts'
import type { QueryRows } from '../data/query-file.ts'
import { type LossSettings, lossAtEmbeddings, lossValues } from '../loss/pairwise.ts'
import { accumulate, type Tensors, zerosLike } from '../step/optimizer.ts'
import type { Engine, MicroBatch, StepResult, TrainableEncoder } from './engine.ts'

/**
 * What an engine computes in one run. `feeds` are the encoder's inputs for some sequences and the trainable tensors;
 * gradients come back without `lossScale`.
 */
export interface Passes {
  /** Embeddings of unit length, `[nodes, dimension]`. */
  embed(feeds: Record<string, Tensor>): Promise<Float32Array>
  /** Forward and backward of a built-in loss, whose inputs (`lossValues`) are among the feeds. */
  step(feeds: Record<string, Tensor>, lossScale: number): Promise<StepResult>
  /** Gradients of the trainable tensors for `seed` times `lossScale` as the gradient at the unit embeddings. */
  pullBack(feeds: Record<string, Tensor>, seed: Tensor, lossScale: number): Promise<Tensors>
  close(): Promise<void>
}

/** An engine from its passes: which sequences go into a run together, and what a run over a part means for the whole. */
export function engineOver(
  passes: Passes,
  options: {
    encoder: TrainableEncoder
    queries: QueryRows
    loss: LossSettings | undefined
    tokenBudget: number
    /** Tokens that a run should have where more would be within the budget; see the encoder's `runTokens`. */
    runTokens?: number
  },
): Engine {
  const { encoder, queries, loss, runTokens = Number.POSITIVE_INFINITY } = options
  const { dimension } = encoder
  const encoderFeeds = (sequences: TokenSequence[], tensors: Tensors): Record<string, Tensor> => ({
    ...encoder.feeds(sequences),
    ...Object.fromEntries([...encoder.trainable].map(([name, shape]) => [name, float(tensors.get(name)!, shape)])),
  })
  const lossFeeds = (batch: MicroBatch): Record<string, Tensor> => {
    const count = batch.pairs.length
    const contrast = new Float32Array(count * batch.sequences.length)
    const query = new Float32Array(count * dimension)
    const weights = new Float32Array(count)
    batch.pairs.forEach((pair, p) => {
      const row = p * batch.sequences.length
      contrast[row + pair.preferred]! += 1
      contrast[row + pair.other]! -= 1
      query.set(queries(pair.question), p * dimension)
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
    for (const group of encoder.batches(sequences, engine.tokenBudget, runTokens)) {
      const part = await passes.embed(
        encoderFeeds(
          group.map((i) => sequences[i]!),
          tensors,
        ),
      )
      group.forEach((i, row) => {
        embeddings.set(part.subarray(row * dimension, (row + 1) * dimension), i * dimension)
      })
    }
    return embeddings
  }

  const pullBack: Engine['pullBack'] = async (sequences, slope, tensors) => {
    const gradients = zerosLike(tensors)
    const { lossScale } = engine
    for (const group of encoder.batches(sequences, engine.tokenBudget, runTokens)) {
      const seed = new Float32Array(group.length * dimension)
      group.forEach((i, row) => {
        seed.set(slope.subarray(i * dimension, (i + 1) * dimension), row * dimension)
      })
      const feeds = encoderFeeds(
        group.map((i) => sequences[i]!),
        tensors,
      )
      accumulate(gradients, await passes.pullBack(feeds, float(seed, [group.length, dimension]), lossScale))
    }
    return gradients
  }

  const engine: Engine = {
    tokenBudget: options.tokenBudget,
    lossScale: 1,
    embed,
    pullBack,
    async onePass(batch, tensors) {
      if (loss === undefined) throw new Error(NO_LOSS)
      return passes.step({ ...encoderFeeds(batch.sequences, tensors), ...lossFeeds(batch) }, engine.lossScale)
    },
    async twoPass(batch, tensors) {
      if (loss === undefined) throw new Error(NO_LOSS)
      const embeddings = await embed(batch.sequences, tensors)
      const atEmbeddings = lossAtEmbeddings(embeddings, queries, batch.pairs, dimension, loss)
      const gradients = await pullBack(batch.sequences, atEmbeddings.slope, tensors)
      return { loss: atEmbeddings.loss, differences: atEmbeddings.differences, gradients }
    },
    close: () => passes.close(),
  }
  return engine
}

const NO_LOSS = 'The loss of this engine is computed outside of it'

function float(data: Float32Array, shape: number[]): Tensor {
  return { dtype: 'float32', shape, data }
}

import {
  type EncoderProfile,
  type LoraTarget,
  loraShapes,
  openWeights,
  packedEncoder,
  packedFeeds,
  packedTokens,
  packSequences,
  planBatches,
  rowCosts,
} from '../encoder/index.ts'
import type { TrainableEncoder } from './engine.ts'

/** The node encoder of a checkpoint with LoRA matrices as its trainable tensors, over packed rows. */
export async function loraEncoder(
  profile: EncoderProfile,
  lora: LoraTarget[],
  padId: number,
): Promise<TrainableEncoder> {
  const { weights, folder } = await openWeights(profile)
  const costs = rowCosts(profile)
  const pack = (sequences: Int32Array[]) => packSequences(sequences, undefined, { padId, ...costs })
  return {
    graph: packedEncoder(profile, weights, { lora }),
    externalFolder: folder,
    unitLength: profile.normalize,
    dimension: profile.dimension,
    trainable: new Map(loraShapes(lora).map(({ name, shape }) => [name, shape])),
    feeds: (sequences) => packedFeeds(pack(sequences), profile.pooling),
    tokens: (sequences) => packedTokens(pack(sequences)),
    batches: (sequences, tokenBudget) =>
      planBatches(
        sequences.map(({ length }) => length),
        { tokenBudget, packed: true, ...costs },
      ),
  }
}

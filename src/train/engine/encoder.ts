import {
  type EncoderProfile,
  encoderGraph,
  type LoraOptions,
  type LoraTarget,
  loraShapes,
} from '../../encoder/index.ts'
import type { TrainableEncoder } from './engine.ts'

/** A node encoder with LoRA matrices as its trainable tensors, and what a user should know of how it is computed. */
export async function loraEncoder(
  profile: EncoderProfile,
  lora: LoraTarget[],
  padId: number,
  update?: LoraOptions['update'],
): Promise<TrainableEncoder & { notes: string[] }> {
  const { graph, externalFolder, notes, feeds, tokens, batches } = await encoderGraph(profile, lora, padId, update)
  return {
    ...{ graph, externalFolder, notes, feeds, tokens, batches },
    unitLength: profile.normalize,
    dimension: profile.dimension,
    trainable: new Map(loraShapes(lora).map(({ name, shape }) => [name, shape])),
  }
}

import {
  type EncoderGraphOptions,
  type EncoderProfile,
  encoderGraph,
  type LoraTarget,
  loraShapes,
} from '../../encoder/index.ts'
import type { TrainableEncoder } from './engine.ts'

/** A node encoder with LoRA matrices as its trainable tensors, and what a user should know of how it is computed. */
export async function loraEncoder(
  profile: EncoderProfile,
  lora: LoraTarget[],
  padId: number,
  options: EncoderGraphOptions = {},
): Promise<TrainableEncoder & { notes: string[] }> {
  const { graph, externalFolder, layout, notes, feeds, tokens, batches, computed } = await encoderGraph(
    profile,
    lora,
    padId,
    options,
  )
  return {
    ...{ graph, externalFolder, notes, feeds, tokens, batches },
    ...(layout === 'causal' && (options.share ?? true) && { computed }),
    unitLength: profile.normalize,
    dimension: profile.dimension,
    trainable: new Map(loraShapes(lora).map(({ name, shape }) => [name, shape])),
  }
}

import type { Graph } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { layoutOf, openWeights, packedEncoder, rowCosts } from './architecture.ts'
import type { EncoderProfile } from './folder/profile.ts'
import { importedEncoder } from './imported/index.ts'
import type { LoraOptions, LoraTarget } from './lora/lora.ts'
import { causalLayout } from './prefix/index.ts'
import { isInParts } from './qwen3-vl/exported.ts'
import { blockLayout, type FeatureSource, type RowLayout } from './rows/layout.ts'

/** An encoder as a graph over rows of tokens, and how token sequences become its inputs. */
export interface EncoderGraph extends RowLayout {
  /**
   * Inputs: of an encoder whose tokens see their whole text `input_ids`, `position_ids` and `segments`, int32 [rows, length]
   * (`segments` numbers the batch's texts from 1; 0 is padding), and `pool`, float32 [nodes, tokens]; of a causal one those of
   * {@link qwen3Packed}; and for every LoRA target its two matrices under PEFT's names. Output: `embeddings`, float32 [nodes,
   * dimension], of length 1 if the profile says so.
   */
  graph: Graph
  /** Folder of the files that the graph's external tensors name. */
  externalFolder: string | undefined
  /** Whether several texts share a row, perhaps with what they begin with, or each has a row of its own. */
  layout: 'packed' | 'padded' | 'causal'
  /** What a user should know of how an ONNX folder's graph is computed, in sentences without a full stop. */
  notes: string[]
}

export interface EncoderGraphOptions {
  /** How linear maps get their low-rank update; see `LoraOptions`. */
  update?: LoraOptions['update']
  /** Whether a causal checkpoint computes tokens that sequences begin with in common once; true where absent. */
  share?: boolean
  /** Where the visual features are that sequences name; for encoders of pictures. */
  visuals?: FeatureSource | undefined
}

/**
 * The graph of a checkpoint, which is built, or of an ONNX folder, which is read and differentiated as it is.
 *
 * @param lora linear maps that get a low-rank update, whose matrices are inputs
 * @param padId the token that fills rows up
 * @throws InputError for an architecture or a graph that is not supported, naming what it is about
 */
export async function encoderGraph(
  profile: EncoderProfile,
  lora: LoraTarget[],
  padId: number,
  options: EncoderGraphOptions = {},
): Promise<EncoderGraph> {
  const { update, share = true, visuals } = options
  if (isInParts(profile))
    throw new InputError(
      'An exported Qwen3-VL encoder embeds as it is, but is not trained. Train over its checkpoint and export that again.',
      { file: profile.folder },
    )
  if (profile.kind === 'onnx') {
    const { graph, externalFolder, layout, notes } = await importedEncoder(profile, lora, padId, update)
    // an imported graph has no rows longer than the texts it was made for
    const costs = { ...rowCosts(profile), maxLength: profile.maxLength }
    return {
      ...{ graph, externalFolder, layout, notes },
      ...blockLayout({ layout, padId, pooling: profile.pooling, costs }),
    }
  }
  const { weights, folder } = await openWeights(profile)
  const graph = packedEncoder(profile, weights, { lora, ...(update === undefined ? {} : { update }) })
  const common = { graph, externalFolder: folder, notes: [] }
  if (layoutOf(profile) === 'causal')
    return { ...common, layout: 'causal', ...causalLayout(profile, { padId, share, visuals }) }
  const layout = 'packed'
  return { ...common, layout, ...blockLayout({ layout, padId, pooling: profile.pooling, costs: rowCosts(profile) }) }
}

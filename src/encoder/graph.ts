import type { Graph, Tensor } from '../onnx/index.ts'
import { openWeights, packedEncoder, rowCosts } from './architecture.ts'
import type { EncoderProfile } from './checkpoint.ts'
import { importedEncoder } from './imported/index.ts'
import type { LoraOptions, LoraTarget } from './lora.ts'
import { bestRowLength, packedFeeds, packedTokens, packSequences, padSequences, planBatches } from './pack.ts'

/** An encoder as a graph over rows of tokens, and how token sequences become its inputs. */
export interface EncoderGraph {
  /**
   * Inputs: `input_ids`, `position_ids` and `segments`, int32 [rows, length] (`segments` numbers the batch's texts from 1; 0
   * is padding); `pool`, float32 [nodes, tokens]; and for every LoRA target its two matrices under PEFT's names. Output:
   * `embeddings`, float32 [nodes, dimension], of length 1 if the profile says so.
   */
  graph: Graph
  /** Folder of the files that the graph's external tensors name. */
  externalFolder: string | undefined
  /** Whether several texts share a row, or each has a row of its own. */
  layout: 'packed' | 'padded'
  /** What a user should know of how an ONNX folder's graph is computed, in sentences without a full stop. */
  notes: string[]
  /** The graph's inputs for these sequences, one node each, in this order. */
  feeds(sequences: readonly Int32Array[]): Record<string, Tensor>
  /** Tokens that a run over these sequences computes, padding included. */
  tokens(sequences: readonly Int32Array[]): number
  /** Groups of sequences, by index, whose runs stay within a budget of tokens; a sequence over it goes alone. */
  batches(sequences: readonly Int32Array[], budget: number): number[][]
}

/**
 * The graph of a checkpoint, which is built, or of an ONNX folder, which is read and differentiated as it is.
 *
 * @param lora linear maps that get a low-rank update, whose matrices are inputs
 * @param padId the token that fills rows up
 * @param update how maps get theirs; see `LoraOptions`
 * @throws InputError for an architecture or a graph that is not supported, naming what it is about
 */
export async function encoderGraph(
  profile: EncoderProfile,
  lora: LoraTarget[],
  padId: number,
  update?: LoraOptions['update'],
): Promise<EncoderGraph> {
  if (profile.kind === 'onnx') {
    const { graph, externalFolder, layout, notes } = await importedEncoder(profile, lora, padId, update)
    return { graph, externalFolder, layout, notes, ...inRows(profile, layout, padId) }
  }
  const { weights, folder } = await openWeights(profile)
  const graph = packedEncoder(profile, weights, { lora, ...(update === undefined ? {} : { update }) })
  return { graph, externalFolder: folder, layout: 'packed', notes: [], ...inRows(profile, 'packed', padId) }
}

/** How sequences are laid out in rows: packed, or padded to the longest. */
function inRows(
  profile: EncoderProfile,
  layout: EncoderGraph['layout'],
  padId: number,
): Pick<EncoderGraph, 'feeds' | 'tokens' | 'batches'> {
  const packed = layout === 'packed'
  // an imported graph has no rows longer than the texts it was made for
  const costs = { ...rowCosts(profile), ...(profile.kind === 'onnx' ? { maxLength: profile.maxLength } : {}) }
  const pack = (sequences: readonly Int32Array[]) => {
    if (!packed) return padSequences(sequences, { padId })
    const rowLength = bestRowLength(
      sequences.map(({ length }) => length),
      costs,
    )
    return packSequences(sequences, Math.min(rowLength, costs.maxLength ?? rowLength), { padId })
  }
  return {
    feeds: (sequences) => packedFeeds(pack(sequences), profile.pooling),
    tokens: (sequences) => packedTokens(pack(sequences)),
    batches: (sequences, tokenBudget) =>
      planBatches(
        sequences.map(({ length }) => length),
        { tokenBudget, packed, ...costs },
      ),
  }
}

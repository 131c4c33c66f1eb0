import type { Tensor } from '../../onnx/index.ts'
import type { Pooling } from '../folder/profile.ts'
import type { FeatureStore, TokenSequence } from '../input/sequence.ts'
import {
  bestRowLength,
  packedFeeds,
  packedTokens,
  packSequences,
  padSequences,
  planBatches,
  type RowCosts,
} from './pack.ts'

/** How token sequences become rows of a graph. */
export interface RowLayout {
  /** The graph's inputs for these sequences, one node each, in this order. */
  feeds(sequences: readonly TokenSequence[]): Record<string, Tensor>
  /** Tokens that a run over these sequences computes, padding included. */
  tokens(sequences: readonly TokenSequence[]): number
  /** The same without padding: as many as the sequences have, or fewer where those that begin alike share what they begin with. */
  computed(sequences: readonly TokenSequence[]): number
  /**
   * Groups of sequences, by index, whose runs stay within a budget of tokens; a sequence over it goes alone, or with some that are
   * nearly contained in it.
   *
   * @param wanted tokens that a run should have where more would be within the budget; a causal layout takes more where sequences
   *   share so much that it pays
   */
  batches(sequences: readonly TokenSequence[], budget: number, wanted?: number): number[][]
}

/** Where a layout finds the visual features that sequences name; an `InputReader` is one, which has some once it has read a picture. */
export interface FeatureSource {
  readonly features: FeatureStore | undefined
}

/** Texts in rows for an encoder whose tokens see their whole text: several to a row, or one, the rows filled up to the longest. */
export function blockLayout(options: {
  layout: 'packed' | 'padded'
  padId: number
  pooling: Pooling
  costs: RowCosts
}): RowLayout {
  const { padId, pooling, costs } = options
  const packed = options.layout === 'packed'
  const lengths = (sequences: readonly TokenSequence[]): number[] => sequences.map(({ ids }) => ids.length)
  const pack = (sequences: readonly TokenSequence[]) => {
    if (!packed) return padSequences(sequences, { padId })
    const rowLength = bestRowLength(lengths(sequences), costs)
    return packSequences(sequences, Math.min(rowLength, costs.maxLength ?? rowLength), { padId })
  }
  return {
    feeds: (sequences) => packedFeeds(pack(sequences), pooling),
    tokens: (sequences) => packedTokens(pack(sequences)),
    computed: (sequences) => lengths(sequences).reduce((sum, length) => sum + length, 0),
    batches: (sequences, budget, wanted = budget) =>
      planBatches(lengths(sequences), { tokenBudget: Math.min(budget, wanted), packed, ...costs }),
  }
}

import type { TokenSequence } from '../input/sequence.ts'
import { numberVisuals } from './columns.ts'
import { prefixOrder, trieTokens } from './order.ts'

export interface SharedTokens {
  /** Tokens whose states are computed, where those that sequences have in common from the first on are computed once. */
  computed: number
  /** Tokens of the sequences. */
  total: number
}

/** What sharing prefixes saves on sequences that are computed together in one row. */
export function sharedTokens(sequences: readonly TokenSequence[]): SharedTokens {
  const order = prefixOrder(numberVisuals(sequences).columns, true)
  return {
    computed: trieTokens(order, 0, order.lengths.length),
    total: sequences.reduce((sum, { ids }) => sum + ids.length, 0),
  }
}

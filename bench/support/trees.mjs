// Token sequences like those of a training batch: the nodes of binary trees over texts. Ids are random, lengths are not.
import { createRandom } from '../../dist/support/random.js'

const SHORTEST = 24
const LONGEST = 200

/** Trees of nodes, each at most `longest` tokens, until together they have `tokens` tokens; the same seed gives the same ones. */
export function treeNodes(tokens, { seed = 'trees', vocabulary = 30000, longest = LONGEST } = {}) {
  const random = createRandom(seed)
  const sequences = []
  let total = 0
  const add = (length) => {
    const kept = Math.min(length, tokens - total)
    if (kept < 8) return
    const ids = Int32Array.from({ length: kept }, () => 1000 + Math.floor(random.next() * (vocabulary - 1000)))
    sequences.push({ ids })
    total += kept
    if (length < 2 * SHORTEST) return
    add(Math.ceil(length / 2))
    add(Math.floor(length / 2))
  }
  while (tokens - total >= 8) add(Math.round(2 * SHORTEST + random.next() * (longest - 2 * SHORTEST)))
  return sequences
}

import { rowLengthFor } from '../rows/pack.ts'
import { type PrefixOrder, subOrder, trieTokens } from './order.ts'
import { placeRows, type RowWork } from './rows.ts'

/** What a run takes beside its tokens, in tokens: adding updates to weights, reading weights, starting kernels. */
const RUN_TOKENS = 32

/** What a token takes more in a run that is larger than it should be, for those beyond; see `runTokens`. */
const BEYOND = 0.15

/**
 * Divides a trie into runs of at most `budget` tokens, padding included, so that as little as possible is computed: every run
 * repeats what its first leaf has in common with those of the run before. A sequence over the budget goes alone or with some
 * that are nearly contained in it, a sixteenth more at most.
 *
 * @param wanted tokens that a run should have: more are taken only where they save more
 * @returns sequences by index, in the order of their places
 */
export function planRuns(order: PrefixOrder, budget: number, work: RowWork, wanted = budget): number[][] {
  const allowed = (longest: number): number => Math.max(budget, rowLengthFor((longest * 17) / 16))
  const runs: number[][] = []
  const plan = (from: number, to: number, fill: number): void => {
    for (const [start, end] of cutRange(order, from, to, fill * wanted, (longest) => fill * allowed(longest))) {
      const run = subOrder(
        order,
        Array.from({ length: end - start }, (_, i) => start + i),
      )
      const { rows, length } = placeRows(run, work)
      const over = (rows.length * length) / allowed(run.lengths.reduce((a, b) => Math.max(a, b)))
      // rows may take more than the trie itself, for padding and where they repeat prefixes
      if (over > 1 && end - start > 1) plan(start, end, fill * Math.min(0.95, 1 / over))
      else runs.push(run.sequences.flat())
    }
  }
  plan(0, order.lengths.length, 1)
  return runs
}

/**
 * Cuts places [from, to) into ranges that take least together:
 *
 *   least(j) = min over i of least(i) + RUN_TOKENS + t + BEYOND max(0, t - wanted),   t: tokens of the trie of [i, j)
 *
 * @param limit most tokens of a range of several leaves, by its longest one
 */
function cutRange(
  order: PrefixOrder,
  from: number,
  to: number,
  wanted: number,
  limit: (longest: number) => number,
): [start: number, end: number][] {
  const most = limit(order.lengths.subarray(from, to).reduce((a, b) => Math.max(a, b), 0))
  const usual = limit(0)
  const least = new Float64Array(to - from + 1).fill(Number.POSITIVE_INFINITY)
  const cutBefore = new Int32Array(to - from + 1)
  least[0] = 0
  for (let end = from + 1; end <= to; end++) {
    let longest = 0
    for (let start = end - 1; start >= from; start--) {
      longest = Math.max(longest, order.lengths[start]!)
      const tokens = trieTokens(order, start, end)
      if (tokens > usual && start < end - 1) {
        if (tokens > most) break
        if (tokens > limit(longest)) continue
      }
      const cost = least[start - from]! + RUN_TOKENS + tokens + BEYOND * Math.max(0, tokens - wanted)
      if (cost < least[end - from]!) {
        least[end - from] = cost
        cutBefore[end - from] = start
      }
    }
  }
  const ranges: [number, number][] = []
  for (let end = to; end > from; end = cutBefore[end - from]!) ranges.push([cutBefore[end - from]!, end])
  return ranges.reverse()
}

import type { Random } from '../support/random.ts'

/** Groups that are alike: of the same number of questions (and of each variant). */
export interface GroupKind {
  /** Questions of each group. */
  size: number
  groups: number[]
}

/**
 * Draws groups whose sizes add up as near to `share` of all as any choice of whole groups does, each kind in about that proportion.
 *
 * Which totals the kinds can reach together is a bounded subset sum; the kinds are then gone through from the largest, and of each
 * as many groups are drawn as its share of them, moved only as far as needed for the smaller kinds to reach the rest. Time and
 * memory: the number of kinds times twice the wanted total.
 *
 * @returns `total`: the sizes of the chosen groups together; of two totals that are equally near, the smaller
 */
export function chooseGroups(
  kinds: readonly GroupKind[],
  share: number,
  random: Random,
): { chosen: number[]; total: number } {
  const ordered = [...kinds].sort((a, b) => b.size - a.size)
  const all = ordered.reduce((sum, { size, groups }) => sum + size * groups.length, 0)
  const wanted = share * all
  // nothing at all is as near as twice the wanted total
  const limit = Math.min(all, Math.ceil(2 * wanted))
  const reach = reachableTotals(ordered, limit)
  let total = 0
  for (let t = 1; t <= limit; t++) if (reach[0]![t] === 1 && Math.abs(t - wanted) < Math.abs(total - wanted)) total = t

  const chosen: number[] = []
  let rest = total
  for (const [k, { size, groups }] of ordered.entries()) {
    const drawn = Math.min(groups.length, Math.floor(share * groups.length + random.next()))
    const count = nearestCount(drawn, groups.length, (n) => n * size <= rest && reach[k + 1]![rest - n * size] === 1)
    chosen.push(...random.shuffle([...groups]).slice(0, count))
    rest -= count * size
  }
  return { chosen, total }
}

/** `reach[k][t]`: whether groups of the kinds k, k + 1, … can add up to t. */
function reachableTotals(kinds: readonly GroupKind[], limit: number): Uint8Array[] {
  const reach: Uint8Array[] = Array.from({ length: kinds.length + 1 })
  let below = new Uint8Array(limit + 1)
  below[0] = 1
  reach[kinds.length] = below
  for (let k = kinds.length - 1; k >= 0; k--) {
    const { size, groups } = kinds[k]!
    const here = Uint8Array.from(below)
    // fewest groups of this kind that a total takes
    const used = new Int32Array(limit + 1)
    for (let t = size; t <= limit; t++) {
      if (here[t] === 0 && here[t - size] === 1 && used[t - size]! < groups.length) {
        here[t] = 1
        used[t] = used[t - size]! + 1
      }
    }
    reach[k] = here
    below = here
  }
  return reach
}

/** The count from 0 to `most` nearest to `drawn` that is possible; one is. */
function nearestCount(drawn: number, most: number, possible: (count: number) => boolean): number {
  for (let step = 0; step <= most; step++) {
    if (drawn - step >= 0 && possible(drawn - step)) return drawn - step
    if (drawn + step <= most && possible(drawn + step)) return drawn + step
  }
  throw new RangeError('no number of groups reaches the total')
}

import { createRandom } from '../support/random.ts'

/** Row sums of one cluster: [columns] values for each group (benchmark) the cluster has a part in. */
export type Cluster = readonly { group: number; values: Float64Array }[]

export interface ResampleOptions {
  /** [groups, columns] is the shape of every resample's sums. */
  groups: number
  columns: number
  resamples: number
  seed: string
}

/**
 * The cluster bootstrap: each resample draws as many clusters as there are, with replacement, and adds up their rows.
 * A cluster is drawn whole, with its parts in all groups. Reference: Davison & Hinkley, Bootstrap Methods and their
 * Application (1997), 3.8.
 *
 * @param visit receives the sums [groups, columns] of one resample; the array is used again for the next
 */
export function resampleSums(
  clusters: readonly Cluster[],
  { groups, columns, resamples, seed }: ResampleOptions,
  visit: (sums: Float64Array, resample: number) => void,
): void {
  if (clusters.length === 0) return
  const random = createRandom(seed)
  const drawn = new Uint32Array(clusters.length)
  const sums = new Float64Array(groups * columns)
  for (let resample = 0; resample < resamples; resample++) {
    drawn.fill(0)
    for (let i = 0; i < clusters.length; i++) drawn[random.int(clusters.length)]!++
    sums.fill(0)
    for (let c = 0; c < clusters.length; c++) {
      const times = drawn[c]!
      if (times === 0) continue
      for (const { group, values } of clusters[c]!) {
        const offset = group * columns
        for (let column = 0; column < columns; column++) sums[offset + column]! += times * values[column]!
      }
    }
    visit(sums, resample)
  }
}

/**
 * The central percentile interval of resampled values, NaN ones (a denominator of zero) left out; undefined when none is
 * left. Quantiles interpolate linearly between order statistics (Hyndman & Fan's type 7).
 *
 * @param level share of the resamples inside, 0.95 unless told
 */
export function percentileInterval(values: Float64Array, level = 0.95): [number, number] | undefined {
  const sorted = values.filter((value) => !Number.isNaN(value)).sort()
  if (sorted.length === 0) return undefined
  return [quantile(sorted, (1 - level) / 2), quantile(sorted, (1 + level) / 2)]
}

/** The p-quantile of sorted values (type 7). */
export function quantile(sorted: ArrayLike<number>, p: number): number {
  const at = (sorted.length - 1) * p
  const low = Math.floor(at)
  const high = Math.min(low + 1, sorted.length - 1)
  // a + t (b - a): exact where both ends agree.
  return sorted[low]! + (at - low) * (sorted[high]! - sorted[low]!)
}

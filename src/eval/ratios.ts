import { type Cluster, percentileInterval, resampleSums } from './bootstrap.ts'

/** Two columns of sums whose quotient is wanted. */
export interface Ratio {
  numerator: number
  denominator: number
}

/**
 * How the sums of several groups become one number. `pooled`: all numerators over all denominators. `mean`: the plain mean of the
 * quotients of those groups whose denominator is not zero.
 */
export type Combine = 'pooled' | 'mean'

/** A ratio as observed and in every resample (NaN where a denominator is zero). */
export interface ResampledRatio {
  value: number
  samples: Float64Array
  /** Groups whose observed denominator is not zero. */
  present: readonly number[]
}

export interface RatioOptions {
  /** [groups, columns] is the shape of the sums. */
  groups: number
  columns: number
  ratios: readonly (Ratio | undefined)[]
  combines: readonly Combine[]
  resamples: number
  seed: string
  onResample?: (resample: number) => void
}

/**
 * Ratios of sums over clusters, observed and bootstrapped: all of them see the same resamples, so that differences between any two
 * are paired.
 *
 * @returns `observed`: sums [groups, columns]; `results`: for each way of combining, for each ratio; undefined where the ratio
 *   is, or its denominator is zero in every group
 */
export function bootstrapRatios(
  clusters: readonly Cluster[],
  { groups, columns, ratios, combines, resamples, seed, onResample }: RatioOptions,
): { observed: Float64Array; results: (ResampledRatio | undefined)[][] } {
  const observed = addUp(clusters, groups, columns)
  // Sums are never negative, so a column without an observed sum is zero in every cluster and need not be resampled.
  const live = Array.from({ length: columns }, (_, column) => column).filter((column) =>
    Array.from({ length: groups }, (_, group) => group).some((group) => observed[group * columns + column]! > 0),
  )
  const compact = clusters.map((parts) =>
    parts.map(({ group, values }) => ({ group, values: Float64Array.from(live, (column) => values[column]!) })),
  )
  const place = new Map(live.map((column, i) => [column, i]))
  const compactRatios = ratios.map(
    (ratio) =>
      ratio && { numerator: place.get(ratio.numerator) ?? -1, denominator: place.get(ratio.denominator) ?? -1 },
  )
  const results = combines.map((combine) =>
    ratios.map((ratio): ResampledRatio | undefined => {
      if (ratio === undefined) return undefined
      const present = Array.from({ length: groups }, (_, group) => group).filter(
        (group) => observed[group * columns + ratio.denominator]! > 0,
      )
      if (present.length === 0) return undefined
      const value = quotient(combine, observed, columns, ratio, present)
      return { value, samples: new Float64Array(resamples), present }
    }),
  )
  resampleSums(compact, { groups, columns: live.length, resamples, seed }, (sums, resample) => {
    for (const [c, combine] of combines.entries()) {
      for (const [r, result] of results[c]!.entries()) {
        if (result === undefined) continue
        result.samples[resample] = quotient(combine, sums, live.length, compactRatios[r]!, result.present)
      }
    }
    onResample?.(resample)
  })
  return { observed, results }
}

/** The ratio from sums [groups, columns]; a numerator below 0 is a column of zeros. NaN where a denominator is zero. */
function quotient(
  combine: Combine,
  sums: Float64Array,
  columns: number,
  { numerator, denominator }: Ratio,
  groups: readonly number[],
): number {
  let above = 0
  let below = 0
  for (const group of groups) {
    const part = numerator < 0 ? 0 : sums[group * columns + numerator]!
    const whole = sums[group * columns + denominator]!
    if (combine === 'pooled') {
      above += part
      below += whole
    } else {
      above += part / whole
      below += 1
    }
  }
  return above / below
}

/** The 95 % interval of a difference a - b of two paired ratios, or of one alone; undefined where there is none. */
export function pairedInterval(a: ResampledRatio, b?: ResampledRatio): [number, number] | undefined {
  return percentileInterval(b === undefined ? a.samples : a.samples.map((sample, i) => sample - b.samples[i]!))
}

/**
 * The clusters that have a part in any of the groups, in the order in which they first appeared. One that adds nothing to any sum
 * (all its items are of a kind that was left out) is none: drawing it would stand for evidence that nobody has.
 */
export function clustersOf(groups: readonly ReadonlyMap<string, Float64Array>[]): Cluster[] {
  const clusters = new Map<string, { group: number; values: Float64Array }[]>()
  for (const [group, sources] of groups.entries()) {
    for (const [source, values] of sources) {
      if (values.every((value) => value === 0)) continue
      const parts = clusters.get(source)
      if (parts === undefined) clusters.set(source, [{ group, values }])
      else parts.push({ group, values })
    }
  }
  return [...clusters.values()]
}

function addUp(clusters: readonly Cluster[], groups: number, columns: number): Float64Array {
  const sums = new Float64Array(groups * columns)
  for (const cluster of clusters) {
    for (const { group, values } of cluster) {
      for (let column = 0; column < columns; column++) sums[group * columns + column]! += values[column]!
    }
  }
  return sums
}

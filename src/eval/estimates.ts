import { type Cluster, percentileInterval, resampleSums } from './bootstrap.ts'
import { isDefined, METRICS, metricIndex } from './metrics.ts'
import type { EncoderName } from './scored.ts'
import { type ClusterSums, denominatorAt, numeratorAt, rowLength } from './sums.ts'

/** A metric with its 95 % interval. Null: nothing to measure (`n` is 0), or fewer than two clusters to resample. */
export interface Estimate {
  value: number | null
  lo: number | null
  hi: number | null
  /** How many of what the metric counts: decision nodes, items, questions…; for a mean over benchmarks, benchmarks. */
  n: number
}

export type MetricEstimates = Record<string, Estimate>

/** Results by benchmark, encoder and metric; `pooled` and `mean` stand among the benchmarks. */
export interface Estimates {
  benchmarks: Record<string, Partial<Record<EncoderName, MetricEstimates>>>
  /** Paired differences by benchmark and `"<encoder> - <other encoder>"`. */
  differences: Record<string, Record<string, MetricEstimates>>
  /** Clusters that were resampled, by benchmark. */
  clusters: Record<string, number>
}

export interface EstimateOptions {
  /** Whether a benchmark has scores of an encoder. An encoder that one of them lacks is neither pooled nor averaged. */
  available?: (benchmark: string, encoder: EncoderName) => boolean
  resamples?: number
  seed?: string
  onProgress?: (done: number, total: number) => void
}

export const RESAMPLES = 10_000

/**
 * Values and 95 % intervals of every metric: for each benchmark, `pooled` (sums over everything: micro over decision nodes,
 * items, questions) and `mean` (the plain mean over the benchmarks that have the metric).
 *
 * Intervals come from a percentile bootstrap over clusters. Differences are paired: both encoders are measured on the same
 * resample. A benchmark is resampled by its own clusters, so that its interval does not depend on what it was evaluated
 * with; `pooled` and `mean` by the clusters of all benchmarks, a source that several share being one cluster.
 */
export function estimate(sums: ClusterSums, options: EstimateOptions = {}): Estimates {
  const { resamples = RESAMPLES, seed = '1', available = () => true, onProgress } = options
  const names = [...sums.benchmarks.keys()].sort()
  const results: Estimates = { benchmarks: {}, differences: {}, clusters: {} }
  const columns = rowLength(sums)
  const passes = [
    ...names.map((name) => ({ key: name, groups: [name], wanted: [{ name, combine: pooledRatio }] })),
    {
      // With one benchmark, all three are the same and so are their intervals.
      key: names.length === 1 ? names[0]! : 'pooled and mean',
      groups: names,
      wanted: [
        { name: 'pooled', combine: pooledRatio },
        { name: 'mean', combine: meanRatio },
      ],
    },
  ]
  for (const [pass, { key, groups, wanted }] of passes.entries()) {
    if (groups.length === 0) continue
    const clusters = clustersOf(sums, groups)
    const encoders = sums.encoders.filter((encoder) => groups.every((group) => available(group, encoder)))
    const observed = addUp(clusters, groups.length, columns)
    const tables = wanted.map(({ name, combine }) =>
      createTable(name, sums, encoders, observed, groups.length, combine, resamples),
    )
    resampleSums(
      clusters,
      { groups: groups.length, columns, resamples, seed: `${seed}/bootstrap/${key}` },
      (drawn, resample) => {
        for (const table of tables) recordResample(table, drawn, resample)
        if (resample % 500 === 0) onProgress?.(pass * resamples + resample, passes.length * resamples)
      },
    )
    for (const table of tables) {
      const intervals = clusters.length > 1
      const base = (['fine-tuned', 'frozen'] as const).find((encoder) => encoders.includes(encoder))
      results.clusters[table.name] = clusters.length
      results.benchmarks[table.name] = Object.fromEntries(
        encoders.map((encoder) => [encoder, estimatesOf(table, intervals, encoder)]),
      )
      results.differences[table.name] = Object.fromEntries(
        encoders
          .filter((other) => base !== undefined && other !== base)
          .map((other) => [`${base} - ${other}`, estimatesOf(table, intervals, base!, other)]),
      )
    }
  }
  onProgress?.(passes.length * resamples, passes.length * resamples)
  return results
}

/** A metric of one encoder from sums [groups, columns]; NaN where it cannot be computed. */
type Combine = (sums: Float64Array, columns: number, cells: Cell, groups: number) => number

/** Columns of a ratio, and the groups in which its observed denominator is not zero. */
interface Cell {
  numerator: number
  denominator: number
  present: readonly number[]
}

// Σ numerators / Σ denominators
const pooledRatio: Combine = (sums, columns, { numerator, denominator }, groups) => {
  let above = 0
  let below = 0
  for (let group = 0; group < groups; group++) {
    above += sums[group * columns + numerator]!
    below += sums[group * columns + denominator]!
  }
  return above / below
}

// mean over groups of numerator / denominator
const meanRatio: Combine = (sums, columns, { numerator, denominator, present }) => {
  let total = 0
  for (const group of present) total += sums[group * columns + numerator]! / sums[group * columns + denominator]!
  return total / present.length
}

interface Table {
  name: string
  columns: number
  groups: number
  combine: Combine
  /** Sums [groups, columns] of what was observed. */
  observed: Float64Array
  encoders: readonly EncoderName[]
  /** [encoders, metrics], undefined where a metric is not defined. */
  cells: (Cell | undefined)[]
  /** [encoders, metrics] of resampled values. */
  samples: (Float64Array | undefined)[]
}

function createTable(
  name: string,
  sums: ClusterSums,
  encoders: readonly EncoderName[],
  observed: Float64Array,
  groups: number,
  combine: Combine,
  resamples: number,
): Table {
  const columns = rowLength(sums)
  const cells = encoders.flatMap((encoder) =>
    METRICS.map((metric, m): Cell | undefined => {
      const denominator = denominatorAt(m)
      const present = Array.from({ length: groups }, (_, g) => g).filter(
        (g) => observed[g * columns + denominator]! > 0,
      )
      if (present.length === 0 || !isDefined(metric, encoder)) return undefined
      return { numerator: numeratorAt(sums.encoders.indexOf(encoder), m), denominator, present }
    }),
  )
  const samples = cells.map((cell) => cell && new Float64Array(resamples))
  return { name, columns, groups, combine, observed, encoders, cells, samples }
}

function recordResample(
  { columns, groups, combine, cells, samples }: Table,
  drawn: Float64Array,
  resample: number,
): void {
  for (let i = 0; i < cells.length; i++) {
    const cell = cells[i]
    if (cell !== undefined) samples[i]![resample] = combine(drawn, columns, cell, groups)
  }
}

/** Every metric that is defined, of an encoder, or of its difference to another one. */
function estimatesOf(table: Table, intervals: boolean, encoder: EncoderName, other?: EncoderName): MetricEstimates {
  const estimates: MetricEstimates = {}
  const place = (e: EncoderName, m: number): number => table.encoders.indexOf(e) * METRICS.length + m
  const value = (cell: Cell): number => table.combine(table.observed, table.columns, cell, table.groups)
  for (const [m, metric] of METRICS.entries()) {
    if (!isDefined(metric, encoder) || (other !== undefined && !isDefined(metric, other))) continue
    const at = place(encoder, m)
    const cell = table.cells[at]
    if (cell === undefined) {
      estimates[metric.name] = { value: null, lo: null, hi: null, n: 0 }
      continue
    }
    let point = value(cell)
    let samples = table.samples[at]!
    if (other !== undefined) {
      const otherAt = place(other, m)
      point -= value(table.cells[otherAt]!)
      samples = samples.map((sample, i) => sample - table.samples[otherAt]![i]!)
    }
    const interval = intervals ? percentileInterval(samples) : undefined
    estimates[metric.name] = {
      value: point,
      lo: interval?.[0] ?? null,
      hi: interval?.[1] ?? null,
      n: count(table, m, cell),
    }
  }
  return estimates
}

function count({ combine, observed, columns, groups }: Table, m: number, { present }: Cell): number {
  if (combine === meanRatio) return present.length
  const counter = METRICS[m]!.countedBy
  const denominator = denominatorAt(counter === undefined ? m : metricIndex(counter))
  let n = 0
  for (let group = 0; group < groups; group++) n += observed[group * columns + denominator]!
  return n
}

/** The clusters that have a part in any of the groups, in the order in which they first appeared. */
function clustersOf({ benchmarks }: ClusterSums, groups: readonly string[]): Cluster[] {
  const clusters = new Map<string, { group: number; values: Float64Array }[]>()
  for (const [group, name] of groups.entries()) {
    for (const [source, values] of benchmarks.get(name)!) {
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

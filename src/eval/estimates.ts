import { isDefined, METRICS, type Metric, metricIndex, SELECTION_METRICS } from './metrics.ts'
import { bootstrapRatios, clustersOf, pairedInterval, type Ratio, type ResampledRatio } from './ratios.ts'
import { type EncoderName, isSelector, type RowName } from './scored.ts'
import { SELECTION_ROWS, type SelectionRow } from './selection.ts'
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
  /** What selects evidence, side by side on the same gold items, by benchmark. */
  selection: Record<string, Partial<Record<SelectionRow, MetricEstimates>>>
  /** Paired differences of CANOPY to the other rows of the selection table, by benchmark and `"<row> - <other row>"`. */
  selectionDifferences: Record<string, Record<string, MetricEstimates>>
  /** Clusters that were resampled, by benchmark. */
  clusters: Record<string, number>
}

export interface EstimateOptions {
  /** Whether a benchmark has scores of an encoder. An encoder that one of them lacks is neither pooled nor averaged. */
  available?: (benchmark: string, encoder: EncoderName) => boolean
  /** Whether a benchmark stays out of `pooled` and `mean`; none does unless told. */
  apart?: (benchmark: string) => boolean
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
  const { resamples = RESAMPLES, seed = '1', available = () => true, apart = () => false, onProgress } = options
  const results: Estimates = {
    benchmarks: {},
    differences: {},
    selection: {},
    selectionDifferences: {},
    clusters: {},
  }
  const passes = resamplingPasses([...sums.benchmarks.keys()].sort(), apart)
  for (const [pass, { key, groups, tables }] of passes.entries()) {
    const clusters = clustersOf(groups.map((name) => sums.benchmarks.get(name)!))
    const rows = sums.rows.filter((row) => isSelector(row) || groups.every((group) => available(group, row)))
    const { observed, results: found } = bootstrapRatios(clusters, {
      groups: groups.length,
      columns: rowLength(sums),
      ratios: rows.flatMap((row) => METRICS.map((metric, m) => ratioOf(sums, row, metric, m))),
      combines: tables.map(({ combine }) => combine),
      resamples,
      seed: `${seed}/bootstrap/${key}`,
      onResample: (resample) => {
        if (resample % 500 === 0) onProgress?.(pass * resamples + resample, passes.length * resamples)
      },
    })
    for (const [t, { name, combine }] of tables.entries()) {
      const table: Table = {
        rows,
        ratios: found[t]!,
        intervals: clusters.length > 1,
        count: (m, { present }) => {
          if (combine === 'mean') return present.length
          const counter = METRICS[m]!.countedBy
          const column = denominatorAt(counter === undefined ? m : metricIndex(counter))
          return groups.reduce((n, _, group) => n + observed[group * rowLength(sums) + column]!, 0)
        },
      }
      results.clusters[name] = clusters.length
      addEncoders(results, name, table)
      addSelection(results, name, table)
    }
  }
  onProgress?.(passes.length * resamples, passes.length * resamples)
  return results
}

/** One bootstrap, over the clusters of one benchmark or of several, and what is made of it. */
export interface ResamplingPass {
  /** Seeds the resamples. */
  key: string
  groups: string[]
  tables: { name: string; combine: 'pooled' | 'mean' }[]
}

/** The bootstraps that tables over these benchmarks need: one for each, and one for all that are not to stand apart. */
export function resamplingPasses(names: readonly string[], apart: (name: string) => boolean): ResamplingPass[] {
  const together = names.filter((name) => !apart(name))
  const alone = names.map(
    (name): ResamplingPass => ({ key: name, groups: [name], tables: [{ name, combine: 'pooled' }] }),
  )
  if (together.length === 0) return alone
  const all: ResamplingPass = {
    // With one benchmark, all three are the same and so are their intervals.
    key: together.length === 1 ? together[0]! : 'pooled and mean',
    groups: together,
    tables: [
      { name: 'pooled', combine: 'pooled' },
      { name: 'mean', combine: 'mean' },
    ],
  }
  if (names.length > 1) return [...alone, all]
  return [{ ...all, tables: [...alone[0]!.tables, ...all.tables] }]
}

function ratioOf(sums: ClusterSums, row: RowName, metric: Metric, m: number): Ratio | undefined {
  if (!isDefined(metric, row)) return undefined
  return { numerator: numeratorAt(sums.rows.indexOf(row), m), denominator: denominatorAt(m) }
}

/** What a bootstrap found, [rows, metrics]. */
interface Table {
  rows: readonly RowName[]
  ratios: readonly (ResampledRatio | undefined)[]
  /** Whether there are clusters enough for intervals. */
  intervals: boolean
  count(metric: number, ratio: ResampledRatio): number
}

function addEncoders(results: Estimates, name: string, table: Table): void {
  const encoders = table.rows.filter((row): row is EncoderName => !isSelector(row))
  const base = (['fine-tuned', 'frozen'] as const).find((encoder) => encoders.includes(encoder))
  const all = METRICS.map((metric) => metric.name)
  results.benchmarks[name] = Object.fromEntries(encoders.map((encoder) => [encoder, estimatesOf(table, all, encoder)]))
  results.differences[name] = Object.fromEntries(
    encoders
      .filter((other) => base !== undefined && other !== base)
      .map((other) => [`${base} - ${other}`, estimatesOf(table, all, base!, other)]),
  )
}

function addSelection(results: Estimates, name: string, table: Table): void {
  const entries = (Object.entries(SELECTION_ROWS) as [SelectionRow, RowName][]).filter(([, row]) =>
    table.rows.includes(row),
  )
  const base = entries.findLast(([selection]) => selection.startsWith('canopy'))
  const wanted = [...SELECTION_METRICS, 'truncated_nodes']
  results.selection[name] = Object.fromEntries(
    entries.map(([selection, row]) => [selection, estimatesOf(table, wanted, row)]),
  )
  results.selectionDifferences[name] = Object.fromEntries(
    entries
      .filter((entry) => base !== undefined && entry !== base)
      .map(([other, row]) => [`${base![0]} - ${other}`, estimatesOf(table, wanted, base![1], row)]),
  )
}

/** The metrics that are defined, of a row, or of its difference to another one. */
function estimatesOf(table: Table, names: readonly string[], row: RowName, other?: RowName): MetricEstimates {
  const estimates: MetricEstimates = {}
  const at = (r: RowName, m: number): ResampledRatio | undefined =>
    table.ratios[table.rows.indexOf(r) * METRICS.length + m]
  for (const name of names) {
    const m = metricIndex(name)
    const metric = METRICS[m]!
    if (!isDefined(metric, row) || (other !== undefined && !isDefined(metric, other))) continue
    const ratio = at(row, m)
    if (ratio === undefined) {
      estimates[name] = { value: null, lo: null, hi: null, n: 0 }
      continue
    }
    const against = other === undefined ? undefined : at(other, m)!
    const interval = table.intervals ? pairedInterval(ratio, against) : undefined
    estimates[name] = {
      value: ratio.value - (against?.value ?? 0),
      lo: interval?.[0] ?? null,
      hi: interval?.[1] ?? null,
      n: table.count(m, ratio),
    }
  }
  return estimates
}

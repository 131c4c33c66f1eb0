import { InputError } from '../support/errors.ts'
import { getOrMake } from './maps.ts'
import { type InstanceSums, METRICS } from './metrics.ts'
import type { RowName } from './scored.ts'

/**
 * Sums of numerators and denominators by benchmark and cluster: all that values and intervals need. Memory is clusters x
 * (rows + 1) x metrics numbers, whatever the number of instances.
 *
 * A cluster has [metrics] denominators followed by [metrics] numerators of each row (encoder or selector).
 */
export interface ClusterSums {
  rows: readonly RowName[]
  benchmarks: Map<string, Map<string, Float64Array>>
}

/** Names that stand for more than one benchmark, or for something else, in the files of results. */
export const RESERVED_BENCHMARKS = [
  'pooled',
  'mean',
  'differences',
  'selection',
  'selection_differences',
  'evaluation',
] as const

export function emptySums(rows: readonly RowName[]): ClusterSums {
  return { rows, benchmarks: new Map() }
}

/** Where a cluster's denominators [metrics] lie, and its numerators of the row in place `row`. */
export const denominatorAt = (metric: number): number => metric
export const numeratorAt = (row: number, metric: number): number => (row + 1) * METRICS.length + metric
export const rowLength = ({ rows }: ClusterSums): number => (rows.length + 1) * METRICS.length

/**
 * Adds what an instance gives. A row that the instance lacks adds nothing.
 *
 * @throws InputError for a benchmark whose name has another meaning in the results
 */
export function addInstance(sums: ClusterSums, benchmark: string, source: string, instance: InstanceSums): void {
  const cluster = clusterOf(sums, benchmark, source)
  addInto(cluster, 0, instance.denominators)
  for (const [r, row] of sums.rows.entries()) {
    const numerators = instance.numerators.get(row)
    if (numerators !== undefined) addInto(cluster, numeratorAt(r, 0), numerators)
  }
}

/** Adds denominators [metrics] that come with no numerators, as those of a question. */
export function addDenominators(
  sums: ClusterSums,
  benchmark: string,
  source: string,
  denominators: Float64Array,
): void {
  addInto(clusterOf(sums, benchmark, source), 0, denominators)
}

function clusterOf(sums: ClusterSums, benchmark: string, source: string): Float64Array {
  if ((RESERVED_BENCHMARKS as readonly string[]).includes(benchmark)) {
    throw new InputError(
      `A benchmark is called "${benchmark}", a name that means something else in the results (${RESERVED_BENCHMARKS.join(', ')}); rename it in the dataset.`,
    )
  }
  const clusters = getOrMake(sums.benchmarks, benchmark, () => new Map<string, Float64Array>())
  return getOrMake(clusters, source, () => new Float64Array(rowLength(sums)))
}

function addInto(cluster: Float64Array, at: number, values: Float64Array): void {
  for (let i = 0; i < values.length; i++) cluster[at + i]! += values[i]!
}

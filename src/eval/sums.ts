import { InputError } from '../support/errors.ts'
import { getOrMake } from './maps.ts'
import { type InstanceSums, METRICS } from './metrics.ts'
import type { EncoderName } from './scored.ts'

/**
 * Sums of numerators and denominators by benchmark and cluster: all that values and intervals need. Memory is clusters x
 * (encoders + 1) x metrics numbers, whatever the number of instances.
 *
 * A row is [metrics] denominators followed by [metrics] numerators of each encoder.
 */
export interface ClusterSums {
  encoders: readonly EncoderName[]
  benchmarks: Map<string, Map<string, Float64Array>>
}

/** Names that stand for more than one benchmark, or for something else, in the files of results. */
export const RESERVED_BENCHMARKS = ['pooled', 'mean', 'differences', 'evaluation'] as const

export function emptySums(encoders: readonly EncoderName[]): ClusterSums {
  return { encoders, benchmarks: new Map() }
}

/** Where the row's denominators [metrics] lie, and its numerators of the encoder in place `encoder`. */
export const denominatorAt = (metric: number): number => metric
export const numeratorAt = (encoder: number, metric: number): number => (encoder + 1) * METRICS.length + metric
export const rowLength = ({ encoders }: ClusterSums): number => (encoders.length + 1) * METRICS.length

/**
 * Adds what an instance gives. An encoder that the instance lacks adds nothing.
 *
 * @throws InputError for a benchmark whose name has another meaning in the results
 */
export function addInstance(sums: ClusterSums, benchmark: string, source: string, instance: InstanceSums): void {
  const row = rowOf(sums, benchmark, source)
  addInto(row, 0, instance.denominators)
  for (const [e, encoder] of sums.encoders.entries()) {
    const numerators = instance.numerators.get(encoder)
    if (numerators !== undefined) addInto(row, numeratorAt(e, 0), numerators)
  }
}

/** Adds denominators [metrics] that come with no numerators, as those of a question. */
export function addDenominators(
  sums: ClusterSums,
  benchmark: string,
  source: string,
  denominators: Float64Array,
): void {
  addInto(rowOf(sums, benchmark, source), 0, denominators)
}

function rowOf(sums: ClusterSums, benchmark: string, source: string): Float64Array {
  if ((RESERVED_BENCHMARKS as readonly string[]).includes(benchmark)) {
    throw new InputError(
      `A benchmark is called "${benchmark}", a name that means something else in the results (${RESERVED_BENCHMARKS.join(', ')}); rename it in the dataset.`,
    )
  }
  const clusters = getOrMake(sums.benchmarks, benchmark, () => new Map<string, Float64Array>())
  return getOrMake(clusters, source, () => new Float64Array(rowLength(sums)))
}

function addInto(row: Float64Array, at: number, values: Float64Array): void {
  for (let i = 0; i < values.length; i++) row[at + i]! += values[i]!
}

import { leafMargins } from '../refine/index.ts'
import type { Estimate, MetricEstimates } from './estimates.ts'
import { resamplingPasses } from './estimates.ts'
import { getOrMake } from './maps.ts'
import { METRICS, metricIndex } from './metrics.ts'
import { bootstrapRatios, clustersOf, pairedInterval, type Ratio } from './ratios.ts'
import { MODEL_ENCODERS, type ModelEncoder, type ScoredInstance, scoreOf, tableRow } from './scored.ts'
import { type ClusterSums, denominatorAt } from './sums.ts'

/** The metrics of a point of the curve; at margin 0 they are those of the table of pruning, to the last digit. */
export const MARGIN_METRICS = [
  'retained_tokens',
  'gold_recall',
  'gold_precision',
  'gold_f1',
  'tokens_all_ratio',
] as const

/** Points of a curve besides margin 0. */
const POINTS = 30

/** What refinement keeps at one margin: a benchmark, an encoder, the metrics with their intervals. */
export interface MarginPoint {
  benchmark: string
  encoder: ModelEncoder
  margin: number
  metrics: MetricEstimates
}

/** By encoder: the margins of a curve, ascending, 0 first. */
export type MarginGrid = Partial<Record<ModelEncoder, readonly number[]>>

/** By encoder: the smallest margin at which refinement keeps a leaf, of every leaf that the curve has something to say of. */
export type LeafMargins = Map<ModelEncoder, number[]>

/** Whether refinement of the item can lose gold: a gold item with a gold leaf and two or more leaves. */
export function countsForRecall({ role, gold, root }: ScoredInstance): boolean {
  return role === 'gold' && root.children.length > 0 && gold.includes(true)
}

/** Adds the leaves of a gold item with two or more leaves; any other item adds nothing. */
export function addLeafMargins(margins: LeafMargins, instance: ScoredInstance): void {
  if (!countsForRecall(instance)) return
  for (const encoder of MODEL_ENCODERS) {
    const scores = instance.scores[encoder]
    if (scores === undefined) continue
    const of = getOrMake(margins, encoder, (): number[] => [])
    for (const margin of leafMargins(instance.root, scoreOf(instance.nodes, scores))) if (margin > 0) of.push(margin)
  }
}

/**
 * The margins at which a curve is drawn: 0; quantiles of the margins at which the leaves that the rule drops come back, so that each
 * step keeps about as many leaves more as the others; and one that drops nothing. Rounded to three digits; the points are exact
 * at the rounded margins.
 *
 * @param also a margin that must be among those of `encoder`
 */
export function marginGrid(leaves: LeafMargins, also?: { encoder: ModelEncoder; margin: number }): MarginGrid {
  const grid: MarginGrid = {}
  for (const [encoder, margins] of leaves) {
    const sorted = Float64Array.from(margins).sort()
    const chosen = new Set([0])
    for (let point = 1; point < POINTS && sorted.length > 0; point++)
      chosen.add(Number(sorted[Math.ceil((point / POINTS) * sorted.length) - 1]!.toPrecision(3)))
    if (sorted.length > 0) chosen.add(atLeast(sorted.at(-1)!, 3))
    if (also?.encoder === encoder) chosen.add(also.margin)
    // Scores near the end of what a number holds may be further apart than it holds.
    grid[encoder] = [...chosen].filter(Number.isFinite).sort((a, b) => a - b)
  }
  return grid
}

/** The smallest number of so many significant digits that is not below `value`, a positive one; the value itself where rounding is in the way. */
export function atLeast(value: number, digits: number): number {
  const nearest = Number(value.toPrecision(digits))
  if (nearest === Number.POSITIVE_INFINITY) return value
  if (nearest >= value) return nearest
  const exponent = Number(value.toExponential().split('e')[1])
  const next = Number((nearest + 10 ** (exponent - digits + 1)).toPrecision(digits))
  return Math.max(next, value)
}

/** What an item of which something is kept adds to the numerators [{@link MARGIN_METRICS}] at each of the margins. */
export function atMargins(instance: ScoredInstance, encoder: ModelEncoder, margins: readonly number[]): Float64Array[] {
  const { root, nodes, gold, leafTokens, headerTokens } = instance
  const scores = instance.scores[encoder]
  if (scores === undefined) throw new RangeError(`Item "${instance.item}" has no scores of the encoder "${encoder}".`)
  const own = leafMargins(root, scoreOf(nodes, scores))
  const order = [...own.keys()].sort((a, b) => own[a]! - own[b]!)
  let whole = headerTokens
  for (let leaf = 0; leaf < own.length; leaf++) whole += leafTokens[leaf]!
  const goldCount = gold.filter(Boolean).length
  const counts = countsForRecall(instance)
  let [at, tokens, kept, hits] = [0, headerTokens, 0, 0]
  return margins.map((margin) => {
    for (; at < order.length && own[order[at]!]! <= margin; at++) {
      tokens += leafTokens[order[at]!]!
      kept++
      if (gold[order[at]!]) hits++
    }
    return Float64Array.of(
      ...(counts
        ? [whole === 0 ? 1 : tokens / whole, hits / goldCount, hits / kept, (2 * hits) / (goldCount + kept)]
        : [0, 0, 0, 0]),
      instance.retrieved ? tokens : 0,
    )
  })
}

/** Numerators by row of the tables, source and encoder: [margins x {@link MARGIN_METRICS}]. */
export interface CurveSums {
  grid: MarginGrid
  rows: Map<string, Map<string, Partial<Record<ModelEncoder, Float64Array>>>>
}

/** Adds up what every instance gives at every margin of its encoders. Memory is sources x encoders x margins. */
export async function sumCurve(instances: AsyncIterable<ScoredInstance>, grid: MarginGrid): Promise<CurveSums> {
  const sums: CurveSums = { grid, rows: new Map() }
  for await (const instance of instances) {
    if (!countsForRecall(instance) && !instance.retrieved) continue
    const sources = getOrMake(sums.rows, tableRow(instance), () => new Map())
    const bySource = getOrMake(sources, instance.source, (): Partial<Record<ModelEncoder, Float64Array>> => ({}))
    for (const encoder of MODEL_ENCODERS) {
      const margins = grid[encoder]
      if (margins === undefined || instance.scores[encoder] === undefined) continue
      bySource[encoder] ??= new Float64Array(margins.length * MARGIN_METRICS.length)
      const into = bySource[encoder]
      for (const [k, values] of atMargins(instance, encoder, margins).entries())
        for (const [m, value] of values.entries()) into[k * MARGIN_METRICS.length + m]! += value
    }
  }
  return sums
}

export interface CurveOptions {
  seed: string
  resamples: number
  available(benchmark: string, encoder: ModelEncoder): boolean
  apart(benchmark: string): boolean
  /** A point whose paired differences to margin 0 are wanted. */
  against?: { encoder: ModelEncoder; margin: number } | undefined
  onProgress?: ((done: number, total: number) => void) | undefined
}

/**
 * Values and 95 % intervals at every margin, for each benchmark, `pooled` and `mean`, on the resamples that the tables are
 * estimated on; and of one margin the paired differences to margin 0, by benchmark.
 */
export function estimateCurve(
  main: ClusterSums,
  { grid, rows }: CurveSums,
  { seed, resamples, available, apart, against, onProgress }: CurveOptions,
): { points: MarginPoint[]; differences: Record<string, MetricEstimates> } {
  const points: MarginPoint[] = []
  const differences: Record<string, MetricEstimates> = {}
  // What the metrics are divided by, and what their `n` counts, is in the sums of the tables already. A column of ones keeps a
  // source that adds to no point of the curve among those that are drawn, as in the tables.
  const counted = MARGIN_METRICS.map((name) => METRICS[metricIndex(name)]!.countedBy ?? name)
  const shared = [...MARGIN_METRICS, ...counted].map((name) => denominatorAt(metricIndex(name)))
  const first = 1 + shared.length
  const passes = resamplingPasses([...main.benchmarks.keys()].sort(), apart)
  const total = passes.length * MODEL_ENCODERS.length * resamples
  for (const [pass, { key, groups, tables }] of passes.entries()) {
    for (const [e, encoder] of MODEL_ENCODERS.entries()) {
      const margins = grid[encoder]
      if (margins === undefined || !groups.every((group) => available(group, encoder))) continue
      const columns = first + margins.length * MARGIN_METRICS.length
      const clusters = clustersOf(
        groups.map((group) => {
          const withColumns = new Map<string, Float64Array>()
          for (const [source, values] of main.benchmarks.get(group)!) {
            if (values.every((value) => value === 0)) continue
            const own = new Float64Array(columns)
            own[0] = 1
            for (const [i, column] of shared.entries()) own[1 + i] = values[column]!
            own.set(rows.get(group)?.get(source)?.[encoder] ?? [], first)
            withColumns.set(source, own)
          }
          return withColumns
        }),
      )
      const { observed, results } = bootstrapRatios(clusters, {
        groups: groups.length,
        columns,
        ratios: margins.flatMap((_, k) =>
          MARGIN_METRICS.map(
            (_, m): Ratio => ({ numerator: first + k * MARGIN_METRICS.length + m, denominator: 1 + m }),
          ),
        ),
        combines: tables.map(({ combine }) => combine),
        resamples,
        seed: `${seed}/bootstrap/${key}`,
        onResample: (resample) => {
          if (resample % 500 === 0) onProgress?.((pass * MODEL_ENCODERS.length + e) * resamples + resample, total)
        },
      })
      for (const [t, { name, combine }] of tables.entries()) {
        const at = (k: number, other?: number): MetricEstimates =>
          Object.fromEntries(
            MARGIN_METRICS.map((metric, m): [string, Estimate] => {
              const ratio = results[t]![k * MARGIN_METRICS.length + m]
              if (ratio === undefined) return [metric, { value: null, lo: null, hi: null, n: 0 }]
              const base = other === undefined ? undefined : results[t]![other * MARGIN_METRICS.length + m]!
              const interval = clusters.length > 1 ? pairedInterval(ratio, base) : undefined
              const column = 1 + MARGIN_METRICS.length + m
              const n =
                combine === 'mean'
                  ? ratio.present.length
                  : groups.reduce((sum, _, group) => sum + observed[group * columns + column]!, 0)
              return [
                metric,
                { value: ratio.value - (base?.value ?? 0), lo: interval?.[0] ?? null, hi: interval?.[1] ?? null, n },
              ]
            }),
          )
        for (const [k, margin] of margins.entries()) points.push({ benchmark: name, encoder, margin, metrics: at(k) })
        if (against?.encoder === encoder) differences[name] = at(margins.indexOf(against.margin), 0)
      }
    }
  }
  onProgress?.(total, total)
  // One encoder at a time was resampled; tables have all encoders of a benchmark together.
  const place = new Map(passes.flatMap(({ tables }) => tables).map(({ name }, i) => [name, i]))
  points.sort((a, b) => place.get(a.benchmark)! - place.get(b.benchmark)!)
  return { points, differences }
}

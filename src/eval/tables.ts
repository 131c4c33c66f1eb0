import { stringify } from 'csv-stringify/sync'
import type { Estimate, Estimates, MetricEstimates } from './estimates.ts'
import type { Evaluation } from './evaluation.ts'
import { percent, textTable, tokens, withInterval } from './format.ts'
import { METRICS, SELECTION_METRICS } from './metrics.ts'
import { ENCODERS } from './scored.ts'
import { SELECTION_ROWS, type SelectionRow } from './selection.ts'

/**
 * A table as comma-separated values: `benchmark,encoder,n`, then every metric with its `_lo` and `_hi`; empty where undefined. The
 * share of truncated nodes stands in each.
 */
export function csvTable(estimates: Estimates, table: 'decisions' | 'pruning'): string {
  const metrics = METRICS.filter((metric) => metric.table === table || metric.name === 'truncated_nodes')
  const counter = table === 'decisions' ? 'decision_accuracy' : 'pruned_item_rate'
  const rows = eachRow(estimates.benchmarks, ENCODERS)
  return csv(
    rows,
    metrics.map(({ name }) => name),
    counter,
  )
}

/** The selection table in the same form: its rows stand in the column `encoder`, `n` counts gold items with two or more leaves. */
export function selectionCsv({ selection }: Estimates): string {
  return csv(eachRow(selection, SELECTION_NAMES), [...SELECTION_METRICS, 'truncated_nodes'], 'gold_recall')
}

function csv(rows: readonly Row<string>[], metrics: readonly string[], counter: string): string {
  const header = ['benchmark', 'encoder', 'n', ...metrics.flatMap((name) => [name, `${name}_lo`, `${name}_hi`])]
  const lines = rows.map(({ benchmark, encoder, metrics: values }) => [
    benchmark,
    encoder,
    values[counter]?.n ?? 0,
    ...metrics.flatMap((name) => {
      const estimate = values[name]
      return [estimate?.value, estimate?.lo, estimate?.hi].map((x) => (x === null || x === undefined ? '' : String(x)))
    }),
  ])
  return stringify([header, ...lines])
}

/**
 * `metrics.json`: benchmark -> encoder -> metric -> `{value, lo, hi, n}`, and beside the benchmarks (`pooled` and `mean` among
 * them) `differences` (benchmark -> "a - b" -> metric), `selection` (benchmark -> row of the selection table -> metric),
 * `selection_differences` and `evaluation` (settings, hashes, counts, levels).
 */
export function metricsJson(estimates: Estimates, evaluation: Evaluation): string {
  const value = {
    ...estimates.benchmarks,
    differences: estimates.differences,
    selection: estimates.selection,
    selection_differences: estimates.selectionDifferences,
    evaluation,
  }
  return `${JSON.stringify(value, null, 2)}\n`
}

/** The main numbers with their controls, then the selection table, for a terminal: plain text columns. */
export function terminalTable(estimates: Estimates, { selectedBy }: Pick<Evaluation, 'selectedBy'>): string {
  const shown = shownBenchmarks(estimates)
  const columns = [
    'edge_accuracy',
    'pruned_item_rate',
    'dropped_item_rate',
    'retained_tokens',
    'gold_recall',
    'gold_f1',
    'truncated_nodes',
  ]
  const main = textTable(
    [
      ...['benchmark', 'encoder', 'n', 'decision accuracy', 'edge', 'pruned', 'dropped', 'tokens', 'recall', 'F1'],
      'truncated',
    ],
    eachRow(estimates.benchmarks, ENCODERS, shown).map(({ benchmark, encoder, metrics }) => [
      benchmark,
      encoder,
      String(metrics.decision_accuracy?.n ?? 0),
      withInterval(metrics.decision_accuracy),
      ...columns.map((name) => percent(metrics[name]?.value)),
    ]),
  )
  const verdicts = shown.map((name) => verdictOf(estimates, name, `${name}: `)).filter((text) => text !== undefined)
  const selection = textTable(
    ['benchmark', 'selection', 'items', 'tokens kept', 'of the item', 'recall', 'precision', 'F1'],
    eachRow(estimates.selection, SELECTION_NAMES, shown).map(({ benchmark, encoder, metrics }) => [
      benchmark,
      encoder,
      String(metrics.gold_recall?.n ?? 0),
      tokens(metrics.kept_tokens),
      ...['retained_tokens', 'gold_recall', 'gold_precision', 'gold_f1'].map((name) => withInterval(metrics[name])),
    ]),
  )
  return [main, ...verdicts, '', selection, `The flat selectors use the ${selectedBy} scores.`].join('\n')
}

/** The benchmarks that a table shows: with one alone, pooled and mean repeat it. */
export function shownBenchmarks({ benchmarks }: { benchmarks: Record<string, unknown> }): string[] {
  const names = Object.keys(benchmarks)
  const own = names.filter((name) => name !== 'pooled' && name !== 'mean')
  return own.length > 1 ? names : own
}

/** A line of a table. */
export interface Row<Name extends string> {
  benchmark: string
  encoder: Name
  metrics: MetricEstimates
}

/** The rows that there are, benchmark by benchmark, in the order of `names`. */
export function eachRow<Name extends string>(
  table: Record<string, Partial<Record<Name, MetricEstimates>>>,
  names: readonly Name[],
  benchmarks: readonly string[] = Object.keys(table),
): Row<Name>[] {
  return benchmarks.flatMap((benchmark) =>
    names.flatMap((encoder): Row<Name>[] => {
      const metrics = table[benchmark]?.[encoder]
      return metrics === undefined ? [] : [{ benchmark, encoder, metrics }]
    }),
  )
}

export const SELECTION_NAMES = Object.keys(SELECTION_ROWS) as SelectionRow[]

/** Whether the fine-tuned encoder's paired intervals lie above the controls that an encoder has to beat; where not, why not. */
export function verdictOf(
  { differences: all, clusters }: Pick<Estimates, 'differences' | 'clusters'>,
  name: string,
  prefix = '',
): string | undefined {
  const differences = all[name]
  if (differences === undefined || !Object.keys(differences).some((pair) => pair.startsWith('fine-tuned')))
    return undefined
  const failed = ['always-left', 'permuted'].flatMap((control) => {
    const why = whyNotAbove(differences[`fine-tuned - ${control}`]?.decision_accuracy, clusters[name])
    return why === undefined ? [] : [{ control, why }]
  })
  const [first] = failed
  if (first === undefined)
    return `${prefix}fine-tuned lies above always-left and above permuted: the paired intervals exclude 0.`
  const above = failed.every(({ why }) => why === first.why)
    ? `${failed.map(({ control }) => control).join(' and ')} (${first.why})`
    : failed.map(({ control, why }) => `${control} (${why})`).join(' and ')
  return `${prefix}fine-tuned is not shown to lie above ${above}.`
}

/** Why a paired difference is not shown to be above 0; undefined where it is. */
function whyNotAbove(difference: Estimate | undefined, sources: number | undefined): string | undefined {
  if (difference === undefined || difference.value === null) return 'not measured'
  const { lo, hi } = difference
  if (lo === null || hi === null)
    return sources === 1 ? 'all questions share one source, so there is no interval' : 'there is no interval'
  if (lo > 0) return undefined
  return hi < 0 ? 'the paired interval lies below 0' : 'the paired interval reaches 0'
}

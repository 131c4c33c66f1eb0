import { stringify } from 'csv-stringify/sync'
import type { Compared, Comparison } from './compare.ts'
import { markdownTable, percent, textTable, tokens } from './format.ts'
import { METRICS, type Metric, metricIndex } from './metrics.ts'
import type { CheckedRequirement } from './requirements.ts'
import { shownBenchmarks } from './tables.ts'

/** Metrics of which the verdict speaks, and how it calls them. */
const VERDICT_METRICS: Record<string, string> = {
  decision_accuracy: 'decision accuracy',
  edge_accuracy: 'edge accuracy',
  gold_recall: 'gold recall',
  gold_precision: 'gold precision',
  gold_f1: 'gold F1',
  retained_tokens: 'tokens kept',
}

/** What stands in tables for people; files have every metric. */
const SHOWN = [...Object.keys(VERDICT_METRICS), 'pruned_item_rate', 'dropped_item_rate', 'tokens_all']

/**
 * What the intervals of one benchmark say, in words: where B is better, where it is worse, and where nobody can tell. An interval
 * that holds 0 shows no difference. Of trees of different branching it does not judge decisions: they are not the same ones.
 */
export function verdictOn({ a, b, benchmarks }: Comparison, name: string): string {
  const all = Object.keys(VERDICT_METRICS).flatMap((key) => {
    const metric = METRICS[metricIndex(key)]!
    const found = benchmarks[name]?.[key]
    const comparable = a.branching === b.branching || metric.table !== 'decisions'
    return found === undefined || !comparable ? [] : [{ metric, found }]
  })
  if (all.length > 0 && all.every(({ found }) => found.difference === 0 && found.lo === 0 && found.hi === 0)) {
    return 'There is no difference at all: every figure is the same.'
  }
  const better: string[] = []
  const worse: string[] = []
  const open: string[] = []
  for (const { metric, found } of all) {
    const { lo, hi } = found
    const label = VERDICT_METRICS[metric.name]!
    if (lo === null || hi === null || (lo <= 0 && hi >= 0)) open.push(label)
    else (lo > 0 === (metric.better === 'higher') ? better : worse).push(`${label} by ${size(metric, found)}`)
  }
  const parts = [
    better.length === 0 ? undefined : `B is better on ${list(better)}`,
    worse.length === 0 ? undefined : `${better.length === 0 ? 'B is ' : ''}worse on ${list(worse)}`,
    open.length === 0 ? undefined : `no difference can be told on ${list(open)}`,
  ].filter((part) => part !== undefined)
  const text = parts.join('; ')
  return text === '' ? 'There is nothing to compare.' : `${text[0]!.toUpperCase()}${text.slice(1)}.`
}

/** `2.1 points [0.4, 3.8]`, without signs; fewer or more, where fewer is better. */
function size({ better }: Metric, { difference, lo, hi }: Compared): string {
  const ends = [Math.abs(lo!), Math.abs(hi!)].sort((a, b) => a - b).map((end) => percent(end))
  const direction = better === 'higher' ? '' : difference < 0 ? ' fewer' : ' more'
  return `${percent(Math.abs(difference))} points${direction} [${ends.join(', ')}]`
}

function list(parts: readonly string[]): string {
  return parts.length < 2 ? parts.join() : `${parts.slice(0, -1).join(', ')} and ${parts.at(-1)}`
}

const HEADER = ['benchmark', 'metric', 'n', 'A', 'B', 'B − A']

function rows(comparison: Comparison, all: boolean): string[][] {
  return shownBenchmarks(comparison).flatMap((benchmark) =>
    METRICS.filter(({ name }) => all || SHOWN.includes(name)).flatMap((metric): string[][] => {
      const found = comparison.benchmarks[benchmark]![metric.name]
      if (found === undefined) return []
      const { a, b, difference: value, lo, hi, n } = found
      const show = (x: number): string => (metric.unit === 'share' ? percent(x) : x.toFixed(1))
      const gap =
        metric.unit === 'tokens'
          ? tokens({ value, lo, hi, n }, true)
          : `${percent(value, true)}${lo === null ? '' : ` [${percent(lo, true)}, ${percent(hi, true)}]`}`
      return [[benchmark, metric.name, String(n), show(a), show(b), gap]]
    }),
  )
}

const sideLine = (letter: string, { name, row, folder }: Comparison['a']): string =>
  `${letter}: ${name === row ? row : `${row} of ${name}`} (${folder})`

function verdictLines(comparison: Comparison): string[] {
  return shownBenchmarks(comparison).map((name) => `${name}: ${verdictOn(comparison, name)}`)
}

function requirementLine({ text, benchmark, measured, met }: CheckedRequirement): string {
  const found = measured === null ? 'no interval' : measured.toFixed(2)
  return `${met ? 'met' : 'UNMET'}: ${text} (${benchmark}: ${found})`
}

const apartNote = ({ apart }: Comparison): string[] =>
  apart.length === 0 ? [] : [`Shown apart, and in no pooled figure and no mean: ${apart.join(', ')}`]

/** The comparison for a terminal: the main metrics, the verdicts, the requirements. */
export function comparisonText(comparison: Comparison, checked: readonly CheckedRequirement[]): string {
  return [
    sideLine('A', comparison.a),
    sideLine('B', comparison.b),
    '',
    textTable(HEADER, rows(comparison, false)),
    '',
    ...verdictLines(comparison),
    ...[...apartNote(comparison), ...comparison.notes].map((note) => `${note}.`),
    ...checked.map(requirementLine),
  ].join('\n')
}

/** The comparison in Markdown, with every metric. */
export function comparisonMarkdown(comparison: Comparison, checked: readonly CheckedRequirement[]): string {
  const { split, instances, resamples, seed } = comparison
  const parts = [
    '# Comparison of two evaluations',
    [
      ...[sideLine('A', comparison.a), sideLine('B', comparison.b)],
      `Split \`${split}\`, ${instances.compared} items of questions`,
      `Differences are B − A, paired, in points (or tokens); 95 % percentile bootstrap, ${resamples} resamples of sources (seed ${seed})`,
      ...[...apartNote(comparison), ...comparison.notes],
    ]
      .map((line) => `- ${line}`)
      .join('\n'),
    '## Verdict',
    verdictLines(comparison)
      .map((line) => `- ${line}`)
      .join('\n'),
    '## Every metric',
    markdownTable(HEADER, rows(comparison, true)),
  ]
  if (checked.length > 0) {
    parts.push('## Requirements', checked.map((one) => `- ${requirementLine(one)}`).join('\n'))
  }
  return `${parts.join('\n\n')}\n`
}

/** `benchmark,metric,n,a,b,difference,difference_lo,difference_hi`, shares as shares. */
export function comparisonCsv({ benchmarks }: Comparison): string {
  const lines = Object.entries(benchmarks).flatMap(([benchmark, metrics]) =>
    Object.entries(metrics).map(([metric, { n, a, b, difference, lo, hi }]) => [
      ...[benchmark, metric, n, a, b, difference].map(String),
      ...[lo, hi].map((end) => (end === null ? '' : String(end))),
    ]),
  )
  return stringify([['benchmark', 'metric', 'n', 'a', 'b', 'difference', 'difference_lo', 'difference_hi'], ...lines])
}

/** The comparison, its verdicts and its requirements as one JSON document. */
export function comparisonJson(comparison: Comparison, checked: readonly CheckedRequirement[]): string {
  const verdicts = Object.fromEntries(
    Object.keys(comparison.benchmarks).map((name) => [name, verdictOn(comparison, name)]),
  )
  return `${JSON.stringify({ ...comparison, verdicts, requirements: checked }, null, 2)}\n`
}

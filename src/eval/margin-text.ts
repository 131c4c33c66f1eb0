import { stringify } from 'csv-stringify/sync'
import type { Estimate, Estimates, MetricEstimates } from './estimates.ts'
import type { Evaluation } from './evaluation.ts'
import { markdownTable, percent, textTable, withInterval } from './format.ts'
import type { MarginChoice } from './margin-choice.ts'
import { MARGIN_METRICS, type MarginPoint } from './margin-curve.ts'
import { shownBenchmarks } from './tables.ts'

/** Name of the file in a folder of results that has what refinement keeps at every margin of the curve. */
export const MARGINS_FILE = 'margins.csv'

/** A margin that is measured beside margin 0, and where it comes from. */
export interface MeasuredMargin {
  margin: number
  /** Whose scores it belongs to. */
  encoder: 'fine-tuned' | 'frozen'
  /** Stated by the user, taken from the encoder's canopy.json, or picked on validation data. */
  origin: 'stated' | 'canopy.json' | 'validation'
  /** The recall that was asked for on validation. */
  minRecall?: number
  validation?: { name: string } & Omit<MarginChoice, 'margin'>
  /** On the evaluated split, by benchmark: the metrics at this margin, */
  results: Record<string, MetricEstimates>
  /** and their paired differences to margin 0. */
  differences: Record<string, MetricEstimates>
}

/**
 * The curve as comma-separated values: `benchmark,encoder,n,margin`, then every metric with its `_lo` and `_hi`, then `chosen`,
 * which is 1 at the margin that was picked or stated and 0 elsewhere; `n` counts gold items with two or more leaves.
 */
export function marginsCsv(points: readonly MarginPoint[], measured: MeasuredMargin | undefined): string {
  const header = ['benchmark', 'encoder', 'n', 'margin', ...MARGIN_METRICS.flatMap((m) => [m, `${m}_lo`, `${m}_hi`])]
  const rows = points.map(({ benchmark, encoder, margin, metrics }) => [
    benchmark,
    encoder,
    metrics.gold_recall?.n ?? 0,
    String(margin),
    ...MARGIN_METRICS.flatMap((name) => {
      const { value, lo, hi } = metrics[name] as Estimate
      return [value, lo, hi].map((x) => (x === null ? '' : String(x)))
    }),
    measured?.encoder === encoder && measured.margin === margin ? 1 : 0,
  ])
  return stringify([[...header, 'chosen'], ...rows])
}

/** Where the margin comes from and what it does, in sentences; the last one says so where the split falls short of the recall asked for. */
export function marginSentences(measured: MeasuredMargin, split: string): string[] {
  const { margin, encoder, origin, minRecall, validation } = measured
  const sentences: string[] = []
  if (validation === undefined) {
    sentences.push(
      `Margin ${margin} of the ${encoder} scores, ${origin === 'stated' ? 'as stated' : "from the encoder's canopy.json"}, beside margin 0.`,
    )
  } else {
    const { name, items, sources, rows, rule, chosen } = validation
    const of =
      Object.keys(rows).length > 1
        ? ` (${Object.entries(rows)
            .map(([row, n]) => `${row} ${n}`)
            .join(', ')})`
        : ''
    const before = margin === 0 ? 'margin 0, the rule, reaches it already' : `at margin 0 ${shares(rule)}`
    sentences.push(
      `Margin ${margin}: the smallest with a gold recall of at least ${percent(minRecall)} % by the ${encoder} scores on ${items} gold items of ${sources} sources of ${name}${of}: ${shares(chosen)}; ${before}.`,
    )
  }
  const reached = overall(measured.results)?.gold_recall
  // Shares as thirds add up to a whole number but for rounding.
  const least = (minRecall ?? 0) * (1 - 1e-12)
  if (minRecall !== undefined && reached?.value !== null && reached !== undefined && reached.value < least) {
    const reaches = reached.hi !== null && reached.hi >= least
    const interval = reached.hi === null ? '' : `; the interval ${reaches ? 'reaches' : 'does not reach'} it`
    sentences.push(
      `On ${split} the recall, ${withInterval(reached)} %, falls short of the ${percent(minRecall)} % asked for${interval}.`,
    )
  }
  return sentences
}

/**
 * How a program and the commands use the margin.
 *
 * @param code marks what is code
 */
export function marginUse({ margin }: MeasuredMargin, code = (text: string): string => text): string {
  const uses = [
    `canopy export … --margin ${margin}`,
    `openEncoder(folder, { margin: ${margin} })`,
    `canopy refine … --margin ${margin}`,
    `refine(root, score, { margin: ${margin} })`,
  ].map(code)
  return `To use it: ${uses.slice(0, -1).join(', ')} or ${uses.at(-1)}.`
}

const shares = ({ gold_recall, retained_tokens }: MarginChoice['rule']): string =>
  `recall ${percent(gold_recall)} %, tokens kept ${percent(retained_tokens)} %`

/** What stands for everything that was evaluated: the pool, or the one benchmark that there is. */
const overall = (results: Record<string, MetricEstimates>): MetricEstimates | undefined =>
  results.pooled ?? Object.values(results)[0]

const HEADER = ['recall', 'precision', 'F1', 'tokens kept', 'of all retrieved items']
const COLUMNS = ['gold_recall', 'gold_precision', 'gold_f1', 'retained_tokens', 'tokens_all_ratio']
const cells = (metrics: MetricEstimates | undefined, plus = false): string[] =>
  COLUMNS.map((name) => withInterval(metrics?.[name], plus))

/** The benchmarks of a table of margins; their mean stands in the file. */
const benchmarksOf = (estimates: Estimates): string[] => shownBenchmarks(estimates).filter((name) => name !== 'mean')

/** A table without the last column where it has nothing in it: it is not known what was retrieved. */
function table(rows: readonly string[][], draw: (header: string[], rows: string[][]) => string): string {
  const columns = 2 + HEADER.length - (rows.every((row) => row.at(-1) === '–') ? 1 : 0)
  return draw(
    ['benchmark', 'margin', ...HEADER].slice(0, columns),
    rows.map((row) => row.slice(0, columns)),
  )
}

/** Rows of the split at margin 0, at the measured margin, and their paired difference, benchmark by benchmark. */
function measuredRows(estimates: Estimates, { margin, encoder, results, differences }: MeasuredMargin): string[][] {
  return benchmarksOf(estimates).flatMap((benchmark) => {
    const [rule, chosen] = [estimates.benchmarks[benchmark]?.[encoder], results[benchmark]]
    if (rule === undefined || chosen === undefined) return []
    const rows = [[benchmark, '0', ...cells(rule)]]
    if (margin !== 0)
      rows.push(
        [benchmark, String(margin), ...cells(chosen)],
        [benchmark, 'difference', ...cells(differences[benchmark], true)],
      )
    return rows
  })
}

/** The measured margin for a terminal. */
export function marginText(
  estimates: Estimates,
  { margin, split }: Pick<Evaluation, 'margin' | 'split'>,
): string | undefined {
  if (margin === undefined) return undefined
  const [where, ...short] = marginSentences(margin, split)
  return [where, table(measuredRows(estimates, margin), textTable), ...short, marginUse(margin)].join('\n')
}

/** Points of the curve that a summary shows. */
const SHOWN = 6

/** The part of a summary that is about margins. */
export function marginMarkdown(
  estimates: Estimates,
  { margin: measured, split, selectedBy }: Pick<Evaluation, 'margin' | 'split' | 'selectedBy'>,
  points: readonly MarginPoint[],
): string[] {
  const parts = [
    '## Margins',
    `With a margin m, refinement goes into a child that scores at most m below its parent, too, where a child scores as high as the parent: more tokens, more recall, nothing that is kept without it lost. Gold items with two or more leaves; the last column is the share of the tokens of all retrieved items, where those are known. All points with intervals: ${MARGINS_FILE}. A margin belongs to the encoder whose scores it was picked for.`,
  ]
  if (measured !== undefined) {
    const [where, ...short] = marginSentences(measured, split)
    parts.push(where!)
    parts.push(table(measuredRows(estimates, measured), markdownTable))
    parts.push(
      ...short,
      marginUse(measured, (text) => `\`${text}\``),
    )
  }
  const rows = benchmarksOf(estimates).flatMap((benchmark) => {
    const own = points.filter((point) => point.benchmark === benchmark && point.encoder === selectedBy)
    const shown = new Set(Array.from({ length: SHOWN }, (_, i) => Math.round((i / (SHOWN - 1)) * (own.length - 1))))
    return own
      .filter((_, i) => shown.has(i))
      .map(({ margin, metrics }) => [benchmark, String(margin), ...cells(metrics)])
  })
  if (rows.length > 0) {
    parts.push(
      `The curve of the ${selectedBy} scores on this split, some of its points. To use a margin, pick it on validation data (\`--min-recall\`), not here.`,
    )
    parts.push(table(rows, markdownTable))
  }
  return parts
}

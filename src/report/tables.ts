import { ENCODERS, type Estimate, type MetricEstimates, SELECTION_ROWS, type SelectionRow } from '../eval/index.ts'
import { benchmarkTitle, type ReportEvaluation, shownBenchmarks } from './evaluation.ts'
import { type Html, html } from './html.ts'

const DASH = html`<span class="none">–</span>`

/** The tables of an evaluation: decisions, pruning, selection, and what was counted. */
export function resultTables(evaluation: ReportEvaluation): Html {
  const { estimates } = evaluation
  const shown = shownBenchmarks(evaluation)
  const encoderRows = (columns: Column[], filter: (metrics: MetricEstimates) => boolean = () => true): TableRow[] =>
    shown.flatMap((benchmark) =>
      ENCODERS.flatMap((encoder) => {
        const metrics = estimates.benchmarks[benchmark]?.[encoder]
        return metrics === undefined || !filter(metrics)
          ? []
          : [{ benchmark, name: encoder, cells: columns.map((c) => c.cell(metrics)) }]
      }),
    )
  const differenceRows = (table: Record<string, Record<string, MetricEstimates>>, columns: Column[]): TableRow[] =>
    shown.flatMap((benchmark) =>
      Object.entries(table[benchmark] ?? {}).map(([pair, metrics]) => ({
        benchmark,
        name: pair.replace(' - ', ' − '),
        cells: columns.map((c) => c.difference(metrics)),
      })),
    )
  const selectionRows = shown.flatMap((benchmark) =>
    (Object.keys(SELECTION_ROWS) as SelectionRow[]).flatMap((name) => {
      const metrics = estimates.selection[benchmark]?.[name]
      return metrics === undefined ? [] : [{ benchmark, name, cells: SELECTION.map((c) => c.cell(metrics)) }]
    }),
  )
  const { margin } = evaluation.evaluation
  const marginRows = shown.flatMap((benchmark) => {
    const rule = margin && estimates.benchmarks[benchmark]?.[margin.encoder]
    const measured = margin?.results[benchmark]
    const difference = margin?.differences[benchmark]
    if (rule === undefined || measured === undefined || difference === undefined) return []
    return [
      { benchmark, name: 'margin 0', cells: MARGIN.map((c) => c.cell(rule)) },
      { benchmark, name: `margin ${margin!.margin}`, cells: MARGIN.map((c) => c.cell(measured)) },
      { benchmark, name: 'difference', cells: MARGIN.map((c) => c.difference(difference)) },
    ]
  })
  const questionRows = encoderRows(PER_QUESTION, (metrics) => (metrics.tokens_all?.n ?? 0) > 0)
  return html`
    ${table('Decisions', 'Decision accuracy, overall and by where the gold lies below the node; %.', DECISIONS, encoderRows(DECISIONS))}
    ${table('Paired differences of decisions', 'In points, with 95 % intervals.', DECISION_DIFFERENCES, differenceRows(estimates.differences, DECISION_DIFFERENCES))}
    ${table('Pruning', 'Gold items with two or more leaves; %.', PRUNING, encoderRows(PRUNING))}
    ${table('Margin', `What the ${margin?.encoder} scores keep at the margin that was picked or stated, beside the rule; %, differences in points.`, MARGIN, marginRows)}
    ${table('Tokens per question', 'Kept on the gold items, on other retrieved items and on both.', PER_QUESTION, questionRows)}
    ${table('Selection of evidence', 'The same gold items; tokens kept are a mean per item, the rest %.', SELECTION, selectionRows)}
    ${table('Paired differences of selection', 'In tokens or points, with 95 % intervals.', SELECTION, differenceRows(estimates.selectionDifferences, SELECTION))}
    ${countsTable(evaluation)}`
}

interface Column {
  title: string
  cell(metrics: MetricEstimates): Html
  difference(metrics: MetricEstimates): Html
}

interface TableRow {
  benchmark: string
  name: string
  cells: Html[]
}

const share = (title: string, name: string): Column => ({
  title,
  cell: (metrics) => estimateCell(metrics[name], (value) => (100 * value).toFixed(1)),
  difference: (metrics) => estimateCell(metrics[name], (value) => plus(100 * value)),
})
const tokens = (title: string, name: string): Column => ({
  title,
  cell: (metrics) => estimateCell(metrics[name], (value) => value.toFixed(1)),
  difference: (metrics) => estimateCell(metrics[name], plus),
})
const count = (title: string, name: string): Column => {
  const cell = (metrics: MetricEstimates): Html => html`${metrics[name]?.n ?? 0}`
  return { title, cell, difference: cell }
}
const minus = (text: string): string => text.replace('-', '−')
const plus = (value: number): string => minus(`${value > 0 ? '+' : ''}${value.toFixed(1)}`)

/** A number and, below it, its interval. */
export function estimateCell(estimate: Estimate | undefined, format: (value: number) => string): Html {
  if (estimate?.value === undefined || estimate.value === null) return DASH
  const { value, lo, hi } = estimate
  const interval = lo === null || hi === null ? '' : html` <small>${minus(format(lo))} to ${minus(format(hi))}</small>`
  return html`${minus(format(value))}${interval}`
}

const DECISIONS = [
  count('decisions', 'decision_accuracy'),
  share('decision accuracy', 'decision_accuracy'),
  ...['left', 'right', 'both', 'full'].map((c) => share(`gold ${c}`, `decision_accuracy_${c}`)),
  share('edge accuracy', 'edge_accuracy'),
  share('pair accuracy', 'pair_accuracy'),
  share('truncated nodes', 'truncated_nodes'),
]
const DECISION_DIFFERENCES = [
  share('decision accuracy', 'decision_accuracy'),
  share('edge accuracy', 'edge_accuracy'),
  share('recall', 'gold_recall'),
  share('F1', 'gold_f1'),
  share('tokens kept', 'retained_tokens'),
]
const AGREEMENT = [share('recall', 'gold_recall'), share('precision', 'gold_precision'), share('F1', 'gold_f1')]
const PRUNING = [
  share('pruned', 'pruned_item_rate'),
  share('dropped', 'dropped_item_rate'),
  share('tokens kept', 'retained_tokens'),
  ...AGREEMENT,
  share('truncated nodes', 'truncated_nodes'),
]
const MARGIN = [
  ...AGREEMENT,
  share('tokens kept', 'retained_tokens'),
  share('of all retrieved items', 'tokens_all_ratio'),
]
const PER_QUESTION = [
  count('questions', 'tokens_all'),
  tokens('gold items', 'tokens_gold'),
  tokens('other items', 'tokens_other'),
  tokens('all', 'tokens_all'),
  share('share of all', 'tokens_all_ratio'),
  share('truncated nodes', 'truncated_nodes'),
]
const SELECTION = [
  count('items', 'gold_recall'),
  tokens('tokens kept', 'kept_tokens'),
  share('share kept', 'retained_tokens'),
  ...AGREEMENT,
  share('truncated nodes', 'truncated_nodes'),
]

/** A table that scrolls sideways by itself where the page is narrow; columns without any value are left out. */
function table(title: string, explanation: string, columns: readonly Column[], rows: readonly TableRow[]): Html {
  if (rows.length === 0) return html``
  const kept = columns.map((_, i) => rows.some((row) => row.cells[i] !== DASH))
  const head = columns.filter((_, i) => kept[i]).map((column) => html`<th scope="col">${column.title}</th>`)
  const line = (row: TableRow): Html =>
    html`<tr><th scope="row">${row.name}</th>${row.cells.filter((_, i) => kept[i]).map((cell) => html`<td>${cell}</td>`)}</tr>`
  const groups = [...new Set(rows.map(({ benchmark }) => benchmark))].map(
    (benchmark) => html`<tbody>
<tr class="group"><th scope="rowgroup" colspan="${head.length + 1}"><span>${benchmarkTitle(benchmark)}</span></th></tr>
${rows.filter((row) => row.benchmark === benchmark).map(line)}</tbody>`,
  )
  return scrollingTable(
    title,
    html`<p>${explanation}</p>`,
    html`<thead><tr><th scope="col"></th>${head}</tr></thead>${groups}`,
  )
}

/** A table under its heading. */
export function scrollingTable(title: string, explanation: Html, content: Html): Html {
  return html`<section class="table">
    <h3>${title}</h3>
    ${explanation}
    <div class="scroll" tabindex="0" role="region" aria-label="${title}"><table>${content}</table></div>
  </section>`
}

const COUNTS: Record<string, string> = {
  questions: 'questions',
  questionsWithRetrieved: 'with known retrieved items',
  goldItems: 'gold items',
  oneLeafItems: 'with one leaf (nothing to decide)',
  itemsWithoutGold: 'without a gold leaf (not measured)',
  droppedAnnotations: 'annotations without a place (dropped)',
  otherItems: 'other retrieved items',
  goldItemsNotText: 'gold images and videos left out',
  otherItemsNotText: 'other images and videos left out',
  goldItemsUnreadable: 'gold images and videos whose file cannot be read',
  otherItemsUnreadable: 'other images and videos whose file cannot be read',
  decisionNodes: 'decision nodes',
  droppedPairs: 'pairs of equal token sequences (dropped)',
  nodes: 'nodes of gold items',
  truncatedNodes: 'truncated nodes of gold items',
}

function countsTable({ evaluation }: ReportEvaluation): Html {
  const { counts } = evaluation
  const benchmarks = Object.keys(counts)
  const rows = Object.entries(COUNTS).flatMap(([key, name]) => {
    const values = benchmarks.map((benchmark) => (counts[benchmark] as unknown as Record<string, number>)[key])
    return values.every((value) => value === undefined)
      ? []
      : [html`<tr><th scope="row">${name}</th>${values.map((value) => html`<td>${value ?? DASH}</td>`)}</tr>`]
  })
  return scrollingTable(
    'Counts',
    html``,
    html`<thead><tr><th scope="col"></th>${benchmarks.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead><tbody>${rows}</tbody>`,
  )
}

/** Frozen against fine-tuned by benchmark, and whether the controls are beaten: what a reader wants to know first. */
export function overview(evaluation: ReportEvaluation): Html {
  const { estimates } = evaluation
  const points = (value: number): string => (100 * value).toFixed(1)
  const rows = shownBenchmarks(evaluation).flatMap((benchmark) => {
    const of = estimates.benchmarks[benchmark]
    if (of === undefined) return []
    const difference = (other: string): Html =>
      estimateCell(estimates.differences[benchmark]?.[`fine-tuned - ${other}`]?.decision_accuracy, (v) => plus(100 * v))
    const main = of['fine-tuned'] ?? of.frozen
    return [
      html`<tr><th scope="row">${benchmarkTitle(benchmark)}</th>
        <td>${estimateCell(of.frozen?.decision_accuracy, points)}</td>
        <td class="strong">${estimateCell(of['fine-tuned']?.decision_accuracy, points)}</td>
        <td>${difference('frozen')}</td><td>${difference('always-left')}</td><td>${difference('permuted')}</td>
        <td>${estimateCell(main?.gold_recall, points)}</td><td>${estimateCell(main?.retained_tokens, points)}</td></tr>`,
    ]
  })
  if (rows.length === 0) return html``
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Overview"><table class="overview">
    <thead>
      <tr><td></td><th colspan="2" scope="colgroup">decision accuracy, %</th><th colspan="3" scope="colgroup">fine-tuned, in points above</th><th colspan="2" scope="colgroup">kept, %</th></tr>
      <tr><th scope="col">benchmark</th><th scope="col">frozen</th><th scope="col">fine-tuned</th><th scope="col">frozen</th><th scope="col">always-left</th><th scope="col">permuted</th><th scope="col">gold (recall)</th><th scope="col">tokens</th></tr>
    </thead>
    <tbody>${rows}</tbody></table></div>`
}

import { stringify } from 'csv-stringify/sync'
import type { TableFormatName } from '../hierarchy/index.ts'
import { DECISION_CASES } from '../preferences/index.ts'
import type { Estimate, Estimates } from './estimates.ts'
import type { LevelMedian } from './levels.ts'
import type { LookCount } from './looks.ts'
import { METRICS, type Metric } from './metrics.ts'
import type { Overlap } from './overlap.ts'
import { PAPER } from './paper.ts'
import { ENCODERS, type EncoderName, MODEL_ENCODERS, type ModelEncoder } from './scored.ts'

/** What was counted on the way, by benchmark. */
export interface BenchmarkCounts {
  questions: number
  /** Questions of which it is known what was retrieved. */
  questionsWithRetrieved: number
  goldItems: number
  /** Gold items with one leaf: nothing can be decided there. */
  oneLeafItems: number
  /** Gold items none of whose annotations has a place; they count as tokens and nowhere else. */
  itemsWithoutGold: number
  /** Annotations that have no place in their item. */
  droppedAnnotations: number
  otherItems: number
  decisionNodes: number
  /** Pairs of two nodes with one token sequence, left out of pair accuracy. */
  droppedPairs: number
  nodes: number
  truncatedNodes: number
}

/** Everything about an evaluation that is not a metric; with {@link Estimates} it makes all its files. */
export interface Evaluation {
  schema: 'canopy-evaluation/1'
  split: string
  datasets: { name: string; hash: string }[]
  encoders: Partial<Record<'query' | 'frozen' | 'fine-tuned', { name: string; fingerprint: string }>>
  rendering: string
  segmenter: string
  title: boolean
  tableFormat: TableFormatName
  branching: number
  /** What counts tokens: the node encoder's own tokenizer, without special tokens. */
  tokenizer: string
  seed: string
  resamples: number
  clusters: Record<string, number>
  counts: Record<string, BenchmarkCounts>
  scoreByLevel: Record<string, Partial<Record<ModelEncoder, LevelMedian[]>>>
  /** Null: it is not known what the encoder was trained on. Absent: nothing was trained. */
  overlap?: Overlap | null
  /** How many different configurations, this one included, had seen the split when this one first did. */
  looks?: number
  notes: string[]
}

/**
 * A table as comma-separated values: `benchmark,encoder,n`, then every metric with its `_lo` and `_hi`; empty where undefined. The
 * share of truncated nodes stands in each.
 */
export function csvTable(estimates: Estimates, table: Metric['table']): string {
  const metrics = METRICS.filter((metric) => metric.table === table || metric.name === 'truncated_nodes')
  const counter = table === 'decisions' ? 'decision_accuracy' : 'pruned_item_rate'
  const rows = eachRow(estimates).map(({ benchmark, encoder, metrics: values }) => [
    benchmark,
    encoder,
    values[counter]?.n ?? 0,
    ...metrics.flatMap(({ name }) => {
      const estimate = values[name]
      return [estimate?.value, estimate?.lo, estimate?.hi].map((x) => (x === null || x === undefined ? '' : String(x)))
    }),
  ])
  const header = ['benchmark', 'encoder', 'n', ...metrics.flatMap(({ name }) => [name, `${name}_lo`, `${name}_hi`])]
  return stringify([header, ...rows])
}

/**
 * `metrics.json`: benchmark -> encoder -> metric -> `{value, lo, hi, n}`, and beside the benchmarks (`pooled` and `mean` among
 * them) `differences` (benchmark -> "a - b" -> metric) and `evaluation` (settings, hashes, counts).
 */
export function metricsJson(estimates: Estimates, evaluation: Evaluation): string {
  const value = { ...estimates.benchmarks, differences: estimates.differences, evaluation }
  return `${JSON.stringify(value, null, 2)}\n`
}

/** The readable table of results. */
export function summaryMarkdown(estimates: Estimates, evaluation: Evaluation): string {
  const { encoders, counts } = evaluation
  const benchmarks = Object.keys(counts).sort()
  // With one benchmark, pooled and mean repeat it.
  const shown = benchmarks.length > 1 ? [...benchmarks, 'pooled', 'mean'] : benchmarks
  const parts: string[] = [`# Evaluation on ${evaluation.split}`]

  parts.push(
    [
      `- Data: ${evaluation.datasets.map(({ name, hash }) => `${name} (${hash.slice(0, 12)})`).join(', ')}, split \`${evaluation.split}\``,
      ...Object.entries(encoders).map(
        ([role, e]) => `- ${ROLE_NAMES[role]}: ${e.name} (${e.fingerprint.slice(0, 12)})`,
      ),
      `- Nodes: ${evaluation.title ? 'with title' : 'without title'}, tables as ${evaluation.tableFormat}, branching ${evaluation.branching}, ${evaluation.rendering}, ${evaluation.segmenter}`,
      `- Tokens: counted by the tokenizer of ${evaluation.tokenizer}, without special tokens; title and header once per item`,
      `- Intervals: 95 % percentile bootstrap, ${evaluation.resamples} resamples of sources (seed ${evaluation.seed}); differences are paired`,
      `- Overlap with the training data: ${overlapText(evaluation.overlap)}`,
      evaluation.looks === undefined
        ? undefined
        : `- Looks at this split: this is configuration ${evaluation.looks} of this run that was evaluated on it`,
      ...evaluation.notes.map((note) => `- ${note}`),
    ]
      .filter((line) => line !== undefined)
      .join('\n'),
  )

  parts.push('## Decisions')
  parts.push(
    'Decision accuracy: share of decision nodes at which refinement keeps or enters exactly what gold asks (all children right). By where the gold lies: in the first child only, the last only, every child, the whole node, or (more than two children) some others. Edge accuracy: share of parent-child comparisons that come out right.',
  )
  for (const name of shown) {
    parts.push(`### ${title(name)}`)
    const n = Object.values(estimates.benchmarks[name]!)[0]?.decision_accuracy?.n ?? 0
    parts.push(`${n} ${name === 'mean' ? 'benchmarks' : `decision nodes, ${evaluation.clusters[name]} sources`}`)
    parts.push(decisionsTable(estimates, name))
    if (Object.keys(estimates.differences[name] ?? {}).length > 0) parts.push(differencesTable(estimates, name))
    const verdict = verdictOf(estimates, name)
    if (verdict !== undefined) parts.push(verdict)
  }

  parts.push('## Pairs')
  parts.push(
    'Share of preference pairs whose preferred node scores strictly higher. Pairs of two nodes that become the same token sequence are left out (counted below).',
  )
  parts.push(
    markdownTable(
      [
        ...['benchmark', 'encoder', 'all', 'fully-gold', 'gold-child', 'non-gold-child', 'sibling-separation'],
        'truncated nodes',
      ],
      eachRow(estimates, shown)
        .filter(({ encoder }) => (MODEL_ENCODERS as readonly string[]).includes(encoder))
        .map(({ benchmark, encoder, metrics }) => [
          benchmark,
          encoder,
          ...['pair_accuracy', ...PAIR_METRICS].map((name) => withInterval(metrics[name])),
          percent(metrics.truncated_nodes?.value),
        ]),
    ),
  )

  parts.push('## Pruning')
  parts.push(
    'Gold items with two or more leaves; in brackets all gold items. Pruned: refinement goes below the root. Dropped: at least one leaf is dropped. Tokens, recall, precision and F1 are means over items.',
  )
  parts.push(
    markdownTable(
      ['benchmark', 'encoder', 'pruned', 'dropped', 'tokens kept', 'recall', 'precision', 'F1', 'truncated nodes'],
      eachRow(estimates, shown).map(({ benchmark, encoder, metrics }) => [
        benchmark,
        encoder,
        withInterval(metrics.pruned_item_rate),
        withInterval(metrics.dropped_item_rate),
        ...['retained_tokens', 'gold_recall', 'gold_precision', 'gold_f1'].map(
          (name) => `${withInterval(metrics[name])} (${percent(metrics[`${name}_all`]?.value)})`,
        ),
        percent(metrics.truncated_nodes?.value),
      ]),
    ),
  )

  const withTokens = shown.filter((name) =>
    Object.values(estimates.benchmarks[name]!).some((m) => (m.tokens_all?.n ?? 0) > 0),
  )
  if (withTokens.length > 0) {
    parts.push('## Tokens per question')
    parts.push(
      "Mean number of tokens kept per question (share of those items' tokens), over the questions of which it is known what was retrieved.",
    )
    parts.push(
      markdownTable(
        ['benchmark', 'encoder', 'questions', 'on gold items', 'on other retrieved items', 'on all', 'truncated nodes'],
        eachRow(estimates, withTokens).map(({ benchmark, encoder, metrics }) => [
          benchmark,
          encoder,
          String(metrics.tokens_all?.n ?? 0),
          ...['tokens_gold', 'tokens_other', 'tokens_all'].map(
            (name) => `${tokens(metrics[name])} (${percent(metrics[`${name}_ratio`]?.value)})`,
          ),
          percent(metrics.truncated_nodes?.value),
        ]),
      ),
    )
  }

  parts.push('## Scores by level')
  parts.push(
    'Median of score(node) - score(root) by steps below the root: nodes with gold / nodes without (number of nodes).',
  )
  parts.push(
    markdownTable(
      ['benchmark', 'encoder', 'level', 'with gold', 'without gold'],
      Object.entries(evaluation.scoreByLevel).flatMap(([benchmark, byEncoder]) =>
        Object.entries(byEncoder).flatMap(([encoder, medians]) =>
          medians.map(({ level, gold, goldNodes, other, otherNodes }) => [
            benchmark,
            encoder,
            String(level),
            `${signed(gold)} (${goldNodes})`,
            `${signed(other)} (${otherNodes})`,
          ]),
        ),
      ),
    ),
  )

  parts.push('## Counts')
  parts.push(
    markdownTable(
      ['', ...benchmarks],
      COUNT_NAMES.map(([key, name]) => [name, ...benchmarks.map((benchmark) => String(counts[benchmark]![key]))]),
    ),
  )

  parts.push('## Beside the paper')
  parts.push(
    `The paper's numbers are those of ${PAPER.source}: encoder ${PAPER.encoder}; data: ${PAPER.data}. Ours are of another encoder or other data and are no reproduction of them.`,
  )
  parts.push(paperTable(estimates))
  return `${parts.join('\n\n')}\n`
}

/** The main numbers with their controls, for a terminal: plain text columns. */
export function terminalTable(estimates: Estimates): string {
  const names = Object.keys(estimates.benchmarks)
  const shown = names.length > 3 ? names : names.filter((name) => name !== 'pooled' && name !== 'mean')
  const columns = [
    'decision_accuracy',
    'edge_accuracy',
    'pruned_item_rate',
    'dropped_item_rate',
    'retained_tokens',
    'gold_recall',
    'gold_f1',
    'truncated_nodes',
  ]
  const header = [
    'benchmark',
    'encoder',
    'n',
    'decision accuracy',
    'edge',
    'pruned',
    'dropped',
    'tokens',
    'recall',
    'F1',
    'truncated',
  ]
  const rows = eachRow(estimates, shown).map(({ benchmark, encoder, metrics }) => [
    benchmark,
    encoder,
    String(metrics.decision_accuracy?.n ?? 0),
    withInterval(metrics.decision_accuracy),
    ...columns.slice(1).map((name) => percent(metrics[name]?.value)),
  ])
  const widths = header.map((name, i) => Math.max(name.length, ...rows.map((row) => row[i]!.length)))
  const line = (cells: string[]): string =>
    cells
      .map((cell, i) => cell.padEnd(widths[i]!))
      .join('  ')
      .trimEnd()
  const verdicts = shown.map((name) => verdictOf(estimates, name, `${name}: `)).filter((text) => text !== undefined)
  return [line(header), line(widths.map((width) => '-'.repeat(width))), ...rows.map(line), ...verdicts].join('\n')
}

/** How often the split was looked at, as a sentence. */
export function looksText({ configuration, repetitions }: LookCount): string {
  const again = repetitions > 1 ? `, evaluated ${repetitions} times` : ''
  return `this is configuration ${configuration} of this run that was evaluated on the split${again}`
}

export function overlapText(overlap: Overlap | null | undefined): string {
  if (overlap === undefined) return 'nothing was trained'
  if (overlap === null) return 'unknown (no training-data.json beside the adapter)'
  const { of, examples } = overlap
  const counts = `${overlap.questions} of ${of.questions} questions, ${overlap.items} of ${of.items} gold items, ${overlap.sources} of ${of.sources} sources`
  return examples.length === 0
    ? counts
    : `${counts} (${examples.map((source) => JSON.stringify(source)).join(', ')}${overlap.sources > examples.length ? ', …' : ''})`
}

const ROLE_NAMES: Record<string, string> = {
  query: 'Query encoder',
  frozen: 'Frozen node encoder',
  'fine-tuned': 'Fine-tuned node encoder',
}
const PAIR_METRICS = ['fully_gold', 'gold_child', 'non_gold_child', 'sibling_separation'].map(
  (k) => `pair_accuracy_${k}`,
)
const COUNT_NAMES: [keyof BenchmarkCounts, string][] = [
  ['questions', 'questions'],
  ['questionsWithRetrieved', 'questions with known retrieved items'],
  ['goldItems', 'gold items'],
  ['oneLeafItems', 'of these with one leaf (nothing to decide)'],
  ['itemsWithoutGold', 'of these without a gold leaf (not measured)'],
  ['droppedAnnotations', 'annotations without a place (dropped)'],
  ['otherItems', 'other retrieved items'],
  ['decisionNodes', 'decision nodes'],
  ['droppedPairs', 'pairs of equal token sequences (dropped)'],
  ['nodes', 'nodes of gold items'],
  ['truncatedNodes', 'of these truncated'],
]

interface Row {
  benchmark: string
  encoder: EncoderName
  metrics: Record<string, Estimate>
}

function eachRow({ benchmarks }: Estimates, names: readonly string[] = Object.keys(benchmarks)): Row[] {
  return names.flatMap((benchmark) =>
    ENCODERS.flatMap((encoder): Row[] => {
      const metrics = benchmarks[benchmark]?.[encoder]
      return metrics === undefined ? [] : [{ benchmark, encoder, metrics }]
    }),
  )
}

function decisionsTable(estimates: Estimates, name: string): string {
  const cases = DECISION_CASES.filter((c) =>
    Object.values(estimates.benchmarks[name]!).some((m) => (m[`decision_accuracy_${c}`]?.n ?? 0) > 0),
  )
  return markdownTable(
    ['encoder', 'decision accuracy', ...cases.map((c) => `gold ${c}`), 'edge accuracy', 'truncated nodes'],
    eachRow(estimates, [name]).map(({ encoder, metrics }) => [
      encoder,
      withInterval(metrics.decision_accuracy),
      ...cases.map((c) => percent(metrics[`decision_accuracy_${c}`]?.value)),
      withInterval(metrics.edge_accuracy),
      percent(metrics.truncated_nodes?.value),
    ]),
  )
}

function differencesTable(estimates: Estimates, name: string): string {
  return markdownTable(
    ['difference', 'decision accuracy', 'edge accuracy', 'recall', 'F1', 'tokens kept'],
    Object.entries(estimates.differences[name] ?? {}).map(([pair, metrics]) => [
      pair.replace(' - ', ' − '),
      ...['decision_accuracy', 'edge_accuracy', 'gold_recall', 'gold_f1', 'retained_tokens'].map((metric) =>
        withInterval(metrics[metric], true),
      ),
    ]),
  )
}

/** Whether the fine-tuned encoder's paired intervals lie above the controls that an encoder has to beat. */
function verdictOf(estimates: Estimates, name: string, prefix = ''): string | undefined {
  const differences = estimates.differences[name]
  const controls = ['always-left', 'permuted'].map((control) => {
    const lo = differences?.[`fine-tuned - ${control}`]?.decision_accuracy?.lo
    return { control, lo }
  })
  if (differences === undefined || !Object.keys(differences).some((pair) => pair.startsWith('fine-tuned')))
    return undefined
  const failed = controls.filter(({ lo }) => lo === undefined || lo === null || lo <= 0).map(({ control }) => control)
  return failed.length === 0
    ? `${prefix}fine-tuned lies above always-left and above permuted: the paired intervals exclude 0.`
    : `${prefix}fine-tuned is not shown to lie above ${failed.join(' and ')} (the paired interval reaches 0, or there is none).`
}

function paperTable(estimates: Estimates): string {
  const ours = (encoder: EncoderName, metric: string): string =>
    withInterval(estimates.benchmarks.pooled?.[encoder]?.[metric])
  const range = ([low, high]: readonly [number, number]): string => `${percent(low)} to ${percent(high)}`
  return markdownTable(
    ['metric', 'encoder', 'ours, pooled', "the paper's, all benchmarks", "the paper's, by benchmark"],
    (['decision_accuracy', 'pruned_item_rate'] as const).flatMap((metric) =>
      (['frozen', 'fine-tuned'] as const).map((encoder) => {
        const paper = PAPER[metric][encoder]
        return [
          metric.replaceAll('_', ' '),
          encoder,
          ours(encoder, metric),
          'pooled' in paper ? percent(paper.pooled) : '–',
          range(paper.benchmarks),
        ]
      }),
    ),
  )
}

function title(name: string): string {
  if (name === 'pooled') return 'Pooled (all decision nodes)'
  return name === 'mean' ? 'Mean over benchmarks' : name
}

function markdownTable(header: readonly string[], rows: readonly (readonly string[])[]): string {
  const cell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('\n', ' ')
  const line = (cells: readonly string[]): string => `| ${cells.map(cell).join(' | ')} |`
  return [line(header), line(header.map(() => '---')), ...rows.map(line)].join('\n')
}

function percent(value: number | null | undefined, plus = false): string {
  if (value === null || value === undefined) return '–'
  return `${plus && value > 0 ? '+' : ''}${(100 * value).toFixed(1)}`
}

function withInterval(estimate: Estimate | undefined, plus = false): string {
  if (estimate?.value === undefined || estimate.value === null) return '–'
  const interval = estimate.lo === null ? '' : ` [${percent(estimate.lo, plus)}, ${percent(estimate.hi, plus)}]`
  return percent(estimate.value, plus) + interval
}

function tokens(estimate: Estimate | undefined): string {
  if (estimate?.value === undefined || estimate.value === null) return '–'
  const interval = estimate.lo === null ? '' : ` [${estimate.lo.toFixed(1)}, ${estimate.hi!.toFixed(1)}]`
  return estimate.value.toFixed(1) + interval
}

function signed(value: number | null): string {
  return value === null ? '–' : `${value > 0 ? '+' : ''}${value.toFixed(4)}`
}

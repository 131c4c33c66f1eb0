import { DECISION_CASES } from '../preferences/index.ts'
import type { Estimates } from './estimates.ts'
import { apartText, type BenchmarkCounts, type Evaluation, overlapText, tokensText } from './evaluation.ts'
import { markdownTable, percent, signed, tokens, withInterval } from './format.ts'
import type { MarginPoint } from './margin-curve.ts'
import { marginMarkdown } from './margin-text.ts'
import { PAPER } from './paper.ts'
import { ENCODERS, type EncoderName, MODEL_ENCODERS } from './scored.ts'
import { eachRow, SELECTION_NAMES, shownBenchmarks, verdictOf } from './tables.ts'

/** The readable table of results. */
export function summaryMarkdown(
  estimates: Estimates,
  evaluation: Evaluation,
  curve: readonly MarginPoint[] = [],
): string {
  const { encoders, counts } = evaluation
  const benchmarks = Object.keys(counts).sort()
  const shown = shownBenchmarks(estimates)
  const parts: string[] = [`# Evaluation on ${evaluation.split}`]

  parts.push(
    [
      `- Data: ${evaluation.datasets.map(({ name, hash }) => `${name} (${hash.slice(0, 12)})`).join(', ')}, split \`${evaluation.split}\``,
      ...Object.entries(encoders).map(
        ([role, e]) => `- ${ROLE_NAMES[role]}: ${e.name} (${e.fingerprint.slice(0, 12)})`,
      ),
      nodesLine(evaluation),
      `- Tokens: ${tokensText(evaluation)}; title and header once per item`,
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
    const n = Object.values(estimates.benchmarks[name] ?? {})[0]?.decision_accuracy?.n ?? 0
    parts.push(`${n} ${name === 'mean' ? 'benchmarks' : `decision nodes, ${evaluation.clusters[name]} sources`}`)
    parts.push(decisionsTable(estimates, name))
    if (Object.keys(estimates.differences[name] ?? {}).length > 0) parts.push(differencesTable(estimates, name))
    const verdict = verdictOf(estimates, name)
    if (verdict !== undefined) parts.push(verdict)
  }
  const apart = apartText(evaluation)
  if (apart !== undefined) parts.push(apart)

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
      eachRow(estimates.benchmarks, ENCODERS, shown)
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
      eachRow(estimates.benchmarks, ENCODERS, shown).map(({ benchmark, encoder, metrics }) => [
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
    Object.values(estimates.benchmarks[name] ?? {}).some((m) => (m.tokens_all?.n ?? 0) > 0),
  )
  if (withTokens.length > 0) {
    parts.push('## Tokens per question')
    parts.push(
      "Mean number of tokens kept per question (share of those items' tokens), over the questions of which it is known what was retrieved.",
    )
    parts.push(
      markdownTable(
        ['benchmark', 'encoder', 'questions', 'on gold items', 'on other retrieved items', 'on all', 'truncated nodes'],
        eachRow(estimates.benchmarks, ENCODERS, withTokens).map(({ benchmark, encoder, metrics }) => [
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

  parts.push('## Selection')
  parts.push(
    `Evidence selected in different ways from the same gold items with two or more leaves; in brackets from all gold items. gold-item: the whole item. gold-span: the gold leaves. flat-leaf and flat-node: the leaf, or the node of any size, with the best ${evaluation.selectedBy} score, the first in reading order on a tie. canopy: refinement.${evaluation.selectedBy === 'frozen' ? ' No fine-tuned encoder was evaluated, so the flat selectors use the frozen scores.' : ''} Tokens kept are a mean per item, then as a share of the item.`,
  )
  parts.push(
    markdownTable(
      ['benchmark', 'selection', 'items', 'tokens kept', 'share kept', 'recall', 'precision', 'F1', 'truncated nodes'],
      eachRow(estimates.selection, SELECTION_NAMES, shown).map(({ benchmark, encoder, metrics }) => [
        benchmark,
        encoder,
        String(metrics.gold_recall?.n ?? 0),
        `${tokens(metrics.kept_tokens)} (${metrics.kept_tokens_all?.value?.toFixed(1) ?? '–'})`,
        ...['retained_tokens', 'gold_recall', 'gold_precision', 'gold_f1'].map(
          (name) => `${withInterval(metrics[name])} (${percent(metrics[`${name}_all`]?.value)})`,
        ),
        percent(metrics.truncated_nodes?.value),
      ]),
    ),
  )
  parts.push(
    markdownTable(
      ['benchmark', 'difference', 'tokens kept', 'share kept', 'recall', 'precision', 'F1'],
      shown.flatMap((benchmark) =>
        Object.entries(estimates.selectionDifferences[benchmark] ?? {}).map(([pair, metrics]) => [
          benchmark,
          pair.replace(' - ', ' − '),
          tokens(metrics.kept_tokens, true),
          ...['retained_tokens', 'gold_recall', 'gold_precision', 'gold_f1'].map((name) =>
            withInterval(metrics[name], true),
          ),
        ]),
      ),
    ),
  )
  if (apart !== undefined) parts.push(apart)

  parts.push(...marginMarkdown(estimates, evaluation, curve))

  parts.push('## Decisions by level')
  parts.push('Decision accuracy by steps of the decision node below the root (number of decision nodes).')
  parts.push(levelsTable(evaluation, shown))

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

function nodesLine({ title, tableFormat, branching, rendering, segmenter }: Evaluation): string {
  const scored =
    title === undefined
      ? `scored elsewhere, tables counted as ${tableFormat}`
      : `${title ? 'with title' : 'without title'}, tables as ${tableFormat}`
  return `- Nodes: ${scored}, branching ${branching}, ${rendering}, ${segmenter}`
}

function levelsTable({ accuracyByLevel }: Evaluation, shown: readonly string[]): string {
  const rows = shown.flatMap((benchmark) =>
    ENCODERS.flatMap((encoder) => {
      const levels = accuracyByLevel[benchmark]?.[encoder]
      return levels === undefined ? [] : [{ benchmark, encoder, levels }]
    }),
  )
  const depth = Math.max(0, ...rows.map(({ levels }) => levels.length))
  return markdownTable(
    ['benchmark', 'encoder', ...Array.from({ length: depth }, (_, level) => (level === 0 ? 'root' : `level ${level}`))],
    rows.map(({ benchmark, encoder, levels }) => [
      benchmark,
      encoder,
      ...Array.from({ length: depth }, (_, level) => {
        const found = levels[level]
        return found === undefined ? '–' : `${percent(found.accuracy)} (${found.decisions})`
      }),
    ]),
  )
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
  ['goldItemsNotText', 'gold images and videos (not read by the encoder, left out)'],
  ['otherItemsNotText', 'other retrieved images and videos (left out)'],
  ['goldItemsUnreadable', 'gold images and videos whose file cannot be read (left out)'],
  ['otherItemsUnreadable', 'other retrieved ones (left out)'],
  ['decisionNodes', 'decision nodes'],
  ['droppedPairs', 'pairs of equal token sequences (dropped)'],
  ['nodes', 'nodes of gold items'],
  ['truncatedNodes', 'of these truncated'],
]

function decisionsTable(estimates: Estimates, name: string): string {
  const cases = DECISION_CASES.filter((c) =>
    Object.values(estimates.benchmarks[name] ?? {}).some((m) => (m[`decision_accuracy_${c}`]?.n ?? 0) > 0),
  )
  return markdownTable(
    ['encoder', 'decision accuracy', ...cases.map((c) => `gold ${c}`), 'edge accuracy', 'truncated nodes'],
    eachRow(estimates.benchmarks, ENCODERS, [name]).map(({ encoder, metrics }) => [
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

import { markdownTable, PAPER, percent } from '../eval/index.ts'
import { type Outcome, outcomesOf, overSeeds } from './outcome.ts'

/** Questions of the development sets as they were released; of LVBench in the cut that UniversalRAG made. */
const RELEASED_QUESTIONS: Record<string, number> = { nq: 7830, hotpotqa: 7405, ottqa: 2214, mmqa: 2441, lvbench: 829 }

/** What stands between our figures and the paper's, as sentences; none when encoder and data are as complete as the paper's. */
export function differencesToPaper(outcomes: readonly Outcome[]): string[] {
  if (outcomes.length === 0) return ['nothing was evaluated']
  const reasons: string[] = []
  const { encoders } = outcomes[0]!.evaluation
  const name = encoders.frozen?.name ?? 'unknown'
  if (!/qwen3-vl-embedding-2b/i.test(name)) reasons.push(`the encoder is ${name}, the paper's is Qwen3-VL-Embedding-2B`)
  if (encoders['fine-tuned'] === undefined) reasons.push('nothing was fine-tuned')
  const counts = countsOf(outcomes)
  for (const benchmark of PAPER.benchmarks) {
    // rows of a kind of question of their own belong to their benchmark
    const rows = Object.entries(counts).filter(([row]) => row === benchmark || row.startsWith(`${benchmark}:`))
    const questions = rows.reduce((sum, [, { questions: n }]) => sum + n, 0)
    const all = RELEASED_QUESTIONS[benchmark]!
    if (rows.length === 0) reasons.push(`${benchmark} was not evaluated`)
    else if (questions < all) reasons.push(`${benchmark}: ${questions} of ${all} questions`)
  }
  for (const row of Object.keys(counts))
    if (!PAPER.benchmarks.some((benchmark) => row === benchmark || row.startsWith(`${benchmark}:`)))
      reasons.push(`${row} is no benchmark of the paper`)
  for (const [row, { goldItemsNotText, goldItemsUnreadable = 0 }] of Object.entries(counts)) {
    const leftOut = goldItemsNotText + goldItemsUnreadable
    if (leftOut > 0) reasons.push(`${row}: ${leftOut} images and videos were left out`)
  }
  const { branching } = outcomes[0]!.evaluation
  if (branching !== PAPER.defaults.branching)
    reasons.push(`the trees are of branching ${branching}, the paper's of ${PAPER.defaults.branching}`)
  if (outcomes.some(({ group }) => group === 'training')) reasons.push('the training split was measured')
  if (outcomes.some(({ group }) => group === 'transfer')) reasons.push('some benchmarks were not trained on')
  return reasons
}

const countsOf = (outcomes: readonly Outcome[]): Outcome['evaluation']['counts'] =>
  Object.assign({}, ...outcomes.map(({ evaluation }) => evaluation.counts))

const range = ([low, high]: readonly [number, number]): string => `${percent(low)} to ${percent(high)}`

/** Ours and the paper's figures side by side, in Markdown. */
export function paperSection(outcomes: readonly Outcome[]): string {
  const reasons = differencesToPaper(outcomes)
  const main = outcomes.filter(({ group }) => group === 'benchmarks')
  const first = outcomes[0]?.evaluation
  const parts = [
    '## Beside the paper',
    [
      `- The paper's: ${PAPER.source}; encoder ${PAPER.encoder}; ${PAPER.data}.`,
      `- Ours: encoder ${first?.encoders.frozen?.name ?? 'unknown'}; ${Object.entries(countsOf(outcomes))
        .map(([row, { questions, goldItems }]) => `${row} (${questions} questions, ${goldItems} gold items)`)
        .join(', ')}; split \`${first?.split ?? '–'}\`.`,
    ].join('\n'),
    reasons.length > 0
      ? `**Not a reproduction of the paper's figures**, which stand here for orientation: ${reasons.join('; ')}.`
      : "Encoder and benchmarks are the paper's, and the released development sets are complete; which questions its test sets hold is not said in it.",
  ]
  parts.push(
    markdownTable(
      [
        'metric',
        'encoder',
        'ours, pooled',
        "the paper's, all benchmarks",
        'ours, by benchmark',
        "the paper's, by benchmark",
      ],
      (['decision_accuracy', 'pruned_item_rate'] as const).flatMap((metric) =>
        (['frozen', 'fine-tuned'] as const).map((encoder) => {
          const paper = PAPER[metric][encoder]
          return [
            metric.replaceAll('_', ' '),
            encoder,
            pooled(main, encoder, metric),
            'pooled' in paper ? percent(paper.pooled) : '–',
            byBenchmark(main, encoder, metric),
            range(paper.benchmarks),
          ]
        }),
      ),
    ),
  )
  parts.push(
    "Evidence selected from the gold items: tokens that CANOPY saves against the whole item, and what it costs. Ours counts gold leaves that are kept (no reader was asked); the paper's is a reader's score on the gold item, on what CANOPY keeps, and on the gold spans.",
    markdownTable(
      ['benchmark', 'tokens saved, ours', "tokens saved, the paper's", 'gold recall, ours', "reader, the paper's"],
      PAPER.benchmarks.map((benchmark) => {
        const paper = benchmark === 'mmqa' ? undefined : PAPER.selection[benchmark]
        return [
          benchmark,
          savedTokens(outcomes, benchmark),
          paper === undefined ? '–' : `${'about' in paper ? 'about ' : ''}${percent(paper.tokens_saved)}`,
          selected(outcomes, benchmark, 'gold_recall'),
          paper === undefined || !('score' in paper)
            ? '–'
            : `${paper.score} ${percent(paper.gold_item)} -> ${percent(paper.canopy)}${'gold_span' in paper ? `, gold spans ${percent(paper.gold_span)}` : ''}`,
        ]
      }),
    ),
  )
  const { fine_tuning: tuning, compression, reader } = PAPER
  parts.push(
    `Only the paper has a retriever and a reader. It reports that fine-tuning lowers the reader's tokens by ${range(tuning.reader_tokens_saved)} % at ${range(tuning.reader_score_gained)} points more (every interval containing 0), and compression as a whole by ${range(compression.reader_tokens_saved)} %. Its main table, in per cent:`,
    markdownTable(
      ['benchmark', "reader, the paper's", "routed, the paper's"],
      PAPER.benchmarks.map((benchmark) => [
        benchmark,
        readerText(reader[benchmark]),
        readerText(reader[benchmark].routed),
      ]),
    ),
  )
  return parts.join('\n\n')
}

function readerText(figures: { em: number; f1: number } | { accuracy: number }): string {
  return 'em' in figures
    ? `EM ${percent(figures.em)}, F1 ${percent(figures.f1)}`
    : `accuracy ${percent(figures.accuracy)}`
}

function pooled(outcomes: readonly Outcome[], encoder: string, metric: string): string {
  return meanText(overSeeds(outcomesOf(encoder, outcomes), ({ encoders }) => encoders.pooled?.[encoder]?.[metric]))
}

/** Lowest to highest benchmark, each the mean of its seeds. */
function byBenchmark(outcomes: readonly Outcome[], encoder: string, metric: string): string {
  const apart = outcomes[0]?.evaluation.apart ?? []
  const names = Object.keys(outcomes[0]?.encoders ?? {}).filter(
    (name) => name !== 'pooled' && name !== 'mean' && !apart.includes(name),
  )
  const values = names.flatMap((name) => meanOf(outcomes, ({ encoders }) => encoders[name]?.[encoder]?.[metric]) ?? [])
  return values.length === 0 ? '–' : range([Math.min(...values), Math.max(...values)])
}

function meanOf(outcomes: readonly Outcome[], pick: Parameters<typeof overSeeds>[1]): number | undefined {
  const over = overSeeds(outcomes, pick)
  return over?.mean ?? over?.seeds[0]?.estimate.value ?? undefined
}

function meanText(over: ReturnType<typeof overSeeds>): string {
  if (over === undefined) return '–'
  if (over.mean === null) return percent(over.seeds[0]!.estimate.value)
  return `${percent(over.mean)} (seeds ${percent(over.min)} to ${percent(over.max)})`
}

function selected(outcomes: readonly Outcome[], benchmark: string, metric: string): string {
  return meanText(overSeeds(outcomes, ({ selection }) => selection[benchmark]?.['canopy-fine-tuned']?.[metric]))
}

function savedTokens(outcomes: readonly Outcome[], benchmark: string): string {
  const kept = (row: string): number | undefined =>
    meanOf(outcomes, ({ selection }) => selection[benchmark]?.[row]?.kept_tokens)
  const [whole, canopy] = [kept('gold-item'), kept('canopy-fine-tuned')]
  return whole === undefined || canopy === undefined || whole === 0 ? '–' : percent(1 - canopy / whole)
}

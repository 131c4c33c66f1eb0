import { join } from 'node:path'
import { stringify } from 'csv-stringify/sync'
import {
  markdownTable,
  overlapText,
  PAPER,
  percent,
  splitKey,
  tokens,
  totalLooks,
  withInterval,
} from '../eval/index.ts'
import { writeFileAtomic } from '../support/files.ts'
import type { TrainSettings } from '../train/index.ts'
import { type Outcome, type OverSeeds, outcomesOf, overSeeds, readOutcome, shownNames, type Tables } from './outcome.ts'
import { differencesToPaper, paperSection } from './paper.ts'
import type { Plan, Trial } from './plan.ts'
import { flatInputs } from './stamps.ts'
import { resultOf } from './step.ts'
import type { ExportResult } from './steps/export.ts'
import type { ImportResult } from './steps/import.ts'
import type { PreferencesResult } from './steps/preferences.ts'
import type { TrainingResult } from './steps/train.ts'
import { placesOf, type Workspace } from './workspace.ts'

/** What is known of a benchmark's data. */
interface DataRow {
  benchmark: string
  role: string
  imported: ImportResult | undefined
  preferences: PreferencesResult | undefined
}

/** Everything on the page of results. */
interface Results {
  schema: 'canopy-reproduction/1'
  name: string
  branching: number
  /** Of training; undefined where nothing is trained. */
  settings: TrainSettings | undefined
  data: DataRow[]
  training: { seed: number; result: TrainingResult | undefined }[]
  looks: { group: string; split: string; evaluations: number; configurations: number }[]
  exported: ExportResult | undefined
}

/** Writes `results.md`, `results.csv` and `results.json` of the one configuration of a plan; every step is done. */
export async function writeResults(workspace: Workspace, plan: Plan): Promise<string> {
  const trial = plan.trials[0]!
  const outcomes = await outcomesOfTrial(trial)
  const results = await gather(workspace, plan, trial, outcomes)
  const file = (end: string): string => join(workspace.root, `results.${end}`)
  await writeFileAtomic(file('csv'), resultsCsv(outcomes))
  await writeFileAtomic(file('json'), resultsJson(results, outcomes))
  await writeFileAtomic(file('md'), resultsMarkdown(results, outcomes))
  return file('md')
}

export const outcomesOfTrial = (trial: Trial): Promise<Outcome[]> =>
  Promise.all(trial.evaluations.map(({ group, seed, step }) => readOutcome(group, seed, step.output)))

async function gather(
  { config, root }: Workspace,
  plan: Plan,
  trial: Trial,
  outcomes: readonly Outcome[],
): Promise<Results> {
  const { stamps } = placesOf(root)
  const result = async <T>(step: Plan['steps'][number] | undefined): Promise<T | undefined> =>
    step === undefined ? undefined : ((await resultOf(stamps, step)) as T | undefined)
  const data: DataRow[] = []
  for (const { benchmark, step } of plan.sources) {
    const pairs = trial.preferences.find(({ id }) => id.startsWith(`preferences ${benchmark.name},`))
    data.push({
      benchmark: benchmark.name,
      role: benchmark.role,
      imported: await result<ImportResult>(step),
      preferences: await result<PreferencesResult>(pairs),
    })
  }
  const training: Results['training'] = []
  for (const { seed, step } of trial.runs) training.push({ seed, result: await result<TrainingResult>(step) })
  return {
    schema: 'canopy-reproduction/1',
    name: config.name,
    branching: trial.configuration.branching,
    settings: trial.configuration.train,
    data,
    training,
    looks: await looksOf(root, outcomes),
    exported: await result<ExportResult>(plan.exported),
  }
}

/** How often each held-out split was evaluated in this folder, whatever became of those evaluations. */
export async function looksOf(root: string, outcomes: readonly Outcome[]): Promise<Results['looks']> {
  const looks: Results['looks'] = []
  for (const group of new Set(outcomes.map((outcome) => outcome.group))) {
    if (group === 'training') continue
    const { split, datasets } = outcomes.find((outcome) => outcome.group === group)!.evaluation
    const key = splitKey(
      split,
      datasets.map(({ hash }) => hash),
    )
    looks.push({ group, split, ...(await totalLooks(placesOf(root).looks, key)) })
  }
  return looks
}

export function looksLine({ group, split, evaluations, configurations }: Results['looks'][number]): string {
  const of = group === 'transfer' ? 'the transfer benchmarks' : 'the benchmarks'
  return `\`${split}\` of ${of} was looked at ${evaluations} time${evaluations === 1 ? '' : 's'}, with ${configurations} different encoder${configurations === 1 ? '' : 's or settings'} (a training seed counts as one)`
}

const GROUP_TITLES = {
  benchmarks: 'Benchmarks',
  transfer: 'Transfer: benchmarks that nothing was trained on',
  training: 'Training split, nothing trained',
}

function resultsMarkdown(results: Results, outcomes: readonly Outcome[]): string {
  const parts = [`# ${results.name}`, overview(results, outcomes), '## Data', dataTable(results.data)]
  if (results.training.length > 0) parts.push('## Training', trainingTable(results.training))
  for (const group of ['benchmarks', 'transfer', 'training'] as const) {
    const own = outcomes.filter((outcome) => outcome.group === group)
    if (own.length > 0) parts.push(...groupSections(GROUP_TITLES[group], own))
  }
  parts.push(paperSection(outcomes))
  return `${parts.join('\n\n')}\n`
}

function overview({ looks, training, exported, settings }: Results, outcomes: readonly Outcome[]): string {
  const first = outcomes[0]?.evaluation
  const lines: string[] = []
  if (first !== undefined) {
    for (const [role, text] of [
      ['query', 'Query encoder'],
      ['frozen', 'Frozen node encoder'],
    ] as const) {
      const encoder = first.encoders[role]
      if (encoder !== undefined) lines.push(`${text}: ${encoder.name} (${encoder.fingerprint.slice(0, 12)})`)
    }
    lines.push(
      `Nodes: ${first.title ? 'with title' : 'without title'}, tables as ${first.tableFormat}, branching ${first.branching}, ${first.rendering}, ${first.segmenter}`,
      `Intervals: 95 %, ${first.resamples} resamples of sources, paired for differences; they say nothing about training seeds, whose mean and range stand apart`,
    )
  }
  lines.push(
    training.length === 0 ? 'Nothing was trained' : `Training seeds: ${training.map(({ seed }) => seed).join(', ')}`,
    ...(settings === undefined ? [] : [`Settings of training: ${settingsText(settings)}`]),
    ...looks.map(looksLine),
  )
  if (exported !== undefined)
    lines.push(
      `Exported: ${exported.run}, the best on its validation part; smallest cosine to the trained encoder ${exported.check.minCosine.toFixed(7)}`,
    )
  return lines.map((line) => `- ${line}`).join('\n')
}

/** All that has a say in what is trained; the seeds stand elsewhere. */
function settingsText({ seed: _, threads: _threads, ...settings }: TrainSettings): string {
  return Object.entries(flatInputs(settings))
    .map(([name, value]) => `${name} ${value}`)
    .join(', ')
}

function dataTable(data: readonly DataRow[]): string {
  const count = (n: number | undefined): string => (n === undefined ? '–' : String(n))
  const table = markdownTable(
    ['benchmark', 'role', 'questions read', 'left out', 'training instances', 'decision nodes', 'pairs'],
    data.map(({ benchmark, role, imported, preferences }) => [
      benchmark,
      role,
      imported === undefined
        ? '–'
        : Object.entries(imported)
            .map(([split, { questions }]) => `${split} ${questions}`)
            .join(', '),
      count(imported && droppedOf(imported).reduce((sum, { count: n }) => sum + n, 0)),
      count(preferences?.instances),
      count(preferences?.decisions.total),
      count(preferences?.pairs.total),
    ]),
  )
  const reasons = data.flatMap(({ benchmark, imported }) =>
    droppedOf(imported ?? {}).map(({ what, reason, count: n }) => `- ${benchmark}: ${n} × ${what}, ${reason}`),
  )
  return reasons.length === 0 ? table : `${table}\n\nLeft out by the import:\n\n${reasons.join('\n')}`
}

const droppedOf = (imported: ImportResult) => Object.values(imported).flatMap(({ dropped }) => dropped)

function trainingTable(training: Results['training']): string {
  return markdownTable(
    ['seed', 'steps', 'selected', 'validation, frozen', 'validation, fine-tuned', 'instances', 'validation instances'],
    training.map(({ seed, result }) => [
      String(seed),
      String(result?.steps ?? '–'),
      String(result?.selected.step ?? '–'),
      percent(result?.frozen?.decision_accuracy),
      percent(result?.selected.validation?.decision_accuracy),
      String(result?.instances.train ?? '–'),
      String(result?.instances.validation ?? '–'),
    ]),
  )
}

const MAIN_METRICS = [
  ['decision_accuracy', 'decision accuracy'],
  ['edge_accuracy', 'edge accuracy'],
  ['pruned_item_rate', 'pruned'],
  ['dropped_item_rate', 'dropped'],
  ['retained_tokens', 'tokens retained'],
  ['gold_recall', 'recall'],
  ['gold_precision', 'precision'],
  ['gold_f1', 'F1'],
] as const
const DIFFERENCE_METRICS = MAIN_METRICS.filter(([name]) =>
  ['decision_accuracy', 'edge_accuracy', 'retained_tokens', 'gold_recall', 'gold_f1'].includes(name),
)
const SELECTION_METRICS = [
  ['kept_tokens', 'tokens kept'],
  ['retained_tokens', 'of the item'],
  ['gold_recall', 'recall'],
  ['gold_precision', 'precision'],
  ['gold_f1', 'F1'],
] as const

function groupSections(title: string, outcomes: readonly Outcome[]): string[] {
  const { apart } = outcomes[0]!.evaluation
  const parts = [
    `## ${title}`,
    '### Decisions and pruning',
    rowsTable(outcomes, 'encoders', 'encoder', MAIN_METRICS, 'decision_accuracy'),
    '### Differences, paired',
    rowsTable(outcomes, 'differences', 'difference', DIFFERENCE_METRICS, undefined, true),
    '### Selection',
    `The flat selectors use the ${outcomes[0]!.evaluation.selectedBy} scores.`,
    rowsTable(outcomes, 'selection', 'selection', SELECTION_METRICS, 'gold_recall'),
  ]
  const { overlap } = outcomes[0]!.evaluation
  if (overlap !== undefined) parts.splice(1, 0, `Overlap with the training data: ${overlapText(overlap)}.`)
  const verdict = verdictText(outcomes)
  if (verdict !== undefined) parts.splice(parts.indexOf('### Selection'), 0, verdict)
  if (apart.length > 0) parts.push(`In no pooled figure and no mean: ${apart.join(', ')}.`)
  return parts
}

/** Where the fine-tuned encoder's paired intervals lie above the controls that it has to beat; undefined without one. */
function verdictText(outcomes: readonly Outcome[]): string | undefined {
  const trained = outcomes.filter(({ evaluation }) => evaluation.encoders['fine-tuned'] !== undefined)
  if (trained.length === 0) return undefined
  const above = shownNames(trained[0]!.differences).map((benchmark) => {
    const seeds = trained.filter(({ differences }) =>
      ['always-left', 'permuted'].every((control) => {
        const lo = differences[benchmark]?.[`fine-tuned - ${control}`]?.decision_accuracy?.lo
        return typeof lo === 'number' && lo > 0
      }),
    )
    return `${benchmark} ${seeds.length} of ${trained.length}`
  })
  return `Seeds whose fine-tuned encoder lies above always-left and above permuted, the paired intervals excluding 0: ${above.join(', ')}.`
}

type TableName = 'encoders' | 'differences' | 'selection'

/** A line for each benchmark and row; where the row depends on the seed, one for each seed and one of mean and range. */
function rowsTable(
  outcomes: readonly Outcome[],
  table: TableName,
  kind: string,
  metrics: readonly (readonly [string, string])[],
  counter: string | undefined,
  plus = false,
): string {
  const lines: string[][] = []
  for (const { benchmark, row, seeds } of rowsOf(outcomes, table)) {
    const value = (name: string): OverSeeds | undefined =>
      overSeeds(seeds, (outcome) => outcome[table][benchmark]?.[row]?.[name])
    for (const outcome of seeds) {
      const estimates = outcome[table][benchmark]?.[row]
      if (estimates === undefined) continue
      const label = seeds.length > 1 ? `${row}, seed ${outcome.seed}` : row
      lines.push([
        benchmark,
        label.replace(' - ', ' − '),
        ...(counter === undefined ? [] : [String(estimates[counter]?.n ?? 0)]),
        ...metrics.map(([name]) =>
          name === 'kept_tokens' ? tokens(estimates[name], plus) : withInterval(estimates[name], plus),
        ),
      ])
    }
    if (seeds.length > 1)
      lines.push([
        benchmark,
        `${row.replace(' - ', ' − ')}, mean of ${seeds.length} seeds (range)`,
        ...(counter === undefined ? [] : ['']),
        ...metrics.map(([name]) => spread(value(name), name === 'kept_tokens', plus)),
      ])
  }
  return markdownTable(
    ['benchmark', kind, ...(counter === undefined ? [] : ['n']), ...metrics.map(([, name]) => name)],
    lines,
  )
}

function spread(over: OverSeeds | undefined, isTokens: boolean, plus: boolean): string {
  if (over === undefined || over.mean === null) return '–'
  const text = (x: number | null): string => (isTokens ? (x ?? 0).toFixed(1) : percent(x, plus))
  return `**${text(over.mean)}** (${text(over.min)} to ${text(over.max)})`
}

function rowsOf(
  outcomes: readonly Outcome[],
  table: TableName | 'selectionDifferences',
): { benchmark: string; row: string; seeds: readonly Outcome[] }[] {
  const tables: Tables = outcomes[0]![table]
  return shownNames(tables).flatMap((benchmark) =>
    Object.keys(tables[benchmark] ?? {}).map((row) => ({ benchmark, row, seeds: outcomesOf(row, outcomes) })),
  )
}

/** One figure a line: ours with their intervals, means and ranges over seeds, and the paper's. */
function resultsCsv(outcomes: readonly Outcome[]): string {
  const header = ['from', 'group', 'table', 'benchmark', 'encoder', 'n', 'seed', 'metric', 'value', 'lo', 'hi']
  const lines: (string | number | null)[][] = []
  for (const group of new Set(outcomes.map((outcome) => outcome.group))) {
    const own = outcomes.filter((outcome) => outcome.group === group)
    for (const table of ['encoders', 'differences', 'selection', 'selectionDifferences'] as const) {
      for (const { benchmark, row, seeds } of rowsOf(own, table)) {
        for (const metric of Object.keys(seeds[0]![table][benchmark]?.[row] ?? {})) {
          const over = overSeeds(seeds, (outcome) => outcome[table][benchmark]?.[row]?.[metric])
          const name = [group, table, benchmark, row] as const
          for (const { seed, estimate } of over?.seeds ?? [])
            lines.push(['ours', ...name, estimate.n, seed ?? '', metric, estimate.value, estimate.lo, estimate.hi])
          if (over?.mean === null || over === undefined) continue
          for (const [of, value] of [
            ['mean', over.mean],
            ['min', over.min],
            ['max', over.max],
          ] as const)
            lines.push(['ours', ...name, '', of, metric, value, '', ''])
        }
      }
    }
  }
  for (const [metric, encoders] of Object.entries({
    decision_accuracy: PAPER.decision_accuracy,
    pruned_item_rate: PAPER.pruned_item_rate,
  })) {
    for (const [encoder, paper] of Object.entries(encoders)) {
      const name = ['paper', 'benchmarks', 'encoders'] as const
      if ('pooled' in paper) lines.push([...name, 'pooled', encoder, '', '', metric, paper.pooled, '', ''])
      for (const [of, value] of [
        ['min', paper.benchmarks[0]],
        ['max', paper.benchmarks[1]],
      ] as const)
        lines.push([...name, 'by benchmark', encoder, '', of, metric, value, '', ''])
    }
  }
  return stringify([header, ...lines])
}

function resultsJson(results: Results, outcomes: readonly Outcome[]): string {
  const reasons = differencesToPaper(outcomes)
  const value = {
    ...results,
    groups: Object.fromEntries(
      [...new Set(outcomes.map(({ group }) => group))].map((group) => {
        const own = outcomes.filter((outcome) => outcome.group === group)
        return [group, { evaluations: own.map(({ group: _, ...outcome }) => outcome), over_seeds: seedTables(own) }]
      }),
    ),
    paper: { ...PAPER, is_reproduction: reasons.length === 0, differs: reasons },
  }
  return `${JSON.stringify(value, null, 2)}\n`
}

/** Mean and range over the seeds, where there are several: table -> benchmark -> row -> metric. */
function seedTables(outcomes: readonly Outcome[]): Record<string, unknown> {
  if (outcomes.length < 2) return {}
  const tables = ['encoders', 'differences', 'selection', 'selectionDifferences'] as const
  const entries = tables.map((table) => {
    const byBenchmark = new Map<string, Record<string, unknown>>()
    for (const { benchmark, row, seeds } of rowsOf(outcomes, table)) {
      if (seeds.length < 2) continue
      const metrics = Object.keys(seeds[0]![table][benchmark]?.[row] ?? {}).map((metric) => {
        const { mean, min, max } = overSeeds(seeds, (outcome) => outcome[table][benchmark]?.[row]?.[metric])!
        return [metric, { mean, min, max }]
      })
      byBenchmark.set(benchmark, { ...byBenchmark.get(benchmark), [row]: Object.fromEntries(metrics) })
    }
    return [table, Object.fromEntries(byBenchmark)]
  })
  return Object.fromEntries(entries)
}

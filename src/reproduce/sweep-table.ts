import { join } from 'node:path'
import { stringify } from 'csv-stringify/sync'
import { accuracyOf, blindScores, type Estimate, markdownTable, percent, withInterval } from '../eval/index.ts'
import { writeFileAtomic } from '../support/files.ts'
import { heldOutInstances, type TrainSettings, type ValidationMetrics } from '../train/index.ts'
import { type Outcome, shownNames } from './outcome.ts'
import type { Plan, Trial } from './plan.ts'
import { looksLine, looksOf, outcomesOfTrial } from './results.ts'
import { resultOf } from './step.ts'
import type { TrainingResult } from './steps/train.ts'
import { placesOf, type Workspace } from './workspace.ts'

/** One configuration with one seed. */
interface SweepRow {
  configuration: string
  values: Record<string, unknown>
  branching: number
  seed: number | undefined
  /** On the validation part of the training data; the frozen encoder alone: on all of the training split. */
  validation: {
    decision_accuracy: number | null
    /** What selects: decision accuracy unless the settings name another metric. */
    selection: number | null
    frozen: number | null
    'always-left': number | null
    edge_accuracy: number | null
    decisions: number | null
    step: number | undefined
  }
  /** On dev, where the sweep asks for it. */
  dev: Outcome[]
}

/** Writes `sweep.md`, `sweep.csv` and `sweep.json` of a plan; every step is done. */
export async function writeSweep(workspace: Workspace, plan: Plan): Promise<string> {
  const { root } = workspace
  const rows: SweepRow[] = []
  for (const trial of plan.trials) rows.push(...(await rowsOf(workspace, trial)))
  const looks = await looksOf(
    root,
    rows.flatMap(({ dev }) => dev),
  )
  const file = (end: string): string => join(root, `sweep.${end}`)
  await writeFileAtomic(file('csv'), sweepCsv(workspace, rows))
  await writeFileAtomic(file('json'), sweepJson(workspace, rows, looks))
  await writeFileAtomic(file('md'), sweepMarkdown(workspace, rows, looks))
  return file('md')
}

async function rowsOf(workspace: Workspace, trial: Trial): Promise<SweepRow[]> {
  const { configuration, runs } = trial
  const { name, values, branching, train } = configuration
  const outcomes = await outcomesOfTrial(trial)
  const row = { configuration: name, values, branching }
  if (runs.length === 0) {
    const training = outcomes.find(({ group }) => group === 'training')
    const value = (encoder: string, metric: string): number | null =>
      training?.encoders.pooled?.[encoder]?.[metric]?.value ?? null
    const accuracy = value('frozen', 'decision_accuracy')
    const validation = {
      decision_accuracy: accuracy,
      selection: accuracy,
      frozen: accuracy,
      'always-left': value('always-left', 'decision_accuracy'),
      edge_accuracy: value('frozen', 'edge_accuracy'),
      decisions: training?.encoders.pooled?.frozen?.decision_accuracy?.n ?? null,
      step: undefined,
    }
    return [{ ...row, seed: undefined, validation, dev: outcomes.filter(({ group }) => group !== 'training') }]
  }
  const made: SweepRow[] = []
  for (const { seed, step } of runs) {
    const result = (await resultOf(placesOf(workspace.root).stamps, step)) as TrainingResult | undefined
    const selected = result?.selected.validation
    const validation = {
      decision_accuracy: selected?.decision_accuracy ?? null,
      selection: selectionOf(selected, train!),
      frozen: result?.frozen?.decision_accuracy ?? null,
      'always-left': await alwaysLeft(step.output, branching),
      edge_accuracy: selected?.edge_accuracy ?? null,
      decisions: selected?.decisions ?? null,
      step: result?.selected.step,
    }
    made.push({ ...row, seed, validation, dev: outcomes.filter((outcome) => outcome.seed === seed) })
  }
  return made
}

function selectionOf(metrics: ValidationMetrics | undefined, { selection }: TrainSettings): number | null {
  if (metrics === undefined) return null
  return selection === 'loss' ? -metrics.loss : metrics[selection]
}

/** What always going left would decide rightly on the run's validation part: it needs no encoder. */
async function alwaysLeft(run: string, branching: number): Promise<number | null> {
  const trees = (await heldOutInstances(run, branching)).map(({ benchmark, hierarchy, gold }) => {
    const scores = blindScores('always-left', hierarchy.nodes)
    return { benchmark, nodes: hierarchy.nodes, gold, scores }
  })
  const { decisionAccuracy, decisions } = accuracyOf(trees)
  return decisions === 0 ? null : decisionAccuracy
}

interface Best {
  branching: number
  configuration: string
  selection: number
  /** Configurations among which it is the best. */
  of: number
}

/** The configuration that is best on validation, for each branching: trees of different branching ask different things. */
function bestOf(rows: readonly SweepRow[]): Best[] {
  const best = new Map<number, Best>()
  for (const configuration of new Set(rows.map((row) => row.configuration))) {
    const own = rows.filter((row) => row.configuration === configuration)
    const { branching } = own[0]!
    const selection = meanOf(own.map(({ validation }) => validation.selection))
    if (selection === null) continue
    const before = best.get(branching)
    const of = (before?.of ?? 0) + 1
    if (before !== undefined && before.selection >= selection) best.set(branching, { ...before, of })
    else best.set(branching, { branching, configuration, selection, of })
  }
  return [...best.values()]
}

function meanOf(values: readonly (number | null)[]): number | null {
  const known = values.filter((value) => value !== null)
  return known.length < values.length || known.length === 0 ? null : known.reduce((a, b) => a + b, 0) / known.length
}

/** One value; of several seeds mean and range. */
function overSeedsText(values: readonly (number | null)[]): string {
  const mean = meanOf(values)
  if (mean === null || values.length === 1) return percent(mean)
  const known = values as readonly number[]
  return `${percent(mean)} (${percent(Math.min(...known))} to ${percent(Math.max(...known))})`
}

const DEV_METRICS = [
  'decision_accuracy',
  'edge_accuracy',
  'retained_tokens',
  'gold_recall',
  'gold_precision',
  'gold_f1',
]
const settingText = (value: unknown): string => (typeof value === 'object' ? JSON.stringify(value) : String(value))

type Looks = Awaited<ReturnType<typeof looksOf>>

function sweepMarkdown({ config }: Workspace, rows: readonly SweepRow[], looks: Looks): string {
  const { axes, mode, evaluate, seeds } = config.sweep!
  const trained = config.train !== undefined
  const several = new Set(rows.map(({ branching }) => branching)).size > 1
  const configurations = [...new Set(rows.map(({ configuration }) => configuration))]
  const parts = [
    `# Sweep of ${config.name}`,
    [
      `- ${configurations.length} configurations (${mode}) over ${axes.join(', ')}${trained ? `, seeds ${seeds.join(', ')}` : ', frozen encoder only'}`,
      trained
        ? `- Selection is on validation: a part of the training data, by source, that no run trains on (${config.train!.selection.replaceAll('_', ' ')})`
        : '- Nothing is trained, so the training split itself is what configurations are compared on',
      ...(several
        ? [
            '- Trees of different branching have different decision nodes: their accuracies are not on one scale, so compare each with its always-left',
          ]
        : []),
      ...(evaluate ? [] : ['- Dev was not looked at; `sweep.evaluate: true` measures every configuration on it, too']),
      ...looks.map(
        (look) => `- ${looksLine(look)}. The best of a sweep on dev is no honest result of dev: select on validation`,
      ),
    ].join('\n'),
    `## ${trained ? 'Validation' : 'Training split'}`,
    markdownTable(
      [
        'configuration',
        ...axes,
        'decision nodes',
        'decision accuracy',
        'frozen',
        'always-left',
        'edge accuracy',
        'selected step',
      ],
      configurations.map((name) => {
        const own = rows.filter(({ configuration }) => configuration === name)
        const of = (key: 'decision_accuracy' | 'frozen' | 'always-left' | 'edge_accuracy'): string =>
          overSeedsText(own.map(({ validation }) => validation[key]))
        return [
          name,
          ...axes.map((axis) => settingText(own[0]!.values[axis])),
          own.map(({ validation }) => validation.decisions ?? '–').join(', '),
          ...(['decision_accuracy', 'frozen', 'always-left', 'edge_accuracy'] as const).map(of),
          own.map(({ validation }) => validation.step ?? '–').join(', '),
        ]
      }),
    ),
    ...bestOf(rows).flatMap(({ branching, configuration, of }) =>
      of === 1
        ? []
        : [
            `Best on ${trained ? 'validation' : 'the training split'}${several ? `, of those with branching ${branching}` : ''}: **${configuration}**.`,
          ],
    ),
  ]
  if (evaluate) parts.push('## Dev', devTable(rows))
  return `${parts.join('\n\n')}\n`
}

function devTable(rows: readonly SweepRow[]): string {
  return markdownTable(
    [
      'configuration',
      'seed',
      'benchmark',
      'encoder',
      'decision accuracy',
      'always-left',
      'tokens retained',
      'recall',
      'precision',
      'F1',
    ],
    rows.flatMap(({ configuration, seed, dev }) =>
      dev.flatMap(({ encoders }) =>
        shownNames(encoders).map((benchmark) => {
          const encoder = encoders[benchmark]?.['fine-tuned'] === undefined ? 'frozen' : 'fine-tuned'
          const estimate = (metric: string): Estimate | undefined => encoders[benchmark]?.[encoder]?.[metric]
          return [
            configuration,
            seed === undefined ? '–' : String(seed),
            benchmark,
            encoder,
            withInterval(estimate('decision_accuracy')),
            percent(encoders[benchmark]?.['always-left']?.decision_accuracy?.value),
            ...['retained_tokens', 'gold_recall', 'gold_precision', 'gold_f1'].map((metric) =>
              withInterval(estimate(metric)),
            ),
          ]
        }),
      ),
    ),
  )
}

function sweepCsv({ config }: Workspace, rows: readonly SweepRow[]): string {
  const { axes } = config.sweep!
  const names = new Set(rows.flatMap(({ dev }) => dev.flatMap(({ encoders }) => shownNames(encoders))))
  const columns = [...names].flatMap((benchmark) => DEV_METRICS.map((metric) => ({ benchmark, metric })))
  const validation = ['decisions', 'decision_accuracy', 'frozen', 'always-left', 'edge_accuracy'] as const
  const header = [
    ...['configuration', 'seed', ...axes],
    ...validation.map((name) => `validation_${name.replace('-', '_')}`),
    ...columns.flatMap(({ benchmark, metric }) => ['', '_lo', '_hi'].map((end) => `dev_${benchmark}_${metric}${end}`)),
  ]
  const lines = rows.map((row) => [
    ...[row.configuration, row.seed ?? '', ...axes.map((axis) => settingText(row.values[axis]))],
    ...validation.map((name) => row.validation[name]),
    ...columns.flatMap(({ benchmark, metric }) => {
      const rowsHere = row.dev.map(({ encoders }) => encoders[benchmark]).find((found) => found !== undefined)
      const estimate = (rowsHere?.['fine-tuned'] ?? rowsHere?.frozen)?.[metric]
      return [estimate?.value, estimate?.lo, estimate?.hi]
    }),
  ])
  return stringify([header, ...lines])
}

function sweepJson({ config }: Workspace, rows: readonly SweepRow[], looks: Looks): string {
  const { axes, mode, seeds } = config.sweep!
  const value = {
    schema: 'canopy-sweep/1',
    name: config.name,
    ...{ mode, axes, seeds: config.train === undefined ? [] : seeds },
    best: bestOf(rows).map(({ branching, configuration }) => ({ branching, configuration })),
    looks,
    rows: rows.map(({ dev, ...row }) => ({
      ...row,
      dev: dev.map(({ group, encoders, selection }) => ({ group, encoders, selection })),
    })),
  }
  return `${JSON.stringify(value, null, 2)}\n`
}

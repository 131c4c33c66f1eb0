import { join } from 'node:path'
import { type Benchmark, evaluated, trainedOn, transferred } from './config.ts'
import type { Step } from './step.ts'
import { encoderStep } from './steps/encoder.ts'
import { evaluateStep } from './steps/evaluate.ts'
import { exportStep } from './steps/export.ts'
import { sourceOf } from './steps/import.ts'
import { preferencesStep } from './steps/preferences.ts'
import { reportStep } from './steps/report.ts'
import { trainStep } from './steps/train.ts'
import type { Configuration } from './sweep.ts'
import type { Source, Workspace } from './workspace.ts'

/**
 * Which benchmarks share a table: those trained on, measured on dev; those that nothing is trained on; and those trained on,
 * measured on their training split, where nothing is trained.
 */
export type Group = 'benchmarks' | 'transfer' | 'training'

export interface PlannedRun {
  seed: number
  step: Step
}

export interface PlannedEvaluation {
  group: Group
  /** Of the training run; undefined for the frozen encoder alone. */
  seed: number | undefined
  step: Step
}

/** A configuration with its steps. */
export interface Trial {
  configuration: Configuration
  preferences: Step[]
  runs: PlannedRun[]
  evaluations: PlannedEvaluation[]
}

/** All steps in the order in which they run, and what they belong to. */
export interface Plan {
  steps: Step[]
  sources: Source[]
  /** One, or one for each configuration of a sweep. */
  trials: Trial[]
  exported: Step | undefined
}

/** The steps of a configuration file. A sweep trains its configurations in folders of their own, on the same data. */
export function planOf(workspace: Workspace): Plan {
  const { config, root } = workspace
  const sources = new Map(config.benchmarks.map((benchmark) => [benchmark, sourceOf(workspace, benchmark)]))
  const of = (benchmarks: Benchmark[]): Source[] => benchmarks.map((benchmark) => sources.get(benchmark)!)
  const groups: Record<Group, Source[]> = {
    benchmarks: of(evaluated(config.benchmarks)),
    transfer: of(transferred(config.benchmarks)),
    training: of(trainedOn(config.benchmarks)),
  }
  const encoder =
    typeof config.encoder === 'string' ? undefined : encoderStep(workspace, config.encoder.random, groups.training)
  const preferences = sharedPreferences(workspace, groups.training)

  const { sweep } = config
  const configurations = sweep?.configurations ?? [
    { name: 'base', values: {}, branching: config.branching, train: config.train },
  ]
  const wanted: Group[] = sweep === undefined || sweep.evaluate ? ['benchmarks', 'transfer'] : []
  // without training there is no validation part: the frozen encoder may as well be measured on all of the training split
  if (sweep !== undefined && config.train === undefined) wanted.unshift('training')
  const seeds = config.train === undefined ? [] : (sweep?.seeds ?? config.seeds)
  const evaluationsPlanned = configurations.length * Math.max(1, seeds.length)

  const trials = configurations.map((configuration): Trial => {
    const { name, branching, train } = configuration
    const folder = sweep === undefined ? root : join(root, 'sweep', name)
    const label = (text: string): string => (sweep === undefined ? text : `${text}, ${name}`)
    const pairs = train === undefined ? [] : preferences(branching)
    const runs = seeds.map((seed): PlannedRun => {
      const settings = { ...train!, seed }
      const options = { folder: join(folder, `seed-${seed}`), settings, sources: groups.training, preferences: pairs }
      return { seed, step: trainStep(workspace, { id: label(`train seed ${seed}`), ...options, encoder }) }
    })
    const evaluations = wanted.flatMap((group) => {
      if (groups[group].length === 0) return []
      return (runs.length === 0 ? [undefined] : runs).map((run): PlannedEvaluation => {
        const options = {
          id: label(`evaluate ${group}${run === undefined ? ', frozen' : `, seed ${run.seed}`}`),
          output: join(run?.step.output ?? join(folder, 'frozen'), FOLDERS[group]),
          sources: groups[group],
          part: group === 'training' ? ('train' as const) : ('dev' as const),
          run: run?.step,
          frozen: {
            title: train?.title ?? config.evaluate.title ?? true,
            tableFormat: train?.tableFormat ?? config.evaluate.tableFormat ?? ('markdown' as const),
            branching,
          },
          encoder,
          cache: evaluationsPlanned > 1,
        }
        return { group, seed: run?.seed, step: evaluateStep(workspace, options) }
      })
    })
    return { configuration, preferences: pairs, runs, evaluations }
  })

  const runSteps = trials.flatMap(({ runs }) => runs.map(({ step }) => step))
  const evaluateSteps = trials.flatMap(({ evaluations }) => evaluations.map(({ step }) => step))
  const exported =
    config.export && sweep === undefined && config.train !== undefined
      ? exportStep(workspace, config.train, runSteps, evaluateSteps)
      : undefined
  const all = [...sources.values()]
  const report = config.report && runSteps.length + evaluateSteps.length > 0
  const steps = [
    ...all.flatMap(({ step }) => step ?? []),
    ...(encoder === undefined ? [] : [encoder]),
    ...new Set(trials.flatMap((trial) => trial.preferences)),
    ...trials.flatMap(({ runs, evaluations }) => [...runs, ...evaluations].map(({ step }) => step)),
    ...(exported === undefined ? [] : [exported]),
    ...(report ? [reportStep(workspace, runSteps, evaluateSteps, all)] : []),
  ]
  return { steps, sources: all, trials, exported }
}

const FOLDERS: Record<Group, string> = { benchmarks: 'eval', transfer: 'eval-transfer', training: 'eval-training' }

/** The preferences of a branching factor, which all configurations with it share. */
function sharedPreferences(workspace: Workspace, sources: Source[]): (branching: number) => Step[] {
  const made = new Map<number, Step[]>()
  return (branching) => {
    const steps = made.get(branching) ?? sources.map((source) => preferencesStep(workspace, source, branching))
    made.set(branching, steps)
    return steps
  }
}

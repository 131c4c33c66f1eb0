import { readFile, rm } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { exists } from '../../support/files.ts'
import {
  hashLossModule,
  isLossModule,
  machine,
  type RunConfig,
  runPaths,
  type TrainResult,
  type TrainSettings,
  train,
  versions,
} from '../../train/index.ts'
import { flatInputs, type Inputs } from '../stamps.ts'
import type { Step } from '../step.ts'
import {
  encoderInputs,
  hashOfSplit,
  placesOf,
  readPair,
  type Source,
  versionInputs,
  type Workspace,
} from '../workspace.ts'

export type TrainingResult = Omit<TrainResult, 'adapter'>

export interface TrainStepOptions {
  id: string
  /** The run's folder. */
  folder: string
  settings: TrainSettings
  sources: readonly Source[]
  /** Of each source. */
  preferences: readonly Step[]
  encoder: Step | undefined
}

/** A training run on all of the sources together. A killed one goes on from its last checkpoint. */
export function trainStep(workspace: Workspace, options: TrainStepOptions): Step {
  const { id, folder, settings, sources, preferences, encoder } = options
  const { hashes } = workspace
  const { adapter } = runPaths(folder)
  // threads change bits and nothing else, checkpoints nothing at all
  const { threads: _threads, checkpointEvery: _every, keep: _keep, adapter: start, ...others } = settings
  // of a loss module and of an adapter it is the text that counts, which is among the content
  const decisive = isLossModule(settings.loss) ? { ...others, loss: 'a module' } : others
  return {
    kind: 'train',
    id,
    output: folder,
    resumes: true,
    after: [...preferences, ...(encoder === undefined ? [] : [encoder])],
    settings: {
      ...flatInputs(decisive, 'train.'),
      benchmarks: sources.map(({ benchmark }) => benchmark.name).join(', '),
      ...versionInputs(),
    },
    async content() {
      const inputs: Inputs = await encoderInputs(workspace)
      if (start !== null) inputs['adapter that training begins from'] = await hashes.of(start)
      if (isLossModule(settings.loss)) inputs['loss module'] = (await hashLossModule(settings.loss)).sha256
      for (const [i, { benchmark, folder: dataset }] of sources.entries()) {
        inputs[`data of ${benchmark.name}`] = await hashOfSplit(workspace, dataset, benchmark.splits.train)
        inputs[`preferences of ${benchmark.name}`] = await hashes.of(preferences[i]!.output)
      }
      return inputs
    },
    async products() {
      return (await exists(adapter)) ? { adapter: await hashes.of(adapter) } : undefined
    },
    async run({ resume, onProgress, onTraining, warn, signal }): Promise<TrainingResult> {
      if (resume && (await exists(folder)) && !(await canGoOn(folder, settings))) {
        warn('The run began on another machine, or with other versions or threads; it begins again.')
        await rm(folder, { recursive: true, force: true })
      }
      const pair = await readPair(workspace, settings.adapter ?? undefined, settings)
      const { adapter: _, ...result } = await train({
        encoder: pair.encoder,
        queryEncoder: pair.query,
        datasets: sources.map((source) => source.folder),
        preferences: preferences.map(({ output }) => output),
        output: folder,
        cache: placesOf(workspace.root).cache,
        settings,
        resume: true,
        command: ['canopy', ...process.argv.slice(2)],
        onProgress,
        ...(onTraining !== undefined && { onStep: onTraining }),
        warn,
        ...(signal !== undefined && { signal }),
      })
      return result
    },
  }
}

/** Whether the checkpoints of a run that began earlier are of this machine, these versions and as many threads. */
async function canGoOn(folder: string, settings: TrainSettings): Promise<boolean> {
  const text = await readFile(runPaths(folder).config, 'utf8').catch(() => '')
  let begun: RunConfig
  try {
    begun = JSON.parse(text) as RunConfig
  } catch {
    // Missing or damaged: training itself sees whether its checkpoints will do.
    return true
  }
  const same = JSON.stringify(begun.versions) === JSON.stringify(await versions())
  return same && begun.machine === machine() && begun.threads === (settings.threads ?? availableParallelism())
}

import { join } from 'node:path'
import { openPair, settingsDrift } from '../../encoder/index.ts'
import { EVALUATION_FILES, evaluate, type LookCount, readTrainingData } from '../../eval/index.ts'
import { exists } from '../../support/files.ts'
import { runPaths } from '../../train/index.ts'
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

export interface EvaluationResult {
  looks: LookCount | undefined
}

export interface EvaluateStepOptions {
  id: string
  /** Folder of the results. */
  output: string
  sources: readonly Source[]
  part: 'train' | 'dev'
  /** The training run; without one the frozen encoder alone is measured. */
  run: Step | undefined
  /** How the frozen encoder's nodes are made; a trained one's are as it was trained. */
  frozen: { title: boolean; tableFormat: 'markdown' | 'key-value'; branching: number }
  encoder: Step | undefined
  /** Keep embeddings for other evaluations. */
  cache: boolean
}

/** One evaluation of benchmarks that share a table. */
export function evaluateStep(workspace: Workspace, options: EvaluateStepOptions): Step {
  const { id, output, sources, part, run, frozen, encoder, cache } = options
  const { hashes, config, root } = workspace
  const { threads, tokenBudget, ...settings } = config.evaluate
  const adapter = run === undefined ? undefined : runPaths(run.output).adapter
  const split = sources[0]!.benchmark.splits[part]
  return {
    kind: 'evaluate',
    id,
    output,
    after: [...sources.flatMap(({ step }) => step ?? []), ...[encoder, run].filter((step) => step !== undefined)],
    settings: {
      ...flatInputs(settings, 'evaluate.'),
      ...(run === undefined && flatInputs(frozen)),
      benchmarks: sources.map(({ benchmark }) => benchmark.name).join(', '),
      split,
      ...versionInputs(),
    },
    async content() {
      const inputs: Inputs = await encoderInputs(workspace)
      if (adapter !== undefined) inputs.adapter = await hashes.of(adapter)
      for (const { benchmark, folder } of sources)
        inputs[`data of ${benchmark.name}`] = await hashOfSplit(workspace, folder, split)
      return inputs
    },
    async products() {
      const made: Inputs = {}
      for (const name of EVALUATION_FILES) {
        const file = join(output, name)
        if (!(await exists(file))) return undefined
        made[name] = await hashes.of(file)
      }
      return made
    },
    async run({ onProgress, warn, signal }): Promise<EvaluationResult> {
      const pair = await readPair(workspace, adapter)
      if (pair.trained) for (const difference of settingsDrift(pair.settings)) warn(`${difference}.`)
      const trained = pair.trained ? pair.settings : frozen
      const { query, node, close } = await openPair(pair, {
        ...(threads !== undefined && { threads }),
        ...(tokenBudget !== undefined && { tokenBudget }),
        ...(cache && { cache: placesOf(root).cache }),
      })
      try {
        const { reader } = node
        const special = reader.count('')
        const { looks } = await evaluate({
          datasets: sources.map(({ folder }) => folder),
          split,
          query,
          frozen: query,
          fineTuned: node === query ? undefined : node,
          names: {
            query: pair.query.id,
            frozen: pair.query.id,
            fineTuned: run === undefined ? pair.encoder.id : `${pair.encoder.id}, ${run.id}`,
          },
          countTokens: (text) => reader.count(text) - special,
          tokenizer: pair.encoder.id,
          title: settings.title ?? trained.title,
          tableFormat: settings.tableFormat ?? trained.tableFormat,
          branching: settings.branching ?? trained.branching,
          seed: String(settings.seed),
          resamples: settings.resamples,
          retrieved: settings.retrieved,
          trainingData: adapter === undefined ? undefined : await readTrainingData(adapter),
          allowOverlap: settings.allowOverlap,
          onError: settings.onError,
          output,
          ...(part === 'dev' && { looksFile: placesOf(root).looks }),
          onProgress,
          signal,
        })
        return { looks }
      } finally {
        await close()
      }
    },
  }
}

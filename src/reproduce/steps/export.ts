import { join } from 'node:path'
import { CANOPY_FILE } from '../../encoder/index.ts'
import { readTrainingData } from '../../eval/index.ts'
import { exportEncoder, measuredTable, type SelfCheck } from '../../export/index.ts'
import { exists } from '../../support/files.ts'
import { heldOutInstances, runPaths, type TrainSettings } from '../../train/index.ts'
import { resultOf, type Step } from '../step.ts'
import { encoderInputs, placesOf, programVersion, readPair, versionInputs, type Workspace } from '../workspace.ts'
import type { TrainingResult } from './train.ts'

export interface ExportResult {
  /** The training run that was exported. */
  run: string
  check: SelfCheck
}

/** Held-out items on which the written files are compared with the trained encoder. */
const CHECK_ITEMS = 200

/** Exports the run that does best on its validation part. */
export function exportStep(
  workspace: Workspace,
  settings: TrainSettings,
  runs: readonly Step[],
  evaluations: readonly Step[],
): Step {
  const { root, hashes } = workspace
  const { export: output, stamps } = placesOf(root)
  const chosen = () => bestRun(stamps, runs, settings.selection)
  return {
    kind: 'export',
    id: 'export',
    output,
    after: [...runs, ...evaluations],
    settings: { selection: settings.selection, ...versionInputs() },
    async content() {
      const run = await chosen()
      const summary = join(run.output, 'eval', 'summary.md')
      return {
        run: run.id,
        ...(await encoderInputs(workspace)),
        adapter: await hashes.of(runPaths(run.output).adapter),
        ...((await exists(summary)) && { table: await hashes.of(summary) }),
      }
    },
    async products() {
      if (!(await exists(join(output, CANOPY_FILE)))) return undefined
      return { files: await hashes.of(output) }
    },
    async run({ onProgress, signal }): Promise<ExportResult> {
      const run = await chosen()
      const { adapter } = runPaths(run.output)
      const pair = await readPair(workspace, adapter)
      const check = await exportEncoder({
        encoder: pair.encoder,
        adapter: pair.adapter,
        queryEncoder: pair.query,
        settings: pair.settings,
        output,
        bundle: true,
        instances: await heldOutInstances(run.output, pair.settings.branching, CHECK_ITEMS),
        trainingData: await readTrainingData(adapter),
        table: await measuredTable(run.output),
        version: programVersion(),
        ...(workspace.config.evaluate.threads !== undefined && { threads: workspace.config.evaluate.threads }),
        onProgress,
        signal,
      })
      return { run: run.id, check }
    },
  }
}

/** The run whose selected adapter has the best figure on the validation part; the first of equals. */
async function bestRun(stamps: string, runs: readonly Step[], selection: TrainSettings['selection']): Promise<Step> {
  let best = runs[0]!
  let bestValue = Number.NEGATIVE_INFINITY
  for (const run of runs) {
    const { selected } = ((await resultOf(stamps, run)) ?? {}) as Partial<TrainingResult>
    const figure = selected?.validation?.[selection]
    const value = typeof figure === 'number' ? (selection === 'loss' ? -figure : figure) : Number.NEGATIVE_INFINITY
    if (value > bestValue) [best, bestValue] = [run, value]
  }
  return best
}

import { openDataset } from '../../data/index.ts'
import { buildPreferences, type PreferenceSummary } from '../../preferences/index.ts'
import { exists } from '../../support/files.ts'
import type { Step } from '../step.ts'
import { hashOfSplit, placesOf, type Source, versionInputs, type Workspace } from '../workspace.ts'

export type PreferencesResult = Omit<PreferenceSummary, 'output'>

/** The preference pairs of a benchmark's training split. */
export function preferencesStep(workspace: Workspace, source: Source, branching: number): Step {
  const { hashes, root } = workspace
  const { benchmark, folder, step } = source
  const { name, splits, variants } = benchmark
  const output = placesOf(root).preferences(name, branching)
  return {
    kind: 'preferences',
    id: `preferences ${name}, branching ${branching}`,
    output,
    after: step === undefined ? [] : [step],
    settings: { split: splits.train, variants, branching: String(branching), ...versionInputs() },
    async content() {
      return { [`data of ${name}`]: await hashOfSplit(workspace, folder, splits.train) }
    },
    async products() {
      return (await exists(output)) ? { preferences: await hashes.of(output) } : undefined
    },
    async run({ onProgress, signal }): Promise<PreferencesResult> {
      const dataset = await openDataset(folder)
      try {
        const options = { dataset, split: splits.train, output, branching, variants, onProgress, signal }
        const { output: _, ...summary } = await buildPreferences(options)
        return summary
      } finally {
        await dataset.close()
      }
    },
  }
}

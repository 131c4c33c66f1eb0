import { writeReport } from '../../report/index.ts'
import { exists } from '../../support/files.ts'
import type { Inputs } from '../stamps.ts'
import type { Step } from '../step.ts'
import { placesOf, type Source, versionInputs, type Workspace } from '../workspace.ts'

/** One HTML page of all runs and evaluations. */
export function reportStep(
  { root, hashes }: Workspace,
  runs: readonly Step[],
  evaluations: readonly Step[],
  sources: readonly Source[],
): Step {
  const { report: output } = placesOf(root)
  return {
    kind: 'report',
    id: 'report',
    output,
    after: [...runs, ...evaluations],
    settings: versionInputs(),
    async content() {
      const inputs: Inputs = {}
      for (const step of [...runs, ...evaluations]) {
        for (const [name, hash] of Object.entries((await step.products()) ?? {})) inputs[`${name} of ${step.id}`] = hash
      }
      return inputs
    },
    async products() {
      return (await exists(output)) ? { page: await hashes.of(output) } : undefined
    },
    async run({ onProgress, signal, warn }) {
      const summary = await writeReport({
        folders: [...runs, ...evaluations].map((step) => step.output),
        datasets: sources.map(({ folder }) => folder),
        output,
        onProgress,
        signal,
      })
      for (const note of summary.notes) warn(note)
      return summary
    },
  }
}

import { openDataset } from '../../data/index.ts'
import { createRandomBert, readEncoder } from '../../encoder/index.ts'
import { buildHierarchy, readsAsText, renderNode } from '../../hierarchy/index.ts'
import { exists } from '../../support/files.ts'
import type { Step } from '../step.ts'
import { hashOfSplit, placesOf, type Source, versionInputs, type Workspace } from '../workspace.ts'

/** A small BERT with random weights, whose vocabulary comes from what is trained on. */
export function encoderStep(workspace: Workspace, seed: number, sources: readonly Source[]): Step {
  const { encoder: output } = placesOf(workspace.root)
  return {
    kind: 'encoder',
    id: 'encoder',
    output,
    after: sources.flatMap(({ step }) => step ?? []),
    settings: { 'encoder.random': String(seed), ...versionInputs() },
    async content() {
      const hashes = sources.map(async ({ benchmark, folder }) => [
        `data of ${benchmark.name}`,
        await hashOfSplit(workspace, folder, benchmark.splits.train),
      ])
      return Object.fromEntries(await Promise.all(hashes)) as Record<string, string>
    },
    async products() {
      return (await exists(output)) ? { encoder: (await readEncoder(output)).fingerprint } : undefined
    },
    async run() {
      const from = sources.map(({ benchmark, folder }) => ({ folder, split: benchmark.splits.train }))
      await createRandomBert(output, { seed, vocabularyFrom: await trainingTexts(from) })
    },
  }
}

/** What a random encoder's vocabulary is made from: questions and gold items of the training splits, nothing of others. */
export async function trainingTexts(sources: readonly { folder: string; split: string }[]): Promise<string[]> {
  const texts: string[] = []
  for (const { folder, split } of sources) {
    const dataset = await openDataset(folder)
    try {
      const seen = new Set<string>()
      for await (const { question } of dataset.questions(split)) {
        texts.push(question.question)
        for (const { item: id } of question.gold) {
          if (seen.has(id)) continue
          seen.add(id)
          const item = await dataset.item(id)
          if (!readsAsText(item)) continue
          const hierarchy = buildHierarchy(item)
          texts.push(renderNode(hierarchy, hierarchy.root, { title: true }))
        }
      }
    } finally {
      await dataset.close()
    }
  }
  return texts
}

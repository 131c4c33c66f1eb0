import { openDataset } from '../data/index.ts'
import { buildHierarchy, type GoldEntry, goldLeaves, type Question } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import type { CheckInstance } from './self-check.ts'

/**
 * Gold items of a data set's split with their questions, for a self-check without a run: `most` of them, spread evenly over the split.
 *
 * @throws InputError for a folder that is no data set, and for a split without gold
 */
export async function checkInstances(
  folder: string,
  split: string,
  branching: number,
  most: number,
): Promise<CheckInstance[]> {
  const dataset = await openDataset(folder)
  try {
    const gold: { question: Question; entry: GoldEntry }[] = []
    for await (const { question } of dataset.questions(split))
      for (const entry of question.gold) gold.push({ question, entry })
    if (gold.length === 0)
      throw new InputError(`The split "${split}" has no gold, so that no export can be compared on it.`, {
        file: folder,
      })
    const count = Math.min(most, gold.length)
    const instances: CheckInstance[] = []
    for (let i = 0; i < count; i++) {
      const { question, entry } = gold[Math.floor((i * gold.length) / count)]!
      const hierarchy = buildHierarchy(await dataset.item(entry.item), branching)
      const { gold: leaves } = goldLeaves(hierarchy, entry)
      instances.push({ benchmark: question.benchmark, question: question.question, hierarchy, folder, gold: leaves })
    }
    return instances
  } finally {
    await dataset.close()
  }
}

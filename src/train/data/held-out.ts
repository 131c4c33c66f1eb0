import { readFile } from 'node:fs/promises'
import { type Dataset, openDataset, readJsonLines } from '../../data/index.ts'
import { buildHierarchy, type GoldEntry, goldLeaves, type Hierarchy, type Question } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { writeFileAtomic } from '../../support/files.ts'
import { type RunConfig, runPaths } from '../run/folder.ts'
import type { TrainingSet } from './training-set.ts'

/** A line of the file that lists a run's validation instances. */
interface Line {
  /** Index into config.json's `data`. */
  data: number
  question: string
  item: string
}

/** Writes which instances select the adapter and are not trained on. */
export async function writeHeldOut(folder: string, set: TrainingSet, validation: Int32Array): Promise<void> {
  const lines: string[] = []
  for (const instance of validation) lines.push(`${JSON.stringify(await set.name(instance))}\n`)
  await writeFileAtomic(runPaths(folder).heldOut, lines.join(''))
}

/**
 * The validation instances of a run: questions and items that its adapter was not trained on, though it was selected on them.
 *
 * @throws InputError when the folder is no run, or its datasets are gone or changed
 */
export async function* heldOut(
  folder: string,
): AsyncIterable<{ dataset: string; question: Question; entry: GoldEntry }> {
  const { config: file } = runPaths(folder)
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    throw new InputError('There is no such file, so the folder is no run.', { file }, error)
  })
  const { data: parts } = JSON.parse(text) as Partial<RunConfig>
  if (!Array.isArray(parts)) throw new InputError('There is no "data" in it, so the folder is no run.', { file })
  const wanted = parts.map(() => new Map<string, Set<string>>())
  for await (const { value } of readJsonLines(runPaths(folder).heldOut)) {
    const { data, question, item } = value as Line
    const items = wanted[data]?.get(question) ?? new Set()
    wanted[data]?.set(question, items.add(item))
  }
  for (const [i, { folder: dataset, split }] of parts.entries()) {
    if (wanted[i]?.size === 0) continue
    const opened = await openDataset(dataset)
    try {
      for await (const { question } of opened.questions(split)) {
        const items = wanted[i]?.get(question.id)
        for (const entry of question.gold) if (items?.has(entry.item)) yield { dataset, question, entry }
      }
    } finally {
      await opened.close()
    }
  }
}

/** A validation instance with its tree. */
export interface HeldOutInstance {
  benchmark: string
  question: string
  hierarchy: Hierarchy
  /** The dataset's, in which pictures and videos lie. */
  folder: string
  /** Whether each leaf is gold. */
  gold: boolean[]
}

/**
 * The validation instances of a run with their trees, `most` of them at most.
 *
 * @throws InputError as {@link heldOut}
 */
export async function heldOutInstances(
  folder: string,
  branching: number,
  most = Number.POSITIVE_INFINITY,
): Promise<HeldOutInstance[]> {
  const instances: HeldOutInstance[] = []
  const datasets = new Map<string, Dataset>()
  try {
    for await (const { dataset: path, question, entry } of heldOut(folder)) {
      if (instances.length >= most) break
      const dataset = datasets.get(path) ?? (await openDataset(path))
      datasets.set(path, dataset)
      const hierarchy = buildHierarchy(await dataset.item(entry.item), branching)
      const { gold } = goldLeaves(hierarchy, entry)
      instances.push({ benchmark: question.benchmark, question: question.question, hierarchy, folder: path, gold })
    }
    return instances
  } finally {
    for (const dataset of datasets.values()) await dataset.close()
  }
}

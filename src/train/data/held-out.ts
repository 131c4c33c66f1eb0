import { readFile } from 'node:fs/promises'
import { z } from 'zod'
import { type Dataset, openDataset, parseWith, readJsonLines } from '../../data/index.ts'
import { buildHierarchy, type GoldEntry, goldLeaves, type Hierarchy, type Question } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { writeFileAtomic } from '../../support/files.ts'
import { runPaths } from '../run/folder.ts'
import type { TrainingSet } from './training-set.ts'

/** A line of the file that lists a run's validation instances; `data` is an index into config.json's `data`. */
const lineSchema = z.object({ data: z.int().min(0), question: z.string(), item: z.string() })
/** What config.json says of the data. */
const dataSchema = z.array(z.object({ folder: z.string(), split: z.string() }))

/** Writes which instances select the adapter and are not trained on. */
export async function writeHeldOut(folder: string, set: TrainingSet, validation: Int32Array): Promise<void> {
  const lines: string[] = []
  for (const instance of validation) lines.push(`${JSON.stringify(await set.name(instance))}\n`)
  await writeFileAtomic(runPaths(folder).heldOut, lines.join(''))
}

/** The validation instances of a run that lie in one split of one dataset. */
export interface HeldOutPart {
  folder: string
  split: string
  /** Question id -> items. */
  only: Map<string, Set<string>>
}

/**
 * Which instances of which datasets are a run's validation instances; the datasets are not looked at.
 *
 * @throws InputError when the folder is no run, or does not list them
 */
export async function heldOutParts(folder: string): Promise<HeldOutPart[]> {
  const { config: file } = runPaths(folder)
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    throw new InputError('There is no such file, so the folder is no run.', { file }, error)
  })
  const data = dataSchema.safeParse(dataOf(text))
  if (!data.success) throw new InputError('There is no "data" in it, so the folder is no run.', { file })
  const parts = data.data.map(({ folder, split }) => ({ folder, split, only: new Map<string, Set<string>>() }))
  const { heldOut } = runPaths(folder)
  for await (const { value, line } of readJsonLines(heldOut)) {
    const { data, question, item } = parseWith(lineSchema, value, { file: heldOut, line }, 'validation instance')
    const only = parts[data]?.only
    if (only === undefined)
      throw new InputError(`It names dataset ${data}, but the run has ${parts.length}, counted from 0.`, {
        file: heldOut,
        line,
      })
    only.set(question, (only.get(question) ?? new Set()).add(item))
  }
  return parts
}

/** `data` of a config.json; undefined where the text is none. */
function dataOf(text: string): unknown {
  try {
    return (JSON.parse(text) as { data?: unknown } | null)?.data
  } catch {
    return undefined
  }
}

/**
 * The validation instances of a run: questions and items that its adapter was not trained on, though it was selected on them.
 *
 * @throws InputError when the folder is no run, or its datasets are gone or changed
 */
export async function* heldOut(
  folder: string,
): AsyncIterable<{ dataset: string; question: Question; entry: GoldEntry }> {
  for (const { folder: dataset, split, only } of await heldOutParts(folder)) {
    if (only.size === 0) continue
    const opened = await openDataset(dataset)
    try {
      for await (const { question } of opened.questions(split)) {
        const items = only.get(question.id)
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
 * The validation instances of a run with their trees, `most` of them at most, spread evenly over its data sets.
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
  const total = (await heldOutParts(folder))
    .flatMap(({ only }) => [...only.values()])
    .reduce((n, { size }) => n + size, 0)
  const wanted = Math.min(most, total)
  let at = 0
  try {
    for await (const { dataset: path, question, entry } of heldOut(folder)) {
      // the first, and every one with which the share that was seen reaches another of those wanted
      const [before, now] = [at - 1, at++].map((n) => Math.floor((n * wanted) / total))
      if (before === now) continue
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

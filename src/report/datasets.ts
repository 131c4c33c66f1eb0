import { type Dataset, openDataset, splitHash } from '../data/index.ts'
import { InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import type { ReportEvaluation } from './evaluation.ts'

/**
 * Opens the datasets that an evaluation was made on, in its order: they hold the texts that the scores belong to. Each is known by
 * its name and by the hash of the split.
 *
 * @param given folders that the user names; one that goes by an evaluated name has to be the one evaluated
 * @param guesses folders to look in besides; what is not the dataset there is passed over
 * @returns undefined in the place of a dataset that was not found; the caller closes the others
 * @throws InputError for a given folder that cannot be read, or has changed since the evaluation
 */
export async function openEvaluated(
  { evaluation, folder }: ReportEvaluation,
  given: readonly string[],
  guesses: readonly string[],
): Promise<(Dataset | undefined)[]> {
  const opened: (Dataset | undefined)[] = []
  try {
    for (const { name, hash } of evaluation.datasets) {
      const found = await findDataset(name, hash, evaluation.split, given, guesses)
      if (found instanceof InputError) {
        throw new InputError(
          `The split "${evaluation.split}" of this dataset is not the one that ${folder} was measured on; evaluate again, or give the dataset of then.`,
          { file: found.file },
          found,
        )
      }
      opened.push(found)
    }
  } catch (error) {
    await closeAll(opened)
    throw error
  }
  return opened
}

export async function closeAll(datasets: readonly (Dataset | undefined)[]): Promise<void> {
  for (const dataset of datasets) await dataset?.close()
}

async function findDataset(
  name: string,
  hash: string,
  split: string,
  given: readonly string[],
  guesses: readonly string[],
): Promise<Dataset | InputError | undefined> {
  let changed: InputError | undefined
  for (const folder of given) {
    const dataset = await openDataset(folder)
    if (dataset.meta.name === name) {
      if (await isSplit(dataset, split, hash)) return dataset
      changed = new InputError('changed', { file: folder })
    }
    await dataset.close()
  }
  if (changed !== undefined) return changed
  for (const folder of guesses) {
    if (!(await exists(folder))) continue
    const dataset = await openDataset(folder).catch(() => undefined)
    if (dataset?.meta.name === name && (await isSplit(dataset, split, hash).catch(() => false))) return dataset
    await dataset?.close()
  }
  return undefined
}

async function isSplit(dataset: Dataset, split: string, hash: string): Promise<boolean> {
  return Object.hasOwn(dataset.meta.splits, split) && (await splitHash(dataset, split)) === hash
}

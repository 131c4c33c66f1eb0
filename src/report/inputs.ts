import { readFile, realpath, stat } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { z } from 'zod'
import { InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import { type ReportEvaluation, readEvaluation } from './evaluation.ts'
import { parseJson } from './parse.ts'
import { type ReportRun, readTraining } from './training.ts'

/** What the folders of a report hold. */
export interface ReportInputs {
  runs: ReportRun[]
  evaluations: ReportEvaluation[]
}

/**
 * Reads folders of training runs and of evaluations, in any order. A run brings the evaluation in its folder `eval` along.
 *
 * @throws InputError naming a folder that is neither, and a file in it that cannot be read as what it should be
 */
export async function readInputs(folders: readonly string[]): Promise<ReportInputs> {
  const inputs: ReportInputs = { runs: [], evaluations: [] }
  const seen = new Set<string>()
  const isNew = async (folder: string): Promise<boolean> => {
    const path = await realpath(folder)
    return !seen.has(path) && seen.add(path) !== undefined
  }
  for (const folder of folders) {
    if (!(await exists(folder))) throw new InputError('There is no such folder.', { file: folder })
    const isEvaluation = await exists(join(folder, 'metrics.json'))
    const isRun = await isRunFolder(folder)
    if (!isEvaluation && !isRun) {
      throw new InputError(
        'The folder holds neither a training run (config.json of "canopy train") nor an evaluation (metrics.json of "canopy evaluate").',
        { file: folder },
      )
    }
    if (isRun && (await isNew(folder))) inputs.runs.push(await readTraining(folder, nameOf(folder)))
    for (const place of isEvaluation ? [folder] : [join(folder, 'eval')]) {
      if ((await exists(join(place, 'metrics.json'))) && (await isNew(place))) {
        inputs.evaluations.push(await readEvaluation(place, nameOf(place)))
      }
    }
  }
  for (const named of [inputs.runs, inputs.evaluations]) tellApart(named)
  return inputs
}

const runSchema = z.object({ schema: z.literal('canopy-run/1') })

async function isRunFolder(folder: string): Promise<boolean> {
  const file = join(folder, 'config.json')
  if (!(await stat(file).catch(() => undefined))?.isFile()) return false
  return runSchema.safeParse(parseJson(await readFile(file, 'utf8'), file)).success
}

/** The folder's own name; of one that is called by what it holds, as `minilm/run/eval`, the name of what it belongs to. */
function nameOf(folder: string): string {
  const full = resolve(folder)
  const name = basename(full)
  const owner = name === 'eval' || name === 'run' ? nameOf(dirname(full)) : ''
  return owner === '' ? name : owner
}

/** Numbers those that have one name. */
function tellApart(named: { name: string }[]): void {
  const counts = new Map<string, number>()
  for (const one of named) {
    const count = (counts.get(one.name) ?? 0) + 1
    counts.set(one.name, count)
    if (count > 1) one.name = `${one.name} (${count})`
  }
}

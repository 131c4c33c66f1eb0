import { copyFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import {
  CANOPY_FILE,
  canopySettings,
  type EncoderProfile,
  readAdapter,
  readCanopySettings,
  writeAdapter,
} from '../../encoder/index.ts'
import { readTrainingData, TRAINING_DATA_FILE } from '../../eval/index.ts'
import { atomicFolder, writeFileAtomic } from '../../support/files.ts'
import type { Tensors } from '../step/optimizer.ts'
import { runPaths } from './folder.ts'
import type { RunPlan } from './plan.ts'
import type { TrainOptions } from './run.ts'

/** Writes a run's selected adapter, with canopy.json and the run's list of what it was trained on beside: whole or not at all. */
export async function writeSelected(
  folder: string,
  tensors: Tensors,
  { encoder, queryEncoder, settings }: TrainOptions,
  { targets, start, set }: RunPlan,
): Promise<void> {
  await atomicFolder(folder, async (temporary) => {
    const { rankStabilised = false } = start?.adapter ?? {}
    await writeAdapter(
      temporary,
      { targets, tensors, baseFingerprint: encoder.fingerprint, ...(rankStabilised && { rankStabilised }) },
      encoder,
    )
    const canopy = canopySettings(encoder, queryEncoder, {
      title: settings.title,
      tableFormat: settings.tableFormat,
      branching: set.sources[0]!.branching,
    })
    await writeFileAtomic(join(temporary, CANOPY_FILE), `${JSON.stringify(canopy, null, 2)}\n`)
    await copyFile(runPaths(dirname(folder)).trainingData, join(temporary, TRAINING_DATA_FILE))
  })
}

/** Whether the folder holds the adapter of these tensors, and can be read with all that lies beside. */
export async function isSelected(folder: string, tensors: Tensors, encoder: EncoderProfile): Promise<boolean> {
  const damaged = (): undefined => undefined
  const found = await readAdapter(folder, encoder).catch(damaged)
  const settings = await readCanopySettings(folder).catch(damaged)
  const trainingData = await readTrainingData(folder).catch(damaged)
  if (found === undefined || settings === undefined || trainingData === undefined) return false
  return [...tensors].every(([name, data]) => {
    const other = found.tensors.get(name)
    return other?.length === data.length && data.every((x, i) => Object.is(x, other[i]))
  })
}

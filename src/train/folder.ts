import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { InputError } from '../support/errors.ts'
import { writeFileAtomic } from '../support/files.ts'
import type { Fingerprint } from './checkpoints.ts'
import { LOCK_FILE } from './lock.ts'
import type { TrainSettings } from './settings.ts'

/** The places inside a run folder. */
export const runPaths = (folder: string) => ({
  config: join(folder, 'config.json'),
  metrics: join(folder, 'metrics.jsonl'),
  checkpoints: join(folder, 'checkpoints'),
  adapter: join(folder, 'adapter'),
})

/** The content of config.json: what a run was started with, and what its bits depend on. */
export interface RunConfig {
  schema: 'canopy-run/1'
  command: string[]
  settings: TrainSettings
  seed: number
  steps: number
  encoder: EncoderRecord
  queryEncoder: EncoderRecord
  /** Patterns resolved to module paths. */
  modules: string[]
  data: {
    dataset: string
    folder: string
    split: string
    preferences: string
    hash: string
    sha256: string
    branching: number
  }[]
  instances: { train: number; validation: number; without_pairs: number }
  versions: Record<string, string>
  machine: string
  threads: number
  fingerprint: Fingerprint
}

export interface EncoderRecord {
  id: string
  revision: string | null
  fingerprint: string
  dimension: number
  maxLength: number
  pooling: string
  prompts: Record<string, string>
}

/**
 * Checks that a run may begin, or go on, in this folder.
 *
 * @throws InputError for a folder with content and no `resume`, and for `resume` in a folder that holds something else
 */
export async function checkRunFolder(folder: string, resume: boolean): Promise<void> {
  const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [] as string[]
    throw new InputError(`The output folder cannot be used: ${error.message}.`, { file: folder }, error)
  })
  const content = names.filter((name) => !name.startsWith(LOCK_FILE) && !/^\..+\.tmp-\d+-[0-9a-f]+$/.test(name))
  if (content.length === 0) return
  if (!content.includes('config.json'))
    throw new InputError(
      `The folder is not empty and holds no training run (${content.slice(0, 3).join(', ')}). Choose another --output.`,
      { file: folder },
    )
  if (!resume)
    throw new InputError(
      'This folder already holds a training run. Add --resume to go on with it, or choose another --output.',
      { file: folder },
    )
}

/** Writes config.json. */
export async function writeRunConfig(folder: string, config: RunConfig): Promise<void> {
  await writeFileAtomic(runPaths(folder).config, `${JSON.stringify(config, null, 2)}\n`)
}

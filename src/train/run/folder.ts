import { readdir, readFile, rm, rmdir } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { FEATURES_FOLDER } from '../../encoder/index.ts'
import { TRAINING_DATA_FILE } from '../../eval/index.ts'
import { InputError } from '../../support/errors.ts'
import { exists, writeFileAtomic } from '../../support/files.ts'
import type { LeftOut } from '../data/visuals.ts'
import type { EngineRecord } from '../engine/open.ts'
import type { TrainSettings } from '../settings.ts'
import { checkpointFolders, type Fingerprint, START_FOLDER } from './checkpoints.ts'
import { LOCK_FILE } from './lock.ts'

/** The places inside a run folder. */
export const runPaths = (folder: string) => ({
  config: join(folder, 'config.json'),
  metrics: join(folder, 'metrics.jsonl'),
  checkpoints: join(folder, 'checkpoints'),
  adapter: join(folder, 'adapter'),
  /** A copy of the adapter that the run began from, where it began from one. */
  start: join(folder, START_FOLDER),
  /** What is trained and selected on, as hashes. */
  trainingData: join(folder, TRAINING_DATA_FILE),
  /** The validation instances, one JSON object a line. */
  heldOut: join(folder, 'validation.jsonl'),
  /** Where visual features are kept unless they have a place of their own. */
  features: join(folder, FEATURES_FOLDER),
})

/** The content of config.json: what a run was started with, and what its bits depend on. */
export interface RunConfig {
  schema: typeof SCHEMA
  command: string[]
  settings: TrainSettings
  seed: number
  steps: number
  encoder: EncoderRecord
  queryEncoder: EncoderRecord
  /** The loss module, where there is one: its files and the SHA-256 of each, and of all of them together. */
  lossModule?: { path: string; sha256: string; files: Record<string, string> }
  /** The adapter that the run began from, where it began from one: its folder, and the hash of what it computes. */
  startAdapter?: { folder: string; sha256: string; modules: number }
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
  /** `left_out`: see {@link LeftOut}. */
  instances: { train: number; validation: number; without_pairs: number; left_out: number }
  /** Items whose picture or video cannot be read, and why; absent where there is none. */
  unreadable?: LeftOut['unreadable']
  versions: Record<string, string>
  machine: string
  threads: number
  /** What computed embeddings and gradients. */
  engine: EngineRecord
  /** Tokens that were computed at once when the run began. */
  tokenBudget: number
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

const SCHEMA = 'canopy-run/1'

/**
 * Checks that a run may begin, or go on, in this folder. A run that came to no checkpoint has nothing to lose, and does not stand
 * in the way of a new one.
 *
 * @throws InputError for a folder that holds something else than a run, and for one that holds a run when not to `resume`
 */
export async function checkRunFolder(folder: string, resume: boolean): Promise<void> {
  const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [] as string[]
    throw new InputError(`The output folder cannot be used: ${error.message}.`, { file: folder }, error)
  })
  const { adapter, checkpoints, features } = runPaths(folder)
  const passing = (name: string): boolean =>
    // features are computed before a run begins, and may be all that a process that was ended has left
    name.startsWith(LOCK_FILE) || name === basename(features) || /^\..+\.tmp-\d+-[0-9a-f]+$/.test(name)
  const content = names.filter((name) => !passing(name))
  if (content.length === 0) return
  const begun = (await checkpointFolders(checkpoints)).length > 0
  if (!begun && !(await isUnbegunRun(folder, content)))
    throw new InputError(
      `The folder is not empty and holds no training run (${content.slice(0, 3).join(', ')}). Choose another --output.`,
      { file: folder },
    )
  if (!resume && (begun || (await exists(adapter))))
    throw new InputError(
      'This folder already holds a training run. Add --resume to go on with it, or choose another --output.',
      { file: folder },
    )
}

/**
 * Whether what a folder without checkpoints holds is a run's. Encoders have a config.json, too: one that is damaged counts only
 * where nothing else is there than what a run writes.
 */
async function isUnbegunRun(folder: string, content: string[]): Promise<boolean> {
  const places = runPaths(folder)
  if (!content.includes(basename(places.config))) return false
  if ((await readConfig(folder)) !== undefined) return isRun(folder)
  const own = Object.values(places).map((place) => basename(place))
  return content.every((name) => own.includes(name))
}

/** Whether a folder's config.json says that it is a training run, of whichever version. */
export async function isRun(folder: string): Promise<boolean> {
  const schema = (await readConfig(folder))?.schema
  return typeof schema === 'string' && schema.startsWith('canopy-run/')
}

/** config.json, whatever it holds; undefined where it is damaged or missing. */
async function readConfig(folder: string): Promise<{ schema?: unknown } | null | undefined> {
  const text = await readFile(runPaths(folder).config, 'utf8').catch(() => '')
  try {
    return JSON.parse(text) as { schema?: unknown } | null
  } catch {
    return undefined
  }
}

/**
 * Reads config.json as far as going on with a run needs it.
 *
 * @returns false where it is damaged, or missing
 * @throws InputError when a version that writes it otherwise has written it
 */
export async function isRunConfig(folder: string): Promise<boolean> {
  const { config: file } = runPaths(folder)
  const schema = (await readConfig(folder))?.schema
  if (typeof schema === 'string' && schema !== SCHEMA)
    throw new InputError(
      `The run was begun by another version of canopy (${schema}; this one reads ${SCHEMA}). Go on with that version, or choose another --output.`,
      { file },
    )
  return schema === SCHEMA
}

/** Removes what a run that failed before its first step has written. */
export async function removeRun(folder: string): Promise<void> {
  const { config, metrics, trainingData, heldOut, checkpoints, start } = runPaths(folder)
  await rmdir(checkpoints).catch(() => {})
  await rm(start, { recursive: true, force: true })
  // config.json last: while it is there, what is left is known as a run's.
  for (const file of [metrics, trainingData, heldOut, config]) await rm(file, { force: true })
}

/** Writes config.json. */
export async function writeRunConfig(folder: string, config: RunConfig): Promise<void> {
  await writeFileAtomic(runPaths(folder).config, `${JSON.stringify(config, null, 2)}\n`)
}

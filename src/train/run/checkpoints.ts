import { createHash } from 'node:crypto'
import { readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { z } from 'zod'
import { openSafetensors, type Tensor, writeSafetensors } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { atomicFolder, fileError, sha256File } from '../../support/files.ts'
import type { LossScale } from '../step/loss-scale.ts'
import { type AdamWState, initialAdamW, type Tensors } from '../step/optimizer.ts'
import type { MetricsLine, ValidationMetrics } from './metrics.ts'

/** What the adapter that a run begins from is called in a fingerprint, and so in messages. */
export const BEGINS_FROM = 'adapter that it begins from'
/** The folder of a run that keeps a copy of it, beside that of the checkpoints. */
export const START_FOLDER = 'start-adapter'

const SCHEMA = 'canopy-checkpoint/2'
const STATE = 'state.json'
const parts = ['adapter.safetensors', 'best.safetensors', 'optimizer.safetensors'] as const

/** The best adapter so far by the validation part. */
export interface Best {
  step: number
  metrics: ValidationMetrics | undefined
  tensors: Tensors
}

/**
 * All that training has become after a step. Everything else follows from it: the order of the instances and the learning
 * rate are functions of the seed and the step.
 */
export interface TrainingState {
  /** Optimizer steps done, skipped ones included: the data cursor. */
  step: number
  tensors: Tensors
  optimizer: AdamWState
  best: Best
  /** Steps that were not applied because something was not finite: all of them, and the last ones in a row. */
  skipped: number
  skippedInARow: number
  /** Tokens that are computed at once: as set, or less since memory ran out. */
  tokenBudget: number
  /** In float16 only. */
  lossScale: LossScale | undefined
  /** What the last step did, where its validation was broken off: it is not in metrics.jsonl yet. */
  unvalidated?: MetricsLine | undefined
}

/** The state before the first step. */
export function initialState(tensors: Tensors, tokenBudget: number, lossScale?: LossScale): TrainingState {
  return {
    step: 0,
    tensors,
    optimizer: initialAdamW(tensors),
    best: { step: 0, metrics: undefined, tensors },
    skipped: 0,
    skippedInARow: 0,
    tokenBudget,
    lossScale,
  }
}

/** Whatever the bits of the result depend on, by name. */
export type Fingerprint = Record<string, string>

const count = z.number().int().min(0)
const stateSchema = z.object({
  schema: z.literal(SCHEMA),
  step: count,
  optimizerStep: count,
  skipped: count,
  skippedInARow: count,
  best: z.object({ step: count, metrics: z.custom<ValidationMetrics>((v) => typeof v === 'object').nullable() }),
  tokenBudget: count.min(1),
  lossScale: z.object({ scale: z.number().positive(), goodSteps: count }).nullable(),
  unvalidated: z.custom<MetricsLine>((v) => typeof v === 'object').nullable(),
  fingerprint: z.record(z.string(), z.string()),
  /** SHA-256 of each of the other files, and of all this as JSON. */
  files: z.record(z.string(), z.string()),
  sha256: z.string(),
})
type StateFile = z.infer<typeof stateSchema>

/**
 * Writes a checkpoint under `folder`, beside and then renamed, and removes the oldest ones beyond `keep`.
 *
 * @param shapes shape of each tensor
 * @throws InputError when the disk is full and the like; earlier checkpoints stay as they were
 */
export async function writeCheckpoint(
  folder: string,
  state: TrainingState,
  fingerprint: Fingerprint,
  shapes: Map<string, number[]>,
  keep: number,
): Promise<string> {
  const path = join(folder, checkpointName(state.step))
  await atomicFolder(path, async (temporary) => {
    const stored = (tensors: Tensors, prefix = ''): [string, Tensor][] =>
      [...tensors].map(([name, data]) => [`${prefix}${name}`, { dtype: 'float32', shape: shapes.get(name)!, data }])
    const { first, second } = state.optimizer
    const contents: Record<(typeof parts)[number], [string, Tensor][]> = {
      'adapter.safetensors': stored(state.tensors),
      'best.safetensors': stored(state.best.tensors),
      'optimizer.safetensors': [...stored(first, 'first.'), ...stored(second, 'second.')],
    }
    const files: Record<string, string> = {}
    for (const part of parts) {
      const file = join(temporary, part)
      await writeSafetensors(file, new Map(contents[part]))
      files[part] = await sha256File(file)
    }
    const content: Omit<StateFile, 'sha256'> = {
      schema: SCHEMA,
      step: state.step,
      optimizerStep: state.optimizer.step,
      skipped: state.skipped,
      skippedInARow: state.skippedInARow,
      best: { step: state.best.step, metrics: state.best.metrics ?? null },
      tokenBudget: state.tokenBudget,
      lossScale: state.lossScale ?? null,
      unvalidated: state.unvalidated ?? null,
      fingerprint,
      files,
    }
    await writeFile(join(temporary, STATE), `${JSON.stringify({ ...content, sha256: checksum(content) }, null, 2)}\n`)
  })
  // Only now, with the new one on the disk. Later ones are damaged: training would have gone on from them.
  const all = await checkpointFolders(folder)
  const here = all.indexOf(basename(path))
  for (const old of [...all.slice(0, here), ...all.slice(here + keep)])
    await rm(join(folder, old), { recursive: true, force: true })
  return path
}

/**
 * The newest usable checkpoint under `folder`; undefined where there is none at all. A damaged one is reported through
 * `warn` and passed over for the one before it.
 *
 * @param lastStep step at which training is finished: its checkpoint may come from another machine or version
 * @throws InputError when every checkpoint is damaged, or when one comes from other settings, data, versions or machine, or
 *   is of another format
 */
export async function readCheckpoint(
  folder: string,
  fingerprint: Fingerprint,
  shapes: Map<string, number[]>,
  lastStep: number,
  warn: (message: string) => void,
): Promise<TrainingState | undefined> {
  const folders = await checkpointFolders(folder)
  for (const name of folders) {
    const path = join(folder, name)
    try {
      const state = await readState(path)
      const finished = state.step >= lastStep && state.unvalidated === null
      requireSame(state.fingerprint, fingerprint, { finished, path })
      return await readTensors(path, state, shapes)
    } catch (error) {
      if (!(error instanceof Damaged)) throw error
      warn(`The checkpoint ${path} is damaged (${error.message}) and is passed over.`)
    }
  }
  if (folders.length === 0) return undefined
  throw new InputError(
    'Every checkpoint of this run is damaged, so it cannot be resumed. Start again in another output folder, or remove this one.',
    { file: folder },
  )
}

/** Removes what a process that was killed while it wrote has left in a folder. */
export async function clearTemporaries(folder: string): Promise<void> {
  const names = await readdir(folder).catch(() => [] as string[])
  for (const name of names)
    if (/^\..+\.tmp-\d+-[0-9a-f]+$/.test(name)) await rm(join(folder, name), { recursive: true, force: true })
}

/** Names of the checkpoints under `folder`, newest first. */
export async function checkpointFolders(folder: string): Promise<string[]> {
  const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return [] as string[]
    throw fileError(error, 'cannot read the checkpoints', folder)
  })
  return names
    .filter((name) => /^step-\d+$/.test(name))
    .sort()
    .reverse()
}

function checkpointName(step: number): string {
  return `step-${String(step).padStart(8, '0')}`
}

/** A checkpoint that is not what was written. */
class Damaged extends Error {}

async function readState(path: string): Promise<StateFile> {
  try {
    const value: unknown = JSON.parse(await readFile(join(path, STATE), 'utf8'))
    requireFormat(value, path)
    const { data: state, error } = stateSchema.safeParse(value)
    if (state === undefined) throw new Damaged(`${STATE} is malformed: ${z.prettifyError(error)}`)
    const { sha256, ...content } = value as StateFile
    if (sha256 !== checksum(content)) throw new Damaged(`${STATE} is not the file that was written`)
    if (basename(path) !== checkpointName(state.step)) throw new Damaged(`${STATE} is of step ${state.step}`)
    return state
  } catch (error) {
    throw error instanceof Damaged || error instanceof InputError ? error : new Damaged((error as Error).message)
  }
}

/** Refuses a state that is whole, but written by a version that keeps checkpoints otherwise. */
function requireFormat(value: unknown, path: string): void {
  const { sha256, ...content } = (value ?? {}) as Partial<StateFile>
  const schema: unknown = content.schema
  const whole = sha256 === undefined || sha256 === checksum(content)
  if (typeof schema === 'string' && /^canopy-checkpoint\/\d+$/.test(schema) && schema !== SCHEMA && whole)
    throw new InputError(
      `The checkpoint was written by another version of canopy (${schema}; this one reads ${SCHEMA}). Resume with that version, or start a new run in another output folder.`,
      { file: path },
    )
}

function checksum(content: Partial<StateFile>): string {
  return createHash('sha256').update(JSON.stringify(content)).digest('hex')
}

async function readTensors(path: string, state: StateFile, shapes: Map<string, number[]>): Promise<TrainingState> {
  for (const part of parts) {
    const file = join(path, part)
    const hash = await sha256File(file).catch((error: Error) => {
      throw new Damaged(error.message)
    })
    if (hash !== state.files[part]) throw new Damaged(`${part} is not the file that was written`)
  }
  const load = async (part: (typeof parts)[number], prefix = ''): Promise<Tensors> => {
    const file = await openSafetensors(join(path, part))
    const tensors: Tensors = new Map()
    for (const name of shapes.keys()) tensors.set(name, await file.readTensor(`${prefix}${name}`))
    return tensors
  }
  return {
    step: state.step,
    tensors: await load('adapter.safetensors'),
    optimizer: {
      step: state.optimizerStep,
      first: await load('optimizer.safetensors', 'first.'),
      second: await load('optimizer.safetensors', 'second.'),
    },
    best: {
      step: state.best.step,
      metrics: state.best.metrics ?? undefined,
      tensors: await load('best.safetensors'),
    },
    skipped: state.skipped,
    skippedInARow: state.skippedInARow,
    tokenBudget: state.tokenBudget,
    lossScale: state.lossScale ?? undefined,
    unvalidated: state.unvalidated ?? undefined,
  }
}

function requireSame(stored: Fingerprint, current: Fingerprint, at: { finished: boolean; path: string }): void {
  const names = [...new Set([...Object.keys(stored), ...Object.keys(current)])]
  const different = names.filter((name) => stored[name] !== current[name] && !(at.finished && isEnvironment(name)))
  if (different.length === 0) return
  const shown = different.map((name) => `${name} was ${stored[name] ?? 'absent'}, is ${current[name] ?? 'absent'}`)
  // a link to the newest adapter moves on while a run is stopped
  const start = join(dirname(dirname(at.path)), START_FOLDER)
  const copy =
    stored[BEGINS_FROM] !== undefined && different.includes(BEGINS_FROM)
      ? ` The run keeps a copy of the adapter that it began from: --adapter ${start}.`
      : ''
  throw new InputError(
    `The run cannot go on from this checkpoint, because what it depends on has changed: ${shown.join('; ')}. ` +
      `Resume with what the run began with, or start a new one in another output folder.${copy}`,
    { file: at.path },
  )
}

/** Entries of a fingerprint that say what computes, not what is computed. */
function isEnvironment(name: string): boolean {
  return name === 'machine' || name === 'threads' || name.startsWith('version of ')
}

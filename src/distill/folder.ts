import { createHash } from 'node:crypto'
import { copyFile, link, mkdir, readFile, rename, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { z } from 'zod'
import { InputError } from '../support/errors.ts'
import { exists, fileError, temporaryName } from '../support/files.ts'
import type { Measured } from './measure.ts'
import type { DistillSettings } from './settings.ts'
import type { SourceFile } from './sources.ts'

/** Names of what a distillation's folder holds. */
export const distillPaths = (output: string) => ({
  log: join(output, 'distillation.json'),
  training: join(output, 'texts', 'training.jsonl'),
  heldOut: join(output, 'texts', 'held-out.jsonl'),
  vocabulary: join(output, 'vocabulary.txt'),
  initial: join(output, 'initial'),
  tokens: join(output, 'student-tokens.bin'),
  teacher: join(output, 'teacher-training.f32'),
  teacherHeldOut: join(output, 'teacher-held-out.f32'),
  axes: join(output, 'axes.safetensors'),
  checkpoint: join(output, 'checkpoint.safetensors'),
  metrics: join(output, 'metrics.jsonl'),
  /** The learned encoder while it is measured. */
  unmeasured: join(output, 'unmeasured'),
  result: join(output, 'result.json'),
  model: join(output, 'model'),
})
export type DistillPaths = ReturnType<typeof distillPaths>

/** What distillation.json holds: all that the result depends on. */
export interface DistillLog {
  command: string[]
  settings: DistillSettings
  teacher: { id: string; fingerprint: string; dimension: number }
  files: SourceFile[]
  excluded: SourceFile[]
  /** Parts of data sets, as `folder:split` by the folders' names; absent in the logs of early versions. */
  parts?: { learned: string[]; excluded: string[] }
  texts: { training: Record<string, number>; heldOut: Record<string, number>; excluded: number }
}

/** What result.json holds: what became of a distillation. */
export interface DistillOutcome {
  steps: number
  parameters: number
  measured: Measured
}

const sources = z.array(z.looseObject({ file: z.string(), sha256: z.string() }))
const counts = z.record(z.string(), z.number())
const logSchema = z.looseObject({
  command: z.array(z.string()),
  settings: z.looseObject({}),
  teacher: z.looseObject({ id: z.string(), fingerprint: z.string(), dimension: z.number() }),
  files: sources,
  excluded: sources,
  parts: z.looseObject({ learned: z.array(z.string()), excluded: z.array(z.string()) }).optional(),
  texts: z.looseObject({ training: counts, heldOut: counts, excluded: z.number() }),
})

/**
 * Reads distillation.json as it stands; undefined where there is none.
 *
 * @throws InputError for a file that is no such log
 */
export async function readLog(path: string): Promise<DistillLog | undefined> {
  if (!(await exists(path))) return undefined
  const log = await readJson(path, 'The log of the distillation')
  const fault = logSchema.safeParse(log).error?.issues[0]
  if (fault !== undefined)
    throw new InputError(`The log of the distillation is damaged: "${fault.path.join('.')}": ${fault.message}.`, {
      file: path,
    })
  return log as DistillLog
}

/** Reads result.json; undefined where there is none yet. */
export async function readOutcome(path: string): Promise<DistillOutcome | undefined> {
  if (!(await exists(path))) return undefined
  return (await readJson(path, 'The result of the distillation')) as DistillOutcome
}

async function readJson(path: string, what: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(path, 'utf8'))
  } catch (error) {
    if (error instanceof SyntaxError)
      throw new InputError(`${what} is damaged: ${error.message}.`, { file: path }, error)
    throw fileError(error, 'cannot read the file', path)
  }
}

/** Settings that decide which texts are learned and measured. */
const TEXT_SETTINGS = [
  ...['seed', 'sentences', 'passages', 'nodes', 'questions', 'heldOutShare', 'heldOutTexts'],
] as (keyof DistillSettings)[]

type Begun = Omit<DistillLog, 'command' | 'texts'>

/**
 * In what a distillation differs from another one, in words: `"epochs" (2, now 3)`, `the texts`.
 *
 * @param scope all that the result depends on, or what texts and teacher's embeddings depend on
 */
export function differences(before: Begun, now: Begun, scope: 'all' | 'texts'): string[] {
  const hashes = (files: readonly SourceFile[]): string =>
    files
      .map(({ sha256 }) => sha256)
      .sort()
      .join()
  const names = (parts: readonly string[]): string => [...parts].sort().join()
  const found: string[] = []
  const settings =
    scope === 'all' ? new Set([...Object.keys(before.settings), ...Object.keys(now.settings)]) : TEXT_SETTINGS
  for (const name of settings as Iterable<keyof DistillSettings>) {
    const [old, own] = [JSON.stringify(before.settings[name]), JSON.stringify(now.settings[name])]
    if (old !== own) found.push(`"${name}" (${old}, now ${own})`)
  }
  if (before.teacher.fingerprint !== now.teacher.fingerprint) found.push('the teacher')
  const known = before.parts !== undefined && now.parts !== undefined
  if (hashes(before.files) !== hashes(now.files)) found.push('the texts')
  else if (known && names(before.parts!.learned) !== names(now.parts!.learned)) found.push('the splits to learn from')
  if (hashes(before.excluded) !== hashes(now.excluded)) found.push('what is excluded')
  else if (known && names(before.parts!.excluded) !== names(now.parts!.excluded)) found.push('the splits excluded')
  return found
}

/** Gives a finished file a second name; where that is not possible, the copy has it once it is whole. */
export async function sameFile(from: string, to: string): Promise<void> {
  const temporary = temporaryName(to)
  try {
    await mkdir(dirname(to), { recursive: true })
    await link(from, temporary).catch(() => copyFile(from, temporary))
    await rename(temporary, to)
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => {})
    throw fileError(error, `cannot take over ${from}`, to)
  }
}

/** SHA-256 of a value's JSON. */
export function fingerprintOf(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('hex')
}

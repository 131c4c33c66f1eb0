import { readdir, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { InputError } from '../support/errors.ts'
import type { Progress } from '../support/progress.ts'
import type { MetricsLine } from '../train/index.ts'
import type { ContentHashes } from './hashes.ts'
import { changes, type Inputs, readStamp, type Stamp, writeStamp } from './stamps.ts'

export type StepKind = 'encoder' | 'import' | 'preferences' | 'train' | 'evaluate' | 'export' | 'report'

/** One piece of a reproduction with an output of its own. */
export interface Step {
  kind: StepKind
  /** Unique, and what people see: `import hotpotqa`. */
  id: string
  /** File or folder that it makes. */
  output: string
  /** Steps whose products it depends on; they stand before it in every plan. */
  after: Step[]
  /** What it depends on that is known beforehand. */
  settings: Inputs
  /** What it depends on that is known when the steps before it are done: hashes of content. */
  content(): Promise<Inputs>
  /** Hashes of what it has made, as it is on the disk; undefined where nothing or not all is there. */
  products(): Promise<Inputs | undefined>
  /** Makes the output: whole, or, with `resumes`, so that it can go on after a crash. */
  run(tools: StepTools): Promise<unknown>
  /** Half an output is gone on with, where nothing has changed. */
  resumes?: true
}

export interface StepTools {
  /** The output that is there is half of what this step makes; go on with it. */
  resume: boolean
  onProgress: Progress
  onTraining?: ((line: MetricsLine, run: { totalSteps: number }) => void) | undefined
  warn: (message: string) => void
  signal?: AbortSignal | undefined
}

/** Whether a step is done, or has to run, or might have to: then it waits for what steps before it give. */
export type Verdict =
  | { state: 'done'; stamp: Stamp }
  | { state: 'run'; why: string }
  | { state: 'depends'; why: string }

export type StepEvent =
  | { type: 'skipped'; step: Step; number: number; total: number }
  | { type: 'begin'; step: Step; number: number; total: number; why: string }
  /** `left`: seconds that the steps still to run may take, as far as the like of them has run before. */
  | { type: 'end'; step: Step; number: number; total: number; seconds: number; left: number | undefined }

export interface RunOptions {
  /** Folder of the stamps. */
  stamps: string
  hashes: ContentHashes
  onEvent?: ((event: StepEvent) => void) | undefined
  onProgress?: Progress | undefined
  onTraining?: StepTools['onTraining']
  warn?: ((message: string) => void) | undefined
  signal?: AbortSignal | undefined
}

const stampFile = (stamps: string, { id }: Step): string => join(stamps, `${id.replaceAll(/[^\w.+=,-]+/g, '-')}.json`)

/** What a finished step had to say; undefined where it isn't done. */
export async function resultOf(stamps: string, step: Step): Promise<unknown> {
  const stamp = await readStamp(stampFile(stamps, step))
  return stamp?.products === undefined ? undefined : stamp.result
}

/**
 * Runs the steps that are not done or whose inputs changed, in order. A step is done when its stamp says so: the stamp is written
 * after the output is whole, and holds the settings and the hashes of the content that the output was made from.
 *
 * @throws InputError as steps do, and when something stands where a step writes that no step made
 */
export async function runSteps(steps: readonly Step[], options: RunOptions): Promise<void> {
  const { stamps, hashes, onEvent, onProgress = () => {}, onTraining, warn = () => {}, signal } = options
  const total = steps.length
  const clock = await openClock(steps, stamps)
  for (const [i, step] of steps.entries()) {
    signal?.throwIfAborted()
    const number = i + 1
    const file = stampFile(stamps, step)
    const verdict = await examine(step, file)
    if (verdict.state === 'done') {
      clock.skip(step)
      onEvent?.({ type: 'skipped', step, number, total })
      continue
    }
    onEvent?.({ type: 'begin', step, number, total, why: verdict.why })
    const started = performance.now()
    const { settings } = step
    const content = await step.content()
    const resume = await begin(step, file, { step: step.id, settings, content })
    const result = await step.run({ resume, onProgress, onTraining, warn, signal })
    const products = await step.products()
    if (products === undefined) throw new InputError(`"${step.id}" left nothing there.`, { file: step.output })
    const seconds = Math.round(performance.now() - started) / 1000
    await writeStamp(file, { step: step.id, settings, content, products, result, seconds })
    await hashes.save()
    onEvent?.({ type: 'end', step, number, total, seconds, left: clock.end(step, seconds) })
  }
}

/** What {@link runSteps} would do with each step, and why; nothing is changed. */
export async function dryRun(steps: readonly Step[], stamps: string): Promise<{ step: Step; verdict: Verdict }[]> {
  const verdicts = new Map<Step, Verdict>()
  for (const step of steps) {
    const waiting = step.after.filter((before) => verdicts.get(before)?.state !== 'done')
    // an encoder that is not in the cache is looked for when its turn comes
    const verdict = await examine(step, stampFile(stamps, step), waiting).catch((error: unknown): Verdict => {
      if (error instanceof InputError) return { state: 'depends', why: error.message }
      throw error
    })
    verdicts.set(step, verdict)
  }
  return steps.map((step) => ({ step, verdict: verdicts.get(step)! }))
}

async function examine(step: Step, file: string, waiting: readonly Step[] = []): Promise<Verdict> {
  const stamp = await readStamp(file)
  if (stamp === undefined) return { state: 'run', why: 'not done yet' }
  const changed = changes(stamp.settings, step.settings)
  if (waiting.length === 0) {
    const content = await step.content()
    changed.push(...changes(stamp.content, content))
  }
  if (changed.length > 0) return { state: 'run', why: `changed: ${listed(changed)}` }
  if (stamp.products === undefined) return { state: 'run', why: 'was interrupted' }
  const products = await step.products()
  if (products === undefined) return { state: 'run', why: 'its output is gone' }
  const damaged = changes(stamp.products, products)
  if (damaged.length > 0) return { state: 'run', why: `its output was changed: ${listed(damaged)}` }
  if (waiting.length > 0)
    return { state: 'depends', why: `only if ${waiting.map(({ id }) => `"${id}"`).join(', ')} gives something else` }
  return { state: 'done', stamp }
}

const SHOWN = 4
const listed = (reasons: string[]): string =>
  reasons.slice(0, SHOWN).join(', ') + (reasons.length > SHOWN ? ` and ${reasons.length - SHOWN} more` : '')

/** Makes ready for a step: refuses foreign files, removes what a killed process left, says on the disk that it begins. */
async function begin(step: Step, file: string, stamp: Omit<Stamp, 'schema'>): Promise<boolean> {
  const prior = await readStamp(file)
  if (prior === undefined && (await isOccupied(step.output)))
    throw new InputError(
      `"${step.id}" would write there, but what stands there was not made by it. Remove it, or choose another --output.`,
      { file: step.output },
    )
  await removeHalves(step.output)
  const half = prior !== undefined && prior.products === undefined && sameInputs(prior, stamp)
  const resume = step.resumes === true && half
  // before the stamp: with it, half an output is known to be of these inputs
  if (step.resumes === true && !resume) await rm(step.output, { recursive: true, force: true })
  await writeStamp(file, stamp)
  return resume
}

const sameInputs = (a: Omit<Stamp, 'schema'>, b: Omit<Stamp, 'schema'>): boolean =>
  changes(a.settings, b.settings).length === 0 && changes(a.content, b.content).length === 0

async function isOccupied(path: string): Promise<boolean> {
  return readdir(path).then(
    (names) => names.length > 0,
    (error: NodeJS.ErrnoException) => error.code !== 'ENOENT',
  )
}

/** Nobody else works in this folder, so temporary names beside an output are those of a process that was killed. */
async function removeHalves(output: string): Promise<void> {
  const folder = dirname(output)
  for (const name of await readdir(folder).catch(() => [] as string[])) {
    if (name.startsWith('.') && name.replace(/^\.+/, '').startsWith(`${basename(output)}.tmp-`))
      await rm(join(folder, name), { recursive: true, force: true })
  }
}

/** Guesses what is left from the steps of the same kind that have run, now or before. */
async function openClock(steps: readonly Step[], stamps: string) {
  const seen = new Map<StepKind, number[]>()
  const add = (kind: StepKind, seconds: number): void => void seen.set(kind, [...(seen.get(kind) ?? []), seconds])
  for (const step of steps) {
    const seconds = (await readStamp(stampFile(stamps, step)))?.seconds
    if (seconds !== undefined) add(step.kind, seconds)
  }
  const left = new Set(steps)
  return {
    skip: (step: Step): void => void left.delete(step),
    end(step: Step, seconds: number): number | undefined {
      left.delete(step)
      add(step.kind, seconds)
      let sum = 0
      for (const { kind } of left) {
        const times = seen.get(kind)
        if (times === undefined) return undefined
        sum += times.reduce((a, b) => a + b, 0) / times.length
      }
      return sum
    },
  }
}

import { open, readFile, truncate } from 'node:fs/promises'
import { fileError } from '../support/files.ts'

/** How the current adapter does on the validation part. */
export interface ValidationMetrics {
  /** Share of decision nodes at which the refinement rule does what gold asks, over all of them. */
  decision_accuracy: number
  /** Mean of the benchmarks' decision accuracies. */
  mean_decision_accuracy: number
  /** Share of comparisons of a decision node with a child that come out right. */
  edge_accuracy: number
  /** Share of learnable pairs whose preferred node scores higher. */
  pair_accuracy: number
  loss: number
  decisions: number
  pairs: number
  /** Decision accuracy of each benchmark. */
  benchmarks: Record<string, number>
}

/** A line of metrics.jsonl: one per optimizer step, and one for step 0, the frozen encoder. */
export interface MetricsLine {
  step: number
  epoch?: number
  loss?: number
  pair_accuracy?: number
  learning_rate?: number
  /** Norm of the whole gradient before clipping. */
  gradient_norm?: number
  /** Why the step was not applied. */
  skipped?: string
  instances?: number
  pairs?: number
  /** Pairs of equal token sequences, which cannot be learned. */
  dropped_pairs?: number
  nodes?: number
  truncated_nodes?: number
  /** Tokens of the nodes, without padding. */
  tokens?: number
  seconds?: number
  validation?: ValidationMetrics
}

/** The open metrics.jsonl of a run. */
export interface MetricsFile {
  write(line: MetricsLine): Promise<void>
  /** Waits until the disk has what was written. */
  sync(): Promise<void>
  close(): Promise<void>
}

export async function openMetrics(path: string): Promise<MetricsFile> {
  const failed = (error: unknown): never => {
    throw fileError(error, 'cannot write the metrics', path)
  }
  const handle = await open(path, 'a').catch(failed)
  return {
    async write(line) {
      await handle.appendFile(`${JSON.stringify(line)}\n`).catch(failed)
    },
    async sync() {
      await handle.sync().catch(failed)
    },
    async close() {
      await handle.close()
    },
  }
}

/**
 * Cuts metrics.jsonl back to the lines of steps up to `step`, so that what is trained again is logged once. A missing file
 * stays missing; a half-written last line goes.
 */
export async function cutMetrics(path: string, step: number): Promise<void> {
  const text = await readFile(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw fileError(error, 'cannot read the metrics', path)
  })
  if (text === undefined) return
  let kept = 0
  for (let start = 0; start < text.length; ) {
    const end = text.indexOf(10, start)
    if (end === -1) break
    if (stepOf(text.toString('utf8', start, end)) > step) break
    start = end + 1
    kept = start
  }
  if (kept < text.length) await truncate(path, kept)
}

function stepOf(line: string): number {
  try {
    const { step } = JSON.parse(line) as Partial<MetricsLine>
    return typeof step === 'number' ? step : Number.POSITIVE_INFINITY
  } catch {
    return Number.POSITIVE_INFINITY
  }
}

/** Validation metrics of step 0, the frozen encoder; undefined where the file does not start there. */
export async function readFrozen(path: string): Promise<ValidationMetrics | undefined> {
  const text = await readFile(path, 'utf8').catch(() => '')
  const end = text.indexOf('\n')
  const first = end === -1 ? undefined : (JSON.parse(text.slice(0, end)) as MetricsLine)
  return first?.step === 0 ? first.validation : undefined
}

import { open, readFile } from 'node:fs/promises'
import { fileError, writeFileAtomic } from '../../support/files.ts'

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

/** A line of metrics.jsonl: one per optimizer step, and one for step 0, what the run begins from. */
export interface MetricsLine {
  step: number
  epoch?: number
  loss?: number
  pair_accuracy?: number
  learning_rate?: number
  /** What the loss was multiplied by on its way back; in float16 only. */
  loss_scale?: number
  /** The token budget from here on, where memory ran out in this step. */
  token_budget?: number
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
  /** Those of them that were computed, what nodes begin with alike counted once; absent where the encoder shares nothing. */
  computed_tokens?: number
  seconds?: number
  validation?: ValidationMetrics
}

/** The open metrics.jsonl of a run. */
export interface MetricsFile<Line> {
  write(line: Line): Promise<void>
  /** Waits until the disk has what was written. */
  sync(): Promise<void>
  close(): Promise<void>
}

export async function openMetrics<Line = MetricsLine>(path: string): Promise<MetricsFile<Line>> {
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
 * Cuts metrics.jsonl back to one line for each step up to `step`, so that what is trained again is logged once. A missing file
 * stays missing; damaged lines go, a half-written last one among them.
 *
 * @returns the steps up to `step` that have no line, the smallest first
 */
export async function cutMetrics(path: string, step: number): Promise<number[]> {
  const missing = new Set(Array.from({ length: step + 1 }, (_, i) => i))
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw fileError(error, 'cannot read the metrics', path)
  })
  if (text === undefined) return [...missing]
  const kept = text
    .split('\n')
    .filter((line) => missing.delete(parseLine(line)?.step ?? -1))
    .map((line) => `${line}\n`)
    .join('')
  if (kept !== text) await writeFileAtomic(path, kept)
  return [...missing]
}

/** A line; undefined where it is damaged. */
function parseLine(line: string): MetricsLine | undefined {
  try {
    const value = JSON.parse(line) as MetricsLine | null
    return typeof value?.step === 'number' ? value : undefined
  } catch {
    return undefined
  }
}

/** Validation metrics of step 0; undefined where the file does not start there. */
export async function readFirst(path: string): Promise<ValidationMetrics | undefined> {
  const text = await readFile(path, 'utf8').catch(() => '')
  const first = parseLine(text.slice(0, Math.max(0, text.indexOf('\n'))))
  return first?.step === 0 ? first.validation : undefined
}

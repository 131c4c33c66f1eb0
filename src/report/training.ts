import { createReadStream } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { z } from 'zod'
import { exists, fileError } from '../support/files.ts'
import { parseJsonAs } from './parse.ts'

/** A training run as a report shows it. */
export interface ReportRun {
  name: string
  folder: string
  encoder: string
  seed: number
  steps: number
  settings: Record<string, unknown>
  data: { dataset: string; folder: string }[]
  instances: { train: number; validation: number }
  lines: TrainingLine[]
}

/** What a report shows of a line of metrics.jsonl. */
export interface TrainingLine {
  step: number
  loss?: number | undefined
  learningRate?: number | undefined
  skipped: boolean
  validation?: { loss: number; accuracy: number; benchmarks: Record<string, number> } | undefined
}

const configSchema = z.object({
  encoder: z.object({ id: z.string() }),
  seed: z.number(),
  steps: z.number(),
  settings: z.record(z.string(), z.unknown()),
  data: z.array(z.object({ dataset: z.string(), folder: z.string() })),
  instances: z.object({ train: z.number(), validation: z.number() }),
})

const number = z.number().nullish()
const lineSchema = z.object({
  step: z.number(),
  // A step that was not applied may have had no finite loss, which JSON has no number for.
  loss: number,
  learning_rate: number,
  skipped: z.string().exactOptional(),
  validation: z
    .object({ decision_accuracy: z.number(), loss: z.number(), benchmarks: z.record(z.string(), z.number()) })
    .exactOptional(),
})

/**
 * Reads a run folder of "canopy train": its settings and its curves. A run that goes on is read as far as it is.
 *
 * @throws InputError naming the file, and the line of metrics.jsonl, that is not as training writes it
 */
export async function readTraining(folder: string, name: string): Promise<ReportRun> {
  const file = join(folder, 'config.json')
  const config = parseJsonAs(configSchema, await readFile(file, 'utf8'), file, 'run')
  const { seed, steps, settings, data, instances } = config
  const lines = await readLines(join(folder, 'metrics.jsonl'))
  return { name, folder, encoder: config.encoder.id, seed, steps, settings, data, instances, lines }
}

async function readLines(file: string): Promise<TrainingLine[]> {
  if (!(await exists(file))) return []
  const lines: TrainingLine[] = []
  let held: { text: string; line: number } | undefined
  const take = ({ text, line }: { text: string; line: number }): void => {
    const { step, loss, learning_rate, skipped, validation } = parseJsonAs(lineSchema, text, file, 'step', line)
    lines.push({
      step,
      loss: loss ?? undefined,
      learningRate: learning_rate ?? undefined,
      skipped: skipped !== undefined,
      validation: validation && {
        loss: validation.loss,
        accuracy: validation.decision_accuracy,
        benchmarks: validation.benchmarks,
      },
    })
  }
  let number = 0
  try {
    const input = createReadStream(file, 'utf8')
    for await (const text of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
      number++
      if (held !== undefined) take(held)
      held = text === '' ? undefined : { text, line: number }
    }
  } catch (error) {
    throw fileError(error, 'cannot read the metrics', file)
  }
  // The last line of a run that goes on may be half there.
  if (held?.text.endsWith('}')) take(held)
  return lines
}

import { join } from 'node:path'
import { readEncoderPair } from '../../src/encoder/index.ts'
import { openSafetensors } from '../../src/onnx/index.ts'
import type { MetricsLine } from '../../src/train/run/metrics.ts'
import { type TrainOptions, type TrainResult, train } from '../../src/train/run/run.ts'
import { resolveSettings, type TrainSettingsInput } from '../../src/train/settings.ts'
import type { Setup } from './command.ts'

/** Settings of a run of a few steps that evaluates and writes checkpoints in between. */
export const quick: TrainSettingsInput = {
  ...{ threads: 1, seed: 5, steps: 8, batchSize: 4, learningRate: 0.01, tokenBudget: 512, rank: 4 },
  ...{ evaluateEvery: 4, checkpointEvery: 3 },
}

export interface Trained {
  result: TrainResult
  lines: MetricsLine[]
  warnings: string[]
  tensors: Map<string, Float32Array>
}

/** Trains in this process. */
export async function trainHere(
  setup: Setup,
  output: string,
  settings: TrainSettingsInput = {},
  options: Partial<TrainOptions> = {},
): Promise<Trained> {
  const pair = await readEncoderPair(setup.encoder, {})
  const lines: MetricsLine[] = []
  const warnings: string[] = []
  const result = await train({
    encoder: pair.encoder,
    queryEncoder: pair.query,
    datasets: [setup.dataset],
    preferences: [setup.preferences],
    output,
    settings: await resolveSettings(undefined, { ...quick, ...settings }),
    onStep: (line) => lines.push(line),
    warn: (message) => warnings.push(message),
    ...options,
  })
  const file = await openSafetensors(join(output, 'adapter', 'adapter_model.safetensors'))
  const tensors = new Map<string, Float32Array>()
  for (const name of file.tensors.keys()) tensors.set(name, await file.readTensor(name))
  return { result, lines, warnings, tensors }
}

/** Largest difference between two adapters' elements. */
export function largestDifference(a: Trained['tensors'], b: Trained['tensors']): number {
  return [...a].reduce((most, [name, data]) => {
    const other = b.get(name)!
    return data.reduce((m, x, i) => Math.max(m, Math.abs(x - other[i]!)), most)
  }, 0)
}

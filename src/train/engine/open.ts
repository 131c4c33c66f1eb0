import { InputError } from '../../support/errors.ts'
import { installedTfjs, type TfjsBackend } from '../../tfjs/index.ts'
import type { TrainSettings } from '../settings.ts'
import { type Engine, openEngine } from './engine.ts'
import { openTfjsEngine } from './tfjs-engine.ts'

/** What computes a run's embeddings and gradients, as config.json and the fingerprint name it. */
export type EngineRecord = { name: 'onnxruntime' } | { name: 'tfjs'; backend: TfjsBackend; version: string }

export function engineText(record: EngineRecord): string {
  return record.name === 'tfjs' ? `tfjs ${record.version} (${record.backend})` : record.name
}

export interface ChosenEngine {
  record: EngineRecord
  open(options: Parameters<typeof openEngine>[0]): Promise<Engine>
}

/**
 * The engine that the settings ask for.
 *
 * @throws InputError for settings that it does not take, and where it is not installed
 */
export async function chooseEngine(
  settings: Pick<TrainSettings, 'engine' | 'tfjsBackend' | 'device' | 'precision'>,
): Promise<ChosenEngine> {
  const { engine, tfjsBackend, device, precision } = settings
  if (engine === 'onnxruntime') {
    if (tfjsBackend !== null)
      throw new InputError(
        `"tfjsBackend" (${tfjsBackend}) belongs to the engine tfjs; add --engine tfjs, or leave it out.`,
      )
    return { record: { name: engine }, open: openEngine }
  }
  if (precision !== 'fp32')
    throw new InputError(`The engine tfjs computes in fp32 only; --precision ${precision} needs --engine onnxruntime.`)
  if (device !== 'cpu')
    throw new InputError(
      `--device ${device} is for --engine onnxruntime. The engine tfjs uses a GPU through @tensorflow/tfjs-node-gpu (--tfjs-backend node-gpu), where that is installed.`,
    )
  const { backend, version } = await installedTfjs(tfjsBackend ?? undefined)
  return {
    record: { name: engine, backend, version },
    open: ({ encoder, queries, loss, tokenBudget }) => openTfjsEngine({ encoder, queries, loss, tokenBudget, backend }),
  }
}

// The thread behind openEncoder: holds both encoders and answers refinements one after the other.
import { parentPort, workerData } from 'node:worker_threads'
import { InputError } from '../../support/errors.ts'
import { openPair, readEncoderPair } from '../embedding/pair.ts'
import { refineItems } from './refine-items.ts'
import type { FromWorker, OpenEncoderOptions, ToWorker } from './serve.ts'

const port = parentPort
if (port === null) throw new Error('This file is the thread behind openEncoder and is not run by itself.')

const { folder, options } = workerData as { folder: string; options: OpenEncoderOptions }
const send = (message: FromWorker): void => port.postMessage(message)
const failed = (id: number | undefined, error: unknown): void =>
  send({
    kind: 'error',
    id,
    message: error instanceof Error ? error.message : String(error),
    input: error instanceof InputError ? placeOf(error) : undefined,
  })

function placeOf({ file, line }: InputError): { file?: string; line?: number } {
  return { ...(file === undefined ? {} : { file }), ...(line === undefined ? {} : { line }) }
}

async function serve(): Promise<void> {
  const pair = await readEncoderPair(folder, { ...options, onProgress: (event) => send({ kind: 'progress', event }) })
  const { threads, device, precision, tokenBudget, cache } = options
  const encoders = await openPair(pair, {
    ...(threads === undefined ? {} : { threads }),
    ...(device === undefined ? {} : { device }),
    ...(precision === undefined ? {} : { precision }),
    ...(tokenBudget === undefined ? {} : { tokenBudget }),
    ...(cache === undefined ? {} : { cache }),
  })
  const settings = {
    title: options.title ?? pair.settings.title,
    tableFormat: options.tableFormat ?? pair.settings.tableFormat,
    branching: options.branching ?? pair.settings.branching,
  }
  const running = new Map<number, AbortController>()
  let queue = Promise.resolve()

  const answer = async (message: Extract<ToWorker, { kind: 'refine' }>, signal: AbortSignal): Promise<void> => {
    try {
      signal.throwIfAborted()
      const items = await refineItems(encoders, settings, message.question, message.items, { signal })
      send({ kind: 'result', id: message.id, items })
    } catch (error) {
      failed(message.id, error)
    } finally {
      running.delete(message.id)
    }
  }
  port?.on('message', (message: ToWorker) => {
    if (message.kind === 'abort') running.get(message.id)?.abort()
    else if (message.kind === 'close') {
      for (const controller of running.values()) controller.abort()
      queue = queue.then(async () => {
        await encoders.close()
        port?.close()
      })
    } else {
      const controller = new AbortController()
      running.set(message.id, controller)
      queue = queue.then(() => answer(message, controller.signal))
    }
  })
  send({ kind: 'ready' })
}

serve().catch((error: unknown) => {
  failed(undefined, error)
  port?.close()
})

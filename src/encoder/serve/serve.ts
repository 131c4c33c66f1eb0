import { Worker } from 'node:worker_threads'
import type { TableFormatName } from '../../hierarchy/index.ts'
import type { Device, Precision } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import type { Progress } from '../../support/progress.ts'
import type { PairOptions } from '../embedding/pair.ts'
import type { RefinedItem, RefineInput } from './refine-items.ts'

export interface OpenEncoderOptions extends PairOptions {
  /** Start every region's text with its item's title; as trained by default. */
  title?: boolean
  /** How a table's header and rows become text; as trained by default. */
  tableFormat?: TableFormatName
  /** Children of a node of the hierarchy, at most; as trained by default. */
  branching?: number
  /** Threads of ONNX Runtime; all processors by default. */
  threads?: number
  /** Where the encoders run; the CPU by default. */
  device?: Device
  /** What matrix products of checkpoints are computed in, where the device can; `fp32` by default. */
  precision?: Precision
  /** Tokens computed at once; bounds memory. */
  tokenBudget?: number
  /** Folder of the embedding cache; none is kept where absent. */
  cache?: string
}

/** An encoder pair in a worker thread. It holds a thread and native memory until it is closed. */
export interface Encoder {
  /**
   * Refines items for a question: what CANOPY keeps of each of them.
   *
   * @returns one result an item, in input order
   * @throws InputError for bad input; the signal's reason when it is aborted
   */
  refine(question: string, items: readonly RefineInput[], options?: { signal?: AbortSignal }): Promise<RefinedItem[]>
  /** Ends the worker; refinements that are still running are rejected. */
  close(): Promise<void>
}

/** Messages to and from the worker. */
export type ToWorker =
  | { kind: 'refine'; id: number; question: string; items: readonly RefineInput[] }
  | { kind: 'abort'; id: number }
  | { kind: 'close' }
export type FromWorker =
  | { kind: 'ready' }
  | { kind: 'progress'; event: Parameters<Progress>[0] }
  | { kind: 'result'; id: number; items: RefinedItem[] }
  | { kind: 'error'; id: number | undefined; message: string; input: { file?: string; line?: number } | undefined }

interface Waiting {
  resolve(items: RefinedItem[]): void
  reject(reason: unknown): void
}

/**
 * Opens f0 and fθ for refinement in a worker thread, so that the event loop stays free while regions are embedded.
 *
 * @param folder an exported encoder, or a checkpoint (with `adapter`, or frozen); a Hugging Face id works too
 * @throws InputError for missing files, and for an f0 that is not the one the node encoder was trained with
 * @example
 * const encoder = await openEncoder('runs/quickstart/export')
 * const [item] = await encoder.refine('Who wound the clock?', [{ title: 'Brennick', text }])
 * await encoder.close()
 */
export async function openEncoder(folder: string, options: OpenEncoderOptions = {}): Promise<Encoder> {
  const { onProgress, ...data } = options
  const worker = new Worker(new URL('./worker.js', import.meta.url), {
    workerData: { folder, options: data },
    // a thread takes over the process's arguments, and Node allows this one only where a program comes from -e or standard input
    ...(process.execArgv.some((arg) => arg.startsWith('--input-type')) ? { execArgv: [] } : {}),
  })
  const waiting = new Map<number, Waiting>()
  let next = 0
  let failure: Error | undefined
  let closing = false

  // An idle encoder does not keep a program alive; one at work, or on its way to its end, does.
  const settle = (id: number): Waiting | undefined => {
    const waiter = waiting.get(id)
    waiting.delete(id)
    if (waiting.size === 0 && !closing) worker.unref()
    return waiter
  }
  const failAll = (error: Error): void => {
    failure ??= error
    for (const id of [...waiting.keys()]) settle(id)?.reject(error)
  }
  const exited = new Promise<void>((resolve) => worker.once('exit', () => resolve()))
  const ready = new Promise<void>((resolve, reject) => {
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'ready') resolve()
      else if (message.kind === 'progress') onProgress?.(message.event)
      else if (message.kind === 'result') settle(message.id)?.resolve(message.items)
      else if (message.id === undefined) reject(toError(message))
      else settle(message.id)?.reject(toError(message))
    })
    worker.on('error', (error: Error) => {
      failAll(error)
      reject(error)
    })
    worker.on('exit', () => {
      const error = new Error('The encoder is closed.')
      failAll(error)
      reject(error)
    })
  })
  const send = (message: ToWorker): void => worker.postMessage(message)
  await ready.catch(async (error: unknown) => {
    await worker.terminate()
    throw error
  })
  worker.unref()

  return {
    async refine(question, items, { signal } = {}) {
      if (failure !== undefined) throw failure
      signal?.throwIfAborted()
      const id = next++
      const onAbort = (): void => {
        send({ kind: 'abort', id })
        settle(id)?.reject(signal?.reason)
      }
      try {
        return await new Promise<RefinedItem[]>((resolve, reject) => {
          send({ kind: 'refine', id, question, items })
          waiting.set(id, { resolve, reject })
          worker.ref()
          signal?.addEventListener('abort', onAbort, { once: true })
        })
      } finally {
        signal?.removeEventListener('abort', onAbort)
      }
    },
    async close() {
      if (!closing) {
        closing = true
        failAll(new Error('The encoder is closed.'))
        worker.ref()
        send({ kind: 'close' })
      }
      await exited
    },
  }
}

function toError({ message, input }: Extract<FromWorker, { kind: 'error' }>): Error {
  // the message names the place already
  return input === undefined ? new Error(message) : Object.assign(new InputError(message), input)
}

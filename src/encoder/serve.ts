import { Worker } from 'node:worker_threads'
import { InputError } from '../support/errors.ts'
import type { PairOptions } from './pair.ts'
import type { RefinedItem, RefineInput } from './refine-items.ts'

export interface OpenEncoderOptions extends PairOptions {
  /** Start every region's text with its item's title; as trained by default. */
  title?: boolean
  /** Children of a node of the hierarchy, at most; as trained by default. */
  branching?: number
  /** Threads of ONNX Runtime; all processors by default. */
  threads?: number
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
  | { kind: 'result'; id: number; items: RefinedItem[] }
  | { kind: 'error'; id: number | undefined; message: string; input: boolean }

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
  const { onProgress: _, ...data } = options
  const worker = new Worker(new URL('./worker.js', import.meta.url), { workerData: { folder, options: data } })
  const waiting = new Map<number, Waiting>()
  let next = 0
  let failure: Error | undefined

  const failAll = (error: Error): void => {
    failure ??= error
    for (const { reject } of waiting.values()) reject(error)
    waiting.clear()
  }
  const ready = new Promise<void>((resolve, reject) => {
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'ready') return resolve()
      const error = message.kind === 'error' ? toError(message) : undefined
      if (message.id === undefined) return reject(error)
      const waiter = waiting.get(message.id)
      waiting.delete(message.id)
      if (message.kind === 'result') waiter?.resolve(message.items)
      else waiter?.reject(error)
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
  // An idle encoder does not keep a program alive; one at work does.
  worker.unref()

  return {
    async refine(question, items, { signal } = {}) {
      if (failure !== undefined) throw failure
      signal?.throwIfAborted()
      const id = next++
      const onAbort = (): void => {
        send({ kind: 'abort', id })
        waiting.get(id)?.reject(signal?.reason)
        waiting.delete(id)
      }
      signal?.addEventListener('abort', onAbort, { once: true })
      worker.ref()
      try {
        return await new Promise<RefinedItem[]>((resolve, reject) => {
          waiting.set(id, { resolve, reject })
          send({ kind: 'refine', id, question, items })
        })
      } finally {
        signal?.removeEventListener('abort', onAbort)
        if (waiting.size === 0) worker.unref()
      }
    },
    async close() {
      failAll(new Error('The encoder is closed.'))
      worker.ref()
      const exited = new Promise<void>((resolve) => worker.once('exit', () => resolve()))
      send({ kind: 'close' })
      await exited
    },
  }
}

function toError({ message, input }: { message: string; input: boolean }): Error {
  return input ? new InputError(message) : new Error(message)
}

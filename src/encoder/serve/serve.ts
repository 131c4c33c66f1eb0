/// <reference lib="esnext.disposable" preserve="true" />
import { Worker } from 'node:worker_threads'
import { TABLE_FORMAT_NAMES, type TableFormatName } from '../../hierarchy/index.ts'
import { DEVICES, type Device, type Precision } from '../../onnx/index.ts'
import type { RefinedItem } from '../../refine/index.ts'
import type { EmbeddingStore } from '../../store/index.ts'
import { onAborted } from '../../support/abort.ts'
import { InputError } from '../../support/errors.ts'
import { refuseUnknown } from '../../support/options.ts'
import type { PairOptions } from '../embedding/pair.ts'
import { requireName } from '../hub/hub.ts'
import { type CallMessage, type FromWorker, receivedError, type ToWorker, type WorkerData } from './messages.ts'
import { type PackedItems, unpackRefined } from './packed.ts'
import { type RefineInput, withoutOthers } from './refine-input.ts'
import { answerFromStore } from './remote-store.ts'

export interface OpenEncoderOptions extends PairOptions {
  /** Start every region's text with its item's title; as trained by default. */
  title?: boolean
  /** How a table's header and rows become text; as trained by default. */
  tableFormat?: TableFormatName
  /** Children of a node of the hierarchy, at most; as trained by default. */
  branching?: number
  /** How far below its parent a region may score and still be entered, see `refine`; as exported by default, else 0. */
  margin?: number
  /** Threads of ONNX Runtime; one for each physical processor by default. */
  threads?: number
  /** Where the encoders run; the CPU by default. */
  device?: Device
  /** What matrix products of checkpoints are computed in, where the device can; `fp32` by default. */
  precision?: Precision
  /** Tokens computed at once; bounds memory. */
  tokenBudget?: number
  /** Folder of the embedding cache; none is kept where absent. */
  cache?: string
  /** Most bytes of embeddings in `cache`: beyond it the least recently used ones go. Without end where absent. */
  cacheBytes?: number
  /** Keeps the embeddings of nodes instead of a folder. It is used in this thread, and stays open when the encoder is closed. */
  store?: EmbeddingStore
  /** The device that computed what is in the cache or store, where it is another one than `device`; see `EmbedderOptions`. */
  storedFrom?: Device
  /**
   * Bytes, at most, of the embeddings that the encoder remembers by the content of texts, tables and questions, those used last;
   * 128 MiB by default, 0 for none.
   */
  memory?: number
  /** Calls that may wait behind the one that runs, 256 by default; one more is rejected at once with a {@link QueueFullError}. */
  maxQueue?: number
  /** Breaks off the opening; without effect once the encoder is open. */
  signal?: AbortSignal
}

/** The names of all options of {@link openEncoder}. */
export const OPEN_OPTIONS = {
  adapter: true,
  queryEncoder: true,
  pooling: true,
  normalize: true,
  dimensions: true,
  instructions: true,
  hubUrl: true,
  cacheDir: true,
  accessToken: true,
  offline: true,
  onnxFile: true,
  onProgress: true,
  title: true,
  tableFormat: true,
  branching: true,
  margin: true,
  threads: true,
  device: true,
  precision: true,
  tokenBudget: true,
  cache: true,
  cacheBytes: true,
  store: true,
  storedFrom: true,
  memory: true,
  maxQueue: true,
  signal: true,
} as const satisfies Record<keyof OpenEncoderOptions, true>

export interface RefineCallOptions extends CallOptions {
  /** Of this call; the encoder's by default. */
  margin?: number | undefined
}

export interface CallOptions {
  /**
   * Ends the call: one that waits is taken out of the queue, one that runs stops behind its batch. `AbortSignal.timeout(ms)` is a
   * time limit, waiting included.
   */
  signal?: AbortSignal | undefined
}

/**
 * An encoder pair in a worker thread, which answers calls one after the other in the order they were made. It holds a thread and
 * native memory until it is closed.
 */
export interface Encoder {
  /**
   * Refines items for a question: what CANOPY keeps of each of them.
   *
   * @returns one result an item, in input order
   * @throws InputError for bad input; RangeError for a margin that is no number from 0 on; {@link QueueFullError} when too many calls
   *   wait; the signal's reason when it is aborted; an Error when the encoder is closed or its thread has ended
   */
  refine(question: string, items: readonly RefineInput[], options?: RefineCallOptions): Promise<RefinedItem[]>
  /**
   * Embeds items for questions to come, so that these need not wait for it: into the encoder's memory and into its cache or store.
   * Pictures and videos are in the cache or store only.
   *
   * @throws as {@link Encoder.refine} does
   */
  prepare(items: readonly RefineInput[], options?: CallOptions): Promise<void>
  /** Rejects calls that wait or run, waits until the running batch is done, and ends the thread. It may be called again. */
  close(): Promise<void>
  [Symbol.asyncDispose](): Promise<void>
}

/** So many calls wait that another one is refused, see `OpenEncoderOptions.maxQueue`. A server answers 503. */
export class QueueFullError extends Error {
  override name = 'QueueFullError'
  /** Tells it apart where classes cannot, as between two copies of the package. */
  readonly code = 'CANOPY_QUEUE_FULL'

  constructor(maxQueue: number) {
    super(
      `The encoder is busy: ${maxQueue} calls wait already, as many as "maxQueue" allows. Try again later, or open the encoder with a larger one.`,
    )
  }
}

const DEFAULT_QUEUE = 256

interface Waiting {
  resolve(refined: PackedItems | undefined): void
  reject(reason: unknown): void
}

/** A call as it is made; its number comes with the queue. */
type Call = CallMessage extends infer Message ? (Message extends CallMessage ? Omit<Message, 'id'> : never) : never

/**
 * Opens f0 and fθ for refinement in a worker thread, so that the event loop stays free while regions are embedded.
 *
 * @param folder an exported encoder, or a checkpoint (with `adapter`, or frozen); a Hugging Face id works too
 * @throws InputError for missing files, and for an f0 that is not the one the node encoder was trained with; RangeError for options
 *   that there are none of, or that are no such numbers; the signal's reason when it is aborted
 * @example
 * const encoder = await openEncoder('runs/quickstart/export')
 * const [item] = await encoder.refine('Who wound the clock?', [{ title: 'Brennick', text }])
 * await encoder.close()
 */
export async function openEncoder(folder: string, options: OpenEncoderOptions = {}): Promise<Encoder> {
  requireName(folder)
  refuseUnknown(options, OPEN_OPTIONS, 'openEncoder')
  const { onProgress, signal: opening, store, maxQueue = DEFAULT_QUEUE, ...sent } = options
  requireFrom0('maxQueue', maxQueue, Number.POSITIVE_INFINITY)
  requireFrom0('memory', sent.memory)
  requireFrom0('margin', sent.margin, Number.POSITIVE_INFINITY)
  requireFrom0('cacheBytes', sent.cacheBytes)
  requireWhole('threads', sent.threads, 1)
  requireWhole('tokenBudget', sent.tokenBudget, 1)
  requireWhole('branching', sent.branching, 2)
  requireOneOf('tableFormat', sent.tableFormat, TABLE_FORMAT_NAMES)
  requireOneOf('device', sent.device, DEVICES)
  requireOneOf('storedFrom', sent.storedFrom, DEVICES)
  opening?.throwIfAborted()
  const worker = new Worker(new URL('./worker.js', import.meta.url), {
    workerData: { folder, options: sent, store: store !== undefined } satisfies WorkerData,
    // a thread takes over the process's arguments, and Node allows this one only where a program comes from -e or standard input
    ...(process.execArgv.some((arg) => arg.startsWith('--input-type')) ? { execArgv: [] } : {}),
  })
  const waiting = new Map<number, Waiting>()
  let next = 0
  /** Why no call is taken any more. */
  let ended: Error | undefined
  let closing = false

  // An idle encoder does not keep a program alive; one at work, or on its way to its end, does.
  const settle = (id: number): Waiting | undefined => {
    const waiter = waiting.get(id)
    waiting.delete(id)
    if (waiting.size === 0 && !closing) worker.unref()
    return waiter
  }
  const end = (reason: Error): void => {
    ended ??= reason
    for (const id of [...waiting.keys()]) settle(id)?.reject(ended)
  }
  const send = (message: ToWorker): void => worker.postMessage(message)
  const exited = new Promise<void>((resolve) => worker.once('exit', () => resolve()))
  const ready = new Promise<void>((resolve, reject) => {
    const fail = (reason: Error): void => {
      end(reason)
      reject(reason)
    }
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'ready') resolve()
      else if (message.kind === 'progress') onProgress?.(message.event)
      else if (message.kind === 'done') settle(message.id)?.resolve(message.refined)
      else if (message.kind === 'store') void answerFromStore(store as EmbeddingStore, message).then(send)
      else if (message.id === undefined) reject(receivedError(message.error))
      else settle(message.id)?.reject(receivedError(message.error))
    })
    worker.on('error', (error: Error) => fail(threadEnded(error.message, error)))
    worker.on('messageerror', (error) => {
      fail(threadEnded(`a message could not be read: ${error.message}`, error))
      void worker.terminate()
    })
    worker.on('exit', (code) => fail(closing ? closedError() : threadEnded(`exit code ${code}`)))
  })
  await untilAborted(ready, opening).catch(async (error: unknown) => {
    await worker.terminate()
    throw error
  })
  worker.unref()

  const call = async (message: Call, signal: AbortSignal | undefined): Promise<PackedItems | undefined> => {
    if (ended !== undefined) throw ended
    signal?.throwIfAborted()
    if (waiting.size > maxQueue) throw new QueueFullError(maxQueue)
    const id = next++
    let stopListening: (() => void) | undefined
    try {
      return await new Promise<PackedItems | undefined>((resolve, reject) => {
        try {
          send({ ...message, id })
        } catch (error) {
          throw new InputError(
            `What is to be refined has a value that is no data: ${(error as Error).message}`,
            {},
            error,
          )
        }
        waiting.set(id, { resolve, reject })
        worker.ref()
        if (signal === undefined || signal === null) return
        stopListening = onAborted(signal, () => {
          send({ kind: 'abort', id })
          settle(id)?.reject(signal.reason)
        })
      })
    } finally {
      stopListening?.()
    }
  }

  const endThread = async (): Promise<void> => {
    if (ended !== undefined) return exited
    closing = true
    const failed = new Promise<never>((_, reject) => worker.once('error', reject))
    worker.ref()
    send({ kind: 'close' })
    end(closedError())
    await Promise.race([exited, failed])
  }
  let closed: Promise<void> | undefined
  const close = (): Promise<void> => {
    closed ??= endThread()
    return closed
  }

  return {
    async refine(question, items, { signal, margin } = {}) {
      requireFrom0('margin', margin, Number.POSITIVE_INFINITY)
      const refined = await call({ kind: 'refine', question, items: sentItems(items), margin }, signal)
      return unpackRefined(refined as PackedItems)
    },
    async prepare(items, { signal } = {}) {
      await call({ kind: 'prepare', items: sentItems(items) }, signal)
    },
    close,
    [Symbol.asyncDispose]: close,
  }
}

function sentItems(items: readonly RefineInput[]): RefineInput[] {
  if (!Array.isArray(items)) throw new InputError('What is to be refined is a list of items; give one item as [item].')
  return items.map(withoutOthers)
}

function requireFrom0(name: string, value: number | undefined, most = Number.MAX_VALUE): void {
  if (value === undefined || (typeof value === 'number' && value >= 0 && value <= most)) return
  throw new RangeError(`"${name}" is a number, 0 or more; ${String(value)} is none.`)
}

function requireWhole(name: string, value: number | undefined, least: number): void {
  if (value === undefined || (Number.isSafeInteger(value) && value >= least)) return
  throw new RangeError(`"${name}" is a whole number, ${least} or more; ${String(value)} is none.`)
}

function requireOneOf(name: string, value: string | undefined, names: readonly string[]): void {
  if (value === undefined || names.includes(value)) return
  throw new RangeError(`"${name}" is one of ${names.join(', ')}; ${String(value)} is none.`)
}

const closedError = (): Error => new Error('The encoder is closed.')

function threadEnded(reason: string, cause?: Error): Error {
  return new Error(
    `The encoder's thread has ended: ${reason}. Open the encoder anew.`,
    cause === undefined ? undefined : { cause },
  )
}

/** What a promise gives, unless the signal is aborted before. */
async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise
  let onAbort = (): void => {}
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal.reason)
    signal.addEventListener('abort', onAbort, { once: true })
  })
  try {
    return await Promise.race([promise, aborted])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}

import { inspect } from 'node:util'
import type { EmbeddingSpace } from '../../store/index.ts'
import { InputError } from '../../support/errors.ts'
import type { Progress } from '../../support/progress.ts'
import type { PackedItems } from './packed.ts'
import type { RefineInput } from './refine-input.ts'
import type { OpenEncoderOptions } from './serve.ts'

/** What the worker is started with. */
export interface WorkerData {
  folder: string
  options: Omit<OpenEncoderOptions, 'onProgress' | 'signal' | 'store' | 'maxQueue'>
  /** Whether the main thread has a store of embeddings. */
  store: boolean
}

/** A call: to refine items for a question, or to embed items for later. */
export type CallMessage =
  | { kind: 'refine'; id: number; question: string; items: readonly RefineInput[]; margin: number | undefined }
  | { kind: 'prepare'; id: number; items: readonly RefineInput[] }

export type ToWorker =
  | CallMessage
  | { kind: 'abort'; id: number }
  | { kind: 'close' }
  | ({ kind: 'stored'; request: number } & ({ found: StoredEmbeddings | undefined } | { error: SentError }))

export type FromWorker =
  | { kind: 'ready' }
  | { kind: 'progress'; event: Parameters<Progress>[0] }
  | { kind: 'done'; id: number; refined: PackedItems | undefined }
  | { kind: 'failed'; id: number | undefined; error: SentError }
  | StoreRequest

/** Asks the main thread's store for embeddings, or gives it some. */
export interface StoreRequest {
  kind: 'store'
  request: number
  space: EmbeddingSpace
  /** The keys one after the other. */
  keys: Uint8Array
  /** float32 [keys, dimension] to be kept; undefined where they are asked for. */
  embeddings: Float32Array | undefined
}

/** What is known of some keys: for each 1 where it is, and the embeddings of these, float32 [known, dimension]. */
export interface StoredEmbeddings {
  known: Uint8Array
  embeddings: Float32Array
}

/** An error on its way to the other thread, which gets no classes. */
export interface SentError {
  message: string
  /** Of an InputError, its place. */
  input: { file?: string; line?: number } | undefined
  /** The class, by its name. */
  name?: string
  /** `code`, as errors of Node and of databases have it. */
  code?: string
  cause?: SentError
}

/** Causes of causes that are sent. */
const CAUSES = 4

export function sentError(error: unknown, causes = CAUSES): SentError {
  if (!(error instanceof Error))
    return { message: typeof error === 'string' ? error : inspect(error), input: undefined }
  const { message, name, cause, code } = error as Error & { code?: unknown }
  const sent = {
    message,
    ...(typeof name === 'string' && { name }),
    ...(typeof code === 'string' && { code }),
    ...(cause !== undefined && causes > 0 && { cause: sentError(cause, causes - 1) }),
  }
  if (!(error instanceof InputError)) return { ...sent, input: undefined }
  const { file, line } = error
  return { ...sent, input: { ...(file === undefined ? {} : { file }), ...(line === undefined ? {} : { line }) } }
}

/** Classes that an error is one of on this side, too; of others it has the name. */
const CLASSES = { RangeError, TypeError, SyntaxError }

export function receivedError({ message, input, name = 'Error', code, cause: sent }: SentError): Error {
  const cause = sent === undefined ? undefined : receivedError(sent)
  const more = code === undefined ? {} : { code }
  // the message names the place already
  if (input !== undefined) return Object.assign(new InputError(message, {}, cause), input, more)
  const Class = Object.hasOwn(CLASSES, name) ? CLASSES[name as keyof typeof CLASSES] : Error
  const error = new Class(message, cause === undefined ? {} : { cause })
  // enumerable it would be printed among its fields
  if (error.name !== name) Object.defineProperty(error, 'name', { value: name, configurable: true, writable: true })
  return Object.assign(error, more)
}

import { type EmbeddingSpace, type EmbeddingStore, KEY_BYTES } from '../../store/index.ts'
import {
  receivedError,
  type SentError,
  type StoredEmbeddings,
  type StoreRequest,
  sentError,
  type ToWorker,
} from './messages.ts'

type StoreAnswer = Extract<ToWorker, { kind: 'stored' }>

/** The main thread's store, as the worker sees it: functions cannot be sent to a thread, so it asks by messages. */
export interface RemoteStore extends EmbeddingStore {
  answer(message: StoreAnswer): void
  /** Rejects what still waits for an answer, and what is asked from now on. */
  abandon(reason: Error): void
}

export function remoteStore(send: (message: StoreRequest) => void): RemoteStore {
  const waiting = new Map<number, { resolve(found: StoredEmbeddings | undefined): void; reject(reason: Error): void }>()
  let next = 0
  let abandoned: Error | undefined
  const ask = (
    space: EmbeddingSpace,
    keys: readonly Uint8Array[],
    embeddings: Float32Array | undefined,
  ): Promise<StoredEmbeddings | undefined> =>
    new Promise((resolve, reject) => {
      if (abandoned !== undefined) throw abandoned
      const request = next++
      const packed = new Uint8Array(keys.length * KEY_BYTES)
      for (const [i, key] of keys.entries()) packed.set(key, i * KEY_BYTES)
      waiting.set(request, { resolve, reject })
      send({ kind: 'store', request, space, keys: packed, embeddings })
    })
  return {
    async getMany(space, keys) {
      const { known, embeddings } = (await ask(space, keys, undefined)) as StoredEmbeddings
      const { dimension } = space
      let at = 0
      return keys.map((_, i) => {
        if (known[i] !== 1) return undefined
        at += dimension
        return embeddings.subarray(at - dimension, at)
      })
    },
    async putMany(space, keys, embeddings) {
      await ask(space, keys, embeddings)
    },
    answer(message) {
      const waiter = waiting.get(message.request)
      waiting.delete(message.request)
      if ('error' in message) waiter?.reject(receivedError(message.error))
      else waiter?.resolve(message.found)
    },
    abandon(reason) {
      abandoned = reason
      for (const { reject } of waiting.values()) reject(reason)
      waiting.clear()
    },
  }
}

/** Answers a worker's request from the store. */
export async function answerFromStore(
  store: EmbeddingStore,
  { request, space, keys: packed, embeddings }: StoreRequest,
): Promise<StoreAnswer> {
  const keys = Array.from({ length: packed.length / KEY_BYTES }, (_, i) =>
    packed.subarray(i * KEY_BYTES, (i + 1) * KEY_BYTES),
  )
  try {
    if (embeddings === undefined)
      return { kind: 'stored', request, found: pack(await store.getMany(space, keys), keys.length, space.dimension) }
    await store.putMany(space, keys, embeddings)
    return { kind: 'stored', request, found: undefined }
  } catch (error) {
    return { kind: 'stored', request, error: storeError(error) }
  }
}

/** An InputError says by itself what is wrong where. */
function storeError(error: unknown): SentError {
  const sent = sentError(error)
  if (sent.input !== undefined) return sent
  return { message: `The embedding store failed: ${sent.message}`, input: undefined, cause: sent }
}

function pack(found: readonly (Float32Array | undefined | null)[], asked: number, dimension: number): StoredEmbeddings {
  if (found.length !== asked) throw new Error(`getMany gave ${found.length} results for ${asked} keys.`)
  const known = Uint8Array.from(found, (embedding) => (embedding === undefined || embedding === null ? 0 : 1))
  const embeddings = new Float32Array(dimension * known.reduce((sum, one) => sum + one, 0))
  let at = 0
  for (const embedding of found) {
    if (embedding === undefined || embedding === null) continue
    if (embedding.length !== dimension)
      throw new Error(`getMany gave an embedding of ${embedding.length} numbers; this encoder's have ${dimension}.`)
    embeddings.set(embedding, at)
    at += dimension
  }
  return { known, embeddings }
}

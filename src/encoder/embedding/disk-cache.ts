import { type EmbeddingStore, openDiskStore } from '../../store/index.ts'
import { InputError } from '../../support/errors.ts'

export interface DiskCacheOptions {
  cacheBytes?: number
  warn?: (message: string) => void
}

/** A folder's store that goes on without keeping anything, and says so, where it cannot be written. */
export function openDiskCache(
  folder: string,
  { cacheBytes, warn = (message) => process.emitWarning(message) }: DiskCacheOptions,
): EmbeddingStore & { close(): Promise<void> } {
  const store = openDiskStore(folder, cacheBytes === undefined ? {} : { maxBytes: cacheBytes })
  let keeps = true
  return {
    getMany: store.getMany,
    async putMany(space, keys, embeddings) {
      if (!keeps) return
      try {
        await store.putMany(space, keys, embeddings)
      } catch (error) {
        if (!(error instanceof InputError)) throw error
        keeps = false
        warn(`${error.message} Embeddings are computed without being kept from here on.`)
      }
    },
    close: store.close,
  }
}

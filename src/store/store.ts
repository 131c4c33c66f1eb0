/** Which embeddings: those of one encoder, adapter, prompt, rendering, maximum length and number type. */
export interface EmbeddingSpace {
  /** 64 hexadecimal digits: `Embedder.fingerprint`. */
  fingerprint: string
  /** Numbers of an embedding. */
  dimension: number
  /** What people call the encoder; for messages only. */
  name?: string
}

/** Embeddings kept by what they are computed from. Those of different spaces never meet. */
export interface EmbeddingStore {
  /**
   * What is known of some keys (16 bytes each: `sequenceKey`). With no keys at all it only finds out whether the store may be used
   * for this space.
   *
   * @returns float32 [dimension] or undefined, in the order of `keys`
   * @throws InputError for a store of another encoder, and for one that cannot be read
   */
  getMany(space: EmbeddingSpace, keys: readonly Uint8Array[]): Promise<(Float32Array | undefined)[]>
  /**
   * Keeps embeddings, float32 [keys, dimension]; keys that are known are left as they are. What it returned for is kept.
   *
   * @throws InputError for a store of another encoder, and for one that cannot be written
   */
  putMany(space: EmbeddingSpace, keys: readonly Uint8Array[], embeddings: Float32Array): Promise<void>
  /** Ends the store; what was put stays. */
  close?(): Promise<void>
}

/** Bytes of a key. */
export const KEY_BYTES = 16

/** @throws RangeError for a space or keys that no store can have */
export function checkRequest({ fingerprint, dimension }: EmbeddingSpace, keys: readonly Uint8Array[]): void {
  if (!/^[0-9a-f]{64}$/.test(fingerprint)) throw new RangeError('A fingerprint has 64 hexadecimal digits.')
  if (!Number.isInteger(dimension) || dimension < 1)
    throw new RangeError(`An embedding has a whole number of numbers, at least one, and not ${dimension}.`)
  const wrong = keys.find((key) => key.length !== KEY_BYTES)
  if (wrong !== undefined) throw new RangeError(`A key has ${KEY_BYTES} bytes, and one of these has ${wrong.length}.`)
}

/** {@link checkRequest}, and that there is one embedding for each key. */
export function checkEntries(space: EmbeddingSpace, keys: readonly Uint8Array[], embeddings: Float32Array): void {
  checkRequest(space, keys)
  if (embeddings.length !== keys.length * space.dimension)
    throw new RangeError(
      `${keys.length} embeddings of ${space.dimension} numbers are not ${embeddings.length} numbers.`,
    )
}

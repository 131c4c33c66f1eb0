import { createHash } from 'node:crypto'
import { KEY_BYTES } from '../../store/index.ts'

export { KEY_BYTES }

/** Features of a picture or of two frames that stand in for the embeddings of a run of tokens. */
export interface VisualSpan {
  /** First of the tokens, counted in its sequence. */
  at: number
  /** How many tokens, which is how many rows the features have. */
  length: number
  /** SHA-256 (hexadecimal) that names the features in a {@link FeatureStore}. */
  key: string
}

/** A question or a node as an encoder computes it, template and special tokens included. */
export interface TokenSequence {
  /** int32 [tokens]. */
  ids: Int32Array
  /** int32 [3, tokens], row after row: time, height, width (M-RoPE). Absent where all three count the tokens from 0. */
  positions?: Int32Array
  /** In reading order; absent for text. */
  visuals?: VisualSpan[]
}

/** Visual features by their keys, on disk. Reading is synchronous, as a graph's inputs are put together while it waits. */
export interface FeatureStore {
  has(key: string): boolean
  /**
   * float32 [1 + deepstack levels, rows, width]: the merged features, then those that are added in the first language layers.
   *
   * @throws InputError where there are none, or the file is damaged
   */
  get(key: string): Float32Array
}

/** What an encoder reads of a question or a node. Paths are absolute. */
export interface EncoderInput {
  text: string
  /** Picture files, in the order they are shown. */
  images?: string[]
  /**
   * `frames`: times in whole milliseconds on the file's clock; `start`: the node's own beginning there, where its clock is 0; `end`: the
   * node's end there, for messages.
   */
  video?: { path: string; frames: number[]; start: number; end?: number }
}

export interface EncodedInput {
  sequence: TokenSequence
  /** Whether the input was cut at the maximum length. */
  truncated: boolean
}

/** A text's sequence: its tokens are counted from 0, and none stands for a picture. */
export function textSequence(ids: Int32Array): TokenSequence {
  return { ids }
}

/** What tells token sequences apart: 16 bytes of the SHA-256 of ids, positions and visual features. */
export function sequenceKey({ ids, positions, visuals }: TokenSequence): Uint8Array {
  const hash = createHash('sha256').update(bytesOf(ids))
  if (positions !== undefined) hash.update(bytesOf(positions))
  // tells a sequence with positions from a longer one without
  if (positions !== undefined || visuals !== undefined)
    hash.update(JSON.stringify([ids.length, (visuals ?? []).map(({ at, length, key }) => [at, length, key])]))
  return hash.digest().subarray(0, KEY_BYTES)
}

/** For each sequence the index of the first equal one; and the indices that are first. */
export function firstOccurrences(sequences: readonly TokenSequence[]): { same: Int32Array; first: number[] } {
  const seen = new Map<string, number>()
  const first: number[] = []
  const same = Int32Array.from(sequences, (sequence, i) => {
    const key = Buffer.from(sequenceKey(sequence)).toString('latin1')
    const known = seen.get(key)
    if (known !== undefined) return known
    seen.set(key, i)
    first.push(i)
    return i
  })
  return { same, first }
}

function bytesOf({ buffer, byteOffset, byteLength }: Int32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

import { createHash } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import { RENDERING_VERSION } from '../hierarchy/index.ts'
import { float16ToFloat32, openSession, type Session, type Tensor } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import type { Progress } from '../support/progress.ts'
import { openWeights, packedEncoder, rowCosts } from './architecture.ts'
import { openEmbeddingCache, sequenceKey } from './cache.ts'
import type { EncoderProfile, Pooling, Side } from './checkpoint.ts'
import { type Adapter, adapterHash, loraShapes } from './lora.ts'
import { packedFeeds, packSequences, planBatches } from './pack.ts'
import { loadTokenizer, type Tokenizer } from './tokenizer.ts'

export interface EmbedderOptions {
  /** LoRA matrices over the encoder; for checkpoints only. */
  adapter?: Adapter
  threads?: number
  /** Most tokens, padding included, that are computed at once. 4 096 by default. */
  tokenBudget?: number
  /** Folder of the embedding cache; none is kept where absent. */
  cache?: string
  /** A lower limit on tokens than the encoder's own. */
  maxLength?: number
}

export interface EmbeddedTexts {
  /** float32 [texts, dimension]. */
  embeddings: Float32Array
  /** Whether the text was cut at the maximum length. */
  truncated: boolean[]
  /** Index of the first text with the same token sequence: texts that share it share one embedding. */
  same: Int32Array
  /** Tokens of each text as it was embedded, special tokens included. */
  tokens: Int32Array
}

export interface EmbedOptions {
  onProgress?: Progress
  signal?: AbortSignal
}

/** An encoder ready to embed texts. It holds native memory until it is closed. */
export interface Embedder {
  readonly profile: EncoderProfile
  readonly tokenizer: Tokenizer
  /** SHA-256 over everything that decides an embedding: encoder, adapter, length, rendering version. */
  readonly fingerprint: string
  readonly dimension: number
  /** How many embeddings were computed, and how many were found in the cache. */
  readonly counts: { computed: number; cached: number; tokens: number }
  /** Embeds texts with the prompt of their side in front. Equal token sequences are computed once. */
  embedTexts(texts: readonly string[], side: Side, options?: EmbedOptions): Promise<EmbeddedTexts>
  /** Embeds complete token sequences, float32 [sequences, dimension]. */
  embedSequences(sequences: readonly Int32Array[], options?: EmbedOptions): Promise<Float32Array>
  close(): Promise<void>
}

/**
 * Opens an encoder for embedding. A checkpoint computes packed rows, an ONNX folder padded rows with texts of like length
 * together. The same texts give the same embeddings, whatever order the batches take.
 *
 * @throws InputError for files that are missing or don't fit together, and for an adapter over an ONNX folder
 */
export async function openEmbedder(profile: EncoderProfile, options: EmbedderOptions = {}): Promise<Embedder> {
  const { adapter, tokenBudget = 4096 } = options
  if (adapter !== undefined && profile.kind === 'onnx')
    throw new InputError(
      'An adapter cannot be put on an ONNX graph. Give the checkpoint that it was trained over, or an export with the adapter merged in.',
      { file: profile.folder },
    )
  const tokenizer = await loadTokenizer(
    profile,
    options.maxLength === undefined ? {} : { maxLength: options.maxLength },
  )
  const parts = [
    'embedding/1',
    profile.fingerprint,
    adapter === undefined ? null : adapterHash(adapter),
    tokenizer.maxLength,
  ]
  const fingerprint = createHash('sha256')
    .update(JSON.stringify([...parts, RENDERING_VERSION]))
    .digest('hex')
  const engine =
    profile.kind === 'onnx'
      ? await onnxEngine(profile, tokenizer, options)
      : await packedEngine(profile, tokenizer, options)
  const cache =
    options.cache === undefined ? undefined : openEmbeddingCache(options.cache, fingerprint, profile.dimension)
  const { dimension } = profile
  const costs = rowCosts(profile)
  const counts = { computed: 0, cached: 0, tokens: 0 }

  const embedSequences = async (sequences: readonly Int32Array[], run: EmbedOptions = {}): Promise<Float32Array> => {
    const out = new Float32Array(sequences.length * dimension)
    const keys = cache === undefined ? [] : sequences.map(sequenceKey)
    const missing: number[] = []
    sequences.forEach((_, i) => {
      const found = cache?.get(keys[i] as Uint8Array)
      if (found === undefined) missing.push(i)
      else out.set(found, i * dimension)
    })
    counts.cached += sequences.length - missing.length
    let done = sequences.length - missing.length
    run.onProgress?.({ phase: 'embed', done, total: sequences.length })
    const lengths = missing.map((i) => (sequences[i] as Int32Array).length)
    for (const batch of planBatches(lengths, {
      tokenBudget,
      packed: profile.kind === 'checkpoint',
      ...costs,
    })) {
      run.signal?.throwIfAborted()
      const members = batch.map((n) => missing[n] as number)
      const embeddings = await engine.embed(members.map((i) => sequences[i] as Int32Array))
      if (embeddings.length !== members.length * dimension)
        throw new InputError(
          `The model's vectors have ${embeddings.length / members.length} numbers, its configuration says ${dimension}.`,
          { file: profile.weights },
        )
      members.forEach((i, n) => {
        const row = embeddings.subarray(n * dimension, (n + 1) * dimension)
        if (!row.every(Number.isFinite))
          throw new InputError(
            `The encoder gives numbers that are not finite for a text of ${(sequences[i] as Int32Array).length} tokens; its weights are damaged or overflow.`,
            { file: profile.weights },
          )
        out.set(row, i * dimension)
        counts.tokens += (sequences[i] as Int32Array).length
      })
      cache?.add(
        members.map((i) => keys[i] as Uint8Array),
        embeddings,
      )
      counts.computed += members.length
      done += members.length
      run.onProgress?.({ phase: 'embed', done, total: sequences.length })
      // running a graph blocks the event loop: let signals and timers in between batches
      await setImmediate()
    }
    return out
  }

  return {
    profile,
    tokenizer,
    fingerprint,
    dimension,
    counts,
    embedSequences,
    async embedTexts(texts, side, run = {}) {
      const encoded = texts.map((text) => tokenizer.encode(profile.prompts[side] + text))
      const { same, first } = firstOccurrences(encoded.map((e) => e.ids))
      const unique = await embedSequences(
        first.map((i) => (encoded[i] as { ids: Int32Array }).ids),
        run,
      )
      const place = new Map(first.map((text, n) => [text, n]))
      const embeddings = new Float32Array(texts.length * dimension)
      same.forEach((original, i) => {
        const n = place.get(original) as number
        embeddings.set(unique.subarray(n * dimension, (n + 1) * dimension), i * dimension)
      })
      return {
        embeddings,
        truncated: encoded.map((e) => e.truncated),
        same,
        tokens: Int32Array.from(encoded, (e) => e.ids.length),
      }
    },
    async close() {
      cache?.close()
      await engine.close()
    },
  }
}

/** For each sequence the index of the first equal one; and the indices that are first. */
export function firstOccurrences(sequences: readonly Int32Array[]): { same: Int32Array; first: number[] } {
  const seen = new Map<string, number>()
  const first: number[] = []
  const same = Int32Array.from(sequences, (ids, i) => {
    const key = Buffer.from(ids.buffer, ids.byteOffset, ids.byteLength).toString('latin1')
    const known = seen.get(key)
    if (known !== undefined) return known
    seen.set(key, i)
    first.push(i)
    return i
  })
  return { same, first }
}

/** Computes the embeddings of one batch, float32 [sequences, dimension]. */
interface Engine {
  embed(sequences: Int32Array[]): Promise<Float32Array>
  close(): Promise<void>
}

async function packedEngine(profile: EncoderProfile, tokenizer: Tokenizer, options: EmbedderOptions): Promise<Engine> {
  const { adapter } = options
  const { weights, folder } = await openWeights(profile)
  const graph = packedEncoder(profile, weights, adapter === undefined ? {} : { lora: adapter.targets })
  const session = await openSession(graph, {
    externalFolder: folder,
    ...(options.threads === undefined ? {} : { threads: options.threads }),
  })
  const matrices: Record<string, Tensor> = {}
  for (const { name, shape } of loraShapes(adapter?.targets ?? []))
    matrices[name] = { dtype: 'float32', shape, data: adapter?.tensors.get(name) as Float32Array }
  return {
    async embed(sequences) {
      const batch = packSequences(sequences, undefined, { padId: tokenizer.padId, ...rowCosts(profile) })
      const { embeddings } = await session.run({ ...packedFeeds(batch, profile.pooling), ...matrices })
      return embeddings?.data as Float32Array
    },
    close: () => session.release(),
  }
}

async function onnxEngine(profile: EncoderProfile, tokenizer: Tokenizer, options: EmbedderOptions): Promise<Engine> {
  const session = await openSession(profile.weights, options.threads === undefined ? {} : { threads: options.threads })
  const output = ['last_hidden_state', 'token_embeddings'].find((name) => session.outputs.includes(name))
  const known = ['input_ids', 'attention_mask', 'token_type_ids']
  const strange = [...session.inputs.keys()].find((name) => !known.includes(name))
  if (output === undefined || strange !== undefined || !session.inputs.has('input_ids')) {
    await session.release()
    throw new InputError(
      output === undefined
        ? `The graph has no output "last_hidden_state"; it has ${session.outputs.join(', ')}. Export the encoder as feature extraction.`
        : strange === undefined
          ? 'The graph has no input "input_ids".'
          : `The graph asks for "${strange}"; encoders here take ${known.join(', ')}.`,
      { file: profile.weights },
    )
  }
  return {
    async embed(sequences) {
      const length = Math.max(...sequences.map((s) => s.length))
      const results = await session.run(paddedFeeds(session, sequences, length, tokenizer.padId))
      const hidden = asFloat32(results[output] as Tensor)
      return poolRows(hidden, sequences, length, profile)
    },
    close: () => session.release(),
  }
}

function paddedFeeds(session: Session, sequences: Int32Array[], length: number, padId: number): Record<string, Tensor> {
  const shape = [sequences.length, length]
  const fill = (name: string, outside: number, inside: (id: number) => number): [string, Tensor] => {
    const data = new Int32Array(sequences.length * length).fill(outside)
    sequences.forEach((ids, row) => {
      for (let i = 0; i < ids.length; i++) data[row * length + i] = inside(ids[i] as number)
    })
    return session.inputs.get(name)?.dtype === 'int32'
      ? [name, { dtype: 'int32', shape, data }]
      : [name, { dtype: 'int64', shape, data: BigInt64Array.from(data, BigInt) }]
  }
  const all = [
    fill('input_ids', padId, (id) => id),
    fill('attention_mask', 0, () => 1),
    fill('token_type_ids', 0, () => 0),
  ]
  return Object.fromEntries(all.filter(([name]) => session.inputs.has(name)))
}

function asFloat32(tensor: Tensor): Float32Array {
  if (tensor.data instanceof Float32Array) return tensor.data
  if (tensor.dtype === 'float16') return float16ToFloat32(tensor.data as Uint16Array)
  throw new InputError(`The model's output is ${tensor.dtype}; float32 or float16 was expected.`)
}

/** Token vectors [sequences, length, dimension] -> embeddings [sequences, dimension]. */
function poolRows(
  hidden: Float32Array,
  sequences: Int32Array[],
  length: number,
  profile: EncoderProfile,
): Float32Array {
  const dimension = hidden.length / (sequences.length * length)
  const out = new Float32Array(sequences.length * dimension)
  sequences.forEach((ids, row) => {
    const [from, to] = pooledRange(profile.pooling, ids.length)
    const sum = new Float64Array(dimension)
    for (let token = from; token < to; token++) {
      const at = (row * length + token) * dimension
      for (let k = 0; k < dimension; k++) sum[k] = (sum[k] as number) + (hidden[at + k] as number)
    }
    let squares = 0
    for (let k = 0; k < dimension; k++) {
      sum[k] = (sum[k] as number) / (to - from)
      squares += (sum[k] as number) ** 2
    }
    const norm = profile.normalize ? Math.max(Math.sqrt(squares), 1e-12) : 1
    for (let k = 0; k < dimension; k++) out[row * dimension + k] = (sum[k] as number) / norm
  })
  return out
}

function pooledRange(pooling: Pooling, length: number): [number, number] {
  if (pooling === 'mean') return [0, length]
  return pooling === 'cls' ? [0, 1] : [length - 1, length]
}

import { createHash } from 'node:crypto'
import { setImmediate } from 'node:timers/promises'
import { RENDERING_VERSION } from '../hierarchy/index.ts'
import { type Device, openSession, type Tensor } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import type { Progress } from '../support/progress.ts'
import { openEmbeddingCache, sequenceKey } from './cache.ts'
import type { EncoderProfile, Side } from './checkpoint.ts'
import { checkedAgainstCpu } from './device-check.ts'
import { encoderGraph } from './graph.ts'
import { openOriginal } from './imported/index.ts'
import { type Adapter, adapterHash, loraShapes } from './lora.ts'
import { planBatches, runTokens } from './pack.ts'
import { loadTokenizer, type Tokenizer } from './tokenizer.ts'

export interface EmbedderOptions {
  /** LoRA matrices over the encoder. */
  adapter?: Adapter
  threads?: number
  /** Where the encoder runs; the CPU by default. */
  device?: Device
  /** Most tokens, padding included, that are computed at once. 4 096 by default. */
  tokenBudget?: number
  /** Folder of the embedding cache; none is kept where absent. */
  cache?: string
  /** A lower limit on tokens than the encoder's own. */
  maxLength?: number
  warn?: (message: string) => void
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
 * Opens an encoder for embedding. A checkpoint computes packed rows. An ONNX folder's graph is run as it stands, over padded
 * rows with texts of like length together (one by one where its operators quantise activations by their range in the batch);
 * with an adapter it is the graph that training differentiates, in packed rows where
 * it can be. The same texts give the same embeddings, whatever order the batches take.
 *
 * @throws InputError for files that are missing or don't fit together, and for a graph that is not supported
 */
export async function openEmbedder(profile: EncoderProfile, options: EmbedderOptions = {}): Promise<Embedder> {
  const { adapter, tokenBudget = 4096 } = options
  const tokenizer = await loadTokenizer(
    profile,
    options.maxLength === undefined ? {} : { maxLength: options.maxLength },
  )
  const parts = [
    'embedding/2',
    profile.fingerprint,
    adapter === undefined ? null : adapterHash(adapter),
    tokenizer.maxLength,
  ]
  const fingerprint = createHash('sha256')
    .update(JSON.stringify([...parts, RENDERING_VERSION]))
    .digest('hex')
  const { device = 'cpu' } = options
  const open = (settings: EmbedderOptions): Promise<Engine> =>
    profile.kind === 'onnx' && adapter === undefined
      ? originalEngine(profile, tokenizer, settings)
      : graphEngine(profile, tokenizer, settings)
  const openCpu = (): Promise<Engine> => open({ ...options, device: 'cpu', warn: () => {} })
  const engine = device === 'cpu' ? await open(options) : checkedAgainstCpu(await open(options), device, openCpu)
  const cache =
    options.cache === undefined ? undefined : openEmbeddingCache(options.cache, fingerprint, profile.dimension)
  const { dimension } = profile
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
    const computed = missing.map((i) => sequences[i] as Int32Array)
    for (const batch of engine.batches(computed, Math.min(tokenBudget, runTokens(device)))) {
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

interface Engine {
  /** Groups of sequences, by index, whose runs stay within a budget of tokens. */
  batches(sequences: Int32Array[], budget: number): number[][]
  /** Computes the embeddings of one batch, float32 [sequences, dimension]. */
  embed(sequences: Int32Array[]): Promise<Float32Array>
  close(): Promise<void>
}

async function graphEngine(profile: EncoderProfile, tokenizer: Tokenizer, options: EmbedderOptions): Promise<Engine> {
  const { adapter, threads, device, warn } = options
  const encoder = await encoderGraph(profile, adapter?.targets ?? [], tokenizer.padId)
  for (const note of encoder.notes) warn?.(`${profile.id}: ${note}.`)
  // the matrices do not change: as constants of the graph they are added to their weights once, when the session is made
  const matrices = loraShapes(adapter?.targets ?? []).map(({ name, shape }): [string, Tensor] => [
    name,
    { dtype: 'float32', shape, data: adapter?.tensors.get(name) as Float32Array },
  ])
  const constant = new Set(matrices.map(([name]) => name))
  const graph = {
    ...encoder.graph,
    inputs: encoder.graph.inputs.filter((name) => !constant.has(name)),
    initializers: new Map([...encoder.graph.initializers, ...matrices]),
  }
  const session = await openSession(graph, {
    ...(encoder.externalFolder === undefined ? {} : { externalFolder: encoder.externalFolder }),
    ...(threads === undefined ? {} : { threads }),
    ...(device === undefined ? {} : { device }),
  })
  return {
    batches: encoder.batches,
    async embed(sequences) {
      const { embeddings } = await session.run(encoder.feeds(sequences))
      return embeddings?.data as Float32Array
    },
    close: () => session.release(),
  }
}

async function originalEngine(
  profile: EncoderProfile,
  tokenizer: Tokenizer,
  { threads, device }: EmbedderOptions,
): Promise<Engine> {
  const original = await openOriginal(profile, tokenizer.padId, {
    ...(threads === undefined ? {} : { threads }),
    ...(device === undefined ? {} : { device }),
  })
  return {
    batches: (sequences, tokenBudget) =>
      original.mixesTexts
        ? sequences.map((_, i) => [i])
        : planBatches(
            sequences.map(({ length }) => length),
            { tokenBudget, packed: false },
          ),
    embed: original.embed,
    close: original.close,
  }
}

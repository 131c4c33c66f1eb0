import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { RENDERING_VERSION } from '../../hierarchy/index.ts'
import { checkPrecision, type Device, type Precision, type SessionOptions } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import type { Progress } from '../../support/progress.ts'
import type { EncoderProfile, Side } from '../folder/profile.ts'
import { FEATURES_FOLDER, type InputReader, openReader, type ReaderOptions } from '../input/reader.ts'
import { type EncoderInput, firstOccurrences, sequenceKey, type TokenSequence } from '../input/sequence.ts'
import { type Adapter, adapterHash } from '../lora/lora.ts'
import { runTokens } from '../rows/pack.ts'
import { type EmbeddingCache, openEmbeddingCache } from './cache.ts'
import { openEngine } from './engine.ts'

export interface EmbedderOptions {
  /** LoRA matrices over the encoder. */
  adapter?: Adapter
  threads?: number
  /** Where the encoder runs; the CPU by default. */
  device?: Device
  /** What a checkpoint's matrix products are computed in, where the device can; `fp32` by default, whatever its weights are stored in. */
  precision?: Precision
  /** Most tokens, padding included, that are computed at once. 4 096 by default. */
  tokenBudget?: number
  /** Folder of the caches of embeddings and of visual features; none is kept where absent. */
  cache?: string
  /** A lower limit on tokens than the encoder's own. */
  maxLength?: number
  /** Reads the inputs, of another embedder of the same encoder; opened and closed with the embedder where absent. */
  reader?: InputReader
  /** Whether a causal checkpoint computes tokens that sequences begin with in common once; true where absent. */
  share?: boolean
  /**
   * ONNX Runtime's graph optimisations of an ONNX folder's own graphs; all of them by default. With `disabled` a number is rounded
   * to a type wherever the file says so, also where the CPU has no kernel in that type.
   */
  optimization?: SessionOptions['optimization']
  warn?: (message: string) => void
}

export interface Embedded {
  /** float32 [inputs, dimension]. */
  embeddings: Float32Array
  /** Whether the input was cut at the maximum length. */
  truncated: boolean[]
  /** Index of the first input with the same token sequence: inputs that share it share one embedding. */
  same: Int32Array
  /** Tokens of each input as it was embedded, special tokens included. */
  tokens: Int32Array
}

export interface EmbedOptions {
  onProgress?: Progress
  signal?: AbortSignal
}

/** An encoder ready to embed texts and, where it reads them, images and videos. It holds native memory until it is closed. */
export interface Embedder {
  readonly profile: EncoderProfile
  readonly reader: InputReader
  /** SHA-256 over everything that decides an embedding: encoder, adapter, length, rendering version. */
  readonly fingerprint: string
  readonly dimension: number
  /**
   * How many embeddings were computed, and how many were found in the cache; tokens of the computed ones' sequences, and how many
   * tokens were computed for them: fewer where sequences share what they begin with.
   */
  readonly counts: { computed: number; cached: number; tokens: number; computedTokens: number }
  /**
   * Embeds inputs with the prompt or instruction of their side. Equal token sequences are computed once.
   *
   * @throws InputError as `InputReader.encode` does, and for embeddings that are not finite
   */
  embed(inputs: readonly EncoderInput[], side: Side, options?: EmbedOptions): Promise<Embedded>
  /** {@link embed} for texts alone. */
  embedTexts(texts: readonly string[], side: Side, options?: EmbedOptions): Promise<Embedded>
  /** Embeds complete token sequences, whose visual features are in the reader's store: float32 [sequences, dimension]. */
  embedSequences(sequences: readonly TokenSequence[], options?: EmbedOptions): Promise<Float32Array>
  /** Releases what it holds; what is still being embedded is rejected. */
  close(): Promise<void>
}

/**
 * Opens an encoder for embedding. A checkpoint computes packed rows, in which a causal one computes what inputs begin with in
 * common once. An ONNX folder's graph is run as it stands, over padded rows with inputs of like length together (one by one where
 * its operators quantise activations by their range in the batch); with an adapter it is the graph that training differentiates,
 * in packed rows where it can be. The same inputs give the same embeddings, whatever order the batches take.
 *
 * @throws InputError for files that are missing or don't fit together, and for a graph that is not supported
 */
export async function openEmbedder(profile: EncoderProfile, options: EmbedderOptions = {}): Promise<Embedder> {
  const { adapter, tokenBudget = 4096, device = 'cpu', precision = 'fp32', optimization } = options
  checkPrecision(precision, device)
  if (precision !== 'fp32' && profile.kind === 'onnx')
    throw new InputError(
      `An ONNX graph computes in its own types; leave "precision" (--precision ${precision}) out, or give another graph (--onnx-file, in a program "onnxFile").`,
      { file: profile.weights },
    )
  const reader = options.reader ?? (await openReader(profile, readerOptions(options)))
  const parts = [
    'embedding/2',
    profile.fingerprint,
    adapter === undefined ? null : adapterHash(adapter),
    reader.maxLength,
    ...(precision === 'fp32' ? [] : [precision]),
    ...(optimization === undefined ? [] : [`optimization ${optimization}`]),
  ]
  const fingerprint = createHash('sha256')
    .update(JSON.stringify([...parts, RENDERING_VERSION]))
    .digest('hex')
  const closeReader = async (): Promise<void> => {
    if (options.reader === undefined) await reader.close()
  }
  const engine = await openEngine(profile, reader, options).catch(async (error: unknown) => {
    await closeReader()
    throw error
  })
  let cache: EmbeddingCache | undefined
  try {
    if (options.cache !== undefined) cache = openEmbeddingCache(options.cache, fingerprint, profile.dimension)
  } catch (error) {
    await engine.close()
    await closeReader()
    throw error
  }
  const { dimension } = profile
  const counts = { computed: 0, cached: 0, tokens: 0, computedTokens: 0 }

  const closing = new AbortController()
  const running = new Set<Promise<unknown>>()
  let closed: Promise<void> | undefined
  /** Runs what closing breaks off and waits for. */
  const whileOpen = async <T>(run: EmbedOptions, action: (run: EmbedOptions) => Promise<T>): Promise<T> => {
    closing.signal.throwIfAborted()
    const signal = run.signal === undefined ? closing.signal : AbortSignal.any([run.signal, closing.signal])
    const result = action({ ...run, signal })
    running.add(result)
    return result.finally(() => running.delete(result))
  }

  const compute = async (sequences: readonly TokenSequence[], run: EmbedOptions): Promise<Float32Array> => {
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
    const computed = missing.map((i) => sequences[i] as TokenSequence)
    for (const batch of engine.batches(computed, tokenBudget, runTokens(device))) {
      run.signal?.throwIfAborted()
      const members = batch.map((n) => missing[n] as number)
      const together = members.map((i) => sequences[i] as TokenSequence)
      const embeddings = await engine.embed(together)
      if (embeddings.length !== members.length * dimension)
        throw new InputError(
          `The model's vectors have ${embeddings.length / members.length} numbers, its configuration says ${dimension}.`,
          { file: profile.weights },
        )
      members.forEach((i, n) => {
        const row = embeddings.subarray(n * dimension, (n + 1) * dimension)
        if (!row.every(Number.isFinite))
          throw new InputError(
            `The encoder gives numbers that are not finite for an input of ${(sequences[i] as TokenSequence).ids.length} tokens; its weights are damaged or overflow.`,
            { file: profile.weights },
          )
        out.set(row, i * dimension)
        counts.tokens += (sequences[i] as TokenSequence).ids.length
      })
      cache?.add(
        members.map((i) => keys[i] as Uint8Array),
        embeddings,
      )
      counts.computed += members.length
      counts.computedTokens += engine.computed(together)
      done += members.length
      run.onProgress?.({ phase: 'embed', done, total: sequences.length })
      // running a graph blocks the event loop: let signals and timers in between batches
      await setImmediate()
    }
    return out
  }

  const embedAll = async (inputs: readonly EncoderInput[], side: Side, run: EmbedOptions): Promise<Embedded> => {
    const encoded = await reader.encode(inputs, side, run)
    const { same, first } = firstOccurrences(encoded.map(({ sequence }) => sequence))
    const unique = await compute(
      first.map((i) => (encoded[i] as { sequence: TokenSequence }).sequence),
      run,
    )
    const place = new Map(first.map((input, n) => [input, n]))
    const embeddings = new Float32Array(inputs.length * dimension)
    same.forEach((original, i) => {
      const n = place.get(original) as number
      embeddings.set(unique.subarray(n * dimension, (n + 1) * dimension), i * dimension)
    })
    return {
      embeddings,
      truncated: encoded.map(({ truncated }) => truncated),
      same,
      tokens: Int32Array.from(encoded, ({ sequence }) => sequence.ids.length),
    }
  }
  const embed: Embedder['embed'] = (inputs, side, run = {}) => whileOpen(run, (open) => embedAll(inputs, side, open))
  return {
    ...{ profile, reader, fingerprint, dimension, counts, embed },
    embedSequences: (sequences, run = {}) => whileOpen(run, (open) => compute(sequences, open)),
    embedTexts: (texts, side, run) =>
      embed(
        texts.map((text) => ({ text })),
        side,
        run,
      ),
    close() {
      closed ??= (async () => {
        closing.abort(new Error('The embedder is closed.'))
        await Promise.allSettled(running)
        cache?.close()
        await engine.close()
        await closeReader()
      })()
      return closed
    },
  }
}

/** What an embedder's own reader is opened with; its visual features are cached beside the embeddings. */
function readerOptions({ maxLength, threads, device, cache, optimization }: EmbedderOptions): ReaderOptions {
  return {
    ...(optimization === undefined ? {} : { optimization }),
    ...(maxLength === undefined ? {} : { maxLength }),
    ...(threads === undefined ? {} : { threads }),
    ...(device === undefined ? {} : { device }),
    ...(cache === undefined ? {} : { cache: join(cache, FEATURES_FOLDER) }),
  }
}

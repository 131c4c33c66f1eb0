import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { RENDERING_VERSION } from '../../hierarchy/index.ts'
import { checkPrecision, type Device, type Precision, type SessionOptions } from '../../onnx/index.ts'
import type { EmbeddingSpace, EmbeddingStore } from '../../store/index.ts'
import { onAborted } from '../../support/abort.ts'
import { InputError } from '../../support/errors.ts'
import type { Progress } from '../../support/progress.ts'
import type { EncoderProfile, Side } from '../folder/profile.ts'
import { FEATURES_FOLDER, type InputReader, openReader, type ReaderOptions } from '../input/reader.ts'
import { type EncoderInput, firstOccurrences, sequenceKey, type TokenSequence } from '../input/sequence.ts'
import { type Adapter, adapterHash } from '../lora/lora.ts'
import { runTokens } from '../rows/pack.ts'
import { openDiskCache } from './disk-cache.ts'
import { type Engine, openEngine } from './engine.ts'

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
  /**
   * Folder that keeps embeddings and visual features over runs; none is kept where absent. When the disk is full, or the folder may
   * not be written, `warn` hears of it once and embeddings are computed without being kept.
   */
  cache?: string
  /** Most bytes of embeddings in `cache`: beyond it the least recently used ones go. Without end where absent. */
  cacheBytes?: number
  /**
   * Keeps the embeddings of nodes, in place of `cache`. It stays its owner's to close. Its errors are errors of what is being
   * embedded, which may be tried again.
   */
  store?: EmbeddingStore
  /** Keeps the embeddings of questions, in place of `cache`. */
  questionStore?: EmbeddingStore
  /**
   * The device that computed what is in the stores, where it is another one: stores that a GPU filled serve a CPU. What they lack is
   * computed on `device`, and is the same up to rounding. `device` where absent.
   */
  storedFrom?: Device
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
  /** Hears what is not as it should be and stops nothing; without it, failures of the cache are warnings of the process. */
  warn?: (message: string) => void
}

export interface Embedded {
  /** float32 [inputs, dimension]. */
  embeddings: Float32Array
  /** Whether the input was cut at the maximum length. */
  truncated: boolean[]
  /** Index of the first input (of its group) with the same token sequence: inputs that share it share one embedding. */
  same: Int32Array
  /** Tokens of each input as it was embedded, special tokens included. */
  tokens: Int32Array
}

export interface EmbedOptions {
  onProgress?: Progress
  signal?: AbortSignal
  /**
   * How many inputs, one after the other, are computed together; all of them where absent. What is computed together decides how
   * sums are rounded: by groups, an embedding has the same bits whatever is in the other groups. Without effect on other devices than
   * the CPU, which need large runs, and on an ONNX folder's own graph, whose rows are padded to the longest of their run: few rows of
   * any length would be mostly padding.
   */
  groups?: readonly number[]
}

/**
 * An encoder ready to embed texts and, where it reads them, images and videos. It holds native memory until it is closed: with a
 * cache or a store from when something has to be computed, without one from the start.
 */
export interface Embedder {
  readonly profile: EncoderProfile
  readonly reader: InputReader
  /**
   * SHA-256 over everything that decides an embedding: encoder (an ONNX folder's graph, with the types it computes in, included),
   * adapter, length, rendering version, precision, device. Stores know embeddings by it.
   */
  readonly fingerprint: string
  readonly dimension: number
  /**
   * How many embeddings were computed, and how many were found in a store; tokens of the computed ones' sequences, and how many
   * tokens were computed for them: fewer where sequences share what they begin with.
   */
  readonly counts: { computed: number; cached: number; tokens: number; computedTokens: number }
  /** Whether the model is in memory. */
  readonly loaded: boolean
  /** Loads the model now instead of with the first embedding that is not in a store. */
  load(): Promise<void>
  /**
   * Embeds inputs with the prompt or instruction of their side. Equal token sequences are computed once.
   *
   * @throws InputError as `InputReader.encode` does, and for embeddings that are not finite
   */
  embed(inputs: readonly EncoderInput[], side: Side, options?: EmbedOptions): Promise<Embedded>
  /** {@link embed} for texts alone. */
  embedTexts(texts: readonly string[], side: Side, options?: EmbedOptions): Promise<Embedded>
  /** What the embeddings of inputs are kept under in a store: 16 bytes each, to find them there with other programs. */
  keys(inputs: readonly EncoderInput[], side: Side, options?: EmbedOptions): Promise<Uint8Array[]>
  /**
   * Embeds complete token sequences, whose visual features are in the reader's store: float32 [sequences, dimension]. They are kept
   * with the nodes.
   */
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
 * With a cache or a store the model is loaded when the first embedding has to be computed, or by `load`.
 *
 * @throws InputError for files that are missing or don't fit together, for a graph that is not supported (with a cache or a store
 *   when it is loaded), and for a store of another encoder
 */
export async function openEmbedder(profile: EncoderProfile, options: EmbedderOptions = {}): Promise<Embedder> {
  const { adapter, tokenBudget = 4096, device = 'cpu', precision = 'fp32', optimization, storedFrom = device } = options
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
    // kernels of another device round otherwise, and some compute with fewer bits
    ...(storedFrom === 'cpu' ? [] : [`device ${storedFrom}`]),
  ]
  const fingerprint = createHash('sha256')
    .update(JSON.stringify([...parts, RENDERING_VERSION]))
    .digest('hex')
  const { dimension } = profile
  const space: EmbeddingSpace = { fingerprint, dimension, name: profile.id }
  const counts = { computed: 0, cached: 0, tokens: 0, computedTokens: 0 }
  const complete = options.store !== undefined && options.questionStore !== undefined
  const disk = options.cache === undefined || complete ? undefined : openDiskCache(options.cache, options)
  const stores: Record<Side, EmbeddingStore | undefined> = {
    node: options.store ?? disk,
    query: options.questionStore ?? disk,
  }

  let engine: Engine | undefined
  let loading: Promise<Engine> | undefined
  const load = (): Promise<Engine> => {
    loading ??= openEngine(profile, reader, options).then(
      (opened) => {
        engine = opened
        return opened
      },
      (error: unknown) => {
        loading = undefined
        throw error
      },
    )
    return loading
  }
  const release = async (): Promise<void> => {
    await loading?.catch(() => {})
    await disk?.close()
    await engine?.close()
    engine = undefined
    if (options.reader === undefined) await reader.close()
  }
  try {
    const used = new Set(Object.values(stores).filter((store) => store !== undefined))
    // a store of another encoder is refused before anything is computed
    for (const store of used) await store.getMany(space, [])
    if (used.size === 0) await load()
  } catch (error) {
    await release()
    throw error
  }

  const closing = new AbortController()
  const running = new Set<Promise<unknown>>()
  let closed: Promise<void> | undefined
  /** Runs what closing breaks off and waits for. */
  const whileOpen = async <T>(run: EmbedOptions, action: (run: EmbedOptions) => Promise<T>): Promise<T> => {
    closing.signal.throwIfAborted()
    const call = new AbortController()
    const ends = [run.signal, closing.signal].flatMap((signal) =>
      signal === undefined ? [] : [onAborted(signal, () => call.abort(signal.reason))],
    )
    const result = action({ ...run, signal: call.signal })
    running.add(result)
    return result.finally(() => {
      running.delete(result)
      for (const end of ends) end()
    })
  }

  /** Fills in what a store knows; returns what it lacks. */
  const lookUp = async (store: EmbeddingStore, keys: Uint8Array[], out: Float32Array): Promise<number[]> => {
    const missing: number[] = []
    for (let from = 0; from < keys.length; from += KEYS_AT_ONCE) {
      const asked = keys.slice(from, from + KEYS_AT_ONCE)
      const found = await store.getMany(space, asked)
      if (found?.length !== asked.length)
        throw new Error(`The embedding store's getMany gave ${found?.length} results for ${asked.length} keys.`)
      found.forEach((embedding, n) => {
        if (embedding === undefined || embedding === null) {
          missing.push(from + n)
          return
        }
        if (embedding.length !== dimension)
          throw new Error(
            `The embedding store gave an embedding of ${embedding.length} numbers; this encoder's have ${dimension}.`,
          )
        if (!embedding.every(Number.isFinite))
          throw new Error('The embedding store gave an embedding with a number that is not finite; remove it there.')
        out.set(embedding, (from + n) * dimension)
      })
    }
    return missing
  }

  /** @param groups sizes of consecutive groups of sequences, whose batches are their own */
  const compute = async (
    sequences: readonly TokenSequence[],
    side: Side,
    run: EmbedOptions,
    groups: readonly number[] = [sequences.length],
  ): Promise<Float32Array> => {
    const out = new Float32Array(sequences.length * dimension)
    const store = stores[side]
    const keys = store === undefined ? [] : sequences.map(sequenceKey)
    const missing = store === undefined ? [...sequences.keys()] : await lookUp(store, keys, out)
    counts.cached += sequences.length - missing.length
    let done = sequences.length - missing.length
    run.onProgress?.({ phase: 'embed', done, total: sequences.length })
    if (missing.length === 0) return out
    run.signal?.throwIfAborted()
    const { batches, computed, embed } = await load()
    const batched = inGroups(missing, groups).flatMap((group) =>
      batches(
        group.map((i) => sequences[i] as TokenSequence),
        tokenBudget,
        runTokens(device),
      ).map((batch) => batch.map((n) => group[n] as number)),
    )
    for (const members of batched) {
      run.signal?.throwIfAborted()
      const together = members.map((i) => sequences[i] as TokenSequence)
      const embeddings = await embed(together)
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
      counts.computed += members.length
      counts.computedTokens += computed(together)
      await store?.putMany(
        space,
        members.map((i) => keys[i] as Uint8Array),
        embeddings,
      )
      done += members.length
      run.onProgress?.({ phase: 'embed', done, total: sequences.length })
      // running a graph blocks the event loop: let signals and timers in between batches
      await setImmediate()
    }
    return out
  }

  const embedAll = async (inputs: readonly EncoderInput[], side: Side, run: EmbedOptions): Promise<Embedded> => {
    const encoded = await reader.encode(inputs, side, run)
    const sequences = encoded.map(({ sequence }) => sequence)
    const padded = profile.kind === 'onnx' && adapter === undefined
    const groups = run.groups === undefined || device !== 'cpu' || padded ? [inputs.length] : run.groups
    const same = new Int32Array(inputs.length)
    const first: number[] = []
    const firstOfGroups: number[] = []
    let from = 0
    for (const size of groups) {
      const found = firstOccurrences(sequences.slice(from, from + size))
      found.same.forEach((original, i) => {
        same[from + i] = from + original
      })
      for (const i of found.first) first.push(from + i)
      firstOfGroups.push(found.first.length)
      from += size
    }
    const unique = await compute(
      first.map((i) => sequences[i] as TokenSequence),
      side,
      run,
      firstOfGroups,
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
    get loaded() {
      return engine !== undefined
    },
    load: () =>
      whileOpen({}, async () => {
        await load()
      }),
    keys: (inputs, side, run = {}) =>
      whileOpen(run, async (open) => {
        const encoded = await reader.encode(inputs, side, open)
        return encoded.map(({ sequence }) => sequenceKey(sequence))
      }),
    embedSequences: (sequences, run = {}) => whileOpen(run, (open) => compute(sequences, 'node', open)),
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
        await release()
      })()
      return closed
    },
  }
}

/** Ascending numbers, each with those of its group: groups of these sizes follow each other. */
function inGroups(numbers: readonly number[], sizes: readonly number[]): number[][] {
  let at = 0
  let end = 0
  return sizes.map((size) => {
    end += size
    const group: number[] = []
    for (; at < numbers.length && (numbers[at] as number) < end; at++) group.push(numbers[at] as number)
    return group
  })
}

/** Keys that a store is asked for at once: what it answers is there twice. */
const KEYS_AT_ONCE = 4096

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

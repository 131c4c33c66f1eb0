import { setImmediate } from 'node:timers/promises'
import type { Device, SessionOptions } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import type { Progress } from '../../support/progress.ts'
import type { EncoderProfile, Side } from '../folder/profile.ts'
import { openQwen3VlReader } from '../qwen3-vl/reader.ts'
import { type EncodedInput, type EncoderInput, type FeatureStore, textSequence } from './sequence.ts'
import { loadTokenizer, TEXTS_AT_ONCE } from './tokenizer.ts'

/** Name of the folder of visual features inside a folder of caches. */
export const FEATURES_FOLDER = 'visual-features'

/** Turns what an encoder reads (text, pictures, frames of a video) into token sequences. It may hold native memory until it is closed. */
export interface InputReader {
  readonly padId: number
  /** Most tokens of a sequence, template and special tokens included. */
  readonly maxLength: number
  /** One more than the largest token id. */
  readonly vocabularySize: number
  /** Whether pictures and videos can be read, too. */
  readonly multimodal: boolean
  /** Where the features that sequences name are; undefined as long as no picture and no video was read. */
  readonly features: FeatureStore | undefined
  /**
   * The token sequences of inputs, in their order. What they show is looked at once: its features are in `features` afterwards.
   *
   * @throws UnreadableError naming the file: a picture or a video that cannot be read, or takes more tokens than `maxLength` leaves
   * @throws InputError for any picture or video by an encoder that reads text only, and as opening the vision tower and its cache does
   */
  encode(inputs: readonly EncoderInput[], side: Side, options?: ReadInputsOptions): Promise<EncodedInput[]>
  /** How many tokens a text alone has, uncut, special tokens of the tokenizer included. */
  count(text: string): number
  close(): Promise<void>
}

export interface ReadInputsOptions {
  signal?: AbortSignal
  onProgress?: Progress
}

export interface ReaderOptions {
  /** A lower limit on tokens than the encoder's own. */
  maxLength?: number
  /** Threads of the vision tower. */
  threads?: number
  /** Where the vision tower runs; the CPU by default. */
  device?: Device
  /** Graph optimisations of an exported vision encoder, see `EmbedderOptions`. */
  optimization?: SessionOptions['optimization']
  /** Folder that keeps visual features over runs. Without one they are kept in a temporary folder until the reader is closed. */
  cache?: string
}

/**
 * Opens the reader that fits an encoder.
 *
 * @throws InputError for files of the encoder that are missing or don't fit together
 */
export function openReader(profile: EncoderProfile, options: ReaderOptions = {}): Promise<InputReader> {
  return profile.architecture === 'qwen3_vl' ? openQwen3VlReader(profile, options) : openTextReader(profile, options)
}

/** An encoder of texts: the prompt of the side, the text, and the tokenizer's special tokens around them. */
async function openTextReader(profile: EncoderProfile, { maxLength }: ReaderOptions): Promise<InputReader> {
  const tokenizer = await loadTokenizer(profile, maxLength === undefined ? {} : { maxLength })
  return {
    padId: tokenizer.padId,
    maxLength: tokenizer.maxLength,
    vocabularySize: tokenizer.vocabularySize,
    multimodal: false,
    features: undefined,
    count: tokenizer.count,
    async encode(inputs, side, { signal } = {}) {
      const encoded: EncodedInput[] = []
      for (const [i, { text, images = [], video }] of inputs.entries()) {
        const file = video?.path ?? images[0]
        if (file !== undefined)
          throw new InputError(
            `The encoder ${profile.id} reads texts only. Use one that reads pictures and videos (architecture qwen3_vl), or leave such items out.`,
            { file },
          )
        const { ids, truncated } = tokenizer.encode(profile.prompts[side] + text)
        if (ids.length === 0)
          throw new InputError(
            `The text ${JSON.stringify(text)} has no tokens, and the encoder ${profile.id} puts none around a text. Leave it out.`,
          )
        encoded.push({ sequence: textSequence(ids), truncated })
        if (i % TEXTS_AT_ONCE !== 0) continue
        await setImmediate()
        signal?.throwIfAborted()
      }
      return encoded
    },
    async close() {},
  }
}

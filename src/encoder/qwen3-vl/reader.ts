import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { InputError } from '../../support/errors.ts'
import { type LengthLimit, readLengthLimit } from '../folder/length.ts'
import type { EncoderProfile, Side } from '../folder/profile.ts'
import type { InputReader, ReaderOptions } from '../input/reader.ts'
import type { EncodedInput } from '../input/sequence.ts'
import { loadTokenizer, TEXTS_AT_ONCE } from '../input/tokenizer.ts'
import { openChat, readChatTemplate } from './chat.ts'
import { qwen3VlConfig } from './config.ts'
import { IMAGE, layOut, named, type PromptSettings, VIDEO, visualTokens } from './prompt.ts'
import { openVisuals, type Visuals } from './visuals.ts'

/** The limit of a reader that was opened with a lower one than the encoder's. */
const ASKED_FOR: Omit<LengthLimit, 'tokens'> = { from: 'as it was asked for', raisable: true }

/**
 * The reader of a Qwen3-VL encoder: conversations as the released Qwen3-VL-Embedding code writes them (QwenLM/Qwen3-VL-Embedding,
 * qwen3_vl_embedding.py), the prompt of a side being its instruction. The vision tower is opened with the first picture or video.
 *
 * Named differences: frames are those that are asked for, at their own times, never chosen anew; an over-long input keeps the template's
 * suffix (see `layOut`); what cannot be decoded is an error, where the released code embeds "NULL"; a text may spell the placeholders of
 * pictures, where the processor fails; pictures are turned as their EXIF orientation asks, every kind of transparency shows white
 * (there, that of RGBA), CMYK is converted by a standard profile (there, by a formula), and grey of 16 bits is scaled to 8 (there, cut
 * off at 255).
 *
 * @throws InputError for files of the model that are missing or don't fit together
 */
export async function openQwen3VlReader(profile: EncoderProfile, options: ReaderOptions): Promise<InputReader> {
  const { maxLength: limit } = options
  const tokenizer = await loadTokenizer(profile, limit === undefined ? {} : { maxLength: limit })
  const configFile = join(profile.modelFolder, 'config.json')
  const config = qwen3VlConfig(profile.config, configFile)
  const { maxLength } = tokenizer
  const template = await readChatTemplate(profile)
  const chatOf = (side: Side): ReturnType<typeof openChat> =>
    openChat(tokenizer, template, profile.prompts[side], [IMAGE, VIDEO])
  const chats = { query: chatOf('query'), node: chatOf('node') }
  for (const { prefixLength, suffix } of Object.values(chats))
    if (prefixLength + suffix.length >= maxLength)
      throw new InputError(
        `A maximum length of ${maxLength} leaves no room for a text: instruction and template take ${prefixLength + suffix.length} tokens. Raise it, or shorten the instruction.`,
      )
  const settings: PromptSettings = {
    tokenizer,
    tokens: visualTokens(tokenizer, config, configFile),
    merge: config.vision_config.spatial_merge_size,
    patch: config.vision_config.patch_size,
    maxLength,
    limit: maxLength < profile.maxLength ? ASKED_FOR : await readLengthLimit(profile.modelFolder, profile.config),
  }
  let opening: Promise<Visuals> | undefined
  let visuals: Visuals | undefined
  let closed = false
  const opened = async (): Promise<Visuals> => {
    if (closed) throw new Error('The reader has been closed')
    opening ??= openVisuals(profile, options)
    visuals = await opening
    return visuals
  }

  return {
    padId: tokenizer.padId,
    maxLength,
    vocabularySize: tokenizer.vocabularySize,
    multimodal: true,
    get features() {
      return visuals?.features
    },
    count: tokenizer.count,
    async encode(inputs, side, { signal, onProgress } = {}) {
      const shows = inputs.map(({ images = [], video }) => images.length > 0 || video !== undefined)
      const total = shows.filter(Boolean).length
      const encoded: EncodedInput[] = []
      let done = 0
      // one by one: a picture and its numbers take hundreds of megabytes
      for (const [i, input] of inputs.entries()) {
        const seen = shows[i] ? await (await opened()).look(input, signal) : []
        const laid = layOut(settings, chats[side], input, seen)
        const keys: string[] = []
        for (const one of seen) keys.push(...(await one.keys(signal)))
        encoded.push(named(laid, keys))
        if (shows[i]) onProgress?.({ phase: 'pictures and videos', done: ++done, total })
        // let signals and timers in between
        if (!shows[i] && i % TEXTS_AT_ONCE !== 0) continue
        await setImmediate()
        signal?.throwIfAborted()
      }
      return encoded
    },
    async close() {
      if (closed) return
      closed = true
      // a failure to open was the error of the input that needed it
      const open = await opening?.catch(() => undefined)
      await open?.close()
    },
  }
}

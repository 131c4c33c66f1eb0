import { InputError } from '../../support/errors.ts'
import type { LengthLimit } from '../folder/length.ts'
import type { EncodedInput, EncoderInput } from '../input/sequence.ts'
import type { Tokenizer } from '../input/tokenizer.ts'
import type { Chat } from './chat.ts'
import type { Qwen3VlConfig } from './config.ts'
import { type Placed, ropePositions } from './positions.ts'
import { pairTimes } from './times.ts'
import { tooLong } from './too-long.ts'
import type { Grid } from './vision-positions.ts'

export const IMAGE = '<|image_pad|>'
export const VIDEO = '<|video_pad|>'
const START = '<|vision_start|>'
const END = '<|vision_end|>'

/** The special tokens that stand for pictures, as config.json and the tokenizer agree on them. */
export interface VisualTokens {
  image: number
  video: number
  end: number
}

/** @throws InputError where they don't agree */
export function visualTokens(tokenizer: Tokenizer, config: Qwen3VlConfig, file: string): VisualTokens {
  const agreed = (text: string, setting: keyof Qwen3VlConfig): number => {
    const [id, ...more] = tokenizer.pieces(text)
    if (id === undefined || more.length > 0 || id !== config[setting])
      throw new InputError(
        `The tokenizer does not fit the model: ${text} is ${[id, ...more].join(', ')}, but "${setting}" is ${config[setting]}. Use the tokenizer files of the same model.`,
        { file },
      )
    return id
  }
  agreed(START, 'vision_start_token_id')
  return {
    image: agreed(IMAGE, 'image_token_id'),
    video: agreed(VIDEO, 'video_token_id'),
    end: agreed(END, 'vision_end_token_id'),
  }
}

/** What is seen in an input: the grids of its frame pairs, then those of its pictures, each with the file it comes from. */
export interface SeenGrids {
  file: string
  grids: readonly Grid[]
}

/** What is the same for all inputs. */
export interface PromptSettings {
  tokenizer: Tokenizer
  tokens: VisualTokens
  /** Patches of a side that become one token, and pixels of a side that become one patch. */
  merge: number
  patch: number
  maxLength: number
  /** Where the maximum length stands, for messages. */
  limit: Omit<LengthLimit, 'tokens'>
}

/** An input without the names of its features. */
export interface Laid {
  ids: Int32Array
  /** Absent where nothing is seen. */
  positions?: Int32Array
  placed: (Placed & { length: number })[]
  truncated: boolean
}

/**
 * The tokens of an input as transformers' Qwen3VLProcessor writes them: in the place of a picture one placeholder for each of its merged
 * patches, in the place of a video, pair by pair, the time and the placeholders of the pair between a start and an end.
 *
 * The released code cuts an over-long input at its right end and with it the template's suffix, whose last token is the one that is pooled;
 * and it fails where that meets a placeholder. Here the suffix always stays, as sentence-transformers 6 has it, and only text is cut.
 *
 * @param seen in reading order: the video's first
 * @throws UnreadableError naming the first file, where what is seen takes more tokens than there are
 */
export function layOut(
  { tokenizer, tokens, merge, patch, maxLength, limit }: PromptSettings,
  chat: Chat,
  input: EncoderInput,
  seen: readonly SeenGrids[],
): Laid {
  const { text, images = [], video } = input
  const grids = seen.flatMap((one) => one.grids)
  const pairs = video === undefined ? [] : pairTimes(video.frames, video.start)
  const written = chat.write({ text, images: images.length, video: video !== undefined })
  const blocks = pairs.map((time) => `${time}${START}${VIDEO}${END}`).join('')
  // what an input shows comes first, so that its placeholders come before those that a text may spell
  const short = tokenizer.pieces(video === undefined ? written : written.replace(VIDEO, () => blocks))
  const expected = grids.map((_, i) => (i < pairs.length ? tokens.video : tokens.image))
  const { ids, placed } = expand(short, expected, grids, merge, chat)
  const truncated = ids.length > maxLength
  if (truncated) {
    const room = maxLength - chat.suffix.length
    const shown = endOfShown(ids, placed, tokens)
    if (shown > room) {
      const needed = shown + chat.suffix.length
      throw tooLong(input, seen, placed, needed, { factor: merge * patch, limit: { ...limit, tokens: maxLength } })
    }
    ids.splice(room, ids.length - room, ...chat.suffix)
  }
  return {
    ids: Int32Array.from(ids),
    ...(placed.length === 0 ? {} : { positions: ropePositions(ids.length, placed, merge) }),
    placed,
    truncated,
  }
}

/** How many tokens there are up to the end of the last picture or video; 0 where nothing is seen. */
function endOfShown(ids: readonly number[], placed: Laid['placed'], tokens: VisualTokens): number {
  const last = placed.at(-1)
  if (last === undefined) return 0
  let end = last.at + last.length
  while (ids[end] === tokens.end) end++
  return end
}

/** Repeats each of the first placeholders once for every merged patch of its grid. */
function expand(
  short: readonly number[],
  expected: readonly number[],
  grids: readonly Grid[],
  merge: number,
  chat: Chat,
): { ids: number[]; placed: Laid['placed'] } {
  const ids: number[] = []
  const placed: Laid['placed'] = []
  for (const id of short) {
    const grid = grids[placed.length]
    if (grid === undefined || id !== expected[placed.length]) {
      ids.push(id)
      continue
    }
    const length = (grid[0] * grid[1]) / merge ** 2
    placed.push({ at: ids.length, grid, length })
    for (let i = 0; i < length; i++) ids.push(id)
  }
  if (placed.length < grids.length)
    throw new InputError('The chat template does not write a placeholder for every picture and video.', {
      file: chat.file,
    })
  return { ids, placed }
}

/** Names the features of what is seen. */
export function named({ ids, positions, placed, truncated }: Laid, keys: readonly string[]): EncodedInput {
  if (positions === undefined) return { sequence: { ids }, truncated }
  const visuals = placed.map(({ at, length }, i) => ({ at, length, key: keys[i]! }))
  return { sequence: { ids, positions, visuals }, truncated }
}

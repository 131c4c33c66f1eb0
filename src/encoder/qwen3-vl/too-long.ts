import type { LengthLimit } from '../folder/length.ts'
import type { EncoderInput } from '../input/sequence.ts'
import { UnreadableError } from '../input/unreadable.ts'
import type { Placed } from './positions.ts'
import { FRAME_TOKENS } from './processor.ts'
import type { SeenGrids } from './prompt.ts'
import type { Grid } from './vision-positions.ts'

/** What decides how many tokens a picture takes, and how many there are. */
export interface Room {
  /** Pixels of a side that become one token. */
  factor: number
  limit: LengthLimit
}

/**
 * The error of an input whose pictures alone take more tokens than there are: which part of which file, how many, what the limit is and
 * where it stands, and what helps.
 *
 * @param needed tokens up to the end of what is shown, and the template's suffix
 */
export function tooLong(
  { video }: EncoderInput,
  seen: readonly SeenGrids[],
  placed: readonly (Placed & { length: number })[],
  needed: number,
  { factor, limit }: Room,
): UnreadableError {
  const shown = placed.reduce((sum, { length }) => sum + length, 0)
  const room = limit.tokens - (needed - shown)
  const size = seen.length === 1 ? fittingSize(placed[0]!.grid, room / placed.length, factor) : undefined
  const least = video === undefined ? 1 : FRAME_TOKENS.min
  const helps = size !== undefined && size.tokens >= least
  const remedies = [
    ...(helps ? [`scale it down to ${size.width} × ${size.height} pixels or less`] : []),
    ...(!helps && seen.length > 1 ? ['show fewer pictures'] : []),
    ...(!helps && video !== undefined ? ['make it several shorter items'] : []),
    ...(limit.raisable ? ['raise that number, as far as the model was trained for'] : []),
    'leave the item out',
  ]
  return new UnreadableError(
    `${named(video, seen.length)} takes ${needed} tokens with the template around it, but an input has at most ${limit.tokens} (${limit.from}); ${listed(remedies)}`,
    { file: seen[0]!.file },
  )
}

function named(video: EncoderInput['video'], files: number): string {
  const others = files === 1 ? '' : ` and ${files - 1} more that ${files === 2 ? 'is' : 'are'} shown with it`
  if (video === undefined) return `the picture${others}`
  const { start, frames, end = frames.at(-1)! } = video
  return `the part of the video from ${start / 1000} s to ${end / 1000} s (${frames.length} frames)${others}`
}

/** The largest picture of the same shape, sides in whole steps of the scaling, that takes no more than so many tokens. */
function fittingSize(
  [rows, columns]: Grid,
  tokens: number,
  factor: number,
): { height: number; width: number; tokens: number } | undefined {
  // frames are first scaled to multiples of twice the factor, see `firstFrameScaling`
  const step = 2 * factor
  const side = (long: number, short: number): number =>
    step * Math.floor(Math.sqrt((tokens * factor ** 2 * long) / short) / step)
  const [height, width] = [side(rows, columns), side(columns, rows)]
  return height === 0 || width === 0 ? undefined : { height, width, tokens: (height * width) / factor ** 2 }
}

/** `a, b, or c`. */
function listed(remedies: readonly string[]): string {
  return remedies.length === 1 ? remedies[0]! : `${remedies.slice(0, -1).join(', ')}, or ${remedies.at(-1)}`
}

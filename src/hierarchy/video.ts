import { InputError } from '../support/errors.ts'
import type { VideoItem } from './types.ts'

/** Length of a leaf, and the shortest tail that is a leaf of its own, in milliseconds. */
const SEGMENT = 30_000
const SHORTEST_TAIL = 15_000
/** Distance of a node's frames in milliseconds, and the most frames of a node. */
const FRAME_STEP = 10_000
const MOST_FRAMES = 32

/** Seconds as whole milliseconds. */
export const milliseconds = (seconds: number): number => Math.round(seconds * 1000)

/**
 * The leaves of a video, in whole milliseconds on the source video's clock: 30-second segments from the item's start; a tail
 * under 15 seconds belongs to the segment before it. 190 s give six leaves, the last of 40 s; the shortest video gives one.
 *
 * @throws InputError when the item is shorter than a millisecond, or its times are no finite numbers
 */
export function segmentExtents(item: VideoItem): [number, number][] {
  const start = milliseconds(item.start)
  const end = milliseconds(item.end)
  if (!Number.isSafeInteger(start) || !Number.isSafeInteger(end) || end <= start) {
    throw new InputError(
      `The video item "${item.id}" goes from ${item.start} s to ${item.end} s; it must last at least a millisecond.`,
    )
  }
  const whole = Math.floor((end - start) / SEGMENT)
  const tail = end - start - whole * SEGMENT
  const count = Math.max(1, tail >= SHORTEST_TAIL ? whole + 1 : whole)
  if (count > MOST_SEGMENTS) {
    throw new InputError(`The video item "${item.id}" lasts ${item.end - item.start} s; cut it into shorter items.`)
  }
  return Array.from({ length: count }, (_, i) => [
    start + i * SEGMENT,
    i === count - 1 ? end : start + (i + 1) * SEGMENT,
  ])
}

/** A year of video: more is a wrong number, which would cost memory. */
const MOST_SEGMENTS = (365 * 24 * 3600 * 1000) / SEGMENT

/**
 * When the frames of a video node `[from, to)` are taken, in whole milliseconds as the node's own extent: at its start and every
 * 10 seconds; were those more than 32, at the middles of 32 equal parts. 190 s give 19 frames, 60 s give 6.
 */
export function frameTimes(from: number, to: number): number[] {
  const count = Math.ceil((to - from) / FRAME_STEP)
  if (count <= MOST_FRAMES) return Array.from({ length: count }, (_, i) => from + i * FRAME_STEP)
  return Array.from({ length: MOST_FRAMES }, (_, i) => Math.round(from + ((i + 0.5) * (to - from)) / MOST_FRAMES))
}

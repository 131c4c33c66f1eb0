import { InputError } from '../../support/errors.ts'
import type { Place } from '../schema.ts'

/**
 * A time reference in seconds: `[start, end]` as numbers, or as text the way people write it: `mm:ss-mm:ss`, `h:mm:ss-h:mm:ss`,
 * `ss`, with fractions of a second or without; a single time is a point. Minutes may go beyond 59 where no hours stand before
 * them.
 *
 * @param what what the times belong to, for the message
 * @throws InputError for what is no time, is negative, or ends before it starts
 */
export function parseTimes(written: string | readonly number[], what: string, place: Place): [number, number] {
  const given = JSON.stringify(written)
  const numbers = typeof written === 'string' ? written.split(/[-–—~]/).map(toSeconds) : [...written]
  const [start, end = start] = numbers
  if (numbers.length > 2 || (typeof written !== 'string' && numbers.length !== 2) || !isTime(start) || !isTime(end)) {
    throw new InputError(
      `${what} is ${given}; [start, end] in seconds from 0, "mm:ss-mm:ss" or "h:mm:ss-h:mm:ss" was expected`,
      place,
    )
  }
  if (end < start) throw new InputError(`${what} is ${given}, which ends before it starts`, place)
  return [start, end]
}

const isTime = (time: number | undefined): time is number => time !== undefined && Number.isFinite(time) && time >= 0

function toSeconds(written: string): number {
  const parts = /^(?:(?:(\d{1,4}):)?(\d{1,5}):)?(\d{1,8}(?:\.\d+)?)$/.exec(written.trim())
  if (parts === null) return Number.NaN
  const [hours, minutes, seconds] = parts.slice(1).map((part) => (part === undefined ? undefined : Number(part)))
  if (minutes !== undefined && seconds! >= 60) return Number.NaN
  if (hours !== undefined && minutes! >= 60) return Number.NaN
  return (hours ?? 0) * 3600 + (minutes ?? 0) * 60 + seconds!
}

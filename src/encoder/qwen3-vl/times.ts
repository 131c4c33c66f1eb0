/**
 * What is written in front of each pair of frames: the mean of their times on the node's clock, in seconds (`_calculate_timestamps` of
 * transformers' Qwen3VLProcessor). The last of an odd number of frames is its own partner.
 *
 * @param frames milliseconds on the file's clock
 * @param start milliseconds at which the node begins there
 * @returns one for each pair
 */
export function pairTimes(frames: readonly number[], start: number): string[] {
  const seconds = frames.map((time) => (time - start) / 1000)
  return seconds.flatMap((first, i) =>
    i % 2 === 0 ? [`<${oneDecimal((first + (seconds[i + 1] ?? first)) / 2)} seconds>`] : [],
  )
}

/**
 * Python's `f"{value:.1f}"`. JavaScript's `toFixed` rounds as exactly, but a number in the middle of two goes up, and in Python to the
 * even digit. Only quarters lie there: a multiple of 1/20 that has no shorter form is a binary fraction only with the denominator 4.
 */
export function oneDecimal(value: number): string {
  const quarters = Math.abs(value) * 4
  // x.25 goes down to x.2; x.75 up to x.8, as it does anyway
  return quarters % 4 === 1 ? (Math.sign(value) * (Math.abs(value) - 0.05)).toFixed(1) : value.toFixed(1)
}

import type { Grid } from './vision-positions.ts'

/** A run of tokens that stands for a picture or a pair of frames. */
export interface Placed {
  /** First of the tokens. */
  at: number
  /** Patches, before they are merged. */
  grid: Grid
}

/**
 * Positions of the tokens of an input for M-RoPE: `get_rope_index` of transformers' Qwen3VLModel, where each pair of frames is a
 * grid of its own, as a picture is.
 *
 *     text:                    all three count on by 1
 *     a grid from position p:  time p; height p + row; width p + column; what follows counts on from p + max(rows, columns)
 *
 * @param visuals in reading order
 * @param merge patches of a side that become one token
 * @returns int32 [3, length]: time, height, width
 */
export function ropePositions(length: number, visuals: readonly Placed[], merge: number): Int32Array {
  const positions = new Int32Array(3 * length)
  const set = (token: number, time: number, height: number, width: number): void => {
    positions[token] = time
    positions[length + token] = height
    positions[2 * length + token] = width
  }
  let token = 0
  let next = 0
  const text = (end: number): void => {
    for (; token < end; token++, next++) set(token, next, next, next)
  }
  for (const { at, grid } of visuals) {
    text(at)
    const [rows, columns] = [grid[0] / merge, grid[1] / merge]
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++, token++) set(token, next, next + row, next + column)
    next += Math.max(rows, columns)
  }
  text(length)
  return positions
}

import { rowLengthFor } from '../rows/pack.ts'
import { type PrefixOrder, tokensAt, trieTokens } from './order.ts'

/** Rows of so many tokens are not too long, however short the sequences. */
const LONGEST_ROW = 1024

/**
 * Most tokens of a row, whatever a longer one would save: a token's attention takes memory for its whole row, of which a budget of
 * tokens knows nothing.
 *
 * @param longest tokens of the longest sequence
 */
export function longestRow(longest: number): number {
  return Math.max(2 * rowLengthFor(longest), LONGEST_ROW)
}

/** What deciding on row lengths needs to know of an encoder. */
export interface RowWork {
  /** Row length at which a token's attention takes as long as all else that is computed for it. */
  evenLength: number
}

/** Leaves in rows, by their places in a {@link PrefixOrder}; the places of a row rise. */
export interface PlacedRows {
  rows: number[][]
  /** Tokens of every row, padding included. */
  length: number
}

/**
 * The rows that cost least. Long rows share more prefixes and waste attention, which looks at whole rows: a row of L tokens
 * costs L (1 + L / evenLength); short ones repeat prefixes and waste padding. Lengths that are no multiple of 8 cost 8 % more.
 *
 * @param length of the rows; the one that costs least where absent
 * @throws RangeError for a sequence longer than a row
 */
export function placeRows(order: PrefixOrder, work: RowWork, length?: number): PlacedRows {
  const place = rowPlacer(order)
  if (length !== undefined) {
    const over = order.lengths.findIndex((tokens) => tokens > length)
    if (over >= 0)
      throw new RangeError(
        `Sequence ${order.sequences[over]!.at(-1)} has ${order.lengths[over]} tokens, a row only ${length}`,
      )
    return { rows: place(length), length }
  }

  const longest = order.lengths.reduce((a, b) => Math.max(a, b), 1)
  const total = trieTokens(order, 0, order.lengths.length)
  const shortest = rowLengthFor(longest)
  const most = longestRow(longest)
  const costOf = (rows: number, tokens: number): number =>
    rows * tokens * (1 + tokens / work.evenLength) * (tokens % 8 === 0 ? 1 : 1.08)
  let best: PlacedRows = { rows: place(longest), length: longest }
  let lowest = costOf(best.rows.length, longest)
  for (let limit = shortest; limit <= most; limit += rowLengthFor(limit / 64)) {
    // the trie fits into no fewer rows than this
    if (costOf(Math.ceil(total / limit), limit) >= lowest) continue
    const rows = place(limit)
    // parts of a trie that meet again in a row take less than was reckoned with
    const tokens = rowLengthFor(rows.reduce((sofar, places) => Math.max(sofar, tokensAt(order, places)), 1))
    const cost = costOf(rows.length, tokens)
    if (cost < lowest) {
      best = { rows, length: tokens }
      lowest = cost
    }
  }
  return best
}

/** A range of places that stay together. */
interface Part {
  from: number
  to: number
  tokens: number
}

/**
 * Puts a trie into few rows of a given length, in the best of several ways. Either rows are filled with leaves in their order.
 * Or ranges of leaves that have most in common are joined first, as long as what they make fits a row, half of one or a
 * quarter, and rows are then filled with these parts, first-fit decreasing. What is cut apart repeats what it begins with, unless
 * it meets again in a row.
 */
function rowPlacer(order: PrefixOrder): (limit: number) => number[][] {
  const { shared } = order
  // what all have in common is shared by whatever is in a row together
  const common = shared.length < 2 ? 0 : shared.subarray(1).reduce((a, b) => Math.min(a, b))
  const joints = Array.from(shared.keys())
    .filter((p) => p > 0 && shared[p]! > common)
    .sort((a, b) => shared[b]! - shared[a]! || a - b)
  return (limit) => {
    const ways = [1, 2, 4].map((share) => fillRows(joinedParts(order, joints, limit / share), limit, common))
    return [inOrder(order, limit), ...ways].reduce((best, rows) => (rows.length < best.length ? rows : best))
  }
}

/** Rows that are each a range of places, as long as they can be. */
function inOrder(order: PrefixOrder, limit: number): number[][] {
  const rows: number[][] = []
  for (let from = 0, to = 0; from < order.lengths.length; from = to) {
    const row: number[] = []
    for (; to === from || (to < order.lengths.length && trieTokens(order, from, to + 1) <= limit); to++) row.push(to)
    rows.push(row)
  }
  return rows
}

/** Ranges of at most `limit` tokens each, unless a leaf has more, joined at `joints` in turn. */
function joinedParts(order: PrefixOrder, joints: readonly number[], limit: number): Part[] {
  const { lengths, shared, sums } = order
  const endOf = Int32Array.from(lengths, (_, p) => p + 1)
  const startOf = Int32Array.from(lengths, (_, p) => p)
  for (const joint of joints) {
    const from = startOf[joint - 1]!
    const to = endOf[joint]!
    // trieTokens, of which there are millions
    if (sums[to]! - sums[from]! + shared[from]! > limit) continue
    endOf[from] = to
    startOf[to - 1] = from
  }
  const parts: Part[] = []
  for (let from = 0, to = 0; from < order.lengths.length; from = to) {
    to = endOf[from]!
    parts.push({ from, to, tokens: trieTokens(order, from, to) })
  }
  return parts
}

/**
 * First-fit decreasing.
 *
 * @param common tokens that all parts begin with
 */
function fillRows(parts: Part[], limit: number, common: number): number[][] {
  parts.sort((a, b) => b.tokens - a.tokens || a.from - b.from)
  const rows: number[][] = []
  const used: number[] = []
  // no row before firstOpen has room for the shortest part that is left
  let firstOpen = 0
  const least = (parts.at(-1)?.tokens ?? 0) - common
  for (const { from, to, tokens } of parts) {
    let row = firstOpen
    while (row < used.length && used[row]! + tokens - common > limit) row++
    if (row === used.length) {
      rows.push([])
      used.push(common)
    }
    used[row]! += tokens - common
    for (let p = from; p < to; p++) rows[row]!.push(p)
    while (firstOpen < used.length && used[firstOpen]! + least > limit) firstOpen++
  }
  for (const row of rows) row.sort((a, b) => a - b)
  return rows
}

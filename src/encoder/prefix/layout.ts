import type { TokenSequence } from '../input/sequence.ts'
import { numberVisuals, positionAt, type TokenColumns, type VisualBlock } from './columns.ts'
import { type PrefixOrder, prefixOrder, subOrder, tokensAt } from './order.ts'
import { type PlacedRows, placeRows, type RowWork } from './rows.ts'

export interface CausalRowsOptions {
  /** The token that fills rows up. */
  padId: number
  /** Whether tokens that sequences have in common from the first on are there once; true where absent. */
  share?: boolean
  /** Tokens of a row; the length that costs least where absent. */
  rowLength?: number
  work: RowWork
}

/**
 * Sequences laid out in rows for a causal encoder; every array is [rows, length], row by row, unless it says otherwise.
 * Token i of a row sees token j of it if and only if j <= i < ends[j].
 */
export interface CausalRows {
  rows: number
  length: number
  /** Tokens without padding: those of the tries. */
  computed: number
  /** Token ids; the padding id where a row is not full. */
  inputIds: Int32Array
  /** [3, rows, length]: a token's positions in its own sequence, on the axes of time, height and width. */
  positionIds: Int32Array
  /** The column after the last token that goes on from this one; after the token itself for padding. */
  ends: Int32Array
  /** A token's row among the features of `visuals`, 0 for text. */
  visualRows: Int32Array
  /** [sequences]: each one's last token, as an index into rows · length. */
  last: Int32Array
  /** The distinct features, in the order of their rows, from row 1 on. */
  visuals: VisualBlock[]
}

/** Sequences with the rows that they will be in. */
interface PlannedRows extends PlacedRows {
  columns: TokenColumns[]
  visuals: VisualBlock[]
  order: PrefixOrder
}

function planRows(sequences: readonly TokenSequence[], options: Omit<CausalRowsOptions, 'padId'>): PlannedRows {
  const { columns, blocks: visuals } = numberVisuals(sequences)
  const order = prefixOrder(columns, options.share ?? true)
  return { columns, visuals, order, ...placeRows(order, options.work, options.rowLength) }
}

/** What `causalRows` would compute: tokens with padding, and without. */
export function causalCost(
  sequences: readonly TokenSequence[],
  options: Omit<CausalRowsOptions, 'padId'>,
): { tokens: number; computed: number } {
  const { order, rows, length } = planRows(sequences, options)
  return {
    tokens: Math.max(1, rows.length) * length,
    computed: rows.reduce((sum, places) => sum + tokensAt(order, places), 0),
  }
}

/**
 * Lays sequences out in rows with their shared prefixes computed once. In every row the sequences form a trie over tokens with
 * their positions and features, in pre-order, so that the tokens after one that go on from it are a range of columns; the states of
 * a token's ancestors are all that its own depends on. A trie that is too long for a row is cut into parts, each of which repeats
 * what it begins with. The same sequences give the same rows whatever order they come in.
 *
 * @throws RangeError for an empty sequence, one longer than `rowLength`, or spans of features that contradict each other
 */
export function causalRows(sequences: readonly TokenSequence[], options: CausalRowsOptions): CausalRows {
  return layRows(planRows(sequences, options), options.padId)
}

function layRows({ columns, visuals, order, ...placed }: PlannedRows, padId: number): CausalRows {
  const { length } = placed
  const rows = Math.max(1, placed.rows.length)
  const size = rows * length
  const inputIds = new Int32Array(size).fill(padId)
  const positionIds = new Int32Array(3 * size)
  const ends = Int32Array.from(inputIds, (_, i) => (i % length) + 1)
  const visualRows = new Int32Array(size)
  const last = new Int32Array(columns.length)
  let computed = 0
  // columns of the tokens from the root to the token that was written last
  const path: number[] = []
  placed.rows.forEach((places, row) => {
    const start = row * length
    const trie = subOrder(order, places)
    let column = 0
    const leave = (depth: number): void => {
      while (path.length > depth) ends[start + path.pop()!] = column
    }
    trie.sequences.forEach((sequences, p) => {
      const own = columns[sequences.at(-1)!]!
      leave(trie.shared[p]!)
      for (let i = trie.shared[p]!; i < own.ids.length; i++, column++) {
        const at = start + column
        inputIds[at] = own.ids[i]!
        for (let axis = 0; axis < 3; axis++) positionIds[axis * size + at] = positionAt(own, axis, i)
        if (own.visual !== undefined) visualRows[at] = own.visual[i]!
        path.push(column)
      }
      for (const sequence of sequences) last[sequence] = start + path[columns[sequence]!.ids.length - 1]!
    })
    leave(0)
    computed += column
  })
  return { rows, length, computed, inputIds, positionIds, ends, visualRows, last, visuals }
}

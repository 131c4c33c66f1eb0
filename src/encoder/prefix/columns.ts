import type { TokenSequence } from '../input/sequence.ts'

/**
 * What decides a token's state in a causal encoder, beside the tokens before it. Positions and features are part of it: the
 * placeholders of all pictures have one id.
 */
export interface TokenColumns {
  /** int32 [tokens] */
  ids: Int32Array
  /** int32 [3, tokens], see {@link TokenSequence}; absent where all three count the tokens from 0. */
  positions: Int32Array | undefined
  /** int32 [tokens], each token's row among the features of {@link numberVisuals}, 0 for text; absent for text alone. */
  visual: Int32Array | undefined
}

/** Features that several tokens stand for: rows `first` and up of those that a run is given. */
export interface VisualBlock {
  key: string
  first: number
  rows: number
}

/**
 * Numbers the visual features that sequences name, each once, in the order of their keys. Row 0 is nobody's, so that 0 can
 * stand for text.
 *
 * @throws RangeError for a span that leaves its sequence, or one key with two numbers of rows
 */
export function numberVisuals(sequences: readonly TokenSequence[]): { columns: TokenColumns[]; blocks: VisualBlock[] } {
  const rowsOf = new Map<string, number>()
  for (const [i, { ids, visuals = [] }] of sequences.entries())
    for (const { at, length, key } of visuals) {
      if (at < 0 || length < 1 || at + length > ids.length)
        throw new RangeError(
          `Sequence ${i} of ${ids.length} tokens has visual features at ${at}, for ${length} tokens of it`,
        )
      const known = rowsOf.get(key) ?? length
      if (known !== length)
        throw new RangeError(`The visual features "${key}" have ${known} rows in one sequence, ${length} in another`)
      rowsOf.set(key, length)
    }
  const firstOf = new Map<string, number>()
  const blocks: VisualBlock[] = []
  let next = 1
  for (const key of [...rowsOf.keys()].sort()) {
    const rows = rowsOf.get(key)!
    blocks.push({ key, first: next, rows })
    firstOf.set(key, next)
    next += rows
  }
  const columns = sequences.map(({ ids, positions, visuals }): TokenColumns => {
    if (visuals === undefined || visuals.length === 0) return { ids, positions, visual: undefined }
    const visual = new Int32Array(ids.length)
    for (const { at, length, key } of visuals)
      for (let i = 0, first = firstOf.get(key)!; i < length; i++) visual[at + i] = first + i
    return { ids, positions, visual }
  })
  return { columns, blocks }
}

/** How many tokens two sequences have in common from the first on. */
export function commonPrefix(a: TokenColumns, b: TokenColumns): number {
  let same = 0
  for (let end = Math.min(a.ids.length, b.ids.length); same < end && a.ids[same] === b.ids[same]; ) same++
  if (a.visual !== undefined || b.visual !== undefined)
    for (let i = 0; i < same; i++) if (visualAt(a, i) !== visualAt(b, i)) same = i
  if (a.positions !== undefined || b.positions !== undefined)
    for (let axis = 0; axis < 3; axis++)
      for (let i = 0; i < same; i++) if (positionAt(a, axis, i) !== positionAt(b, axis, i)) same = i
  return same
}

/**
 * Orders sequences token by token, so that those that begin alike come together, a sequence before those that go on from it.
 * Negative where `a` comes first; 0 for equal ones.
 */
export function compareColumns(a: TokenColumns, b: TokenColumns): number {
  const at = commonPrefix(a, b)
  if (at === a.ids.length || at === b.ids.length) return a.ids.length - b.ids.length
  const difference = a.ids[at]! - b.ids[at]! || visualAt(a, at) - visualAt(b, at)
  if (difference !== 0) return difference
  return [0, 1, 2].reduce((sum, axis) => sum || positionAt(a, axis, at) - positionAt(b, axis, at), 0)
}

/** A token's position on one axis: 0 time, 1 height, 2 width. */
export function positionAt({ ids, positions }: Pick<TokenColumns, 'ids' | 'positions'>, axis: number, i: number) {
  return positions === undefined ? i : positions[axis * ids.length + i]!
}

function visualAt({ visual }: TokenColumns, i: number): number {
  return visual === undefined ? 0 : visual[i]!
}

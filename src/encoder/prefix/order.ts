import { commonPrefix, compareColumns, type TokenColumns } from './columns.ts'

/**
 * A trie over token sequences, flat. Each of its leaves is a sequence that no other goes on from, and has a place. In the order of
 * {@link compareColumns} every subtree is a range of places, and the tokens that each adds to those before it, one after the other,
 * are the trie in pre-order.
 */
export interface PrefixOrder {
  /** At each place sequences by their indices: those that are the leaf's beginnings, or equal to it, shorter ones first. */
  sequences: number[][]
  /** Tokens of the leaf at each place. */
  lengths: Int32Array
  /** Tokens that the leaf at each place has in common with the one before; 0 at the first place. */
  shared: Int32Array
  /** Tokens that the leaves before each place add, each to those before it. */
  sums: Float64Array
}

/**
 * The trie of these sequences. It is the same whatever order they come in.
 *
 * @param share whether prefixes are shared; otherwise longer sequences come first, each is a leaf, and none has anything in common
 *   with another
 * @throws RangeError for an empty sequence
 */
export function prefixOrder(columns: readonly TokenColumns[], share: boolean): PrefixOrder {
  const length = (i: number): number => columns[i]!.ids.length
  for (const i of columns.keys()) if (length(i) < 1) throw new RangeError(`Sequence ${i} is empty`)
  const indices = [...columns.keys()].sort(
    (a, b) => (share ? compareColumns(columns[a]!, columns[b]!) : length(b) - length(a)) || a - b,
  )
  const sequences: number[][] = []
  const shared: number[] = []
  indices.forEach((index, n) => {
    const before = indices[n - 1]
    const common = share && before !== undefined ? commonPrefix(columns[before]!, columns[index]!) : 0
    if (before !== undefined && common === length(before)) sequences.at(-1)!.push(index)
    else {
      sequences.push([index])
      shared.push(common)
    }
  })
  const lengths = Int32Array.from(sequences, (place) => length(place.at(-1)!))
  return withSums(sequences, lengths, Int32Array.from(shared))
}

/** The trie of the leaves at some places, which rise. */
export function subOrder(order: PrefixOrder, places: ArrayLike<number>): PrefixOrder {
  const shared = new Int32Array(places.length)
  // what two leaves have in common is the least that neighbours between them have
  for (let i = 1; i < places.length; i++) {
    let least = Number.POSITIVE_INFINITY
    for (let p = places[i - 1]! + 1; p <= places[i]!; p++) least = Math.min(least, order.shared[p]!)
    shared[i] = least
  }
  const all = Array.from(places)
  return withSums(
    all.map((p) => order.sequences[p]!),
    Int32Array.from(all, (p) => order.lengths[p]!),
    shared,
  )
}

function withSums(sequences: number[][], lengths: Int32Array, shared: Int32Array): PrefixOrder {
  const sums = new Float64Array(lengths.length + 1)
  for (let p = 0; p < lengths.length; p++) sums[p + 1] = sums[p]! + lengths[p]! - shared[p]!
  return { sequences, lengths, shared, sums }
}

/** Tokens of the trie of the leaves at places [from, to). */
export function trieTokens({ sums, shared }: PrefixOrder, from: number, to: number): number {
  return from >= to ? 0 : sums[to]! - sums[from]! + shared[from]!
}

/** Tokens of the trie of the leaves at some places, which rise. */
export function tokensAt(order: PrefixOrder, places: ArrayLike<number>): number {
  return trieTokens(subOrder(order, places), 0, places.length)
}

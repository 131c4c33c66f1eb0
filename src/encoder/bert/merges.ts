/** Pairs of pieces are found by `left · PAIR_BASE + right`: below 2^52, so that it is exact. */
const PAIR_BASE = 2 ** 26

export interface CountedPieces {
  pieces: string[]
  /** How often the word occurs, 1 or more. */
  count: number
}

/** Two pieces that stand side by side in some words. */
interface Pair {
  left: number
  right: number
  /** How often: over all words, each as often as it occurs. */
  count: number
  /** The words that hold the pair, by index. Some no longer do, some are named more than once. */
  holders: number[]
}

/**
 * Byte-pair merges over counted words: joins the most frequent pair of neighbours in every word, again and again, and gives the
 * joined piece each time, until no pair is left. Pairs of equal frequency go in code-unit order, left piece first. Pieces are the
 * same where their strings are, so that a joined piece may have been there before.
 *
 * The counts of pairs are kept up to date: a merge touches the words that hold the pair and no others, and what is left to join
 * bounds the work of all merges.
 *
 * @param joined the string of two pieces joined, longer than either
 */
export function* mergePieces(
  words: Iterable<CountedPieces>,
  joined: (left: string, right: string) => string,
): Generator<string, void, undefined> {
  const names: string[] = []
  const ids = new Map<string, number>()
  const idOf = (name: string): number => {
    let id = ids.get(name)
    if (id === undefined) {
      id = names.push(name) - 1
      ids.set(name, id)
    }
    return id
  }
  /** The pieces of each word at present. */
  const sequences: number[][] = []
  const counts: number[] = []
  const pairs = new Map<number, Pair>()
  /** Pairs that became more frequent in this merge. */
  const risen = new Set<Pair>()

  const add = (left: number, right: number, word: number): void => {
    const key = left * PAIR_BASE + right
    let pair = pairs.get(key)
    if (pair === undefined) {
      // Begun with its word, as most pairs stay in one: an empty array would make room for many.
      pair = { left, right, count: 0, holders: [word] }
      pairs.set(key, pair)
    }
    pair.count += counts[word]!
    if (pair.holders.at(-1) !== word) pair.holders.push(word)
    risen.add(pair)
  }
  const remove = (left: number, right: number, word: number): void => {
    const key = left * PAIR_BASE + right
    const pair = pairs.get(key)!
    pair.count -= counts[word]!
    if (pair.count === 0) pairs.delete(key)
  }

  const queue = createQueue((a, b) =>
    a.left === b.left ? names[a.right]! < names[b.right]! : names[a.left]! < names[b.left]!,
  )
  const queueRisen = (): void => {
    for (const pair of risen) if (pair.count > 0) queue.push(pair)
    risen.clear()
  }

  for (const { pieces, count } of words) {
    if (pieces.length < 2) continue
    const sequence = pieces.map(idOf)
    const word = sequences.push(sequence) - 1
    counts.push(count)
    for (let i = 1; i < sequence.length; i++) add(sequence[i - 1]!, sequence[i]!, word)
  }
  queueRisen()

  for (let pair = queue.pop(); pair !== undefined; pair = queue.pop()) {
    const { left, right } = pair
    const name = joined(names[left]!, names[right]!)
    const id = idOf(name)
    for (const word of pair.holders) {
      const old = sequences[word]!
      const at = occurrences(old, left, right)
      if (at.length === 0) continue
      const pieces = old.slice(0, at[0])
      for (const [k, place] of at.entries()) {
        pieces.push(id)
        for (let i = place + 2; i < (at[k + 1] ?? old.length); i++) pieces.push(old[i]!)
      }
      sequences[word] = pieces
      for (const [k, place] of at.entries()) {
        const now = place - k
        // Of two joined pieces side by side, the first has seen to the pair of both.
        if (place > 0 && !(k > 0 && at[k - 1] === place - 2)) {
          remove(old[place - 1]!, left, word)
          add(pieces[now - 1]!, id, word)
        }
        remove(left, right, word)
        if (place + 2 < old.length) {
          remove(right, old[place + 2]!, word)
          add(id, pieces[now + 1]!, word)
        }
      }
    }
    queueRisen()
    yield name
  }
}

/** Where `left` and `right` stand side by side, from the left, no piece in two pairs. */
function occurrences(pieces: readonly number[], left: number, right: number): number[] {
  const found: number[] = []
  for (let i = 1; i < pieces.length; i++) if (pieces[i - 1] === left && pieces[i] === right) found.push(i++ - 1)
  return found
}

interface PairQueue {
  /** Puts a pair in, anew whenever it became more frequent. */
  push(pair: Pair): void
  /** The most frequent pair. */
  pop(): Pair | undefined
}

/**
 * A binary heap of pairs, the most frequent first, then the one that is `before` the others. Each lies at the count it had when it
 * was pushed: never below its present one, and if above, which shows when it comes first, it sinks to its place.
 */
function createQueue(before: (a: Pair, b: Pair) => boolean): PairQueue {
  const heap: { pair: Pair; count: number }[] = []
  type Entry = (typeof heap)[number]
  const above = (a: Entry, b: Entry): boolean =>
    a.count === b.count ? a.pair !== b.pair && before(a.pair, b.pair) : a.count > b.count

  const rise = (entry: Entry): void => {
    let at = heap.length
    heap.push(entry)
    for (let parent = (at - 1) >> 1; at > 0 && above(entry, heap[parent]!); parent = (at - 1) >> 1) {
      heap[at] = heap[parent]!
      at = parent
    }
    heap[at] = entry
  }
  /** Puts `entry` in the place of the first and lets it sink. */
  const sink = (entry: Entry): void => {
    let at = 0
    for (let child = 1; child < heap.length; child = 2 * at + 1) {
      if (child + 1 < heap.length && above(heap[child + 1]!, heap[child]!)) child++
      if (!above(heap[child]!, entry)) break
      heap[at] = heap[child]!
      at = child
    }
    heap[at] = entry
  }
  return {
    push: (pair) => rise({ pair, count: pair.count }),
    pop() {
      while (heap.length > 0) {
        const { pair, count } = heap[0]!
        if (pair.count > 0 && pair.count < count) {
          sink({ pair, count: pair.count })
          continue
        }
        const last = heap.pop()!
        if (heap.length > 0) sink(last)
        // A pair that rose again lies higher too, and is gone from there by now if it has been joined.
        if (pair.count === count) return pair
      }
      return undefined
    },
  }
}

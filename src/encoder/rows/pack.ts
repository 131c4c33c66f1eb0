import type { Device, Tensor } from '../../onnx/index.ts'
import type { Pooling } from '../folder/profile.ts'
import type { TokenSequence } from '../input/sequence.ts'

/** Kernels are fastest at row lengths that are multiples of this. */
const ROW_STEP = 8

/** Texts laid out in rows of equal length; every array is [rows, length], row by row. */
export interface PackedBatch {
  rows: number
  length: number
  /** How many texts the batch holds. */
  nodes: number
  /** Token ids; the padding id where a row is not full. */
  inputIds: Int32Array
  /** A token's place in its own text, from 0. */
  positionIds: Int32Array
  /** A token's text, numbered from 1 in the order given; 0 for padding. */
  segments: Int32Array
  /** Where each text starts, as an index into the arrays, and how many tokens it has. */
  starts: Int32Array
  lengths: Int32Array
}

/** The shortest row of a length that suits the kernels, a multiple of 8, for a text of `tokens`. */
export function rowLengthFor(tokens: number): number {
  return Math.ceil(tokens / ROW_STEP) * ROW_STEP
}

/**
 * Packs texts into rows by first-fit decreasing: longest first, equal lengths in the order given, each into the
 * first row with room for it. The same sequences give the same layout.
 *
 * @param rowLength tokens of a row; by default the length that costs least, see {@link bestRowLength}
 * @param options.padId the id that fills rows up (it is never looked at by a text)
 * @throws RangeError for an empty sequence or one longer than a row
 */
export function packSequences(
  sequences: readonly TokenSequence[],
  rowLength?: number,
  options: RowCosts & { padId?: number } = {},
): PackedBatch {
  const lengths = Int32Array.from(sequences, ({ ids }) => ids.length)
  const length = rowLength ?? bestRowLength(lengths, options)
  const { rowOf, columnOf, rows } = placeSequences(lengths, length)
  const inputIds = new Int32Array(rows * length).fill(options.padId ?? 0)
  const positionIds = new Int32Array(rows * length)
  const segments = new Int32Array(rows * length)
  const starts = new Int32Array(sequences.length)
  sequences.forEach(({ ids }, node) => {
    const start = (rowOf[node] as number) * length + (columnOf[node] as number)
    starts[node] = start
    inputIds.set(ids, start)
    for (let i = 0; i < ids.length; i++) {
      positionIds[start + i] = i
      segments[start + i] = node + 1
    }
  })
  return { rows, length, nodes: sequences.length, inputIds, positionIds, segments, starts, lengths }
}

/** Lays token sequences out one to a row, in the order given, the rows filled up to the longest. */
export function padSequences(sequences: readonly TokenSequence[], options: { padId?: number } = {}): PackedBatch {
  const rows = sequences.length
  const lengths = Int32Array.from(sequences, ({ ids }) => ids.length)
  const length = lengths.reduce((a, b) => Math.max(a, b), 1)
  const inputIds = new Int32Array(rows * length).fill(options.padId ?? 0)
  const positionIds = new Int32Array(rows * length)
  const segments = new Int32Array(rows * length)
  sequences.forEach(({ ids }, row) => {
    inputIds.set(ids, row * length)
    for (let i = 0; i < length; i++) positionIds[row * length + i] = i
    segments.fill(row + 1, row * length, row * length + ids.length)
  })
  return {
    rows,
    length,
    nodes: rows,
    inputIds,
    positionIds,
    segments,
    starts: lengths.map((_, i) => i * length),
    lengths,
  }
}

/** First-fit decreasing: the row and column of each sequence. */
function placeSequences(
  lengths: Int32Array,
  rowLength: number,
): { rowOf: Int32Array; columnOf: Int32Array; rows: number } {
  const order = Array.from(lengths.keys()).sort((a, b) => (lengths[b] as number) - (lengths[a] as number) || a - b)
  const rowOf = new Int32Array(lengths.length)
  const columnOf = new Int32Array(lengths.length)
  const used: number[] = []
  // No row before firstOpen has room for the shortest sequence that is left.
  let firstOpen = 0
  const shortest = lengths.length === 0 ? 0 : (lengths[order.at(-1) as number] as number)
  for (const node of order) {
    const tokens = lengths[node] as number
    if (tokens < 1) throw new RangeError(`Sequence ${node} is empty`)
    if (tokens > rowLength) throw new RangeError(`Sequence ${node} has ${tokens} tokens, a row only ${rowLength}`)
    let row = firstOpen
    while (row < used.length && (used[row] as number) + tokens > rowLength) row++
    rowOf[node] = row
    columnOf[node] = used[row] ?? 0
    used[row] = (used[row] ?? 0) + tokens
    while (firstOpen < used.length && (used[firstOpen] as number) + shortest > rowLength) firstOpen++
  }
  return { rowOf, columnOf, rows: Math.max(1, used.length) }
}

/** What {@link bestRowLength} needs to know of an encoder. */
export interface RowCosts {
  /** Longest row to try; by default twice the longest sequence. */
  maxLength?: number
  /** Width of the encoder, 384 by default. */
  hidden?: number
  /** Attention heads; by default one for every 32 of the width. */
  heads?: number
}

/**
 * The row length at which a batch costs least: the longest sequence's, or a multiple of 8. Long rows waste attention, which
 * looks at whole rows; short ones waste padding.
 *
 * Per token and layer the linear maps of a transformer with a feed-forward four times as wide take 24 hidden² operations; a
 * token's attention to one other in one head takes as long as 693 of these, since it is bound by memory (measured with
 * ONNX Runtime on a CPU, width 384, 12 heads, rows of 32 to 512). So a row of L tokens costs L (1 + L heads / (0.0346
 * hidden²)). Lengths that are no multiple of 8 cost 8 % more.
 */
export function bestRowLength(lengths: ArrayLike<number>, options: RowCosts = {}): number {
  const all = Int32Array.from(lengths)
  const longest = all.reduce((a, b) => Math.max(a, b), 1)
  const total = all.reduce((a, b) => a + b, 0)
  const from = rowLengthFor(longest)
  const to = Math.max(from, rowLengthFor(Math.min(options.maxLength ?? Number.POSITIVE_INFINITY, 2 * longest)))
  const hidden = options.hidden ?? 384
  const scale = (24 * hidden * hidden) / (693 * (options.heads ?? hidden / 32))
  let best = longest
  let lowest = Number.POSITIVE_INFINITY
  const consider = (length: number): void => {
    const perToken = (1 + length / scale) * (length % ROW_STEP === 0 ? 1 : 1.08)
    // no layout has fewer tokens than the sequences themselves
    if (Math.ceil(total / length) * length * perToken >= lowest) return
    const cost = placeSequences(all, length).rows * length * perToken
    if (cost < lowest) {
      lowest = cost
      best = length
    }
  }
  for (let length = from; length <= to; length += ROW_STEP) consider(length)
  consider(longest)
  return best
}

/**
 * Divides sequences into batches of at most `tokenBudget` tokens, padding included, longest first; a sequence longer than the
 * budget is a batch of its own. The batches hold indices into `lengths`; the same lengths give the same batches.
 *
 * @param options.packed whether a batch is packed (the row length that {@link bestRowLength} finds) or padded to its longest
 */
export function planBatches(
  lengths: ArrayLike<number>,
  options: RowCosts & { tokenBudget: number; packed: boolean },
): number[][] {
  const all = Array.from(lengths)
  const order = [...all.keys()].sort((a, b) => (all[b] as number) - (all[a] as number) || a - b)
  const size = (members: number[]): number => {
    const sizes = Int32Array.from(members, (i) => all[i] as number)
    if (!options.packed) return sizes.length * (sizes[0] as number)
    const length = bestRowLength(sizes, options)
    return placeSequences(sizes, length).rows * length
  }
  const batches: number[][] = []
  for (let at = 0; at < order.length; ) {
    let end = at + 1
    let sum = all[order[at] as number] as number
    while (end < order.length) {
      sum += options.packed ? (all[order[end] as number] as number) : (all[order[at] as number] as number)
      if (sum > options.tokenBudget) break
      end++
    }
    // padding may take more than the sequences themselves
    for (let over = size(order.slice(at, end)); over > options.tokenBudget && end - at > 1; ) {
      const perSequence = over / (end - at)
      end = Math.max(at + 1, end - Math.ceil((over - options.tokenBudget) / perSequence))
      over = size(order.slice(at, end))
    }
    batches.push(order.slice(at, end))
    at = end
  }
  return batches
}

/**
 * How many tokens a run should compute on a device, where more would fit. On a CPU a layer's activations should stay in its
 * caches: in runs of 1 024 tokens a training step takes 10 to 15 % less time than in runs of 4 096, and a forward pass 18 %
 * (MiniLM, 1 MiB of second-level cache a core, 32 MiB of third), in a third of the memory.
 */
export function runTokens(device: Device): number {
  return device === 'cpu' ? 1024 : Number.POSITIVE_INFINITY
}

/** How many tokens a batch computes, padding included. */
export function packedTokens(batch: PackedBatch): number {
  return batch.rows * batch.length
}

/**
 * The `pool` matrix, float32 [nodes, tokens]: 1/length at every token of a text (`mean`), or 1 at its first (`cls`) or last
 * (`last`) token.
 */
export function poolMatrix(batch: PackedBatch, pooling: Pooling): Float32Array {
  const tokens = packedTokens(batch)
  const pool = new Float32Array(batch.nodes * tokens)
  for (let node = 0; node < batch.nodes; node++) {
    const start = node * tokens + (batch.starts[node] as number)
    const length = batch.lengths[node] as number
    if (pooling === 'mean') pool.fill(1 / length, start, start + length)
    else pool[pooling === 'cls' ? start : start + length - 1] = 1
  }
  return pool
}

/** The batch as inputs of the packed graph, adapters aside. */
export function packedFeeds(batch: PackedBatch, pooling: Pooling): Record<string, Tensor> {
  const { rows, length, nodes } = batch
  const shape = [rows, length]
  return {
    input_ids: { dtype: 'int32', shape, data: batch.inputIds },
    position_ids: { dtype: 'int32', shape, data: batch.positionIds },
    segments: { dtype: 'int32', shape, data: batch.segments },
    pool: { dtype: 'float32', shape: [nodes, rows * length], data: poolMatrix(batch, pooling) },
  }
}

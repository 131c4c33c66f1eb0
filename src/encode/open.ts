import { join } from 'node:path'
import { createKeyTable } from '../data/index.ts'
import { type EmbeddingSpace, type EmbeddingStore, KEY_BYTES } from '../store/index.ts'
import { InputError } from '../support/errors.ts'
import { DESCRIPTION_FILE, type Encoded, INDEX_FILE, MATRIX_FILE, readEncoded } from './description.ts'
import { createKeyRows } from './key-rows.ts'
import { openMatrix } from './matrix.ts'
import { readIndex } from './rows.ts'

/** A node of an item as it was embedded; `start` and `end` as in refinement's results. */
export interface EmbeddedNode {
  from: number
  to: number
  start: number
  end: number
  truncated: boolean
  /** Row of the matrix. */
  row: number
}

/** Embeddings that were computed ahead, open for reading. Memory: about 60 bytes a row; the embeddings stay in their file. */
export interface Embeddings {
  readonly encoded: Encoded
  readonly space: EmbeddingSpace
  readonly rows: number
  /** Every node of an item in pre-order; undefined where the item is not there. */
  item(id: string): EmbeddedNode[] | undefined
  /** float32 [dimension] of an item's node over the leaves `[from, to)`; undefined where it is not there. */
  node(item: string, from: number, to: number): Float32Array | undefined
  /** float32 [dimension] of a question; undefined where it is not there. */
  question(benchmark: string, split: string, id: string): Float32Array | undefined
  /** float32 [dimension] of what has the key that `sequenceKey` gives; undefined where nothing has. */
  byKey(key: Uint8Array): Float32Array | undefined
  /** float32 [dimension] of a row of the matrix. */
  row(at: number): Float32Array
  /** float32 [to - from, dimension]. */
  slice(from: number, to: number): Float32Array
  /** The key of a row, 16 bytes. */
  key(row: number): Uint8Array
  /** Closes the file; what was read stays. */
  close(): void
}

/**
 * Opens a folder that `canopy encode` wrote. Its index is read and checked in full; of the embeddings the size, type and owner are,
 * and the numbers when they are read. `verifyEmbeddings` looks at every byte.
 *
 * @param options.fingerprint of the encoder that is to be used with them; others are refused
 * @throws InputError naming the file (and line): missing, cut short, damaged, of another encoder
 */
export async function openEmbeddings(folder: string, options: { fingerprint?: string } = {}): Promise<Embeddings> {
  const description = join(folder, DESCRIPTION_FILE)
  const encoded = await readEncoded(description)
  const { space, side, counts } = encoded
  if (options.fingerprint !== undefined && options.fingerprint !== space.fingerprint)
    throw foreign(encoded, `the encoder in use (${options.fingerprint.slice(0, 12)}…)`, description)
  const { rows } = counts
  const matrix = await openMatrix(join(folder, MATRIX_FILE), encoded, rows)
  try {
    const index = await loadIndex(join(folder, INDEX_FILE), side, rows)
    return {
      ...{ encoded, space, rows },
      item(id) {
        const range = side === 'node' ? index.unit(JSON.stringify(id)) : undefined
        if (range === undefined) return undefined
        return Array.from({ length: range[1] - range[0] }, (_, n) => index.node(range[0] + n))
      },
      node(item, from, to) {
        const range = side === 'node' ? index.unit(JSON.stringify(item)) : undefined
        const row = range === undefined ? undefined : index.findNode(range, from, to)
        return row === undefined ? undefined : matrix.row(row)
      },
      question(benchmark, split, id) {
        const range = side === 'query' ? index.unit(JSON.stringify([benchmark, split, id])) : undefined
        return range === undefined ? undefined : matrix.row(range[0])
      },
      byKey(key) {
        const row = index.byKey(key)
        return row === undefined ? undefined : matrix.row(row)
      },
      row: matrix.row,
      slice: matrix.rows,
      key: index.key,
      close: matrix.close,
    }
  } catch (error) {
    matrix.close()
    throw error
  }
}

async function loadIndex(file: string, side: 'node' | 'query', rows: number) {
  // a hostile description may claim any number of rows, but the matrix was found to have them
  const keys = Buffer.alloc(rows * KEY_BYTES)
  const byKey = createKeyRows(keys)
  const [from, to] = [new Uint32Array(rows), new Uint32Array(rows)]
  const [start, end] = [new Float64Array(rows), new Float64Array(rows)]
  const truncated = new Uint8Array(rows)
  const units = createKeyTable()
  /** First row of each item or question, by its entry; entries are numbered in the order of the rows. */
  const firstRow = new Uint32Array(rows)
  let at = 0
  let before: string | undefined
  for await (const { row, line } of readIndex(file, side)) {
    if (at === rows) throw new InputError(`a row too many: the matrix has ${rows}`, { file, line })
    keys.write(row.key, at * KEY_BYTES, 'hex')
    byKey.add(at)
    if (row.truncated === true) truncated[at] = 1
    const name = 'item' in row ? JSON.stringify(row.item) : JSON.stringify([row.benchmark, row.split, row.question])
    if ('item' in row) {
      ;[from[at], to[at], start[at], end[at]] = [row.from, row.to, row.start, row.end]
    }
    if (name !== before) {
      const unit = units.add(name)
      if (unit.isNew) firstRow[unit.entry] = at
      else if ('item' in row) throw new InputError(`the rows of the item ${name} do not stand together`, { file, line })
    }
    before = 'item' in row ? name : undefined
    at++
  }
  if (at !== rows) throw new InputError(`the index has ${at} rows, the matrix ${rows}; the file is cut short`, { file })
  return {
    unit(name: string): [number, number] | undefined {
      const entry = units.find(name)
      if (entry < 0) return undefined
      return [firstRow[entry] as number, entry + 1 < units.size ? (firstRow[entry + 1] as number) : rows]
    },
    node: (row: number): EmbeddedNode => ({
      from: from[row] as number,
      to: to[row] as number,
      start: start[row] as number,
      end: end[row] as number,
      truncated: truncated[row] === 1,
      row,
    }),
    /** In pre-order nodes are sorted by where they begin, the longer ones first. */
    findNode([first, last]: [number, number], wantedFrom: number, wantedTo: number): number | undefined {
      let [low, high] = [first, last]
      while (low < high) {
        const middle = (low + high) >> 1
        const isBefore =
          (from[middle] as number) < wantedFrom || (from[middle] === wantedFrom && (to[middle] as number) > wantedTo)
        if (isBefore) low = middle + 1
        else high = middle
      }
      return low < last && from[low] === wantedFrom && to[low] === wantedTo ? low : undefined
    },
    byKey: byKey.find,
    key: (row: number): Uint8Array => new Uint8Array(keys.subarray(row * KEY_BYTES, (row + 1) * KEY_BYTES)),
  }
}

export interface EmbeddingsStoreOptions {
  /** Keeps what the file does not have, and is asked for it; where absent that is computed and forgotten. */
  otherwise?: EmbeddingStore
  /** Gives out numbers that were stored in float16 for the float32 that the encoder computes; refused otherwise. */
  rounded?: boolean
}

/**
 * Embeddings that were computed ahead as a store for `openEmbedder` and `openEncoder`: nodes that are there are not computed, so
 * that refining loads f0 only. The file is never written to: what an encoder computes besides is kept by `otherwise` alone.
 *
 * @param embeddings closed with the store
 * @returns a store that another encoder may not use: it throws an InputError
 * @throws InputError for embeddings in float16 unless `rounded` is set
 * @example
 * const store = embeddingsStore(await openEmbeddings('wiki.embeddings'))
 * const encoder = await openEncoder('runs/minilm/export', { store })
 */
export function embeddingsStore(embeddings: Embeddings, options: EmbeddingsStoreOptions = {}): EmbeddingStore {
  const { otherwise, rounded } = options
  const { encoded, space: own } = embeddings
  if (rounded !== true) refuseRounded(encoded)
  const check = ({ fingerprint, dimension, name = 'the encoder in use' }: EmbeddingSpace): void => {
    if (fingerprint === own.fingerprint && dimension === own.dimension) return
    throw foreign(encoded, `${name} (${fingerprint.slice(0, 12)}…)`)
  }
  return {
    async getMany(space, keys) {
      check(space)
      const found = keys.map((key) => embeddings.byKey(key))
      const missing = found.flatMap((row, i) => (row === undefined ? [i] : []))
      if (otherwise === undefined || (missing.length === 0 && keys.length > 0)) return found
      const others = await otherwise.getMany(
        space,
        missing.map((i) => keys[i] as Uint8Array),
      )
      missing.forEach((i, n) => {
        found[i] = others[n]
      })
      return found
    },
    async putMany(space, keys, computed) {
      check(space)
      await otherwise?.putMany(space, keys, computed)
    },
    async close() {
      embeddings.close()
      await otherwise?.close?.()
    },
  }
}

function foreign({ space, encoder, adapter }: Encoded, used: string, file?: string): InputError {
  const theirs = `${encoder.id}${adapter === null ? '' : ' with an adapter'} (${space.fingerprint.slice(0, 12)}…)`
  return new InputError(
    `These embeddings are of ${theirs}, and not of ${used}: another encoder, adapter, prompt, length or device. Encode the data with the one in use.`,
    file === undefined ? {} : { file },
  )
}

function refuseRounded({ dtype, rounding }: Encoded): void {
  if (dtype === 'float32') return
  throw new InputError(
    `These embeddings were stored in float16 (least cosine ${rounding?.leastCosine.toFixed(7)}), and the encoder computes float32. Say that this is meant ("rounded"), or encode with --dtype float32.`,
  )
}

const ROWS_AT_ONCE = 1024

/**
 * Puts embeddings that were computed ahead into a store, as a database; what it knows stays as it is.
 *
 * @throws InputError for embeddings in float16 unless `rounded` is set, and as reading and the store do
 */
export async function fillStore(
  embeddings: Embeddings,
  store: EmbeddingStore,
  options: { rounded?: boolean; onProgress?: (rows: number) => void; signal?: AbortSignal } = {},
): Promise<void> {
  const { encoded, space, rows } = embeddings
  if (options.rounded !== true) refuseRounded(encoded)
  for (let from = 0; from < rows; from += ROWS_AT_ONCE) {
    options.signal?.throwIfAborted()
    const to = Math.min(rows, from + ROWS_AT_ONCE)
    const keys = Array.from({ length: to - from }, (_, n) => embeddings.key(from + n))
    await store.putMany(space, keys, embeddings.slice(from, to))
    options.onProgress?.(to)
  }
}

import { createHash, type Hash } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { InputError } from '../support/errors.ts'
import { exists, fileError, sha256File } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { DESCRIPTION_FILE, type Encoded, INDEX_FILE, MATRIX_FILE, readEncoded, SKIPPED_FILE } from './description.ts'
import { openMatrix } from './matrix.ts'
import { checkParquet } from './parquet.ts'
import { type IndexRow, nameOfRow, readIndex, readSkipped, type SkippedUnit } from './rows.ts'

export interface VerifyOptions {
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

const ROWS_AT_ONCE = 4096

/**
 * Looks at every byte of a folder (or Parquet file) of embeddings: hashes, shapes, that all numbers are finite, that the index has a
 * line for every row, with the counts that encode.json has, and that its items are those that were to be encoded, each once.
 *
 * @throws InputError naming the file, the line and what differs
 */
export async function verifyEmbeddings(path: string, options: VerifyOptions = {}): Promise<Encoded> {
  const isFile = await stat(path).then(
    (found) => found.isFile(),
    (error: unknown) => {
      throw fileError(error, 'cannot read the embeddings', path)
    },
  )
  if (isFile) {
    const names = createNames()
    let tally: Tally | undefined
    const encoded = await checkParquet(
      path,
      (row, _, line) => {
        tally ??= createTally(path)
        tally.add(row, line)
        names.row(row)
      },
      options.signal,
    )
    ;(tally ?? createTally(path)).check(encoded)
    // what was skipped stands in the file's footer, whose hash is right
    if (encoded.counts.skipped === 0) names.check(encoded, path)
    return encoded
  }
  return verifyFolder(path, options)
}

async function verifyFolder(folder: string, { onProgress, signal }: VerifyOptions): Promise<Encoded> {
  const encoded = await readEncoded(join(folder, DESCRIPTION_FILE))
  await checkHashes(folder, encoded)
  const { rows } = encoded.counts
  const matrix = await openMatrix(join(folder, MATRIX_FILE), encoded, rows)
  try {
    for (let from = 0; from < rows; from += ROWS_AT_ONCE) {
      signal?.throwIfAborted()
      matrix.rows(from, Math.min(rows, from + ROWS_AT_ONCE))
      onProgress?.({ phase: 'verifying', done: from, total: rows })
    }
  } finally {
    matrix.close()
  }
  const file = join(folder, INDEX_FILE)
  const tally = createTally(file)
  const names = createNames()
  const skipped = readSkippedOf(folder, encoded)
  for await (const { row, line } of readIndex(file, encoded.side)) {
    if (line % ROWS_AT_ONCE === 0) signal?.throwIfAborted()
    tally.add(row, line)
    await names.rowAmong(row, encoded.shard?.first ?? 0, skipped)
  }
  await names.rest(skipped)
  tally.check(encoded)
  names.check(encoded, file)
  return encoded
}

/** @throws InputError for a file whose content is not what encode.json says, or that it does not know */
export async function checkHashes(folder: string, encoded: Encoded): Promise<void> {
  for (const name of [MATRIX_FILE, INDEX_FILE, SKIPPED_FILE] as const) {
    const file = join(folder, name)
    const wanted = encoded.files[name]
    if (wanted === undefined && !(await exists(file))) continue
    if (wanted === undefined) throw new InputError('encode.json does not know this file', { file })
    if ((await sha256File(file)) !== wanted)
      throw new InputError('is not the file that encode.json describes; it is damaged, encode or copy it again', {
        file,
      })
  }
  if (encoded.counts.skipped > 0 && encoded.files[SKIPPED_FILE] === undefined)
    throw new InputError(`${encoded.counts.skipped} items were skipped, and no file lists them`, {
      file: join(folder, DESCRIPTION_FILE),
    })
}

/** The skipped items of a folder, one after the other. */
export function readSkippedOf(folder: string, { counts }: Encoded): AsyncIterator<SkippedUnit> {
  return counts.skipped === 0 ? NONE : readSkipped(join(folder, SKIPPED_FILE))
}

const NONE: AsyncIterator<SkippedUnit> = { next: async () => ({ done: true, value: undefined }) }

interface Tally {
  add(row: IndexRow, line: number): void
  /** @throws InputError where the counts are not those of a description */
  check(encoded: Encoded): void
}

/** Counts what an index has. */
function createTally(file: string): Tally {
  let [rows, truncated, units] = [0, 0, 0]
  let before: string | undefined
  return {
    add(row) {
      rows++
      if (row.truncated === true) truncated++
      const name = 'item' in row ? nameOfRow(row) : undefined
      if (name === undefined || name !== before) units++
      before = name
    },
    check({ counts }) {
      for (const [what, found, wanted] of [
        ['rows', rows, counts.rows],
        ['truncated rows', truncated, counts.truncated],
        ['items', units, counts.units],
      ] as const)
        if (found !== wanted)
          throw new InputError(`the index has ${found} ${what}, encode.json says ${wanted}`, { file })
    },
  }
}

/**
 * The hash over the names of all items (or questions) in the order of the data, from the rows and from what was skipped in
 * between: equal to the plan's only where none is missing, twice or out of its place.
 */
export interface Names {
  /** A row of a list without skipped items. */
  row(row: IndexRow): void
  /** A row, the skipped items before it first; `first`: number of the first item of the shard. */
  rowAmong(row: IndexRow, first: number, skipped: AsyncIterator<SkippedUnit>): Promise<void>
  /** The skipped items behind the last row. */
  rest(skipped: AsyncIterator<SkippedUnit>): Promise<void>
  /** @throws InputError where these are not all the items that were to be encoded */
  check(encoded: Encoded, file: string): void
}

export function createNames(): Names {
  const hash: Hash = createHash('sha256')
  let at = 0
  let before: string | undefined
  let next: SkippedUnit | undefined
  const add = (name: string): void => {
    hash.update(name).update('\n')
    at++
  }
  const names: Names = {
    row(row) {
      const name = nameOfRow(row)
      // a question has one row; equal names in a row are questions with one id
      if ('item' in row && name === before) return
      before = name
      add(name)
    },
    async rowAmong(row, first, skipped) {
      const isNew = !('item' in row) || nameOfRow(row) !== before
      if (isNew)
        for (;;) {
          next ??= (await skipped.next()).value as SkippedUnit | undefined
          if (next === undefined || next.number !== first + at) break
          add(next.name)
          next = undefined
          before = undefined
        }
      names.row(row)
    },
    async rest(skipped) {
      for (;;) {
        next ??= (await skipped.next()).value as SkippedUnit | undefined
        if (next === undefined) return
        add(next.name)
        next = undefined
      }
    },
    check({ data, shard }, file) {
      const wanted = shard === null ? data.units : shard.units
      if (at !== wanted || (shard === null && hash.digest('hex') !== data.ids))
        throw new InputError(
          `the index does not have the items that were to be encoded, each once and in order (it has ${at} of ${wanted})`,
          { file },
        )
    },
  }
  return names
}

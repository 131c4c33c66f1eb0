import { createHash } from 'node:crypto'
import { open, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import type { ColumnSource, ParquetWriteOptions } from 'hyparquet-writer'
import { readParquet, readParquetNotes } from '../data/index.ts'
import { InputError } from '../support/errors.ts'
import { exists, fileError } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { describe, type Encoded, INDEX_FILE, MATRIX_FILE, parseEncoded, SKIPPED_FILE } from './description.ts'
import { bytesOfRows, matrixHeader, openMatrix } from './matrix.ts'
import { type IndexRow, lineOf, parseRow, readIndex, readSkipped } from './rows.ts'
import type { Install } from './working.ts'

/** How a file of embeddings is written: a folder of safetensors and an index, or one Parquet table. */
export type Format = 'safetensors' | 'parquet'

/** Rows of a row group: what is held at once. */
const GROUP_ROWS = 1024

/** Name of the table while it is written. */
const TABLE_FILE = 'table.parquet'

/** Names of the notes in the file's footer: encode.json and skipped.jsonl as they would lie in a folder. */
const DESCRIPTION_NOTE = 'canopy.encode'
const SKIPPED_NOTE = 'canopy.skipped'

type Schema = NonNullable<ParquetWriteOptions['schema']>

const text = (name: string): Schema[number] => ({
  name,
  type: 'BYTE_ARRAY',
  converted_type: 'UTF8',
  repetition_type: 'REQUIRED',
})
const plain = (name: string, type: 'INT64' | 'DOUBLE' | 'BOOLEAN'): Schema[number] => ({
  ...{ name, type },
  repetition_type: 'REQUIRED',
})

/** Columns by side; every one has a value in every row. Lists have the three levels that the format prescribes. */
const schemaOf = (side: Encoded['side']): Schema => {
  const columns: Schema =
    side === 'node'
      ? [text('item'), plain('from', 'INT64'), plain('to', 'INT64'), plain('start', 'DOUBLE'), plain('end', 'DOUBLE')]
      : [text('question'), text('benchmark'), text('split')]
  return [
    { name: 'schema', num_children: columns.length + 3 },
    ...columns,
    text('key'),
    plain('truncated', 'BOOLEAN'),
    { name: 'embedding', repetition_type: 'REQUIRED', num_children: 1, converted_type: 'LIST' },
    { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
    { name: 'element', type: 'FLOAT', repetition_type: 'REQUIRED' },
  ]
}

function columnsOf(rows: readonly IndexRow[], embeddings: number[][]): ColumnSource[] {
  const column = (name: string, value: (row: IndexRow) => unknown): ColumnSource => ({ name, data: rows.map(value) })
  const field = (name: string) => column(name, (row) => (row as unknown as Record<string, unknown>)[name])
  const whole = (name: string) =>
    column(name, (row) => BigInt((row as unknown as Record<string, number>)[name] as number))
  const named =
    rows[0] !== undefined && 'item' in rows[0]
      ? [field('item'), whole('from'), whole('to'), field('start'), field('end')]
      : [field('question'), field('benchmark'), field('split')]
  return [
    ...named,
    field('key'),
    column('truncated', ({ truncated }) => truncated === true),
    // numbers of embeddings do not repeat, and their bytes do not get shorter
    { name: 'embedding', data: embeddings, encoding: 'PLAIN', codec: 'UNCOMPRESSED', statistics: false },
  ]
}

interface Watch {
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

/** What puts a finished folder under the output's name in another format; undefined where it is the output itself. */
export const installer = (format: Format, output: string, watch: Watch): Install | undefined =>
  format === 'parquet' ? (folder, encoded) => installParquet(folder, encoded, output, watch) : undefined

/**
 * Makes one Parquet table of a finished folder of embeddings and puts it under its name; a row group at a time is in memory.
 *
 * @throws InputError as writing files does
 */
async function installParquet(
  folder: string,
  encoded: Encoded,
  output: string,
  { onProgress, signal }: Watch,
): Promise<void> {
  const { fileWriter, ParquetWriter } = await import('hyparquet-writer')
  // inside of the unfinished output: what a killed process leaves is overwritten, and goes with it
  const temporary = join(folder, TABLE_FILE)
  const skipped = join(folder, SKIPPED_FILE)
  const kvMetadata = [{ key: DESCRIPTION_NOTE, value: describe(encoded) }]
  if (await exists(skipped)) {
    const lines: string[] = []
    for await (const unit of readSkipped(skipped)) lines.push(`${JSON.stringify(unit)}\n`)
    kvMetadata.push({ key: SKIPPED_NOTE, value: lines.join('') })
  }
  const matrix = await openMatrix(join(folder, MATRIX_FILE), encoded, encoded.counts.rows)
  try {
    const writer = new ParquetWriter({
      writer: fileWriter(temporary),
      schema: schemaOf(encoded.side),
      kvMetadata,
      createdBy: 'canopy-encoder',
    })
    let group: IndexRow[] = []
    let at = 0
    const flush = async (): Promise<void> => {
      if (group.length === 0) return
      const values = matrix.rows(at, at + group.length)
      const { dimension } = encoded.space
      const embeddings = group.map((_, i) => Array.from(values.subarray(i * dimension, (i + 1) * dimension)))
      await writer.write({ columnData: columnsOf(group, embeddings), rowGroupSize: GROUP_ROWS })
      at += group.length
      group = []
      signal?.throwIfAborted()
      onProgress?.({ phase: 'writing Parquet', done: at, total: encoded.counts.rows })
    }
    for await (const { row } of readIndex(join(folder, INDEX_FILE), encoded.side)) {
      group.push(row)
      if (group.length === GROUP_ROWS) await flush()
    }
    await flush()
    await writer.finish()
    const handle = await open(temporary, 'r+')
    await handle.sync().finally(() => handle.close())
    await rename(temporary, output)
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => {})
    throw fileError(error, 'cannot write the Parquet file', output)
  } finally {
    matrix.close()
  }
}

/**
 * What a Parquet file of embeddings says of itself.
 *
 * @throws InputError for a file that is no Parquet, or of somebody else's
 */
export async function readParquetDescription(file: string): Promise<Encoded> {
  const { rows, notes } = await readParquetNotes(file)
  const note = notes.get(DESCRIPTION_NOTE)
  if (note === undefined)
    throw new InputError(`the Parquet file has no note "${DESCRIPTION_NOTE}"; "canopy encode" did not write it`, {
      file,
    })
  const encoded = parseEncoded(note, file)
  if (encoded.counts.rows !== rows)
    throw new InputError(`the Parquet file has ${rows} rows, its description says ${encoded.counts.rows}`, { file })
  return encoded
}

/**
 * Compares a Parquet file with its description: its rows, written as a folder's files, have to have their hashes.
 *
 * @param look told of every row
 * @throws InputError naming what differs
 */
export async function checkParquet(
  file: string,
  look: (row: IndexRow, embedding: Float32Array, line: number) => void,
  signal?: AbortSignal,
): Promise<Encoded> {
  const encoded = await readParquetDescription(file)
  const { side, dtype, space, counts, files } = encoded
  const matrix = createHash('sha256').update(matrixHeader(encoded, counts.rows))
  const index = createHash('sha256')
  for await (const { value, line } of readParquet(file, signal === undefined ? {} : { signal })) {
    const { embedding, truncated, ...named } = value as Record<string, unknown>
    if (!Array.isArray(embedding) || embedding.length !== space.dimension || !embedding.every(Number.isFinite))
      throw new InputError(`an embedding of ${space.dimension} finite numbers was expected`, { file, line })
    const row = parseRow({ ...named, ...(truncated === true ? { truncated } : {}) }, side, { file, line })
    const values = Float32Array.from(embedding as number[])
    look(row, values, line)
    matrix.update(bytesOfRows(values, dtype))
    index.update(lineOf(row))
  }
  if (matrix.digest('hex') !== files[MATRIX_FILE]) throw damaged('embeddings', file)
  if (index.digest('hex') !== files[INDEX_FILE]) throw damaged('rows', file)
  const { notes } = await readParquetNotes(file)
  const skipped = notes.get(SKIPPED_NOTE)
  const hash = skipped === undefined ? undefined : createHash('sha256').update(skipped).digest('hex')
  if (hash !== files[SKIPPED_FILE]) throw damaged('list of skipped items', file)
  return encoded
}

const damaged = (what: string, file: string): InputError =>
  new InputError(`the ${what} are not those that were written; the file is damaged, encode or copy it again`, { file })

import { z } from 'zod'
import { parseWith, readJsonLines } from '../data/index.ts'
import { InputError } from '../support/errors.ts'
import type { RowHead } from './units.ts'

/** One row of the matrix as the index has it. */
export type IndexRow = RowHead & {
  /** What the encoder read: `sequenceKey`, 32 hexadecimal digits. */
  key: string
  /** Present where the row's text was cut at the maximum length. */
  truncated?: true
}

const KEY = /^[0-9a-f]{32}$/
const offset = z.number().min(0)
const key = z.string().regex(KEY, { message: 'is no key of 32 hexadecimal digits' })
const shared = { key, truncated: z.literal(true).exactOptional() }
const nodeRow = z
  .strictObject({
    item: z.string().min(1),
    from: z.number().int().min(0),
    to: z.number().int().min(1).max(0xffff_ffff),
    start: offset,
    end: offset,
    ...shared,
  })
  .refine(({ from, to, start, end }) => from < to && start <= end, { message: 'is no range' })
const queryRow = z.strictObject({ question: z.string().min(1), benchmark: z.string(), split: z.string(), ...shared })

/** A line of index.jsonl, line feed included: the line's number is the row's. */
export function indexLine(head: RowHead, sequenceKey: Uint8Array, truncated: boolean): string {
  const row: IndexRow = {
    ...head,
    key: Buffer.from(sequenceKey).toString('hex'),
    ...(truncated ? { truncated: true as const } : {}),
  }
  return `${JSON.stringify(row)}\n`
}

/** A line of index.jsonl of a row that was read, line feed included; fields in the order in which they are written. */
export function lineOf(row: IndexRow): string {
  const { truncated } = row
  const flag = truncated === true ? { truncated } : {}
  const ordered =
    'item' in row
      ? { item: row.item, from: row.from, to: row.to, start: row.start, end: row.end, key: row.key, ...flag }
      : { question: row.question, benchmark: row.benchmark, split: row.split, key: row.key, ...flag }
  return `${JSON.stringify(ordered)}\n`
}

/**
 * A row of an index, checked.
 *
 * @throws InputError with the place
 */
export function parseRow(value: unknown, side: 'node' | 'query', place: { file: string; line: number }): IndexRow {
  if (side === 'node' && isNodeRow(value)) return value
  return parseWith<IndexRow>(side === 'node' ? nodeRow : queryRow, value, place, 'row of an index') as IndexRow
}

/** What `nodeRow` takes, in a tenth of the time; there are millions of rows. What it does not know, the schema judges. */
function isNodeRow(value: unknown): value is IndexRow {
  if (typeof value !== 'object' || value === null) return false
  const { item, from, to, start, end, key: hex, truncated } = value as Record<string, unknown>
  if (typeof item !== 'string' || typeof from !== 'number' || typeof to !== 'number') return false
  if (typeof start !== 'number' || typeof end !== 'number' || typeof hex !== 'string') return false
  if (!Number.isSafeInteger(from) || !Number.isSafeInteger(to) || from < 0 || to <= from || to > 0xffff_ffff)
    return false
  if (item === '' || !(start >= 0 && start <= end && end < Number.POSITIVE_INFINITY) || !KEY.test(hex)) return false
  if (truncated !== undefined && truncated !== true) return false
  return Object.keys(value).length === (truncated === undefined ? 6 : 7)
}

/** Longest line of an index: ids are the data's own, and may be long. */
const MOST_LINE_BYTES = 1 << 20

/**
 * The rows of index.jsonl, in order, checked: nodes of an item follow each other in pre-order.
 *
 * @throws InputError with file and line
 */
export async function* readIndex(
  file: string,
  side: 'node' | 'query',
): AsyncGenerator<{ row: IndexRow; line: number }> {
  const inOrder = orderCheck(file)
  let expected = 1
  for await (const { value, line } of readJsonLines(file, { maxLineBytes: MOST_LINE_BYTES })) {
    if (line !== expected) throw new InputError('a row was expected here, the line is empty', { file, line: expected })
    expected++
    const row = parseRow(value, side, { file, line })
    inOrder(row, line)
    yield { row, line }
  }
}

/** Looks at rows one after the other: an item's nodes come in pre-order, none twice. */
export function orderCheck(file: string): (row: IndexRow, line: number) => void {
  let before: IndexRow | undefined
  return (row, line) => {
    const last = before
    before = row
    if (last === undefined || !('item' in row) || !('item' in last) || row.item !== last.item) return
    if (row.from > last.from || (row.from === last.from && row.to < last.to)) return
    throw new InputError(
      `the node [${row.from}, ${row.to}) of the item ${JSON.stringify(row.item)} stands behind [${last.from}, ${last.to}); nodes come in pre-order, each once`,
      { file, line },
    )
  }
}

/** An item or question that could not be read. */
export interface SkippedUnit {
  /** Its name as JSON: an item's id, or a question's benchmark, split and id. */
  name: string
  /** Its number among all of the data. */
  number: number
  reason: string
}

const skippedUnit = z.strictObject({ name: z.string(), number: z.number().int().min(0), reason: z.string() })

/** @throws InputError with file and line */
export async function* readSkipped(file: string): AsyncGenerator<SkippedUnit> {
  for await (const { value, line } of readJsonLines(file, { maxLineBytes: MOST_LINE_BYTES }))
    yield parseWith(skippedUnit, value, { file, line }, 'skipped item')
}

/** A row's unit by its name, as the plan has it. */
export const nameOfRow = (row: RowHead): string =>
  'item' in row ? JSON.stringify(row.item) : JSON.stringify([row.benchmark, row.split, row.question])

import { InputError } from '../support/errors.ts'
import type { TableItem } from './types.ts'

/** How the header and the rows of a table become text; each string ends in a line break. */
export interface TableFormat {
  /** Stands in every fingerprint. */
  name: string
  /** Cells [columns], empty strings where the table has none. Empty string: the format needs no header line. */
  header(cells: readonly string[]): string
  /** Cells [columns] of a row, beside those of the header. */
  row(cells: readonly string[], header: readonly string[]): string
}

/**
 * A GitHub-flavoured Markdown table. A pipe in a cell becomes `\|`, a line break `<br>`. One hyphen a column is the shortest
 * delimiter row that is Markdown still.
 */
const markdown: TableFormat = {
  name: 'markdown',
  header: (cells) => `${markdownRow(cells)}|${'-|'.repeat(cells.length)}\n`,
  row: markdownRow,
}

function markdownRow(cells: readonly string[]): string {
  return `|${cells.map((cell) => ` ${cell.replaceAll('|', '\\|').replace(LINE_BREAKS, '<br>')} |`).join('')}\n`
}

/** A line for each row, `column: cell; column: cell.`, empty cells left out: for encoders that read prose better than tables. */
const keyValue: TableFormat = {
  name: 'key-value',
  header: () => '',
  row: (cells, header) => {
    const fields = cells.flatMap((cell, column) => {
      const value = cell.replace(LINE_BREAKS, ' ').trim()
      const name = (header[column] ?? '').replace(LINE_BREAKS, ' ').trim()
      return value === '' ? [] : [name === '' ? value : `${name}: ${value}`]
    })
    return `${fields.join('; ')}.\n`
  },
}

const LINE_BREAKS = /\r\n|[\n\r\u0085\u2028\u2029]/g

export const TABLE_FORMATS = { markdown, 'key-value': keyValue } as const
export type TableFormatName = keyof typeof TABLE_FORMATS
export const TABLE_FORMAT_NAMES = Object.keys(TABLE_FORMATS) as [TableFormatName, ...TableFormatName[]]

/**
 * The leaves of a table, its rows: `[row, row + 1)`. Ragged, empty and duplicate rows are leaves as well.
 *
 * @throws InputError when the table has no row
 */
export function rowExtents(item: TableItem): [number, number][] {
  if (item.rows.length === 0)
    throw new InputError(`The table item "${item.id}" has no row, so no leaf. Remove the item.`)
  return item.rows.map((_, row) => [row, row + 1])
}

const columnCounts = new WeakMap<TableItem, number>()

/** Columns of a table: of its header or its longest row, whichever has more. */
export function columnsOf(item: TableItem): number {
  let columns = columnCounts.get(item)
  if (columns === undefined) {
    columns = item.rows.reduce((most, row) => Math.max(most, row.length), item.header.length)
    columnCounts.set(item, columns)
  }
  return columns
}

/** The header of a table as text, or nothing when it has none. */
export function renderColumns(item: TableItem, format: TableFormat): string {
  return item.header.length === 0 ? '' : format.header(padded(item.header, columnsOf(item)))
}

/** The rows `[from, to)` as text, each padded to the table's number of columns. */
export function renderRows(item: TableItem, from: number, to: number, format: TableFormat): string {
  const columns = columnsOf(item)
  const header = padded(item.header, columns)
  let text = ''
  for (let row = from; row < to; row++) text += format.row(padded(item.rows[row]!, columns), header)
  return text
}

function padded(cells: readonly string[], columns: number): readonly string[] {
  return cells.length === columns ? cells : [...cells, ...new Array<string>(columns - cells.length).fill('')]
}

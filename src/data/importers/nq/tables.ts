import { InputError } from '../../../support/errors.ts'
import type { Place } from '../../schema.ts'
import { detokenise, type PageToken } from '../detokenise.ts'
import type { TableContent } from '../tables.ts'
import type { TokenRange } from './pages.ts'

/** A table of a page as an item without an id, and which tokens its leaves are made of. */
export interface PageTable {
  content: TableContent
  /** What the token stands in: a row by its index, the header, the caption, or nothing of the item. */
  partOf(token: number): number | 'header' | 'caption' | undefined
}

/**
 * The table that a range of a page's tokens is, or is a part of: the innermost `<Table>` around it. A paragraph or a list inside
 * of a cell is no part of a table in this sense, it stands for itself.
 *
 * @returns the tokens from `<Table>` to `</Table>` (or the page's end, where that is missing)
 */
export function tableAround(tokens: readonly PageToken[], [start, end]: TokenRange): TokenRange | undefined {
  const first = tagOf(tokens[start]!)
  if (first?.opens && PARAGRAPH_OR_LIST.has(first.name)) return undefined
  const open: number[] = []
  let innermost: TokenRange | undefined
  for (let i = 0; i < tokens.length && (i <= start || open.length > 0); i++) {
    const tag = tagOf(tokens[i]!)
    if (tag?.name !== 'table') continue
    if (tag.opens) open.push(i)
    else {
      const from = open.pop()
      if (from !== undefined && from <= start && i + 1 >= end) innermost ??= [from, i + 1]
    }
  }
  const unclosed = open.filter((from) => from <= start).at(-1)
  return innermost ?? (unclosed === undefined ? undefined : [unclosed, tokens.length])
}

const PARAGRAPH_OR_LIST = new Set(['p', 'ul', 'ol', 'dl', 'li', 'dt', 'dd'])

/**
 * Reads a table of a page. A `<Tr>` is a row, as are cells that stand in none; text in a row outside of its cells is a cell. A
 * nested table is text of the cell that holds it. A cell over several columns (`<Td colspan="2">`; the tokens tell of no cell over
 * several rows) is followed by empty ones.
 *
 * The header is the first row whose text stands in `<Th>` cells, two or more of them (one in a table of one column), with nothing
 * above it but rows of one cell, such as a title, and with a row below it. The caption is `<Caption>`, or else the heading
 * under which the table stands.
 *
 * @param range from `<Table>` to `</Table>`, as {@link tableAround} gives it
 * @returns a content without rows, where the table has none
 * @throws InputError when the table, cells over several columns counted out, has more than a million cells
 */
export function readTable(tokens: readonly PageToken[], range: TokenRange, title: string, place: Place): PageTable {
  const { caption, rows } = partsOf(tokens, range)
  const count = rows.reduce((sum, cells) => cells.reduce((inRow, { columns }) => inRow + columns, sum), 0)
  if (count > MOST_CELLS) {
    throw new InputError(`the table of tokens [${range}) has ${count} cells, more than ${MOST_CELLS}`, place)
  }
  const textOf = ([start, end]: TokenRange): string => detokenise(tokens.slice(start, end)).text
  const texts = rows.map((cells) => cells.map((cell) => textOf(cell.range)))
  const headerAt = headerRow(rows, texts)
  const cellsOf = (row: number): string[] =>
    rows[row]!.flatMap(({ columns }, i) => [texts[row]![i]!, ...new Array<string>(columns - 1).fill('')])
  const leaves = rows.map((_, row) => row).filter((row) => row !== headerAt)

  const parts = new Map<number, number | 'header' | 'caption'>()
  const mark = ([start, end]: TokenRange, part: number | 'header' | 'caption'): void => {
    for (let i = start; i < end; i++) parts.set(i, part)
  }
  if (caption !== undefined) mark(caption, 'caption')
  for (const { range } of headerAt === undefined ? [] : rows[headerAt]!) mark(range, 'header')
  for (const [leaf, row] of leaves.entries()) for (const { range } of rows[row]!) mark(range, leaf)

  const captionText = caption === undefined ? '' : textOf(caption)
  const named = captionText === '' ? headingAbove(tokens, range[0]) : captionText
  const content: TableContent = {
    modality: 'table',
    ...(title !== '' && { title }),
    ...(named !== '' && { caption: named }),
    header: headerAt === undefined ? [] : cellsOf(headerAt),
    rows: leaves.map(cellsOf),
  }
  return { content, partOf: (token) => parts.get(token) }
}

/** No page has a table as large; `colspan` makes many cells of few bytes. */
const MOST_CELLS = 1e6

interface Cell {
  /** Without the tags of the cell. */
  range: TokenRange
  isHeader: boolean
  columns: number
}

function partsOf(
  tokens: readonly PageToken[],
  [start, end]: TokenRange,
): { caption: TokenRange | undefined; rows: Cell[][] } {
  const rows: Cell[][] = []
  let caption: TokenRange | undefined
  let captionStart: number | undefined
  let row: Cell[] | undefined
  let cell: Cell | undefined
  let depth = 0
  const endCell = (at: number): void => {
    if (cell !== undefined) cell.range[1] = at
    cell = undefined
  }
  const endCaption = (at: number): void => {
    if (captionStart !== undefined) caption ??= [captionStart, at]
    captionStart = undefined
  }
  const startRow = (): Cell[] => {
    const cells: Cell[] = []
    rows.push(cells)
    return cells
  }
  const startCell = (at: number, isHeader: boolean, columns: number): void => {
    row ??= startRow()
    cell = { range: [at, end], isHeader, columns }
    row.push(cell)
  }
  const last = tagOf(tokens[end - 1]!)?.opens === false ? end - 1 : end
  for (let i = start + 1; i < last; i++) {
    const tag = tagOf(tokens[i]!)
    if (tag === undefined || tag.name === 'table') {
      const isText = tag === undefined && !tokens[i]!.html && tokens[i]!.token.trim() !== ''
      if ((isText || tag?.opens) && row !== undefined && cell === undefined) startCell(i, false, 1)
      if (tag !== undefined) depth = Math.max(0, depth + (tag.opens ? 1 : -1))
    } else if (depth > 0) {
      // a nested table is text of its cell
    } else if (tag.name === 'caption') {
      if (tag.opens) captionStart = i + 1
      else endCaption(i)
    } else if (tag.name === 'tr') {
      endCell(i)
      endCaption(i)
      row = tag.opens ? startRow() : undefined
    } else if (tag.name === 'td' || tag.name === 'th') {
      endCell(i)
      endCaption(i)
      if (tag.opens) startCell(i + 1, tag.name === 'th', tag.columns)
    }
  }
  endCell(last)
  endCaption(last)
  return { caption, rows }
}

function headerRow(rows: readonly Cell[][], texts: readonly string[][]): number | undefined {
  const filled = (row: number): Cell[] => rows[row]!.filter((_, i) => texts[row]![i] !== '')
  const first = rows.findIndex((_, row) => filled(row).length > 1)
  const row = first < 0 ? rows.findIndex((_, at) => filled(at).length > 0) : first
  if (row < 0 || row === rows.length - 1) return undefined
  return filled(row).every((cell) => cell.isHeader) ? row : undefined
}

/** The heading before a token, without the `(edit)` that pages set behind theirs; the page's own, `<H1>`, is its title. */
function headingAbove(tokens: readonly PageToken[], before: number): string {
  let end: number | undefined
  for (let i = before - 1; i >= 0; i--) {
    const tag = tagOf(tokens[i]!)
    if (tag === undefined || !/^h[2-6]$/.test(tag.name)) continue
    if (!tag.opens) end = i
    else if (end !== undefined) {
      return detokenise(tokens.slice(i + 1, end))
        .text.replace(/\s*[([]\s*edit\s*[)\]]$/, '')
        .trim()
    }
  }
  return ''
}

interface Tag {
  /** In lower case. */
  name: string
  opens: boolean
  /** What `colspan` says, else 1. */
  columns: number
}

/** HTML's own bound: a larger number counts as this. */
const MOST_COLUMNS = 1000

/** A tag as the forms write it: `<Td colspan="2">`, or `<Td_colspan="2">`. */
function tagOf({ token, html }: PageToken): Tag | undefined {
  if (!html) return undefined
  const [, slash, name, attributes] = /^<(\/?)([a-z][a-z0-9]*)([^>]*)>$/i.exec(token) ?? []
  if (name === undefined) return undefined
  const columns = Number(/[\s_]colspan="?(\d+)/i.exec(attributes ?? '')?.[1] ?? 1)
  return { name: name.toLowerCase(), opens: slash === '', columns: Math.min(Math.max(1, columns), MOST_COLUMNS) }
}

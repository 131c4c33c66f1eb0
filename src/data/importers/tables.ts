import { decode } from 'html-entities'
import { z } from 'zod'
import type { TableItem } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { contentId } from '../ids.ts'
import type { Place } from '../schema.ts'

/** A table before it has an id; `rows` may be empty still. */
export type TableContent = Omit<TableItem, 'id'>

/** A cell of OTT-QA's tables: its text and the links in it; the copies without links have the text alone. */
const cell = z.union(
  [
    z
      .tuple([z.string()])
      .rest(z.unknown())
      .transform(([text]) => text),
    z.string(),
  ],
  {
    error: 'expected a cell: [text, [link, …]]',
  },
)

/** OTT-QA's and HybridQA's table files: `title`, `section_title`, `header` and `data`, cell by cell. */
export const ottqaTableSchema = z.object({
  title: z.string(),
  section_title: z.string().optional(),
  header: z.array(cell),
  data: z.array(z.array(cell)),
})

/** Title and section as title and caption, HTML entities decoded; cells as they are written. */
export function ottqaTable({ title, section_title, header, data }: z.infer<typeof ottqaTableSchema>): TableContent {
  return tableContent(title, section_title ?? '', header, data)
}

export function tableContent(title: string, caption: string, header: string[], rows: string[][]): TableContent {
  return {
    modality: 'table',
    ...(title.trim() !== '' && { title: decode(title).trim() }),
    ...(caption.trim() !== '' && { caption: decode(caption).trim() }),
    header,
    rows,
  }
}

export function tableItem(content: TableContent): TableItem {
  return { id: contentId(content), ...content }
}

/**
 * The row of a cell that gold names by its indices, counted from 0 below the header.
 *
 * @param where the question and the table, for the message
 * @throws InputError when the table has no such cell
 */
export function rowOfCell(
  table: TableContent,
  [row, column]: readonly [number, number],
  where: string,
  place: Place,
): number {
  const cells = table.rows[row]
  if (cells !== undefined && column >= 0 && column < Math.max(cells.length, table.header.length)) return row
  const size = `${table.rows.length} rows and ${table.header.length} columns`
  throw new InputError(
    `${where}: the cell [${row}, ${column}] is not there; the table has ${size}, counted from 0`,
    place,
  )
}

import { writeFileSync } from 'node:fs'
import { type ParquetWriteOptions, parquetWriteBuffer } from 'hyparquet-writer'

type SchemaElement = NonNullable<ParquetWriteOptions['schema']>[number]

/** A column: a plain type, a list `[of]`, or a struct `{ name: column }`. */
export type ColumnType =
  | 'string'
  | 'int32'
  | 'int64'
  | 'boolean'
  | 'double'
  | [ColumnType]
  | { [name: string]: ColumnType }

const PLAIN: Record<string, Partial<SchemaElement>> = {
  string: { type: 'BYTE_ARRAY', converted_type: 'UTF8' },
  int32: { type: 'INT32' },
  int64: { type: 'INT64' },
  boolean: { type: 'BOOLEAN' },
  double: { type: 'DOUBLE' },
}

/** The column as Arrow writes it: every level optional, lists as `list.element`. */
function elements(name: string, type: ColumnType): SchemaElement[] {
  const optional = { name, repetition_type: 'OPTIONAL' as const }
  if (typeof type === 'string') return [{ ...optional, ...PLAIN[type] }]
  if (Array.isArray(type))
    return [
      { ...optional, num_children: 1, converted_type: 'LIST' },
      { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
      ...elements('element', type[0]),
    ]
  const fields = Object.entries(type)
  return [{ ...optional, num_children: fields.length }, ...fields.flatMap(([field, of]) => elements(field, of))]
}

export type ParquetOptions = Omit<ParquetWriteOptions, 'writer' | 'columnData' | 'schema'>

export function parquetBytes(
  rows: Record<string, unknown>[],
  columns: Record<string, ColumnType>,
  options: ParquetOptions = {},
): Buffer {
  const bytes = parquetWriteBuffer({
    schema: [
      { name: 'schema', num_children: Object.keys(columns).length },
      ...Object.entries(columns).flatMap(([name, type]) => elements(name, type)),
    ],
    columnData: Object.keys(columns).map((name) => ({ name, data: rows.map((row) => row[name] ?? null) })),
    ...options,
  })
  return Buffer.from(bytes)
}

export function writeParquet(file: string, ...rest: Parameters<typeof parquetBytes>): void {
  writeFileSync(file, parquetBytes(...rest))
}

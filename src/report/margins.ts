import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { z } from 'zod'
import { MARGIN_METRICS, MARGINS_FILE, type MarginPoint, MODEL_ENCODERS } from '../eval/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'

const number = z.string().transform((text, context) => {
  const value = Number(text)
  if (text.trim() !== '' && Number.isFinite(value)) return value
  context.addIssue({ code: 'custom', message: `is ${JSON.stringify(text)}, not a number` })
  return z.NEVER
})
const missing = z.literal('').transform(() => null)
const estimate = z.union([missing, number])

const rowSchema = z.object({
  benchmark: z.string(),
  encoder: z.enum(MODEL_ENCODERS),
  n: number,
  margin: number,
  ...Object.fromEntries(MARGIN_METRICS.flatMap((m) => [m, `${m}_lo`, `${m}_hi`]).map((name) => [name, estimate])),
})

/**
 * The curve over margins of an evaluation; none where an older version evaluated, which wrote no such file.
 *
 * @throws InputError with file and line for a file that is not as evaluation writes it
 */
export async function readMargins(folder: string): Promise<MarginPoint[]> {
  const file = join(folder, MARGINS_FILE)
  let text: string
  try {
    text = await readFile(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return []
    throw fileError(error, 'cannot read the results', file)
  }
  const [header = [], ...rows] = records(text)
  return rows.map((cells, i) => {
    const parsed = rowSchema.safeParse(Object.fromEntries(header.map((name, c) => [name, cells[c]])))
    if (!parsed.success) {
      const issue = parsed.error.issues[0]
      throw new InputError(
        `Not a table of margins: "${issue?.path.join('.')}" ${issue?.message}. Evaluate again, or delete it to do without.`,
        { file, line: i + 2 },
      )
    }
    const { benchmark, encoder, margin, n, ...values } = parsed.data
    const of = (name: string): number | null => (values as Record<string, number | null>)[name] ?? null
    return {
      benchmark,
      encoder,
      margin,
      metrics: Object.fromEntries(
        MARGIN_METRICS.map((name) => [name, { value: of(name), lo: of(`${name}_lo`), hi: of(`${name}_hi`), n }]),
      ),
    }
  })
}

/** The records of a file of comma-separated values as csv-stringify writes it: a cell with a comma, a quote or a line end is quoted. */
function records(text: string): string[][] {
  const found: string[][] = []
  let record: string[] = []
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/g)) {
    if (end === '' && record.length === 0 && quoted === undefined && plain === '') break
    record.push(quoted?.replaceAll('""', '"') ?? plain!)
    if (end === ',') continue
    found.push(record)
    record = []
  }
  return found
}

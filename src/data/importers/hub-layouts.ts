/**
 * Records of the hub's copies of the benchmarks, as the official files have them: Parquet rows, or JSON Lines made of such rows.
 * What is in no known layout is passed on as it is, for the importer to say what is wrong with it.
 *
 * Layouts, by their data set cards and the readers of them: `hotpotqa/hotpot_qa` and copies of 2WikiMultihopQA (columns of
 * structs of lists), `xanhho/2WikiMultihopQA` (columns of JSON text), `google-research-datasets/natural_questions`.
 */

type Fields = Record<string, unknown>

const fields = (value: unknown): Fields | undefined =>
  value !== null && typeof value === 'object' && !Array.isArray(value) ? (value as Fields) : undefined

/** `{a: [1, 2], b: [3, 4]}` as `[[1, 3], [2, 4]]`; also `[{a: 1, b: 3}, {a: 2, b: 4}]`. `undefined` when it is neither. */
function tuples(value: unknown, names: readonly string[]): unknown[][] | undefined {
  if (Array.isArray(value)) {
    const rows = value.map((element) => {
      const row = fields(element)
      return row === undefined || !names.every((name) => name in row) ? undefined : names.map((name) => row[name])
    })
    return rows.every((row) => row !== undefined) ? rows : undefined
  }
  const struct = fields(value)
  const columns = names.map((name) => struct?.[name])
  const [first] = columns
  if (!Array.isArray(first) || !columns.every((column) => Array.isArray(column) && column.length === first.length))
    return undefined
  return first.map((_, i) => columns.map((column) => (column as unknown[])[i]))
}

/** `value` read as JSON when it is text that begins a list or an object. */
function parsed(value: unknown): unknown {
  if (typeof value !== 'string' || !/^\s*[[{]/.test(value)) return value
  try {
    return JSON.parse(value)
  } catch {
    return value
  }
}

/**
 * A row of HotpotQA or 2WikiMultihopQA with `context` as [[title, [sentence, …]], …] and `supporting_facts` as [[title, index],
 * …].
 */
export function paragraphRecord(value: unknown): unknown {
  const row = fields(value)
  if (row === undefined) return value
  const context = parsed(row.context)
  const facts = parsed(row.supporting_facts)
  return {
    ...row,
    ...('context' in row && {
      context: tuples(context, ['title', 'sentences']) ?? tuples(context, ['title', 'content']) ?? context,
    }),
    ...('supporting_facts' in row && { supporting_facts: tuples(facts, ['title', 'sent_id']) ?? facts }),
  }
}

/** The columns of the hub's Natural Questions that are not read: nine tenths of the files. */
export const NQ_UNREAD: readonly string[] = [
  'document.html',
  'document.tokens.start_byte',
  'document.tokens.end_byte',
  'question.tokens',
  'long_answer_candidates',
]

/**
 * A row of `google-research-datasets/natural_questions` (`id`, `document`, `question`, `annotations`) as a record of the official
 * original format (`example_id`, `question_text`, `document_tokens`, `annotations` with token ranges).
 */
export function pageRecord(value: unknown): unknown {
  const row = fields(value)
  const document = fields(row?.document)
  const tokens = tuples(document?.tokens, ['token', 'is_html'])
  const question = fields(row?.question)
  if (row === undefined || document === undefined || tokens === undefined || question === undefined) return value
  const annotations = tuples(row.annotations, ['long_answer', 'short_answers'])
  return {
    example_id: row.id,
    question_text: question.text,
    document_title: document.title,
    document_url: document.url,
    document_tokens: tokens.map(([token, html]) => ({ token, html_token: html })),
    annotations:
      annotations?.map(([long, shorts]) => ({
        long_answer: long,
        short_answers:
          tuples(shorts, ['start_token', 'end_token'])?.map(([start, end]) => ({
            start_token: start,
            end_token: end,
          })) ?? shorts,
      })) ?? row.annotations,
  }
}

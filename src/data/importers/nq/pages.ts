import { decode } from 'html-entities'
import { z } from 'zod'
import { InputError } from '../../../support/errors.ts'
import { type Place, parseWith } from '../../schema.ts'
import type { PageToken } from '../detokenise.ts'

/** Token indices of a page, `[start, end)`. */
export type TokenRange = [number, number]

/** What one annotator marked. */
export interface Annotation {
  long: TokenRange
  shorts: TokenRange[]
}

export interface PageQuestion {
  id: string
  question: string
  /** Of those annotators who found a long answer. */
  annotations: Annotation[]
}

/** A page in the one form that the published ones are brought into; its annotations lie inside of it. */
export interface Page {
  title: string
  tokens: PageToken[]
  questions: PageQuestion[]
}

const officialId = z.union([z.string().min(1), z.number()])
const tokenRange = z.object({ start_token: z.number().int(), end_token: z.number().int() })
const annotationsSchema = z.array(z.object({ long_answer: tokenRange, short_answers: z.array(tokenRange) }))
const pageFields = {
  example_id: officialId,
  question_text: z.string().min(1),
  document_title: z.string().optional(),
  document_url: z.string().optional(),
  annotations: annotationsSchema,
}
const originalSchema = z.object({
  ...pageFields,
  document_tokens: z.array(z.object({ token: z.string(), html_token: z.boolean() })),
})
const simplifiedSchema = z.object({ ...pageFields, document_text: z.string() })

type PageRecord = Pick<
  z.infer<typeof simplifiedSchema>,
  'example_id' | 'question_text' | 'document_title' | 'document_url' | 'annotations'
>

/** A record of the original files, with `document_tokens`. */
export function originalPage(value: unknown, place: Place): Page {
  const record = parseWith(originalSchema, value, place, 'original nq record')
  const tokens = record.document_tokens.map(({ token, html_token }) => ({ token, html: html_token }))
  return officialPage(record, tokens, place)
}

/** A record of the simplified files, with `document_text`. */
export function simplifiedPage(value: unknown, place: Place): Page {
  const record = parseWith(simplifiedSchema, value, place, 'simplified nq record')
  const tokens = record.document_text.split(' ').map((token) => ({ token, html: TAG.test(token) }))
  return officialPage(record, tokens, place)
}

/** A tag as the simplified form writes it, its blanks replaced by `_`; a lone `<` is text. */
const TAG = /^<\/?[A-Za-z][^<>]*>$/

function officialPage(record: PageRecord, tokens: PageToken[], place: Place): Page {
  const range = ({ start_token, end_token }: z.infer<typeof tokenRange>): TokenRange => [start_token, end_token]
  const annotations = record.annotations
    .filter(({ long_answer }) => long_answer.start_token !== NO_ANSWER)
    .map(({ long_answer, short_answers }) => ({ long: range(long_answer), shorts: short_answers.map(range) }))
  const page = {
    title: pageTitle(record.document_title, record.document_url),
    tokens,
    questions: [{ id: String(record.example_id), question: record.question_text, annotations }],
  }
  requireRanges(page, place)
  return page
}

/** Stands for the start of a long answer where an annotator found none. */
const NO_ANSWER = -1

const multiqaAnswer = z.object({
  instances: z.array(z.object({ token_inds: z.tuple([z.number().int(), z.number().int()]) })),
})
const multiqaSchema = z.object({
  title: z.string().optional(),
  url: z.string().optional(),
  tokens: z.array(z.string()),
  is_html_token: z.array(z.union([z.number(), z.boolean()])),
  qas: z.array(
    z.object({
      qid: officialId,
      question: z.string().min(1),
      answers: z.object({
        'open-ended': z.object({
          answer_candidates: z.array(
            z.object({
              metadata: z.object({ long_answer: tokenRange }).optional(),
              extractive: z
                .object({ single_answer: multiqaAnswer.optional(), list_answer: z.array(multiqaAnswer).optional() })
                .optional(),
            }),
          ),
        }),
      }),
    }),
  ),
})

/** A record of MultiQA's copy, with `tokens` and `qas`. */
export function multiqaPage(value: unknown, place: Place): Page {
  const record = parseWith(multiqaSchema, value, place, 'MultiQA nq record')
  if (record.tokens.length !== record.is_html_token.length) {
    throw new InputError(
      `"tokens" has ${record.tokens.length} entries and "is_html_token" ${record.is_html_token.length}; one each was expected`,
      place,
    )
  }
  const page = {
    title: pageTitle(record.title, record.url),
    tokens: record.tokens.map((token, i) => ({ token, html: Boolean(record.is_html_token[i]) })),
    questions: record.qas.map(({ qid, question, answers }) => ({
      id: String(qid),
      question,
      annotations: answers['open-ended'].answer_candidates.flatMap(({ metadata, extractive }): Annotation[] => {
        if (metadata === undefined || metadata.long_answer.start_token === NO_ANSWER) return []
        const found = [extractive?.single_answer ?? [], extractive?.list_answer ?? []].flat()
        // MultiQA's ranges include their last token
        const shorts = found.flatMap(({ instances }) =>
          instances.map((i): TokenRange => [i.token_inds[0], i.token_inds[1] + 1]),
        )
        return [{ long: [metadata.long_answer.start_token, metadata.long_answer.end_token], shorts }]
      }),
    })),
  }
  requireRanges(page, place)
  return page
}

function requireRanges(page: Page, place: Place): void {
  const require = ([start, end]: TokenRange, what: string): void => {
    if (start >= 0 && end > start && end <= page.tokens.length) return
    throw new InputError(`${what} is tokens [${start}, ${end}), the page has ${page.tokens.length}`, place)
  }
  for (const { id, annotations } of page.questions) {
    for (const { long, shorts } of annotations) {
      require(long, `the long answer of "${id}"`)
      for (const short of shorts) require(short, `a short answer of "${id}"`)
    }
  }
}

/** `Trade_winds` in `https://en.wikipedia.org//w/index.php?title=Trade_winds&amp;oldid=817251427` or `…/wiki/Trade_winds`. */
function pageTitle(title: string | undefined, url: string | undefined): string {
  if (title !== undefined && title.trim() !== '') return decode(title).trim()
  const address = decode(url ?? '')
  const written = /[?&]title=([^&#]*)/.exec(address)?.[1] ?? /\/wiki\/([^?#]+)/.exec(address)?.[1] ?? ''
  let name = written
  try {
    name = decodeURIComponent(written)
  } catch {
    // a percent sign that stands for itself
  }
  return name.replaceAll('_', ' ').trim()
}

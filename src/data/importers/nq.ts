import { decode } from 'html-entities'
import { z } from 'zod'
import { type Question, SEGMENTER_VERSION, segmentSentences, type TextItem } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { contentId, sha256 } from '../ids.ts'
import { canonicalJson } from '../json.ts'
import { readRecords } from '../jsonl.ts'
import { type Place, parseWith } from '../schema.ts'
import {
  goldFromSpans,
  type ImportJob,
  type ImportOptions,
  type ImportSummary,
  runImport,
  uniqueSpans,
} from './common.ts'
import { detokenise, type PageToken } from './detokenise.ts'

/**
 * Imports Natural Questions, in the form that each record shows (one JSON object a line):
 *
 * - **long and short answers** (`question`, `nq_annotated_gold`: `title`, `long_answer`, `short_answers`): the long answer is
 *   the item; gold is every case-sensitive occurrence of a short answer with no letter or digit on either side. Other
 *   passages of `ctxs` become items of `retrieved`.
 * - **the official pages**, simplified (`document_text`) and original (`document_tokens`), and MultiQA's form of them
 *   (`tokens`, `qas`; its token indices are read, its answer texts are not): the item is an annotated long answer, its tokens
 *   put together by {@link detokenise}; gold are the token ranges of the short answers. Annotators who agree on a long answer
 *   are merged; different long answers are different items of one question.
 *
 * A question's `source` is the page's title: `document_title`, or the one in `document_url`. What has no short answer to
 * be found is dropped and counted. Sentences are found by the segmenter.
 *
 * @throws InputError with file and line: a broken record, a token range outside of its page
 */
export function importNq(options: ImportOptions & { split: string }): Promise<ImportSummary> {
  const target = {
    benchmark: BENCHMARK,
    segmenter: SEGMENTER_VERSION,
    source: 'Natural Questions (Kwiatkowski et al. 2019)',
    licence: 'CC BY-SA 3.0',
  }
  return runImport('nq', options, target, async (job) => {
    for (const file of options.inputs) {
      for await (const { value, line } of readRecords(file, job.reading)) {
        await job.record(() => importRecord(value, { file, line }, options.split, job))
      }
    }
  })
}

const BENCHMARK = 'nq'

function importRecord(value: unknown, place: Place, split: string, job: ImportJob): Promise<void> {
  const keys = value !== null && typeof value === 'object' ? value : {}
  if ('nq_annotated_gold' in keys) return importAnswers(value, place, split, job)
  if ('document_tokens' in keys) return importPage(originalPage(value, place), place, split, job)
  if ('document_text' in keys) return importPage(simplifiedPage(value, place), place, split, job)
  if ('tokens' in keys && 'qas' in keys) return importPage(multiqaPage(value, place), place, split, job)
  throw new InputError(
    'no known form of a Natural Questions record: "nq_annotated_gold", "document_text", "document_tokens" or "tokens" with "qas" was expected',
    place,
  )
}

function textItem(title: string, text: string): TextItem {
  const content = { modality: 'text' as const, ...(title === '' ? {} : { title }), text }
  return { id: contentId(content), ...content, sentences: segmentSentences(text) }
}

const answersSchema = z.object({
  id: z.union([z.string().min(1), z.number()]).optional(),
  question: z.string().min(1),
  answers: z.array(z.string()).optional(),
  ctxs: z
    .array(z.object({ title: z.string().optional(), text: z.string(), isgold: z.boolean().optional() }))
    .optional(),
  nq_annotated_gold: z.object({
    title: z.string(),
    long_answer: z.string(),
    short_answers: z.array(z.string()),
  }),
})

async function importAnswers(value: unknown, place: Place, split: string, job: ImportJob): Promise<void> {
  const record = parseWith(answersSchema, value, place, 'nq record')
  const { long_answer: text, short_answers: shorts } = record.nq_annotated_gold
  const title = decode(record.nq_annotated_gold.title)
  const spans = uniqueSpans(shorts.flatMap((answer) => wholeOccurrences(text, answer)))
  if (spans.length === 0) {
    job.drop('record', 'no short answer stands in the long answer', place, JSON.stringify(shorts.slice(0, 3)))
    return
  }
  const item = textItem(title, text)
  await job.addItem(item, place)
  const others: string[] = []
  for (const passage of record.ctxs ?? []) {
    if (passage.isgold !== false) continue
    if (passage.text.trim() === '') {
      job.drop('item', 'a passage without text', place)
      continue
    }
    const other = textItem(decode(passage.title ?? ''), passage.text)
    await job.addItem(other, place)
    others.push(other.id)
  }
  const content = { question: record.question, item: item.id, shorts }
  await job.addQuestion(
    {
      id: record.id === undefined ? sha256(canonicalJson(content)).toString('hex').slice(0, 32) : String(record.id),
      benchmark: BENCHMARK,
      split,
      question: record.question,
      answers: record.answers ?? shorts,
      ...(title.trim() !== '' && { source: title }),
      gold: [{ item: item.id, spans }],
      ...(others.length > 0 && { retrieved: [...new Set([item.id, ...others])] }),
    },
    place,
  )
}

const LETTER_OR_DIGIT = /[\p{L}\p{N}]/u

/** Every place where `answer` stands in `text`, case and all, without a letter or digit before or behind it. */
export function wholeOccurrences(text: string, answer: string): [number, number][] {
  if (answer.trim() === '') return []
  const places: [number, number][] = []
  for (let start = text.indexOf(answer); start >= 0; start = text.indexOf(answer, start + 1)) {
    const end = start + answer.length
    const before = /[\s\S]$/u.exec(text.slice(Math.max(0, start - 2), start))?.[0] ?? ''
    const behind = end < text.length ? String.fromCodePoint(text.codePointAt(end)!) : ''
    if (!LETTER_OR_DIGIT.test(before) && !LETTER_OR_DIGIT.test(behind)) places.push([start, end])
  }
  return places
}

/** Token indices, `[start, end)`. */
type Range = [number, number]

interface Annotation {
  long: Range
  shorts: Range[]
}

/** A page in the one form that the three official ones are brought into. */
interface Page {
  title: string
  tokens: PageToken[]
  questions: { id: string; question: string; annotations: Annotation[] }[]
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

function originalPage(value: unknown, place: Place): Page {
  const record = parseWith(originalSchema, value, place, 'original nq record')
  const tokens = record.document_tokens.map(({ token, html_token }) => ({ token, html: html_token }))
  return officialPage(record, tokens)
}

function simplifiedPage(value: unknown, place: Place): Page {
  const record = parseWith(simplifiedSchema, value, place, 'simplified nq record')
  const tokens = record.document_text.split(' ').map((token) => ({ token, html: TAG.test(token) }))
  return officialPage(record, tokens)
}

/** A tag as the simplified form writes it, its blanks replaced by `_`; a lone `<` is text. */
const TAG = /^<\/?[A-Za-z][^<>]*>$/

function officialPage(record: PageRecord, tokens: PageToken[]): Page {
  const range = ({ start_token, end_token }: z.infer<typeof tokenRange>): Range => [start_token, end_token]
  const annotations = record.annotations
    .filter(({ long_answer }) => long_answer.start_token >= 0)
    .map(({ long_answer, short_answers }) => ({ long: range(long_answer), shorts: short_answers.map(range) }))
  return {
    title: pageTitle(record.document_title, record.document_url),
    tokens,
    questions: [{ id: String(record.example_id), question: record.question_text, annotations }],
  }
}

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

function multiqaPage(value: unknown, place: Place): Page {
  const record = parseWith(multiqaSchema, value, place, 'MultiQA nq record')
  if (record.tokens.length !== record.is_html_token.length) {
    throw new InputError(
      `"tokens" has ${record.tokens.length} entries and "is_html_token" ${record.is_html_token.length}; one each was expected`,
      place,
    )
  }
  return {
    title: pageTitle(record.title, record.url),
    tokens: record.tokens.map((token, i) => ({ token, html: Boolean(record.is_html_token[i]) })),
    questions: record.qas.map(({ qid, question, answers }) => ({
      id: String(qid),
      question,
      annotations: answers['open-ended'].answer_candidates.flatMap(({ metadata, extractive }): Annotation[] => {
        if (metadata === undefined || metadata.long_answer.start_token < 0) return []
        const found = [extractive?.single_answer ?? [], extractive?.list_answer ?? []].flat()
        // MultiQA's ranges include their last token
        const shorts = found.flatMap(({ instances }) =>
          instances.map((i): Range => [i.token_inds[0], i.token_inds[1] + 1]),
        )
        return [{ long: [metadata.long_answer.start_token, metadata.long_answer.end_token], shorts }]
      }),
    })),
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

async function importPage(page: Page, place: Place, split: string, job: ImportJob): Promise<void> {
  for (const { id, question, annotations } of page.questions) {
    const byRange = new Map<string, Annotation>()
    for (const { long, shorts } of annotations) {
      requireRange(long, page, `the long answer of "${id}"`, place)
      const agreed = byRange.get(String(long)) ?? { long, shorts: [] }
      agreed.shorts.push(...shorts)
      byRange.set(String(long), agreed)
    }
    if (byRange.size === 0) {
      job.drop('question', 'no annotator found a long answer', place, `"${id}"`)
      continue
    }
    const items = new Map<string, TextItem>()
    const found: { item: string; span: [number, number] }[] = []
    for (const { long, shorts } of byRange.values()) {
      const { text, spans } = detokenise(page.tokens.slice(...long))
      const located = shorts.flatMap((short) => {
        requireRange(short, page, `a short answer of "${id}"`, place)
        const span = spanOf(spans, short[0] - long[0], short[1] - long[0])
        if (span === undefined) {
          job.drop(
            'annotation',
            'a short answer without text in its long answer',
            place,
            `tokens [${short}) of "${id}"`,
          )
        }
        return span === undefined ? [] : [span]
      })
      if (located.length === 0) {
        job.drop('item', 'a long answer without a short answer', place, `tokens [${long}) of "${id}"`)
        continue
      }
      const item = textItem(page.title, text)
      items.set(item.id, item)
      found.push(...located.map((span) => ({ item: item.id, span })))
    }
    const gold = goldFromSpans(found)
    if (gold.length === 0) {
      job.drop('question', 'no short answer', place, `"${id}"`)
      continue
    }
    for (const item of items.values()) await job.addItem(item, place)
    const answers = new Set(found.map(({ item, span }) => items.get(item)!.text.slice(...span)))
    const entry: Question = { id, benchmark: BENCHMARK, split, question, answers: [...answers], gold }
    await job.addQuestion(page.title === '' ? entry : { ...entry, source: page.title }, place)
  }
}

function requireRange([start, end]: Range, page: Page, what: string, place: Place): void {
  if (start >= 0 && end > start && end <= page.tokens.length) return
  throw new InputError(`${what} is tokens [${start}, ${end}), the page has ${page.tokens.length}`, place)
}

/** From the first to the last token of `[start, end)` that has text. */
function spanOf(spans: ([number, number] | undefined)[], start: number, end: number): [number, number] | undefined {
  const covered = spans.slice(Math.max(0, start), Math.max(0, end)).filter((span) => span !== undefined)
  return covered.length === 0 ? undefined : [covered[0]![0], covered.at(-1)![1]]
}

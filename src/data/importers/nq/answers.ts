import { decode } from 'html-entities'
import { z } from 'zod'
import { segmentSentences, type TextItem } from '../../../hierarchy/index.ts'
import { sha256 } from '../../hashes.ts'
import { contentId } from '../../ids.ts'
import { canonicalJson } from '../../json.ts'
import { type Place, parseWith } from '../../schema.ts'
import { type ImportJob, uniqueSpans } from '../common.ts'

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

/** Imports a record of a long answer and the short answers in it. */
export async function importAnswers(value: unknown, place: Place, split: string, job: ImportJob): Promise<void> {
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
      benchmark: 'nq',
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

function textItem(title: string, text: string): TextItem {
  const content = { modality: 'text' as const, ...(title === '' ? {} : { title }), text }
  return { id: contentId(content), ...content, sentences: segmentSentences(text) }
}

import { decode } from 'html-entities'
import { z } from 'zod'
import type { Question, TextItem } from '../../hierarchy/index.ts'
import { InputError } from '../../support/errors.ts'
import { contentId } from '../ids.ts'
import { readRecords } from '../jsonl.ts'
import { type Place, parseWith } from '../schema.ts'
import { goldFromSpans, type ImportJob, type ImportOptions, type ImportSummary, runImport } from './common.ts'
import { paragraphRecord } from './hub-layouts.ts'

const recordId = z.union([z.string().min(1), z.number()], { error: 'expected a string that is not empty' })

const recordSchema = z.object({
  _id: recordId.optional(),
  id: recordId.optional(),
  question: z.string().min(1),
  answer: z.union([z.string(), z.number()]).transform(String).optional(),
  context: z.array(z.tuple([z.string(), z.array(z.string())]), { error: 'expected [[title, [sentence, …]], …]' }),
  supporting_facts: z
    .array(z.tuple([z.string(), z.number().int()]), { error: 'expected [[title, sentence index], …]' })
    .optional(),
})

interface Format {
  benchmark: string
  /** What stands between two sentences of a paragraph: HotpotQA's carry their own blanks, 2Wiki's do not. */
  joint: string
  source: string
  licence?: string
}

const HOTPOTQA: Format = {
  benchmark: 'hotpotqa',
  joint: '',
  source: 'HotpotQA (Yang et al. 2018), official record format',
  licence: 'CC BY-SA 4.0',
}
const TWO_WIKI: Format = { benchmark: '2wiki', joint: ' ', source: '2WikiMultihopQA (Ho et al. 2020)' }

/**
 * Imports files of the official HotpotQA format: one JSON array (or one object a line) of `_id`, `question`, `answer`,
 * `supporting_facts` [[title, sentence index], …] and `context` [[title, [sentence, …]], …]; the hub's copies of them, Parquet
 * included, are read too.
 *
 * Every paragraph with a visible character becomes an item, its sentences the leaves, and `retrieved` names them all. A
 * supporting fact is found by the title as it is written and by its index among all sentences, empty ones included; titles are
 * stored with HTML entities decoded. Where several paragraphs of a record share the title, the fact belongs to the one that
 * has such a sentence; where several have, its place is not known: it is dropped and counted, as is a fact that names an empty
 * sentence.
 *
 * @throws InputError with file and line: a broken record, a supporting fact that names no sentence, a second question of
 *   one id
 */
export function importHotpotqa(options: ImportOptions & { split: string }): Promise<ImportSummary> {
  return importParagraphs(HOTPOTQA, options)
}

/**
 * Imports 2WikiMultihopQA, whose records are those of HotpotQA, but for sentences without blanks between them. As
 * {@link importHotpotqa} in everything else.
 */
export function import2wiki(options: ImportOptions & { split: string }): Promise<ImportSummary> {
  return importParagraphs(TWO_WIKI, options)
}

function importParagraphs(format: Format, options: ImportOptions & { split: string }): Promise<ImportSummary> {
  return runImport(format.benchmark, options, format, async (job) => {
    for (const file of options.inputs) {
      for await (const { value, line } of readRecords(file, job.reading)) {
        await job.record(() => importRecord(value, { file, line }, format, options.split, job))
      }
    }
  })
}

interface Paragraph {
  /** As the record writes it. */
  title: string
  /** `undefined` for a paragraph without a visible character. */
  item: TextItem | undefined
  /** Sentence index of the source -> its span; `undefined` for an empty sentence. */
  spans: ([number, number] | undefined)[]
}

async function importRecord(
  value: unknown,
  place: Place,
  format: Format,
  split: string,
  job: ImportJob,
): Promise<void> {
  const record = parseWith(recordSchema, paragraphRecord(value), place, `${format.benchmark} record`)
  const id = record._id ?? record.id
  if (id === undefined) throw new InputError('the record has no "_id"', place)
  const paragraphs: Paragraph[] = []
  const seen = new Set<string>()
  for (const [title, sentences] of record.context) {
    const paragraph = toParagraph(title, sentences, format.joint)
    if (paragraph.item === undefined) job.drop('item', 'a paragraph without text', place, JSON.stringify(title))
    paragraphs.push(paragraph)
  }

  const annotations: { item: string; span: [number, number] }[] = []
  for (const [title, index] of record.supporting_facts ?? []) {
    const fact = `the supporting fact [${JSON.stringify(title)}, ${index}]`
    const found = sentencesNamed(paragraphs, title, index)
    if (found.length === 0) {
      const titled = paragraphs.filter((paragraph) => paragraph.title === title)
      const why =
        titled.length === 0
          ? 'no paragraph has that title'
          : `the paragraph has ${titled.map((p) => p.spans.length).join(' and ')} sentences, counted from 0`
      throw new InputError(`${fact} of question "${id}" names no sentence: ${why}`, place)
    }
    const visible = found.flatMap(({ item, span }) =>
      item === undefined || span === undefined ? [] : [{ item, span }],
    )
    const places = new Set(visible.map(({ item, span }) => `${item} ${span}`))
    if (places.size === 0) job.drop('annotation', 'a supporting fact that names an empty sentence', place, fact)
    else if (places.size > 1) {
      job.drop('annotation', 'a supporting fact that fits several paragraphs of one title', place, fact)
    } else annotations.push(visible[0]!)
  }
  const gold = goldFromSpans(annotations)
  if (gold.length === 0) {
    job.drop('question', 'without a supporting fact', place, `"${id}"`)
    return
  }

  const retrieved: string[] = []
  for (const { item } of paragraphs) {
    if (item === undefined || seen.has(item.id)) continue
    seen.add(item.id)
    retrieved.push(item.id)
    await job.addItem(item, place)
  }
  const question: Question = {
    id: String(id),
    benchmark: format.benchmark,
    split,
    question: record.question,
    answers: record.answer === undefined ? [] : [record.answer],
    gold,
    retrieved,
  }
  await job.addQuestion(question, place)
}

/** The paragraph as an item. Its sentences are stored without the white space around them, which belongs to no sentence. */
function toParagraph(title: string, sentences: string[], joint: string): Paragraph {
  const spans: Paragraph['spans'] = []
  let text = ''
  for (const sentence of sentences) {
    const visible = sentence.trim()
    // an empty sentence brings no joint of its own, or two blanks would stand where it was
    if (visible === '' && joint !== '') {
      spans.push(undefined)
      continue
    }
    if (text !== '') text += joint
    const start = text.length + sentence.length - sentence.trimStart().length
    spans.push(visible === '' ? undefined : [start, start + visible.length])
    text += sentence
  }
  if (text.trim() === '') return { title, item: undefined, spans }
  const content = {
    modality: 'text' as const,
    title: decode(title),
    text,
    sentences: spans.filter((span) => span !== undefined),
  }
  return { title, item: { id: contentId(content), ...content }, spans }
}

/** The sentences of that title and index; several when paragraphs share a title. */
function sentencesNamed(
  paragraphs: Paragraph[],
  title: string,
  index: number,
): { item: string | undefined; span: [number, number] | undefined }[] {
  return paragraphs
    .filter((paragraph) => paragraph.title === title && index >= 0 && index < paragraph.spans.length)
    .map((paragraph) => ({ item: paragraph.item?.id, span: paragraph.spans[index] }))
}

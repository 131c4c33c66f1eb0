import { type GoldEntry, type Item, type Question, segmentSentences, type TextItem } from '../../../hierarchy/index.ts'
import { contentId } from '../../ids.ts'
import type { Place } from '../../schema.ts'
import { type ImportJob, mergedGold, uniqueSpans } from '../common.ts'
import { detokenise } from '../detokenise.ts'
import { tableItem } from '../tables.ts'
import type { Annotation, Page, PageQuestion, TokenRange } from './pages.ts'
import { readTable, tableAround } from './tables.ts'

/** Imports the questions of a page: their annotated long answers as items, gold where the short answers' tokens stand. */
export async function importPage(page: Page, place: Place, split: string, job: ImportJob): Promise<void> {
  for (const question of page.questions) {
    const evidence = evidenceOf(question, page, place, job)
    if (evidence.length === 0) continue
    for (const { item } of evidence) await job.addItem(item, place)
    const entry: Question = {
      id: question.id,
      benchmark: 'nq',
      split,
      question: question.question,
      answers: [...new Set(evidence.flatMap(({ answers }) => answers))],
      // two long answers may be parts of one table, or equal
      gold: mergedGold(evidence.map(({ entry }) => entry)),
    }
    await job.addQuestion(page.title === '' ? entry : { ...entry, source: page.title }, place)
  }
}

/** A long answer as an item, and what its short answers mark of it. */
interface Evidence {
  item: Item
  entry: GoldEntry
  /** The short answers as text. */
  answers: string[]
}

function evidenceOf({ id, annotations }: PageQuestion, page: Page, place: Place, job: ImportJob): Evidence[] {
  if (annotations.length === 0) {
    job.drop('question', 'no annotator found a long answer', place, `"${id}"`)
    return []
  }
  const evidence: Evidence[] = []
  for (const agreed of byLongAnswer(annotations)) {
    const where = `tokens [${agreed.long}) of "${id}"`
    const dropShort = (reason: string, short: TokenRange): void =>
      job.drop('annotation', reason, place, `tokens [${short}) of "${id}"`)
    const table = tableAround(page.tokens, agreed.long)
    const found = table === undefined ? inText(page, agreed, dropShort) : inTable(page, agreed, table, place, dropShort)
    if (found === undefined) job.drop('item', 'a table without rows', place, where)
    else if (found.answers.length === 0) job.drop('item', 'a long answer without a short answer', place, where)
    else evidence.push(found)
  }
  if (evidence.length === 0) job.drop('question', 'no short answer', place, `"${id}"`)
  return evidence
}

/** One annotation for each long answer, with the short answers of all who agree on it. */
function byLongAnswer(annotations: readonly Annotation[]): Annotation[] {
  const byRange = new Map<string, Annotation>()
  for (const { long, shorts } of annotations) {
    const agreed = byRange.get(String(long)) ?? { long, shorts: [] }
    agreed.shorts.push(...shorts)
    byRange.set(String(long), agreed)
  }
  return [...byRange.values()]
}

type DropShort = (reason: string, short: TokenRange) => void

function inText(page: Page, { long, shorts }: Annotation, drop: DropShort): Evidence {
  const { text, spans } = detokenise(page.tokens.slice(...long))
  const found = shorts.flatMap((short): [number, number][] => {
    const covered = spans
      .slice(Math.max(0, short[0] - long[0]), Math.max(0, short[1] - long[0]))
      .filter((span) => span !== undefined)
    if (covered.length > 0) return [[covered[0]![0], covered.at(-1)![1]]]
    drop('a short answer without text in its long answer', short)
    return []
  })
  const item = textItem(page.title, text)
  return {
    item,
    entry: { item: item.id, spans: uniqueSpans(found) },
    answers: found.map((span) => text.slice(...span)),
  }
}

/** A text item of page text, in which every line is a block of the page: no sentence goes on from one to the next. */
function textItem(title: string, text: string): TextItem {
  const content = { modality: 'text' as const, ...(title !== '' && { title }), text }
  const sentences: [number, number][] = []
  let lineStart = 0
  for (const line of text.split('\n')) {
    for (const [start, end] of segmentSentences(line)) sentences.push([lineStart + start, lineStart + end])
    lineStart += line.length + 1
  }
  const whole = { ...content, sentences }
  return { id: contentId(whole), ...whole }
}

/** `undefined` when the table has no row, so no leaf. */
function inTable(
  page: Page,
  { shorts }: Annotation,
  range: TokenRange,
  place: Place,
  drop: DropShort,
): Evidence | undefined {
  const { content, partOf } = readTable(page.tokens, range, page.title, place)
  if (content.rows.length === 0) return undefined
  const rows = new Set<number>()
  const answers: string[] = []
  for (const short of shorts) {
    const parts = new Set<ReturnType<typeof partOf>>()
    for (let i = short[0]; i < short[1]; i++) {
      const { html, token } = page.tokens[i]!
      if (!html && token.trim() !== '') parts.add(partOf(i))
    }
    const inRows = [...parts].filter((part) => typeof part === 'number')
    for (const row of inRows) rows.add(row)
    if (inRows.length > 0) answers.push(detokenise(page.tokens.slice(...short)).text)
    else if (parts.has('header')) drop('a short answer in the header of its table', short)
    else if (parts.has('caption')) drop('a short answer in the caption of its table', short)
    else drop('a short answer outside of the rows of its table', short)
  }
  const item = tableItem(content)
  return { item, entry: { item: item.id, rows: [...rows].sort((a, b) => a - b) }, answers }
}

// What stands in articles.yaml, tables.yaml and media.yaml, as items with their leaves and questions.
//
// An entry is { subject, split, item, leaves, questions, locate }: `leaves` holds for each part of the item that gold can name
// (a sentence, a row, a scene, the whole picture) the words that a reader finds there, and `locate` turns numbers of parts
// into the fields of a gold entry. `always` is what stands over every part: the header of a table.

import { createHash } from 'node:crypto'

/** One article as an item whose leaves are its sentences. */
export function readArticle({ subject, split, title, text: lines, questions }) {
  const sentences = linesOf(lines)
  let start = 0
  const spans = sentences.map((sentence) => {
    const span = [start, start + sentence.length]
    start += sentence.length + 1
    return span
  })
  const item = withId({ modality: 'text', title, text: sentences.join(' '), sentences: spans })
  const locate = (gold) => ({ spans: gold.map((leaf) => spans[leaf]) })
  return { subject, split, item, leaves: sentences, questions, locate }
}

/** One table as an item whose leaves are its rows; the reader of a row sees the header too. */
export function readTable({ subject, split, title, caption, header: headerLine, rows: lines, questions }) {
  const header = cellsOf(headerLine)
  const rows = linesOf(lines).map(cellsOf)
  for (const row of rows) {
    if (row.length !== header.length)
      throw new Error(`${title}: a row of ${row.length} cells under ${header.length} columns: ${row.join(' | ')}`)
  }
  const item = withId({ modality: 'table', title, ...(caption !== undefined && { caption }), header, rows })
  const leaves = rows.map((row) => row.join(' '))
  return { subject, split, item, leaves, questions, locate: (rows) => ({ rows }), always: header.join(' ') }
}

/** A picture, of which gold is the whole, or a clip, of which gold is the time of scenes. */
export function readMedium({ subject, split, title, image, video, shows, scenes, seconds, questions }) {
  if (image !== undefined) {
    const item = withId({ modality: 'image', title, image })
    const whole = questions.map((question) => ({ ...question, gold: [0] }))
    return { subject, split, item, leaves: [shows], questions: whole, locate: () => ({ whole: true }) }
  }
  const item = withId({ modality: 'video', title, video, start: 0, end: seconds })
  const times = scenes.map(({ from }, i) => [from, scenes[i + 1]?.from ?? seconds])
  const locate = (gold) => ({ times: gold.map((scene) => times[scene]) })
  return { subject, split, item, leaves: scenes.map((scene) => scene.shows), questions, locate }
}

/** The content with the first 32 hexadecimal digits of the SHA-256 of its JSON with sorted keys before it. */
function withId(content) {
  const sorted = Object.fromEntries(Object.entries(content).sort(([a], [b]) => (a < b ? -1 : 1)))
  return { id: createHash('sha256').update(JSON.stringify(sorted)).digest('hex').slice(0, 32), ...content }
}

const linesOf = (text) => text.trimEnd().split('\n')

const cellsOf = (line) => line.split('|').map((cell) => cell.trim())

// Turns the cases of the CANOPY project page (trees, scores and gold, without text) into a dataset folder and a scores file that
// "canopy evaluate --scores" measures and "canopy report" shows:
//
//   node bench/published-cases.mjs cases.json /tmp/cases
//   canopy evaluate --scores /tmp/cases/scores.jsonl --dataset /tmp/cases/dataset --split published --output /tmp/cases/eval
//   canopy report /tmp/cases/eval --dataset /tmp/cases/dataset
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'

const SPLIT = 'published'

/**
 * @param {{ items: object[] }} cases content of the published file
 * @returns the lines of the dataset and of the scores
 */
export function publishedDataset({ items: cases }) {
  const items = cases.map((published, i) => itemOf(published, `case-${i + 1}`))
  // Cases of one question are the items of that question.
  const questions = []
  for (const [i, published] of cases.entries()) {
    const text = published.question ?? `(the question of "${published.title}" is not published)`
    const key = published.question ?? published.question_id ?? published.title
    let question = questions.find((one) => one.key === key)
    if (question === undefined) {
      question = {
        key,
        id: `published-${questions.length + 1}`,
        benchmark: published.benchmark,
        question: text,
        gold: [],
      }
      questions.push(question)
    }
    question.gold.push({ index: i, entry: goldOf(published, items[i]) })
  }
  const scores = questions.flatMap((question) =>
    question.gold.map(({ index }) => scoresOf(cases[index], question, items[index])),
  )
  return {
    items,
    questions: questions.map(({ id, benchmark, question, gold }) => ({
      id,
      benchmark,
      split: SPLIT,
      question,
      answers: [],
      gold: gold.map(({ entry }) => entry),
    })),
    scores,
  }
}

function itemOf({ kind, title, n_units: leaves, unit_seconds: seconds }, id) {
  const names = Array.from({ length: leaves }, (_, i) => i)
  if (kind === 'video') return { id, modality: 'video', title, start: seconds[0][0], end: seconds.at(-1)[1] }
  if (kind === 'table')
    return { id, modality: 'table', title, header: ['row'], rows: names.map((i) => [`r${i} (text not published)`]) }
  const sentences = names.map((i) => `s${i} (text not published).`)
  let end = -1
  const offsets = sentences.map((sentence) => {
    const start = end + 1
    end = start + sentence.length
    return [start, end]
  })
  return { id, modality: 'text', title, text: sentences.join(' '), sentences: offsets }
}

function goldOf({ kind, gold, unit_seconds: seconds }, item) {
  const leaves = gold.map((name) => Number(name.slice(1)))
  if (kind === 'video') return { item: item.id, times: leaves.map((leaf) => seconds[leaf]) }
  if (kind === 'table') return { item: item.id, rows: leaves }
  return { item: item.id, spans: leaves.map((leaf) => item.sentences[leaf]) }
}

function scoresOf({ tree, n_units: leaves }, { id, benchmark }, item) {
  const nodes = []
  const visit = ({ range, score, children = [] }) => {
    nodes.push({ range, score })
    for (const child of children) visit(child)
  }
  visit(tree)
  return {
    benchmark,
    question: id,
    item: item.id,
    nodes: nodes.map(({ range }) => range),
    scores: { 'fine-tuned': nodes.map(({ score }) => score) },
    leafTokens: new Array(leaves).fill(1),
  }
}

/** Writes the dataset and the scores below a folder. */
export async function writePublished(file, output) {
  const { items, questions, scores } = publishedDataset(JSON.parse(await readFile(file, 'utf8')))
  const lines = (values) => values.map((value) => `${JSON.stringify(value)}\n`).join('')
  const dataset = join(output, 'dataset')
  await mkdir(dataset, { recursive: true })
  await writeFile(join(dataset, 'items.jsonl'), lines(items))
  await writeFile(join(dataset, 'questions.jsonl'), lines(questions))
  const meta = {
    schema: 'canopy-dataset/1',
    name: 'published-cases',
    benchmark: 'published cases',
    splits: { [SPLIT]: { questions: questions.length } },
    counts: { items: items.length, questions: questions.length },
    source: 'CANOPY project page: trees, scores and gold; texts are not published',
  }
  await writeFile(join(dataset, 'dataset.json'), `${JSON.stringify(meta, null, 2)}\n`)
  await writeFile(join(output, 'scores.jsonl'), lines(scores))
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(resolve(process.argv[1])).href) {
  const [file, output] = process.argv.slice(2)
  if (file === undefined || output === undefined) {
    console.error('usage: node bench/published-cases.mjs <cases.json> <folder>')
    process.exit(2)
  }
  await writePublished(file, output)
}

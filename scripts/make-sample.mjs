// Writes datasets/sample from the articles in scripts/sample/articles.yaml. The same articles give the same bytes.
//
//   node scripts/make-sample.mjs                    writes datasets/sample and prints where its gold lies
//   node scripts/make-sample.mjs --output <folder>  writes there instead

import { createHash } from 'node:crypto'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { parse } from 'yaml'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const NAME = 'sample'
const RETRIEVED = 4
/** Words of an answer that carry no content: they need not occur in the gold sentences. */
const FUNCTION_WORDS = new Set(
  'a an and at be but by each from has in is it not of on one only or so that the then they to was who with'.split(' '),
)

const { values: options } = parseArgs({ options: { output: { type: 'string' } } })
const output = resolve(options.output ?? join(root, 'datasets', NAME))

const articles = parse(readFileSync(join(root, 'scripts', 'sample', 'articles.yaml'), 'utf8')).map(readArticle)
const items = articles.map(({ item }) => item)
const questions = articles.flatMap((article) => article.questions.map((entry) => makeQuestion(article, entry)))
numberQuestions(questions)
checkSubjects(articles)

const splits = [...new Set(questions.map(({ split }) => split))]
const dataset = {
  schema: 'canopy-dataset/1',
  name: NAME,
  benchmark: NAME,
  splits: Object.fromEntries(
    splits.map((split) => [split, { questions: questions.filter((q) => q.split === split).length }]),
  ),
  counts: { items: items.length, questions: questions.length },
  source: 'Written for this project; scripts/make-sample.mjs makes it from scripts/sample/articles.yaml.',
  licence: 'MIT',
}

mkdirSync(output, { recursive: true })
writeFileSync(join(output, 'dataset.json'), `${JSON.stringify(dataset, null, 2)}\n`)
writeFileSync(join(output, 'items.jsonl'), jsonLines(items))
writeFileSync(join(output, 'questions.jsonl'), jsonLines(questions))
printBalance()

/** One article as an item whose leaves are its sentences. */
function readArticle({ subject, split, title, text: lines, questions }) {
  const sentences = lines.trimEnd().split('\n')
  const text = sentences.join(' ')
  let start = 0
  const spans = sentences.map((sentence) => {
    const span = [start, start + sentence.length]
    start += sentence.length + 1
    return span
  })
  const content = { modality: 'text', title, text, sentences: spans }
  return { subject, split, sentences, questions, item: { id: contentId(content), ...content } }
}

function makeQuestion({ subject, split, sentences, item }, { q, answer, gold }) {
  const place = `"${q}" (${item.title})`
  const evidence = gold.map((leaf) => sentences[leaf] ?? fail(`${place}: the article has no sentence ${leaf}`))
  const words = wordsOf(answer).filter((word) => !FUNCTION_WORDS.has(word))
  const missing = words.filter((word) => !evidence.some((sentence) => wordsOf(sentence).includes(word)))
  if (missing.length > 0) fail(`${place}: the gold sentences do not say "${missing.join(' ')}"`)
  for (const sentence of evidence) {
    if (!words.some((word) => wordsOf(sentence).includes(word)))
      fail(`${place}: no part of the answer is in "${sentence}"`)
  }
  const spans = gold.map((leaf) => item.sentences[leaf])
  const answers = [answer]
  return { id: '', benchmark: NAME, split, question: q, answers, source: subject, gold: [{ item: item.id, spans }] }
}

/** Ids, and what a retriever might return: the gold item, the subject's other one, and others of the split, in some order. */
function numberQuestions(questions) {
  const seen = new Map()
  for (const question of questions) {
    const number = (seen.get(question.source) ?? 0) + 1
    seen.set(question.source, number)
    question.id = `${question.split}-${question.source}-${number}`
    const rank = (id) => createHash('sha256').update(`${question.id} ${id}`).digest('hex')
    const byRank = (a, b) => (rank(a) < rank(b) ? -1 : 1)
    const [gold] = question.gold
    const near = articles.filter(({ subject, item }) => subject === question.source && item.id !== gold.item)
    const far = articles.filter(({ subject, split }) => subject !== question.source && split === question.split)
    const others = [...near.map(({ item }) => item.id), ...far.map(({ item }) => item.id).sort(byRank)]
    question.retrieved = [gold.item, ...others.slice(0, RETRIEVED - 1)].sort(byRank)
  }
}

function checkSubjects(articles) {
  const splitOf = new Map()
  for (const { subject, split } of articles) {
    if ((splitOf.get(subject) ?? split) !== split) fail(`The subject "${subject}" is in two splits`)
    splitOf.set(subject, split)
  }
}

/** The first 32 hexadecimal digits of the SHA-256 of an item's content as JSON with sorted keys. */
function contentId(content) {
  const sorted = Object.fromEntries(Object.entries(content).sort(([a], [b]) => (a < b ? -1 : 1)))
  return createHash('sha256').update(JSON.stringify(sorted)).digest('hex').slice(0, 32)
}

function jsonLines(values) {
  return values.map((value) => `${JSON.stringify(value)}\n`).join('')
}

function wordsOf(text) {
  return text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []
}

function fail(message) {
  throw new Error(message)
}

/** Where the gold of decision nodes lies in binary trees: what a policy that never reads the question could use. */
function printBalance() {
  for (const split of splits) {
    const cases = { left: 0, right: 0, both: 0, full: 0 }
    const own = questions.filter((question) => question.split === split)
    for (const { gold } of own) {
      const item = items.find(({ id }) => id === gold[0].item)
      const isGold = item.sentences.map(([start]) => gold[0].spans.some((span) => span[0] === start))
      countCases(isGold, cases)
    }
    const total = cases.left + cases.right + cases.both + cases.full
    const shares = Object.entries(cases).map(([name, n]) => `${name} ${n} (${((100 * n) / total).toFixed(1)} %)`)
    const itemCount = new Set(own.map(({ gold }) => gold[0].item)).size
    console.log(`${split}: ${itemCount} items, ${own.length} questions, ${total} decision nodes: ${shares.join(', ')}`)
  }
}

function countCases(isGold, cases) {
  if (isGold.length === 1 || !isGold.includes(true)) return
  if (!isGold.includes(false)) {
    cases.full += 1
    return
  }
  const left = isGold.slice(0, Math.ceil(isGold.length / 2))
  const right = isGold.slice(left.length)
  cases[!right.includes(true) ? 'left' : !left.includes(true) ? 'right' : 'both'] += 1
  countCases(left, cases)
  countCases(right, cases)
}

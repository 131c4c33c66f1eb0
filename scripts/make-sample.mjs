// Writes datasets/sample from the articles, tables, pictures and clips that scripts/sample/*.yaml describe. The same
// descriptions give the same bytes. The files in datasets/sample/media are drawn by scripts/sample/make-media.mjs.
//
//   node scripts/make-sample.mjs                    writes datasets/sample and prints where its gold lies
//   node scripts/make-sample.mjs --output <folder>  writes there instead

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { parse } from 'yaml'
import { balanceLines } from './sample/balance.mjs'
import { readArticle, readMedium, readTable } from './sample/entries.mjs'
import { makeQuestion, numberQuestions } from './sample/questions.mjs'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const NAME = 'sample'
/** The benchmark of the questions about pictures and clips, which encoders of text never meet. */
const MEDIA_NAME = 'sample-media'

const { values: options } = parseArgs({ options: { output: { type: 'string' } } })
const output = resolve(options.output ?? join(root, 'datasets', NAME))

const described = (name) => parse(readFileSync(join(root, 'scripts', 'sample', name), 'utf8'))
const entries = [
  ...described('articles.yaml').map(readArticle),
  ...described('tables.yaml').map(readTable),
  ...described('media.yaml').map(readMedium),
]
checkSubjects(entries)
const items = entries.map(({ item }) => item)
const questions = entries.flatMap((entry) =>
  entry.questions.map((asked) => makeQuestion(entry, asked, benchmarkOf(entry))),
)
numberQuestions(questions, entries)

const splits = [...new Set(questions.map(({ split }) => split))]
const dataset = {
  schema: 'canopy-dataset/1',
  name: NAME,
  benchmark: NAME,
  splits: Object.fromEntries(
    splits.map((split) => [split, { questions: questions.filter((q) => q.split === split).length }]),
  ),
  counts: { items: items.length, questions: questions.length },
  source:
    'Written and drawn for this project; scripts/make-sample.mjs makes it from the descriptions in scripts/sample.',
  licence: 'MIT',
}

mkdirSync(output, { recursive: true })
writeFileSync(join(output, 'dataset.json'), `${JSON.stringify(dataset, null, 2)}\n`)
writeFileSync(join(output, 'items.jsonl'), jsonLines(items))
writeFileSync(join(output, 'questions.jsonl'), jsonLines(questions))
for (const line of balanceLines(questions, entries)) console.log(line)

function benchmarkOf({ split }) {
  return split.startsWith('media-') ? MEDIA_NAME : NAME
}

/** A subject is met in training or in dev, never in both, whatever shows it. */
function checkSubjects(entries) {
  const sideOf = new Map()
  for (const { subject, split } of entries) {
    const side = split.replace('media-', '')
    if ((sideOf.get(subject) ?? side) !== side) throw new Error(`The subject "${subject}" is in train and in dev.`)
    sideOf.set(subject, side)
  }
}

function jsonLines(values) {
  return values.map((value) => `${JSON.stringify(value)}\n`).join('')
}

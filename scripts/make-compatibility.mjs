// Writes the fixture of one release that every later one has to load with identical decisions: a dataset, preference pairs, an
// encoder, a training run with its evaluation, an export, embeddings, and what refinement kept with them. Made once for a release, by that
// release, and never again:
//
//   node scripts/make-compatibility.mjs --package <clone or installation of the release, built> --output test/compatibility/<version>
//
// The data are some subjects of datasets/sample; the encoder has random weights and is as small as one can be.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { cp, mkdir } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'

const SUBJECTS = { train: 4, dev: 2 }

const { values } = parseArgs({ options: { package: { type: 'string', default: '.' }, output: { type: 'string' } } })
if (values.output === undefined) throw new Error('Give --output test/compatibility/<version>.')
const release = resolve(values.package)
const load = (module) => import(pathToFileURL(join(release, 'dist', module)).href)
const { version } = JSON.parse(readFileSync(join(release, 'package.json'), 'utf8'))
const { createRandomBert } = await load('encoder/index.js')
const { openEncoder } = await load('index.js')

// every path in the files is relative to this folder
const folder = mkdtempSync(join(tmpdir(), 'canopy-compatibility-'))
const canopy = (...args) =>
  execFileSync(process.execPath, [join(release, 'dist', 'cli', 'main.js'), ...args], { cwd: folder, stdio: 'inherit' })
const lines = (path) =>
  readFileSync(path, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line))

try {
  const sample = join(release, 'datasets', 'sample')
  const items = new Map(lines(join(sample, 'items.jsonl')).map((item) => [item.id, item]))
  const questions = lines(join(sample, 'questions.jsonl'))
  const chosen = {}
  for (const [split, count] of Object.entries(SUBJECTS)) {
    const sources = [...new Set(questions.filter((q) => q.split === split).map(({ source }) => source))].slice(0, count)
    chosen[split] = questions.filter((q) => q.split === split && sources.includes(q.source))
    const named = new Set(
      chosen[split].flatMap(({ gold, retrieved = [] }) => [...gold.map(({ item }) => item), ...retrieved]),
    )
    const write = (name, records) =>
      writeFileSync(join(folder, name), records.map((record) => `${JSON.stringify(record)}\n`).join(''))
    write(
      `${split}.items.jsonl`,
      [...named].map((id) => items.get(id)),
    )
    write(`${split}.questions.jsonl`, chosen[split])
    const input = ['--input', `${split}.items.jsonl`, `${split}.questions.jsonl`]
    canopy('import', 'jsonl', ...input, '--split', split, '--output', 'dataset')
  }
  const texts = [...items.values()].filter(({ text }) => text !== undefined).map(({ text }) => text)
  const sizes = { hidden: 24, layers: 1, heads: 2, intermediate: 32, maxLength: 128 }
  await createRandomBert(join(folder, 'encoder'), { seed: 1, vocabularyFrom: texts, vocabularySize: 600, ...sizes })

  const encoder = ['--encoder', 'encoder']
  const data = ['--dataset', 'dataset']
  canopy('preferences', ...data, '--split', 'train', '--output', 'preferences.jsonl')
  canopy(
    ...['train', ...encoder, ...data, '--preferences', 'preferences.jsonl', '--output', 'run', '--threads', '1'],
    ...['--epochs', '6', '--batch-size', '4', '--rank', '4', '--alpha', '16', '--learning-rate', '0.02', '--keep', '1'],
  )
  const adapter = ['--adapter', 'run/adapter']
  const measured = ['--split', 'dev', '--no-retrieved', '--no-report', '--output', 'run/eval']
  canopy('evaluate', ...encoder, ...adapter, ...data, ...measured, '--threads', '1')
  canopy('export', ...encoder, ...adapter, '--bundle', '--output', 'export', '--threads', '1')

  canopy('encode', '--encoder', 'export', ...data, '--split', 'dev', '--output', 'embeddings', '--threads', '1')

  const opened = await openEncoder(join(folder, 'export'), { threads: 1 })
  const refined = []
  for (const { question, gold } of chosen.dev) {
    const inputs = gold.map(({ item }) => items.get(item))
    for (const { id, kept } of await opened.refine(question, inputs))
      refined.push({
        question,
        item: id,
        kept: kept.map(({ from, to, score }) => [from, to, Number(score.toFixed(6))]),
      })
  }
  await opened.close()
  writeFileSync(join(folder, 'refined.jsonl'), refined.map((one) => `${JSON.stringify(one)}\n`).join(''))

  await mkdir(values.output, { recursive: true })
  // the encoder lies in the export, too
  for (const name of ['dataset', 'preferences.jsonl', 'run', 'export', 'embeddings', 'refined.jsonl'])
    await cp(join(folder, name), join(values.output, name), { recursive: true })
  console.log(`${values.output}: made by ${version}`)
} finally {
  rmSync(folder, { recursive: true, force: true })
}

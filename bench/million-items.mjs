// Prints how long `canopy preferences` takes over a synthetic data set of 250 000, 500 000 and 1 000 000 items, and how much memory:
// the time is to be linear in the items, the peak under 400 MB. Needs `npm run build` and 4 GB in the temporary folder.
//
//   node bench/million-items.mjs [--items 250000 500000 1000000] [--folder <temporary folder>] [--seed 1]
//
// Items are texts of 3 to 12 sentences and, one in ten, tables of 3 to 20 rows. There is a question for every fourth item, with two
// gold items and ten retrieved ones anywhere in the data set.

import { execFileSync } from 'node:child_process'
import { createWriteStream, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { finished } from 'node:stream/promises'
import { parseArgs } from 'node:util'
import seedrandom from 'seedrandom'

const { values, positionals } = parseArgs({
  options: {
    items: { type: 'string', multiple: true, default: [] },
    folder: { type: 'string', default: tmpdir() },
    seed: { type: 'string', default: '1' },
    cli: { type: 'string', default: resolve(import.meta.dirname, '../dist/cli/main.js') },
  },
  allowPositionals: true,
})
const sizes = [...values.items, ...positionals].map(Number)
if (sizes.length === 0) sizes.push(250_000, 500_000, 1_000_000)

const words =
  'the of a river city station north old was built in year after which its large small stone water bridge people many first second'.split(
    ' ',
  )

/** Waits while the stream's buffer is full. */
async function writeLine(stream, value) {
  if (!stream.write(`${JSON.stringify(value)}\n`)) await new Promise((done) => stream.once('drain', done))
}

async function generate(folder, items, seed) {
  await mkdir(folder, { recursive: true })
  const random = seedrandom(`${seed}/${items}`)
  const int = (n) => Math.floor(random() * n)
  const phrase = (n) => Array.from({ length: n }, () => words[int(words.length)]).join(' ')
  const itemLines = createWriteStream(join(folder, 'items.jsonl'))
  const leaves = new Uint8Array(items)
  for (let i = 0; i < items; i++) {
    const title = `Item ${i} ${phrase(2)}`
    if (i % 10 === 9) {
      leaves[i] = 3 + int(18)
      const rows = Array.from({ length: leaves[i] }, (_, row) => [String(row), phrase(2), phrase(3)])
      await writeLine(itemLines, { id: `i${i}`, modality: 'table', title, header: ['No', 'Name', 'Note'], rows })
      continue
    }
    leaves[i] = 3 + int(10)
    const sentences = []
    let text = ''
    for (let s = 0; s < leaves[i]; s++) {
      const start = text.length === 0 ? 0 : text.length + 1
      text += `${s === 0 ? '' : ' '}S${s} ${phrase(8 + int(14))}.`
      sentences.push([start, text.length])
    }
    await writeLine(itemLines, { id: `i${i}`, modality: 'text', title, text, sentences })
  }
  itemLines.end()
  const questionLines = createWriteStream(join(folder, 'questions.jsonl'))
  const questions = Math.floor(items / 4)
  for (let q = 0; q < questions; q++) {
    const picked = new Set()
    while (picked.size < Math.min(items, 12)) picked.add(int(items))
    const retrieved = [...picked]
    const gold = retrieved.slice(0, 2).map((i) => {
      const leaf = int(leaves[i])
      // the n-th sentence lies behind at least ten characters for each before it; any span inside the text will do
      return i % 10 === 9 ? { item: `i${i}`, rows: [leaf] } : { item: `i${i}`, spans: [[10 * leaf, 10 * leaf + 12]] }
    })
    await writeLine(questionLines, {
      ...{ id: `q${q}`, benchmark: 'synthetic', split: 'train', question: `Which ${phrase(6)}?`, answers: [] },
      ...{ source: `s${q}`, gold, retrieved: retrieved.map((i) => `i${i}`) },
    })
  }
  questionLines.end()
  await Promise.all([finished(itemLines), finished(questionLines)])
  const meta = {
    schema: 'canopy-dataset/1',
    ...{ name: 'synthetic', benchmark: 'synthetic', source: 'bench/million-items.mjs' },
    splits: { train: { questions } },
    counts: { items, questions },
  }
  writeFileSync(join(folder, 'dataset.json'), JSON.stringify(meta))
  return questions
}

/** Runs the command line in a process of its own; seconds, and the most memory that it had (MB). */
function measure(args, folder) {
  const report = join(folder, 'memory.txt')
  const onExit = `import { writeFileSync } from 'node:fs'
    process.on('exit', () => writeFileSync(${JSON.stringify(report)}, String(process.resourceUsage().maxRSS)))`
  const start = performance.now()
  execFileSync(process.execPath, [
    '--import',
    `data:text/javascript,${encodeURIComponent(onExit)}`,
    values.cli,
    ...args,
  ])
  return { seconds: (performance.now() - start) / 1000, megabytes: Number(readFileSync(report, 'utf8')) / 1024 }
}

const number = (n) => n.toLocaleString('en').replaceAll(',', ' ')
console.log('| items | items.jsonl | questions | time | per 1 000 items | peak memory |')
console.log('|--:|--:|--:|--:|--:|--:|')
for (const items of sizes) {
  const folder = mkdtempSync(join(values.folder, 'canopy-million-'))
  try {
    const dataset = join(folder, 'data')
    const questions = await generate(dataset, items, values.seed)
    const size = Math.round(statSync(join(dataset, 'items.jsonl')).size / 1e6)
    const output = join(folder, 'preferences.jsonl')
    const { seconds, megabytes } = measure(
      ['preferences', '--dataset', dataset, '--split', 'train', '--output', output],
      folder,
    )
    console.log(
      `| ${number(items)} | ${number(size)} MB | ${number(questions)} | ${seconds.toFixed(1)} s | ${((1e6 * seconds) / items).toFixed(1)} ms | ${megabytes.toFixed(0)} MB |`,
    )
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

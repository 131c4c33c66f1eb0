// Where decisions go wrong, by benchmark and kind of item, from the files of an evaluation, as two Markdown tables in %: decision
// accuracy; and, at nodes with gold in one of two children, whether the siblings are in the right order, and which of them
// come out above their parent.
//
//   node bench/decision-errors.mjs --evaluation runs/joint-1/eval --dataset datasets/hotpotqa --dataset datasets/ottqa
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { readJsonLines } from '../dist/data/index.js'

const { values } = parseArgs({
  options: { evaluation: { type: 'string' }, dataset: { type: 'string', multiple: true } },
})
if (values.evaluation === undefined || values.dataset === undefined) throw new Error('Give --evaluation and --dataset.')

const modality = new Map()
for (const folder of values.dataset)
  for await (const { value } of readJsonLines(join(folder, 'items.jsonl'))) modality.set(value.id, value.modality)

const accuracy = new Map()
const rows = new Map()
for await (const { value } of readJsonLines(join(values.evaluation, 'decisions.jsonl'))) {
  const { children, scores, gold, item, benchmark, variant, correct } = value
  const name = `${benchmark}${variant === undefined ? '' : `:${variant}`}, ${modality.get(item) ?? 'unknown item'}`
  const right = { ...correct, 'always-left': gold.length === 1 && gold[0] === 0 }
  const sums = accuracy.get(name) ?? { n: 0 }
  accuracy.set(name, sums)
  sums.n++
  for (const [encoder, is] of Object.entries(right)) sums[encoder] = (sums[encoder] ?? 0) + (is ? 1 : 0)
  if (children.length !== 2 || gold.length !== 1) continue
  for (const encoder of ['frozen', 'fine-tuned']) {
    if (scores[encoder] === undefined) continue
    const { node, children: both } = scores[encoder]
    const [wanted, unwanted] = [both[gold[0]], both[1 - gold[0]]]
    const key = `${name}\0${encoder}`
    const row = rows.get(key) ?? { n: 0, order: 0, exact: 0, both: 0, none: 0, other: 0 }
    rows.set(key, row)
    row.n++
    if (wanted > unwanted) row.order++
    row[wanted >= node ? (unwanted >= node ? 'both' : 'exact') : unwanted >= node ? 'other' : 'none']++
  }
}

const percent = (part, whole) => (part === undefined ? '–' : ((100 * part) / whole).toFixed(1))
const inOrder = (map) => [...map].sort(([a], [b]) => (a < b ? -1 : 1))
const ENCODERS = ['frozen', 'fine-tuned', 'permuted', 'always-left']
console.log(`| items | decisions | ${ENCODERS.join(' | ')} |\n|---|---|---|---|---|---|`)
for (const [name, sums] of inOrder(accuracy))
  console.log(`| ${[name, sums.n, ...ENCODERS.map((encoder) => percent(sums[encoder], sums.n))].join(' | ')} |`)

console.log(
  '\n| gold in one of two children | decisions | encoder | siblings in order | gold child only | both | none | the other |',
)
console.log('|---|---|---|---|---|---|---|---|')
for (const [key, { n, ...counts }] of inOrder(rows)) {
  const [name, encoder] = key.split('\0')
  const shares = ['order', 'exact', 'both', 'none', 'other'].map((k) => percent(counts[k], n))
  console.log(`| ${[name, n, encoder, ...shares].join(' | ')} |`)
}

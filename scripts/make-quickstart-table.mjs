// Writes the quickstart's table into README.md, between its two comments, from the figures of a finished quickstart.
//
//   npm run quickstart && node scripts/make-quickstart-table.mjs
//   node scripts/make-quickstart-table.mjs --quickstart <folder>
import { readFileSync, writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { ENCODERS, markdownTable, withInterval } from '../dist/eval/index.js'

const root = resolve(import.meta.dirname, '..')
const { values } = parseArgs({ options: { quickstart: { type: 'string', default: `${root}/runs/quickstart` } } })
const json = (name) => JSON.parse(readFileSync(`${values.quickstart}/${name}`, 'utf8'))
const { pooled, differences } = json('run/eval/metrics.json')
const { encoder, seed } = json('run/config.json')

const METRICS = {
  'decision accuracy': 'decision_accuracy',
  'tokens kept': 'retained_tokens',
  'gold recall': 'gold_recall',
}
const gain = (name) => differences.pooled[`fine-tuned - ${name}`]?.decision_accuracy

const rows = ENCODERS.filter((name) => pooled[name] !== undefined).map((name) => [
  name === 'fine-tuned' ? '**fine-tuned**' : name,
  ...Object.values(METRICS).map((metric) => withInterval(pooled[name][metric])),
  gain(name) === undefined ? '' : withInterval(gain(name), true),
])
const table = markdownTable(['in %', ...Object.keys(METRICS), 'fine-tuned decides better by'], rows)
const caption = `Encoder \`${encoder.id}\`, seed ${seed}, ${pooled.frozen.decision_accuracy.n} decisions about subjects that training never saw; 95 % intervals.`

const readme = `${root}/README.md`
const [begin, end] = ['<!-- scripts/make-quickstart-table.mjs -->', '<!-- end of the table -->']
const [before, rest, ...more] = readFileSync(readme, 'utf8').split(begin)
const after = rest?.split(end)[1]
if (after === undefined || more.length > 0) throw new Error(`README.md has no place for the table: ${begin} … ${end}`)
writeFileSync(readme, `${before}${begin}\n\n${table}\n\n${caption}\n\n${end}${after}`)

// From gold to an exported encoder in a program: what `canopy preferences`, `train`, `evaluate` and `export` do.
//
//   node examples/train.mjs <dataset> <encoder> <output folder> [steps]
//   node examples/train.mjs datasets/sample models/canopy-mini runs/example
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { openEncoder } from 'canopy-encoder'
import { buildPreferences, evaluateEncoder, exportAdapter, openDataset, trainAdapter } from 'canopy-encoder/train'

const [folder, encoder, output, steps = '60'] = process.argv.slice(2)
if (output === undefined) throw new Error('Give a dataset, an encoder and a folder for what is made.')
const at = (name) => join(output, name)
await mkdir(output, { recursive: true })

const dataset = await openDataset(folder)
const { pairs } = await buildPreferences({ dataset, split: 'train', output: at('preferences.jsonl') })
await dataset.close()
console.log(`${pairs.total} pairs`)

const { adapter, selected } = await trainAdapter({
  encoder,
  datasets: [folder],
  preferences: [at('preferences.jsonl')],
  output: at('run'),
  settings: { steps: Number(steps), title: false, batchSize: 8, seed: 1 },
  resume: true,
})
console.log(`the adapter of step ${selected.step}: ${adapter}`)

const { estimates } = await evaluateEncoder({
  ...{ encoder, adapter, datasets: [folder], split: 'dev', output: at('run/eval') },
  warn: console.warn,
})
for (const name of ['frozen', 'fine-tuned', 'always-left']) {
  const { value, lo, hi } = estimates.benchmarks.pooled[name].decision_accuracy
  console.log(`${name}: ${[value, lo, hi].map((share) => (100 * share).toFixed(1)).join(' ')}`)
}

await exportAdapter({ encoder, adapter, bundle: true, output: at('export'), warn: console.warn })
const exported = await openEncoder(at('export'))
const [item] = await exported.refine('Who wound the clock?', ['It stands by the river. Ada wound its clock. It rang.'])
console.log(item.kept.map(({ text }) => text.trim()))
await exported.close()

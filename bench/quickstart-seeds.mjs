// The quickstart's fine-tuning over several seeds: for each, training with its settings on the train questions of the sample data,
// and evaluation on the dev questions, beside the frozen encoder and every control. Decision accuracies in %, their mean and range.
//
//   npm run build && node bench/quickstart-seeds.mjs [--seeds 5] [--json result.json]
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { bestControl } from '../dist/cli/quickstart-table.js'
import { ENCODERS, markdownTable, percent, withInterval } from '../dist/eval/index.js'
import { describeMachine, machineText } from './support/machine.mjs'
import { wholeNumber } from './support/numbers.mjs'

const root = resolve(import.meta.dirname, '..')
const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string', default: join(root, 'models', 'canopy-mini') },
    dataset: { type: 'string', default: join(root, 'datasets', 'sample') },
    config: { type: 'string', default: join(root, 'configs', 'quickstart.yaml') },
    seeds: { type: 'string', default: '5' },
    threads: { type: 'string' },
    json: { type: 'string' },
    help: { type: 'boolean' },
  },
})
if (flags.help) {
  console.log(`Trains and evaluates the quickstart's configuration with seeds 1 to n. Needs "npm run build".

  node bench/quickstart-seeds.mjs [options]

  --encoder <folder>  checkpoint to fine-tune (models/canopy-mini)
  --dataset <folder>  data with the splits train and dev (datasets/sample)
  --config <file>     settings of training (configs/quickstart.yaml)
  --seeds <n>         how many seeds, from 1 (5)
  --threads <n>       threads of ONNX Runtime (all processors)
  --json <file>       also write the figures there
  --help              this text`)
  process.exit(0)
}
const count = wholeNumber(flags, 'seeds')

const machine = describeMachine()
console.log(machineText(machine))

/** A verb of the command line; what it prints with --json. */
const canopy = (...args) =>
  JSON.parse(
    execFileSync(process.execPath, [join(root, 'dist', 'cli', 'main.js'), ...args, '--json'], {
      stdio: ['ignore', 'pipe', 'pipe'],
      maxBuffer: 2 ** 28,
    }),
  )

const folder = mkdtempSync(join(tmpdir(), 'canopy-seeds-'))
const seeds = []
try {
  const preferences = join(folder, 'preferences.jsonl')
  const threads = flags.threads === undefined ? [] : ['--threads', flags.threads]
  canopy('preferences', '--dataset', flags.dataset, '--split', 'train', '--output', preferences)
  for (let seed = 1; seed <= count; seed++) {
    const run = join(folder, `run-${seed}`)
    const started = performance.now()
    canopy(
      ...['train', '--encoder', flags.encoder, '--dataset', flags.dataset, '--preferences', preferences],
      ...['--config', flags.config, '--seed', String(seed), '--output', run, ...threads],
    )
    const seconds = (performance.now() - started) / 1000
    const metrics = canopy(
      ...['evaluate', '--encoder', flags.encoder, '--adapter', join(run, 'adapter'), '--dataset', flags.dataset],
      ...['--split', 'dev', '--output', join(folder, `eval-${seed}`), '--no-report', ...threads],
    )
    const accuracy = Object.fromEntries(ENCODERS.map((name) => [name, metrics.pooled[name].decision_accuracy]))
    const best = bestControl(metrics)
    const difference = (name) => metrics.differences.pooled[`fine-tuned - ${name}`].decision_accuracy
    seeds.push({ seed, seconds, accuracy, best, overFrozen: difference('frozen'), overBest: difference(best) })
    console.error(`seed ${seed}: ${percent(accuracy['fine-tuned'].value)} after ${seconds.toFixed(0)} s of training`)
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
}

const values = (pick) => seeds.map(pick)
const columns = [
  ...ENCODERS.map((name) => ({
    name,
    pick: (seed) => seed.accuracy[name].value,
    text: (seed) => percent(seed.accuracy[name].value),
  })),
  { name: 'over frozen', pick: (seed) => seed.overFrozen.value, text: (seed) => withInterval(seed.overFrozen, true) },
  {
    name: 'over the best control',
    pick: (seed) => seed.overBest.value,
    text: (seed) => `${withInterval(seed.overBest, true)} (${seed.best})`,
  },
]
console.log(
  markdownTable(
    ['seed', ...columns.map(({ name }) => name)],
    [
      ...seeds.map((seed) => [String(seed.seed), ...columns.map(({ text }) => text(seed))]),
      ['mean', ...columns.map(({ pick }) => percent(values(pick).reduce((a, b) => a + b) / count))],
      ['lowest', ...columns.map(({ pick }) => percent(Math.min(...values(pick))))],
      ['highest', ...columns.map(({ pick }) => percent(Math.max(...values(pick))))],
    ],
  ),
)
const decisions = seeds[0].accuracy.frozen.n
console.log(`\n${decisions} decisions; intervals: paired 95 % bootstrap over sources.`)
if (flags.json !== undefined) {
  const { encoder, dataset, config } = flags
  writeFileSync(flags.json, `${JSON.stringify({ machine, encoder, dataset, config, decisions, seeds }, null, 2)}\n`)
}

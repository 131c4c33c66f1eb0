import { relative } from 'node:path'
import type { Command } from 'commander'
import pc from 'picocolors'
import { planReproduction, reproduce, type StepEvent, type Verdict } from '../reproduce/index.ts'
import { duration, withTimeLeft } from '../support/progress.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'
import { reporter } from './train-text.ts'

interface Flags {
  output?: string
  only?: string[]
  dryRun?: boolean
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('reproduce')
    .summary('everything from one configuration: import, pairs, training, tables, export; sweeps')
    .description(
      'Imports the benchmarks of a configuration, builds their preferences, trains on them together, evaluates, exports and\n' +
        'reports. What is done and unchanged (content of the files, settings, versions) is skipped; killed at any moment, the same\n' +
        'command goes on. Writes results.md, results.csv and results.json: all encoders and controls with intervals, mean and\n' +
        'range over training seeds, the selection table, and the paper\'s figures beside ours. With a section "sweep", it trains\n' +
        'every configuration in a folder of its own and writes sweep.md, sweep.csv and sweep.json.',
    )
    .argument('<config>', 'YAML or JSON file; relative paths in it are relative to its folder')
    .option('--output <folder>', 'folder of everything (default: runs/<name>)')
    .option('--only <benchmark...>', 'leave out the other benchmarks (in a folder of its own: it is another training)')
    .option('--dry-run', 'print what would run and why; write nothing')
    .option('--json', 'print what was done, or would be, as JSON')
    .addHelpText(
      'after',
      `
Examples:
  $ canopy reproduce configs/reproduce-sample.yaml
  $ canopy reproduce configs/reproduce-minilm.yaml --dry-run
  $ canopy reproduce configs/reproduce-minilm.yaml --only hotpotqa nq

A configuration:
  encoder: ../models/all-MiniLM-L6-v2     # folder, or Hugging Face id; { random: 1 } for a small random BERT
  benchmarks:
    - { format: hotpotqa, train: train.json, dev: dev.json }
    - { format: nq, fetch: true }         # downloads the official files
    - { format: mmqa, role: evaluate, dev: [MMQA_dev.jsonl.gz, MMQA_tables.jsonl.gz, MMQA_texts.jsonl.gz] }   # transfer
    - { dataset: ../datasets/mine }       # a dataset that is there
  train: { rank: 16, epochs: 3 }          # settings of training; a file of them; or false: the frozen encoder alone
  seeds: [1, 2, 3]
  export: true
  report: true
and, to try several settings on validation (dev too, with "evaluate: true"):
  sweep: { mode: grid, branching: [2, 3], train: { rank: [8, 16], learningRate: [0.0002, 0.0005] } }`,
    )
    .action(run)
}

async function run(file: string, flags: Flags): Promise<void> {
  const { dryRun, json, ...where } = flags
  const out = createOutput({ json })
  if (dryRun) return showPlan(out, await planReproduction({ file, ...where }))
  try {
    const result = await interruptible((signal) =>
      reproduce({
        file,
        ...where,
        onEvent: (event) => showEvent(out, event, onTraining),
        onProgress: process.stderr.isTTY ? out.progress : withTimeLeft(out.progress),
        onTraining: (line, training) => onTraining.current?.(line, training),
        warn: out.warn,
        signal,
      }),
    ).finally(out.done)
    out.line(
      `${result.ran.length} steps ran, ${result.skipped.length} were done already. Results: ${shown(result.page)} and the files beside it`,
    )
    out.json(result)
  } catch (error) {
    if (error instanceof Error && error.name === 'AbortError') out.warn('Stopped. The same command goes on from there.')
    throw error
  }
}

/** Each training run has a reporter of its own: its averages and times begin anew. */
const onTraining: { current?: ReturnType<typeof reporter> } = {}

function showEvent(out: Output, event: StepEvent, training: typeof onTraining): void {
  const { step, number, total } = event
  const place = `[${String(number).padStart(String(total).length)}/${total}]`
  if (event.type === 'skipped') out.line(pc.dim(`${place} ${step.id}: done already`))
  else if (event.type === 'begin') {
    out.line(`${place} ${pc.bold(step.id)}: ${event.why}`)
    if (step.kind === 'train') training.current = reporter(out)
  } else {
    const left = event.left === undefined || number === total ? '' : `; about ${duration(event.left)} left for the rest`
    out.line(`${' '.repeat(place.length)} ${duration(event.seconds)}${left}`)
  }
}

const WORDS: Record<Verdict['state'], string> = { done: 'done', run: 'runs', depends: 'may run' }

function showPlan(out: Output, { output, steps }: Awaited<ReturnType<typeof planReproduction>>): void {
  out.line(`${shown(output)}:`)
  for (const { step, verdict } of steps) {
    const why = verdict.state === 'done' ? '' : `: ${verdict.why}`
    out.line(`  ${WORDS[verdict.state].padEnd(8)}${step.id}${why}`)
  }
  out.json({
    output,
    steps: steps.map(({ step, verdict }) => ({
      step: step.id,
      output: step.output,
      state: verdict.state,
      ...(verdict.state !== 'done' && { why: verdict.why }),
    })),
  })
}

function shown(path: string): string {
  const here = relative('.', path)
  return here === '' || here.startsWith('..') ? path : here
}

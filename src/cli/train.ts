import { type Command, Option } from 'commander'
import { readEncoderPair } from '../encoder/index.ts'
import { UsageError } from '../support/errors.ts'
import { duration } from '../support/progress.ts'
import {
  Interrupted,
  type MetricsLine,
  resolveSettings,
  type TrainResult,
  type TrainSettingsInput,
  train,
} from '../train/index.ts'
import { number, tableFormatOption, whole } from './flags.ts'
import { createOutput, type Output } from './output.ts'

interface Flags extends Omit<TrainSettingsInput, 'benchmarkWeights' | 'kindWeights'> {
  encoder: string
  queryEncoder?: string
  dataset: string[]
  preferences: string[]
  output: string
  config?: string
  resume?: boolean
  json?: boolean
}

const signals = { SIGINT: 130, SIGTERM: 143 } as const

export function register(program: Command): void {
  program
    .command('train')
    .summary('fine-tune a node encoder on preference pairs')
    .description(
      'Fine-tunes LoRA matrices of a node encoder with a pairwise ranking loss on preference pairs; the query encoder stays ' +
        'frozen. Writes a run folder: config.json, metrics.jsonl, checkpoints/ and adapter/ (PEFT format), the one that a ' +
        'validation part of the training data selects.',
    )
    .requiredOption('--encoder <folder>', 'node encoder to adapt: checkpoint folder (safetensors) or Hugging Face id')
    .requiredOption('--dataset <folder...>', 'dataset folders that the preferences were built from')
    .requiredOption('--preferences <file...>', 'preferences files, as "canopy preferences" writes them')
    .requiredOption('--output <run>', 'run folder to write, as runs/name')
    .option('--query-encoder <folder>', 'folder or id of the frozen encoder of the questions (default: --encoder)')
    .option('--config <file>', 'YAML or JSON file of settings; flags win over it')
    .option('--resume', 'go on with the run in --output from its last checkpoint')
    .option('--json', 'print the result as JSON')
    .optionsGroup('Settings (default in parentheses; a --config file may give all of them):')
    .option('--seed <n>', 'seed of LoRA, validation part and order (1)', whole(0))
    .option('--epochs <n>', 'passes over the training part (3)', number)
    .option('--steps <n>', 'optimizer steps, instead of epochs', whole(1))
    .option('--batch-size <n>', 'instances in a step (16)', whole(1))
    .option('--token-budget <n>', 'tokens computed at once; bounds memory (4096)', whole(1))
    .option('--learning-rate <x>', 'peak learning rate (0.0005)', number)
    .option('--weight-decay <x>', 'decoupled weight decay (0.01)', number)
    .option('--warmup <x>', 'warm-up: a share of the steps below 1, else steps (0.1)', number)
    .addOption(
      new Option('--schedule <kind>', 'decay of the learning rate (cosine)').choices(['cosine', 'linear', 'constant']),
    )
    .option('--clip-norm <x>', 'largest norm of the gradient; 0: no clipping (1)', number)
    .addOption(new Option('--loss <kind>', 'loss of a pair (logistic)').choices(['logistic', 'hinge']))
    .option('--tau <x>', 'temperature of the logistic loss (0.05)', number)
    .option('--margin <x>', 'margin of the hinge loss (0.1)', number)
    .addOption(
      new Option('--weighting <kind>', 'what counts the same (decision-node)').choices(['decision-node', 'item']),
    )
    .option('--rank <n>', 'rank of the LoRA matrices (16)', whole(1))
    .option('--alpha <x>', "LoRA's alpha; updates are scaled by alpha / rank (32)", number)
    .option('--targets <pattern...>', 'modules to adapt, by name or regular expression (all linear ones)')
    .option('--title', "start every node's text with its item's title (default)")
    .option('--no-title', 'leave titles out')
    .addOption(tableFormatOption('markdown'))
    .option('--validation-share <x>', 'part of the training data, by source, that selects the adapter (0.15)', number)
    .addOption(
      new Option('--selection <metric>', 'validation metric that selects (decision_accuracy)').choices([
        'decision_accuracy',
        'mean_decision_accuracy',
        'edge_accuracy',
        'pair_accuracy',
        'loss',
      ]),
    )
    .option('--evaluate-every <n>', 'steps between evaluations on the validation part (half an epoch)', whole(1))
    .option('--checkpoint-every <n>', 'steps between checkpoints (as evaluations)', whole(1))
    .option('--keep-checkpoints <n>', 'checkpoints to keep (2)', whole(1))
    .option('--threads <n>', 'threads of ONNX Runtime (all processors)', whole(1))
    .addHelpText(
      'after',
      `
Example:
  $ canopy train --encoder models/all-MiniLM-L6-v2 --dataset datasets/hotpotqa datasets/nq \\
      --preferences hotpotqa.train.jsonl nq.train.jsonl --output runs/minilm --epochs 3 --seed 1

Ctrl-C finishes the step and writes a checkpoint; the same command with --resume goes on from there, to the same bytes.`,
    )
    .action(async (flags: Flags) => {
      process.exitCode = await run(flags)
    })
}

async function run(flags: Flags): Promise<number> {
  const { encoder, queryEncoder, dataset, preferences, output, config, resume, json, ...overrides } = flags
  if (resume === true && output.trim() === '') throw new UsageError('--resume needs the --output of the run.')
  const out = createOutput({ json })
  const settings = await resolveSettings(config, overrides)
  const pair = await readEncoderPair(encoder, { queryEncoder, onProgress: out.progress })

  const stop = new AbortController()
  let signal: keyof typeof signals | undefined
  const onSignal = (name: keyof typeof signals): void => {
    if (signal !== undefined) process.exit(signals[name])
    signal = name
    out.warn(`${name}: finishing the step and writing a checkpoint; once more ends at once.`)
    stop.abort()
  }
  for (const name of Object.keys(signals) as (keyof typeof signals)[]) process.on(name, onSignal)
  try {
    const result = await train({
      encoder: pair.encoder,
      queryEncoder: pair.query,
      datasets: dataset,
      preferences,
      output,
      settings,
      resume: resume ?? false,
      command: ['canopy', ...process.argv.slice(2)],
      onProgress: out.progress,
      onStep: reporter(out),
      warn: out.warn,
      signal: stop.signal,
    })
    out.done()
    printResult(out, result)
    return 0
  } catch (error) {
    out.done()
    if (signal === undefined || !(error instanceof Error && error.name === 'AbortError')) throw error
    const step = error instanceof Interrupted ? error.step : 0
    out.warn(
      step === 0
        ? 'Stopped before the first step. The same command with --resume begins again.'
        : `Stopped after step ${step}. The same command with --resume goes on from there.`,
    )
    return signals[signal]
  } finally {
    for (const name of Object.keys(signals)) process.off(name, onSignal)
  }
}

/** Shows each step: averages over the last ones, and the time left as the whole of this process's steps suggests it. */
export function reporter(out: Output): (line: MetricsLine, run: { totalSteps: number }) => void {
  const recent: MetricsLine[] = []
  const started = performance.now()
  let steps = 0
  return (line, { totalSteps }) => {
    if (line.step === 0) {
      if (line.validation !== undefined) out.line(`frozen encoder: ${validationText(line.validation)}`)
      return
    }
    steps++
    recent.push(line)
    if (recent.length > 20) recent.shift()
    const sum = (pick: (l: MetricsLine) => number | undefined): number => recent.reduce((n, l) => n + (pick(l) ?? 0), 0)
    const seconds = sum((l) => l.seconds)
    const perStep = (performance.now() - started) / 1000 / steps
    const note = [
      `loss ${(sum((l) => l.loss) / recent.length).toFixed(4)}`,
      `pairs right ${percent(sum((l) => (l.pair_accuracy ?? 0) * (l.pairs ?? 0)) / sum((l) => l.pairs))}`,
      `${Math.round(sum((l) => l.tokens) / seconds)} tokens/s`,
      `${(sum((l) => l.pairs) / seconds).toFixed(1)} pairs/s`,
      `${duration((totalSteps - line.step) * perStep)} left`,
    ].join('  ')
    out.progress({ phase: 'training', done: line.step, total: totalSteps, note })
    if (line.skipped !== undefined) out.warn(`step ${line.step} was not applied: ${line.skipped}.`)
    if (line.validation !== undefined) out.line(`step ${line.step}: ${validationText(line.validation)}`)
  }
}

function validationText(v: NonNullable<MetricsLine['validation']>): string {
  const perBenchmark = Object.entries(v.benchmarks)
  const parts =
    perBenchmark.length > 1 ? ` (${perBenchmark.map(([name, x]) => `${name} ${percent(x)}`).join(', ')})` : ''
  return `validation decisions ${percent(v.decision_accuracy)}${parts}, edges ${percent(v.edge_accuracy)}, pairs ${percent(v.pair_accuracy)}, loss ${v.loss.toFixed(4)}`
}

function printResult(out: Output, result: TrainResult): void {
  const { selected, frozen } = result
  if (selected.validation !== undefined && frozen !== undefined)
    out.line(
      `Selected step ${selected.step} of ${result.steps}: validation decision accuracy ${percent(selected.validation.decision_accuracy)}, frozen ${percent(frozen.decision_accuracy)}.`,
    )
  else out.line(`Kept the adapter of step ${selected.step}.`)
  if (result.skipped > 0) out.line(`${result.skipped} steps were not applied; metrics.jsonl says why.`)
  const { seconds, tokens, pairs, peakMemory } = result.work
  if (seconds > 0)
    out.line(
      `${Math.round(tokens / seconds)} tokens/s, ${(pairs / seconds).toFixed(1)} pairs/s, peak memory ${(peakMemory / 2 ** 30).toFixed(2)} GiB.`,
    )
  out.line(`Adapter: ${result.adapter}`)
  out.json(result)
}

function percent(x: number): string {
  return `${(100 * x).toFixed(1)} %`
}

import { type Command, Option } from 'commander'
import { type EncoderModule, encoderModules, locateEncoder, readEncoder, readEncoderPair } from '../encoder/index.ts'
import { PRECISIONS } from '../onnx/index.ts'
import { UsageError } from '../support/errors.ts'
import { duration } from '../support/progress.ts'
import { TFJS_BACKENDS } from '../tfjs/index.ts'
import {
  Interrupted,
  type MetricsLine,
  resolveSettings,
  type TrainResult,
  type TrainSettingsInput,
  train,
} from '../train/index.ts'
import {
  deviceOption,
  type EncoderFlags,
  number,
  onnxFileOption,
  poolingOptions,
  tableFormatOption,
  tokenBudget,
  whole,
} from './flags.ts'
import { interruptible, STOP_STATUS, type StopSignal } from './interrupt.ts'
import { modulesText } from './modules-text.ts'
import { createOutput, type Output } from './output.ts'

interface Flags extends Omit<TrainSettingsInput, 'benchmarkWeights' | 'kindWeights'>, EncoderFlags {
  encoder: string
  queryEncoder?: string
  dataset: string[]
  preferences: string[]
  output: string
  config?: string
  resume?: boolean
  /** The name that --keep had before. */
  keepCheckpoints?: number
  listModules?: boolean
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('train')
    .summary('fine-tune a node encoder on preference pairs')
    .description(
      'Fine-tunes LoRA matrices of a node encoder with a pairwise ranking loss on preference pairs; the query encoder stays ' +
        'frozen. Writes a run folder: config.json, metrics.jsonl, checkpoints/ and adapter/ (PEFT format), the one that a ' +
        'validation part of the training data selects.',
    )
    .requiredOption('--encoder <folder>', 'node encoder to adapt: checkpoint or ONNX folder, or Hugging Face id')
    .requiredOption('--dataset <folder...>', 'dataset folders that the preferences were built from')
    .requiredOption('--preferences <file...>', 'preferences files, as "canopy preferences" writes them')
    .requiredOption('--output <run>', 'run folder to write, as runs/name')
    .option('--query-encoder <folder>', 'folder or id of the frozen encoder of the questions (default: --encoder)')
    .addOption(onnxFileOption())
    .addOption(poolingOptions()[0])
    .addOption(poolingOptions()[1])
    .addOption(
      new Option('--list-modules', 'print the modules of --encoder that can be adapted, and train nothing')
        // so that only --encoder is asked for
        .implies({ dataset: [], preferences: [], output: '' }),
    )
    .option('--config <file>', 'YAML or JSON file of settings; flags win over it')
    .option('--resume', 'begin the run in --output, go on with it from its last checkpoint, or find it finished')
    .option('--json', 'print the result as JSON')
    .optionsGroup('Settings (default in parentheses; a --config file may give all of them):')
    .option('--seed <n>', 'seed of LoRA, validation part and order (1)', whole(0))
    .option('--epochs <n>', 'passes over the training part (3)', number)
    .option('--steps <n>', 'optimizer steps, instead of epochs', whole(1))
    .option('--batch-size <n>', 'instances in a step (16)', whole(1))
    .option('--token-budget <n | auto>', 'tokens computed at once; auto measures what fits (4096)', tokenBudget)
    .option('--learning-rate <x>', 'peak learning rate (0.0005)', number)
    .option('--weight-decay <x>', 'decoupled weight decay (0.01)', number)
    .option('--warmup <x>', 'warm-up: a share of the steps below 1, else steps (0.1)', number)
    .addOption(
      new Option('--schedule <kind>', 'decay of the learning rate (cosine)').choices(['cosine', 'linear', 'constant']),
    )
    .option('--clip-norm <x>', 'largest norm of the gradient; 0: no clipping (1)', number)
    .option('--loss <kind | file>', 'loss: logistic, hinge, or a module of your own, as ./mine.mjs (logistic)')
    .option('--tau <x>', 'temperature of the logistic loss (0.05)', number)
    .option('--margin <x>', 'margin of the hinge loss (0.1)', number)
    .addOption(
      new Option('--weighting <kind>', 'what counts the same (decision-node)').choices(['decision-node', 'item']),
    )
    .option('--rank <n>', 'rank of the LoRA matrices (16)', whole(1))
    .option('--alpha <x>', "LoRA's alpha; updates are scaled by alpha / rank (32)", number)
    .option(
      '--targets <pattern...>',
      'modules to adapt: names, their last parts, or expressions of whole names (what --list-modules marks)',
    )
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
    .option('--keep <n>', 'checkpoints to keep (2)', whole(1))
    .addOption(new Option('--keep-checkpoints <n>').argParser(whole(1)).hideHelp())
    .addOption(
      new Option('--engine <name>', 'what computes embeddings and gradients (onnxruntime)').choices([
        'onnxruntime',
        'tfjs',
      ]),
    )
    .addOption(
      new Option('--tfjs-backend <name>', "TensorFlow.js's backend (the best that is installed)").choices(
        TFJS_BACKENDS,
      ),
    )
    .addOption(deviceOption('where to train'))
    .addOption(
      new Option(
        '--precision <type>',
        'what matrix products are computed in, on cuda (fp16: webgpu too) (fp32)',
      ).choices(PRECISIONS),
    )
    .option('--threads <n>', 'threads of ONNX Runtime on the CPU (all processors)', whole(1))
    .addHelpText(
      'after',
      `
Example:
  $ canopy train --encoder models/all-MiniLM-L6-v2 --dataset datasets/hotpotqa datasets/nq \\
      --preferences hotpotqa.train.jsonl nq.train.jsonl --output runs/minilm --epochs 3 --seed 1
  $ canopy train … --device cuda --precision bf16 --token-budget auto

A token budget that turns out too large for the memory is halved, and the step done again: that changes no loss beyond rounding.
What auto measures may differ from run to run, and with it the last bits of the weights; config.json has the number.

Ctrl-C or SIGTERM finishes the step and writes a checkpoint; a second one ends at once. With --resume, one unchanged command
begins a run, goes on with it after any end to the same bytes, and does nothing when it is finished.

Exit status: 0 finished, now or before; 1 bad input or failure; 2 bad usage; 130 stopped by SIGINT (Ctrl-C), 143 by SIGTERM:
the command with --resume goes on.`,
    )
    .action(async (flags: Flags) => {
      process.exitCode = await run(flags)
    })
}

async function run(flags: Flags): Promise<number> {
  const {
    encoder,
    queryEncoder,
    onnxFile,
    pooling,
    normalize,
    listModules,
    dataset,
    preferences,
    output,
    config,
    resume,
    keepCheckpoints,
    json,
    ...settingFlags
  } = flags
  const overrides = { ...settingFlags, keep: settingFlags.keep ?? keepCheckpoints }
  if (resume === true && output.trim() === '') throw new UsageError('--resume needs the --output of the run.')
  const out = createOutput({ json })
  if (listModules === true) {
    const modules = await modulesOf(encoder, onnxFile, out)
    out.json(modules)
    out.line(modulesText(modules))
    return 0
  }
  const settings = await resolveSettings(config, overrides)
  const pair = await readEncoderPair(encoder, {
    ...{ queryEncoder, onnxFile, pooling, normalize },
    onProgress: out.progress,
  })
  let stopped: StopSignal | undefined
  const onStop = (name: StopSignal): void => {
    stopped = name
    out.warn(`${name}: finishing the step and writing a checkpoint; once more ends at once.`)
  }
  try {
    const result = await interruptible(
      (signal) =>
        train({
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
          signal,
        }),
      onStop,
    )
    out.done()
    printResult(out, result)
    return 0
  } catch (error) {
    out.done()
    if (stopped === undefined || !(error instanceof Error && error.name === 'AbortError')) throw error
    const step = error instanceof Interrupted ? error.step : 0
    const where = step === 0 ? 'Stopped before a step was done.' : `Stopped after step ${step}.`
    out.warn(`${where} The same command with --resume goes on from there.`)
    return STOP_STATUS[stopped]
  }
}

/** The modules of an encoder; neither its query encoder nor its pooling has to be known for them. */
async function modulesOf(encoder: string, onnxFile: string | undefined, out: Output): Promise<EncoderModule[]> {
  const { folder, ...known } = await locateEncoder(encoder, { onnxFile, onProgress: out.progress })
  const graph = onnxFile === undefined ? {} : { kind: 'onnx' as const, onnxFile }
  return encoderModules(await readEncoder(folder, { ...known, ...graph, pooling: 'mean' }))
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
  if (result.alreadyFinished) out.line('This run is already finished; nothing is left to do.')
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

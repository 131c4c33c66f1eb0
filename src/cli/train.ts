import { type Command, Option } from 'commander'
import { type EncoderModule, encoderModules, locateEncoder, readEncoder } from '../encoder/index.ts'
import { trainAdapter } from '../pipeline/index.ts'
import { UsageError } from '../support/errors.ts'
import { withTimeLeft } from '../support/progress.ts'
import { TFJS_BACKENDS } from '../tfjs/index.ts'
import { Interrupted, resolveSettings, type TrainSettingsInput } from '../train/index.ts'
import {
  deviceOption,
  type EncoderFlags,
  number,
  onErrorOption,
  onnxFileOption,
  poolingOptions,
  precisionOption,
  type StatedFlags,
  statedFlags,
  statedOptions,
  tableFormatOption,
  tokenBudget,
  whole,
} from './flags.ts'
import { interruptible, STOP_STATUS, type StopSignal } from './interrupt.ts'
import { modulesText } from './modules-text.ts'
import { createOutput, type Output } from './output.ts'
import { printResult, reporter } from './train-text.ts'

interface Flags
  extends Omit<TrainSettingsInput, 'benchmarkWeights' | 'kindWeights' | 'instructions' | 'dimensions'>,
    EncoderFlags,
    StatedFlags {
  encoder: string
  queryEncoder?: string
  dataset: string[]
  preferences: string[]
  output: string
  config?: string
  cache?: string
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
    .option(
      '--adapter <folder>',
      "LoRA adapter over --encoder to begin from (warm start): a run's adapter/, or PEFT's; its modules, ranks and alphas are kept",
    )
    .option('--query-encoder <folder>', 'folder or id of the frozen encoder of the questions (default: --encoder)')
    .addOption(onnxFileOption())
    .addOption(poolingOptions()[0])
    .addOption(poolingOptions()[1])
    .addOption(
      new Option('--list-modules', 'print the modules of --encoder that can be adapted, and train nothing')
        // so that only --encoder is asked for
        .implies({ dataset: [], preferences: [], output: '' }),
    )
    .option(
      '--cache <folder>',
      'keep visual features there, for evaluation and other runs too, and take them from there (default: in the run folder)',
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
    .addOption(statedOptions('default: the configuration')[0])
    .addOption(statedOptions('default: the configuration')[1])
    .addOption(statedOptions('default: the configuration')[2])
    .option('--share-prefixes', 'compute what nodes begin with alike once, in encoders that look back only (default)')
    .option('--no-share-prefixes', 'compute every node by itself')
    .addOption(onErrorOption())
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
    .addOption(precisionOption())
    .option('--threads <n>', 'threads of ONNX Runtime on the CPU (all processors)', whole(1))
    .addHelpText(
      'after',
      `
Example:
  $ canopy train --encoder models/all-MiniLM-L6-v2 --dataset datasets/hotpotqa datasets/nq \\
      --preferences hotpotqa.train.jsonl nq.train.jsonl --output runs/minilm --epochs 3 --seed 1
  $ canopy train … --device cuda --precision bf16 --token-budget auto
  $ canopy train … --adapter runs/monday/adapter --output runs/tuesday --epochs 1 --learning-rate 0.0002

With --adapter, step 0 is that adapter: the optimizer begins anew, the query encoder stays frozen, and where no later step does better
on the validation part, the adapter comes out as it went in. The run keeps a copy in start-adapter/, and training-data.json adds up
what both were trained on. --rank, --alpha and --targets that say otherwise than the adapter are refused.

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
    cache,
    queryInstruction,
    nodeInstruction,
    dimensions,
    json,
    ...settingFlags
  } = flags
  const overrides = {
    ...settingFlags,
    ...statedFlags({ queryInstruction, nodeInstruction, dimensions }),
    keep: settingFlags.keep ?? keepCheckpoints,
  }
  if (resume === true && output.trim() === '') throw new UsageError('--resume needs the --output of the run.')
  const out = createOutput({ json })
  if (listModules === true) {
    const modules = await modulesOf(encoder, onnxFile, out)
    out.json(modules)
    out.line(modulesText(modules))
    return 0
  }
  const settings = await resolveSettings(config, overrides)
  let stopped: StopSignal | undefined
  const onStop = (name: StopSignal): void => {
    stopped = name
    out.warn(`${name}: finishing the step and writing a checkpoint; once more ends at once.`)
  }
  try {
    const result = await interruptible(
      (signal) =>
        trainAdapter({
          ...{ encoder, queryEncoder, onnxFile, pooling, normalize, cache, settings },
          ...{ datasets: dataset, preferences, output, resume: resume ?? false },
          command: ['canopy', ...process.argv.slice(2)],
          // a training step's own note says what time is left
          onProgress: process.stderr.isTTY ? out.progress : withTimeLeft(out.progress),
          onStep: reporter(out, settings.adapter === null ? undefined : 'adapter that it begins from'),
          warn: out.warn,
          note: out.line,
          signal,
        }),
      onStop,
    )
    out.done()
    printResult(out, result, settings.selection)
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

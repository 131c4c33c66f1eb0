import { dirname, join, resolve } from 'node:path'
import type { Command } from 'commander'
import {
  type CanopySettings,
  locateEncoder,
  openPair,
  openReader,
  readEncoder,
  readEncoderPair,
  settingsDrift,
} from '../encoder/index.ts'
import {
  type EvaluationResult,
  evaluate,
  evaluateScores,
  looksText,
  metricsJson,
  overlapText,
  readTrainingData,
  terminalTable,
  tokensText,
} from '../eval/index.ts'
import type { TableFormatName } from '../hierarchy/index.ts'
import type { Device, Precision } from '../onnx/index.ts'
import { UsageError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import {
  deviceOption,
  type EncoderFlags,
  onErrorOption,
  onnxFileOption,
  poolingOptions,
  precisionOption,
  type StatedFlags,
  statedFlags,
  statedOptions,
  tableFormatOption,
  whole,
} from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'
import { sharedTokensText } from './shared-tokens.ts'

interface Flags extends EncoderFlags, StatedFlags {
  encoder?: string
  scores?: string[]
  frozenScores?: string[]
  name?: string
  adapter?: string
  queryEncoder?: string
  dataset: string[]
  split: string
  output: string
  title?: boolean
  tableFormat?: TableFormatName
  branching?: number
  seed: number
  resamples: number
  retrieved: boolean
  threads?: number
  device?: Device
  precision?: Precision
  tokenBudget?: number
  cache?: string
  sharePrefixes?: boolean
  onError?: 'stop' | 'skip'
  allowOverlap?: boolean
  report: boolean
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('evaluate')
    .summary('measure a node encoder against gold, frozen and with controls')
    .description(
      'Scores every node of the items of a split, refines, and compares with the gold evidence: the frozen encoder beside the\n' +
        'fine-tuned one, beside controls that never read the question and beside flat selection of leaves and nodes. Writes\n' +
        'decisions.csv, pruning.csv, selection.csv, metrics.json, summary.md, decisions.jsonl (a line for each decision node),\n' +
        'scores.jsonl (a line for each question and item, with every score) and report.html.\n\n' +
        'With --scores no encoder runs: the scores of any other model are measured in the same way, of images and videos too.',
    )
    .option('--encoder <folder>', 'node encoder: checkpoint, ONNX or exported folder, or Hugging Face id')
    .option('--scores <file...>', 'measure these scores of nodes (JSON lines, see below) as the row "fine-tuned"')
    .option('--frozen-scores <file...>', 'with --scores: scores for the row "frozen"')
    .option('--name <name>', "with --scores: the model's name for the tables")
    .option('--adapter <folder>', 'LoRA adapter over it, as runs/name/adapter')
    .option('--query-encoder <folder>', 'frozen encoder of the questions (default: --encoder without any adapter)')
    .addOption(onnxFileOption())
    .addOption(poolingOptions()[0])
    .addOption(poolingOptions()[1])
    .requiredOption('--dataset <folder...>', 'dataset folders')
    .requiredOption('--split <name>', 'split to evaluate')
    .requiredOption('--output <folder>', 'folder of the results; it changes only when all is done')
    .option('--title', "start every node's text with its item's title (default: as trained)")
    .option('--no-title', 'leave titles out')
    .addOption(tableFormatOption('default: as trained, else markdown'))
    .addOption(statedOptions('default: as trained')[0])
    .addOption(statedOptions('default: as trained')[1])
    .addOption(statedOptions('default: as trained')[2])
    .option('--branching <n>', 'children of a node of the hierarchy, at most (default: as trained, else 2)', whole(2))
    .option('--seed <n>', 'seed of the permuted questions and of the resampling', whole(0), 1)
    .option('--resamples <n>', 'resamples of the bootstrap', whole(1), 10_000)
    .option('--no-retrieved', 'score gold items only, not what was retrieved beside them')
    .option('--threads <n>', 'threads of ONNX Runtime (default: all processors)', whole(1))
    .addOption(deviceOption('where the encoders run'))
    .addOption(precisionOption())
    .option('--token-budget <n>', 'tokens computed at once; bounds memory (default: 4096)', whole(16))
    .option('--cache <folder>', 'keep embeddings and visual features there, and take them from there')
    .option('--no-share-prefixes', 'compute every node by itself, also what several begin with alike')
    .addOption(onErrorOption())
    .option('--allow-overlap', 'evaluate although sources of the split were trained on')
    .option('--no-report', 'leave out report.html, the figures and the viewer of the evidence')
    .option('--json', 'print the metrics as JSON')
    .addHelpText(
      'after',
      `
Scores: one JSON object a line, in any order, for every gold item of the split (and every other retrieved one, unless
--no-retrieved is given), with a finite score for every node of its tree:
  {"question":"q7","item":"i3","nodes":[[0,3],[0,2],[0,1],[1,2],[2,3]],"scores":[0.31,0.42,0.40,0.17,0.22]}
"benchmark" is needed where two benchmarks have a question of that id. "scores" may be {"frozen":[…],"fine-tuned":[…],
"permuted":[…]}, the last ones of another question asked in its place. Tokens are counted by the tokenizer of --encoder; without
it by the lines' own "headerTokens" and "leafTokens", which all of them have or none; without those as words. A scores.jsonl of
an evaluation is such a file.

Examples:
  $ canopy evaluate --encoder models/all-MiniLM-L6-v2 --adapter runs/minilm/adapter \\
      --dataset datasets/hotpotqa datasets/nq --split dev --output runs/minilm/eval
  $ canopy evaluate --scores reranker.jsonl --name "my reranker" --dataset datasets/hotpotqa --split dev --output results`,
    )
    .action(run)
}

async function run(flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  if (flags.scores === undefined) {
    if (flags.encoder === undefined)
      throw new UsageError('Give --encoder, or --scores to measure scores that you have.')
    if (flags.frozenScores !== undefined || flags.name !== undefined) {
      throw new UsageError('--frozen-scores and --name belong to --scores.')
    }
    return finish(await runEncoders(flags, flags.encoder, out), flags, out)
  }
  for (const name of [
    'adapter',
    'queryEncoder',
    'onnxFile',
    'pooling',
    'normalize',
    'title',
    'threads',
    'device',
    'precision',
    'tokenBudget',
    'cache',
    'queryInstruction',
    'nodeInstruction',
    'dimensions',
    'onError',
    'allowOverlap',
  ] as const) {
    if (flags[name] === undefined) continue
    const flag = name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)
    throw new UsageError(`--${flag} is of no use with --scores: nothing is embedded.`)
  }
  return finish(await runScores(flags, flags.scores, out), flags, out)
}

async function finish({ estimates, evaluation, looks }: EvaluationResult, flags: Flags, out: Output): Promise<void> {
  out.line(terminalTable(estimates, evaluation))
  for (const note of evaluation.notes) out.line(`${note}.`)
  out.line(`Tokens: ${tokensText(evaluation)}.`)
  if (flags.scores === undefined) out.line(`Overlap with the training data: ${overlapText(evaluation.overlap)}.`)
  if (looks !== undefined) out.line(`Looks: ${looksText(looks)}.`)
  out.line(`Results: ${join(flags.output, 'summary.md')} and the files beside it`)
  if (flags.report) {
    const { writeReport } = await import('../report/index.ts')
    const { output, notes } = await interruptible((signal) =>
      writeReport({ folders: [flags.output], datasets: flags.dataset, onProgress: out.progress, signal }),
    ).finally(out.done)
    for (const note of notes) out.warn(note)
    out.line(`Report: ${output}`)
  }
  if (flags.json === true) out.json({ ...JSON.parse(metricsJson(estimates, evaluation)), looks })
}

const common = (flags: Flags) => ({
  datasets: flags.dataset,
  split: flags.split,
  seed: String(flags.seed),
  resamples: flags.resamples,
  retrieved: flags.retrieved,
  output: flags.output,
})

async function runScores(flags: Flags, scores: string[], out: Output): Promise<EvaluationResult> {
  const tokenizer = flags.encoder === undefined ? undefined : await openTokenizer(flags.encoder, out)
  const { frozenScores, name, tableFormat, branching } = flags
  return interruptible(async (signal) =>
    evaluateScores({
      ...common(flags),
      ...{ scores, frozenScores, name, tokenizer, tableFormat, branching },
      looksFile: await looksFile(flags),
      onProgress: out.progress,
      signal,
    }),
  ).finally(out.done)
}

async function openTokenizer(name: string, out: Output) {
  const { folder, ...known } = await locateEncoder(name, { onProgress: out.progress })
  const profile = await readEncoder(folder, known)
  const reader = await openReader(profile)
  const special = reader.count('')
  return { name: profile.id, countTokens: (text: string) => reader.count(text) - special }
}

async function runEncoders(flags: Flags, encoderName: string, out: Output): Promise<EvaluationResult> {
  const { adapter: adapterFolder, queryEncoder, onnxFile, pooling, normalize } = flags
  const pair = await readEncoderPair(encoderName, {
    ...{ adapter: adapterFolder, queryEncoder, onnxFile, pooling, normalize },
    ...statedFlags(flags),
    onProgress: out.progress,
  })
  const { encoder, query } = pair
  for (const difference of settingsDrift(pair.settings)) out.warn(`${difference}.`)
  const trained: Partial<CanopySettings> = pair.trained ? pair.settings : {}
  const title = flags.title ?? pair.settings.title
  const tableFormat = flags.tableFormat ?? pair.settings.tableFormat
  const branching = flags.branching ?? pair.settings.branching
  if (trained.title !== undefined && trained.title !== title) {
    out.warn(`the encoder was trained ${trained.title ? 'with' : 'without'} titles, and is evaluated otherwise.`)
  }
  if (trained.tableFormat !== undefined && trained.tableFormat !== tableFormat) {
    out.warn(`the encoder was trained on tables as ${trained.tableFormat}, and is evaluated on ${tableFormat}.`)
  }
  if (trained.branching !== undefined && trained.branching !== branching) {
    out.warn(`the encoder was trained on trees of branching ${trained.branching}, and is evaluated on ${branching}.`)
  }

  const opened = await openPair(pair, {
    ...(flags.threads !== undefined && { threads: flags.threads }),
    ...(flags.device !== undefined && { device: flags.device }),
    ...(flags.precision !== undefined && { precision: flags.precision }),
    ...(flags.tokenBudget !== undefined && { tokenBudget: flags.tokenBudget }),
    ...(flags.cache !== undefined && { cache: flags.cache }),
    ...(flags.sharePrefixes !== undefined && { share: flags.sharePrefixes }),
    warn: out.warn,
  })
  const tuned = opened.node === opened.query ? undefined : opened.node
  try {
    const { reader } = opened.node
    const special = reader.count('')
    const result = await interruptible(async (signal) =>
      evaluate({
        ...common(flags),
        query: opened.query,
        frozen: opened.query,
        fineTuned: tuned,
        names: {
          query: query.id,
          frozen: query.id,
          fineTuned: adapterFolder === undefined ? encoder.id : `${encoder.id} with the adapter ${adapterFolder}`,
        },
        countTokens: (text) => reader.count(text) - special,
        tokenizer: encoder.id,
        title,
        tableFormat,
        branching,
        trainingData: tuned === undefined ? undefined : await readTrainingData(adapterFolder ?? encoderName),
        allowOverlap: flags.allowOverlap,
        onError: flags.onError,
        looksFile: await looksFile(flags),
        onProgress: out.progress,
        signal,
      }),
    ).finally(out.done)
    const counts = [opened.query, ...(tuned === undefined ? [] : [tuned])].map(({ counts }) => counts)
    const shared = sharedTokensText({
      computed: counts.reduce((sum, { computedTokens }) => sum + computedTokens, 0),
      total: counts.reduce((sum, { tokens }) => sum + tokens, 0),
    })
    if (shared !== undefined) out.line(shared)
    return result
  } finally {
    await opened.close()
  }
}

/** Where the evaluations of a run are counted: in the run that the adapter belongs to, else beside the results. */
async function looksFile({ adapter, output }: Flags): Promise<string> {
  const run = adapter === undefined ? undefined : dirname(resolve(adapter))
  const inRun = run !== undefined && (await exists(join(run, 'config.json')))
  return join(inRun ? run : dirname(resolve(output)), 'evaluations.jsonl')
}

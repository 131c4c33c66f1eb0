import { dirname, join, resolve } from 'node:path'
import type { Command } from 'commander'
import { locateEncoder, openReader, readEncoder } from '../encoder/index.ts'
import {
  type EvaluationResult,
  evaluateScores,
  looksText,
  marginText,
  metricsJson,
  overlapText,
  terminalTable,
  tokensText,
} from '../eval/index.ts'
import type { TableFormatName } from '../hierarchy/index.ts'
import type { Device, Precision } from '../onnx/index.ts'
import { evaluateEncoder, type ValidationSplit, validationSplit } from '../pipeline/index.ts'
import { UsageError } from '../support/errors.ts'
import {
  deviceOption,
  type EncoderFlags,
  marginOption,
  number,
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
  margin?: number
  minRecall?: number
  validationDataset?: string[]
  validationSplit?: string
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
        'decisions.csv, pruning.csv, selection.csv, margins.csv, metrics.json, summary.md, decisions.jsonl (a line for each\n' +
        'decision node), scores.jsonl (a line for each question and item, with every score) and report.html.\n\n' +
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
    .option('--allow-overlap', 'evaluate although sources of the split, or of --validation-split, were trained on')
    .addOption(
      marginOption(
        'measure the split at this margin of refinement, too (default: that of canopy.json, where it has one)',
      ),
    )
    .option(
      '--min-recall <share>',
      'pick the smallest margin whose gold recall on validation data reaches this, as 0.9, and measure the split at it',
      number,
    )
    .option(
      '--validation-split <name>',
      "with --min-recall: split to pick on (default: the validation part of the adapter's run)",
    )
    .option('--validation-dataset <folder...>', 'with --validation-split: its datasets (default: --dataset)')
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

Margins: refinement with a margin m goes into a child that scores at most m below its parent, too, where a child scores as high
as the parent. All figures are of margin 0, the rule; margins.csv and report.html show what other margins keep. --min-recall picks
one on questions of sources that neither the split has nor the adapter was trained on, and the results say what it does on the
split. With --scores, lines for the --validation-split stand in those files, too.

Examples:
  $ canopy evaluate --encoder models/all-MiniLM-L6-v2 --adapter runs/minilm/adapter \\
      --dataset datasets/hotpotqa datasets/nq --split dev --output runs/minilm/eval --min-recall 0.9
  $ canopy evaluate --scores reranker.jsonl --name "my reranker" --dataset datasets/hotpotqa --split dev --output results`,
    )
    .action(run)
}

async function run(flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  if (flags.minRecall === undefined && (flags.validationSplit ?? flags.validationDataset) !== undefined)
    throw new UsageError('--validation-split and --validation-dataset belong to --min-recall.')
  if (flags.validationDataset !== undefined && flags.validationSplit === undefined)
    throw new UsageError('--validation-dataset needs --validation-split, the split of it to pick a margin on.')
  if (flags.minRecall !== undefined && flags.margin !== undefined)
    throw new UsageError('--min-recall picks a margin, --margin states one; give one of them.')
  if (flags.minRecall !== undefined && !(flags.minRecall > 0))
    throw new UsageError('--min-recall is a share above 0 and at most 1, as 0.9.')
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
  const margin = marginText(estimates, evaluation)
  if (margin !== undefined) out.line(`\n${margin}\n`)
  out.line(`Results: ${join(flags.output, 'summary.md')} and the files beside it`)
  if (flags.report) {
    const { writeReport } = await import('../report/index.ts')
    const { output, notes } = await interruptible((signal) =>
      writeReport({ folders: [flags.output], datasets: flags.dataset, onProgress: out.progress, signal }),
    ).finally(out.done)
    for (const note of notes) out.warn(note)
    out.line(`Report: ${output}`)
  }
  out.json({ ...JSON.parse(metricsJson(estimates, evaluation)), looks })
}

const common = ({ dataset: datasets, split, seed, resamples, retrieved, output, minRecall }: Flags) => ({
  ...{ datasets, split, seed: String(seed), resamples, retrieved, output, minRecall },
})

/** The split that is named to pick a margin on. */
const validationFlags = ({
  validationSplit: split,
  validationDataset: datasets,
}: Flags): ValidationSplit | undefined => (split === undefined ? undefined : { split, datasets })

async function runScores(flags: Flags, scores: string[], out: Output): Promise<EvaluationResult> {
  const tokenizer = flags.encoder === undefined ? undefined : await openTokenizer(flags.encoder, out)
  const { frozenScores, name, tableFormat, branching, margin } = flags
  const validation = validationFlags(flags)
  return interruptible((signal) =>
    evaluateScores({
      ...common(flags),
      ...{ scores, frozenScores, name, tokenizer, tableFormat, branching },
      ...(margin !== undefined && { margin: { value: margin, origin: 'stated' } }),
      ...(validation !== undefined && { validation: validationSplit(validation, flags.dataset) }),
      looksFile: join(dirname(resolve(flags.output)), 'evaluations.jsonl'),
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

async function runEncoders(flags: Flags, encoder: string, out: Output): Promise<EvaluationResult> {
  const result = await interruptible((signal) =>
    evaluateEncoder({
      ...flags,
      ...common(flags),
      ...statedFlags(flags),
      ...{ encoder, validation: validationFlags(flags) },
      ...(flags.sharePrefixes !== undefined && { share: flags.sharePrefixes }),
      ...{ onProgress: out.progress, warn: out.warn, signal },
    }),
  ).finally(out.done)
  const shared = sharedTokensText(result.tokens)
  if (shared !== undefined) out.line(shared)
  return result
}

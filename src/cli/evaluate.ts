import { dirname, join, resolve } from 'node:path'
import type { Command } from 'commander'
import {
  type CanopySettings,
  type Embedder,
  type EmbedderOptions,
  type EncoderProfile,
  openEmbedder,
  readEncoderPair,
  settingsDrift,
} from '../encoder/index.ts'
import { evaluate, looksText, metricsJson, overlapText, readTrainingData, terminalTable } from '../eval/index.ts'
import type { TableFormatName } from '../hierarchy/index.ts'
import { exists } from '../support/files.ts'
import { tableFormatOption, whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput } from './output.ts'

interface Flags {
  encoder: string
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
  tokenBudget?: number
  cache?: string
  allowOverlap?: boolean
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('evaluate')
    .summary('measure a node encoder against gold, frozen and with controls')
    .description(
      'Scores every node of the items of a split, refines, and compares with the gold evidence: the frozen encoder beside the\n' +
        'fine-tuned one and beside controls that never read the question. Writes decisions.csv, pruning.csv, metrics.json,\n' +
        'summary.md and decisions.jsonl.',
    )
    .requiredOption(
      '--encoder <folder>',
      'node encoder: a checkpoint, or an exported folder; folder or Hugging Face id',
    )
    .option('--adapter <folder>', 'LoRA adapter over it, as runs/name/adapter')
    .option('--query-encoder <folder>', 'frozen encoder of the questions (default: --encoder without any adapter)')
    .requiredOption('--dataset <folder...>', 'dataset folders')
    .requiredOption('--split <name>', 'split to evaluate')
    .requiredOption('--output <folder>', 'folder of the results; it changes only when all is done')
    .option('--title', "start every node's text with its item's title (default: as trained)")
    .option('--no-title', 'leave titles out')
    .addOption(tableFormatOption('default: as trained, else markdown'))
    .option('--branching <n>', 'children of a node of the hierarchy, at most (default: as trained, else 2)', whole(2))
    .option('--seed <n>', 'seed of the permuted questions and of the resampling', whole(0), 1)
    .option('--resamples <n>', 'resamples of the bootstrap', whole(1), 10_000)
    .option('--no-retrieved', 'score gold items only, not what was retrieved beside them')
    .option('--threads <n>', 'threads of ONNX Runtime (default: all processors)', whole(1))
    .option('--token-budget <n>', 'tokens computed at once; bounds memory (default: 4096)', whole(16))
    .option('--cache <folder>', 'keep node embeddings there, and take them from there')
    .option('--allow-overlap', 'evaluate although sources of the split were trained on')
    .option('--json', 'print the metrics as JSON')
    .addHelpText(
      'after',
      `
Example:
  $ canopy evaluate --encoder models/all-MiniLM-L6-v2 --adapter runs/minilm/adapter \\
      --dataset datasets/hotpotqa datasets/nq --split dev --output runs/minilm/eval`,
    )
    .action(run)
}

async function run(flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  const { adapter: adapterFolder, queryEncoder } = flags
  const pair = await readEncoderPair(flags.encoder, { adapter: adapterFolder, queryEncoder, onProgress: out.progress })
  const { encoder, query, adapter } = pair
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

  const options: EmbedderOptions = {
    ...(flags.threads !== undefined && { threads: flags.threads }),
    ...(flags.tokenBudget !== undefined && { tokenBudget: flags.tokenBudget }),
    ...(flags.cache !== undefined && { cache: flags.cache }),
  }
  const opened: Embedder[] = []
  const open = async (profile: EncoderProfile, more: EmbedderOptions = {}): Promise<Embedder> => {
    const embedder = await openEmbedder(profile, { ...options, ...more })
    opened.push(embedder)
    return embedder
  }
  try {
    const frozen = await open(query)
    const tuned =
      adapter !== undefined
        ? await open(encoder, { adapter })
        : encoder.fingerprint !== query.fingerprint
          ? await open(encoder)
          : undefined
    const { tokenizer } = tuned ?? frozen
    const special = tokenizer.count('')
    const result = await interruptible(async (signal) =>
      evaluate({
        datasets: flags.dataset,
        split: flags.split,
        query: frozen,
        frozen,
        fineTuned: tuned,
        names: {
          query: query.id,
          frozen: query.id,
          fineTuned: flags.adapter === undefined ? encoder.id : `${encoder.id} with the adapter ${flags.adapter}`,
        },
        countTokens: (text) => tokenizer.count(text) - special,
        tokenizer: encoder.id,
        title,
        tableFormat,
        branching,
        seed: String(flags.seed),
        resamples: flags.resamples,
        retrieved: flags.retrieved,
        trainingData: tuned === undefined ? undefined : await readTrainingData(flags.adapter ?? flags.encoder),
        allowOverlap: flags.allowOverlap,
        output: flags.output,
        looksFile: await looksFile(flags),
        onProgress: out.progress,
        signal,
      }),
    ).finally(out.done)
    const { estimates, evaluation, looks } = result
    out.line(terminalTable(estimates))
    for (const note of evaluation.notes) out.line(`${note}.`)
    out.line(`Overlap with the training data: ${overlapText(evaluation.overlap)}.`)
    if (looks !== undefined) out.line(`Looks: ${looksText(looks)}.`)
    out.line(`Results: ${join(flags.output, 'summary.md')} and the files beside it`)
    if (flags.json === true) out.json({ ...JSON.parse(metricsJson(estimates, evaluation)), looks })
  } finally {
    for (const embedder of opened) await embedder.close()
  }
}

/** Where the evaluations of a run are counted: in the run that the adapter belongs to, else beside the results. */
async function looksFile({ adapter, output }: Flags): Promise<string> {
  const run = adapter === undefined ? undefined : dirname(resolve(adapter))
  const inRun = run !== undefined && (await exists(join(run, 'config.json')))
  return join(inRun ? run : dirname(resolve(output)), 'evaluations.jsonl')
}

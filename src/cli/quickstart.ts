import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { Command } from 'commander'
import pc from 'picocolors'
import { openDataset } from '../data/index.ts'
import { createRandomBert } from '../encoder/index.ts'
import { trainingTexts } from '../reproduce/index.ts'
import { InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import { register as registerEvaluate } from './evaluate.ts'
import { register as registerExport } from './export.ts'
import { createOutput, redirectLines } from './output.ts'
import { register as registerPreferences } from './preferences.ts'
import { register as registerRefine } from './refine.ts'
import { register as registerReport } from './report.ts'
import { register as registerTrain } from './train.ts'

interface Flags {
  encoder?: string
  output: string
  seed: string
  json?: boolean
}

/** Marks a folder as one that the quickstart may replace. */
const MARKER = 'quickstart.txt'

export function register(program: Command): void {
  program
    .command('quickstart')
    .summary('all of it on the sample data: pairs, training, table, export, a refined passage')
    .description(
      'Runs the other verbs one after the other on the data set that comes with the toolkit, printing each command. Without\n' +
        '--encoder it trains a small BERT with random weights, to show the way; a real encoder gives real results.',
    )
    .option('--encoder <folder>', 'checkpoint to train instead of the random one; folder or Hugging Face id')
    .option(
      '--output <folder>',
      'folder of everything it makes; an older quickstart there is replaced',
      'runs/quickstart',
    )
    .option('--seed <n>', 'seed of the random encoder and of training', '1')
    .option('--json', 'print the measured metrics and where everything is as JSON; the rest goes to standard error')
    .addHelpText(
      'after',
      `
Example:
  $ canopy quickstart
  $ canopy quickstart --encoder sentence-transformers/all-MiniLM-L6-v2`,
    )
    .action(run)
}

async function run({ encoder: given, output, seed, json }: Flags): Promise<void> {
  const started = performance.now()
  if (json) redirectLines(process.stderr)
  const out = createOutput({})
  const step = (text: string): void => out.line(`\n${pc.bold(text)}`)
  const dataset = fileURLToPath(new URL('../../datasets/sample', import.meta.url))
  const config = fileURLToPath(new URL('../../configs/quickstart.yaml', import.meta.url))
  if (!(await exists(dataset)))
    throw new InputError('The sample data set is missing from this installation.', { file: dataset })
  await startFolder(output)

  const place = (name: string): string => join(output, name)
  const encoder = given ?? place('encoder')
  if (given === undefined) {
    step('An encoder: a small BERT with random weights')
    out.line(
      'No --encoder was given. This one knows no language, and random position vectors drown its word vectors: most of what\n' +
        'it learns below is to listen to the words. It shows the way, not what a trained encoder is worth.',
    )
    await createRandomBert(encoder, {
      seed,
      vocabularyFrom: await trainingTexts([{ folder: dataset, split: 'train' }]),
    })
  }
  const shared = ['--encoder', encoder]
  const adapter = ['--adapter', join(place('run'), 'adapter')]
  const pairs = place('preferences.jsonl')

  step('Preference pairs from the gold sentences of the training questions')
  await canopy(['preferences', '--dataset', dataset, '--split', 'train', '--output', pairs])
  step('Training: a ranking loss on LoRA adapters, the query encoder frozen')
  await canopy(
    [
      'train',
      ...shared,
      '--dataset',
      dataset,
      '--preferences',
      pairs,
      '--config',
      config,
      '--output',
      place('run'),
    ].concat(['--seed', seed]),
  )
  step('Evaluation on questions about subjects that training never saw, beside policies that never read the question')
  const measured = ['--dataset', dataset, '--split', 'dev', '--output', place('eval'), '--no-report']
  await canopy(['evaluate', ...shared, ...adapter, ...measured])
  step('A report: one HTML file with the curves, the figures and every refinement, step by step')
  await canopy(['report', place('run'), place('eval'), '--dataset', dataset, '--output', place('report.html')])
  step('Export: one ONNX folder, checked against the trained encoder')
  await canopy(['export', ...shared, ...adapter, '--bundle', '--output', place('export')])

  const example = await firstExample(dataset)
  await writeFile(place('example.json'), `${JSON.stringify(example.item, null, 2)}\n`)
  step(`Refinement of a passage with the exported encoder: what is kept (+) and dropped (-) for "${example.question}"`)
  await canopy(['refine', '--encoder', place('export'), '--query', example.question, '--input', place('example.json')])

  const seconds = Math.round((performance.now() - started) / 1000)
  out.line(`\nDone in ${seconds} s on ${availableParallelism()} cores. Everything is in ${output}/.`)
  if (json) {
    const metrics: unknown = JSON.parse(await readFile(join(place('eval'), 'metrics.json'), 'utf8'))
    createOutput({ json }).json({ output, adapter: adapter[1], export: place('export'), seconds, metrics })
  }
}

/** Runs a verb as the command line would, after showing the command. */
async function canopy(args: string[]): Promise<void> {
  createOutput({}).line(pc.cyan(`$ canopy ${args.map(quoted).join(' ')}`))
  const program = new Command('canopy').exitOverride()
  for (const register of [
    registerPreferences,
    registerTrain,
    registerEvaluate,
    registerReport,
    registerExport,
    registerRefine,
  ])
    register(program)
  await program.parseAsync(args, { from: 'user' })
  // training that was interrupted says so, sets the status and returns
  if (process.exitCode) throw new DOMException('A step was interrupted.', 'AbortError')
}

function quoted(arg: string): string {
  return /^[\w./@:=-]+$/.test(arg) ? arg : `'${arg.replaceAll("'", "'\\''")}'`
}

async function startFolder(output: string): Promise<void> {
  if (await exists(output)) {
    if (!(await exists(join(output, MARKER))))
      throw new InputError('The folder exists and was not made by the quickstart. Choose another --output.', {
        file: output,
      })
    await rm(output, { recursive: true })
  }
  await mkdir(output, { recursive: true })
  await writeFile(join(output, MARKER), 'Made by "canopy quickstart", which replaces this folder when it runs again.\n')
}

/** The first dev question and its gold item. */
async function firstExample(folder: string): Promise<{ question: string; item: unknown }> {
  const dataset = await openDataset(folder)
  try {
    for await (const { question } of dataset.questions('dev')) {
      const gold = question.gold[0]
      if (gold === undefined) continue
      const item = await dataset.item(gold.item)
      if (item.modality !== 'text') continue
      const { title, text } = item
      return { question: question.question, item: { title, text } }
    }
    throw new InputError('The sample data set has no dev question with gold.', { file: folder })
  } finally {
    await dataset.close()
  }
}

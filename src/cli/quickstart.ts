import { rm } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import { join, relative, resolve } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { Command } from 'commander'
import pc from 'picocolors'
import { openDataset } from '../data/index.ts'
import { readEncoderPair } from '../encoder/index.ts'
import { InputError, UsageError } from '../support/errors.ts'
import { exists, fileError, writeFileAtomic } from '../support/files.ts'
import { register as registerEvaluate } from './evaluate.ts'
import { register as registerExport } from './export.ts'
import { whole } from './flags.ts'
import { createOutput, redirectLines } from './output.ts'
import { register as registerPreferences } from './preferences.ts'
import { quickstartTable, readQuickstartMetrics } from './quickstart-table.ts'
import { register as registerRefine } from './refine.ts'
import { register as registerReport } from './report.ts'
import { register as registerTrain } from './train.ts'

interface Flags {
  encoder?: string
  output: string
  seed: number
  json?: boolean
}

/** Marks a folder as one that the quickstart may replace. */
const MARKER = 'quickstart.txt'

export function register(program: Command): void {
  program
    .command('quickstart')
    .summary('all of it on the sample data: pairs, training, table, export, a refined passage')
    .description(
      'Runs the other verbs one after the other on the data set and the small encoder that come with the toolkit, printing\n' +
        'each command, and ends with what fine-tuning brought: frozen, fine-tuned and every control in one table.',
    )
    .option('--encoder <folder>', 'checkpoint to train instead of models/canopy-mini; folder or Hugging Face id')
    .option(
      '--output <folder>',
      'folder of everything it makes; an older quickstart there is replaced',
      'runs/quickstart',
    )
    .option('--seed <n>', 'seed of training', whole(0), 1)
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
  if (output.trim() === '') throw new UsageError('--output needs the name of a folder.')
  if (json) redirectLines(process.stderr)
  const out = createOutput({})
  const step = (text: string): void => out.line(`\n${pc.bold(text)}`)
  const dataset = packaged('datasets/sample')
  const config = packaged('configs/quickstart.yaml')
  const program = packaged('examples/refine.mjs')
  const encoder = given ?? packaged('models/canopy-mini')
  await requireInstalled([dataset, config, program])
  if (given === undefined)
    await requireInstalled([encoder], ' Install it again, or name another encoder (--encoder <folder>).')
  // an encoder that cannot be read must not cost the older quickstart
  await readEncoderPair(encoder, { onProgress: out.progress }).finally(out.done)
  await startFolder(output)

  const place = (name: string): string => join(output, name)
  const shared = ['--encoder', encoder]
  const adapter = ['--adapter', join(place('run'), 'adapter')]
  // in the run's folder, where the report and the exported model card look for it
  const evaluation = join(place('run'), 'eval')
  const pairs = place('preferences.jsonl')

  step('Preference pairs from the gold sentences and rows of the training questions')
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
    ].concat(['--seed', String(seed)]),
  )
  step('Evaluation on questions about subjects that training never saw, beside policies that never read the question')
  const measured = ['--dataset', dataset, '--split', 'dev', '--output', evaluation, '--no-report']
  await canopy(['evaluate', ...shared, ...adapter, ...measured])
  step('A report: one HTML file with the curves, the figures and every refinement, step by step')
  const report = place('report.html')
  await canopy(['report', place('run'), '--dataset', dataset, '--output', report])
  step('Export: one ONNX folder, checked against the trained encoder')
  await canopy(['export', ...shared, ...adapter, '--bundle', '--output', place('export')])

  const example = await firstExample(dataset)
  await writeFileAtomic(place('example.json'), `${JSON.stringify(example.item, null, 2)}\n`)
  step(`Refinement of a passage with the exported encoder: what is kept (+) and dropped (-) for "${example.question}"`)
  await canopy(['refine', '--encoder', place('export'), '--query', example.question, '--input', place('example.json')])

  const metrics = await readQuickstartMetrics(evaluation)
  step('What fine-tuning brought, on subjects that training never saw')
  out.line(quickstartTable(metrics))

  const seconds = Math.round((performance.now() - started) / 1000)
  out.line(`\nDone in ${seconds} s on ${availableParallelism()} cores.`)
  out.line(`The report      ${pathToFileURL(resolve(report)).href}`)
  out.line(`The encoder     ${place('export')}`)
  out.line(`A program       ${pc.cyan(`node ${[program, place('export')].map(quoted).join(' ')}`)}`)
  if (json)
    createOutput({ json }).json({
      output,
      encoder,
      adapter: adapter[1],
      export: place('export'),
      report,
      seconds,
      metrics,
    })
}

/** A file or folder of this package, as the working directory names it where it lies below. */
function packaged(name: string): string {
  const path = fileURLToPath(new URL(`../../${name}`, import.meta.url))
  const below = relative(process.cwd(), path)
  return below.startsWith('..') ? path : below
}

/** @throws InputError naming the first that is missing from the installation */
async function requireInstalled(paths: string[], remedy = ' Install it again.'): Promise<void> {
  for (const file of paths) {
    if (!(await exists(file)))
      throw new InputError(`The installation is incomplete: this is missing.${remedy}`, { file })
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

/** @throws InputError when something is there that no quickstart made, or the folder cannot be made */
async function startFolder(output: string): Promise<void> {
  if (await exists(output)) {
    if (!(await exists(join(output, MARKER))))
      throw new InputError('This exists and was not made by the quickstart. Choose another --output.', { file: output })
    await rm(output, { recursive: true }).catch((error: unknown) => {
      throw fileError(error, 'cannot replace the older quickstart', output)
    })
  }
  await writeFileAtomic(
    join(output, MARKER),
    'Made by "canopy quickstart", which replaces this folder when it runs again.\n',
  )
}

/** Characters of an item whose every region canopy-mini reads in full, and whose tree fits a screen. */
const EXAMPLE_LENGTH = 900

/** The first dev question about a short text, and that text. */
async function firstExample(folder: string): Promise<{ question: string; item: unknown }> {
  const dataset = await openDataset(folder)
  try {
    for await (const { question } of dataset.questions('dev')) {
      const gold = question.gold[0]
      if (gold === undefined) continue
      const item = await dataset.item(gold.item)
      if (item.modality !== 'text' || item.text.length > EXAMPLE_LENGTH) continue
      const { title, text } = item
      return { question: question.question, item: { title, text } }
    }
    throw new InputError('The sample data set has no dev question about a short text.', { file: folder })
  } finally {
    await dataset.close()
  }
}

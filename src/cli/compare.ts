import { join } from 'node:path'
import { type Command, Option } from 'commander'
import {
  checkRequirements,
  compare,
  comparisonCsv,
  comparisonJson,
  comparisonMarkdown,
  comparisonText,
  ENCODERS,
  parseRequirement,
  type RowName,
  requireResultsFolder,
  SELECTORS,
} from '../eval/index.ts'
import { atomicFolder, writeFileAtomic } from '../support/files.ts'
import { whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput } from './output.ts'

interface Flags {
  encoderA?: RowName
  encoderB?: RowName
  require?: string[]
  common?: boolean
  output?: string
  seed: number
  resamples: number
  json?: boolean
}

/** Exit status when everything worked and a requirement is not met. */
const UNMET = 3

const FILES = ['comparison.csv', 'comparison.md', 'comparison.json']

export function register(program: Command): void {
  const row = (flag: string, side: string): Option =>
    new Option(`${flag} <row>`, `whose choices to take from ${side} (default: fine-tuned, else frozen)`).choices([
      ...ENCODERS,
      ...SELECTORS,
    ])
  program
    .command('compare')
    .summary('tell whether one evaluation is better than another')
    .description(
      'Compares two folders that "canopy evaluate" wrote for the same data: the difference B − A of every metric with its paired\n' +
        '95 % interval (bootstrap over sources), and in words where B is better, worse, or cannot be told from A.',
    )
    .argument('<A>', 'folder of an evaluation')
    .argument('<B>', 'folder of another one, or the same, to compare rows of it')
    .addOption(row('--encoder-a', 'A'))
    .addOption(row('--encoder-b', 'B'))
    .option('--require <expression...>', 'exit with status 3 unless the difference is like this, see below')
    .option('--common', 'compare the items of questions that both have, though the data differ')
    .option('--output <folder>', `write ${FILES.join(', ')} there`)
    .option('--seed <n>', 'seed of the resampling', whole(0), 1)
    .option('--resamples <n>', 'resamples of the bootstrap', whole(1), 10_000)
    .option('--json', 'print the comparison as JSON')
    .addHelpText(
      'after',
      `
Requirements: metric[.value][@benchmark] followed by >=, >, <= or < and a number of points (of tokens for tokens_… and
kept_tokens). The bound of the 95 % interval on the unfavourable side has to fit: the lower one for >= and >, the upper one for
<= and <. With .value the difference itself has to. Without @benchmark the pooled difference is meant, with @* that of each benchmark.

Examples:
  $ canopy compare runs/first/eval runs/second/eval
  $ canopy compare runs/first/eval runs/second/eval --require 'decision_accuracy >= 0' 'retained_tokens@HotpotQA <= -5'
  $ canopy compare runs/minilm/eval runs/minilm/eval --encoder-a always-left --require 'decision_accuracy.value@* >= 8'`,
    )
    .action(run)
}

async function run(a: string, b: string, flags: Flags): Promise<void> {
  const out = createOutput(flags)
  const { encoderA, encoderB, common, output } = flags
  const requirements = (flags.require ?? []).map(parseRequirement)
  if (output !== undefined) await requireResultsFolder(output, FILES)
  const comparison = await interruptible((signal) =>
    compare({
      ...{ a, b, rowA: encoderA, rowB: encoderB, common },
      seed: String(flags.seed),
      resamples: flags.resamples,
      onProgress: out.progress,
      signal,
    }),
  ).finally(out.done)
  const checked = checkRequirements(requirements, comparison)
  const json = comparisonJson(comparison, checked)
  if (output !== undefined) {
    await atomicFolder(output, async (folder) => {
      await writeFileAtomic(join(folder, 'comparison.csv'), comparisonCsv(comparison))
      await writeFileAtomic(join(folder, 'comparison.md'), comparisonMarkdown(comparison, checked))
      await writeFileAtomic(join(folder, 'comparison.json'), json)
    })
  }
  out.line(comparisonText(comparison, checked))
  if (output !== undefined) out.line(`Written: ${FILES.map((name) => join(output, name)).join(', ')}`)
  out.json(JSON.parse(json))
  if (checked.some(({ met }) => !met)) process.exitCode = UNMET
}

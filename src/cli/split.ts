import { type Command, InvalidArgumentError } from 'commander'
import { type SplitSummary, splitDataset } from '../data/index.ts'
import { UsageError } from '../support/errors.ts'
import { whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags {
  from: string
  into: string[]
  dev: number
  seed: number
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('split')
    .summary('divide a split in two, keeping together what belongs together')
    .description(
      'Divides the questions of a split between two new ones. Questions of one source, and questions that share a gold item or have\n' +
        'gold in parts of one document, stay on one side, so that nothing of dev is seen in training. The dataset folder is\n' +
        'changed in place; preferences built before have to be built again.',
    )
    .argument('<dataset>', 'dataset folder')
    .requiredOption('--from <name>', 'split to divide; it is gone afterwards, unless a new one has its name')
    .requiredOption('--into <names...>', 'names of the two new splits, train first')
    .requiredOption('--dev <share>', 'share of the questions that the second one gets, as 0.2', share)
    .option('--seed <n>', 'seed of the draw', whole(0), 1)
    .option('--json', 'print the summary as JSON')
    .addHelpText(
      'after',
      `
Example:
  $ canopy split datasets/mine --from all --into train dev --dev 0.2`,
    )
    .action(run)
}

function share(value: string): number {
  const n = Number(value)
  if (!(n > 0 && n < 1)) throw new InvalidArgumentError('A number between 0 and 1 was expected.')
  return n
}

async function run(folder: string, flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  const [train, dev, ...more] = flags.into
  if (train === undefined || dev === undefined || more.length > 0) {
    throw new UsageError(`--into takes two names, as "--into train dev"; ${flags.into.length} were given.`)
  }
  const summary = await interruptible((signal) =>
    splitDataset({
      folder,
      from: flags.from,
      into: [train, dev],
      dev: flags.dev,
      seed: String(flags.seed),
      onProgress: out.progress,
      signal,
    }),
  ).finally(out.done)
  print(summary, out)
}

function print(summary: SplitSummary, out: Output): void {
  out.json(summary)
  const { splits, largestGroup, sharedItems } = summary
  const percent = (value: number): string => `${(100 * value).toFixed(1)} %`
  out.line(`${summary.dataset}: split "${summary.from}" divided (seed ${summary.seed})`)
  for (const [name, side] of Object.entries(splits)) {
    out.line(
      `  "${name}": ${side.questions} questions in ${side.groups} groups, ${side.goldItems} gold items, ${side.items} items named`,
    )
    const variants = Object.entries(side.variants).filter(([variant]) => variant !== '')
    if (variants.length > 0) out.line(`      of them ${variants.map(([variant, n]) => `${n} ${variant}`).join(', ')}`)
  }
  out.line(`  share: ${percent(summary.share)}, asked for ${percent(summary.wanted)}`)
  const origin = largestGroup.source === undefined ? '' : `, source "${largestGroup.source}"`
  out.line(`  largest group: ${largestGroup.questions} questions (that of "${largestGroup.question}"${origin})`)
  out.line(`  ${sharedItems} items are named on both sides, none of them gold on both`)
}

import type { Command } from 'commander'
import { openDataset } from '../data/index.ts'
import { buildPreferences, type PreferenceSummary } from '../preferences/index.ts'
import { whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags {
  dataset: string
  split: string
  output: string
  branching: number
  variants: boolean
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('preferences')
    .summary('build preference pairs from gold evidence')
    .description(
      "Walks the hierarchy of every gold item of a split and writes which node shall score higher than which: a node's\n" +
        'child with gold above the node, the node above a child without, a node that is gold throughout above its children.',
    )
    .requiredOption('--dataset <dataset>', 'dataset folder')
    .requiredOption('--split <name>', 'split whose questions to use')
    .requiredOption('--output <file.jsonl>', 'file to write; it changes only when all is built')
    .option('--branching <n>', 'children of a node of the hierarchy, at most', whole(2), 2)
    .option('--no-variants', 'leave out questions that are marked with a variant; training is told')
    .option('--json', 'print the summary as JSON')
    .addHelpText(
      'after',
      `
Example:
  $ canopy preferences --dataset datasets/sample --split train --output runs/sample-train.jsonl`,
    )
    .action(run)
}

async function run(flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  const dataset = await openDataset(flags.dataset)
  try {
    const summary = await interruptible((signal) =>
      buildPreferences({
        ...flags,
        variants: flags.variants ? 'keep' : 'leave-out',
        dataset,
        onProgress: out.progress,
        signal,
      }),
    ).finally(out.done)
    print(summary, out)
  } finally {
    await dataset.close()
  }
}

const PLACES_SHOWN = 5

function print(summary: PreferenceSummary, out: Output): void {
  const { withoutPairs, decisions, pairs, droppedAnnotations } = summary
  const list = (counts: Record<string, number>): string =>
    Object.entries(counts)
      .map(([name, n]) => `${n} ${name}`)
      .join(', ')
  out.json(summary)
  out.line(`${summary.output}: preferences of "${summary.dataset}", split "${summary.split}"`)
  out.line(`  ${summary.questions} questions, ${summary.questionsWithoutGold} of them without gold`)
  for (const [name, n] of Object.entries(summary.questionsByVariant)) out.line(`      ${n} of the variant "${name}"`)
  if (summary.variantsLeftOut > 0) out.line(`      ${summary.variantsLeftOut} left out because of their variant`)
  out.line(`  ${summary.instances} instances (question and gold item)`)
  out.line(`      ${withoutPairs.oneLeaf} without pairs: the item has one leaf`)
  out.line(`      ${withoutPairs.noGoldLeaf} without pairs: no leaf is gold`)
  if (summary.mergedEntries > 0)
    out.line(`      ${summary.mergedEntries} gold entries merged into another of their item`)
  out.line(`  ${decisions.total} decision nodes: ${list(decisions.cases)}`)
  out.line(`  ${pairs.total} pairs: ${list(pairs.kinds)}`)
  for (const { reason, count, places } of droppedAnnotations.reasons) {
    out.line(`  ${count} × annotation dropped: ${reason}`)
    for (const { question, item, line, annotation } of places.slice(0, PLACES_SHOWN)) {
      out.line(`      questions.jsonl:${line}: question "${question}", item "${item}": ${JSON.stringify(annotation)}`)
    }
    if (count > PLACES_SHOWN) out.line(`      … and ${count - PLACES_SHOWN} more (--json lists more places)`)
  }
}

import { Argument, type Command, InvalidArgumentError, Option } from 'commander'
import {
  type ImportOptions,
  type ImportSummary,
  import2wiki,
  importHotpotqa,
  importJsonl,
  importNq,
  importOttqa,
  type JsonlOptions,
} from '../data/index.ts'
import { UsageError } from '../support/errors.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags extends Omit<JsonlOptions, 'inputs'> {
  input: string[]
  maxRecordMb?: number
  json?: boolean
}

type Split = { split: string }

const formats: Record<string, (options: ImportOptions & Split) => Promise<ImportSummary>> = {
  hotpotqa: importHotpotqa,
  '2wiki': import2wiki,
  nq: importNq,
  ottqa: importOttqa,
}

export function register(program: Command): void {
  program
    .command('import')
    .summary('turn files with gold evidence into a dataset folder')
    .description(
      'Reads files in one of the formats and writes a dataset folder (dataset.json, items.jsonl, questions.jsonl), or adds\n' +
        'another split to one. Files are streamed, .gz is decompressed, and the folder changes only when all is read.',
    )
    .addArgument(new Argument('<format>', 'format of the input').choices(['jsonl', ...Object.keys(formats)]))
    .requiredOption('--input <file...>', 'files to read; jsonl: items and questions in any order, or a folder of both')
    .requiredOption('--output <dataset>', 'dataset folder to write or to add to')
    .option('--split <name>', 'split that the questions belong to (jsonl: may stand in the questions instead)')
    .addOption(
      new Option('--on-error <what>', 'on a fault in the input: write nothing, or leave the record out and count it')
        .choices(['stop', 'skip'])
        .default('stop'),
    )
    .addOption(
      new Option('--offsets <unit>', 'jsonl: what the offsets of spans and sentences count')
        .choices(['utf16', 'codepoint', 'byte'])
        .default('utf16'),
    )
    .option('--benchmark <name>', "jsonl: benchmark of questions that name none (default: the folder's name)")
    .option('--name <name>', "name of the dataset (default: the folder's name)")
    .option('--source <text>', 'where the data come from, for dataset.json')
    .option('--licence <text>', 'licence of the data, for dataset.json')
    .option('--max-record-mb <n>', 'largest record allowed, in MiB; bounds memory (default: 64)', positive)
    .option('--json', 'print the summary as JSON')
    .addHelpText(
      'after',
      `
Examples:
  $ canopy import hotpotqa --input hotpot_train_v1.1.json --split train --output datasets/hotpotqa
  $ canopy import hotpotqa --input hotpot_dev_distractor_v1.json --split dev --output datasets/hotpotqa
  $ canopy import nq --input v1.0-simplified_simplified-nq-train.jsonl.gz --split train --output datasets/nq
  $ canopy import ottqa --input dev.traced.json traindev_tables_tok traindev_request_tok --split dev --output datasets/ottqa
  $ canopy import jsonl --input items.jsonl questions.jsonl --split train --offsets codepoint --output datasets/mine

Your own data (jsonl), one object a line:
  {"id": "a", "title": "Otters", "text": "Otters swim. They hold hands when they sleep."}
  {"id": "q1", "question": "What do otters do asleep?", "answers": ["hold hands"],
   "gold": [{"item": "a", "quotes": ["They hold hands when they sleep."]}]}
Gold is given as "quotes", as "spans" [[start, end], ...] (or [start, end, "text"] to have the text checked), or "whole": true.`,
    )
    .action(run)
}

function positive(value: string): number {
  const n = Number(value)
  if (!(n > 0) || !Number.isFinite(n)) throw new InvalidArgumentError('A number above 0 was expected.')
  return n
}

async function run(format: string, flags: Flags): Promise<void> {
  const { input, maxRecordMb, json, ...rest } = flags
  const out = createOutput({ json })
  const summary = await interruptible((signal) => {
    const options: JsonlOptions = {
      ...rest,
      inputs: input,
      onProgress: out.progress,
      signal,
      ...(maxRecordMb !== undefined && { maxRecordBytes: Math.ceil(maxRecordMb * 1024 * 1024) }),
    }
    if (format === 'jsonl') return importJsonl(options)
    const { split } = options
    if (split === undefined) throw new UsageError(`"canopy import ${format}" needs --split <name>.`)
    return formats[format]!({ ...options, split })
  }).finally(out.done)
  print(summary, out)
}

const PLACES_SHOWN = 5

function print(summary: ImportSummary, out: Output): void {
  out.json(summary)
  const { items, dropped } = summary
  out.line(
    `${summary.dataset}: split ${summary.splits.map((split) => `"${split}"`).join(', ')} of ${summary.benchmark}`,
  )
  out.line(`  ${summary.records} records read`)
  out.line(`  ${items.added} items added, ${items.merged} more were there already`)
  out.line(`  ${summary.questions} questions with ${summary.gold} gold items`)
  for (const { what, reason, count, places } of dropped) {
    out.line(`  ${count} × left out: ${what}, ${reason}`)
    for (const place of places.slice(0, PLACES_SHOWN)) out.line(`      ${place}`)
    if (count > PLACES_SHOWN) {
      const where = places.length > PLACES_SHOWN ? ' (--json lists more places)' : ''
      out.line(`      … and ${count - PLACES_SHOWN} more${where}`)
    }
  }
}

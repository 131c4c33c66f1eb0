import { Argument, type Command, InvalidArgumentError, Option } from 'commander'
import {
  downloadFolder,
  FETCHABLE,
  FORMATS,
  type Format,
  fetchBenchmark,
  IMPORTERS,
  type ImportSummary,
  importJsonl,
  type JsonlOptions,
  type JsonlSummary,
  type MissingMedia,
  openDataset,
} from '../data/index.ts'
import { countPreferences, type PreferenceCounts } from '../preferences/index.ts'
import { UsageError } from '../support/errors.ts'
import { type CutFlags, cutOptions, printCut } from './cut-items.ts'
import { whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags extends Omit<JsonlOptions, 'inputs' | 'maxItemTokens' | 'countTokens'>, CutFlags {
  input?: string[]
  /** Without a value: true. */
  fetch?: true | string
  downloadFolder?: string
  mirror?: string
  count: boolean
  maxRecordMb?: number
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('import')
    .summary('turn files with gold evidence into a dataset folder')
    .description(
      'Reads files in one of the formats and writes a dataset folder (dataset.json, items.jsonl, questions.jsonl), or adds\n' +
        'another split to one. Files are streamed, .gz is decompressed, Parquet is read, and the folder changes only when\n' +
        'all is read. Official files are fetched with --fetch; without it nothing goes over the network.',
    )
    .addArgument(new Argument('<format>', 'format of the input').choices(FORMATS))
    .option('--input <file...>', 'files to read; jsonl: items and questions in any order, or a folder of both')
    .option(
      '--fetch [place]',
      `download the official files of the split instead (${FETCHABLE.join(', ')}); place: official or hub`,
    )
    .option(
      '--download-folder <folder>',
      `where --fetch keeps files (default: CANOPY_DOWNLOADS, or ${downloadFolder()})`,
    )
    .option('--mirror <url>', 'where --fetch finds the files as <url>/<host>/<path> (default: CANOPY_MIRROR)')
    .requiredOption('--output <dataset>', 'dataset folder to write or to add to')
    .option('--split <name>', 'split that the questions belong to (jsonl: may stand in the questions instead)')
    .addOption(
      new Option('--on-error <what>', 'on a fault in the input: write nothing, or leave the record out and count it')
        .choices(['stop', 'skip'])
        .default('stop'),
    )
    .addOption(
      new Option(
        '--offsets <unit>',
        'jsonl: what the offsets of spans, sentences and chunks count (default: utf16)',
      ).choices(['utf16', 'codepoint', 'byte']),
    )
    .option(
      '--benchmark <name>',
      "jsonl: benchmark of questions that name none (default: that of the dataset or of the first question, else the folder's name)",
    )
    .option('--name <name>', "name of the dataset (default: the folder's name)")
    .option('--source <text>', 'where the data come from, for dataset.json')
    .option('--licence <text>', 'licence of the data, for dataset.json')
    .option(
      '--max-item-tokens <n>',
      'jsonl: cut texts at sections and sentences, tables at rows, into items that fit',
      whole(16),
    )
    .option('--encoder <folder>', 'whose tokens --max-item-tokens counts; folder or Hugging Face id')
    .option('--max-record-mb <n>', 'largest record allowed, in MiB; bounds memory (default: 64)', positive)
    .option('--no-count', 'do not count decision nodes and pairs after the import')
    .option('--json', 'print the summary as JSON')
    .addHelpText(
      'after',
      `
Examples:
  $ canopy import hotpotqa --fetch --split dev --output datasets/hotpotqa
  $ canopy import hotpotqa --fetch hub --split train --output datasets/hotpotqa
  $ canopy import hotpotqa --input hotpot_train_v1.1.json --split train --output datasets/hotpotqa
  $ canopy import hotpotqa --input hotpot_dev_distractor_v1.json --split dev --output datasets/hotpotqa
  $ canopy import hotpotqa --input validation-00000-of-00001.parquet --split dev --output datasets/hotpotqa
  $ canopy import 2wiki --fetch --split dev --output datasets/2wiki
  $ canopy import nq --input v1.0-simplified_simplified-nq-train.jsonl.gz --split train --output datasets/nq
  $ canopy import ottqa --input dev.traced.json traindev_tables_tok traindev_request_tok --split dev --output datasets/ottqa
  $ canopy import mmqa --input MMQA_dev.jsonl.gz MMQA_tables.jsonl.gz MMQA_texts.jsonl.gz MMQA_images.jsonl.gz --split dev --output datasets/mmqa
  $ canopy import lvbench --input clips.jsonl lvbench.json --split dev --output datasets/lvbench
  $ canopy import jsonl --input items.jsonl questions.jsonl --split train --offsets codepoint --output datasets/mine
  $ canopy import jsonl --input manual.jsonl --split all --max-item-tokens 256 --encoder models/all-MiniLM-L6-v2 --output datasets/manual

Your own data (jsonl), one object a line:
  {"id": "a", "title": "Otters", "text": "Otters swim. They hold hands when they sleep."}
  {"id": "q1", "question": "What do otters do asleep?", "answers": ["hold hands"],
   "gold": [{"item": "a", "quotes": ["They hold hands when they sleep."]}]}
Gold is given as "quotes", as "spans" [[start, end], ...] (or [start, end, "text"] to have the text checked), or "whole": true.
A long text can bring its own "chunks": [[start, end], ...], which may overlap; gold still counts in the whole text.`,
    )
    .action(run)
}

function positive(value: string): number {
  const n = Number(value)
  if (!(n > 0) || !Number.isFinite(n)) throw new InvalidArgumentError('A number above 0 was expected.')
  return n
}

type Summary = ImportSummary &
  Pick<JsonlSummary, 'cut' | 'missingMedia'> & {
    /** Of the splits that were imported: what their gold items are worth for training. */
    preferences?: Record<string, PreferenceCounts>
  }

async function run(format: Format, flags: Flags): Promise<void> {
  const {
    input,
    maxRecordMb,
    json,
    maxItemTokens,
    encoder,
    fetch,
    downloadFolder: folder,
    mirror,
    count,
    ...rest
  } = flags
  requireFitting(format, flags)
  const { split } = flags
  if (format !== 'jsonl' && split === undefined) throw new UsageError(`"canopy import ${format}" needs --split <name>.`)
  const out = createOutput({ json })
  const cut = await cutOptions(format, { maxItemTokens, encoder }, out)
  const summary = await interruptible(async (signal): Promise<Summary> => {
    const watched = { onProgress: out.progress, signal }
    const fetched =
      fetch === undefined
        ? undefined
        : await fetchBenchmark({
            ...{ benchmark: format, split: split!, folder, mirror, ...watched },
            place: fetch === true ? undefined : fetch,
          })
    const options: JsonlOptions = {
      ...rest,
      ...cut,
      ...watched,
      inputs: fetched?.inputs ?? input!,
      licence: rest.licence ?? fetched?.licence,
      ...(maxRecordMb !== undefined && { maxRecordBytes: Math.ceil(maxRecordMb * 1024 * 1024) }),
    }
    const imported: Summary =
      format === 'jsonl' ? await importJsonl(options) : await IMPORTERS[format]({ ...options, split: split! })
    if (count) imported.preferences = await countSplits(imported, watched)
    return imported
  }).finally(out.done)
  print(summary, out)
}

function requireFitting(format: string, flags: Flags): void {
  const { input, fetch, downloadFolder: folder, mirror, offsets, benchmark } = flags
  if (format !== 'jsonl' && (benchmark !== undefined || offsets !== undefined))
    throw new UsageError(
      `--offsets and --benchmark are for the format jsonl; those of ${format} are what its files say.`,
    )
  if (input !== undefined && fetch !== undefined)
    throw new UsageError('--input names files that are here, --fetch downloads them; give one of the two.')
  if (input === undefined && fetch === undefined)
    throw new UsageError(
      `"canopy import ${format}" needs --input <file...>${format === 'jsonl' ? '' : ', or --fetch to download the official files'}.`,
    )
  if (fetch === undefined && (folder !== undefined || mirror !== undefined))
    throw new UsageError('--download-folder and --mirror are for --fetch.')
  if (fetch !== undefined && format === 'jsonl') throw new UsageError('There are no official files of your own data.')
}

/** What training finds in the splits just imported. */
async function countSplits(
  { dataset: folder, splits }: ImportSummary,
  watched: Pick<JsonlOptions, 'onProgress' | 'signal'>,
): Promise<Record<string, PreferenceCounts>> {
  const dataset = await openDataset(folder)
  try {
    const counted: [string, PreferenceCounts][] = []
    for (const split of splits) counted.push([split, await countPreferences({ dataset, split, ...watched })])
    return Object.fromEntries(counted)
  } finally {
    await dataset.close()
  }
}

const PLACES_SHOWN = 5

function print(summary: Summary, out: Output): void {
  out.json(summary)
  const { items, dropped } = summary
  out.line(
    `${summary.dataset}: split ${summary.splits.map((split) => `"${split}"`).join(', ')} of ${summary.benchmark}`,
  )
  out.line(`  ${summary.records} records read`)
  const kinds = list(summary.modalities)
  out.line(`  ${items.added} items added${kinds === '' ? '' : ` (${kinds})`}, ${items.merged} more were there already`)
  out.line(`  ${summary.questions} questions with ${summary.gold} gold items`)
  for (const [variant, n] of Object.entries(summary.variants)) out.line(`      ${n} of the variant "${variant}"`)
  for (const [split, counts] of Object.entries(summary.preferences ?? {})) printCounts(split, counts, out)
  if (summary.cut !== undefined) printCut(summary.cut, out)
  if (summary.missingMedia !== undefined) printMissing(summary.missingMedia, summary.dataset, out)
  for (const { what, reason, count, places } of dropped) {
    out.line(`  ${count} × left out: ${what}, ${reason}`)
    for (const place of places.slice(0, PLACES_SHOWN)) out.line(`      ${place}`)
    if (count > PLACES_SHOWN) {
      const where = places.length > PLACES_SHOWN ? ' (--json lists more places)' : ''
      out.line(`      … and ${count - PLACES_SHOWN} more${where}`)
    }
  }
}

function printMissing({ items, paths }: MissingMedia, dataset: string, out: Output): void {
  out.line(
    `  ${items} items name pictures or videos that are not in ${dataset} (${paths.slice(0, PLACES_SHOWN).join(', ')}${items > PLACES_SHOWN ? ', …' : ''}):`,
  )
  out.line('      put them there, or link them, before an encoder is to read them')
}

const list = (counts: Record<string, number>): string =>
  Object.entries(counts)
    .map(([name, n]) => `${n} ${name}`)
    .join(', ')

function printCounts(split: string, counts: PreferenceCounts, out: Output): void {
  const { withoutPairs, decisions, pairs, droppedAnnotations } = counts
  out.line(`  split "${split}", binary trees: ${decisions.total} decision nodes (${list(decisions.cases)})`)
  out.line(`      ${pairs.total} pairs (${list(pairs.kinds)})`)
  out.line(
    `      of ${counts.instances} gold items, ${withoutPairs.oneLeaf} have one leaf and ${withoutPairs.noGoldLeaf} no gold leaf: no pairs`,
  )
  for (const { reason, count } of droppedAnnotations.reasons)
    out.line(`      ${count} × annotation marks no leaf: ${reason}`)
}

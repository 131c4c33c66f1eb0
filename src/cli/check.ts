import type { Command } from 'commander'
import { checkDataset, type Dataset, type Fault, openDataset } from '../data/index.ts'
import type { Item, TableFormatName } from '../hierarchy/index.ts'
import { checkMedia } from '../media/index.ts'
import type { Device } from '../onnx/index.ts'
import { inspectGold } from '../preferences/index.ts'
import { encoderCount, inspected, type Reading, readingOf } from './check-encoder.ts'
import { type Insight, printInsight, printReport } from './check-text.ts'
import { deviceOption, type StatedFlags, statedOptions, tableFormatOption, whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags extends StatedFlags {
  encoder?: string
  cache?: string
  threads?: number
  device?: Device
  branching?: number
  title?: boolean
  tableFormat?: TableFormatName
  media?: boolean
  json?: boolean
}

/** How many faults `--json` lists; the count is complete. */
const FAULTS_LISTED = 10_000

export function register(program: Command): void {
  program
    .command('check')
    .summary('find every fault in a dataset folder, and see what there is to learn')
    .description(
      'Reads a dataset folder whole and reports every fault with file and line; exit status 1 when there is one. A picture or video\n' +
        'that is missing or cannot be read is a fault with --media, and with an --encoder that reads it. Then counts, for each split\n' +
        'and benchmark, what training and evaluation will find: decision nodes by where the gold lies, preference pairs by kind,\n' +
        'and what policies that read nothing would score.',
    )
    .argument('<dataset>', 'dataset folder, as "canopy import" writes it')
    .option('--encoder <folder>', 'count also what this encoder would see cut, and pairs that it cannot tell apart')
    .option(
      '--branching <n>',
      "children of a node of the hierarchy, at most (default: the encoder's, else 2)",
      whole(2),
    )
    .option('--title', "start every node's text with its item's title (default: as the encoder was trained, else so)")
    .option('--no-title', 'leave titles out')
    .addOption(tableFormatOption("default: the encoder's, else markdown"))
    .addOption(statedOptions('default: as trained')[0])
    .addOption(statedOptions('default: as trained')[1])
    .option('--cache <folder>', 'with an --encoder of videos: keep visual features there, for training and evaluation')
    .option(
      '--threads <n>',
      'with an --encoder of videos: threads of its vision tower (default: all processors)',
      whole(1),
    )
    .addOption(deviceOption('with an --encoder of videos: where its vision tower runs'))
    .option('--media', 'decode every picture, and every video at the times of its leaves')
    .option('--json', 'print faults and counts as JSON')
    .addHelpText(
      'after',
      `
Examples:
  $ canopy check datasets/mine
  $ canopy check datasets/mine --encoder models/all-MiniLM-L6-v2`,
    )
    .action(run)
}

async function run(folder: string, flags: Flags): Promise<void> {
  const out = createOutput(flags)
  await interruptible(async (signal) => {
    const reading = await readingOf(flags)
    try {
      await check(folder, flags, reading, out, signal)
    } finally {
      await reading.encoder?.reader.close()
    }
  }).finally(out.done)
}

async function check(folder: string, flags: Flags, reading: Reading, out: Output, signal: AbortSignal): Promise<void> {
  const { encoder } = reading
  const listed: Fault[] = []
  const missing = new Set<string>()
  const onFault = (fault: Fault): void => {
    if (listed.length < FAULTS_LISTED) listed.push(fault)
    if (fault.missing !== undefined) missing.add(fault.missing)
    const place = fault.line === undefined ? fault.file : `${fault.file}:${fault.line}`
    out.line(`${place}: ${fault.message}`)
  }
  const needsMedia = flags.media === true || encoder?.reader.multimodal === true
  const report = await checkDataset(folder, onFault, { signal, onProgress: out.progress, needsMedia })
  // a folder with other faults may not be readable as a dataset
  const readable = report.faults === missing.size
  const rest = readable ? await lookInside(folder, flags, reading, out, signal) : undefined
  const unreadable = new Map<string, string>()
  for (const { item, reason } of [...(rest?.unreadable ?? []), ...(rest?.media?.broken ?? [])])
    if (!missing.has(item)) unreadable.set(item, reason)
  const faults = report.faults + unreadable.size
  out.done()
  for (const [item, reason] of unreadable) out.line(`cannot be read: item "${item}": ${reason}`)
  printReport({ ...report, faults }, needsMedia, out)
  if (rest !== undefined) printInsight(rest, out)
  else if (flags.encoder !== undefined || flags.media)
    out.warn('nodes and media are looked at once the faults are gone')
  out.json({ ...report, faults, faultList: listed, ...rest })
  if (faults > 0) process.exitCode = 1
}

/** What a folder holds for training, and whether its media can be decoded where that is asked for. */
async function lookInside(
  folder: string,
  flags: Flags,
  { encoder, branching }: Reading,
  out: Output,
  signal: AbortSignal,
): Promise<Insight> {
  const dataset = await openDataset(folder)
  try {
    const looking = encoder === undefined ? undefined : inspected(encoder, folder, out.progress, signal)
    const gold = await inspectGold({
      ...{ dataset, branching, signal },
      ...(looking !== undefined && { encoder: looking.encoder }),
      onProgress: looking?.onProgress ?? out.progress,
    })
    const media = flags.media
      ? await checkMedia(folder, itemsOf(dataset), { onProgress: out.progress, signal })
      : undefined
    return {
      branching,
      gold,
      ...(encoder && looking && { encoder: encoderCount(encoder, gold), unreadable: looking.unreadable }),
      ...(media && { media }),
    }
  } finally {
    await dataset.close()
  }
}

async function* itemsOf(dataset: Dataset): AsyncGenerator<Item> {
  for await (const { item } of dataset.items()) yield item
}

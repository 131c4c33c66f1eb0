import type { Command } from 'commander'
import { type CheckReport, checkDataset, type Dataset, type Fault, openDataset } from '../data/index.ts'
import { loadTokenizer, readEncoderPair } from '../encoder/index.ts'
import type { Item, RenderOptions, TableFormatName } from '../hierarchy/index.ts'
import { checkMedia, type MediaCheck } from '../media/index.ts'
import { type GoldRow, type InspectOptions, inspectGold } from '../preferences/index.ts'
import { tableFormatOption, whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags {
  encoder?: string
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
      'Reads a dataset folder whole and reports every fault with file and line; exit status 1 when there is one. Then counts, for\n' +
        'each split and benchmark, what training and evaluation will find: decision nodes by where the gold lies, preference\n' +
        'pairs by kind, and what policies that read nothing would score.',
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
    const faults: Fault[] = []
    const onFault = (fault: Fault): void => {
      if (faults.length < FAULTS_LISTED) faults.push(fault)
      const place = fault.line === undefined ? fault.file : `${fault.file}:${fault.line}`
      out.line(`${place}: ${fault.message}`)
    }
    const report = await checkDataset(folder, onFault, signal, out.progress)
    print(report, out)
    let rest: Awaited<ReturnType<typeof lookInside>> | undefined
    // a folder with other faults may not be readable as a dataset
    if (report.faults === 0) rest = await lookInside(folder, flags, out, signal)
    else if (flags.encoder !== undefined || flags.media)
      out.warn('nodes and media are looked at once the faults are gone')
    out.json({ ...report, faultList: faults, ...rest })
    if (report.faults > 0 || (rest?.media?.broken.length ?? 0) > 0) process.exitCode = 1
  }).finally(out.done)
}

interface EncoderCount {
  encoder: string
  maxLength: number
  items: number
  nodes: number
  truncated: number
  truncatedRoots: number
  equalToParent: number
  droppedPairs: number
}

/** What a folder without a fault holds for training; prints it as well. */
async function lookInside(
  folder: string,
  flags: Flags,
  out: Output,
  signal: AbortSignal,
): Promise<{ branching: number; gold: GoldRow[]; encoder?: EncoderCount; media?: MediaCheck }> {
  const reading = await readingOf(flags)
  const dataset = await openDataset(folder)
  try {
    const { encoder, ...options } = reading
    const gold = await inspectGold({ dataset, ...options, onProgress: out.progress, signal })
    const media = flags.media
      ? await checkMedia(folder, itemsOf(dataset), { onProgress: out.progress, signal })
      : undefined
    out.done()
    if (encoder !== undefined) out.line(`  ${encoder.id}, at most ${encoder.maxLength} tokens a node:`)
    for (const row of gold) printRow(row, out)
    if (media !== undefined) printMedia(media, out)
    const result = { branching: reading.branching, gold, ...(media && { media }) }
    return encoder === undefined ? result : { ...result, encoder: encoderCount(encoder, gold) }
  } finally {
    await dataset.close()
  }
}

type Reading = Pick<InspectOptions, 'tokenise'> & {
  rendering: RenderOptions
  branching: number
  encoder?: { id: string; maxLength: number }
}

/** How nodes are made and read: as the flags say, else as the encoder was trained. */
async function readingOf(flags: Flags): Promise<Reading> {
  if (flags.encoder === undefined) {
    const { title = true, tableFormat = 'markdown', branching = 2 } = flags
    return { rendering: { title, tableFormat }, branching }
  }
  const { encoder: profile, settings } = await readEncoderPair(flags.encoder)
  const tokenizer = await loadTokenizer(profile)
  return {
    rendering: { title: flags.title ?? settings.title, tableFormat: flags.tableFormat ?? settings.tableFormat },
    branching: flags.branching ?? settings.branching,
    tokenise: (text) => tokenizer.encode(profile.prompts.node + text),
    encoder: { id: flags.encoder, maxLength: tokenizer.maxLength },
  }
}

async function* itemsOf(dataset: Dataset): AsyncGenerator<Item> {
  for await (const { item } of dataset.items()) yield item
}

/** The tokens of all splits and benchmarks together. */
function encoderCount({ id, maxLength }: { id: string; maxLength: number }, gold: GoldRow[]): EncoderCount {
  const sum = (of: (tokens: NonNullable<GoldRow['tokens']>) => number): number =>
    gold.reduce((total, { tokens }) => total + of(tokens!), 0)
  return {
    encoder: id,
    maxLength,
    items: sum(({ items }) => items),
    nodes: sum(({ nodes }) => nodes),
    truncated: sum(({ truncatedNodes }) => truncatedNodes),
    truncatedRoots: sum(({ truncatedRoots }) => truncatedRoots),
    equalToParent: sum(({ equalToParent }) => equalToParent),
    droppedPairs: sum(({ droppedPairs }) => droppedPairs.total),
  }
}

function print(report: CheckReport, out: Output): void {
  out.line(`${report.folder}: ${report.faults === 0 ? 'no fault' : `${report.faults} faults`}`)
  out.line(`  items: ${counts(report.items) || 'none'}`)
  if (report.items.text > 0) {
    out.line(`  text leaves: ${report.leaves}; items with one leaf only: ${report.oneLeafItems}`)
  }
  if (report.missingMedia > 0) {
    out.line(
      `  pictures and videos that are not in the folder: ${report.missingMedia} (encoders that read only text need none; --media names them)`,
    )
  }
  for (const [name, split] of Object.entries(report.splits)) {
    out.line(
      `  split "${name}": ${split.questions} questions, ${split.gold} gold items, ${split.withoutGold} questions without gold, ${split.withRetrieved} with retrieved items`,
    )
  }
}

function printRow(row: GoldRow, out: Output): void {
  const { decisions, pairs, controls, tokens } = row
  out.line(
    `  "${row.split}" of ${row.benchmark}: ${row.questions} questions; gold items: ${counts(row.instances) || 'none'}`,
  )
  if (row.notText > 0) {
    out.line(`      ${row.notText} of them are images or videos, which an encoder of text cannot read`)
  }
  const { oneLeaf, noGoldLeaf } = row.withoutDecision
  if (oneLeaf + noGoldLeaf > 0) {
    out.line(
      `      nothing to decide on ${oneLeaf + noGoldLeaf}: ${oneLeaf} of one leaf, ${noGoldLeaf} without a gold leaf`,
    )
  }
  out.line(`      ${decisions.total} decision nodes${list(decisions.cases)}; ${pairs.total} pairs${list(pairs.kinds)}`)
  if (decisions.total > 0) {
    const shares = Object.entries(controls).map(([name, share]) => `${name} ${(100 * share).toFixed(1)} %`)
    out.line(`      decision accuracy without reading: ${shares.join(', ')}`)
  }
  if (tokens === undefined) return
  out.line(
    `      cut: ${tokens.truncatedRoots} of ${tokens.items} roots (${percent(tokens.truncatedRoots, tokens.items)}), ` +
      `${tokens.truncatedNodes} of ${tokens.nodes} nodes (${percent(tokens.truncatedNodes, tokens.nodes)})`,
  )
  out.line(
    `      pairs dropped, both nodes being the same tokens: ${tokens.droppedPairs.total} (${percent(tokens.droppedPairs.total, pairs.total)})${list(tokens.droppedPairs.kinds)}`,
  )
}

function printMedia(media: MediaCheck, out: Output): void {
  out.line(
    `  media: ${media.pictures} of ${media.images} pictures decoded; ${media.videos} videos, ${media.withoutFile} of them without a file, ${media.frames} frames decoded`,
  )
  for (const { path, item, reason } of media.broken) out.line(`      broken: ${path} (item "${item}"): ${reason}`)
}

/** `3 text, 2 table`, what is none left out. */
const counts = (of: Record<string, number>): string =>
  Object.entries(of)
    .filter(([, n]) => n > 0)
    .map(([name, n]) => `${n} ${name}`)
    .join(', ')

const list = (of: Record<string, number>): string => (counts(of) === '' ? '' : ` (${counts(of)})`)

const percent = (part: number, of: number): string => (of === 0 ? '0 %' : `${((100 * part) / of).toFixed(1)} %`)

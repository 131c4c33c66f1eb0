import { relative } from 'node:path'
import type { Command } from 'commander'
import {
  openPair,
  type RefinedItem,
  type RefineInput,
  readEncoderPair,
  refineItems,
  settingsDrift,
  toHierarchy,
} from '../encoder/index.ts'
import { renderContent, renderHeader, type TableFormatName } from '../hierarchy/index.ts'
import type { Device, Precision } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import {
  deviceOption,
  type EncoderFlags,
  marginOption,
  onnxFileOption,
  poolingOptions,
  precisionOption,
  type StatedFlags,
  statedFlags,
  statedOptions,
  tableFormatOption,
  whole,
} from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput } from './output.ts'
import { readItems } from './refine-input.ts'
import { refinedText } from './refined-text.ts'

interface Flags extends EncoderFlags, StatedFlags {
  encoder: string
  adapter?: string
  queryEncoder?: string
  query: string
  input: string
  title?: boolean
  tableFormat?: TableFormatName
  branching?: number
  margin?: number
  threads?: number
  device?: Device
  precision?: Precision
  cache?: string
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('refine')
    .summary('keep the regions of a passage, a table or a video that answer a question')
    .description(
      'Cuts passages into sentences, tables into rows and videos into segments, scores every region of their trees against the\n' +
        'question and prints what refinement keeps. The input is a text file, or JSON: an item {"title", "text"},\n' +
        '{"title", "header", "rows"}, {"title", "image"} or {"title", "video", "start", "end"}, a list of items, or one a line. Paths\n' +
        'of pictures and videos are relative to the file they stand in; a video is taken whole where no times are given. "-" reads\n' +
        'standard input.',
    )
    .requiredOption('--encoder <folder>', 'exported node encoder, checkpoint or ONNX folder; or Hugging Face id')
    .option('--adapter <folder>', 'LoRA adapter over it, as runs/name/adapter')
    .option('--query-encoder <folder>', 'frozen encoder of the questions (default: in the export, else --encoder)')
    .addOption(onnxFileOption())
    .addOption(poolingOptions()[0])
    .addOption(poolingOptions()[1])
    .requiredOption('--query <text>', 'the question')
    .requiredOption('--input <file>', 'text file, item.json, or - for standard input')
    .option('--title', "start every region's text with its item's title (default: as trained)")
    .option('--no-title', 'leave titles out')
    .addOption(tableFormatOption('default: as trained, else markdown'))
    .addOption(statedOptions('default: as trained')[0])
    .addOption(statedOptions('default: as trained')[1])
    .addOption(statedOptions('default: as trained')[2])
    .option('--branching <n>', 'children of a node of the hierarchy, at most (default: as trained)', whole(2))
    .addOption(
      marginOption(
        'keep, beside what scores as high as its parent, what scores at most so much below it (default: that of canopy.json, else 0)',
      ),
    )
    .option('--threads <n>', 'threads of ONNX Runtime (default: all processors)', whole(1))
    .addOption(deviceOption('where the encoders run'))
    .addOption(precisionOption())
    .option('--cache <folder>', 'keep embeddings and visual features there, and take them from there')
    .option('--json', 'print kept ranges with text, offsets (UTF-16 of texts, seconds of videos) and scores as JSON')
    .addHelpText(
      'after',
      `
Example:
  $ canopy refine --encoder runs/quickstart/export --query "Who wound the clock?" --input passage.txt
  $ jq '{title, text}' item.json | canopy refine --encoder runs/quickstart/export --query "…" --input - --json`,
    )
    .action(run)
}

async function run(flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  if (flags.query.trim() === '') throw new InputError('The question is empty; give it with --query.')
  const items = await readItems(flags.input, out.warn)
  const { adapter, queryEncoder, onnxFile, pooling, normalize } = flags
  const pair = await readEncoderPair(flags.encoder, {
    ...{ adapter, queryEncoder, onnxFile, pooling, normalize },
    ...statedFlags(flags),
    onProgress: out.progress,
  })
  for (const difference of settingsDrift(pair.settings)) out.warn(`${difference}.`)
  const encoders = await openPair(pair, {
    ...(flags.threads !== undefined && { threads: flags.threads }),
    ...(flags.device !== undefined && { device: flags.device }),
    ...(flags.precision !== undefined && { precision: flags.precision }),
    ...(flags.cache !== undefined && { cache: flags.cache }),
    warn: out.warn,
  })
  try {
    const { reader } = encoders.query
    const [question] = await reader.encode([{ text: flags.query }], 'query')
    if (question?.truncated === true)
      out.warn(`the question is longer than the query encoder takes; what follows ${reader.maxLength} tokens is cut.`)
    const settings = {
      title: flags.title ?? pair.settings.title,
      tableFormat: flags.tableFormat ?? pair.settings.tableFormat,
      branching: flags.branching ?? pair.settings.branching,
      margin: flags.margin ?? pair.settings.margin,
    }
    const refined = await interruptible((signal) =>
      refineItems(encoders, settings, flags.query, items, { signal, onProgress: out.progress }),
    ).finally(out.done)
    out.json(refined)
    refined.forEach((item, i) => {
      if (i > 0) out.line()
      out.line(shown(item, items[i] as RefineInput, i, settings))
    })
    const nodes = refined.flatMap((item) => item.nodes)
    const cut = nodes.filter(({ truncated }) => truncated).length
    if (cut > 0)
      out.warn(
        `${cut} of ${nodes.length} regions (✂) were cut at the ${encoders.node.reader.maxLength} tokens that the encoder reads: what follows has no part in their scores. Give shorter items; "canopy import jsonl --max-item-tokens" cuts texts and tables into items that fit.`,
      )
  } finally {
    await encoders.close()
  }
}

interface Settings {
  title: boolean
  tableFormat: TableFormatName
  branching: number
  margin: number | undefined
}

/** A refined item for a person: of each leaf its text, or which part of which file it is. */
function shown(item: RefinedItem, input: RefineInput, place: number, settings: Settings): string {
  if (typeof input === 'object' && 'image' in input) return refinedText(item, [nearby(input.image)])
  if (typeof input === 'object' && 'video' in input) {
    const leaves = item.nodes.filter(({ from, to }) => to === from + 1)
    const part = ({ start, end }: { start: number; end: number }): string => `${clock(start)} to ${clock(end)}`
    return refinedText(
      item,
      leaves.map((leaf) => `${nearby(input.video)} ${part(leaf)}`),
    )
  }
  const tree = toHierarchy(input, place, settings.branching)
  const texts = tree.leaves.map((_, leaf) => renderContent(tree, { from: leaf, to: leaf + 1, children: [] }, settings))
  const heading = tree.item.modality === 'table' ? renderHeader(tree.item, { ...settings, title: false }) : ''
  return refinedText(item, texts, heading === '' ? undefined : heading.split('\n')[0])
}

/** A path from the working directory, where it lies below that. */
function nearby(path: string): string {
  const near = relative('.', path)
  return near.startsWith('..') ? path : near
}

/** Seconds as minutes and seconds, `3:05` or `3:05.25`. */
function clock(seconds: number): string {
  const rest = Math.round((seconds % 60) * 1000) / 1000
  return `${Math.floor(seconds / 60)}:${rest < 10 ? '0' : ''}${rest}`
}

import { readFile } from 'node:fs/promises'
import { text as readStream } from 'node:stream/consumers'
import type { Command } from 'commander'
import { openPair, type RefineInput, readEncoderPair, refineItems, settingsDrift } from '../encoder/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import { whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput } from './output.ts'
import { refinedText } from './refined-text.ts'

interface Flags {
  encoder: string
  adapter?: string
  queryEncoder?: string
  query: string
  input: string
  title?: boolean
  branching?: number
  threads?: number
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('refine')
    .summary('keep the regions of a passage that answer a question')
    .description(
      'Cuts passages into sentences, scores every region of their trees against the question and prints what refinement keeps.\n' +
        'The input is a text file, or JSON: an item {"title", "text"} or a list of items. "-" reads standard input.',
    )
    .requiredOption('--encoder <folder>', 'exported node encoder, or a checkpoint; folder or Hugging Face id')
    .option('--adapter <folder>', 'LoRA adapter over a checkpoint, as runs/name/adapter')
    .option('--query-encoder <folder>', 'frozen encoder of the questions (default: in the export, else --encoder)')
    .requiredOption('--query <text>', 'the question')
    .requiredOption('--input <file>', 'text file, item.json, or - for standard input')
    .option('--title', "start every region's text with its item's title (default: as trained)")
    .option('--no-title', 'leave titles out')
    .option('--branching <n>', 'children of a node of the hierarchy, at most (default: as trained)', whole(2))
    .option('--threads <n>', 'threads of ONNX Runtime (default: all processors)', whole(1))
    .option('--json', 'print kept ranges with text, offsets (UTF-16) and scores as JSON')
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
  const items = await readItems(flags.input)
  const { adapter, queryEncoder } = flags
  const pair = await readEncoderPair(flags.encoder, { adapter, queryEncoder, onProgress: out.progress })
  for (const difference of settingsDrift(pair.settings)) out.warn(`${difference}.`)
  const encoders = await openPair(pair, flags.threads === undefined ? {} : { threads: flags.threads })
  try {
    const settings = {
      title: flags.title ?? pair.settings.title,
      branching: flags.branching ?? pair.settings.branching,
    }
    const refined = await interruptible((signal) => refineItems(encoders, settings, flags.query, items, { signal }))
    out.done()
    out.json(refined)
    refined.forEach((item, i) => {
      const input = items[i] as RefineInput
      if (i > 0) out.line()
      out.line(refinedText(item, typeof input === 'string' ? input : input.text))
    })
  } finally {
    await encoders.close()
  }
}

/** Plain text is one passage; a file that starts as a JSON object or list is an item or several. */
async function readItems(input: string): Promise<RefineInput[]> {
  const file = input === '-' ? 'standard input' : input
  const text =
    input === '-'
      ? await readStream(process.stdin)
      : await readFile(input, 'utf8').catch((error: unknown) => {
          throw fileError(error, 'cannot read the input', input)
        })
  if (text.trim() === '') throw new InputError('There is no text to refine.', { file })
  if (!input.endsWith('.json') && !/^\s*(\{|\[\s*[{"])/.test(text)) return [text]
  let value: unknown
  try {
    value = JSON.parse(text)
  } catch (error) {
    if (!input.endsWith('.json')) return [text]
    throw new InputError(`The file is not valid JSON (${(error as Error).message}).`, { file }, error)
  }
  const list = Array.isArray(value) ? value : [value]
  return list.map((entry: unknown, i) => {
    if (typeof entry === 'string') return entry
    const item = entry as { text?: unknown; title?: unknown; modality?: unknown } | null
    if (typeof item !== 'object' || item === null || typeof item.text !== 'string')
      throw new InputError(
        `Item ${i + 1} has no "text"${item !== null && typeof item === 'object' && item.modality !== undefined && item.modality !== 'text' ? `: only text items are refined so far, not "${String(item.modality)}"` : ''}; expected {"title"?, "text"}.`,
        { file },
      )
    if (item.title !== undefined && typeof item.title !== 'string')
      throw new InputError(`The "title" of item ${i + 1} is no text.`, { file })
    return item as RefineInput
  })
}

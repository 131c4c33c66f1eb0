import { readFile } from 'node:fs/promises'
import { buffer as readStream } from 'node:stream/consumers'
import type { Command } from 'commander'
import { z } from 'zod'
import {
  openPair,
  type RefineInput,
  readEncoderPair,
  refineItems,
  settingsDrift,
  toHierarchy,
} from '../encoder/index.ts'
import { renderContent, type TableFormatName } from '../hierarchy/index.ts'
import type { Device } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import { deviceOption, type EncoderFlags, onnxFileOption, poolingOptions, tableFormatOption, whole } from './flags.ts'
import { interruptible } from './interrupt.ts'
import { createOutput } from './output.ts'
import { refinedText } from './refined-text.ts'

interface Flags extends EncoderFlags {
  encoder: string
  adapter?: string
  queryEncoder?: string
  query: string
  input: string
  title?: boolean
  tableFormat?: TableFormatName
  branching?: number
  threads?: number
  device?: Device
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('refine')
    .summary('keep the regions of a passage that answer a question')
    .description(
      'Cuts passages into sentences and tables into rows, scores every region of their trees against the question and prints what\n' +
        'refinement keeps. The input is a text file, or JSON: an item {"title", "text"} or {"title", "header", "rows"}, a list of\n' +
        'items, or one a line. "-" reads standard input.',
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
    .option('--branching <n>', 'children of a node of the hierarchy, at most (default: as trained)', whole(2))
    .option('--threads <n>', 'threads of ONNX Runtime (default: all processors)', whole(1))
    .addOption(deviceOption('where the encoders run'))
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
  if (flags.query.trim() === '') throw new InputError('The question is empty; give it with --query.')
  const items = await readItems(flags.input, out.warn)
  const { adapter, queryEncoder, onnxFile, pooling, normalize } = flags
  const pair = await readEncoderPair(flags.encoder, {
    ...{ adapter, queryEncoder, onnxFile, pooling, normalize },
    onProgress: out.progress,
  })
  for (const difference of settingsDrift(pair.settings)) out.warn(`${difference}.`)
  const encoders = await openPair(pair, {
    ...(flags.threads !== undefined && { threads: flags.threads }),
    ...(flags.device !== undefined && { device: flags.device }),
    warn: out.warn,
  })
  try {
    const { profile, tokenizer } = encoders.query
    if (tokenizer.encode(profile.prompts.query + flags.query).truncated)
      out.warn(
        `the question is longer than the query encoder takes; what follows ${tokenizer.maxLength} tokens is cut.`,
      )
    const settings = {
      title: flags.title ?? pair.settings.title,
      tableFormat: flags.tableFormat ?? pair.settings.tableFormat,
      branching: flags.branching ?? pair.settings.branching,
    }
    const refined = await interruptible((signal) => refineItems(encoders, settings, flags.query, items, { signal }))
    out.done()
    out.json(refined)
    refined.forEach((item, i) => {
      if (i > 0) out.line()
      const tree = toHierarchy(items[i] as RefineInput, i, settings.branching)
      const leafTexts = tree.leaves.map((_, leaf) =>
        renderContent(tree, { from: leaf, to: leaf + 1, children: [] }, settings),
      )
      out.line(refinedText(item, leafTexts))
    })
  } finally {
    await encoders.close()
  }
}

/** The text behind UTF-8 bytes, a byte order mark left out. */
function decode(bytes: Uint8Array, file: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch (error) {
    throw new InputError('The input is not UTF-8 text; convert it first.', { file }, error)
  }
}

/** Plain text is one passage; a file that starts as a JSON object or list is an item or several, in a list or one a line. */
async function readItems(input: string, warn: (text: string) => void): Promise<RefineInput[]> {
  const file = input === '-' ? 'standard input' : input
  const read =
    input === '-'
      ? await readStream(process.stdin)
      : await readFile(input).catch((error: unknown) => {
          throw fileError(error, 'cannot read the input', input)
        })
  const text = decode(read, file)
  if (text.trim() === '') throw new InputError('There is no text to refine.', { file })
  const named = /\.jsonl?$/.test(input)
  if (!named && !/^\s*(\{|\[\s*[{"])/.test(text)) return [text]
  const list = named ? parseItems(text, file) : tryParse(text)
  if (list === undefined) {
    warn(`${file} begins like JSON but is not; it is taken for a plain text.`)
    return [text]
  }
  if (list.length === 0) throw new InputError('There is no item to refine.', { file })
  return list.map((entry: unknown, i) => {
    if (typeof entry === 'string') return entry
    const { modality, rows } = (entry ?? {}) as { modality?: unknown; rows?: unknown }
    if (modality !== undefined && modality !== 'text' && modality !== 'table')
      throw new InputError(
        `Item ${i + 1} is of the modality ${JSON.stringify(modality)}; texts and tables are refined.`,
        { file },
      )
    const isTable = modality === 'table' || (modality === undefined && rows !== undefined)
    const parsed = (isTable ? tableSchema : textSchema).safeParse(entry)
    if (parsed.success) return parsed.data
    const place = parsed.error.issues[0]?.path.join('.') ?? ''
    throw new InputError(
      `Item ${i + 1}${place === '' ? '' : `, "${place}"`}: expected ${isTable ? '{"id"?, "title"?, "caption"?, "header": […], "rows": [[…], …]}' : '{"id"?, "title"?, "text", "sentences"?: [[start, end], …]}'}.`,
      { file },
    )
  })
}

/** What may be absent may be null too, as `jq '{title, text}'` writes it. */
const optional = <T>(type: z.ZodType<T>) => type.nullish().transform((value) => value ?? undefined)

const naming = {
  id: optional(z.union([z.string(), z.number().transform(String)])),
  title: optional(z.string()),
}

const textSchema = z
  .object({
    ...naming,
    text: z.string(),
    sentences: optional(z.array(z.tuple([z.number().int(), z.number().int()]))),
  })
  .transform(
    ({ id, title, text, sentences }): Exclude<RefineInput, string> => ({
      ...(id !== undefined && { id }),
      ...(title !== undefined && { title }),
      text,
      ...(sentences !== undefined && { sentences }),
    }),
  )

const tableSchema = z
  .object({
    ...naming,
    caption: optional(z.string()),
    header: optional(z.array(z.string())),
    rows: z.array(z.array(z.string())).min(1),
  })
  .transform(
    ({ id, title, caption, header, rows }): Exclude<RefineInput, string> => ({
      ...(id !== undefined && { id }),
      ...(title !== undefined && { title }),
      ...(caption !== undefined && { caption }),
      header: header ?? [],
      rows,
    }),
  )

/** The items of a JSON document, a list being several; or of lines of JSON. */
function parseItems(text: string, file: string): unknown[] {
  try {
    const value: unknown = JSON.parse(text)
    return Array.isArray(value) ? value : [value]
  } catch (error) {
    const lines = text.split('\n')
    const full = lines.flatMap((line, i) => (line.trim() === '' ? [] : [{ line, number: i + 1 }]))
    const first = full[0] as { line: string }
    // a document over several lines does not begin with a whole value
    if (!file.endsWith('.jsonl') && !isJson(first.line))
      throw new InputError(`The file is not valid JSON (${(error as Error).message}).`, { file }, error)
    return full.map(({ line, number }): unknown => {
      try {
        return JSON.parse(line)
      } catch (cause) {
        throw new InputError(`not valid JSON (${(cause as Error).message}).`, { file, line: number }, cause)
      }
    })
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** What may be JSON, or a text that begins like it. */
function tryParse(text: string): unknown[] | undefined {
  try {
    return parseItems(text, '')
  } catch {
    return undefined
  }
}

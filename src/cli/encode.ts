import { createWriteStream, rmSync } from 'node:fs'
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { type Command, Option } from 'commander'
import {
  BLOCK_ROWS,
  type Encoded,
  encodeToFile,
  encodeToStore,
  type Format,
  itemFile,
  mergeShards,
  type NodeSettings,
  parseShard,
  partialOf,
  type Selection,
  type Shard,
  verifyEmbeddings,
  type Work,
} from '../encode/index.ts'
import { type Embedder, type EncoderPair, openEmbedder, readEncoderPair, settingsDrift } from '../encoder/index.ts'
import type { TableFormatName } from '../hierarchy/index.ts'
import type { Device, Precision } from '../onnx/index.ts'
import { type DiskStore, openDiskStore } from '../store/index.ts'
import { UsageError } from '../support/errors.ts'
import { exists, fileError } from '../support/files.ts'
import { duration, withTimeLeft } from '../support/progress.ts'
import {
  deviceOption,
  type EncoderFlags,
  onErrorOption,
  onnxFileOption,
  poolingOptions,
  precisionOption,
  type StatedFlags,
  statedFlags,
  statedOptions,
  tableFormatOption,
  whole,
} from './flags.ts'
import { interruptible, STOP_STATUS, type StopSignal } from './interrupt.ts'
import { createOutput, type Output } from './output.ts'

interface Flags extends EncoderFlags, StatedFlags {
  encoder?: string
  adapter?: string
  queryEncoder?: string
  dataset?: string[]
  items?: string[]
  split?: string[]
  side?: 'node' | 'query'
  output?: string
  format?: Format
  dtype?: 'float32' | 'float16'
  store?: string
  shard?: string
  merge?: string[]
  verify?: string
  resume?: boolean
  cache?: string
  title?: boolean
  tableFormat?: TableFormatName
  branching?: number
  threads?: number
  device?: Device
  precision?: Precision
  tokenBudget?: number
  onError?: 'stop' | 'skip'
  json?: boolean
}

export function register(program: Command): void {
  program
    .command('encode')
    .summary('embed a collection ahead: into a portable file or a store, in parts on many machines')
    .description(
      'Embeds every node of the items of data sets, as training and refinement render them, so that a question later needs its own\n' +
        'embedding only. Writes a folder with embeddings.safetensors (a row a node), index.jsonl (a line a row: item, leaves, offsets,\n' +
        'key) and encode.json (encoder, settings, data, hashes), or one Parquet table; or fills a store, the folder that "refine" and\n' +
        '"evaluate" take as --cache. All items are encoded; with --split those that its questions name.\n\n' +
        'Killed at any moment, the same command with --resume goes on, and the files come out the same, byte for byte. With\n' +
        '--shard i/n n machines share the work, in any order; --merge joins and verifies what they wrote.',
    )
    .option('--encoder <folder>', 'exported node encoder, checkpoint or ONNX folder; or Hugging Face id')
    .option('--adapter <folder>', 'LoRA adapter over it, as runs/name/adapter')
    .option('--query-encoder <folder>', 'frozen encoder of the questions (default: in the export, else --encoder)')
    .option('--dataset <folder...>', 'data set folders')
    .option('--items <file...>', 'files of items alone, as items.jsonl; - for standard input')
    .option('--split <name...>', 'only items that questions of these splits name, gold or retrieved')
    .addOption(
      new Option(
        '--side <name>',
        'nodes of items by the node encoder, or questions by the query encoder (node)',
      ).choices(['node', 'query']),
    )
    .option('--output <path>', 'folder (of Parquet: file) to write; it appears when all is done')
    .addOption(
      new Option('--format <name>', 'of --output (default: safetensors, for names ending in .parquet parquet)').choices(
        ['safetensors', 'parquet'],
      ),
    )
    .addOption(
      new Option(
        '--dtype <type>',
        'type of the numbers; float16 halves the file, and encode.json says what it loses (float32)',
      ).choices(['float32', 'float16']),
    )
    .option('--store <folder>', 'fill this store instead; what it knows already is not computed')
    .option('--shard <i/n>', 'encode the i-th of n parts')
    .option('--resume', 'go on with an unfinished --output; a finished one is left as it is')
    .option('--merge <folder...>', 'join the folders of all n shards into --output, verified')
    .option('--verify <path>', 'look at every byte of a folder or Parquet file that this command wrote')
    .addOption(onErrorOption())
    .option('--json', 'print the result as JSON')
    .optionsGroup('Encoding:')
    .option('--title', "start every node's text with its item's title (default: as trained)")
    .option('--no-title', 'leave titles out')
    .addOption(tableFormatOption('default: as trained, else markdown'))
    .option('--branching <n>', 'children of a node of the hierarchy, at most (default: as trained, else 2)', whole(2))
    .addOption(onnxFileOption())
    .addOption(poolingOptions()[0])
    .addOption(poolingOptions()[1])
    .addOption(statedOptions('default: as trained')[0])
    .addOption(statedOptions('default: as trained')[1])
    .addOption(statedOptions('default: as trained')[2])
    .option('--threads <n>', 'threads of ONNX Runtime (default: all processors)', whole(1))
    .addOption(deviceOption('where the encoder runs'))
    .addOption(precisionOption())
    .option('--token-budget <n>', 'tokens computed at once; bounds memory (default: 4096)', whole(16))
    .option('--cache <folder>', 'keep embeddings and visual features there, and take them from there')
    .addHelpText(
      'after',
      `
Examples:
  $ canopy encode --encoder runs/minilm/export --dataset datasets/wiki --output wiki.embeddings
  $ canopy encode --encoder runs/minilm/export --dataset datasets/wiki --output wiki.embeddings --resume
  $ canopy encode --encoder runs/minilm/export --dataset datasets/wiki --output wiki.parquet
  $ canopy encode --encoder runs/minilm/export --dataset datasets/wiki --store cache
  $ canopy encode --encoder runs/minilm/export --items - --output new.embeddings < items.jsonl

  on machine i of 8, in any order, then once:
  $ canopy encode --encoder runs/minilm/export --dataset datasets/wiki --shard $i/8 --output parts/$i --resume
  $ canopy encode --merge parts/* --output wiki.embeddings
  $ canopy encode --verify wiki.embeddings`,
    )
    .action(run)
}

async function run(flags: Flags): Promise<void> {
  const out = createOutput({ json: flags.json })
  if (flags.verify !== undefined) return verify(flags.verify, flags, out)
  if (flags.merge !== undefined) return merge(flags.merge, flags, out)
  const encoder = checkFlags(flags)
  process.exitCode = await encode(encoder, flags, out)
}

/** What belongs to encoding, and to nothing else. */
const OF_ENCODING = [
  ...([
    'encoder',
    'adapter',
    'queryEncoder',
    'dataset',
    'items',
    'split',
    'store',
    'shard',
    'resume',
    'cache',
  ] as const),
  ...(['title', 'tableFormat', 'branching', 'threads', 'device', 'precision', 'tokenBudget', 'onError'] as const),
  ...(['side', 'dtype'] as const),
  ...(['onnxFile', 'pooling', 'normalize', 'queryInstruction', 'nodeInstruction', 'dimensions'] as const),
] satisfies (keyof Flags)[]

function refuse(flags: Flags, names: readonly (keyof Flags)[], why: string): void {
  const given = names.find((name) => flags[name] !== undefined)
  if (given !== undefined)
    throw new UsageError(`--${given.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)} ${why}`)
}

/** @returns the encoder's name */
function checkFlags(flags: Flags): string {
  const { encoder, dataset, items, output, store, split, side, shard } = flags
  if (encoder === undefined) throw new UsageError('Give --encoder, or --merge or --verify with what is there already.')
  if (dataset === undefined && items === undefined)
    throw new UsageError('There is nothing to encode: give --dataset, or --items with a file of items.')
  if (items !== undefined && side === 'query')
    throw new UsageError('--items has no questions; --side query reads those of --dataset.')
  if (items !== undefined && split !== undefined)
    throw new UsageError('--split belongs to --dataset: a file of items has no questions that name some of them.')
  if (items !== undefined && items.filter((name) => name === '-').length > 1)
    throw new UsageError('Standard input can be read once; give "-" once.')
  if ((output === undefined) === (store === undefined))
    throw new UsageError('Say where the embeddings go: --output for a portable file, or --store for a store.')
  if (store !== undefined) {
    refuse(flags, ['format', 'resume'], 'belongs to --output; a store goes on by itself with what it does not know.')
    refuse(flags, ['cache'], 'is of no use with --store, which is such a folder.')
    refuse(flags, ['dtype'], 'belongs to --output; a store keeps float32.')
  }
  if (shard !== undefined && formatOf(flags) === 'parquet')
    throw new UsageError('Shards are written as safetensors; --merge writes Parquet (--output name.parquet).')
  return encoder
}

const formatOf = ({ format, output }: Flags): Format =>
  format ?? (output?.endsWith('.parquet') ? 'parquet' : 'safetensors')

async function encode(encoderName: string, flags: Flags, out: Output): Promise<number> {
  const shard = flags.shard === undefined ? undefined : parseShard(flags.shard)
  const pair = await readEncoderPair(encoderName, {
    ...{ adapter: flags.adapter, queryEncoder: flags.queryEncoder, onnxFile: flags.onnxFile },
    ...{ pooling: flags.pooling, normalize: flags.normalize },
    ...statedFlags(flags),
    onProgress: out.progress,
  })
  for (const difference of settingsDrift(pair.settings)) out.warn(`${difference}.`)
  const settings = nodeSettings(flags, pair, out)
  const store = flags.store === undefined ? undefined : openDiskStore(flags.store)
  let embedder: Embedder | undefined
  let spool: { file: string; remove(): void } | undefined
  try {
    embedder = await openSide(pair, flags, store, out)
    if (flags.items?.includes('-')) spool = await spoolInput()
    const input = { path: spool?.file as string, name: 'standard input', called: 'standard input', folder: '.' }
    const selection: Selection = {
      datasets: flags.dataset ?? [],
      itemFiles: (flags.items ?? []).map((path) => (path === '-' ? input : itemFile(path))),
      splits: flags.split,
    }
    return await encodeWith({ pair, embedder, settings, selection, shard, flags, out })
  } finally {
    out.done()
    await embedder?.close()
    await store?.close()
    spool?.remove()
  }
}

function nodeSettings(flags: Flags, pair: EncoderPair, out: Output): NodeSettings {
  const settings = {
    title: flags.title ?? pair.settings.title,
    tableFormat: flags.tableFormat ?? pair.settings.tableFormat,
    branching: flags.branching ?? pair.settings.branching,
  }
  if (!pair.trained) return settings
  for (const name of ['title', 'tableFormat', 'branching'] as const)
    if (settings[name] !== pair.settings[name])
      out.warn(`the encoder was trained with ${name} ${pair.settings[name]}, and encodes with ${settings[name]}.`)
  return settings
}

function openSide(pair: EncoderPair, flags: Flags, store: DiskStore | undefined, out: Output): Promise<Embedder> {
  const { threads, device, precision, tokenBudget } = flags
  const cache = flags.store ?? flags.cache
  const options = {
    ...(threads !== undefined && { threads }),
    ...(device !== undefined && { device }),
    ...(precision !== undefined && { precision }),
    ...(tokenBudget !== undefined && { tokenBudget }),
    // visual features lie in that folder, too
    ...(cache !== undefined && { cache }),
    ...(store !== undefined && { store, questionStore: store }),
    warn: out.warn,
  }
  if (flags.side === 'query') return openEmbedder(pair.query, options)
  return openEmbedder(pair.encoder, { ...options, ...(pair.adapter === undefined ? {} : { adapter: pair.adapter }) })
}

/** Items of standard input are read more than once: they are kept in a file until all is done. */
async function spoolInput(): Promise<{ file: string; remove(): void }> {
  const folder = await mkdtemp(join(tmpdir(), 'canopy-items-')).catch((error: unknown) => {
    throw fileError(error, 'cannot keep the items of standard input', tmpdir())
  })
  const file = join(folder, 'items.jsonl')
  const remove = (): void => rmSync(folder, { recursive: true, force: true })
  // a second Ctrl-C ends the process without looking back
  process.once('exit', remove)
  try {
    await interruptible((signal) => pipeline(process.stdin, createWriteStream(file), { signal }))
  } catch (error) {
    remove()
    throw fileError(error, 'cannot keep the items of standard input', file)
  }
  return { file, remove }
}

interface Encoding {
  pair: EncoderPair
  embedder: Embedder
  settings: NodeSettings
  selection: Selection
  shard: Shard | undefined
  flags: Flags
  out: Output
}

const MOST_SKIPPED_SHOWN = 5

async function encodeWith({ pair, embedder, settings, selection, shard, flags, out }: Encoding): Promise<number> {
  const { output, store, side = 'node' } = flags
  let stopped: StopSignal | undefined
  const begun = output !== undefined && (await exists(partialOf(output)))
  const skipped: string[] = []
  const common = {
    ...{ pair, embedder, side, selection, settings, shard },
    onError: flags.onError,
    // a bar on a terminal shows what time is left by itself
    onProgress: process.stderr.isTTY ? out.progress : withTimeLeft(out.progress),
    onSkip: (label: string, reason: string) => {
      if (skipped.length < MOST_SKIPPED_SHOWN) skipped.push(`${label}: ${reason}`)
    },
  }
  try {
    await interruptible(
      async (signal) => {
        if (output === undefined) {
          const { plan, work } = await encodeToStore({ ...common, signal })
          out.done()
          summary(out, work, skipped, side, undefined)
          out.line(`The store ${store} holds them.`)
          out.json({ store, fingerprint: embedder.fingerprint, units: plan.units, ...throughput(work) })
          return
        }
        const format = formatOf(flags)
        const { encoded, resumed, work } = await encodeToFile({
          ...common,
          ...{ output, format, dtype: flags.dtype ?? 'float32', resume: flags.resume ?? false, signal },
          computing: {
            device: flags.device ?? 'cpu',
            precision: flags.precision ?? 'fp32',
            tokenBudget: flags.tokenBudget ?? 4096,
          },
        })
        out.done()
        const listed = format === 'parquet' ? 'the note canopy.skipped of the file' : join(output, 'skipped.jsonl')
        if (work.units + work.skipped > 0 || resumed === 0) summary(out, work, skipped, side, listed)
        else out.line('All of it was done by earlier runs.')
        tellEmptyShard(out, encoded)
        written(out, output, encoded)
        out.json({ output, format, encoded, resumedBlocks: resumed, ...throughput(work) })
      },
      (name) => {
        stopped = name
        out.warn(`${name}: stopping; once more ends at once.`)
      },
    )
    return 0
  } catch (error) {
    out.done()
    if (stopped === undefined || !(error instanceof Error && error.name === 'AbortError')) {
      if (output !== undefined && !begun && (await exists(partialOf(output))))
        out.warn(`what was done lies in ${partialOf(output)}; the same command with --resume goes on from there.`)
      throw error
    }
    out.warn(
      store === undefined
        ? 'Stopped. The same command with --resume goes on from the last block that was done.'
        : 'Stopped. The same command goes on: what the store has is not computed again.',
    )
    return STOP_STATUS[stopped]
  }
}

const throughput = (work: Work) => ({
  work,
  rowsPerSecond: work.seconds === 0 ? null : work.rows / work.seconds,
  tokensPerSecond: work.seconds === 0 ? null : work.tokens / work.seconds,
})

const grouped = (n: number): string => n.toLocaleString('en-GB')
const percent = (part: number, whole: number): string => `${((100 * part) / Math.max(1, whole)).toFixed(1)} %`

/** @param listed where what was left out is listed in full */
function summary(
  out: Output,
  work: Work,
  skipped: readonly string[],
  side: 'node' | 'query',
  listed: string | undefined,
): void {
  const { units, rows, tokens, seconds, planSeconds, cached, computed, same, truncated } = work
  const rate = (n: number): string => grouped(Math.round(n / Math.max(seconds, 1e-3)))
  const what = side === 'node' ? `${grouped(rows)} nodes of ${grouped(units)} items` : `${grouped(rows)} questions`
  out.line(
    `${what} (${grouped(tokens)} tokens) in ${duration(seconds)}: ${rate(rows)} ${side === 'node' ? 'nodes' : 'questions'} and ${rate(tokens)} tokens a second; ${duration(planSeconds)} of looking over the data before.`,
  )
  out.line(
    `${grouped(computed)} computed; ${percent(same, rows)} had the tokens of another one beside them, ${percent(cached, rows)} were known, ${percent(truncated, rows)} were cut at the maximum length.`,
  )
  if (work.skipped === 0) return
  out.warn(`${grouped(work.skipped)} items were left out${listed === undefined ? '' : ` (all of them in ${listed})`}:`)
  for (const line of skipped) out.warn(`  ${line}`)
}

/** Blocks are what shards divide: a small data set has fewer of them than there are shards. */
function tellEmptyShard(out: Output, { shard, data }: Encoded): void {
  if (shard === null || shard.blocks[0] < shard.blocks[1]) return
  out.line(
    `Shard ${shard.index} of ${shard.of} has nothing to do: the data is divided by blocks of about ${grouped(BLOCK_ROWS)} rows, of which there ${data.blocks === 1 ? 'is 1' : `are ${data.blocks}`}. It is merged like the others.`,
  )
}

function written(out: Output, output: string, { counts, space, dtype, rounding, shard }: Encoded): void {
  const part = shard === null ? '' : `, shard ${shard.index} of ${shard.of}`
  out.line(`${output}: ${dtype} [${counts.rows}, ${space.dimension}]${part}.`)
  if (rounding !== undefined)
    out.line(
      `Stored in float16: least cosine with float32 ${rounding.leastCosine.toFixed(7)}, largest difference ${rounding.largestDifference.toExponential(1)}.`,
    )
}

async function merge(shards: string[], flags: Flags, out: Output): Promise<void> {
  refuse(flags, OF_ENCODING, 'is of no use with --merge: nothing is encoded.')
  const { output } = flags
  if (output === undefined) throw new UsageError('Say where the merged embeddings go: --output.')
  const encoded = await interruptible((signal) =>
    mergeShards({ shards, output, format: formatOf(flags), onProgress: out.progress, signal }),
  ).finally(out.done)
  out.line(
    `${shards.length} shards, verified: all of ${encoded.data.units} ${encoded.side === 'node' ? 'items' : 'questions'}, each once.`,
  )
  written(out, output, encoded)
  out.json({ output, encoded })
}

async function verify(path: string, flags: Flags, out: Output): Promise<void> {
  refuse(flags, [...OF_ENCODING, 'merge', 'output', 'format'], 'is of no use with --verify: nothing is written.')
  const encoded = await interruptible((signal) => verifyEmbeddings(path, { onProgress: out.progress, signal })).finally(
    out.done,
  )
  const { counts, encoder, adapter, data } = encoded
  written(out, path, encoded)
  out.line(
    `Whole: ${counts.rows} rows of ${counts.units} ${encoded.side === 'node' ? 'items' : 'questions'} of ${data.names.join(', ')}${counts.skipped === 0 ? '' : `, ${counts.skipped} left out`}; encoder ${encoder.id}${adapter === null ? '' : ` with adapter ${adapter.slice(0, 12)}`}.`,
  )
  out.json({ path, encoded })
}

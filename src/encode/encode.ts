import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import {
  adapterHash,
  beyondSkipping,
  type Embedder,
  type EncodedInput,
  type EncoderPair,
  type EncoderProfile,
  firstOccurrences,
  sequenceKey,
  stoppedBy,
  type TokenSequence,
  UnreadableError,
} from '../encoder/index.ts'
import { RENDERING_VERSION, SEGMENTER_VERSION } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import {
  type Counts,
  DESCRIPTION_FILE,
  type Description,
  differences,
  EMBEDDINGS_SCHEMA,
  type Encoded,
  readEncoded,
} from './description.ts'
import { bytesOfRows, roundingOf } from './matrix.ts'
import { type Format, installer, readParquetDescription } from './parquet.ts'
import { BLOCK_ROWS, contentHash, type Plan, planBlocks, type Shard, shardBlocks } from './plan.ts'
import { indexLine, type SkippedUnit } from './rows.ts'
import {
  type NodeSettings,
  openItems,
  openQuestions,
  type RowHead,
  type Selection,
  type Source,
  type Unit,
} from './units.ts'
import { openWorking, partialOf } from './working.ts'

export interface CommonOptions {
  /** `embedder` is of the pair's node encoder on the node side, of its query encoder on the query side. */
  pair: EncoderPair
  embedder: Embedder
  side: 'node' | 'query'
  selection: Selection
  settings: NodeSettings
  /** Which part of the work; all of it where absent. */
  shard?: Shard | undefined
  /** What an item does that the encoder cannot read: throw, or be left out, counted and listed. */
  onError?: 'stop' | 'skip' | undefined
  /** Rows that are computed together, `BLOCK_ROWS` by default. */
  blockRows?: number | undefined
  onProgress?: Progress | undefined
  /** Told of an item that is left out. */
  onSkip?: ((label: string, reason: string) => void) | undefined
  signal?: AbortSignal | undefined
}

export interface EncodeOptions extends CommonOptions {
  /** The folder, or of Parquet the file, that is written; it appears when all is done. */
  output: string
  format: Format
  dtype: Description['dtype']
  /** What the embedder was opened with, of what decides the last bits of a number. */
  computing: { device: string; precision: string; tokenBudget: number }
  /** Whether an unfinished output is gone on with, and a finished one taken for what it is. */
  resume: boolean
}

/** What a run did. */
export interface EncodeRun {
  /** All that lies in the output, of earlier runs too. */
  encoded: Encoded
  /** Blocks that earlier runs had done. */
  resumed: number
  /** What this run did. */
  work: Work
}

/** Throughput of one run. */
export interface Work {
  units: number
  skipped: number
  rows: number
  /** Tokens of the rows' sequences, each counted. */
  tokens: number
  truncated: number
  /** Rows that share the sequence of another one in their block. */
  same: number
  /** Embeddings that were computed, and that a cache or a store had. */
  computed: number
  cached: number
  /** Seconds of reading, tokenising, computing and writing; the look over the data before is in `planSeconds`. */
  seconds: number
  planSeconds: number
}

/**
 * Embeds every node of a data set's items (or every question) into a portable file: rows in the order of the data, of an item in
 * pre-order. Memory does not grow with the data: blocks of rows are computed, appended and committed one after the other. Killed at
 * any moment, it goes on from the last block, and the files come out with the same bytes; the shards of a division, merged, too.
 *
 * @throws InputError for data that cannot be read, an output that is there, an unfinished one of other settings; for an item that
 *   the encoder cannot read, unless such are left out
 * @throws the signal's reason when it is aborted; what was committed stays
 */
export async function encodeToFile(options: EncodeOptions): Promise<EncodeRun> {
  const { output, resume, dtype, shard, signal, format, onProgress } = options
  const work = newWork()
  const source = await openSource(options)
  try {
    const plan = await planned(source, options, work)
    const description = describeWork(source, plan, options)
    const before = resume ? await finishedBefore(output, description, format) : undefined
    if (before !== undefined) {
      // a run that was killed when all but this was done
      await rm(partialOf(output), { recursive: true, force: true })
      return { encoded: before, resumed: blocksOf(plan, shard).length, work }
    }
    const working = await openWorking(output, description, { resume })
    try {
      const resumed = working.blocks
      let { counts, rounding } = working
      const dimension = description.space.dimension
      const write: WriteRows = async (rows, embeddings) => {
        const index = rows.map(({ head, key, truncated }) => indexLine(head, key, truncated)).join('')
        await working.append('matrix', bytesOfRows(embeddings, dtype))
        await working.append('index', Buffer.from(index))
        if (dtype === 'float16') rounding = roundingOf(embeddings, dimension, rounding)
      }
      await eachBlock(source, plan, options, work, resumed, {
        write,
        async skip(unit) {
          await working.append('skipped', Buffer.from(`${JSON.stringify(unit)}\n`))
        },
        async done(made) {
          counts = added(counts, made)
          await working.commit(counts, rounding)
        },
        before: counts.rows,
      })
      signal?.throwIfAborted()
      const install = installer(format, output, { onProgress, signal })
      return { encoded: await working.finish({ install }), resumed, work }
    } finally {
      await working.close()
    }
  } finally {
    await source.close()
  }
}

/**
 * Embeds the same into the store (or cache) that the embedder was opened with: what is known there already is not computed again, so
 * that a second run goes on from an interrupted one.
 *
 * @throws InputError as {@link encodeToFile} does, and as the store does
 * @example
 * const store = await openPostgresStore({ client })
 * const embedder = await openEmbedder(pair.encoder, { store })
 * await encodeToStore({ pair, embedder, side: 'node', selection, settings: pair.settings })
 */
export async function encodeToStore(
  options: CommonOptions,
): Promise<{ plan: Pick<Plan, 'units' | 'rows'>; work: Work }> {
  const work = newWork()
  const source = await openSource(options)
  try {
    const plan = await planned(source, options, work)
    await eachBlock(source, plan, options, work, 0, { ...NOTHING, before: 0 })
    return { plan, work }
  } finally {
    await source.close()
  }
}

const newWork = (): Work => ({
  ...{ units: 0, skipped: 0, rows: 0, tokens: 0, truncated: 0, same: 0, computed: 0, cached: 0 },
  ...{ seconds: 0, planSeconds: 0 },
})

const NOTHING = { write: async () => {}, skip: async () => {}, done: async () => {} }

function openSource(options: CommonOptions): Promise<Source> {
  const { side, selection, settings, embedder } = options
  if (side === 'query') return openQuestions(selection)
  const { reader, profile } = embedder
  return openItems(selection, {
    settings,
    multimodal: reader.multimodal,
    maxLength: reader.maxLength,
    encoder: profile.id,
  })
}

async function planned(source: Source, options: CommonOptions, work: Work): Promise<Plan> {
  const { blockRows = BLOCK_ROWS, onError = 'stop', onProgress, signal } = options
  const began = performance.now()
  const plan = await planBlocks(source, {
    blockRows,
    onRefused(label, reason) {
      if (onError === 'stop')
        throw new InputError(
          `${label} is ${reason}. Give an encoder that reads pictures (architecture qwen3_vl), or leave out such items with --on-error skip (in a program "onError").`,
        )
    },
    onProgress: (done) => onProgress?.({ phase: 'reading', done, note: 'items' }),
    signal,
  })
  work.planSeconds = (performance.now() - began) / 1000
  return plan
}

const blocksOf = (plan: Plan, shard: Shard | undefined) =>
  plan.blocks.slice(...(shard === undefined ? [0, plan.blocks.length] : shardBlocks(plan.blocks, shard)))

function describeWork(source: Source, plan: Plan, options: EncodeOptions): Description {
  const { pair, embedder, side, selection, settings, dtype, computing, shard, blockRows = BLOCK_ROWS } = options
  const blocks = blocksOf(plan, shard)
  return {
    schema: EMBEDDINGS_SCHEMA,
    side,
    encoder: identityOf(pair.encoder),
    adapter: pair.adapter === undefined ? null : adapterHash(pair.adapter),
    queryEncoder: identityOf(pair.query),
    space: { fingerprint: embedder.fingerprint, dimension: embedder.dimension },
    dtype,
    settings: {
      prompt: embedder.profile.prompts[side],
      maxLength: embedder.reader.maxLength,
      title: settings.title,
      tableFormat: settings.tableFormat,
      branching: settings.branching,
      rendering: RENDERING_VERSION,
      segmenter: SEGMENTER_VERSION,
    },
    computing: { ...computing, blockRows },
    data: {
      names: source.names,
      splits: selection.splits === undefined ? null : [...selection.splits],
      hash: plan.hash,
      ids: plan.names,
      units: plan.units,
      rows: plan.rows,
      blocks: plan.blocks.length,
    },
    shard:
      shard === undefined
        ? null
        : {
            ...{ index: shard.index, of: shard.of, blocks: shardBlocks(plan.blocks, shard) },
            first: blocks[0]?.first ?? firstAfter(plan, shard),
            units: blocks.reduce((sum, block) => sum + block.units, 0),
          },
  }
}

/** Where a shard without blocks stands between the others. */
function firstAfter(plan: Plan, shard: Shard): number {
  const [from] = shardBlocks(plan.blocks, shard)
  return plan.blocks[from]?.first ?? plan.units
}

function identityOf({ id, revision, fingerprint }: EncoderProfile): Description['encoder'] {
  return { id, ...(revision === undefined ? {} : { revision }), fingerprint }
}

/** The output of an earlier run that did all of this. */
async function finishedBefore(output: string, description: Description, format: Format): Promise<Encoded | undefined> {
  if (!(await exists(output))) return undefined
  const encoded = await (format === 'parquet'
    ? readParquetDescription(output)
    : readEncoded(join(output, DESCRIPTION_FILE)))
  const found = differences(encoded, description, [])
  if (found.length === 0) return encoded
  throw new InputError(
    `is there already, and was encoded otherwise: ${found.join('; ')}. Give another output, or remove it first.`,
    { file: output },
  )
}

interface ReadRow {
  head: RowHead
  sequence: TokenSequence
  key: Uint8Array
  truncated: boolean
}

type WriteRows = (rows: readonly ReadRow[], embeddings: Float32Array) => Promise<void>

interface Sink {
  write: WriteRows
  skip(unit: SkippedUnit): Promise<void>
  /** A block is done: what it added. */
  done(counts: Counts): Promise<void>
  /** Rows that are there already. */
  before: number
}

/** Computes the blocks of a shard that are not done yet. */
async function eachBlock(
  source: Source,
  plan: Plan,
  options: CommonOptions,
  work: Work,
  resumed: number,
  sink: Sink,
): Promise<void> {
  const { shard, blockRows = BLOCK_ROWS, embedder, onProgress, signal } = options
  const began = performance.now()
  const mine = blocksOf(plan, shard)
  const total = mine.reduce((sum, block) => sum + block.rows, 0)
  const { counts } = embedder
  const { computed: computedBefore, cached: cachedBefore } = counts
  const report = (rows: number): void => {
    work.seconds = (performance.now() - began) / 1000
    const pace = work.seconds > 1 ? `, ${Math.round((work.rows + rows) / work.seconds)} a second` : ''
    onProgress?.({
      phase: options.side === 'node' ? 'encoding nodes' : 'encoding questions',
      done: sink.before + work.rows + rows,
      total,
      note: `${work.units} ${options.side === 'node' ? 'items ' : ''}done${pace}`,
    })
  }
  const tally = (): void => {
    work.computed = counts.computed - computedBefore
    work.cached = counts.cached - cachedBefore
    work.seconds = (performance.now() - began) / 1000
  }
  const todo = mine.slice(resumed)
  const [first] = todo
  if (first === undefined) return
  const units = source.units(signal)[Symbol.asyncIterator]()
  try {
    for (let n = 0; n < first.first; n++) await units.next()
    for (const block of todo) {
      const made: Counts = { units: 0, skipped: 0, rows: 0, truncated: 0, same: 0, tokens: 0 }
      const pending: ReadRow[] = []
      const content = contentHash()
      const flush = async (): Promise<void> => {
        const rows = pending.splice(0)
        if (rows.length === 0) return
        const { embeddings, same } = await computeRows(rows, options, (done) => report(made.rows + done))
        await sink.write(rows, embeddings)
        made.rows += rows.length
        made.same += same
        for (const { truncated, sequence } of rows) {
          made.truncated += truncated ? 1 : 0
          made.tokens += sequence.ids.length
        }
      }
      for (let n = block.first; n < block.first + block.units; n++) {
        const { value: unit, done } = await units.next()
        if (done === true) throw changed()
        signal?.throwIfAborted()
        content.add(unit)
        const skipped = await readUnit(unit, options, blockRows, pending, flush)
        if (skipped === undefined) made.units++
        else {
          made.skipped++
          options.onSkip?.(unit.label, skipped)
          await sink.skip({ name: unit.name, number: n, reason: skipped })
        }
      }
      await flush()
      signal?.throwIfAborted()
      if (content.digest() !== block.hash) throw changed()
      await sink.done(made)
      for (const name of Object.keys(made) as (keyof Counts)[]) work[name] += made[name]
      tally()
      report(0)
    }
  } finally {
    tally()
    await units.return?.()
  }
}

/** What was planned is not what is there. */
const changed = (): InputError =>
  new InputError(
    'The data changed while it was encoded. Begin anew when nobody writes to it, or go on (--resume) when it is as it was.',
  )

/**
 * Reads a unit's rows as token sequences; large ones are computed in between.
 *
 * @returns why it was left out, or undefined
 */
async function readUnit(
  unit: Unit,
  { embedder, side, onError = 'stop', signal }: CommonOptions,
  blockRows: number,
  pending: ReadRow[],
  flush: () => Promise<void>,
): Promise<string | undefined> {
  if (unit.refused !== undefined) return unit.refused
  const rows: ReadRow[] = unit.media ? [] : pending
  try {
    for (let from = 0; from < unit.rows; from += blockRows) {
      const to = Math.min(from + blockRows, unit.rows)
      const inputs = Array.from({ length: to - from }, (_, i) => unit.input(from + i))
      const read = await embedder.reader.encode(inputs, side, signal === undefined ? {} : { signal })
      read.forEach(({ sequence, truncated }: EncodedInput, i) => {
        rows.push({ head: unit.head(from + i), sequence, key: sequenceKey(sequence), truncated })
      })
      if (to < unit.rows && !unit.media) await flush()
    }
  } catch (error) {
    if (!(error instanceof UnreadableError)) throw beyondSkipping(error, onError)
    if (onError === 'stop') throw stoppedBy(JSON.parse(unit.name), error)
    return error.message.replace(/\.$/, '')
  }
  if (unit.media) pending.push(...rows)
  return undefined
}

/** Computes the embeddings of rows, equal sequences once. */
async function computeRows(
  rows: readonly ReadRow[],
  { embedder, signal }: CommonOptions,
  onDone: (rows: number) => void,
): Promise<{ embeddings: Float32Array; same: number }> {
  const { dimension } = embedder
  const { same, first } = firstOccurrences(rows.map(({ sequence }) => sequence))
  const unique = first.map((i) => (rows[i] as ReadRow).sequence)
  const computed = await embedder.embedSequences(unique, {
    ...(signal === undefined ? {} : { signal }),
    onProgress: ({ done }) => onDone(done),
  })
  const place = new Map(first.map((row, n) => [row, n]))
  const embeddings = new Float32Array(rows.length * dimension)
  same.forEach((original, i) => {
    const n = place.get(original) as number
    embeddings.set(computed.subarray(n * dimension, (n + 1) * dimension), i * dimension)
  })
  return { embeddings, same: rows.length - unique.length }
}

function added(a: Counts, b: Counts): Counts {
  const sum = { ...a }
  for (const name of Object.keys(b) as (keyof Counts)[]) sum[name] += b[name]
  return sum
}

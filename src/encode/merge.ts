import { createReadStream } from 'node:fs'
import { join, resolve } from 'node:path'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import {
  type Counts,
  DESCRIPTION_FILE,
  type Description,
  differences,
  type Encoded,
  INDEX_FILE,
  MATRIX_FILE,
  NO_COUNTS,
  readEncoded,
  SKIPPED_FILE,
} from './description.ts'
import { HEADER_BYTES, NO_ROUNDING } from './matrix.ts'
import { type Format, installer } from './parquet.ts'
import { readIndex } from './rows.ts'
import { checkHashes, createNames, readSkippedOf } from './verify.ts'
import { openWorking, unfinished, type Working } from './working.ts'

export interface MergeOptions {
  /** Folders of the shards, in any order. */
  shards: readonly string[]
  output: string
  format: Format
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

interface Part {
  folder: string
  encoded: Encoded
}

/**
 * Joins the shards of a division into what one run over all of the data would have written, byte for byte, and verifies it: all
 * shards are there once, of the same encoder, settings and data; their files are whole; and their items are those of the data, none
 * missing and none twice.
 *
 * @throws InputError naming the shard at fault and what differs; nothing is written then
 */
export async function mergeShards({ shards, output, format, onProgress, signal }: MergeOptions): Promise<Encoded> {
  const parts = await openParts(shards)
  await checkAllThere(parts, onProgress, signal)
  const [first] = parts as [Part]
  const { counts: _, rounding: __, files: ___, ...description } = first.encoded
  // an interrupted merge has no blocks, and is begun again; a run that has some goes on by itself
  const working = await openWorking(output, { ...description, shard: null }, { resume: true })
  try {
    if (working.blocks > 0) throw unfinished(output)
    const total = parts.length
    for (const [i, { folder }] of parts.entries()) {
      onProgress?.({ phase: 'merging', done: i, total })
      signal?.throwIfAborted()
      await append(working, 'matrix', join(folder, MATRIX_FILE), HEADER_BYTES)
      await append(working, 'index', join(folder, INDEX_FILE), 0)
      await append(working, 'skipped', join(folder, SKIPPED_FILE), 0)
    }
    const loss = parts.map(({ encoded }) => encoded.rounding ?? NO_ROUNDING)
    const all = {
      counts: parts.map(({ encoded }) => encoded.counts).reduce(sum, NO_COUNTS),
      rounding: {
        leastCosine: Math.min(...loss.map(({ leastCosine }) => leastCosine)),
        largestDifference: Math.max(...loss.map(({ largestDifference }) => largestDifference)),
      },
    }
    return await working.finish({ all, install: installer(format, output, { onProgress, signal }) })
  } finally {
    await working.close()
  }
}

async function openParts(folders: readonly string[]): Promise<Part[]> {
  const parts: Part[] = []
  for (const folder of folders) {
    const other = parts.find((part) => resolve(part.folder) === resolve(folder))
    if (other !== undefined) throw new InputError('the folder is named twice.', { file: folder })
    parts.push({ folder, encoded: await readEncoded(join(folder, DESCRIPTION_FILE)) })
  }
  const [first] = parts
  if (first === undefined) throw new InputError('Name the folders of the shards.')
  for (const { folder, encoded } of parts) {
    if (encoded.shard === null) throw new InputError('is no shard: it has all of its data already.', { file: folder })
    const found = differences(first.encoded, encoded, ['shard'])
    if (encoded.shard.of !== first.encoded.shard?.of)
      found.push(`it is one of ${encoded.shard.of} shards, not of ${first.encoded.shard?.of}`)
    if (found.length > 0)
      throw new InputError(`the shard is no part of what ${first.folder} is a part of: ${found.join('; ')}.`, {
        file: folder,
      })
  }
  return parts.sort((a, b) => shardOf(a).index - shardOf(b).index)
}

const shardOf = ({ encoded }: Part): NonNullable<Description['shard']> =>
  encoded.shard as NonNullable<Description['shard']>

async function checkAllThere(parts: readonly Part[], onProgress?: Progress, signal?: AbortSignal): Promise<void> {
  const [first] = parts as [Part]
  const { of } = shardOf(first)
  for (const [i, part] of parts.entries()) {
    const before = parts[i - 1]
    if (before !== undefined && shardOf(before).index === shardOf(part).index)
      throw new InputError(`is shard ${shardOf(part).index} of ${of}, as ${before.folder} is.`, { file: part.folder })
  }
  const have = new Set(parts.map((part) => shardOf(part).index))
  const missing: number[] = []
  for (let index = 1; index <= of && missing.length < 10; index++) if (!have.has(index)) missing.push(index)
  if (missing.length > 0) {
    const more = of - have.size > missing.length ? ` and ${of - have.size - missing.length} more` : ''
    throw new InputError(
      `Of ${of} shards ${have.size} are there; missing: ${missing.map((index) => `${index}/${of}`).join(', ')}${more}.`,
    )
  }
  const names = createNames()
  let block = 0
  let unit = 0
  for (const [i, { folder, encoded }] of parts.entries()) {
    signal?.throwIfAborted()
    onProgress?.({ phase: 'checking shards', done: i, total: parts.length })
    const shard = encoded.shard as NonNullable<Description['shard']>
    if (shard.blocks[0] !== block || shard.first !== unit)
      throw new InputError(`shard ${shard.index} does not begin where the one before it ends; encode it again.`, {
        file: folder,
      })
    block = shard.blocks[1]
    unit += shard.units
    await checkHashes(folder, encoded)
    const skipped = readSkippedOf(folder, encoded)
    let rows = 0
    for await (const { row } of readIndex(join(folder, INDEX_FILE), encoded.side)) {
      await names.rowAmong(row, 0, skipped)
      rows++
    }
    await names.rest(skipped)
    if (rows !== encoded.counts.rows)
      throw new InputError(`the index has ${rows} rows, encode.json says ${encoded.counts.rows}`, { file: folder })
  }
  if (block !== first.encoded.data.blocks)
    throw new InputError('The last shard ends before the data does; encode it again.', { file: parts.at(-1)?.folder })
  names.check({ ...first.encoded, shard: null }, parts.map(({ folder }) => folder).join(', '))
}

function sum(a: Counts, b: Counts): Counts {
  const both = { ...a }
  for (const name of Object.keys(b) as (keyof Counts)[]) both[name] += b[name]
  return both
}

async function append(
  working: Working,
  part: 'matrix' | 'index' | 'skipped',
  file: string,
  from: number,
): Promise<void> {
  try {
    for await (const chunk of createReadStream(file, { start: from, highWaterMark: 1 << 20 }))
      await working.append(part, chunk as Buffer)
  } catch (error) {
    if (part === 'skipped' && (error as NodeJS.ErrnoException).code === 'ENOENT') return
    throw fileError(error, 'cannot read the shard', file)
  }
}

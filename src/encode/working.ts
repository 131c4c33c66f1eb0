import { createReadStream } from 'node:fs'
import { type FileHandle, lstat, mkdir, open, readFile, rename, rm, stat, truncate, writeFile } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { crc32 } from 'node:zlib'
import { z } from 'zod'
import { InputError } from '../support/errors.ts'
import { exists, fileError, sha256File, syncFolder, writeFileAtomic } from '../support/files.ts'
import { lockFolder } from '../support/lock.ts'
import {
  type Counts,
  DESCRIPTION_FILE,
  type Description,
  describe,
  differences,
  type Encoded,
  INDEX_FILE,
  MATRIX_FILE,
  NO_COUNTS,
  parseDescription,
  type Rounding,
  SKIPPED_FILE,
} from './description.ts'
import { HEADER_BYTES, matrixHeader, NO_ROUNDING, rowBytes } from './matrix.ts'

/**
 * An unfinished output: beside its final name, `<output>.partial`.
 *
 * - `description.json` what is encoded and how; a run goes on only with the same
 * - `files/` the files of the output as far as they are written
 * - `progress.jsonl` a line a block: how far the files reached with it, with checksums of what it added
 * - `lock.json` the process that works on it
 *
 * A block counts once its line is on the disk; what the files have beyond the last line is cut when a run goes on.
 */
const PROGRESS_FILE = 'progress.jsonl'
const DESCRIPTION = 'description.json'
const FILES = 'files'

/** Name of the unfinished output. */
export const partialOf = (output: string): string => `${resolve(output)}.partial`

const count = z.number().int().min(0)
const progressLine = z.strictObject({
  block: count,
  /** Bytes of each file up to the block's end. */
  bytes: z.strictObject({ matrix: count, index: count, skipped: count }),
  /** CRC-32 of what the block added to each. */
  crc: z.strictObject({ matrix: count, index: count, skipped: count }),
  /** Of all blocks so far. */
  counts: z.strictObject({ units: count, skipped: count, rows: count, truncated: count, same: count, tokens: count }),
  rounding: z.strictObject({ leastCosine: z.number(), largestDifference: z.number() }),
})

type ProgressLine = z.infer<typeof progressLine>
type Part = keyof ProgressLine['bytes']

const PART_FILES: Record<Part, string> = { matrix: MATRIX_FILE, index: INDEX_FILE, skipped: SKIPPED_FILE }
const PARTS = Object.keys(PART_FILES) as Part[]

/** What the files of an output have. */
export interface Totals {
  counts: Counts
  rounding: Rounding
}

/** Puts something else made of a finished folder under the output's name. */
export type Install = (folder: string, encoded: Encoded) => Promise<void>

/** An output that is being written. */
export interface Working {
  /** Blocks that are on the disk already. */
  readonly blocks: number
  readonly counts: Readonly<Counts>
  readonly rounding: Rounding
  /** Adds to a file; it counts with the next commit. */
  append(part: Part, bytes: Uint8Array): Promise<void>
  /** Makes all that was added since the last commit count, and lasting. */
  commit(counts: Counts, rounding: Rounding): Promise<void>
  /**
   * Completes the files and puts them under the final name.
   *
   * @param options.all what the files have, where they were filled without a commit, to be filled anew after an interruption
   * @param options.install makes something else of the finished folder; by default it is the output itself
   */
  finish(options?: { all?: Totals; install?: Install | undefined }): Promise<Encoded>
  /** Ends the work for now; what was committed stays. */
  close(): Promise<void>
}

/**
 * Begins an output, or goes on with what an interrupted run left of it.
 *
 * @param resume whether an unfinished output is gone on with; otherwise one in the way is an error
 * @throws InputError where the output is there already, where an unfinished one is and is not to be gone on with, or was begun with
 *   other settings or data, naming what differs; where another process works on it; as writing files does
 */
export async function openWorking(
  output: string,
  description: Description,
  { resume }: { resume: boolean },
): Promise<Working> {
  const final = resolve(output)
  const folder = partialOf(output)
  await refuseExisting(output)
  await mkdir(dirname(final), { recursive: true }).catch((error: unknown) => {
    throw fileError(error, 'cannot make the folder', dirname(final))
  })
  const unlock = await lockFolder(folder, 'encoding')
  try {
    const files = join(folder, FILES)
    // asked by whoever has the lock: what a process is at work on is not unfinished
    const begun = await exists(join(folder, DESCRIPTION))
    if (begun && !resume) throw unfinished(output)
    if (begun) await checkSame(join(folder, DESCRIPTION), description)
    else {
      // what a run left that was killed before its description was written
      await rm(files, { recursive: true, force: true })
      await rm(join(folder, PROGRESS_FILE), { force: true })
      await mkdir(files)
      await writeFile(join(files, MATRIX_FILE), matrixHeader(description, 0))
      await writeFileAtomic(join(folder, DESCRIPTION), `${JSON.stringify(description, null, 2)}\n`)
    }
    // finishing removes a file that nothing is in
    for (const part of PARTS) await (await open(join(files, PART_FILES[part]), 'a')).close()
    const last = await readProgress(folder, description)
    return await openFiles(final, folder, description, last, unlock)
  } catch (error) {
    await unlock()
    throw fileError(error, 'cannot write the output', output)
  }
}

/** @throws InputError where the output is there already, be it a link that leads nowhere */
async function refuseExisting(output: string): Promise<void> {
  const isThere = await lstat(resolve(output)).then(
    () => true,
    () => false,
  )
  if (isThere) throw new InputError('is there already; give another output, or remove it first.', { file: output })
}

/** What an unfinished run in the way of another one is. */
export const unfinished = (output: string): InputError =>
  new InputError(
    `an unfinished run left ${partialOf(output)}. Go on with it (--resume, in a program "resume"), or remove that folder.`,
    { file: output },
  )

async function checkSame(file: string, description: Description): Promise<void> {
  let value: unknown
  try {
    value = JSON.parse(await readFile(file, 'utf8'))
  } catch (error) {
    throw new InputError('cannot be read; remove its folder and begin anew', { file }, error)
  }
  const found = differences(parseDescription(value, file), description, [])
  if (found.length > 0)
    throw new InputError(
      `The unfinished run was begun otherwise: ${found.join('; ')}. Give the same settings and data, or remove its folder and begin anew.`,
      { file },
    )
}

/** The last block whose bytes are in the files as its line says; the files and the list of lines are cut behind it. */
async function readProgress(folder: string, description: Description): Promise<ProgressLine | undefined> {
  const file = join(folder, PROGRESS_FILE)
  const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return ''
    throw error
  })
  const paths = partPaths(folder)
  let last: ProgressLine | undefined
  let kept = 0
  for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', kept)) {
    const line = parseLine(text.slice(kept, end))
    const expected = (last?.block ?? -1) + 1
    if (line === undefined || line.block !== expected || !(await isWritten(paths, last, line))) break
    last = line
    kept = end + 1
  }
  const bytes = last?.bytes ?? START
  for (const part of PARTS) await truncate(paths[part], bytes[part])
  // a block whose bytes do not fit was lost with the machine's power: it is computed again
  await writeFileAtomic(file, text.slice(0, kept))
  if (bytes.matrix - HEADER_BYTES !== (last?.counts.rows ?? 0) * rowBytes(description))
    throw new InputError('the progress contradicts itself; remove its folder and begin anew', { file })
  return last
}

const START: ProgressLine['bytes'] = { matrix: HEADER_BYTES, index: 0, skipped: 0 }

const partPaths = (folder: string): Record<Part, string> => ({
  matrix: join(folder, FILES, MATRIX_FILE),
  index: join(folder, FILES, INDEX_FILE),
  skipped: join(folder, FILES, SKIPPED_FILE),
})

function parseLine(text: string): ProgressLine | undefined {
  try {
    return progressLine.safeParse(JSON.parse(text)).data
  } catch {
    return undefined
  }
}

/** Whether the files hold what a block added. */
async function isWritten(
  paths: Record<Part, string>,
  before: ProgressLine | undefined,
  { bytes, crc }: ProgressLine,
): Promise<boolean> {
  for (const part of PARTS) {
    const from = (before?.bytes ?? START)[part]
    if (bytes[part] < from || (await stat(paths[part])).size < bytes[part]) return false
    let sum = 0
    if (bytes[part] > from)
      for await (const chunk of createReadStream(paths[part], { start: from, end: bytes[part] - 1 }))
        sum = crc32(chunk as Buffer, sum)
    if (sum !== crc[part]) return false
  }
  return true
}

async function writeMatrixHeader(path: string, description: Description, rows: number): Promise<void> {
  const handle = await open(path, 'r+')
  try {
    await handle.write(matrixHeader(description, rows), 0, HEADER_BYTES, 0)
    await handle.sync()
  } finally {
    await handle.close()
  }
}

async function openFiles(
  final: string,
  folder: string,
  description: Description,
  last: ProgressLine | undefined,
  unlock: () => Promise<void>,
): Promise<Working> {
  const files = join(folder, FILES)
  const paths = partPaths(folder)
  const failed = (error: unknown): never => {
    throw fileError(error, 'cannot write the output', final)
  }
  const handles = {} as Record<Part, FileHandle>
  const opened: FileHandle[] = []
  const openToAppend = async (path: string): Promise<FileHandle> => {
    const handle = await open(path, 'a')
    opened.push(handle)
    return handle
  }
  const closeHandles = async (): Promise<void> => {
    for (const handle of opened.splice(0)) await handle.close()
  }
  let progress: FileHandle
  try {
    for (const part of PARTS) handles[part] = await openToAppend(paths[part])
    progress = await openToAppend(join(folder, PROGRESS_FILE))
  } catch (error) {
    await closeHandles()
    throw error
  }
  let blocks = (last?.block ?? -1) + 1
  let counts: Counts = last?.counts ?? NO_COUNTS
  let rounding = last?.rounding ?? NO_ROUNDING
  const bytes = { ...(last?.bytes ?? START) }
  let crc = { matrix: 0, index: 0, skipped: 0 }
  let closed = false
  const close = async (): Promise<void> => {
    if (closed) return
    closed = true
    await closeHandles()
    await unlock()
  }
  /** Puts on the disk what was added since the last commit. */
  const sync = async (): Promise<void> => {
    for (const part of PARTS) if (bytes[part] !== (last?.bytes ?? START)[part]) await handles[part].datasync()
  }
  return {
    get blocks() {
      return blocks
    },
    get counts() {
      return counts
    },
    get rounding() {
      return rounding
    },
    async append(part, data) {
      if (data.length === 0) return
      await handles[part].appendFile(data).catch(failed)
      bytes[part] += data.length
      crc[part] = crc32(data, crc[part])
    },
    async commit(now, loss) {
      const line: ProgressLine = { block: blocks, bytes: { ...bytes }, crc, counts: now, rounding: loss }
      try {
        await sync()
        await progress.appendFile(`${JSON.stringify(line)}\n`)
        await progress.datasync()
      } catch (error) {
        failed(error)
      }
      last = line
      blocks++
      counts = now
      rounding = loss
      crc = { matrix: 0, index: 0, skipped: 0 }
    },
    async finish({ all, install } = {}) {
      try {
        await sync()
        await closeHandles()
        if (all !== undefined) ({ counts, rounding } = all)
        await writeMatrixHeader(paths.matrix, description, counts.rows)
        if (counts.skipped === 0) await rm(paths.skipped, { force: true })
        const hashes: Encoded['files'] = {
          [MATRIX_FILE]: await sha256File(paths.matrix),
          [INDEX_FILE]: await sha256File(paths.index),
          ...(counts.skipped === 0 ? {} : { [SKIPPED_FILE]: await sha256File(paths.skipped) }),
        }
        const encoded: Encoded = {
          ...description,
          counts,
          ...(description.dtype === 'float16' ? { rounding } : {}),
          files: hashes,
        }
        await writeFileAtomic(join(files, DESCRIPTION_FILE), describe(encoded))
        await syncFolder(files)
        await syncFolder(folder)
        await refuseExisting(final)
        if (install === undefined) await rename(files, final)
        else await install(files, encoded)
        await syncFolder(dirname(final))
        await close()
        await rm(folder, { recursive: true, force: true })
        return encoded
      } catch (error) {
        throw fileError(error, 'cannot write the output', final)
      }
    },
    close,
  }
}

import { open } from 'node:fs/promises'
import { type Dataset, parseJsonLossless, parseWith, readJsonLines, splitHash } from '../data/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import { headerSchema, instanceSchema, type PreferenceInstance, type PreferencesHeader } from './format.ts'

/** A preferences file whose every line was checked. Holds 20 bytes an instance in memory, and no file open. */
export interface Preferences {
  readonly file: string
  readonly header: PreferencesHeader
  /** Number of instances. */
  readonly count: number
  /**
   * Instance `i`, read from its place in the file.
   *
   * @throws RangeError unless 0 <= i < count; InputError when the file changed
   */
  at(i: number): Promise<PreferenceInstance>
  /** All instances, in file order. */
  instances(): AsyncIterable<PreferenceInstance>
}

/**
 * Reads and checks a preferences file.
 *
 * @throws InputError with file and line: a missing or empty file, another schema, a line that is no instance, a pair of nodes
 *   that are not there
 */
export async function openPreferences(file: string): Promise<Preferences> {
  let header: PreferencesHeader | undefined
  const places = createPlaces()
  for await (const { value, line, offset, length } of readJsonLines(file)) {
    if (header === undefined) header = parseWith(headerSchema, value, { file, line }, 'header of a preferences file')
    else {
      parseWith(instanceSchema, value, { file, line }, 'preference instance')
      places.add(offset, length, line)
    }
  }
  if (header === undefined) {
    throw new InputError('the file is empty; "canopy preferences" writes one with a header line', { file })
  }
  return {
    file,
    header,
    count: places.count,
    async at(i) {
      const { offset, length, line } = places.at(i)
      const bytes = await readBytes(file, offset, length)
      try {
        return parseWith(
          instanceSchema,
          parseJsonLossless(bytes.toString('utf8')),
          { file, line },
          'preference instance',
        )
      } catch (error) {
        throw new InputError('the file changed while it was in use; open it again', { file, line }, error)
      }
    },
    async *instances() {
      let first = true
      for await (const { value, line } of readJsonLines(file)) {
        if (!first) yield parseWith(instanceSchema, value, { file, line }, 'preference instance')
        first = false
      }
    },
  }
}

/**
 * Refuses preferences that no longer fit their dataset.
 *
 * @param expected what else the caller relies on
 * @throws InputError saying what changed (the dataset's name, the split, its questions or items, the branching factor, the
 *   choice of variants) and
 *   how to build the file again
 */
export async function checkFresh(
  preferences: Pick<Preferences, 'file' | 'header'>,
  dataset: Dataset,
  expected: { split?: string; branching?: number; variants?: 'keep' | 'leave-out' } = {},
): Promise<void> {
  const { header, file } = preferences
  const changes: string[] = []
  if (header.dataset !== dataset.meta.name) {
    changes.push(`they were built from the dataset "${header.dataset}", this one is "${dataset.meta.name}"`)
  }
  if (expected.split !== undefined && header.split !== expected.split) {
    changes.push(`they are of the split "${header.split}", not "${expected.split}"`)
  }
  if (expected.branching !== undefined && header.branching !== expected.branching) {
    changes.push(`their trees have branching factor ${header.branching}, not ${expected.branching}`)
  }
  if (expected.variants !== undefined && expected.variants !== (header.variants ?? 'keep')) {
    changes.push(
      header.variants === undefined
        ? 'questions marked with a variant are among them'
        : 'questions marked with a variant were left out of them',
    )
  }
  if (!Object.hasOwn(dataset.meta.splits, header.split)) {
    changes.push(`the dataset has no split "${header.split}"`)
  } else if (header.dataset === dataset.meta.name) {
    const hash = await splitHash(dataset, header.split)
    if (hash !== header.hash) {
      changes.push(
        `the questions of the split "${header.split}", or items that they name, have changed (hash ${short(header.hash)} then, ${short(hash)} now)`,
      )
    }
  }
  if (changes.length === 0) return
  const split = expected.split ?? header.split
  const branching = expected.branching ?? header.branching
  const variants = (expected.variants ?? header.variants) === 'leave-out' ? ' --no-variants' : ''
  throw new InputError(
    `The preferences do not fit the dataset ${dataset.folder}: ${changes.join('; ')}. Build them again: canopy preferences --dataset ${dataset.folder} --split ${split} --branching ${branching}${variants} --output ${file}`,
    { file },
  )
}

const short = (hash: string): string => `${hash.slice(0, 12)}…`

async function readBytes(file: string, offset: number, length: number): Promise<Buffer> {
  const handle = await open(file, 'r').catch((error) => {
    throw fileError(error, 'cannot read the preferences', file)
  })
  try {
    const bytes = Buffer.alloc(length)
    const { bytesRead } = await handle.read(bytes, 0, length, offset)
    return bytes.subarray(0, bytesRead)
  } finally {
    await handle.close()
  }
}

/** Where each instance stands, in flat arrays that grow by doubling. */
function createPlaces() {
  let offsets = new Float64Array(1024)
  let lengths = new Uint32Array(1024)
  let lines = new Float64Array(1024)
  let count = 0
  return {
    get count() {
      return count
    },
    add(offset: number, length: number, line: number): void {
      if (count === offsets.length) {
        offsets = grown(offsets, new Float64Array(2 * count))
        lengths = grown(lengths, new Uint32Array(2 * count))
        lines = grown(lines, new Float64Array(2 * count))
      }
      offsets[count] = offset
      lengths[count] = length
      lines[count] = line
      count++
    },
    at(i: number): { offset: number; length: number; line: number } {
      if (!Number.isInteger(i) || i < 0 || i >= count) {
        throw new RangeError(`There is no instance ${i}; the file has ${count}, numbered from 0.`)
      }
      return { offset: offsets[i]!, length: lengths[i]!, line: lines[i]! }
    },
  }
}

function grown<T extends Float64Array<ArrayBuffer> | Uint32Array<ArrayBuffer>>(old: T, larger: T): T {
  larger.set(old)
  return larger
}

import { createHash } from 'node:crypto'
import { closeSync, fstatSync, mkdirSync, openSync, readSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { crc32 } from 'node:zlib'
import { InputError } from '../../support/errors.ts'
import { fileError, removeLeftovers, temporaryName } from '../../support/files.ts'
import { lru } from '../../support/lru.ts'
import type { FeatureStore } from '../input/sequence.ts'
import type { Grid } from './vision-positions.ts'

const MAGIC = Buffer.from('CANOPYV1')
/** Magic, fingerprint and key (32 bytes each), how many numbers, checksum of all of that and of the numbers (4 bytes each). */
const HEADER_BYTES = 80
const CHECKSUM_AT = HEADER_BYTES - 4
const SHA256 = /^[0-9a-f]{64}$/

/** A store that can be added to. What it gives is held for others, too, and must not be changed. */
export interface WritableFeatureStore extends FeatureStore {
  /** Keeps features under a key; what is there already under it stays. */
  put(key: string, features: Float32Array): void
  /** Lets go of what is held in memory. */
  close(): void
}

/**
 * Names the features of a picture or a pair of frames by all that decides them: SHA-256 (hexadecimal) over the tower's
 * fingerprint, the grid and the pixels.
 */
export function featureKey(fingerprint: string, [height, width]: Grid, pixels: Float32Array): string {
  return createHash('sha256')
    .update(`${fingerprint} ${height} ${width} `)
    .update(new Uint8Array(pixels.buffer, pixels.byteOffset, pixels.byteLength))
    .digest('hex')
}

/**
 * Opens or creates the features of one vision tower in a folder: one file a key, below a folder named after the tower.
 *
 * A file appears under its name whole (written beside, then renamed), so any number of processes may read and write at once: two
 * that compute the same features write the same file. Nothing waits for the disk: what a power cut tears does not fit its
 * checksum, counts as absent, and is written again. A file's content is checked when it is first asked for, and with every read;
 * features of another tower are never read, as folder and content both carry the fingerprint.
 *
 * @param fingerprint of the tower, 64 hexadecimal digits
 * @param options.memory most bytes of features to hold in memory, those used last; 256 MiB by default
 * @throws InputError when the folder cannot be made
 */
export async function openFeatureStore(
  folder: string,
  fingerprint: string,
  options: { memory?: number } = {},
): Promise<WritableFeatureStore> {
  if (!SHA256.test(fingerprint)) throw new RangeError('A fingerprint has 64 hexadecimal digits')
  const root = join(folder, fingerprint)
  /** Beside what all files of the store are written, so that what killed runs leave is found again. */
  const scratch = join(root, 'features')
  guarded('cannot make the folder of the visual features', root, () => mkdirSync(root, { recursive: true }))
  await removeLeftovers(scratch)
  const recent = lru<Float32Array>(options.memory ?? 1 << 28, ({ byteLength }) => byteLength)
  const sound = new Set<string>()

  const fileOf = (key: string): string => {
    if (!SHA256.test(key)) throw new RangeError('A key has 64 hexadecimal digits')
    // folders stay small: a file manager or a backup walks them
    return join(root, key.slice(0, 2), `${key}.features`)
  }
  /** The features of a key, or undefined where there is no sound file. */
  const read = (key: string): Float32Array | undefined => {
    const known = recent.get(key)
    if (known !== undefined) return known
    const file = fileOf(key)
    const content = guarded('cannot read the visual features', file, () => contentOf(file))
    const features = content === undefined ? undefined : featuresIn(content, fingerprint, key)
    if (features === undefined) {
      sound.delete(key)
      return undefined
    }
    sound.add(key)
    recent.put(key, features)
    return features
  }

  const has = (key: string): boolean => sound.has(key) || read(key) !== undefined

  return {
    has,
    get(key) {
      const features = read(key)
      if (features === undefined)
        throw new InputError(
          'These visual features are missing or damaged. Start again: they are then computed anew.',
          {
            file: fileOf(key),
          },
        )
      return features
    },
    put(key, features) {
      if (has(key)) return
      const file = fileOf(key)
      const temporary = temporaryName(scratch)
      const content = encoded(features, fingerprint, key)
      guarded('cannot write the visual features', file, () => {
        try {
          mkdirSync(dirname(file), { recursive: true })
          writeFileSync(temporary, content, { flag: 'wx' })
          renameSync(temporary, file)
        } catch (error) {
          rmSync(temporary, { force: true })
          throw error
        }
      })
      sound.add(key)
      recent.put(key, numbersOf(content))
    },
    close: () => recent.clear(),
  }
}

function encoded(features: Float32Array, fingerprint: string, key: string): Buffer {
  const content = Buffer.alloc(HEADER_BYTES + features.byteLength)
  MAGIC.copy(content)
  content.write(fingerprint, 8, 'hex')
  content.write(key, 40, 'hex')
  content.writeUInt32LE(features.length, 72)
  content.set(new Uint8Array(features.buffer, features.byteOffset, features.byteLength), HEADER_BYTES)
  content.writeUInt32LE(checksum(content), CHECKSUM_AT)
  return content
}

/** The numbers of a file; undefined unless the whole file is what was written for this key. */
function featuresIn(content: Buffer, fingerprint: string, key: string): Float32Array | undefined {
  if (content.length < HEADER_BYTES) return undefined
  const count = content.readUInt32LE(72)
  const isSound =
    content.length === HEADER_BYTES + 4 * count &&
    content.subarray(0, 8).equals(MAGIC) &&
    content.toString('hex', 8, 40) === fingerprint &&
    content.toString('hex', 40, 72) === key &&
    content.readUInt32LE(CHECKSUM_AT) === checksum(content)
  return isSound ? numbersOf(content) : undefined
}

/** What follows the header, in the same memory. */
function numbersOf(content: Buffer): Float32Array {
  return new Float32Array(content.buffer, content.byteOffset + HEADER_BYTES, (content.length - HEADER_BYTES) / 4)
}

function checksum(content: Buffer): number {
  return crc32(content.subarray(HEADER_BYTES), crc32(content.subarray(0, CHECKSUM_AT)))
}

/** A file's bytes; undefined where there is no file. */
function contentOf(file: string): Buffer | undefined {
  let fd: number
  try {
    fd = openSync(file, 'r')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
  try {
    const content = Buffer.alloc(fstatSync(fd).size)
    let done = 0
    for (let bytes = -1; bytes !== 0 && done < content.length; done += bytes)
      bytes = readSync(fd, content, done, content.length - done, done)
    return content.subarray(0, done)
  } finally {
    closeSync(fd)
  }
}

function guarded<T>(doing: string, file: string, action: () => T): T {
  try {
    return action()
  } catch (error) {
    throw fileError(error, doing, file)
  }
}

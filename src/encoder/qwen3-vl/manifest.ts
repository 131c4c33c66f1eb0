import { createHash } from 'node:crypto'
import { closeSync, mkdirSync, openSync, readFileSync, writeSync } from 'node:fs'
import { realpath, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { crc32 } from 'node:zlib'
import { z } from 'zod'
import { exists, fileError } from '../../support/files.ts'
import type { Grid } from './vision-positions.ts'

/** What is known of a picture, or of a pair of frames. */
export interface KnownVisual {
  /** Names its features. */
  key: string
  grid: Grid
}

/** Which features belong to which files, so that files that did not change need not be decoded again. */
export interface Manifest {
  find(source: string): KnownVisual[] | undefined
  add(source: string, visuals: KnownVisual[]): void
  close(): void
}

const entry = z.object({
  source: z.string(),
  visuals: z.array(z.object({ key: z.string(), grid: z.tuple([z.number(), z.number()]) })),
  /** Checksum of the other two. */
  check: z.number(),
})

const checkOf = (source: string, visuals: KnownVisual[]): number => crc32(JSON.stringify([source, visuals]))

/**
 * Opens or creates the manifest of a folder: one line of JSON for each picture or list of frames, with a checksum. Processes may add
 * to it at the same time; a line that a crash left unfinished, or that does not fit its checksum, is passed over.
 *
 * @param settings everything but the files that decides features; other settings have another manifest
 * @throws InputError when the folder cannot be read or written
 */
export async function openManifest(folder: string, settings: unknown): Promise<Manifest> {
  const name = createHash('sha256').update(JSON.stringify(settings)).digest('hex').slice(0, 32)
  const file = join(folder, `${name}.visuals.jsonl`)
  const guard = <T>(doing: string, action: () => T): T => {
    try {
      return action()
    } catch (error) {
      throw fileError(error, doing, file)
    }
  }
  const known = new Map<string, KnownVisual[]>()
  const text = (await exists(file)) ? guard('cannot read the file', () => readFileSync(file, 'utf8')) : ''
  for (const line of text.split('\n')) {
    const found = entry.safeParse(parsed(line))
    if (!found.success) continue
    const { source, visuals, check } = found.data
    if (check === checkOf(source, visuals)) known.set(source, visuals)
  }
  guard('cannot make the folder', () => mkdirSync(folder, { recursive: true }))
  const handle = guard('cannot write the file', () => openSync(file, 'a'))
  if (text !== '' && !text.endsWith('\n')) guard('cannot write the file', () => writeSync(handle, '\n'))
  return {
    find: (source) => known.get(source),
    add(source, visuals) {
      known.set(source, visuals)
      const line = JSON.stringify({ source, visuals, check: checkOf(source, visuals) })
      guard('cannot write the file', () => writeSync(handle, `${line}\n`))
    },
    close: () => closeSync(handle),
  }
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line)
  } catch {
    return undefined
  }
}

/**
 * Tells a file and its content: real path, size, when its content changed, and when anything of it did, since copying and unpacking
 * programs set the first of the two times back.
 *
 * @param doing what the file is wanted for, for the error
 * @throws InputError naming a file that is not there
 */
export async function fileIdentity(path: string, doing: string): Promise<string> {
  try {
    const { size, mtimeNs, ctimeNs } = await stat(path, { bigint: true })
    return JSON.stringify([await realpath(path), ...[size, mtimeNs, ctimeNs].map(String)])
  } catch (error) {
    throw fileError(error, doing, path)
  }
}

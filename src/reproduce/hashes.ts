import { createHash } from 'node:crypto'
import { readdir, readFile, stat } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { fileError, sha256File, writeFileAtomic } from '../support/files.ts'

/** SHA-256 of files and folders, remembered for as long as size and times of the files stay the same. */
export interface ContentHashes {
  /**
   * Of a file's bytes, or of a folder: the names below it (hidden ones apart) and their bytes.
   *
   * @throws InputError when it is not there or cannot be read
   */
  of(path: string): Promise<string>
  /** What `compute` gives, remembered under the name and content of what it is computed from. */
  derived(name: string, from: readonly string[], compute: () => Promise<string>): Promise<string>
  /** Keeps what is remembered on the disk. */
  save(): Promise<void>
}

interface Remembered {
  size: number
  /** Last change of content and of anything, in ms. */
  mtime: number
  ctime: number
  sha256: string
}

interface Memory {
  schema: typeof SCHEMA
  files: Record<string, Remembered>
  derived: Record<string, string>
}

const SCHEMA = 'canopy-hashes/1'
/** A file that changed so lately may change once more within what its time stamp can tell. */
const SETTLED_MS = 2_000

/** @param memory file in which hashes are kept; a missing or broken one costs time, nothing else */
export async function openHashes(memory: string): Promise<ContentHashes> {
  const { files, derived } = await readMemory(memory)
  let changed = false

  const ofFile = async (path: string, size: number, mtime: number, ctime: number): Promise<string> => {
    const known = files[path]
    if (known !== undefined && known.size === size && known.mtime === mtime && known.ctime === ctime)
      return known.sha256
    const begun = Date.now()
    const sha256 = await sha256File(path)
    if (begun - Math.max(mtime, ctime) > SETTLED_MS) {
      files[path] = { size, mtime, ctime, sha256 }
      changed = true
    }
    return sha256
  }
  const of = async (given: string): Promise<string> => {
    const path = resolve(given)
    try {
      const info = await stat(path)
      if (!info.isDirectory()) return await ofFile(path, info.size, info.mtimeMs, info.ctimeMs)
      const names = (await readdir(path)).filter((name) => !name.startsWith('.')).sort()
      const hash = createHash('sha256')
      for (const name of names) hash.update(JSON.stringify([name, await of(join(path, name))]))
      return hash.digest('hex')
    } catch (error) {
      throw fileError(error, 'cannot read it', given)
    }
  }
  return {
    of,
    async derived(name, from, compute) {
      const key = sha256Text(JSON.stringify([name, ...from]))
      const known = derived[key]
      if (known !== undefined) return known
      const value = await compute()
      derived[key] = value
      changed = true
      return value
    },
    async save() {
      if (!changed) return
      changed = false
      const content: Memory = { schema: SCHEMA, files, derived }
      await writeFileAtomic(memory, `${JSON.stringify(content)}\n`)
    },
  }
}

async function readMemory(file: string): Promise<Pick<Memory, 'files' | 'derived'>> {
  try {
    const { schema, files, derived } = JSON.parse(await readFile(file, 'utf8')) as Memory
    if (schema === SCHEMA && typeof files === 'object' && typeof derived === 'object') return { files, derived }
  } catch {
    // Nothing is remembered, then.
  }
  return { files: {}, derived: {} }
}

export const sha256Text = (text: string): string => createHash('sha256').update(text).digest('hex')

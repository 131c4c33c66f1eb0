import { createHash, randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { type FileHandle, lstat, mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join, posix, relative, resolve, sep, win32 } from 'node:path'
import { InputError } from './errors.ts'

const REASONS: Record<string, string> = {
  ENOSPC: 'the disk is full; free some space and run the command again',
  EDQUOT: 'the disk quota is used up; free some space and run the command again',
  EFBIG: 'the file system or a limit of this shell allows no file that large',
  EACCES: 'permission denied',
  EPERM: 'permission denied',
  EROFS: 'the file system is read-only',
  ENOENT: 'no such file or folder',
  ENOTDIR: 'a part of the path is a file, not a folder',
  EISDIR: 'it is a folder, a file was expected',
  EEXIST: 'something of that name is in the way',
  ENOTEMPTY: 'a folder of that name is in the way and not empty',
  ENAMETOOLONG: 'the name is too long',
  EMFILE: 'too many files are open',
  EIO: 'the disk reports an input/output error',
  EINVAL: 'the file system refuses the name or the operation',
  ELOOP: 'symbolic links lead in a circle',
  EBUSY: 'it is in use',
  EXDEV: 'it lies on another file system',
  ERR_INVALID_ARG_VALUE: 'no file can have such a name',
}

/**
 * A failed file operation as an {@link InputError} that names the file and what was being done with it; any other error is
 * returned as it is.
 *
 * @param doing what was tried, as in "cannot write the index"
 */
export function fileError(error: unknown, doing: string, path: string): unknown {
  const code = (error as NodeJS.ErrnoException | undefined)?.code
  if (error instanceof InputError || code === undefined || !(code in REASONS)) return error
  return new InputError(`${doing}: ${REASONS[code]} (${code})`, { file: path }, error)
}

/** A name beside `path` that nobody uses: on the same file system, so that a rename is atomic. */
export function temporaryName(path: string): string {
  const full = resolve(path)
  return join(dirname(full), `.${basename(full)}.tmp-${process.pid}-${randomBytes(4).toString('hex')}`)
}

const STALE_MS = 60 * 60 * 1000

/** Removes what runs that were killed while they wrote `path` left beside it: of processes that are gone, an hour old. */
export async function removeLeftovers(path: string): Promise<void> {
  const full = resolve(path)
  const prefix = `.${basename(full)}.tmp-`
  for (const name of await readdir(dirname(full)).catch(() => [])) {
    const pid = name.startsWith(prefix) ? /^(\d+)-[0-9a-f]{8}$/.exec(name.slice(prefix.length))?.[1] : undefined
    if (pid === undefined || isRunning(Number(pid))) continue
    const leftover = join(dirname(full), name)
    const found = await stat(leftover).catch(() => undefined)
    if (found !== undefined && Date.now() - found.mtimeMs > STALE_MS) {
      await rm(leftover, { recursive: true, force: true }).catch(() => {})
    }
  }
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** Tells the disk to keep a folder's entries. Not every platform can; where it cannot, nothing is lost but a guarantee. */
export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r').catch(() => undefined)
  if (handle === undefined) return
  await handle.sync().catch(() => {})
  await handle.close()
}

/**
 * Writes a file so that its name never stands for half of it: beside, synced, then renamed. Missing folders are made.
 *
 * @throws InputError naming the file when the disk is full, read-only and the like; the old content then stays
 */
export async function writeFileAtomic(path: string, data: string | Uint8Array): Promise<void> {
  const temporary = temporaryName(path)
  try {
    await mkdir(dirname(temporary), { recursive: true })
    const handle = await open(temporary, 'wx')
    try {
      await handle.writeFile(data)
      await handle.sync()
    } finally {
      await handle.close()
    }
    await rename(temporary, path)
    await syncFolder(dirname(temporary))
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => {})
    throw fileError(error, 'cannot write the file', path)
  }
}

/** Syncs every file below a folder, then the folders, so that a rename that follows cannot overtake their content. */
async function syncTree(folder: string): Promise<void> {
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name)
    if (entry.isDirectory()) await syncTree(path)
    else if (entry.isFile()) await syncFile(path)
  }
  await syncFolder(folder)
}

/** Where a file cannot be synced, nothing is lost but a guarantee; that the disk is full or broken may come to light only here. */
async function syncFile(path: string): Promise<void> {
  const handle = await open(path, 'r+').catch(() => undefined)
  if (handle === undefined) return
  try {
    await handle.sync()
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'ENOSPC' || code === 'EDQUOT' || code === 'EIO') throw error
  } finally {
    await handle.close()
  }
}

/**
 * Lets `write` fill a folder beside `finalPath`, then puts it there whole. An old folder of that name is replaced only by the
 * finished one (moved aside, then removed). When `write` fails, nothing is left and the old folder is untouched.
 *
 * @returns what `write` returns
 * @throws InputError when the disk is full, read-only and the like
 */
export async function atomicFolder<T>(finalPath: string, write: (temporary: string) => Promise<T>): Promise<T> {
  const temporary = temporaryName(finalPath)
  await removeLeftovers(finalPath)
  try {
    await mkdir(temporary, { recursive: true })
    const result = await write(temporary)
    await syncTree(temporary)
    await replaceFolder(temporary, finalPath)
    return result
  } catch (error) {
    await rm(temporary, { recursive: true, force: true }).catch(() => {})
    throw fileError(error, 'cannot write the folder', finalPath)
  }
}

async function replaceFolder(temporary: string, finalPath: string): Promise<void> {
  const old = await lstat(finalPath).catch(() => undefined)
  if (old === undefined) await rename(temporary, finalPath)
  else {
    if (!old.isDirectory()) throw new InputError('a file stands where a folder is to be written', { file: finalPath })
    const aside = temporaryName(finalPath)
    await rename(finalPath, aside)
    try {
      await rename(temporary, finalPath)
    } catch (error) {
      await rename(aside, finalPath)
      throw error
    }
    await rm(aside, { recursive: true, force: true })
  }
  await syncFolder(dirname(resolve(finalPath)))
}

/** SHA-256 of a file's bytes, hexadecimal; the file is streamed. */
export async function sha256File(path: string): Promise<string> {
  const hash = createHash('sha256')
  try {
    for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) hash.update(chunk as Buffer)
  } catch (error) {
    throw fileError(error, 'cannot read the file', path)
  }
  return hash.digest('hex')
}

/**
 * The absolute path of `path` inside `root`.
 *
 * @throws InputError when it is absolute (in the manner of any platform), empty, a URL, holds a NUL or climbs out of `root`
 */
export function resolveInside(root: string, path: string): string {
  refuseUrl(path)
  const full = resolve(root, path)
  const inside = relative(resolve(root), full)
  const climbs = path.split(/[\\/]/).includes('..') && (inside === '..' || inside.startsWith(`..${sep}`))
  const windowsClimbs = win32.normalize(path).split('\\')[0] === '..'
  if (path === '' || inside === '' || path.includes('\0')) {
    throw new InputError(`The path ${JSON.stringify(path)} names no file inside the folder ${root}.`)
  }
  if (
    posix.isAbsolute(path) ||
    win32.isAbsolute(path) ||
    /^[a-zA-Z]:/.test(path) ||
    climbs ||
    windowsClimbs ||
    isAbsolute(inside)
  ) {
    throw new InputError(
      `The path ${JSON.stringify(path)} leaves the folder ${root}; give a path relative to it, without "..".`,
    )
  }
  return full
}

/** @throws InputError for a URL where the path of a file is expected */
export function refuseUrl(path: string): void {
  if (/^[a-z][a-z0-9+.-]+:\/\//i.test(path))
    throw new InputError(`${JSON.stringify(path)} is a URL, and URLs are not read; give the path of a file.`)
}

/** Whether anything has that name. */
export async function exists(path: string): Promise<boolean> {
  return stat(path).then(
    () => true,
    () => false,
  )
}

/** A file written line by line through one buffer. */
export interface LineWriter {
  /** Bytes written so far, buffered ones included: the offset of the next line. */
  readonly bytes: number
  /** Adds `line` and a line feed; returns its length in bytes, line feed included. */
  write(line: string): Promise<number>
  /** Hands what is buffered to the system, so that it can be read back. */
  flush(): Promise<void>
  /** Flushes, syncs to the disk and closes. */
  close(): Promise<void>
  /** Closes without caring for the content. */
  abandon(): Promise<void>
}

const WRITE_BUFFER = 1 << 20

/**
 * Opens `path` for writing lines: new (`wx`), or at the end of what is there (`a`).
 *
 * @throws InputError naming the file when the disk is full, read-only and the like, here and in every method
 */
export async function openLineWriter(path: string, flags: 'wx' | 'a' = 'wx'): Promise<LineWriter> {
  const failed = (error: unknown): never => {
    throw fileError(error, 'cannot write the file', path)
  }
  const handle: FileHandle = await open(path, flags).catch(failed)
  let bytes = flags === 'a' ? (await handle.stat()).size : 0
  let parts: string[] = []
  let pending = 0
  const flush = async (): Promise<void> => {
    if (parts.length === 0) return
    const data = Buffer.from(parts.join(''))
    parts = []
    pending = 0
    await handle.appendFile(data).catch(failed)
  }
  return {
    get bytes() {
      return bytes
    },
    async write(line) {
      const length = Buffer.byteLength(line) + 1
      parts.push(line, '\n')
      bytes += length
      pending += length
      if (pending >= WRITE_BUFFER) await flush()
      return length
    },
    flush,
    async close() {
      try {
        await flush()
        await handle.sync().catch(failed)
      } finally {
        await handle.close()
      }
    },
    async abandon() {
      parts = []
      await handle.close().catch(() => {})
    },
  }
}

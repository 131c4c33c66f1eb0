import { link, mkdir, readFile, rename, rm, rmdir, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join, resolve } from 'node:path'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'

export const LOCK_FILE = 'lock.json'

interface Holder {
  pid: number
  host: string
  /** When the process started, as the system tells it; '' where it doesn't. Process numbers are used again. */
  started: string
}

/** Folders that this very process holds: its number alone would not tell them from a lock left by an earlier one. */
const held = new Set<string>()

/**
 * Takes the lock of a run folder (made if missing), so that no two processes train in it. A lock whose process is gone
 * expires.
 *
 * @param doing what is done there, for the message to others
 * @returns a function that gives the lock back, and removes the folder if it was made for it and is still empty
 * @throws InputError naming the process that holds it
 */
export async function lockRun(folder: string, doing = 'training'): Promise<() => Promise<void>> {
  const key = resolve(folder)
  const path = join(key, LOCK_FILE)
  const me: Holder = { pid: process.pid, host: hostname(), started: await startOf(process.pid) }
  let made: string | undefined
  try {
    made = await mkdir(key, { recursive: true })
    while (!(await create(path, me))) {
      const content = await readFile(path, 'utf8').catch(() => undefined)
      if (content === undefined) continue
      const holder = parse(content)
      if (holder !== undefined && (held.has(key) || (await alive(holder, me))))
        throw taken(folder, path, holder, me, doing)
      await removeStale(path, content)
    }
  } catch (error) {
    throw fileError(error, 'cannot lock the run', folder)
  }
  held.add(key)
  return async () => {
    held.delete(key)
    await rm(path, { force: true })
    if (made !== undefined) await rmdir(key).catch(() => {})
  }
}

/** Creates the lock with its content at once: beside, then linked, which fails if the name is taken. */
async function create(path: string, me: Holder): Promise<boolean> {
  const beside = `${path}.${me.pid}`
  await rm(beside, { force: true })
  await writeFile(beside, JSON.stringify(me), { flag: 'wx' })
  try {
    // Where the file system knows no links, the content comes a moment after the name.
    await link(beside, path).catch(async (error: NodeJS.ErrnoException) => {
      if (error.code === 'EEXIST') throw error
      await writeFile(path, JSON.stringify(me), { flag: 'wx' })
    })
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  } finally {
    await rm(beside, { force: true })
  }
}

/** Moves the stale lock out of the way; one that somebody else put there meanwhile is put back. */
async function removeStale(path: string, content: string): Promise<void> {
  const aside = `${path}.stale.${process.pid}`
  try {
    await rename(path, aside)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return
    throw error
  }
  if ((await readFile(aside, 'utf8')) !== content) await link(aside, path).catch(() => {})
  await rm(aside, { force: true })
}

async function alive(holder: Holder, me: Holder): Promise<boolean> {
  // Nobody can ask another machine; its lock stands until someone removes it.
  if (holder.host !== me.host) return true
  if (holder.pid === me.pid) return false
  try {
    process.kill(holder.pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
  return holder.started === '' || holder.started === (await startOf(holder.pid))
}

/** Boot and start time of a process on Linux; '' elsewhere. */
async function startOf(pid: number): Promise<string> {
  try {
    const boot = await readFile('/proc/sys/kernel/random/boot_id', 'utf8')
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8')
    // The command's name, in parentheses, may hold blanks; field 22 counts from the first.
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return `${boot.trim()}/${fields[19] ?? ''}`
  } catch {
    return ''
  }
}

function parse(content: string): Holder | undefined {
  try {
    const value = JSON.parse(content) as Partial<Holder>
    return typeof value.pid === 'number' && typeof value.host === 'string'
      ? { pid: value.pid, host: value.host, started: value.started ?? '' }
      : undefined
  } catch {
    return undefined
  }
}

function taken(folder: string, path: string, holder: Holder, me: Holder, doing: string): InputError {
  const where = holder.host === me.host ? '' : ` on ${holder.host}`
  const remedy =
    holder.host === me.host
      ? 'Wait for it or stop it, or choose another output folder.'
      : `Choose another output folder; if that process is gone, remove ${path}.`
  return new InputError(`Process ${holder.pid}${where} is ${doing} in this folder. ${remedy}`, { file: folder })
}

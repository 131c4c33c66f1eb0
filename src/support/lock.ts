import { createHash, randomBytes } from 'node:crypto'
import { link, mkdir, open, readdir, readFile, rm, rmdir, writeFile } from 'node:fs/promises'
import { hostname } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { InputError } from './errors.ts'
import { fileError } from './files.ts'

export const LOCK_FILE = 'lock.json'

interface Holder {
  pid: number
  host: string
  /** When the process started, as the system tells it; '' where it doesn't. Process numbers are used again. */
  started: string
  /** Tells this lock from every other one, of the same process too. */
  nonce: string
}

/** How long a lock without content is taken for one that is being written, where the file system knows no links. */
const HALF_WRITTEN_MS = 2000

/** Nonces of the locks that this process has or is about to have. */
const held = new Set<string>()

/**
 * Takes the lock of a folder that is worked in (made if missing), so that no two processes do. A lock whose process is gone
 * expires. No clock and no file time has a say.
 *
 * @param doing what is done there, for the message to others
 * @returns a function that gives the lock back, and removes the folder if it was made for it and is still empty
 * @throws InputError naming the process that holds it
 */
export async function lockFolder(folder: string, doing: string): Promise<() => Promise<void>> {
  const key = resolve(folder)
  const path = join(key, LOCK_FILE)
  const me: Holder = {
    pid: process.pid,
    host: hostname(),
    started: await startOf(process.pid),
    nonce: randomBytes(8).toString('hex'),
  }
  let made: string | undefined
  held.add(me.nonce)
  try {
    made = await mkdir(key, { recursive: true })
    const holder = await acquire(path, me)
    if (holder !== undefined) throw taken(folder, path, holder, me, doing)
    await clearLeftovers(key).catch(() => {})
  } catch (error) {
    held.delete(me.nonce)
    throw fileError(error, 'cannot lock the run', folder)
  }
  return async () => {
    // Not another one's, for whom somebody removed mine by hand.
    if ((await readFile(path, 'utf8').catch(() => undefined)) === JSON.stringify(me)) await rm(path, { force: true })
    held.delete(me.nonce)
    if (made !== undefined) await rmdir(key).catch(() => {})
  }
}

/**
 * Creates the lock file, in place of a stale one if need be. The right to remove a stale lock is a lock itself, named after
 * that lock's content: whoever has it and still finds that content may remove the file, for nobody else can, and since no two
 * locks have the same content, a process that is late finds another one and leaves it alone.
 *
 * @returns undefined when the lock is mine, or who has it
 */
async function acquire(path: string, me: Holder): Promise<Holder | undefined> {
  const started = performance.now()
  while (!(await create(path, me))) {
    const content = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return undefined
      throw error
    })
    if (content === undefined) continue
    const holder = parse(content)
    if (holder === undefined && performance.now() - started < HALF_WRITTEN_MS) {
      await sleep(50)
      continue
    }
    if (holder !== undefined && (await alive(holder, me))) return holder
    await removeStale(path, content, me)
  }
  return undefined
}

/**
 * Removes what processes that were killed while they took a lock have left. Those that are still at it can do without: they find
 * my lock.
 */
async function clearLeftovers(folder: string): Promise<void> {
  for (const name of await readdir(folder))
    if (name.startsWith(`${LOCK_FILE}.`)) await rm(join(folder, name), { force: true })
}

async function removeStale(path: string, content: string, me: Holder): Promise<void> {
  const right = `${path}.${createHash('sha256').update(content).digest('hex').slice(0, 16)}`
  if ((await acquire(right, me)) !== undefined) {
    await sleep(5)
    return
  }
  try {
    if ((await readFile(path, 'utf8').catch(() => undefined)) === content) await rm(path, { force: true })
  } finally {
    await rm(right, { force: true })
  }
}

/** Creates the lock with its content at once: beside, then linked, which fails if the name is taken. */
async function create(path: string, me: Holder): Promise<boolean> {
  const beside = `${path}.${me.pid}-${me.nonce}`
  const content = JSON.stringify(me)
  const handle = await open(beside, 'wx')
  try {
    await handle.writeFile(content)
    await handle.sync().catch(() => {})
  } finally {
    await handle.close()
  }
  try {
    // Where the file system knows no links, the content comes a moment after the name.
    await link(beside, path).catch(async (error: NodeJS.ErrnoException) => {
      if (error.code === 'EEXIST') throw error
      await writeFile(path, content, { flag: 'wx' })
    })
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  } finally {
    await rm(beside, { force: true })
  }
}

async function alive(holder: Holder, me: Holder): Promise<boolean> {
  // Nobody can ask another machine; its lock stands until someone removes it.
  if (holder.host !== me.host) return true
  if (holder.pid === me.pid) return held.has(holder.nonce) || (me.started !== '' && holder.started === me.started)
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
      ? { pid: value.pid, host: value.host, started: value.started ?? '', nonce: value.nonce ?? '' }
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

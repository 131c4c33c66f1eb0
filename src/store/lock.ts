import {
  closeSync,
  linkSync,
  openSync,
  readFileSync,
  renameSync,
  statSync,
  unlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { hostname } from 'node:os'
import { temporaryName } from '../support/files.ts'

/** A file that only its holder writes to. */
export interface Lock {
  /** Whether it is still the holder's: another machine may have taken it for dead. */
  holds(): boolean
  /** Says that the holder lives, to machines that cannot see its process. */
  renew(): void
  release(): void
}

/**
 * This process, all of its threads: its number and start, for numbers are used again, as in containers, where they start over; and
 * its machine, for a folder may be shared over a network.
 */
const THIS_PROCESS = `${process.pid} ${performance.timeOrigin} ${hostname()}`
/** A process of another machine whose lock is that old is taken for dead. */
const ELSEWHERE_MS = 10 * 60 * 1000
const RENEW_MS = 60 * 1000

/** A lock file that names this process; undefined while a living process, or another thread of this one, holds it. */
export function takeLock(file: string): Lock | undefined {
  for (let attempt = 0; attempt < 3; attempt++) {
    if (create(file)) return lockOf(file)
    const holder = read(file)
    if (holder === undefined) continue
    if (isHeld(holder, file)) return undefined
    if (!removeDead(file, holder)) return undefined
  }
  return undefined
}

function lockOf(file: string): Lock {
  let renewed = Date.now()
  return {
    holds: () => read(file) === THIS_PROCESS,
    renew() {
      if (Date.now() - renewed < RENEW_MS) return
      renewed = Date.now()
      quietly(() => utimesSync(file, new Date(), new Date()))
    },
    release: () =>
      quietly(() => {
        if (read(file) === THIS_PROCESS) unlinkSync(file)
      }),
  }
}

/** Makes the lock file with its content in one step, so that nobody reads it empty; false where there is one. */
function create(file: string): boolean {
  const beside = temporaryName(file)
  try {
    writeFileSync(beside, THIS_PROCESS, { flag: 'wx' })
  } catch (error) {
    // a full disk has room for the name
    quietly(() => unlinkSync(beside))
    throw error
  }
  try {
    linkSync(beside, file)
    return true
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EEXIST') return false
    return createInTwoSteps(file)
  } finally {
    quietly(() => unlinkSync(beside))
  }
}

/** For file systems without links. */
function createInTwoSteps(file: string): boolean {
  try {
    const fd = openSync(file, 'wx')
    writeFileSync(fd, THIS_PROCESS)
    closeSync(fd)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  }
}

function read(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

function isHeld(content: string, file: string): boolean {
  const [number = '', , machine] = content.split(' ')
  const holder = Number.parseInt(number, 10)
  // without a number its writer died while it made the file
  if (!(holder >= 1)) return false
  if (machine !== undefined && machine !== hostname()) return ageOf(file) < ELSEWHERE_MS
  if (holder === process.pid) return content === THIS_PROCESS
  try {
    process.kill(holder, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

function ageOf(file: string): number {
  try {
    return Date.now() - statSync(file).mtimeMs
  } catch {
    return 0
  }
}

/** Removes a dead process's lock, unless somebody else did and holds one of its own by now. */
function removeDead(file: string, content: string): boolean {
  const aside = temporaryName(file)
  try {
    renameSync(file, aside)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return true
    throw error
  }
  const same = read(aside) === content
  if (!same) quietly(() => linkSync(aside, file))
  quietly(() => unlinkSync(aside))
  return same
}

function quietly(action: () => void): void {
  try {
    action()
  } catch {
    // somebody else was faster
  }
}

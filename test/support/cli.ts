import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { resolve } from 'node:path'

/** The built command line; CANOPY_CLI names another build. */
export const cli = process.env.CANOPY_CLI ?? resolve(import.meta.dirname, '../../dist/cli/main.js')

export interface Finished {
  code: number | null
  signal: NodeJS.Signals | null
  stdout: string
  stderr: string
}

export interface CanopyOptions {
  /** What the process reads from standard input; nothing by default. */
  input?: string
  /** Shell text that runs the command as `"$@"`, to set limits or redirect its output first. */
  shell?: string
}

/** Starts `canopy …` as a process of its own. */
export function canopy(
  args: string[],
  { input, shell }: CanopyOptions = {},
): { process: ChildProcess; finished: Promise<Finished> } {
  if (!existsSync(cli)) throw new Error(`${cli} is missing: run "npm run build" first`)
  const words = [process.execPath, cli, ...args]
  const [program, ...rest] = shell === undefined ? words : ['sh', '-c', shell, 'sh', ...words]
  const env = { ...process.env, NO_COLOR: '1' }
  const child = spawn(program as string, rest, { stdio: ['pipe', 'pipe', 'pipe'], env })
  child.stdin.on('error', () => {}) // a command that ends early does not read it
  child.stdin.end(input ?? '')
  const out: Finished = { code: null, signal: null, stdout: '', stderr: '' }
  child.stdout.on('data', (data: Buffer) => {
    out.stdout += data.toString()
  })
  child.stderr.on('data', (data: Buffer) => {
    out.stderr += data.toString()
  })
  const finished = new Promise<Finished>((done, failed) => {
    child.on('error', failed)
    child.on('close', (code, signal) => done({ ...out, code, signal }))
  })
  return { process: child, finished }
}

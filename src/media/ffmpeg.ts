import { execFile, spawn } from 'node:child_process'
import { basename, dirname, join, resolve } from 'node:path'
import { promisify } from 'node:util'
import { InputError } from '../support/errors.ts'

const execute = promisify(execFile)

/** The programs of FFmpeg that read videos. */
export type Tool = 'ffmpeg' | 'ffprobe'

export interface ToolOptions {
  signal?: AbortSignal | undefined
  /** Milliseconds after which the tool is stopped. */
  timeout: number
  /** What it may write, in bytes; more is an error. */
  maxOutput: number
  onOutput: (chunk: Buffer) => void
}

/** A program that reads videos is not installed, or is another one: no fault of any file. */
export class MissingToolError extends InputError {
  override name = 'MissingToolError'
}

/**
 * Containers that hold their own pictures. Playlists and scripts of ffmpeg, which name other files, are none; nor are single
 * pictures.
 */
const CONTAINERS = 'mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,ogg,asf,ivf,nut,wtv,m4v,gif'

/** Arguments that make a tool read a file and nothing else, whatever its name looks like and whatever it holds. */
export const inputArguments = (path: string): string[] => [
  ...['-protocol_whitelist', 'file', '-format_whitelist', CONTAINERS],
  ...['-i', `file:${resolve(path)}`],
]

/** The program that CANOPY_FFMPEG names, else `ffmpeg` of the search path; `ffprobe` is looked for beside it. */
function programOf(tool: Tool): string {
  const named = process.env.CANOPY_FFMPEG
  if (named === undefined || named === '') return tool
  if (tool === 'ffmpeg') return named
  const name = basename(named)
  const probe = name.includes('ffmpeg') ? name.replace('ffmpeg', 'ffprobe') : 'ffprobe'
  return named === name ? probe : join(dirname(named), probe)
}

function missing(tool: Tool, program: string, what: string, cause?: unknown): MissingToolError {
  const named = process.env.CANOPY_FFMPEG
  const beside =
    named === undefined || named === ''
      ? 'or name the ffmpeg binary in the environment variable CANOPY_FFMPEG, ffprobe lying beside it'
      : `or let CANOPY_FFMPEG, which is "${named}", name an ffmpeg with its ffprobe beside it`
  return new MissingToolError(
    `The program "${program}" ${what}, and videos are read with ${tool}. Install FFmpeg, which brings ffmpeg and ffprobe: ` +
      '"apt install ffmpeg" on Debian and Ubuntu, "brew install ffmpeg" on macOS, "winget install ffmpeg" on Windows; ' +
      `${beside}.`,
    {},
    cause,
  )
}

/** What programs said of themselves, by their names; only those that are FFmpeg's. */
const versions = new Map<string, string>()

/** A version is told in no time. */
const VERSION_TIMEOUT = 20_000

/**
 * The version of ffmpeg or ffprobe, looked at once.
 *
 * @throws MissingToolError when the program is not there, does not run, or is something else
 */
export async function toolVersion(tool: Tool): Promise<string> {
  const program = programOf(tool)
  const known = versions.get(`${tool} ${program}`)
  if (known !== undefined) return known
  const { stdout } = await execute(program, ['-version'], { timeout: VERSION_TIMEOUT }).catch((error: unknown) => {
    throw missing(tool, program, isAbsent(error) ? 'was not found' : `is not FFmpeg's ${tool}, or does not run`, error)
  })
  const version = new RegExp(`^${tool} version (\\S+)`).exec(stdout)?.[1]
  if (version === undefined) throw missing(tool, program, `is not FFmpeg's ${tool}`)
  versions.set(`${tool} ${program}`, version)
  return version
}

const isAbsent = (error: unknown): boolean =>
  ['ENOENT', 'EACCES', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '')

const STDERR_KEPT = 64 * 1024

/**
 * Runs ffmpeg or ffprobe, without a shell.
 *
 * @returns the end of what it wrote to standard error
 * @throws MissingToolError when it is not installed, or another program has its name; Error with its last words when it fails, takes too long or writes too much;
 *   the signal's reason when it is aborted
 */
export async function runTool(tool: Tool, args: string[], options: ToolOptions): Promise<string> {
  const { signal, timeout, maxOutput, onOutput } = options
  signal?.throwIfAborted()
  const program = programOf(tool)
  await toolVersion(tool)
  signal?.throwIfAborted()
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'], windowsHide: true })
  let stderr = ''
  let written = 0
  let stopped: Error | undefined
  const stop = (reason: Error): void => {
    stopped ??= reason
    child.kill('SIGKILL')
  }
  const onAbort = (): void => stop(signal!.reason as Error)
  signal?.addEventListener('abort', onAbort, { once: true })
  const timer = setTimeout(() => stop(new Error(`${tool} took more than ${timeout / 1000} s`)), timeout)
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr = (stderr + text).slice(-STDERR_KEPT)
  })
  child.stdout.on('data', (chunk: Buffer) => {
    if (stopped !== undefined) return
    written += chunk.length
    if (written > maxOutput) stop(new Error(`${tool} wrote more than ${maxOutput} bytes`))
    else onOutput(chunk)
  })
  try {
    const code = await new Promise<number | null>((done, failed) => {
      child.on('error', (error) => failed(isAbsent(error) ? missing(tool, program, 'was not found', error) : error))
      child.on('close', done)
    })
    if (stopped !== undefined) throw stopped
    if (code !== 0) throw new Error(lastWords(stderr) || `${tool} ended with status ${code}`)
    return stderr
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', onAbort)
  }
}

/** The last line that a tool wrote, fit to be printed. */
function lastWords(stderr: string): string {
  const line = stderr.trim().split('\n').at(-1) ?? ''
  const printable = line.replace(/\p{Cc}/gu, ' ').replace(/^file:.*?: (?=[A-Z])/, '')
  return printable.length > 200 ? `${printable.slice(0, 200)}…` : printable
}

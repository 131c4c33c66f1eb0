import { spawn } from 'node:child_process'
import { basename, dirname, join, resolve } from 'node:path'
import { InputError } from '../support/errors.ts'

export interface ToolOptions {
  signal?: AbortSignal | undefined
  /** Milliseconds after which the tool is stopped. */
  timeout: number
  /** What it may write, in bytes; more is an error. */
  maxOutput: number
  onOutput: (chunk: Buffer) => void
}

/** A program that reads videos is not installed: no fault of any file. */
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
function programOf(tool: 'ffmpeg' | 'ffprobe'): string {
  const named = process.env.CANOPY_FFMPEG
  if (named === undefined || named === '') return tool
  if (tool === 'ffmpeg') return named
  const name = basename(named)
  const probe = name.includes('ffmpeg') ? name.replace('ffmpeg', 'ffprobe') : 'ffprobe'
  return named === name ? probe : join(dirname(named), probe)
}

function missing(tool: string, program: string, cause: unknown): MissingToolError {
  return new MissingToolError(
    `The program "${program}" was not found, and videos are read with it. Install ${tool === 'ffprobe' ? 'FFmpeg, which brings it' : 'FFmpeg'}: ` +
      '"apt install ffmpeg" on Debian and Ubuntu, "brew install ffmpeg" on macOS, "winget install ffmpeg" on Windows; or name ' +
      'the ffmpeg binary in the environment variable CANOPY_FFMPEG.',
    {},
    cause,
  )
}

const STDERR_KEPT = 64 * 1024

/**
 * Runs ffmpeg or ffprobe, without a shell.
 *
 * @returns the end of what it wrote to standard error
 * @throws MissingToolError when it is not installed; Error with its last words when it fails, takes too long or writes too much;
 *   the signal's reason when it is aborted
 */
export async function runTool(tool: 'ffmpeg' | 'ffprobe', args: string[], options: ToolOptions): Promise<string> {
  const { signal, timeout, maxOutput, onOutput } = options
  signal?.throwIfAborted()
  const program = programOf(tool)
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
      child.on('error', (error: NodeJS.ErrnoException) => {
        const absent = ['ENOENT', 'EACCES', 'ENOTDIR'].includes(error.code ?? '')
        failed(absent ? missing(tool, program, error) : error)
      })
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

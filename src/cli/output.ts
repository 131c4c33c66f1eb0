import { stripVTControlCharacters } from 'node:util'
import { SingleBar } from 'cli-progress'
import pc from 'picocolors'
import type { Progress } from '../support/progress.ts'
import { sendEvent } from './events.ts'

/**
 * How a command talks: results on standard output, progress on standard error, so that results can be piped; all of it as events, too,
 * where `--events` asks for them.
 */
export interface Output {
  /** A line for people; silent with `--json`. */
  line(text?: string): void
  /** The machine-readable result, printed only with `--json`, as one JSON document. */
  json(value: unknown): void
  /** A warning, on standard error in both modes. */
  warn(text: string): void
  /** A bar on a terminal; elsewhere a plain line every ten seconds. */
  progress: Progress
  /** Ends the bar that is open, if any. */
  done(): void
}

let lines: NodeJS.WritableStream = process.stdout

/** Sends the lines for people somewhere else from here on: a command that runs others and prints JSON of its own needs that. */
export function redirectLines(stream: NodeJS.WritableStream): void {
  lines = stream
}

const PLAIN_INTERVAL_MS = 10_000

export function createOutput(options: { json?: boolean | undefined }): Output {
  let bar: SingleBar | undefined
  let phase: string | undefined
  let lastPlain = performance.now()
  const done = (): void => {
    bar?.stop()
    bar = undefined
    phase = undefined
  }
  const plain = (event: Parameters<Progress>[0]): void => {
    const now = performance.now()
    if (now - lastPlain < PLAIN_INTERVAL_MS) return
    lastPlain = now
    const of = event.total === undefined ? '' : `/${event.total}`
    process.stderr.write(`${event.phase}: ${event.done}${of}${event.note === undefined ? '' : `  ${event.note}`}\n`)
  }
  const onTerminal = (event: Parameters<Progress>[0]): void => {
    if (event.phase !== phase) {
      done()
      phase = event.phase
      bar = new SingleBar({
        format: `${pc.cyan('{phase}')} {bar} {value}/{total} {note} {eta_formatted}`,
        hideCursor: true,
        etaBuffer: 50,
        barsize: 24,
      })
      bar.start(event.total ?? 0, event.done, { phase: event.phase, note: event.note ?? '' })
      return
    }
    if (event.total !== undefined) bar?.setTotal(event.total)
    bar?.update(event.done, { note: event.note ?? '' })
  }
  return {
    line: (text = '') => {
      if (text !== '') sendEvent({ event: 'message', level: 'info', text: stripVTControlCharacters(text.trim()) })
      if (options.json) return
      done()
      lines.write(`${text}\n`)
    },
    json: (value) => {
      sendEvent({ event: 'result', result: value })
      if (options.json) process.stdout.write(`${JSON.stringify(value, null, 2)}\n`)
    },
    warn: (text) => {
      sendEvent({ event: 'message', level: 'warning', text })
      done()
      process.stderr.write(`${pc.yellow('warning:')} ${text}\n`)
    },
    progress: (event) => {
      sendEvent({ event: 'progress', ...event })
      if (process.stderr.isTTY) onTerminal(event)
      else plain(event)
    },
    done,
  }
}

import { openSync, writeSync } from 'node:fs'
import { Option } from 'commander'
import { fileError } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'

/** Version of the lines: within it they may get more fields and kinds, and those there are stay as they are. */
export const EVENTS_SCHEMA = 'canopy-events/1'

/** What happens while a command runs, for programs that watch it. */
export type CommandEvent =
  | { event: 'started'; version: string; command: string[]; pid: number }
  /** Work of one kind, `done` of `total` (where that is known) units; at most four a second of a phase, and the last one. */
  | ({ event: 'progress' } & Parameters<Progress>[0])
  /** After each step of training: the line that metrics.jsonl gets. */
  | { event: 'step'; totalSteps: number; metrics: unknown }
  /** What is said to people. */
  | { event: 'message'; level: 'info' | 'warning'; text: string }
  /** What `--json` prints. */
  | { event: 'result'; result: unknown }
  /** The last line: exit status, and why a command failed, with the file and line at fault where there are any. */
  | { event: 'finished'; status: number; seconds: number; error?: Failure }

export interface Failure {
  message: string
  file?: string | undefined
  line?: number | undefined
}

/** `--events`, which every verb has. */
export const eventsOption = (): Option =>
  new Option('--events <file>', 'append what happens to this file, a JSON object a line')

const INTERVAL_MS = 250
/** How long a reader of a pipe that is full may take. */
const PATIENCE_MS = 2000

let sink: ((event: CommandEvent) => void) | undefined
let failure: Failure | undefined

/** Sends an event, where events are wanted. */
export function sendEvent(event: CommandEvent): void {
  sink?.(event)
}

/** Keeps why the command fails, for its last event. */
export function noteFailure(why: Failure): void {
  failure ??= why
}

/**
 * Sends events to a file from here on, a JSON object a line, behind those of earlier commands. A file that cannot be written any
 * more, on a full disk say, ends the events and not the work.
 *
 * @param path of the file, which may be a pipe
 * @throws InputError when it cannot be opened
 */
export function openEvents(path: string): void {
  let file: number
  try {
    file = openSync(path, 'a')
  } catch (error) {
    throw fileError(error, 'cannot write the events', path)
  }
  const started = performance.now()
  const last = { phase: '', at: 0 }
  sink = (event) => {
    if (event.event === 'progress') {
      const now = performance.now()
      if (event.phase === last.phase && event.done !== event.total && now - last.at < INTERVAL_MS) return
      Object.assign(last, { phase: event.phase, at: now })
    }
    const line = JSON.stringify({ schema: EVENTS_SCHEMA, time: new Date().toISOString(), ...event })
    try {
      writeWhole(file, Buffer.from(`${line}\n`))
    } catch (error) {
      sink = undefined
      process.stderr.write(`warning: the events end here, ${path} cannot be written (${(error as Error).message}).\n`)
    }
  }
  process.on('exit', (status) => {
    const seconds = Number(((performance.now() - started) / 1000).toFixed(3))
    sendEvent({ event: 'finished', status, seconds, ...(failure === undefined ? {} : { error: failure }) })
  })
}

function writeWhole(file: number, bytes: Buffer): void {
  const until = performance.now() + PATIENCE_MS
  for (let at = 0; at < bytes.length; ) {
    try {
      at += writeSync(file, bytes, at)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EAGAIN' || performance.now() > until) throw error
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5)
    }
  }
}

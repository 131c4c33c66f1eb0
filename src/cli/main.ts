#!/usr/bin/env node
import { readFileSync } from 'node:fs'
import { Command, CommanderError } from 'commander'
import pc from 'picocolors'
import { InputError, UsageError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import { eventsOption, noteFailure, openEvents, sendEvent } from './events.ts'

type Verb = { register(program: Command): void }

/** Verb -> its module; only the one that runs is loaded, so that `--help` and small verbs start fast. */
const verbs: Record<string, () => Promise<Verb>> = {
  import: () => import('./import.ts'),
  check: () => import('./check.ts'),
  split: () => import('./split.ts'),
  preferences: () => import('./preferences.ts'),
  train: () => import('./train.ts'),
  evaluate: () => import('./evaluate.ts'),
  compare: () => import('./compare.ts'),
  export: () => import('./export.ts'),
  upload: () => import('./upload.ts'),
  refine: () => import('./refine.ts'),
  encode: () => import('./encode.ts'),
  report: () => import('./report.ts'),
  reproduce: () => import('./reproduce.ts'),
  distill: () => import('./distill.ts'),
  quickstart: () => import('./quickstart.ts'),
  plan: () => import('./plan.ts'),
  doctor: () => import('./doctor.ts'),
}

const exitStatus = { failure: 1, usage: 2, interrupted: 130 } as const

async function main(argv: string[]): Promise<number> {
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    version: string
  }
  const program = new Command('canopy')
    .description('Train, evaluate and ship the CANOPY node encoder.')
    .version(version)
    .showHelpAfterError('(add --help for the flags and an example)')
    .exitOverride()
  const asked = argv[2] !== undefined && Object.hasOwn(verbs, argv[2]) ? verbs[argv[2]] : undefined
  for (const load of asked === undefined ? Object.values(verbs) : [asked]) (await load()).register(program)
  for (const verb of program.commands) verb.addOption(eventsOption())
  program.hook('preAction', (_, verb) => {
    const { events } = verb.opts<{ events?: string }>()
    if (events === undefined) return
    // it is no setting of the verb's
    verb.setOptionValue('events', undefined)
    openEvents(events)
    sendEvent({ event: 'started', version, command: ['canopy', ...argv.slice(2)], pid: process.pid })
  })
  try {
    if (argv.length <= 2) {
      program.outputHelp()
      return exitStatus.usage
    }
    await program.parseAsync(argv)
    return typeof process.exitCode === 'number' ? process.exitCode : 0
  } catch (error) {
    return report(error)
  }
}

function report(error: unknown): number {
  if (error instanceof Error && !(error instanceof CommanderError))
    noteFailure({
      message: error.message,
      ...(error instanceof InputError ? { file: error.file, line: error.line } : {}),
    })
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : exitStatus.usage
  if (error instanceof UsageError) {
    process.stderr.write(`${pc.red('error:')} ${error.message}\n`)
    return exitStatus.usage
  }
  if (error instanceof InputError) {
    process.stderr.write(`${pc.red('error:')} ${error.message}\n`)
    return exitStatus.failure
  }
  if (error instanceof Error && error.name === 'AbortError') {
    process.stderr.write('interrupted\n')
    return exitStatus.interrupted
  }
  const text = error instanceof Error ? (error.stack ?? error.message) : String(error)
  process.stderr.write(`${pc.red('error:')} something went wrong that should not have:\n${text}\n`)
  return exitStatus.failure
}

/** Verbs that have nothing left to do when their reader goes away (`canopy … | head`), which is no failure; others go on. */
const printing = new Set(['check', 'compare', 'refine', 'plan', 'doctor'])

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') {
    if (printing.has(process.argv[2] ?? '')) process.exit(0)
    return
  }
  process.exit(report(fileError(error, 'cannot write the result', 'standard output')))
})

// There is no one left to tell.
process.stderr.on('error', () => {})

process.exitCode = await main(process.argv)

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { expect, it } from 'vitest'
import { cli } from '../support/cli.ts'

/** Work that takes a second to stop, and then exits with status 7. */
const source = `
  const { interruptible } = await import(${JSON.stringify(pathToFileURL(join(dirname(cli), 'interrupt.js')).href)})
  const alive = setInterval(() => {}, 1000)
  await interruptible(
    (signal) => {
      console.log('begun')
      return new Promise((done) => signal.addEventListener('abort', () => setTimeout(done, 1000)))
    },
    (name) => console.log(name),
  )
  process.exit(7)`

async function afterSignals(signals: (NodeJS.Signals | number)[]): Promise<{ code: number | null; told: string }> {
  const child = spawn(process.execPath, ['--input-type=module', '-e', source])
  let told = ''
  child.stdout.on('data', (data) => {
    told += data
  })
  await once(child.stdout, 'data')
  for (const signal of signals)
    if (typeof signal === 'number') await sleep(signal)
    else child.kill(signal)
  const [code] = await once(child, 'close')
  return { code, told: told.replace('begun\n', '') }
}

it('a signal lets work end well, once told, also when npm passes a Ctrl-C of the terminal on; a later one ends it', async () => {
  const [once, doubled, later, other] = await Promise.all([
    afterSignals(['SIGINT']),
    afterSignals(['SIGINT', 20, 'SIGINT']),
    afterSignals(['SIGINT', 700, 'SIGINT']),
    afterSignals(['SIGINT', 700, 'SIGTERM']),
  ])
  expect(once).toEqual({ code: 7, told: 'SIGINT\n' })
  expect(doubled).toEqual({ code: 7, told: 'SIGINT\n' })
  expect(later).toEqual({ code: 130, told: 'SIGINT\n' })
  expect(other).toEqual({ code: 143, told: 'SIGINT\n' })
})

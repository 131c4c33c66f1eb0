import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { canopy } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'

const sample = join(import.meta.dirname, '..', '..', 'datasets', 'sample')

interface Line {
  schema: string
  time: string
  event: string
  [key: string]: unknown
}

const eventsIn = (file: string): Line[] =>
  readFileSync(file, 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Line)

describe('--events', () => {
  it('writes what happens as JSON lines of one version, from the start to the exit status', async () => {
    const folder = temporaryFolder()
    const [events, output] = [join(folder, 'events.ndjson'), join(folder, 'pairs.jsonl')]
    const args = ['preferences', '--dataset', sample, '--split', 'train', '--output', output]
    expect(await canopy([...args, '--events', events]).finished).toMatchObject({ code: 0 })
    const lines = eventsIn(events)
    for (const { schema, time } of lines) {
      expect(schema).toBe('canopy-events/1')
      expect(new Date(time).toISOString()).toBe(time)
    }
    expect(lines[0]).toMatchObject({ event: 'started', command: ['canopy', ...args, '--events', events] })
    expect(lines.at(-1)).toMatchObject({ event: 'finished', status: 0 })
    expect(lines.at(-1)).not.toHaveProperty('error')
    expect(lines.find(({ event }) => event === 'result')).toMatchObject({ result: { output } })
    expect(lines.some(({ event, level }) => event === 'message' && level === 'info')).toBe(true)
  })

  it('ends with why a command failed, with file and line, and keeps the lines of earlier commands', async () => {
    const folder = temporaryFolder()
    const events = join(folder, 'events.ndjson')
    mkdirSync(join(folder, 'data'))
    writeFileSync(join(folder, 'data', 'dataset.json'), '{"name":')
    const args = ['preferences', '--dataset', join(folder, 'data'), '--split', 'train', '--output', join(folder, 'p')]
    for (let i = 0; i < 2; i++) expect(await canopy([...args, '--events', events]).finished).toMatchObject({ code: 1 })
    const finished = eventsIn(events).filter(({ event }) => event === 'finished')
    expect(finished).toHaveLength(2)
    for (const { status, error } of finished) {
      expect(status).toBe(1)
      expect(error).toMatchObject({
        file: expect.stringContaining(join(folder, 'data')),
        message: expect.stringContaining(join(folder, 'data')),
      })
    }
  })

  it('goes on without events when they cannot be written any more', async () => {
    const folder = temporaryFolder()
    const output = join(folder, 'pairs.jsonl')
    const args = ['preferences', '--dataset', sample, '--split', 'train', '--output', output]
    const finished = await canopy([...args, '--events', '/dev/full']).finished
    expect(finished).toMatchObject({ code: 0 })
    expect(finished.stderr).toMatch(/events end here, \/dev\/full cannot be written/)
    expect(readFileSync(output, 'utf8').length).toBeGreaterThan(1000)
  })

  it('is refused where the file cannot be opened, before anything is done', async () => {
    const folder = temporaryFolder()
    const output = join(folder, 'pairs.jsonl')
    const events = join(folder, 'nowhere', 'events.ndjson')
    const args = ['preferences', '--dataset', sample, '--split', 'train', '--output', output, '--events', events]
    const finished = await canopy(args).finished
    expect(finished).toMatchObject({ code: 1 })
    expect(finished.stderr).toContain(events)
    expect(() => readFileSync(output)).toThrow()
  })

  it('goes to a reader of a pipe line by line', () => {
    const folder = temporaryFolder()
    const main = process.env.CANOPY_CLI ?? join(import.meta.dirname, '../../dist/cli/main.js')
    const script = `"$0" "$1" check "$2" --events /dev/fd/3 3>&1 >/dev/null 2>&1 | cat`
    const text = execFileSync('bash', ['-c', script, process.execPath, main, sample], { cwd: folder, encoding: 'utf8' })
    const lines = text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Line)
    expect(lines.at(0)?.event).toBe('started')
    expect(lines.at(-1)).toMatchObject({ event: 'finished', status: 0 })
  })
})

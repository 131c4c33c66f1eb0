import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { cp, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { exists } from '../../src/support/files.ts'
import { testItems, writeDataset } from '../encode/world.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { type CanopyOptions, canopy, cli, type Finished } from '../support/cli.ts'
import { lines, snapshot } from '../support/temporary.ts'

let folder: string
let dataset: string
const at = (name: string): string => join(folder, name)
const encoder = tinyBert('mean')

/** Enough items for some blocks. */
const MANY = 600

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'canopy-encode-'))
  dataset = writeDataset(at('data'), testItems(MANY))
  const { code, stderr } = await run('--output', at('whole'))
  // a slow machine prints how far it is, too
  expect(stderr).not.toMatch(/error|warning/)
  expect(code).toBe(0)
}, 60_000)
afterAll(() => rm(folder, { recursive: true, force: true }))

const args = (...more: string[]): string[] => [
  ...['encode', '--encoder', encoder, '--dataset', dataset, '--threads', '1'],
  ...more,
]
const run = (...more: string[]): Promise<Finished> => canopy(args(...more)).finished
const only = (given: string[], options: CanopyOptions = {}): Promise<Finished> =>
  canopy(['encode', ...given], options).finished

async function contents(path: string): Promise<Record<string, string>> {
  const found = Object.entries(await snapshot(path))
  return Object.fromEntries(found.map(([file, content]) => [file.slice(path.length), content]))
}

/** Waits for the line of a block. */
async function blocksDone(output: string, blocks: number): Promise<boolean> {
  for (let tries = 0; tries < 2000; tries++) {
    if (await exists(output)) return false
    const text = await Promise.resolve()
      .then(() => readFileSync(join(`${output}.partial`, 'progress.jsonl'), 'utf8'))
      .catch(() => '')
    if (text.split('\n').length > blocks) return true
    await sleep(5)
  }
  throw new Error('No block was done in ten seconds.')
}

describe('canopy encode', { timeout: 120_000 }, () => {
  it('tells what it did, for people and for machines', async () => {
    const { code, stdout } = await run('--output', at('told'))
    expect(code).toBe(0)
    expect(stdout).toMatch(/[\d,]+ nodes of 602 items \([\d,]+ tokens\) in .*: [\d,]+ nodes and [\d,]+ tokens a second/)
    expect(stdout).toMatch(/computed; [\d.]+ % had the tokens of another one/)
    const again = await run('--output', at('told'), '--resume', '--json')
    expect(again.code).toBe(0)
    const result = JSON.parse(again.stdout)
    expect(result).toMatchObject({ format: 'safetensors', work: { rows: 0 }, encoded: { counts: { units: 602 } } })
    const verified = await only(['--verify', at('told')])
    expect(verified).toMatchObject({ code: 0, stdout: expect.stringMatching(/Whole: \d+ rows of 602 items of doors/) })
  })

  it('goes on after it was killed, at any block, and gives the same bytes', async () => {
    const wanted = await contents(at('whole'))
    const output = at('killed')
    let kills = 0
    for (const blocks of [0, 1, 2, 4]) {
      const started = canopy(args('--output', output, '--resume'))
      if (!(await blocksDone(output, blocks))) break
      started.process.kill('SIGKILL')
      const { signal } = await started.finished
      if (signal === 'SIGKILL') kills++
      if (await exists(output)) break
    }
    expect(kills).toBeGreaterThanOrEqual(2)
    const { code } = await run('--output', output, '--resume')
    expect(code).toBe(0)
    expect(await contents(output)).toEqual(wanted)
    expect(readdirSync(folder).filter((name) => name.startsWith('killed'))).toEqual(['killed'])
  })

  it('stops at Ctrl-C with status 130, says how to go on, and goes on', async () => {
    const output = at('stopped')
    const started = canopy(args('--output', output))
    await blocksDone(output, 1)
    started.process.kill('SIGINT')
    const { code, stderr } = await started.finished
    expect(code).toBe(130)
    expect(stderr).toContain('The same command with --resume goes on')
    expect(await exists(output)).toBe(false)
    const refused = await run('--output', output)
    expect(refused).toMatchObject({ code: 1, stderr: expect.stringMatching(/unfinished run left .*--resume/) })
    expect((await run('--output', output, '--resume')).code).toBe(0)
    expect(await contents(output)).toEqual(await contents(at('whole')))
  })

  it('shares the work, in any order, and merges it into the same bytes', async () => {
    for (const shard of ['3/3', '1/3', '2/3'])
      expect((await run('--output', at(`part ${shard[0]}`), '--shard', shard)).code).toBe(0)
    const last = await run('--output', at('part of many'), '--shard', '9999/9999', '--on-error', 'skip')
    expect(last.stdout).toMatch(
      /\nShard 9999 of 9999 has nothing to do: .* by blocks of about 1,024 rows, of which there are \d/,
    )
    const parts = ['part 2', 'part 3', 'part 1'].map(at)
    const { code, stdout } = await only(['--merge', ...parts, '--output', at('merged')])
    expect(stdout).toContain('3 shards, verified: all of 602 items, each once.')
    expect(code).toBe(0)
    expect(await contents(at('merged'))).toEqual(await contents(at('whole')))
    const two = await only(['--merge', ...parts.slice(1), '--output', at('two')])
    expect(two).toMatchObject({ code: 1, stderr: expect.stringContaining('missing: 2/3') })
    expect(await exists(at('two'))).toBe(false)
  })

  it('writes Parquet for a name that says so, of items from standard input', async () => {
    const input = lines(...testItems(5))
    const given = ['--encoder', encoder, '--items', '-', '--output', at('items.parquet')]
    const { code, stdout } = await only(given, { input })
    expect(code).toBe(0)
    expect(stdout).toContain('of 7 items')
    expect((await only(['--verify', at('items.parquet')])).stdout).toMatch(
      /Whole: \d+ rows of 7 items of standard input/,
    )
    expect(readFileSync(at('items.parquet')).subarray(0, 4).toString()).toBe('PAR1')
  })

  it('leaves nothing of standard input behind when it is stopped while it reads', async () => {
    const temporary = at('tmp')
    mkdirSync(temporary)
    const args = [cli, 'encode', '--encoder', encoder, '--items', '-', '--output', at('never')]
    const child = spawn(process.execPath, args, { env: { ...process.env, TMPDIR: temporary }, stdio: 'pipe' })
    const finished = new Promise((done) => child.on('close', (code) => done(code)))
    child.stdin.write(lines(...testItems(3)))
    while (!readdirSync(temporary).some((name) => existsSync(join(temporary, name, 'items.jsonl')))) await sleep(20)
    child.kill('SIGINT')
    expect(await finished).toBe(130)
    expect(readdirSync(temporary)).toEqual([])
  })

  it('fills a store that evaluation and refinement take as their cache', async () => {
    const small = writeDataset(at('small'), testItems(12))
    const given = ['--encoder', encoder, '--dataset', small, '--store', at('store'), '--json']
    const first = JSON.parse((await only(given)).stdout)
    expect(first.work.computed).toBeGreaterThan(0)
    const second = JSON.parse((await only(given)).stdout)
    expect(second.work).toMatchObject({ computed: 0, rows: first.work.rows })
  })

  it('names what is wrong', async () => {
    const usage = async (given: string[], message: RegExp): Promise<void> => {
      const { code, stderr } = await only(given)
      expect(stderr).toMatch(message)
      expect(code, given.join(' ')).toBe(2)
    }
    const common = ['--encoder', encoder, '--dataset', dataset]
    await usage([], /Give --encoder/)
    await usage(common, /--output .*or --store/)
    await usage([...common, '--output', at('x'), '--shard', '3/2'], /"3\/2" is no part of a whole/)
    await usage([...common, '--store', at('x'), '--resume'], /--resume belongs to --output/)
    await usage(['--merge', at('a'), '--output', at('x'), '--token-budget', '100'], /--token-budget is of no use/)

    const failure = async (given: string[], message: RegExp, options: CanopyOptions = {}): Promise<void> => {
      const { code, stderr } = await only(given, options)
      expect(stderr).toMatch(message)
      expect(code, given.join(' ')).toBe(1)
    }
    await failure([...common, '--output', at('whole')], /whole: is there already/)
    await failure(['--verify', at('nowhere')], /nowhere.*no such file/)
    writeFileSync(at('broken.jsonl'), `${JSON.stringify(testItems()[0])}\n{"id":`)
    await failure(['--encoder', encoder, '--items', at('broken.jsonl'), '--output', at('x')], /broken\.jsonl:2: /)
    writeFileSync(at('picture.jsonl'), lines({ id: 'p', modality: 'image', image: 'p.png' }))
    await failure(
      ['--encoder', encoder, '--items', at('picture.jsonl'), '--output', at('x')],
      /"p" is an image.*--on-error skip/,
    )
    expect(readdirSync(folder).filter((name) => name.startsWith('x'))).toEqual([])
  })

  it('keeps what was done when the disk is full', async () => {
    const output = at('full')
    // blocks of 512 bytes
    const { code, stderr } = await canopy(args('--output', output), { shell: 'ulimit -f 300; exec "$@"' }).finished
    expect(stderr).toMatch(/allows no file that large/)
    expect(stderr).toMatch(/full\.partial; the same command with --resume goes on/)
    expect(code).toBe(1)
    expect(await exists(output)).toBe(false)
    expect((await run('--output', output, '--resume')).code).toBe(0)
    expect(await contents(output)).toEqual(await contents(at('whole')))
    await cp(output, at('copy'), { recursive: true })
  })
})

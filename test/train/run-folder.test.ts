import { spawn } from 'node:child_process'
import { mkdir, mkdtemp, readdir, readFile, rm, utimes, writeFile } from 'node:fs/promises'
import { hostname, tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { InputError } from '../../src/support/errors.ts'
import { createRandom } from '../../src/support/random.ts'
import {
  checkpointFolders,
  clearTemporaries,
  readCheckpoint,
  type TrainingState,
  writeCheckpoint,
} from '../../src/train/run/checkpoints.ts'
import { checkRunFolder, isRunConfig } from '../../src/train/run/folder.ts'
import { lockRun } from '../../src/train/run/lock.ts'
import { cutMetrics, openMetrics } from '../../src/train/run/metrics.ts'
import { initialAdamW } from '../../src/train/step/optimizer.ts'
import { cli } from '../support/cli.ts'
import { normal } from './toy-encoder.ts'

let folder: string
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'canopy-run-'))
})
afterEach(async () => {
  await rm(folder, { recursive: true, force: true })
})

const shapes = new Map([
  ['a', [2, 3]],
  ['b', [4]],
])
function state(step: number): TrainingState {
  const tensors = new Map([
    ['a', normal(`a${step}`, 6)],
    ['b', normal(`b${step}`, 4)],
  ])
  const optimizer = initialAdamW(tensors)
  optimizer.step = step - 1
  optimizer.first.set('b', normal('first', 4))
  const best = { step: 1, metrics: undefined, tensors }
  const lossScale = { scale: 1024, goodSteps: step }
  return { step, tensors, optimizer, best, skipped: 1, skippedInARow: 0, tokenBudget: 512, lossScale }
}
const fingerprint = { seed: '1', encoder: 'abc' }

describe('checkpoints', () => {
  it('come back as they were, the newest one', async () => {
    await writeCheckpoint(folder, state(5), fingerprint, shapes, 2)
    await writeCheckpoint(folder, state(10), fingerprint, shapes, 2)
    expect(await readCheckpoint(folder, fingerprint, shapes, 99, fail)).toEqual(state(10))
  })

  it('are kept as many as asked', async () => {
    for (const step of [1, 2, 3, 10]) await writeCheckpoint(folder, state(step), fingerprint, shapes, 2)
    expect(await checkpointFolders(folder)).toEqual(['step-00000010', 'step-00000003'])
  })

  it('give way to the one before when damaged, and say so', async () => {
    await writeCheckpoint(folder, state(5), fingerprint, shapes, 9)
    for (const [step, file, change] of [
      [6, 'adapter.safetensors', (bytes: Buffer) => bytes.fill(7, bytes.length - 4)],
      [7, 'optimizer.safetensors', (bytes: Buffer) => bytes.subarray(0, 50)],
      [8, 'state.json', (bytes: Buffer) => bytes.subarray(0, 50)],
      [9, 'best.safetensors', () => ''],
      [10, 'state.json', (bytes: Buffer) => bytes.toString().replace('"fingerprint"', '"fingerprinu"')],
      [11, 'state.json', (bytes: Buffer) => bytes.toString().replace('"best"', '"bess"')],
      [12, 'state.json', () => 'null'],
    ] as const) {
      const path = await writeCheckpoint(folder, state(step), fingerprint, shapes, 9)
      await writeFile(join(path, file), change(await readFile(join(path, file))))
    }
    const warnings: string[] = []
    const found = await readCheckpoint(folder, fingerprint, shapes, 99, (message) => warnings.push(message))
    expect(found?.step).toBe(5)
    expect(warnings.length).toBe(7)
    expect(warnings[3]).toMatch(/step-00000009.*best\.safetensors/)
  })

  it('give way, or are right, whatever bit of theirs is flipped and wherever they are cut', async () => {
    await writeCheckpoint(folder, state(5), fingerprint, shapes, 9)
    const path = await writeCheckpoint(folder, state(6), fingerprint, shapes, 9)
    const random = createRandom('damage')
    for (const file of ['adapter.safetensors', 'best.safetensors', 'optimizer.safetensors', 'state.json']) {
      const bytes = await readFile(join(path, file))
      for (let i = 0; i < 60; i++) {
        const damaged = i % 6 === 0 ? Buffer.from(bytes.subarray(0, random.int(bytes.length))) : Buffer.from(bytes)
        if (i % 6 !== 0) damaged[random.int(bytes.length)]! ^= 1 << random.int(8)
        await writeFile(join(path, file), damaged)
        const warnings: string[] = []
        const found = await readCheckpoint(folder, fingerprint, shapes, 99, (message) => warnings.push(message))
        // A flip in the white space of JSON changes nothing.
        expect(found).toEqual(state(warnings.length === 0 ? 6 : 5))
        if (warnings.length === 0) expect(file).toBe('state.json')
      }
      await rm(join(path, file))
      expect((await readCheckpoint(folder, fingerprint, shapes, 99, () => {}))?.step).toBe(5)
      await writeFile(join(path, file), bytes)
    }
    expect((await readCheckpoint(folder, fingerprint, shapes, 99, fail))?.step).toBe(6)
  })

  it('of another format are refused, not passed over', async () => {
    await writeCheckpoint(folder, state(5), fingerprint, shapes, 2)
    const path = await writeCheckpoint(folder, state(6), fingerprint, shapes, 2)
    await writeFile(join(path, 'state.json'), JSON.stringify({ schema: 'canopy-checkpoint/1', step: 6 }))
    await expect(readCheckpoint(folder, fingerprint, shapes, 99, fail)).rejects.toThrow(
      /step-00000006.*another version of canopy \(canopy-checkpoint\/1/,
    )
  })

  it('of a finished run may come from another machine, others may not', async () => {
    const here = { ...fingerprint, machine: 'linux x', threads: '2', 'version of node': '20' }
    const there = { ...fingerprint, machine: 'linux y', threads: '4', 'version of node': '22' }
    await writeCheckpoint(folder, state(5), here, shapes, 2)
    expect((await readCheckpoint(folder, there, shapes, 5, fail))?.step).toBe(5)
    await expect(readCheckpoint(folder, there, shapes, 6, fail)).rejects.toThrow(/machine was.*threads was.*node was/)
    await expect(readCheckpoint(folder, { ...there, seed: '2' }, shapes, 5, fail)).rejects.toThrow(/seed was 1, is 2/)
  })

  it('keep what a validation that was broken off belongs to, which is not finished elsewhere', async () => {
    const stopped = { ...state(5), unvalidated: { step: 5, loss: 0.25 } }
    const here = { ...fingerprint, threads: '1' }
    await writeCheckpoint(folder, stopped, here, shapes, 2)
    expect(await readCheckpoint(folder, here, shapes, 5, fail)).toEqual(stopped)
    await expect(readCheckpoint(folder, { ...here, threads: '2' }, shapes, 5, fail)).rejects.toThrow(/threads was 1/)
  })

  it('drop later ones, which were damaged, when training goes on from an earlier one', async () => {
    for (const step of [5, 9]) await writeCheckpoint(folder, state(step), fingerprint, shapes, 1)
    await writeCheckpoint(folder, state(7), fingerprint, shapes, 1)
    expect(await checkpointFolders(folder)).toEqual(['step-00000007'])
  })

  it('are an error when all are damaged, and nothing where there is none', async () => {
    expect(await readCheckpoint(join(folder, 'none'), fingerprint, shapes, 99, fail)).toBeUndefined()
    const path = await writeCheckpoint(folder, state(5), fingerprint, shapes, 2)
    await writeFile(join(path, 'state.json'), '{}')
    await expect(readCheckpoint(folder, fingerprint, shapes, 99, () => {})).rejects.toThrow(/damaged/)
  })

  it('of other settings are refused, naming what changed', async () => {
    await writeCheckpoint(folder, state(5), fingerprint, shapes, 2)
    await expect(readCheckpoint(folder, { ...fingerprint, seed: '2' }, shapes, 99, fail)).rejects.toThrow(
      /seed was 1, is 2/,
    )
  })

  it('leave the earlier ones alone when the disk is full', async () => {
    await writeCheckpoint(folder, state(5), fingerprint, shapes, 1)
    // A tensor that does not have the shape it claims fails in the middle of the folder, as a full disk does.
    const broken = state(6)
    broken.best = { ...broken.best, tensors: new Map([...broken.best.tensors, ['b', new Float32Array(3)]]) }
    await expect(writeCheckpoint(folder, broken, fingerprint, shapes, 1)).rejects.toThrow()
    expect(await readdir(folder)).toEqual(['step-00000005'])
  })

  it('that were being written when the process was killed are removed', async () => {
    await mkdir(join(folder, '.step-00000007.tmp-123-0a1b2c3d'))
    await writeFile(join(folder, 'other'), '')
    await clearTemporaries(folder)
    expect(await readdir(folder)).toEqual(['other'])
  })
})

describe('the lock of a run', () => {
  const lockFile = () => join(folder, 'lock.json')

  it('keeps a second trainer out until it is given back', async () => {
    const unlock = await lockRun(folder)
    await expect(lockRun(folder)).rejects.toThrow(/is training in this folder/)
    await unlock()
    await (await lockRun(folder))()
    expect(await readdir(folder)).toEqual([])
    await (await lockRun(join(folder, 'new')))()
    expect(await readdir(folder)).toEqual([])
  })

  it('is given back by its holder only', async () => {
    const unlock = await lockRun(folder)
    const other = JSON.stringify({ pid: process.ppid, host: hostname(), started: '', nonce: 'other' })
    await writeFile(lockFile(), other)
    await unlock()
    expect(await readFile(lockFile(), 'utf8')).toBe(other)
  })

  it('of a process that lives is respected, and that of another machine', async () => {
    await writeFile(lockFile(), JSON.stringify({ pid: process.ppid, host: hostname(), started: '' }))
    await expect(lockRun(folder)).rejects.toThrow(InputError)
    await writeFile(lockFile(), JSON.stringify({ pid: 1, host: 'elsewhere.invalid', started: '' }))
    await expect(lockRun(folder)).rejects.toThrow(/elsewhere\.invalid.*remove/)
  })

  it('of a dead process expires, as does one whose number was given to another', async () => {
    for (const holder of [
      { pid: 2 ** 22 + 1, host: hostname(), started: '' },
      { pid: process.pid, host: hostname(), started: 'long ago' },
      ...(process.platform === 'linux' ? [{ pid: process.ppid, host: hostname(), started: 'long ago' }] : []),
    ]) {
      await writeFile(lockFile(), JSON.stringify(holder))
      await (await lockRun(folder))()
    }
    await writeFile(lockFile(), '{"pid":')
    await (await lockRun(folder))()
  })

  it('that cannot be read is an error, one without content expires', async () => {
    await mkdir(lockFile())
    await expect(lockRun(folder)).rejects.toThrow(/cannot lock the run.*folder/)
    await rm(lockFile(), { recursive: true })
    await writeFile(lockFile(), '')
    await (await lockRun(folder))()
    expect(await readdir(folder)).toEqual([])
  })

  it('clears what processes have left that were killed while they took it', async () => {
    for (const name of ['lock.json.99-0a1b', `lock.json.${'a'.repeat(16)}`]) await writeFile(join(folder, name), '{}')
    const unlock = await lockRun(folder)
    expect(await readdir(folder)).toEqual(['lock.json'])
    await unlock()
  })

  it('does not care what the clock says, nor the time of the file', async () => {
    const alive = { pid: process.ppid, host: hostname(), started: '' }
    const dead = { ...alive, pid: 2 ** 22 + 1 }
    for (const year of [1971, 2100]) {
      vi.spyOn(Date, 'now').mockReturnValue(Date.UTC(year === 1971 ? 2100 : 1971, 1))
      for (const holder of [dead, alive]) {
        await writeFile(lockFile(), JSON.stringify(holder))
        await utimes(lockFile(), new Date(year, 1), new Date(year, 1))
        if (holder === dead) await (await lockRun(folder))()
        else await expect(lockRun(folder)).rejects.toThrow(InputError)
      }
      await rm(lockFile())
      vi.restoreAllMocks()
    }
  })

  it('goes to one of many processes that find a stale one at once', async () => {
    const rounds = 25
    for (let round = 0; round < rounds; round++) {
      await mkdir(join(folder, `${round}`))
      const stale = { pid: 2 ** 22 + 1, host: hostname(), started: '', nonce: `${round}` }
      await writeFile(join(folder, `${round}`, 'lock.json'), JSON.stringify(stale))
    }
    // Each line that a contender reads names a folder that it tries to lock; it keeps what it gets until it is over.
    const source = `
      import { createInterface } from 'node:readline'
      const { lockRun } = await import(${JSON.stringify(pathToFileURL(join(dirname(cli), '../train/run/lock.js')).href)})
      console.log('ready')
      for await (const folder of createInterface({ input: process.stdin }))
        console.log(await lockRun(folder).then(() => 'won', (error) => error.message))`
    const contenders = Array.from({ length: 5 }, () => {
      const child = spawn(process.execPath, ['--input-type=module', '-e', source], {
        stdio: ['pipe', 'pipe', 'inherit'],
      })
      const answers = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
      return { child, answer: async () => (await answers.next()).value as string }
    })
    for (const { answer } of contenders) expect(await answer()).toBe('ready')
    for (let round = 0; round < rounds; round++) {
      for (const { child } of contenders) child.stdin.write(`${join(folder, `${round}`)}\n`)
      const answers = await Promise.all(contenders.map(({ answer }) => answer()))
      expect(answers.filter((text) => text === 'won').length).toBe(1)
      for (const text of answers) expect(text).toMatch(/^won$|is training in this folder/)
      expect(await readdir(join(folder, `${round}`))).toEqual(['lock.json'])
    }
    for (const { child } of contenders) child.stdin.end()
  })

  it('goes to one of many that want it at once', async () => {
    await writeFile(lockFile(), JSON.stringify({ pid: 2 ** 22 + 1, host: hostname(), started: '' }))
    const results = await Promise.allSettled(Array.from({ length: 8 }, () => lockRun(folder)))
    expect(results.filter(({ status }) => status === 'fulfilled').length).toBe(1)
  })
})

describe('metrics.jsonl', () => {
  it('is cut back to a step, half-written lines included', async () => {
    const file = join(folder, 'metrics.jsonl')
    const metrics = await openMetrics(file)
    for (const step of [0, 1, 2, 3]) await metrics.write({ step, loss: step / 2 })
    await metrics.close()
    await writeFile(file, `${await readFile(file, 'utf8')}{"step":4,"lo`)
    const steps = async (): Promise<number[]> =>
      (await readFile(file, 'utf8'))
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => (JSON.parse(line) as { step: number }).step)
    expect(await cutMetrics(file, 5)).toEqual([4, 5])
    expect(await steps()).toEqual([0, 1, 2, 3])
    await cutMetrics(file, 2)
    expect(await steps()).toEqual([0, 1, 2])
    await cutMetrics(file, -1)
    expect(await steps()).toEqual([])
    expect(await cutMetrics(join(folder, 'absent'), 2)).toEqual([0, 1, 2])
  })

  it('keeps one whole line for each step, whatever happened to others', async () => {
    const file = join(folder, 'metrics.jsonl')
    const [zero, one, two, three] = [0, 1, 2, 3].map((step) => JSON.stringify({ step }))
    await writeFile(file, [zero, 'x', 'null', '{"step":-1}', two, two, one, three, three].join('\n'))
    expect(await cutMetrics(file, 3)).toEqual([])
    expect(await readFile(file, 'utf8')).toBe(`${[zero, two, one, three].join('\n')}\n`)
    await writeFile(file, `${[zero, two].join('\n')}\n`)
    expect(await cutMetrics(file, 3)).toEqual([1, 3])
  })
})

describe('a run folder', () => {
  it('must hold nothing to lose, unless the run in it goes on', async () => {
    await checkRunFolder(join(folder, 'new'), false)
    await checkRunFolder(folder, false)
    await checkRunFolder(folder, true)
    await writeFile(join(folder, 'config.json'), '{"schema":"canopy-run/1"}')
    await checkRunFolder(folder, false)
    await mkdir(join(folder, 'checkpoints', 'step-00000003'), { recursive: true })
    await expect(checkRunFolder(folder, false)).rejects.toThrow(/already holds a training run.*--resume/)
    await rm(join(folder, 'config.json'))
    await checkRunFolder(folder, true)
    await writeFile(join(folder, 'config.json'), '{"schema":"canopy-run/1"}')
    await rm(join(folder, 'checkpoints'), { recursive: true })
    await mkdir(join(folder, 'adapter'))
    await expect(checkRunFolder(folder, false)).rejects.toThrow(/already holds a training run.*--resume/)
  })

  it('has a config.json of this version, or a damaged one', async () => {
    const file = join(folder, 'config.json')
    expect(await isRunConfig(folder)).toBe(false)
    for (const [text, whole] of [
      ['{"schema":"canopy-run/1","command":[', false],
      ['', false],
      ['null', false],
      ['{"schema":"canopy-run/1"}', true],
    ] as const) {
      await writeFile(file, text)
      expect(await isRunConfig(folder)).toBe(whole)
    }
    await writeFile(file, '{"schema":"canopy-run/7"}')
    await expect(isRunConfig(folder)).rejects.toThrow(/another version of canopy \(canopy-run\/7/)
  })

  it('is no encoder, which has a config.json of its own', async () => {
    await writeFile(join(folder, 'config.json'), '{"architectures":["BertModel"]}')
    for (const resume of [false, true])
      await expect(checkRunFolder(folder, resume)).rejects.toThrow(/holds no training run/)
    // Damaged, it may be anything's.
    await writeFile(join(folder, 'config.json'), '{"sch')
    await writeFile(join(folder, 'metrics.jsonl'), '')
    await checkRunFolder(folder, false)
    await writeFile(join(folder, 'model.safetensors'), '')
    await expect(checkRunFolder(folder, false)).rejects.toThrow(/holds no training run/)
  })

  it('is refused when it holds something else, also with --resume', async () => {
    await writeFile(join(folder, 'thesis.tex'), '')
    await expect(checkRunFolder(folder, true)).rejects.toThrow(/thesis\.tex/)
    await expect(checkRunFolder(join(folder, 'thesis.tex'), true)).rejects.toThrow(InputError)
  })
})

function fail(message: string): never {
  throw new Error(message)
}

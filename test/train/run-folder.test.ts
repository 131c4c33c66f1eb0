import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { InputError } from '../../src/support/errors.ts'
import {
  checkpointFolders,
  clearTemporaries,
  readCheckpoint,
  type TrainingState,
  writeCheckpoint,
} from '../../src/train/checkpoints.ts'
import { checkRunFolder } from '../../src/train/folder.ts'
import { lockRun } from '../../src/train/lock.ts'
import { cutMetrics, openMetrics } from '../../src/train/metrics.ts'
import { initialAdamW } from '../../src/train/optimizer.ts'
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
  return { step, tensors, optimizer, best: { step: 1, metrics: undefined, tensors }, skipped: 1, skippedInARow: 0 }
}
const fingerprint = { seed: '1', encoder: 'abc' }

describe('checkpoints', () => {
  it('come back as they were, the newest one', async () => {
    await writeCheckpoint(folder, state(5), fingerprint, shapes, 2)
    await writeCheckpoint(folder, state(10), fingerprint, shapes, 2)
    expect(await readCheckpoint(folder, fingerprint, shapes, fail)).toEqual(state(10))
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
    const found = await readCheckpoint(folder, fingerprint, shapes, (message) => warnings.push(message))
    expect(found?.step).toBe(5)
    expect(warnings.length).toBe(7)
    expect(warnings[3]).toMatch(/step-00000009.*best\.safetensors/)
  })

  it('drop later ones, which were damaged, when training goes on from an earlier one', async () => {
    for (const step of [5, 9]) await writeCheckpoint(folder, state(step), fingerprint, shapes, 1)
    await writeCheckpoint(folder, state(7), fingerprint, shapes, 1)
    expect(await checkpointFolders(folder)).toEqual(['step-00000007'])
  })

  it('are an error when all are damaged, and nothing where there is none', async () => {
    expect(await readCheckpoint(join(folder, 'none'), fingerprint, shapes, fail)).toBeUndefined()
    const path = await writeCheckpoint(folder, state(5), fingerprint, shapes, 2)
    await writeFile(join(path, 'state.json'), '{}')
    await expect(readCheckpoint(folder, fingerprint, shapes, () => {})).rejects.toThrow(/damaged/)
  })

  it('of other settings are refused, naming what changed', async () => {
    await writeCheckpoint(folder, state(5), fingerprint, shapes, 2)
    await expect(readCheckpoint(folder, { ...fingerprint, seed: '2' }, shapes, fail)).rejects.toThrow(
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
    await cutMetrics(file, 9)
    expect(await steps()).toEqual([0, 1, 2, 3])
    await cutMetrics(file, 2)
    expect(await steps()).toEqual([0, 1, 2])
    await cutMetrics(file, -1)
    expect(await steps()).toEqual([])
    await cutMetrics(join(folder, 'absent'), 2)
  })
})

describe('a run folder', () => {
  it('must be new or empty, unless the run in it goes on', async () => {
    await checkRunFolder(join(folder, 'new'), false)
    await checkRunFolder(folder, false)
    await checkRunFolder(folder, true)
    await writeFile(join(folder, 'config.json'), '{}')
    await expect(checkRunFolder(folder, false)).rejects.toThrow(/already holds a training run.*--resume/)
    await checkRunFolder(folder, true)
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

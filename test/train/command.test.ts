import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createRandom } from '../../src/support/random.ts'
import { openMetrics } from '../../src/train/run/metrics.ts'
import { canopy, createSetup, type Setup } from './command.ts'

let folder: string
let setup: Setup
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-train-'))
  setup = await createSetup(folder)
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const argsFor = (run: string, more: string[] = []): string[] => [
  'train',
  ...['--encoder', setup.encoder, '--dataset', setup.dataset, '--preferences', setup.preferences],
  ...['--output', join(folder, run), '--threads', '1', '--seed', '5', '--epochs', '3', '--batch-size', '4'],
  ...['--learning-rate', '0.01', '--token-budget', '256', '--rank', '4'],
  ...['--evaluate-every', '4', '--checkpoint-every', '3', ...more],
]

interface Line {
  step: number
  seconds?: number
}
const metricsOf = (run: string): Line[] => {
  const file = join(folder, run, 'metrics.jsonl')
  if (!existsSync(file)) return []
  const lines = readFileSync(file, 'utf8').split('\n').slice(0, -1)
  return lines.map((line) => JSON.parse(line) as Line)
}
const withoutTime = (lines: Line[]): Line[] => lines.map(({ seconds: _, ...line }) => line)

const adapterOf = (run: string): Record<string, string> => {
  const at = join(folder, run, 'adapter')
  return Object.fromEntries(readdirSync(at).map((name) => [name, readFileSync(join(at, name)).toString('base64')]))
}

/** Waits until the run has logged a step beyond `step`, or the process is gone. */
async function reached(run: string, step: number, child: { exitCode: number | null }): Promise<void> {
  while (child.exitCode === null && (metricsOf(run).at(-1)?.step ?? -1) < step) await sleep(2)
}

describe('canopy train', () => {
  beforeAll(async () => {
    const { code, stderr, stdout } = await canopy(argsFor('whole')).finished
    expect(stderr + stdout).toMatch(/Selected step/)
    expect(code).toBe(0)
  })

  it('writes a run folder, and learns', () => {
    expect(readdirSync(join(folder, 'whole')).sort()).toEqual([
      'adapter',
      'checkpoints',
      'config.json',
      'metrics.jsonl',
      'training-data.json',
      'validation.jsonl',
    ])
    expect(Object.keys(adapterOf('whole')).sort()).toEqual([
      'adapter_config.json',
      'adapter_model.safetensors',
      'canopy.json',
      'canopy_adapter.json',
      'training-data.json',
    ])
    const config = JSON.parse(readFileSync(join(folder, 'whole', 'config.json'), 'utf8'))
    expect(config).toMatchObject({ seed: 5, threads: 1, settings: { rank: 4, tau: 0.05 }, data: [{ split: 'train' }] })
    expect(config.command.slice(0, 2)).toEqual(['canopy', 'train'])
    const lines = metricsOf('whole') as (Line & { loss?: number })[]
    expect(lines.map(({ step }) => step)).toEqual(lines.map((_, i) => i))
    const mean = (some: typeof lines): number => some.reduce((sum, { loss }) => sum + loss!, 0) / some.length
    expect(mean(lines.slice(-5))).toBeLessThan(0.8 * mean(lines.slice(1, 6)))
  })

  it('gives the same bytes when it is killed again and again and resumed', async () => {
    const random = createRandom(process.env.CANOPY_KILL_SEED ?? 'kill')
    for (let kill = 0; kill < 3; kill++) {
      const { process: child, finished } = canopy(argsFor('killed', ['--resume']))
      const from = metricsOf('killed').at(-1)?.step ?? -1
      await reached('killed', Math.max(0, from) + random.int(6), child)
      await sleep(random.int(40))
      child.kill('SIGKILL')
      await finished
    }
    const { code, stderr } = await canopy(argsFor('killed', ['--resume'])).finished
    expect(stderr).not.toMatch(/damaged/)
    expect(code).toBe(0)
    expect(adapterOf('killed')).toEqual(adapterOf('whole'))
    expect(withoutTime(metricsOf('killed'))).toEqual(withoutTime(metricsOf('whole')))
  })

  for (const [signal, code] of [
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)
    it(`finishes the step and writes a checkpoint on ${signal}, and goes on to the same bytes`, async () => {
      const run = `stopped-${signal}`
      const { process: child, finished } = canopy(argsFor(run))
      await reached(run, 4, child)
      child.kill(signal)
      const stopped = await finished
      expect(stopped).toMatchObject({ code, signal: null })
      expect(stopped.stderr).toMatch(/--resume/)
      const last = metricsOf(run).at(-1)!.step
      expect(readdirSync(join(folder, run, 'checkpoints'))).toContain(`step-${String(last).padStart(8, '0')}`)
      expect(readdirSync(join(folder, run))).not.toContain('lock.json')
      expect((await canopy(argsFor(run, ['--resume'])).finished).code).toBe(0)
      expect(adapterOf(run)).toEqual(adapterOf('whole'))
    })

  it('refuses a folder that holds a run, and goes on with a finished one to the same adapter', async () => {
    const again = await canopy(argsFor('whole')).finished
    expect(again).toMatchObject({ code: 1, stdout: '' })
    expect(again.stderr).toMatch(/already holds a training run.*--resume/)
    const before = adapterOf('whole')
    expect((await canopy(argsFor('whole', ['--resume'])).finished).code).toBe(0)
    expect(adapterOf('whole')).toEqual(before)
  })

  it('refuses to go on with other settings, naming them', async () => {
    const { code, stderr } = await canopy(argsFor('whole', ['--resume', '--tau', '0.1'])).finished
    expect(code).toBe(1)
    expect(stderr).toMatch(/setting tau was 0\.05, is 0\.1/)
  })

  it('refuses stale preferences before anything is written', async () => {
    const other = join(folder, 'stale')
    mkdirSync(other)
    const stale = await createSetup(other, 6)
    const file = join(stale.dataset, 'questions.jsonl')
    writeFileSync(file, readFileSync(file, 'utf8').replace('Which', 'What'))
    const args = ['--encoder', stale.encoder, '--dataset', stale.dataset, '--preferences', stale.preferences]
    const { code, stderr } = await canopy(['train', ...args, '--output', join(folder, 'from-stale')]).finished
    expect(code).toBe(1)
    expect(stderr).toMatch(/have changed.*Build them again/)
    expect(existsSync(join(folder, 'from-stale', 'config.json'))).toBe(false)
  })

  it('names what is missing between datasets and preferences', async () => {
    const other = join(folder, 'another')
    mkdirSync(other)
    const another = await createSetup(other, 4)
    const run = (dataset: string[], preferences: string[]) =>
      canopy([
        ...['train', '--encoder', setup.encoder, '--dataset', ...dataset, '--preferences', ...preferences],
        ...['--output', join(folder, 'mismatch')],
      ]).finished
    const meta = join(another.dataset, 'dataset.json')
    writeFileSync(meta, readFileSync(meta, 'utf8').replace('"name": "dataset"', '"name": "another"'))
    expect((await run([another.dataset], [setup.preferences])).stderr).toMatch(
      /belong to the dataset "dataset".*"another"/,
    )
    expect((await run([setup.dataset, another.dataset], [setup.preferences])).stderr).toMatch(
      /No preferences belong to the dataset "another"/,
    )
    const twice = await run([setup.dataset], [setup.preferences, setup.preferences])
    expect(twice.stderr).toMatch(/the same dataset and split/)
  })

  it('refuses weights under which there is nothing to train, and names benchmarks that are not there', async () => {
    const config = join(folder, 'weights.yaml')
    const questions = readFileSync(join(setup.dataset, 'questions.jsonl'), 'utf8').trim().split('\n')
    const weights = questions.map((line) => [(JSON.parse(line) as { benchmark: string }).benchmark, 0])
    writeFileSync(config, JSON.stringify({ benchmarkWeights: { ...Object.fromEntries(weights), elsewhere: 2 } }))
    const { code, stderr } = await canopy(argsFor('weightless', ['--config', config])).finished
    expect(code).toBe(1)
    expect(stderr).toMatch(/"benchmarkWeights" names "elsewhere"/)
    expect(stderr).toMatch(/gives every benchmark .* the weight 0/)
    expect(existsSync(join(folder, 'weightless'))).toBe(false)
  })

  it('stops with status 2 for flags it does not know, 1 for settings that are wrong', async () => {
    expect((await canopy(argsFor('usage', ['--tempo', '3'])).finished).code).toBe(2)
    expect((await canopy(argsFor('usage', ['--rank', 'high'])).finished).code).toBe(2)
    expect((await canopy(argsFor('usage', ['--rank', '0'])).finished).code).toBe(2)
    expect((await canopy(argsFor('usage', ['--tau', '0'])).finished).code).toBe(1)
    expect(existsSync(join(folder, 'usage'))).toBe(false)
  })

  it('goes on from the checkpoint before a damaged one', async () => {
    const run = 'damaged'
    const { process: child, finished } = canopy(argsFor(run))
    await reached(run, 7, child)
    child.kill('SIGTERM')
    await finished
    const checkpoints = join(folder, run, 'checkpoints')
    const newest = readdirSync(checkpoints).sort().at(-1)!
    appendFileSync(join(checkpoints, newest, 'optimizer.safetensors'), 'x')
    const { code, stderr } = await canopy(argsFor(run, ['--resume'])).finished
    expect(stderr).toMatch(new RegExp(`${newest} is damaged.*passed over`))
    expect(code).toBe(0)
    expect(adapterOf(run)).toEqual(adapterOf('whole'))
  })
})

it.skipIf(!existsSync('/dev/full'))('a full disk is named, with the file', async () => {
  const metrics = await openMetrics('/dev/full')
  await expect(metrics.write({ step: 1 })).rejects.toThrow(/\/dev\/full.*disk is full/)
  await metrics.close()
})

import {
  appendFileSync,
  copyFileSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { canopy, type Finished } from '../support/cli.ts'
import { lines, snapshot } from '../support/temporary.ts'

// The built command line, from native files to pages of results.

let folder: string
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-reproduce-'))
  for (const [name, count] of [
    ['towns', 24],
    ['ships', 16],
  ] as const)
    for (const split of ['train', 'dev']) writeFileSync(at(`${name}.${split}.jsonl`), records(name, split, count))
  configure('study.yaml', {})
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const at = (...names: string[]): string => join(folder, ...names)

/** Items and questions as a user writes them. */
function records(kind: string, split: string, count: number): string {
  const facts = ['a clock', 'a bell', 'a green door', 'two masts', 'an old cook', 'no lamp', 'a brass rail']
  const made: unknown[] = []
  for (let i = 0; i < count; i++) {
    const sentences = Array.from(
      { length: 3 + (i % 4) },
      (_, s) => `The ${kind} of ${split} ${i} have ${facts[(i + 2 * s) % 7]}.`,
    )
    const gold = (5 * i) % sentences.length
    made.push({ id: `${kind}-${split}-i${i}`, title: `${kind} ${i}`, text: sentences.join(' ') })
    made.push({
      id: `${kind}-${split}-q${i}`,
      question: `Which ${kind} of ${split} ${i} have ${facts[(i + 2 * gold) % 7]}?`,
      source: `${kind} ${split} ${Math.floor(i / 2)}`,
      answers: [],
      gold: [{ item: `${kind}-${split}-i${i}`, quotes: [sentences[gold]] }],
    })
  }
  return lines(...made)
}

function configure(name: string, changes: object): string {
  const config = {
    encoder: { random: 1 },
    benchmarks: [
      { name: 'towns', format: 'jsonl', train: 'towns.train.jsonl', dev: 'towns.dev.jsonl' },
      { name: 'ships', format: 'jsonl', role: 'evaluate', dev: 'ships.dev.jsonl' },
    ],
    train: { steps: 4, batchSize: 4, rank: 2, threads: 1, learningRate: 0.01 },
    seeds: [1, 2],
    evaluate: { resamples: 50, threads: 1 },
    ...changes,
  }
  writeFileSync(at(name), JSON.stringify(config))
  return at(name)
}

const reproduce = (...args: string[]) => canopy(['reproduce', ...args])
async function run(...args: string[]): Promise<Finished> {
  const finished = await reproduce(...args).finished
  expect(finished, args.join(' ')).toMatchObject({ code: 0 })
  return finished
}
const json = async <T>(...args: string[]): Promise<T> => JSON.parse((await run(...args, '--json')).stdout) as T
interface Done {
  ran: string[]
  skipped: string[]
  page: string
}
interface Planned {
  steps: { step: string; state: string; why?: string }[]
}

describe('canopy reproduce', () => {
  it('goes from native files to a page of results, with a transfer test and two seeds', async () => {
    const before = Object.keys(await snapshot(folder))
    const planned = await json<Planned>(at('study.yaml'), '--output', at('out'), '--dry-run')
    expect(planned.steps.map(({ state }) => state)).toEqual(planned.steps.map(() => 'run'))
    expect(Object.keys(await snapshot(folder))).toEqual(before)

    const { stdout, stderr } = await run(at('study.yaml'), '--output', at('out'))
    expect(stdout).toMatch(/\[ 1\/10\] import towns: not done yet/)
    expect(stdout).toMatch(/results\.md/)
    expect(stderr).not.toMatch(/error/)

    const page = readFileSync(at('out', 'results.md'), 'utf8')
    for (const row of [
      'frozen',
      'fine-tuned, seed 1',
      'fine-tuned, mean of 2 seeds (range)',
      'permuted, seed 2',
      'always-left',
      'keep-root',
      'constant',
      'gold-span',
      'flat-node, seed 1',
      'canopy-frozen',
    ])
      expect(page).toContain(`| towns | ${row} |`)
    expect(page).toMatch(/## Transfer.*\| ships \| fine-tuned, seed 2 \|/s)
    expect(page).toMatch(/Not a reproduction of the paper's figures.*encoder is random-bert/)
    expect(page).toMatch(/`dev` of the benchmarks was looked at 2 times, with 2 different/)
    // no interval stands beside a mean over seeds
    for (const line of page.split('\n').filter((text) => text.includes('mean of 2 seeds')))
      expect(line).not.toContain('[')
    expect(page).not.toMatch(/NaN|undefined|\[object/)

    const results = JSON.parse(readFileSync(at('out', 'results.json'), 'utf8'))
    expect(results.paper).toMatchObject({ is_reproduction: false, decision_accuracy: { frozen: { pooled: 0.369 } } })
    expect(results.training).toMatchObject([{ seed: 1, result: { steps: 4 } }, { seed: 2 }])
    const { evaluations, over_seeds } = results.groups.benchmarks
    const values = evaluations.map(
      (one: { encoders: Record<string, Record<string, Record<string, { value: number }>>> }) =>
        one.encoders.towns!['fine-tuned']!.decision_accuracy!.value,
    )
    expect(over_seeds.encoders.towns['fine-tuned'].decision_accuracy).toEqual({
      mean: (values[0] + values[1]) / 2,
      min: Math.min(...values),
      max: Math.max(...values),
    })
    const csv = readFileSync(at('out', 'results.csv'), 'utf8').split('\n')
    expect(csv[0]).toBe('from,group,table,benchmark,encoder,n,seed,metric,value,lo,hi')
    expect(csv.filter((line) => line.startsWith('paper,'))).not.toHaveLength(0)
  })

  it('does nothing the second time, and writes the same page', async () => {
    const before = await snapshot(at('out'))
    const done = await json<Done>(at('study.yaml'), '--output', at('out'))
    expect(done.ran).toEqual([])
    const after = await snapshot(at('out'))
    expect({ ...after, [at('out', 'stamps', 'hashes.json')]: '' }).toEqual({
      ...before,
      [at('out', 'stamps', 'hashes.json')]: '',
    })
  })

  it('makes an evaluation again of which any file was changed by hand', async () => {
    const table = at('out', 'seed-1', 'eval', 'summary.md')
    const text = readFileSync(table, 'utf8')
    writeFileSync(table, text.replaceAll('0.', '9.'))
    expect((await json<Done>(at('study.yaml'), '--output', at('out'))).ran).toEqual(['evaluate benchmarks, seed 1'])
    expect(readFileSync(table, 'utf8')).toBe(text)
  })

  it('runs again what depends on what changed, and nothing else', async () => {
    writeFileSync(at('ships.dev.jsonl'), records('ships', 'dev', 14))
    expect((await json<Done>(at('study.yaml'), '--output', at('out'))).ran).toEqual([
      'import ships',
      'evaluate transfer, seed 1',
      'evaluate transfer, seed 2',
    ])
    const other = configure('other.yaml', {
      train: { steps: 5, batchSize: 4, rank: 2, threads: 1, learningRate: 0.01 },
      seeds: [1],
    })
    const { steps } = await json<Planned>(other, '--output', at('out'), '--dry-run')
    expect(steps.find(({ step }) => step === 'train seed 1')).toMatchObject({
      state: 'run',
      why: 'changed: train.steps 4 -> 5',
    })
    expect(steps.find(({ step }) => step === 'import ships')).toMatchObject({ state: 'done' })
    const done = await json<Done>(other, '--output', at('out'))
    expect(done.ran).toEqual(['train seed 1', 'evaluate benchmarks, seed 1', 'evaluate transfer, seed 1'])
    // the count of looks at dev outlives the runs
    expect(readFileSync(at('out', 'results.md'), 'utf8')).toMatch(
      /`dev` of the benchmarks was looked at 4 times, with 3 different/,
    )
  })

  it('killed at work, goes on from there to the same bytes, with a loss module whose text counts', async () => {
    const example = resolve(import.meta.dirname, '../../configs/losses/logistic.mjs')
    copyFileSync(example, at('mine.mjs'))
    const schedule = { steps: 60, evaluateEvery: 10, checkpointEvery: 5 }
    const train = { ...schedule, batchSize: 4, rank: 2, threads: 1, loss: 'mine.mjs' }
    const file = configure('long.yaml', {
      train,
      seeds: [1],
      benchmarks: [{ name: 'towns', format: 'jsonl', train: 'towns.train.jsonl', dev: 'towns.dev.jsonl' }],
    })
    await run(file, '--output', at('whole'))
    const steps = (): number[] => {
      const log = at('killed', 'seed-1', 'metrics.jsonl')
      const text = existsSync(log) ? readFileSync(log, 'utf8').split('\n').slice(0, -1) : []
      return text.map((line) => (JSON.parse(line) as { step: number }).step)
    }
    for (const [signal, reach] of [
      ['SIGKILL', 8],
      ['SIGINT', 25],
    ] as const) {
      const { process: child, finished } = reproduce(file, '--output', at('killed'))
      while (child.exitCode === null && (steps().at(-1) ?? -1) < reach) await sleep(5)
      child.kill(signal)
      const { code, stderr } = await finished
      if (signal === 'SIGINT') {
        expect(code).toBe(130)
        expect(stderr).toMatch(/The same command goes on from there/)
      }
    }
    expect(existsSync(at('killed', 'seed-1', 'adapter'))).toBe(false)
    const planned = await json<Planned>(file, '--output', at('killed'), '--dry-run')
    expect(planned.steps.find(({ step }) => step === 'train seed 1')?.why).toBe('was interrupted')
    expect((await json<Done>(file, '--output', at('killed'))).ran).toEqual([
      'train seed 1',
      'evaluate benchmarks, seed 1',
    ])
    expect(steps()).toEqual(Array.from({ length: 61 }, (_, step) => step))
    const [whole, killed] = await Promise.all(
      ['whole', 'killed'].map((name) => snapshot(at(name, 'seed-1', 'adapter'))),
    )
    expect(Object.values(killed!)).toEqual(Object.values(whole!))
    appendFileSync(at('mine.mjs'), '// Another text.\n')
    const edited = await json<Planned>(file, '--output', at('killed'), '--dry-run')
    expect(edited.steps.find(({ step }) => step === 'train seed 1')?.why).toBe('changed: loss module (its content)')
  })

  it('sweeps over branching and settings, selecting on validation, dev untouched', async () => {
    const sweep = { branching: [2, 3], train: { rank: [1, 2] }, seeds: [1, 3] }
    const file = configure('sweep.yaml', { sweep })
    const done = await json<Done>(file, '--output', at('sweep'))
    expect(done.ran.filter((step) => step.startsWith('preferences'))).toHaveLength(2)
    expect(done.ran.filter((step) => step.startsWith('train'))).toHaveLength(8)
    expect(done.ran.filter((step) => step.startsWith('evaluate'))).toEqual([])
    expect(existsSync(at('sweep', 'evaluations.jsonl'))).toBe(false)
    expect(readdirSync(at('sweep', 'sweep')).sort()).toEqual(['base', 'branching=3', 'branching=3,rank=1', 'rank=1'])
    const { rows, best } = JSON.parse(readFileSync(at('sweep', 'sweep.json'), 'utf8'))
    expect(rows).toHaveLength(8)
    for (const { validation } of rows) {
      expect(validation.decision_accuracy).toBeGreaterThanOrEqual(validation.frozen)
      expect(validation['always-left']).toBeGreaterThan(0)
    }
    expect(best.map(({ branching }: { branching: number }) => branching).sort()).toEqual([2, 3])
    expect(readFileSync(at('sweep', 'sweep.md'), 'utf8')).toMatch(/Selection is on validation.*Dev was not looked at/s)
    // one value more leaves the others as they are
    const more = configure('sweep.yaml', { sweep: { ...sweep, train: { rank: [1, 2, 4] } } })
    expect((await json<Done>(more, '--output', at('sweep'))).ran).toEqual([
      'train seed 1, rank=4',
      'train seed 3, rank=4',
      'train seed 1, branching=3,rank=4',
      'train seed 3, branching=3,rank=4',
    ])
  })

  it('sweeps over branching without training, and measures dev only when asked to', async () => {
    const file = configure('frozen.yaml', { train: false, sweep: { branching: [2, 4], evaluate: true } })
    const done = await json<Done>(file, '--output', at('frozen'))
    expect(done.ran.some((step) => step.startsWith('train'))).toBe(false)
    expect(readFileSync(at('frozen', 'sweep.md'), 'utf8')).toMatch(/frozen encoder only.*looked at 2 times.*## Dev/s)
    expect(readFileSync(at('frozen', 'sweep.csv'), 'utf8')).toMatch(
      /^configuration,seed,branching,.*dev_towns_gold_recall_lo/,
    )
  })

  it('stops at sources that were trained on, goes on with the evaluation once they are allowed, and counts them', async () => {
    writeFileSync(
      at('leak.jsonl'),
      records('towns', 'dev', 6).replaceAll('"source":"towns dev 0"', '"source":"towns train 1"'),
    )
    const benchmarks = [{ name: 'towns', format: 'jsonl', train: 'towns.train.jsonl', dev: 'leak.jsonl' }]
    const leak = configure('leak.yaml', { benchmarks, seeds: [1] })
    const refused = await reproduce(leak, '--output', at('leak')).finished
    expect(refused).toMatchObject({ code: 1 })
    expect(refused.stderr).toMatch(/1 of 3 sources .*"evaluate: { allowOverlap: true }"/)
    const evaluate = { resamples: 50, threads: 1, allowOverlap: true }
    const allowed = configure('leak.yaml', { benchmarks, seeds: [1], evaluate })
    expect((await json<Done>(allowed, '--output', at('leak'))).ran).toEqual(['evaluate benchmarks, seed 1'])
    expect(readFileSync(at('leak', 'results.md'), 'utf8')).toMatch(
      /Overlap with the training data: 0 of 6 questions, 0 of 6 gold items, 1 of 3 sources/,
    )
  })

  it('with --only leaves other benchmarks out', async () => {
    const { steps, output } = await json<Planned & { output: string }>(at('study.yaml'), '--only', 'towns', '--dry-run')
    expect(output).toBe(resolve('runs', 'study.towns'))
    expect(steps.some(({ step }) => step.includes('ships'))).toBe(false)
  })

  it('refuses wrong configurations, missing files and foreign folders before it does anything', async () => {
    const missing = configure('missing.yaml', {
      benchmarks: [{ name: 'x', format: 'jsonl', train: 'gone.jsonl', dev: 'gone.jsonl' }],
    })
    writeFileSync(at('wrong.yaml'), 'encoder: x\nbenchmarks: []\nsede: 1\n')
    for (const [args, message] of [
      [[missing, '--output', at('new')], /gone\.jsonl: There is no such file, but "train" of x/],
      [[at('wrong.yaml'), '--output', at('new')], /"benchmarks".*no key is called "sede"/],
      [[at('absent.yaml')], /absent\.yaml: The configuration cannot be read/],
      [[at('study.yaml'), '--output', folder], /was not made by "canopy reproduce"/],
      [[at('study.yaml'), '--only', 'planes'], /No benchmark is called "planes"/],
    ] as const) {
      const { code, stdout, stderr } = await reproduce(...args).finished
      expect({ code, stdout }, args.join(' ')).toEqual({ code: 1, stdout: '' })
      expect(stderr).toMatch(message)
      expect(stderr).not.toMatch(/\n\s+at /)
    }
    expect(existsSync(at('new'))).toBe(false)
  })

  it('runs the sample configuration, with export and report', async () => {
    const config = resolve(import.meta.dirname, '../../configs/reproduce-sample.yaml')
    const done = await json<Done>(config, '--output', at('sample'))
    expect(done.ran.slice(-2)).toEqual(['export', 'report'])
    expect(existsSync(at('sample', 'export', 'onnx', 'model.onnx'))).toBe(true)
    expect(readFileSync(at('sample', 'report.html'), 'utf8')).toMatch(/^<!doctype html>/i)
    const page = readFileSync(at('sample', 'results.md'), 'utf8')
    expect(page).toMatch(/Exported: train seed [12], the best on its validation part/)
    expect((await json<Done>(config, '--output', at('sample'))).ran).toEqual([])
  })
})

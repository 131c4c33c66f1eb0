import { mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { readConfig } from '../../src/reproduce/config.ts'
import { points } from '../../src/reproduce/sweep.ts'
import { InputError } from '../../src/support/errors.ts'
import { temporaryFolder } from '../support/temporary.ts'

function written(value: unknown, name = 'study.json'): string {
  const file = join(temporaryFolder(), name)
  writeFileSync(file, typeof value === 'string' ? value : JSON.stringify(value))
  return file
}

const hotpotqa = { format: 'hotpotqa', train: 'train.json', dev: ['dev.json'] }
const base = { encoder: 'org/model', benchmarks: [hotpotqa] }

async function messageOf(value: unknown): Promise<string> {
  const error = await readConfig(written(value)).catch((e: unknown) => e)
  expect(error).toBeInstanceOf(InputError)
  return (error as Error).message
}

describe('a configuration', () => {
  it('has its defaults and absolute paths, relative ones being relative to the file', async () => {
    const file = written(
      `
encoder: models/minilm
benchmarks:
  - { format: hotpotqa, train: a.json, dev: [../b.json] }
  - { dataset: sets/mine, role: evaluate }
train: { rank: 8, loss: losses/mine.mjs }
`,
      'study.yaml',
    )
    const folder = resolve(file, '..')
    mkdirSync(join(folder, 'models', 'minilm'), { recursive: true })
    const config = await readConfig(file)
    expect(config).toMatchObject({ name: 'study', branching: 2, seeds: [1], export: false, sweep: undefined })
    expect(config.encoder).toBe(join(folder, 'models', 'minilm'))
    expect(config.train).toMatchObject({ rank: 8, alpha: 32, loss: join(folder, 'losses', 'mine.mjs') })
    expect(config.benchmarks).toMatchObject([
      {
        name: 'hotpotqa',
        role: 'train+evaluate',
        data: {
          parts: [
            { part: 'train', files: [join(folder, 'a.json')] },
            { part: 'dev', files: [resolve(folder, '..', 'b.json')] },
          ],
        },
      },
      { name: 'mine', role: 'evaluate', data: { kind: 'dataset', folder: join(folder, 'sets', 'mine') } },
    ])
    expect((await readConfig(written(base))).encoder).toBe('org/model')
  })

  it.each([
    [{ ...base, benchmark: [] }, /no key is called "benchmark"/],
    [{ ...base, benchmarks: [{ ...hotpotqa, fromat: 'nq' }] }, /no key is called "benchmarks\[0\]\.fromat"/],
    [{ ...base, benchmarks: [{ ...hotpotqa, format: 'squad' }] }, /"benchmarks\[0\]\.format": /],
    [{ ...base, benchmarks: [] }, /"benchmarks": /],
    [{ ...base, benchmarks: [{ ...hotpotqa, variants: 'none' }] }, /"benchmarks\[0\]\.variants": /],
    [{ benchmarks: [hotpotqa] }, /"encoder": expected a folder/],
    [
      { ...base, benchmarks: [{ format: 'nq', train: 'x' }] },
      /"benchmarks\[0\]": the role "train\+evaluate" needs "dev"/,
    ],
    [{ ...base, benchmarks: [{ train: 'x', dev: 'y' }] }, /"benchmarks\[0\]": give either "format".*or "dataset"/],
    [{ ...base, benchmarks: [{ dataset: 'x', dev: 'y' }] }, /"dev" belongs to "format"/],
    [{ ...base, benchmarks: [{ ...hotpotqa, fetch: true }] }, /"fetch" downloads the official files/],
    [{ ...base, benchmarks: [{ format: 'jsonl', fetch: true }] }, /no official files of jsonl/],
    [{ ...base, benchmarks: [hotpotqa, hotpotqa] }, /Two benchmarks are called "hotpotqa"/],
    [{ ...base, benchmarks: [{ ...hotpotqa, name: '../x' }] }, /"benchmarks\[0\]\.name": expected a name/],
    [{ ...base, benchmarks: [{ ...hotpotqa, import: { onEror: 'skip' } }] }, /"benchmarks\[0\]\.import\.onEror"/],
    [{ ...base, benchmarks: [{ ...hotpotqa, role: 'evaluate' }] }, /nothing to train on.*"train: false"/],
    [{ ...base, train: { rnak: 8 } }, /"train": .*no setting is called "rnak"/],
    [{ ...base, train: { rank: -8 } }, /"train": .*"rank"/],
    [{ ...base, train: { seed: 3 } }, /"train\.seed": seeds stand under "seeds"/],
    [{ ...base, evaluate: { branching: 1 } }, /"evaluate\.branching"/],
    [{ ...base, seeds: [] }, /"seeds"/],
    [{ ...base, sweep: {} }, /"sweep" varies nothing/],
    [{ ...base, sweep: { train: { rnak: [8] } } }, /"sweep\.train\.rnak": no setting of training/],
    [{ ...base, sweep: { train: { rank: [8, 'many'] } } }, /"rank"/],
    [{ ...base, sweep: { train: { seed: [1, 2] } } }, /"sweep\.train\.seed".*"sweep\.seeds"/],
    [{ ...base, train: false, sweep: { train: { rank: [8] } } }, /"train" is false/],
    [
      { ...base, benchmarks: [hotpotqa, { format: 'nq', train: 'a', dev: 'b', splits: { dev: 'test' } }] },
      /"splits\.dev" is "dev" for hotpotqa and "test" for nq/,
    ],
    ['[1', /Not a valid configuration file/],
    ['[]', /The configuration is wrong: expected keys and values/],
  ])('%j is refused, naming the key', async (value, message) => {
    expect(await messageOf(value)).toMatch(message)
  })

  it('keeps the benchmarks that are asked for, and knows no others', async () => {
    const file = written({ ...base, benchmarks: [hotpotqa, { format: 'nq', train: 'a', dev: 'b' }] })
    expect((await readConfig(file, ['nq'])).benchmarks.map(({ name }) => name)).toEqual(['nq'])
    await expect(readConfig(file, ['trivia'])).rejects.toThrow(
      /No benchmark is called "trivia"; there are "hotpotqa", "nq"/,
    )
  })

  it('of this repository is one that can be read', async () => {
    for (const name of ['sample', 'minilm', 'paper'])
      expect((await readConfig(resolve(import.meta.dirname, `../../configs/reproduce-${name}.yaml`))).name).toBe(name)
  })
})

describe('a sweep', () => {
  const sweepOf = async (sweep: object) => (await readConfig(written({ ...base, sweep }))).sweep!

  it('of a grid is every combination, named by what differs from the configuration', async () => {
    const { configurations } = await sweepOf({ branching: [2, 3], train: { rank: [8, 16], learningRate: [0.001] } })
    expect(configurations.map(({ name }) => name)).toEqual([
      'rank=8,learningRate=0.001',
      'learningRate=0.001',
      'branching=3,rank=8,learningRate=0.001',
      'branching=3,learningRate=0.001',
    ])
    expect(configurations[2]).toMatchObject({ branching: 3, train: { rank: 8, learningRate: 0.001, alpha: 32 } })
  })

  it('of one at a time is the configuration, and each other value alone', async () => {
    const { configurations } = await sweepOf({
      mode: 'one-at-a-time',
      branching: [2, 3],
      train: { rank: [8, 16], 'kindWeights.sibling-separation': [0, 1], 'benchmarkWeights.hotpotqa': [2] },
    })
    expect(configurations.map(({ name }) => name)).toEqual([
      'base',
      'branching=3',
      'rank=8',
      'kindWeights.sibling-separation=0',
      'benchmarkWeights.hotpotqa=2',
    ])
    expect(configurations[3]!.train!.kindWeights).toMatchObject({ 'sibling-separation': 0, 'gold-child': 1 })
    expect(configurations[4]!.train!.benchmarkWeights).toEqual({ hotpotqa: 2 })
  })

  it('has as many different points as its axes say', () => {
    const axis = fc.uniqueArray(fc.integer({ min: 0, max: 9 }), { minLength: 1, maxLength: 4 })
    const axes = fc.dictionary(fc.constantFrom('a', 'b', 'c'), axis, { minKeys: 1 })
    fc.assert(
      fc.property(axes, (given) => {
        const base = Object.fromEntries(Object.keys(given).map((name) => [name, 0]))
        const grid = points('grid', given, base)
        expect(grid).toHaveLength(Object.values(given).reduce((product, { length }) => product * length, 1))
        const alone = points('one-at-a-time', given, base)
        const others = Object.values(given).map((values) => values.filter((value) => value !== 0).length)
        expect(alone).toHaveLength(1 + others.reduce((a, b) => a + b, 0))
        for (const point of alone)
          expect(Object.values(point).filter((value) => value !== 0).length).toBeLessThanOrEqual(1)
        for (const list of [grid, alone])
          expect(new Set(list.map((point) => JSON.stringify(point))).size).toBe(list.length)
      }),
    )
  })
})

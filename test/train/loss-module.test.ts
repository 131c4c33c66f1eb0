import { copyFileSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { type TokenSequence, textSequence } from '../../src/encoder/index.ts'
import { assembleBatch, type Instance } from '../../src/train/data/instances.ts'
import { checkLossModule } from '../../src/train/loss/check.ts'
import { createModuleMean, lossInstance } from '../../src/train/loss/instances.ts'
import { type LossModule, loadLossModule } from '../../src/train/loss/module.ts'
import type { MetricsLine } from '../../src/train/run/metrics.ts'
import { resolveSettings } from '../../src/train/settings.ts'
import { moduleGradients } from '../../src/train/step/gradients.ts'
import { createSetup, type Setup } from './command.ts'
import { largestDifference, type Trained, trainHere } from './training.ts'

let folder: string
let setup: Setup
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-loss-'))
  setup = await createSetup(folder)
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const example = (name: string): string => resolve(import.meta.dirname, '../../configs/losses', name)
const write = (name: string, source: string): string => {
  writeFileSync(join(folder, name), source)
  return join(folder, name)
}
/** A module whose loss is Σ f(s) over all nodes; `f` and `slope` are expressions in s. */
const separable = (f: string, slope: string): string => `
  export default ({ instances }) => ({
    loss: instances.reduce((sum, { scores }) => scores.reduce((part, s) => part + (${f}), sum), 0),
    gradients: instances.map(({ scores }) => scores.map((s) => ${slope})),
  })`

/** The numbers of two runs, step by step, agree to rounding. */
function expectSameLines(a: MetricsLine[], b: MetricsLine[], precision = 1e-6): void {
  const numbers = ({ seconds: _, ...line }: MetricsLine): number[] =>
    [line, line.validation ?? {}].flatMap((part) => Object.values(part).filter((x) => typeof x === 'number'))
  expect(a.length).toBe(b.length)
  a.forEach((line, i) => {
    const [left, right] = [numbers(line), numbers(b[i]!)]
    expect(left.length).toBe(right.length)
    left.forEach((x, k) => {
      expect(Math.abs(x - right[k]!)).toBeLessThanOrEqual(precision * Math.max(1, Math.abs(x)))
    })
  })
}

describe('a run with a loss module', () => {
  let logistic: Trained
  beforeAll(async () => {
    logistic = await trainHere(setup, join(folder, 'logistic'), { loss: example('logistic.mjs') })
  })

  it('that computes a built-in loss gives its metrics and its adapter, to rounding', async () => {
    const builtIn = await trainHere(setup, join(folder, 'built-in-logistic'), { loss: 'logistic' })
    expectSameLines(logistic.lines, builtIn.lines)
    expect(largestDifference(logistic.tensors, builtIn.tensors)).toBeLessThan(1e-5)
    const weights = { weighting: 'item', kindWeights: { 'sibling-separation': 0.3 } } as const
    const hinge = await trainHere(setup, join(folder, 'hinge'), { loss: example('hinge.mjs'), ...weights })
    const builtInHinge = await trainHere(setup, join(folder, 'built-in-hinge'), { loss: 'hinge', ...weights })
    expectSameLines(hinge.lines, builtInHinge.lines)
    expect(largestDifference(hinge.tensors, builtInHinge.tensors)).toBeLessThan(1e-5)
    expect(largestDifference(hinge.tensors, logistic.tensors)).toBeGreaterThan(1e-3)
  })

  it('takes any token budget, which changes nothing beyond rounding', async () => {
    const small = await trainHere(setup, join(folder, 'small'), { loss: example('logistic.mjs'), tokenBudget: 32 })
    expectSameLines(small.lines, logistic.lines, 1e-5)
    expect(largestDifference(small.tensors, logistic.tensors)).toBeLessThan(1e-5)
  })

  it('is computed by either engine', async () => {
    const tfjs = await trainHere(setup, join(folder, 'tfjs'), {
      loss: example('logistic.mjs'),
      engine: 'tfjs',
      steps: 3,
    })
    const ort = await trainHere(setup, join(folder, 'ort'), { loss: example('logistic.mjs'), steps: 3 })
    expectSameLines(tfjs.lines, ort.lines, 1e-5)
    expect(largestDifference(tfjs.tensors, ort.tensors)).toBeLessThan(1e-4)
  })

  it('gives the same bytes again, also when it is stopped and resumed', async () => {
    const stop = new AbortController()
    const loss = example('logistic.mjs')
    const output = join(folder, 'stopped')
    const onStep = ({ step }: MetricsLine): void => {
      if (step === 5) stop.abort()
    }
    await expect(trainHere(setup, output, { loss }, { signal: stop.signal, onStep })).rejects.toThrow(/after step 5/)
    const resumed = await trainHere(setup, output, { loss }, { resume: true })
    expect(resumed.tensors).toEqual(logistic.tensors)
    expect(JSON.parse(readFileSync(join(output, 'config.json'), 'utf8'))).toMatchObject({
      lossModule: {
        path: loss,
        sha256: expect.stringMatching(/^[0-9a-f]{64}$/),
        files: { 'logistic.mjs': expect.any(String) },
      },
    })
  })

  it('is not resumed with another text of the module or of what it imports, wherever they lie', async () => {
    const output = join(folder, 'edited')
    write('scale.mjs', 'export const scale = 1')
    copyFileSync(example('logistic.mjs'), join(folder, 'logistic.mjs'))
    const loss = write(
      'own.mjs',
      `import { scale } from './scale.mjs'\nimport logistic from './logistic.mjs'
       export default (input) => { const { loss, gradients } = logistic(input); return { loss: scale * loss, gradients } }`,
    )
    const stop = new AbortController()
    const onStep = (): void => stop.abort()
    await expect(trainHere(setup, output, { loss, steps: 3 }, { signal: stop.signal, onStep })).rejects.toThrow(
      /before|after step/,
    )
    const first = await trainHere(setup, output, { loss, steps: 3 }, { resume: true })
    expect(first.result.alreadyFinished).toBe(false)
    const copied = (name: string): string => {
      mkdirSync(join(folder, name))
      for (const file of ['own.mjs', 'scale.mjs', 'logistic.mjs'])
        copyFileSync(join(folder, file), join(folder, name, file))
      return join(folder, name, 'own.mjs')
    }
    const again = await trainHere(setup, output, { loss: copied('moved'), steps: 3 }, { resume: true })
    expect(again.result.alreadyFinished).toBe(true)
    write('scale.mjs', 'export const scale = 1.0')
    await expect(trainHere(setup, output, { loss: copied('other'), steps: 3 }, { resume: true })).rejects.toThrow(
      /loss module was \w+, is/,
    )
    await expect(trainHere(setup, output, { loss: 'logistic', steps: 3 }, { resume: true })).rejects.toThrow(
      /loss module was/,
    )
  })

  it('goes on even where its check would fail now, as it would have undisturbed', async () => {
    const loss = write('late.mjs', separable('s', 'globalThis.late ? 2 : 1'))
    const output = join(folder, 'late')
    const stop = new AbortController()
    const onStep = ({ step }: MetricsLine): unknown => step === 1 && stop.abort()
    await expect(trainHere(setup, output, { loss, steps: 3 }, { signal: stop.signal, onStep })).rejects.toThrow()
    vi.stubGlobal('late', true)
    await expect(trainHere(setup, join(folder, 'new'), { loss, steps: 3 })).rejects.toThrow(/finite differences/)
    expect((await trainHere(setup, output, { loss, steps: 3 }, { resume: true })).result.steps).toBe(3)
    vi.unstubAllGlobals()
  })

  it('is not asked where there is nothing to learn', async () => {
    const encoder = join(folder, 'short')
    cpSync(setup.encoder, encoder, { recursive: true })
    // Room for a word of the title, which all nodes of an item have in common.
    writeFileSync(join(encoder, 'sentence_bert_config.json'), '{"max_seq_length": 3, "do_lower_case": false}')
    const loss = write('never.mjs', 'export default () => { throw new Error("asked") }')
    const { result, lines } = await trainHere({ ...setup, encoder }, join(folder, 'short-run'), { loss, steps: 2 })
    expect(result.skipped).toBe(2)
    expect(lines[1]).toMatchObject({ skipped: 'no pair that can be learned', pairs: 0 })
  })

  it('learns from whole lists', async () => {
    const { lines } = await trainHere(setup, join(folder, 'listwise'), {
      ...{ loss: example('listwise.mjs'), lossOptions: { temperature: 0.1 }, steps: 40, evaluateEvery: 20 },
    })
    const losses = lines.flatMap(({ validation }) => (validation === undefined ? [] : [validation.loss]))
    expect(losses.at(-1)).toBeLessThan(0.9 * losses[0]!)
  })
})

describe('a loss module is refused, by name and place, before anything is written', () => {
  const cases: [string, string, RegExp][] = [
    [
      'a wrong gradient',
      separable('s * s', 's'),
      /made-up|first batch.*gradient at the node \[\d+, \d+\) of the question "q\d+" with the item "\S+" is .*, but finite differences of the loss give/,
    ],
    ['a gradient of the wrong sign', separable('Math.exp(s)', '-Math.exp(s)'), /finite differences/],
    ['no default export', 'export const loss = 1', /no default export that is a function/],
    ['a syntax error', 'export default {', /cannot be imported/],
    [
      'a loss that differs from call to call',
      `let n = 0\n${separable('s + 1e-12 * n++', '1')}`,
      /two calls with the same input/,
    ],
    ['a loss that is NaN', separable('s + NaN', '1'), /the loss \(NaN\) is not finite/],
    ['a gradient that is infinite', separable('s', '1 / 0'), /gradient at the node .* \(Infinity\) is not finite/],
    ['a promise', 'export default async () => ({ loss: 0, gradients: [] })', /returned a promise/],
    ['nothing', 'export default () => {}', /returned undefined; \{ loss, gradients \} was expected/],
    ['a loss that is no number', 'export default () => ({ loss: "0", gradients: [] })', /"loss" that is a string/],
    [
      'gradients for too few instances',
      'export default () => ({ loss: 0, gradients: [] })',
      /a list of 0; a list of 4/,
    ],
    [
      'a gradient for too few nodes',
      'export default ({ instances }) => ({ loss: 0, gradients: instances.map(() => [0]) })',
      /question "q\d+" with the item "\S+" 1 numbers; \d+, one for each node/,
    ],
    [
      'a gradient of strings',
      'export default ({ instances }) => ({ loss: 0, gradients: instances.map(({ nodes }) => nodes.map(() => "0")) })',
      /an array of numbers was expected/,
    ],
    ['an exception', 'export default () => {\n throw new Error("too cold")\n}', /\.mjs:2: .*failed: too cold/],
    ['a promise that fails', 'export default async () => { throw 1 }', /returned a promise/],
    ['a property that throws', 'export default () => ({ get loss() { throw new Error("dark") } })', /failed: dark/],
    [
      'a change of what it is given',
      'export default ({ instances }) => { instances[0].nodes[0].children.sort() }',
      /failed: Cannot assign to read only/,
    ],
    [
      'options that are a promise',
      `export const options = async () => ({})\n${separable('s', '1')}`,
      /"options", which returned a promise/,
    ],
    [
      'an import whose name is computed',
      `const m = await import('./' + 'x.mjs')\n${separable('s', '1')}`,
      /literal names only/,
    ],
    [
      'options that it does not know',
      `export const options = ({ warmth }) => { if (warmth !== undefined) throw new Error('no "warmth"') }\n${separable('s', '1')}`,
      /refuses "lossOptions": no "warmth"/,
    ],
  ]
  for (const [what, source, message] of cases)
    it(what, async () => {
      const loss = write(`${what.replaceAll(/\W/g, '-')}.mjs`, source)
      const output = join(folder, 'refused')
      const error: unknown = await trainHere(setup, output, { loss, lossOptions: { warmth: 1 } }).catch((e) => e)
      expect(error).toMatchObject({ name: 'InputError', message: expect.stringMatching(message) })
      expect((error as Error).message).toContain(loss)
      expect(existsSync(output)).toBe(false)
    })

  it('a file that is not there, or is no module', async () => {
    await expect(trainHere(setup, join(folder, 'refused'), { loss: join(folder, 'absent.mjs') })).rejects.toThrow(
      /absent\.mjs: cannot read the loss module/,
    )
    await expect(resolveSettings(undefined, { loss: './mine.py' })).rejects.toThrow(
      /logistic, hinge or the path of a module/,
    )
    await expect(resolveSettings(undefined, { lossOptions: { a: 1 } })).rejects.toThrow(/"lossOptions"/)
  })

  it('is found relative to the config file, or to the working directory', async () => {
    const config = write('config.yaml', 'loss: losses/mine.mjs\n')
    expect((await resolveSettings(config)).loss).toBe(join(folder, 'losses', 'mine.mjs'))
    expect((await resolveSettings(config, { loss: 'own.js' })).loss).toBe(resolve('own.js'))
    expect((await resolveSettings(undefined, { loss: './own.cjs' }, folder)).loss).toBe(join(folder, 'own.cjs'))
    expect((await resolveSettings(config, { loss: 'hinge' })).loss).toBe('hinge')
  })
})

/** [0, 4) with leaves 2 and 3 gold: the root is partly gold, [2, 4) fully; [0, 1) and [1, 2) are not asked for. */
const instance: Instance = {
  item: 'i',
  preferences: {
    question: 'q',
    item: 'i',
    nodes: [
      [0, 4],
      [0, 2],
      [2, 4],
      [2, 3],
      [3, 4],
    ],
    pairs: [
      [2, 0, 'gold-child'],
      [0, 1, 'non-gold-child'],
      [2, 1, 'sibling-separation'],
      [2, 3, 'fully-gold'],
      [2, 4, 'fully-gold'],
    ],
  },
  // The last leaf is cut to the very tokens of its parent.
  places: [0, 1, 2, 3, 2],
  question: 0,
  benchmark: 0,
  sequences: [0, 1, 2, 3].map((id) => textSequence(Int32Array.of(id))),
  decisions: [
    {
      learnable: [
        { preferred: 2, other: 0, kind: 'gold-child', number: 0 },
        { preferred: 0, other: 1, kind: 'non-gold-child', number: 1 },
        { preferred: 2, other: 1, kind: 'sibling-separation', number: 2 },
      ],
      equal: [],
    },
    {
      learnable: [{ preferred: 2, other: 3, kind: 'fully-gold', number: 3 }],
      equal: [{ preferred: 2, other: 2, kind: 'fully-gold', number: 4 }],
    },
  ],
  nodes: 5,
  truncated: 1,
}
const settings = await resolveSettings(undefined, {})
const batchOf = (instances: Instance[]) => assembleBatch(instances, settings, ['b'], (s) => s.length, 100)
const module = (run: LossModule['run']): LossModule => ({ path: '/m.mjs', sha256: '', files: {}, run })
const linear = module((instances) => ({
  loss: instances.reduce((sum, { scores }) => scores.reduce((a, s) => a + 3 * s, sum), 0),
  gradients: instances.map(({ scores }) => scores.map(() => 3)),
  notFinite: undefined,
}))

describe('what a loss module is given', () => {
  it('is the tree with what gold says of each node, scores, and pairs with their share of the batch', () => {
    const seen = lossInstance(batchOf([instance]).members[0]!, 'b', [0.1, 0.2, 0.3, 0.4])
    expect(seen).toMatchObject({ question: 'q', item: 'i', benchmark: 'b' })
    expect(seen.nodes.map(({ parent, children, gold }) => [parent, children, gold])).toEqual([
      [-1, [1, 2], 'some'],
      [0, [], 'none'],
      [0, [3, 4], 'all'],
      [2, [], 'all'],
      [2, [], 'all'],
    ])
    expect([...seen.scores]).toEqual([0.1, 0.2, 0.3, 0.4, 0.3])
    expect(seen.pairs.map(({ decision }) => decision)).toEqual([0, 0, 0, 2, 2])
    expect(seen.pairs.map(({ weight }) => weight)).toEqual([1 / 6, 1 / 6, 1 / 6, 1 / 2, 0])
  })
})

describe('the gradient of a loss module', () => {
  const queries = () => Float32Array.of(0.6, 0.8)
  const engine = (embeddings: number[]) => {
    const slopes: number[][] = []
    return {
      slopes,
      embed: async () => Float32Array.from(embeddings),
      async pullBack(_: TokenSequence[], slope: Float32Array) {
        slopes.push([...slope])
        return new Map([['w', Float32Array.of(1)]])
      },
    }
  }
  const tensors = new Map([['w', Float32Array.of(5)]])
  const parts = { queries, dimension: 2, benchmarks: ['b'] }
  const embeddings = [1, 0, 0, 1, 0.6, 0.8, 0, -1]

  it('goes to the embeddings along the query, summed over nodes of equal tokens', async () => {
    const fake = engine(embeddings)
    const result = await moduleGradients(batchOf([instance]), tensors, { ...parts, engine: fake, module: linear })
    const expected = [1, 1, 2, 1].flatMap((nodes) => [nodes * 3 * 0.6, nodes * 3 * 0.8])
    fake.slopes[0]!.forEach((x, i) => {
      expect(x).toBeCloseTo(expected[i]!, 6)
    })
    expect(result.loss).toBeCloseTo(3 * (0.6 + 0.8 + 2 * 1 - 0.8), 6)
    // [2, 4) beats the root, its sibling and its child; the root does not beat [0, 2).
    expect(result.right).toBe(3)
  })

  it('that is not finite, or comes from scores that are not, is for no step to apply', async () => {
    const faulty = module((instances) => ({ ...linear.run(instances), notFinite: 'the loss (NaN)' }))
    for (const [given, from, words] of [
      [faulty, embeddings, 'in /m.mjs, the loss (NaN) is'],
      [linear, [Number.NaN, ...embeddings.slice(1)], 'a score of the question "q" with the item "i" is'],
    ] as const) {
      const fake = engine([...from])
      const result = await moduleGradients(batchOf([instance]), tensors, { ...parts, engine: fake, module: given })
      expect(result).toMatchObject({ loss: Number.NaN, notFinite: words })
      expect(fake.slopes).toEqual([])
    }
  })

  it('is zero where a batch has nothing to learn', async () => {
    const nothing = { ...instance, decisions: [{ learnable: [], equal: instance.decisions[1]!.equal }] }
    const result = await moduleGradients(batchOf([nothing]), tensors, { ...parts, engine: engine([]), module: linear })
    expect(result).toEqual({ loss: 0, right: 0, gradients: new Map([['w', Float32Array.of(0)]]) })
  })
})

describe('the check of a loss module', () => {
  const batch = [lossInstance(batchOf([instance]).members[0]!, 'b', [0.1, 0.2, 0.3, 0.4])]
  const hingeAt = (margin: number, slopeAtKink: number) =>
    module((instances) => ({
      loss: instances.reduce((sum, { scores }) => sum + Math.max(0, margin - scores[0]!), 0),
      gradients: instances.map(({ scores }) =>
        scores.map((s, i) => (i > 0 || s > margin ? 0 : s === margin ? slopeAtKink : -1)),
      ),
      notFinite: undefined,
    }))

  it('accepts every subgradient at a kink, and nothing else', () => {
    for (const slope of [0, -0.5, -1]) checkLossModule(hingeAt(0.1, slope), batch)
    for (const slope of [0.5, -1.5]) expect(() => checkLossModule(hingeAt(0.1, slope), batch)).toThrow(/node \[0, 4\)/)
  })

  it('also looks where the scores of the first batch say nothing', () => {
    const steep = module((instances) => ({
      loss: instances.reduce((sum, { scores }) => sum + Math.max(0, scores[1]! - 0.5) ** 2, 0),
      gradients: instances.map(({ scores }) => scores.map(() => 0)),
      notFinite: undefined,
    }))
    expect(() =>
      checkLossModule(
        steep,
        Array.from({ length: 20 }, () => batch[0]!),
      ),
    ).toThrow(/made-up scores/)
  })
})

it('the validation loss is not a number where scores are none, and the module is not asked', () => {
  const never = module(() => expect.fail('asked'))
  const mean = createModuleMean(never, { ...settings, batchSize: 1 }, ['b'])
  mean.add(instance, [0.1, Number.NaN, 0.3, 0.4])
  expect(mean.loss()).toBeNaN()
})

it('the mean over validation batches of a loss of pairs is its mean over all instances', async () => {
  const loss = await loadLossModule(await resolveSettings(undefined, { loss: example('logistic.mjs') }))
  const other: Instance = { ...instance, decisions: [instance.decisions[0]!] }
  const given: [Instance, number[]][] = [
    [instance, [0.1, 0.2, 0.3, 0.4]],
    [other, [0.5, 0.1, -0.2, 0.3]],
    [instance, [0.2, 0.6, 0.1, 0]],
  ]
  const mean = (batchSize: number): number => {
    const sum = createModuleMean(loss, { ...settings, batchSize }, ['b'])
    for (const [one, scores] of given) sum.add({ ...one }, scores)
    return sum.loss()
  }
  expect(mean(2)).toBeCloseTo(mean(100), 12)
  expect(mean(1)).toBeCloseTo(mean(100), 12)
})

import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import {
  type Adapter,
  adapterHash,
  encoderModules,
  initialLora,
  loraB,
  openEmbedder,
  readAdapter,
  readEncoder,
  writeAdapter,
} from '../../src/encoder/index.ts'
import { readTrainingData } from '../../src/eval/index.ts'
import { createRandom } from '../../src/support/random.ts'
import type { ValidationMetrics } from '../../src/train/run/metrics.ts'
import { resolveSettings } from '../../src/train/settings.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { canopy, createSetup, type Setup } from './command.ts'
import { largestDifference, trainHere } from './training.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-warm-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
let setup: Setup
/** The adapter of a first run. */
let first: string
let chosen: ValidationMetrics | undefined
/** One with ranks and alphas of its own, and rank-stabilised, as PEFT may bring it: nothing beside it says where it is from. */
let foreign: string
/** What a warm start says of its modules; --rank is stated by the tests' own settings otherwise. */
const asTheAdapter = { rank: null, alpha: null }

beforeAll(async () => {
  setup = await createSetup(folder)
  chosen = (await trainHere(setup, join(folder, 'first'))).result.selected.validation
  first = join(folder, 'first', 'adapter')
  const profile = await readEncoder(setup.encoder)
  const modules = (await encoderModules(profile)).filter(({ module }) => /query|value/.test(module))
  const targets = modules.map(({ module, inputs, outputs }, i) => ({
    ...{ module, inputs, outputs, rank: 2 + (i % 3) },
    alpha: (4 + (i % 2)) * Math.sqrt(2 + (i % 3)),
  }))
  const tensors = initialLora(targets, 'foreign')
  const random = createRandom('foreign')
  for (const { module } of targets)
    tensors.get(loraB(module))!.forEach((_, i, b) => {
      b[i] = 0.05 * random.normal()
    })
  foreign = join(folder, 'elsewhere', 'foreign')
  await writeAdapter(foreign, { targets, tensors, baseFingerprint: undefined, rankStabilised: true }, profile)
  rmSync(join(foreign, 'canopy_adapter.json'))
})

const adapterOf = async (place: string): Promise<Adapter> => readAdapter(place, await readEncoder(setup.encoder))
const bytesOf = (place: string): Record<string, string> =>
  Object.fromEntries(readdirSync(place).map((name) => [name, readFileSync(join(place, name)).toString('base64')]))
const json = (...at: string[]) => JSON.parse(readFileSync(join(...at), 'utf8'))
const embeddingsOf = async (adapter: Adapter): Promise<Float32Array> => {
  const embedder = await openEmbedder(await readEncoder(setup.encoder), { adapter, threads: 1 })
  const { embeddings } = await embedder.embedTexts(['The otter number 1 weighs the lantern.', 'a'], 'node')
  await embedder.close()
  return embeddings
}

describe('training that begins from an adapter', () => {
  it('is at step 0 what the adapter is, on the validation part too', async () => {
    const { lines, result } = await trainHere(setup, join(folder, 'still'), {
      ...{ ...asTheAdapter, adapter: first },
      // the tiniest of steps, which none of the numbers can show
      ...{ steps: 1, learningRate: 1e-30 },
    })
    expect(chosen?.decisions).toBeGreaterThan(0)
    expect(lines[0]?.validation).toEqual(chosen)
    expect(result).toMatchObject({ frozen: undefined, start: chosen, selected: { step: 0 } })
    const [start, still] = [await adapterOf(first), await adapterOf(join(folder, 'still', 'adapter'))]
    expect(adapterHash(still)).toBe(adapterHash(start))
    expect(await embeddingsOf(still)).toEqual(await embeddingsOf(start))
  })

  it('leaves the adapter as it was where no step does better, and says so', async () => {
    const { warnings, tensors } = await trainHere(setup, join(folder, 'worse'), {
      ...{ ...asTheAdapter, adapter: first, steps: 4, evaluateEvery: 2, learningRate: 30, clipNorm: 0, warmup: 0 },
    })
    expect(warnings.join('\n')).toMatch(/No step did better .* than the adapter that the run began from, which stays/)
    const kept = await adapterOf(first)
    for (const [name, data] of kept.tensors) expect(tensors.get(`base_model.model.${name}`)).toEqual(data)
  })

  it('keeps modules, ranks, alphas and rank stabilisation through training and writing', async () => {
    const { warnings, tensors } = await trainHere(setup, join(folder, 'foreign'), {
      ...{ ...asTheAdapter, adapter: foreign, selection: 'loss', learningRate: 0.003 },
    })
    const [start, end] = [await adapterOf(foreign), await adapterOf(join(folder, 'foreign', 'adapter'))]
    expect(new Set(start.targets.map(({ rank }) => rank))).toEqual(new Set([2, 3, 4]))
    expect(end.targets).toEqual(start.targets)
    const read = (place: string) => json(place, 'adapter_config.json')
    for (const key of ['r', 'rank_pattern', 'lora_alpha', 'alpha_pattern', 'target_modules', 'use_rslora'])
      expect(read(join(folder, 'foreign', 'adapter'))[key]).toEqual(read(foreign)[key])
    expect(read(foreign)).toMatchObject({ use_rslora: true, lora_alpha: 4 })
    const began = new Map([...start.tensors].map(([name, data]) => [`base_model.model.${name}`, data]))
    expect(largestDifference(tensors, began)).toBeGreaterThan(1e-3)
    expect(warnings.join('\n')).toMatch(/Nothing says what the adapter .*foreign was trained on/)
  })

  it('keeps a copy of it and its hash, from which the run can be done again to the same bytes', async () => {
    const again = join(folder, 'again')
    await trainHere(setup, again, {
      ...{ ...asTheAdapter, adapter: join(folder, 'foreign', 'start-adapter') },
      ...{ selection: 'loss', learningRate: 0.003 },
    })
    const config = json(folder, 'foreign', 'config.json')
    expect(config.startAdapter).toEqual({
      ...{ folder: foreign, sha256: adapterHash(await adapterOf(foreign)), modules: 4 },
    })
    expect(config.settings).toMatchObject({ adapter: foreign, rank: null, alpha: null })
    expect(bytesOf(join(folder, 'foreign', 'start-adapter'))).toEqual(bytesOf(foreign))
    expect(bytesOf(join(again, 'start-adapter'))).toEqual(bytesOf(foreign))
    expect(bytesOf(join(again, 'adapter'))).toEqual(bytesOf(join(folder, 'foreign', 'adapter')))
  })

  it('adds up what was trained on before, and says when the validation part was seen', async () => {
    const other = await createSetup(temporaryFolder(), 12)
    // the same ids with other questions, over the same encoder
    const data = { ...setup, dataset: other.dataset, preferences: other.preferences }
    const { warnings } = await trainHere(data, join(folder, 'more'), { ...asTheAdapter, adapter: first, steps: 2 })
    const [before, after] = [await readTrainingData(first), await readTrainingData(join(folder, 'more', 'adapter'))]
    const alone = await readTrainingData(join(folder, 'more', 'start-adapter'))
    expect(alone).toEqual(before)
    for (const kind of ['questions', 'items', 'sources'] as const)
      expect([...before![kind]].filter((hash) => !after![kind].has(hash))).toEqual([])
    expect(warnings.join('\n')).toMatch(/trained or selected on \d+ of the \d+ questions of the validation part/)
  })
})

describe('an adapter to begin from', () => {
  const begin = (settings: object, encoder = setup.encoder) =>
    trainHere({ ...setup, encoder }, join(folder, 'refused'), { ...asTheAdapter, ...settings })

  it('of another encoder is refused, naming what does not fit, before anything is written', async () => {
    const wide = join(folder, 'wide')
    const vocabularyFrom = ['The otter weighs the lantern.']
    await createRandomBert(wide, { seed: 3, vocabularyFrom, hidden: 48, layers: 2, heads: 2, maxLength: 64 })
    await expect(begin({ adapter: foreign }, wide)).rejects.toThrow(
      /4 of 4 modules .* first encoder\.layer\.0\.attention\.self\.query \(48 x 48\): lora_A is \[2, 32\] instead of \[2, 48\]/,
    )
    await expect(begin({ adapter: first }, wide)).rejects.toThrow(/trained over the encoder "bert".*not over "wide"/)
    expect(existsSync(join(folder, 'refused'))).toBe(false)
  })

  it('is refused with settings that say otherwise of its modules, ranks or alphas', async () => {
    await expect(begin({ adapter: first, rank: 8 })).rejects.toThrow(/"rank" is 8, the adapter's 4.*Leave these/)
    await expect(begin({ adapter: foreign, rank: 2, alpha: 4 })).rejects.toThrow(
      /"rank" is 2, the adapter's 2 to 4; "alpha" is 4, the adapter's .* \(rank-stabilised/,
    )
    await expect(begin({ adapter: foreign, targets: ['query'] })).rejects.toThrow(
      /"targets" names 2 modules, the adapter has 4; encoder\.layer\.0\.attention\.self\.value is not/,
    )
  })

  it('may be stated again as it is', async () => {
    await trainHere(setup, join(folder, 'stated'), {
      adapter: first,
      rank: 4,
      alpha: 32,
      targets: ['all-linear'],
      steps: 1,
    })
  })

  it('that was trained with another query encoder is refused', async () => {
    const other = join(folder, 'other-query')
    cpSync(first, other, { recursive: true })
    const settings = json(other, 'canopy.json')
    settings.queryEncoder.fingerprint = '0'.repeat(64)
    writeFileSync(join(other, 'canopy.json'), JSON.stringify(settings))
    await expect(begin({ adapter: other })).rejects.toThrow(/trained with the query encoder bert/)
  })

  it('whose numbers are not finite is refused', async () => {
    const broken = join(folder, 'broken')
    const adapter = await adapterOf(foreign)
    adapter.tensors.get(loraB(adapter.targets[1]!.module))![3] = Number.NaN
    await writeAdapter(broken, adapter, await readEncoder(setup.encoder))
    await expect(begin({ adapter: broken })).rejects.toThrow(/lora_B\.weight" holds numbers that are not finite/)
  })

  it('is a setting of a config file, relative to it, and rank and alpha are its own unless stated', async () => {
    const config = join(folder, 'warm.yaml')
    writeFileSync(config, 'adapter: first/adapter\nalpha: 32\n')
    expect(await resolveSettings(config)).toMatchObject({ adapter: first, rank: null, alpha: 32 })
    expect(await resolveSettings(undefined)).toMatchObject({ adapter: null, rank: 16, alpha: 32 })
  })
})

describe('canopy train --adapter', () => {
  const args = (run: string, more: string[] = []): string[] => [
    'train',
    ...['--encoder', setup.encoder, '--dataset', setup.dataset, '--preferences', setup.preferences],
    ...['--output', join(folder, run), '--threads', '1', '--seed', '5', '--steps', '12', '--batch-size', '4'],
    ...[
      '--learning-rate',
      '0.01',
      '--token-budget',
      '256',
      '--evaluate-every',
      '4',
      '--checkpoint-every',
      '3',
      ...more,
    ],
  ]
  const steps = (run: string): number => {
    const file = join(folder, run, 'metrics.jsonl')
    return existsSync(file) ? readFileSync(file, 'utf8').split('\n').length - 1 : 0
  }

  it('gives the same bytes when it is killed and resumed, and goes on with that adapter only', async () => {
    const start = join(folder, 'moving')
    cpSync(first, start, { recursive: true })
    const whole = await canopy(args('whole', ['--adapter', start])).finished
    expect(whole.code).toBe(0)
    expect(whole.stderr + whole.stdout).toMatch(/adapter that it begins from: validation decisions/)
    expect(whole.stderr + whole.stdout).toMatch(/Selected step \d+ of 12: .*, at the start /)
    const { process: child, finished } = canopy(args('killed', ['--adapter', start, '--resume']))
    while (child.exitCode === null && steps('killed') <= 6) await sleep(2)
    child.kill('SIGKILL')
    await finished
    const goOn = { resume: true }
    const settings = { ...asTheAdapter, steps: 12, tokenBudget: 256 }
    const killed = join(folder, 'killed')
    await expect(trainHere(setup, killed, { ...settings, adapter: foreign }, goOn)).rejects.toThrow(
      /adapter that it begins from was [0-9a-f]{64}, is [0-9a-f]{64}.* keeps a copy .*: --adapter .*killed.start-adapter\.$/,
    )
    renameSync(start, `${start}-away`)
    await expect(trainHere(setup, killed, { ...settings, adapter: start }, goOn)).rejects.toThrow(
      /keeps a copy of the adapter that it began from: --adapter .*start-adapter/,
    )
    const copy = join(killed, 'start-adapter')
    expect((await canopy(args('killed', ['--adapter', copy, '--resume'])).finished).code).toBe(0)
    expect(bytesOf(join(killed, 'adapter'))).toEqual(bytesOf(join(folder, 'whole', 'adapter')))
    expect(bytesOf(copy)).toEqual(bytesOf(join(folder, 'whole', 'start-adapter')))
  })
})

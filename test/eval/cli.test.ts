import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { mkdir, readdir, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Command } from 'commander'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { register } from '../../src/cli/evaluate.ts'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import {
  CANOPY_FILE,
  canopySettings,
  defaultTargets,
  initialLora,
  linearModules,
  loraB,
  readEncoder,
  selectTargets,
  writeAdapter,
} from '../../src/encoder/index.ts'
import { addTrainingQuestion, emptyTrainingData, writeTrainingData } from '../../src/eval/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { createRandom } from '../../src/support/random.ts'
import { minilmDir } from '../support/minilm.ts'
import { sentence, writeArticles } from './articles.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-evaluate-cli-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

async function canopy(...argv: string[]): Promise<{ stdout: string; stderr: string }> {
  const text = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr'] as const) {
    vi.spyOn(process[name], 'write').mockImplementation((chunk) => {
      text[name] += String(chunk)
      return true
    })
  }
  try {
    const program = new Command('canopy').exitOverride().configureOutput({ writeErr: () => {} })
    register(program)
    for (const command of program.commands) command.exitOverride().configureOutput({ writeErr: () => {} })
    await program.parseAsync(['node', 'canopy', ...argv])
    return text
  } finally {
    vi.restoreAllMocks()
  }
}

/** Writes a run's adapter whose update is zero, or random. */
async function writeRun(
  path: string,
  encoder: string,
  zero: boolean,
  title: boolean,
  margin?: number,
): Promise<string> {
  const profile = await readEncoder(encoder)
  const targets = selectTargets(linearModules(profile), defaultTargets(profile)).map((module) => ({
    ...module,
    rank: 4,
    alpha: 8,
  }))
  const tensors = initialLora(targets, '1')
  const random = createRandom('b')
  if (!zero)
    for (const { module } of targets)
      tensors.set(
        loraB(module),
        tensors.get(loraB(module))!.map(() => random.normal()),
      )
  await mkdir(path, { recursive: true })
  await writeFile(join(path, 'config.json'), '{}')
  await writeAdapter(join(path, 'adapter'), { targets, tensors, baseFingerprint: profile.fingerprint }, profile)
  const settings = canopySettings(profile, profile, { title, tableFormat: 'markdown', branching: 2 })
  await writeFile(join(path, 'adapter', CANOPY_FILE), JSON.stringify({ ...settings, margin }))
  return join(path, 'adapter')
}

describe('canopy evaluate', () => {
  const encoder = join(folder, 'bert')
  let dataset: string
  beforeAll(async () => {
    const vocabularyFrom = Array.from({ length: 8 }, (_, i) => sentence('library', i))
    await createRandomBert(encoder, {
      seed: 1,
      vocabularyFrom,
      hidden: 32,
      layers: 1,
      heads: 2,
      intermediate: 64,
      maxLength: 64,
    })
    dataset = await writeArticles(join(folder, 'articles'), 'Articles', 12)
  })
  const common = (output: string): string[] => [
    ...['evaluate', '--encoder', encoder, '--dataset', dataset, '--split', 'dev'],
    ...['--output', output, '--resamples', '100', '--threads', '1'],
  ]

  it('prints the controls beside the encoders, and writes the same bytes again', async () => {
    const adapter = await writeRun(join(folder, 'run'), encoder, false, false)
    const output = join(folder, 'run', 'eval')
    const { stdout, stderr } = await canopy(...common(output), '--adapter', adapter)
    for (const text of [
      'frozen',
      'fine-tuned',
      'permuted',
      'always-left',
      'keep-root',
      'constant',
      'configuration 1',
      'Overlap',
    ]) {
      expect(stdout).toContain(text)
    }
    expect(stderr).not.toContain('warning')
    const files = await readdir(output)
    const before = files.map((file) => readFileSync(join(output, file), 'utf8'))
    const again = await canopy(...common(output), '--adapter', adapter)
    expect(again.stdout).toContain('evaluated 2 times')
    expect(files.map((file) => readFileSync(join(output, file), 'utf8'))).toEqual(before)
    expect(existsSync(join(folder, 'run', 'evaluations.jsonl'))).toBe(true)
    const { evaluation } = JSON.parse(readFileSync(join(output, 'metrics.json'), 'utf8'))
    expect(evaluation).toMatchObject({ title: false, branching: 2, tokenizer: 'bert', overlap: null })
  })

  it('finds no difference between the encoder and itself with an adapter of zero', async () => {
    const adapter = await writeRun(join(folder, 'zero'), encoder, true, true)
    const { stdout } = await canopy(...common(join(folder, 'zero', 'eval')), '--adapter', adapter, '--json')
    const metrics = JSON.parse(stdout)
    expect(metrics.Articles['fine-tuned']).toEqual(metrics.Articles.frozen)
    expect(metrics.differences.Articles['fine-tuned - frozen'].decision_accuracy).toMatchObject({
      value: 0,
      lo: 0,
      hi: 0,
    })
    expect(metrics.evaluation.title).toBe(true)
  })

  it('warns when nodes are rendered otherwise than in training', async () => {
    const adapter = await writeRun(join(folder, 'titled'), encoder, true, true)
    const { stderr } = await canopy(...common(join(folder, 'titled', 'eval')), '--adapter', adapter, '--no-title')
    expect(stderr).toContain('trained with titles')
  })

  it('stops at sources that were trained on, and goes on when told', async () => {
    const adapter = await writeRun(join(folder, 'leak'), encoder, true, true)
    const data = emptyTrainingData()
    addTrainingQuestion(data, {
      ...{ id: 'x', benchmark: 'Articles', split: 'train', question: 'x?', answers: [], gold: [] },
      source: 'page 5',
    })
    await writeTrainingData(join(folder, 'leak'), data)
    const output = join(folder, 'leak', 'eval')
    await expect(canopy(...common(output), '--adapter', adapter)).rejects.toThrow('"page 5"')
    expect(existsSync(output)).toBe(false)
    const { stdout } = await canopy(...common(output), '--adapter', adapter, '--allow-overlap')
    expect(stdout).toContain('1 of 11 sources ("page 5")')
  })

  it('evaluates an encoder against another query encoder as fine-tuned against frozen', async () => {
    const other = join(folder, 'bert2')
    await createRandomBert(other, {
      ...{
        seed: 2,
        vocabularyFrom: [sentence('river', 1)],
        hidden: 32,
        layers: 1,
        heads: 2,
        intermediate: 64,
        maxLength: 64,
      },
    })
    const { stdout } = await canopy(...common(join(folder, 'two')), '--query-encoder', other, '--json')
    const { evaluation } = JSON.parse(stdout)
    expect(evaluation.encoders.frozen.fingerprint).toBe(evaluation.encoders.query.fingerprint)
    expect(evaluation.encoders.frozen.name).toBe('bert2')
    expect(evaluation.encoders['fine-tuned'].name).toBe('bert')
    const narrow = join(folder, 'bert3')
    await createRandomBert(narrow, {
      ...{
        seed: 2,
        vocabularyFrom: [sentence('river', 1)],
        hidden: 16,
        layers: 1,
        heads: 2,
        intermediate: 64,
        maxLength: 64,
      },
    })
    await expect(canopy(...common(join(folder, 'three')), '--query-encoder', narrow)).rejects.toThrow(
      'embeddings have 16 numbers',
    )
  })

  describe('picks a margin', () => {
    /** A run that was validated on some of the articles of a dataset of other sources. */
    async function validatedRun(name: string): Promise<{ adapter: string; other: string }> {
      const adapter = await writeRun(join(folder, name), encoder, false, false)
      const other = await writeArticles(join(folder, `${name}-data`), 'Articles', 12)
      const questions = join(other, 'questions.jsonl')
      const text = readFileSync(questions, 'utf8')
      await writeFile(questions, text.replaceAll('"source":"', `"source":"${name} `).replaceAll('"id":"q', '"id":"v'))
      const data = [{ dataset: name, folder: other, split: 'dev' }]
      await writeFile(join(folder, name, 'config.json'), JSON.stringify({ schema: 'canopy-run/1', data }))
      const held = [3, 4, 5, 6].map((i) => ({ data: 0, question: `v${i}`, item: `${name}-data item ${i}` }))
      const lines = held.map((line) => `${JSON.stringify(line)}\n`).join('')
      await writeFile(join(folder, name, 'validation.jsonl'), lines)
      return { adapter, other }
    }

    it("on the validation part of the adapter's run, and says how to use it", async () => {
      const { adapter } = await validatedRun('picked')
      const output = join(folder, 'picked', 'eval')
      const picking = [...common(output), '--adapter', adapter, '--min-recall', '0.9']
      const { stdout } = await canopy(...picking)
      const { margin } = JSON.parse(readFileSync(join(output, 'metrics.json'), 'utf8')).evaluation
      expect(margin.validation).toMatchObject({ items: 4, sources: 4 })
      expect(margin.validation.chosen.gold_recall).toBeGreaterThanOrEqual(0.9)
      expect(stdout).toMatch(
        /Margin [\d.e-]+: the smallest with a gold recall of at least 90\.0 % by the fine-tuned scores on 4 gold items of 4 sources of the validation part of .*picked/,
      )
      expect(stdout).toContain(`openEncoder(folder, { margin: ${margin.margin} })`)
      const json = JSON.parse((await canopy(...picking, '--json')).stdout)
      expect(json.evaluation.margin).toEqual(margin)
      const report = readFileSync(join(output, 'report.html'), 'utf8')
      expect(report).toContain('Recall and tokens over margins')
      expect(report).toContain('4 gold items of 4 sources')
    })

    it('on a split that is named, of the same datasets or of others', async () => {
      const { adapter, other } = await validatedRun('named')
      const output = join(folder, 'named', 'eval')
      const named = ['--min-recall', '0.9', '--validation-split', 'dev', '--no-report']
      await canopy(...common(output), '--adapter', adapter, ...named, '--validation-dataset', other)
      const { margin } = JSON.parse(readFileSync(join(output, 'metrics.json'), 'utf8')).evaluation
      expect(margin.validation).toMatchObject({ name: `the split "dev" of ${other}`, items: 12 })
      await expect(canopy(...common(output), ...named)).rejects.toThrow(
        /is the one that is evaluated.*--validation-split/,
      )
    })

    it('nowhere without validation data, saying what to name', async () => {
      const output = join(folder, 'nothing')
      const picking = [...common(output), '--min-recall', '0.9']
      await expect(canopy(...picking)).rejects.toThrow(/no validation data.*--validation-split/)
      const adapter = await writeRun(join(folder, 'no-run'), encoder, true, false)
      await expect(canopy(...picking, '--adapter', adapter)).rejects.toThrow(/no "data" in it.*--validation-split/)
      await expect(canopy(...common(output), '--min-recall', '1.5')).rejects.toThrow(
        'No margin reaches a recall of 1.5',
      )
      expect(existsSync(output)).toBe(false)
    })

    it.each([
      ['no JSON', 'config.json', '{', /config\.json: There is no "data" in it.*--validation-split/],
      ['nothing', 'config.json', 'null', /config\.json: There is no "data" in it/],
      ['data without a folder', 'config.json', '{"data":[1]}', /config\.json: There is no "data" in it/],
      [
        'a line that is none',
        'validation.jsonl',
        'null\n',
        /validation\.jsonl:1: not a valid validation instance.*\. Its/,
      ],
      [
        'an unknown dataset',
        'validation.jsonl',
        '{"data":7,"question":"v3","item":"x"}\n',
        /validation\.jsonl:1: It names dataset 7, but the run has 1/,
      ],
    ])('of no run with %s', async (name, file, text, message) => {
      const run = `broken ${name}`
      const { adapter } = await validatedRun(run)
      await writeFile(join(folder, run, file), text)
      const output = join(folder, run, 'eval')
      const picking = canopy(...common(output), '--adapter', adapter, '--min-recall', '0.9')
      await expect(picking).rejects.toThrow(InputError)
      await expect(picking).rejects.toThrow(message)
      expect(existsSync(output)).toBe(false)
    })

    it('or takes the one stated, or that of canopy.json', async () => {
      const output = join(folder, 'stated')
      const adapter = await writeRun(join(folder, 'own-margin'), encoder, false, false, 0.02)
      const of = async (...more: string[]) => {
        await canopy(...common(output), '--adapter', adapter, '--no-report', ...more)
        return JSON.parse(readFileSync(join(output, 'metrics.json'), 'utf8')).evaluation.margin
      }
      expect(await of()).toMatchObject({ margin: 0.02, origin: 'canopy.json' })
      expect(await of('--margin', '0.01')).toMatchObject({ margin: 0.01, origin: 'stated' })
    })

    it.each([
      ['both', ['--min-recall', '0.9', '--margin', '0.1'], 'give one of them'],
      ['none', ['--validation-split', 'train'], 'belong to --min-recall'],
      ['no split', ['--min-recall', '0.9', '--validation-dataset', 'x'], 'needs --validation-split'],
      ['a share of 0', ['--min-recall', '0'], 'above 0'],
      ['a negative margin', ['--margin', '-1'], '0 or more'],
    ])('is a usage error with %s', async (_, flags, message) => {
      await expect(canopy(...common(join(folder, 'usage')), ...flags)).rejects.toThrow(message)
    })
  })

  it('is a usage error without its flags, or with bad numbers', async () => {
    await expect(canopy('evaluate', '--encoder', encoder)).rejects.toThrow('--dataset')
    await expect(canopy(...common('x'), '--branching', '1')).rejects.toThrow('at least 2')
  })

  it('names what is missing', async () => {
    await expect(canopy(...common(join(folder, 'x')), '--adapter', join(folder, 'nowhere'))).rejects.toThrow('nowhere')
    await expect(canopy(...common(join(folder, 'x')), '--encoder', join(folder, 'nobody'))).rejects.toThrow('nobody')
  })
})

const minilm = minilmDir()
describe.skipIf(minilm === undefined)('with all-MiniLM-L6-v2 (skipped unless CANOPY_MINILM names it)', () => {
  it('understands questions better than others asked in their place', async () => {
    const dataset = await writeArticles(join(folder, 'minilm-articles'), 'Articles', 20)
    const { stdout } = await canopy(
      ...['evaluate', '--encoder', minilm!, '--dataset', dataset, '--split', 'dev'],
      ...['--output', join(folder, 'minilm'), '--resamples', '100', '--json', '--cache', join(folder, 'cache')],
    )
    const { Articles: found } = JSON.parse(stdout)
    expect(found.frozen.pair_accuracy.value).toBeGreaterThan(0.6)
  })
})

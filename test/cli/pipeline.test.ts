import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import { canopy, type Finished } from '../support/cli.ts'
import { lines } from '../support/temporary.ts'

// The built command line, each verb a process of its own, from two JSONL files to a refined passage.

let folder: string
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-pipeline-'))
  writeFileSync(at('train-input.jsonl'), gardens('train', 24))
  writeFileSync(at('dev-input.jsonl'), gardens('dev', 10))
  const bert = { hidden: 16, layers: 1, heads: 2, maxLength: 48 }
  const vocabularyFrom = [gardens('train', 24), 'What stands in the garden']
  await createRandomBert(at('bert'), { seed: 1, vocabularyFrom, ...bert })
  await createRandomBert(at('other-bert'), { seed: 2, vocabularyFrom, ...bert })
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const at = (...names: string[]): string => join(folder, ...names)

/** Items and questions as a user writes them: one sentence of each answers the question. */
function gardens(split: string, count: number): string {
  const things = ['pear tree', 'stone bench', 'copper pump', 'glass house', 'bee hive', 'sun dial', 'rope swing']
  const places = ['north', 'south', 'east', 'west', 'upper', 'lower']
  const records: unknown[] = []
  for (let i = 0; i < count; i++) {
    const owner = `${split} ${i}`
    const sentences = Array.from(
      { length: 3 + (i % 4) },
      (_, s) => `The ${places[(i + s) % 6]} garden of ${owner} has a ${things[(i + 2 * s) % 7]}.`,
    )
    const gold = (5 * i) % sentences.length
    records.push({ id: `${split}-i${i}`, title: `Gardens of ${owner}`, text: sentences.join(' ') })
    records.push({
      id: `${split}-q${i}`,
      question: `What stands in the ${places[(i + gold) % 6]} garden of ${owner}?`,
      source: `${split} page ${Math.floor(i / 2)}`,
      answers: [things[(i + 2 * gold) % 7]],
      gold: [{ item: `${split}-i${i}`, quotes: [sentences[gold]] }],
    })
  }
  return lines(...records)
}

/** Runs a verb that has to succeed. */
async function run(args: string[], options: { input?: string } = {}): Promise<Finished> {
  const finished = await canopy(args, options).finished
  expect(finished, args.join(' ')).toMatchObject({ code: 0 })
  return finished
}

/** Runs a verb with --json: one document on standard output and nothing else. */
async function runJson<T>(args: string[], options: { input?: string } = {}): Promise<T> {
  const { stdout } = await run([...args, '--json'], options)
  return JSON.parse(stdout) as T
}

/** The decisions of an evaluation, without their scores: those of two graphs differ in their last digits. */
const decisionsOf = (output: string): unknown[] =>
  readFileSync(at(output, 'decisions.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line, (key, value: unknown) => (key === 'scores' ? undefined : value)))

const evaluate = (split: string, output: string, ...more: string[]): string[] => [
  ...['evaluate', '--dataset', at('gardens'), '--split', split, '--output', at(output)],
  ...['--resamples', '50', '--threads', '1', ...more],
]
const adapted = (): string[] => ['--encoder', at('bert'), '--adapter', at('run', 'adapter')]

describe('from JSONL files to a refined passage', () => {
  it('imports and checks', async () => {
    for (const split of ['train', 'dev']) {
      const input = at(`${split}-input.jsonl`)
      await run(['import', 'jsonl', '--input', input, '--split', split, '--output', at('gardens')])
    }
    expect((await run(['check', at('gardens'), '--encoder', at('bert')])).stdout).toMatch(/no fault/)
    const report = await runJson<{ splits: Record<string, { questions: number }> }>(['check', at('gardens')])
    expect(report.splits).toMatchObject({ train: { questions: 24 }, dev: { questions: 10 } })
  })

  it('builds preferences', async () => {
    const args = ['preferences', '--dataset', at('gardens'), '--split', 'train', '--output', at('train.jsonl')]
    const summary = await runJson<{ instances: number; pairs: { total: number } }>(args)
    expect(summary).toMatchObject({ instances: 24 })
    expect(summary.pairs.total).toBeGreaterThan(48)
    expect(readFileSync(at('train.jsonl'), 'utf8')).toMatch(/^\{"schema":"canopy-preferences\/1"/)
  })

  it('trains', async () => {
    const args = ['train', '--encoder', at('bert'), '--dataset', at('gardens'), '--preferences', at('train.jsonl')]
    const settings = ['--steps', '6', '--batch-size', '4', '--rank', '2', '--learning-rate', '0.02', '--threads', '1']
    const result = await runJson<{ adapter: string; steps: number }>([
      ...args,
      ...settings,
      ...['--seed', '3', '--output', at('run')],
    ])
    expect(result.steps).toBe(6)
    expect(existsSync(join(at('run'), 'adapter', 'adapter_model.safetensors'))).toBe(true)
  })

  it('evaluates', async () => {
    const { stdout } = await run(evaluate('dev', 'run/eval', ...adapted()))
    for (const name of ['frozen', 'fine-tuned', 'always-left', 'keep-root', 'constant', 'permuted'])
      expect(stdout).toContain(name)
    expect(readdirSync(at('run', 'eval')).sort()).toEqual([
      'decisions.csv',
      'decisions.jsonl',
      'margins.csv',
      'metrics.json',
      'pruning.csv',
      'report.html',
      'scores.jsonl',
      'selection.csv',
      'summary.md',
    ])
    const metrics = await runJson<Record<string, unknown>>(evaluate('dev', 'again', ...adapted()))
    expect(metrics).toEqual(expect.objectContaining(JSON.parse(readFileSync(at('again', 'metrics.json'), 'utf8'))))
  })

  it('exports, with the table of the evaluation in the card, checked on the held-out items', async () => {
    const check = await runJson<{ minCosine: number; refinement: { instances: number; sameKept: number } }>([
      ...['export', ...adapted(), '--output', at('export'), '--threads', '1'],
    ])
    expect(check.minCosine).toBeGreaterThan(0.99999)
    expect(check.refinement.instances).toBeGreaterThan(0)
    expect(check.refinement.sameKept).toBe(1)
    expect(readFileSync(at('export', 'README.md'), 'utf8')).toContain(
      readFileSync(at('run', 'eval', 'summary.md'), 'utf8').trim(),
    )
    await run(['export', ...adapted(), '--output', at('bundled'), '--bundle', '--check-items', '0', '--threads', '1'])
  })

  it('takes the same decisions with the exported folder as with the adapter', async () => {
    await run(evaluate('dev', 'exported-eval', '--encoder', at('export'), '--query-encoder', at('bert')))
    expect(decisionsOf('exported-eval')).toEqual(decisionsOf('run/eval'))
    const metricsOf = (name: string): Record<string, unknown> =>
      JSON.parse(readFileSync(at(name, 'metrics.json'), 'utf8')).gardens
    expect(metricsOf('exported-eval')).toEqual(metricsOf('run/eval'))
  })

  it('knows what an exported encoder was trained on, wherever it is moved', async () => {
    cpSync(at('bundled'), at('elsewhere', 'encoder'), { recursive: true })
    const args = ['--encoder', at('elsewhere', 'encoder')]
    const refused = await canopy(evaluate('train', 'leak', ...args)).finished
    expect(refused).toMatchObject({ code: 1, stdout: '' })
    expect(refused.stderr).toMatch(/trained on.*"train page \d+".*--allow-overlap/s)
    expect(existsSync(at('leak'))).toBe(false)
    expect((await run(evaluate('train', 'leak', ...args, '--allow-overlap'))).stdout).toMatch(
      /Overlap with the training data: 24 of 24 questions/,
    )
    expect((await run(evaluate('dev', 'clean', ...args))).stdout).toMatch(/0 of 10 questions/)
  })

  const text = 'The east garden of Ann has a bee hive. The west garden has a sun dial. Nobody swims there.'
  const refine = (input: string): string[] => [
    ...['refine', '--encoder', at('bundled'), '--query', 'What stands in the west garden?', '--threads', '1'],
    ...['--input', input],
  ]
  interface Refined {
    id?: string
    title?: string
    leaves: number
    kept: { start: number; end: number; text: string; score: number }[]
  }

  it('refines a text file, an item, a list, lines and standard input', async () => {
    writeFileSync(at('passage.txt'), text)
    const { stdout } = await run(refine(at('passage.txt')))
    expect(stdout).toMatch(/^\[0, 3\) {2}-?\d\.\d{4} {2}(kept|replaced)$/m)
    expect(stdout.split('\n').filter((line) => /^[+-] /.test(line))).toHaveLength(3)

    const [plain] = await runJson<Refined[]>(refine(at('passage.txt')))
    expect(plain?.leaves).toBe(3)
    for (const { start, end, text: kept } of plain!.kept) expect(kept).toBe(text.slice(start, end))
    expect(await runJson(refine('-'), { input: text })).toEqual([plain])

    const item = { id: 'a', title: 'Gardens', text }
    writeFileSync(at('item.json'), JSON.stringify(item, null, 2))
    const [titled] = await runJson<Refined[]>(refine(at('item.json')))
    expect(titled).toMatchObject({ id: 'a', title: 'Gardens', leaves: 3 })
    expect(titled!.kept.every(({ score }) => plain!.kept.every((other) => other.score !== score))).toBe(true)
    expect(await runJson(refine('-'), { input: JSON.stringify(item) })).toEqual([titled])
    // as jq writes an item without a title
    expect(await runJson(refine('-'), { input: JSON.stringify({ title: null, text }, null, 2) })).toEqual([plain])
    expect(await runJson(refine('-'), { input: JSON.stringify([item, text]) })).toEqual([titled, plain])
    writeFileSync(at('items.jsonl'), lines(item, { text }))
    expect(await runJson(refine(at('items.jsonl')))).toEqual([titled, plain])
    expect(await runJson(refine('-'), { input: `\uFEFF${lines(item, { text })}` })).toEqual([titled, plain])
    // a text that only looks like JSON
    const sic = await run([...refine('-'), '--json'], { input: `{sic} ${text}` })
    expect(JSON.parse(sic.stdout)).toMatchObject([{ leaves: 3 }])
    expect(sic.stderr).toMatch(/warning: standard input begins like JSON but is not/)
  })

  it('refines with the adapter as with the export', async () => {
    const args = ['refine', ...adapted(), '--query', 'What stands in the west garden?', '--threads', '1']
    const [trained] = await runJson<Refined[]>([...args, '--input', at('passage.txt')])
    const [exported] = await runJson<Refined[]>(refine(at('passage.txt')))
    expect(trained?.kept.map(({ text }) => text)).toEqual(exported?.kept.map(({ text }) => text))
    expect(trained?.kept[0]?.score).toBeCloseTo(exported?.kept[0]?.score as number, 4)
  })

  it('warns of a question that is cut, and refines all the same', async () => {
    const question = 'What stands in the west garden, '.repeat(40)
    const args = ['refine', '--encoder', at('bundled'), '--query', question, '--input', at('passage.txt')]
    expect((await run([...args, '--threads', '1'])).stderr).toMatch(
      /warning: the question is longer than the query encoder takes; what follows 48 tokens is cut/,
    )
  })

  it('refuses another query encoder, naming both', async () => {
    for (const folder of ['export', 'bundled']) {
      const args = ['refine', '--encoder', at(folder), '--query', 'What?', '--input', at('passage.txt')]
      const { code, stdout, stderr } = await canopy([...args, '--query-encoder', at('other-bert')]).finished
      expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
      expect(stderr).toMatch(
        /canopy\.json: .*query encoder bert .*other-bert.*--query-encoder, in a program "queryEncoder"\)\.\n$/,
      )
      expect(stderr).not.toMatch(/\n\s+at /)
    }
    const alone = ['refine', '--encoder', at('export'), '--query', 'What?', '--input', at('passage.txt')]
    expect((await canopy(alone).finished).stderr).toMatch(/frozen query encoder bert.*--query-encoder/)
  })
})

describe('the command line', () => {
  const verbs = ['import', 'check', 'preferences', 'train', 'evaluate', 'export', 'refine', 'reproduce', 'quickstart']

  it.each(verbs)('canopy %s --help shows flags and an example', async (verb) => {
    const { stdout, stderr } = await run([verb, '--help'])
    expect(stderr).toBe('')
    expect(stdout).toMatch(new RegExp(`^Usage: canopy ${verb} `))
    expect(stdout).toMatch(new RegExp(`Examples?:\\n {2}\\$ canopy ${verb}`))
  })

  it('lists the verbs, and its version', async () => {
    const { stdout } = await run(['--help'])
    for (const verb of verbs) expect(stdout).toMatch(new RegExp(`^ {2}${verb} `, 'm'))
    expect((await run(['--version'])).stdout).toMatch(/^\d+\.\d+\.\d+\n$/)
    expect((await run(['help', 'refine'])).stdout).toMatch(/^Usage: canopy refine /)
  })

  it('is used wrongly without a verb, with an unknown one, with unknown, missing or bad flags: status 2', async () => {
    const none = await canopy([]).finished
    expect(none.code).toBe(2)
    expect(none.stdout + none.stderr).toMatch(/^Usage: canopy /)
    const refine = ['refine', '--encoder', 'x', '--input', 'x']
    for (const [args, message] of [
      [['refin'], /unknown command 'refin'.*Did you mean refine/s],
      [['constructor'], /unknown command 'constructor'/],
      [['__proto__'], /unknown command '__proto__'/],
      [[...refine, '--query', 'x', '--colour'], /unknown option '--colour'/],
      [refine, /required option '--query <text>'/],
      [[...refine, '--query', 'x', '--threads', '0'], /--threads.*at least 1/],
      [['export', '--encoder', 'x', '--output', 'y', '--dtype', 'fp8'], /--dtype.*fp8/],
      [['import', 'nq', '--input', 'x', '--output', 'y'], /needs --split/],
    ] as const) {
      const { code, stdout, stderr } = await canopy([...args]).finished
      expect({ code, stdout }, args.join(' ')).toEqual({ code: 2, stdout: '' })
      expect(stderr).toMatch(message)
      expect(stderr).not.toMatch(/\n\s+at /)
    }
  })
})

import { cpSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeAll, describe, expect, it } from 'vitest'
import { bestControl, type QuickstartMetrics, quickstartTable } from '../../src/cli/quickstart-table.ts'
import { createRandomBert } from '../../src/encoder/index.ts'
import { canopy, cli, type Finished } from '../support/cli.ts'
import { temporaryFolder } from '../support/temporary.ts'

const root = resolve(import.meta.dirname, '../..')

/** A BERT that trains on the sample in seconds. */
async function smallBert(): Promise<string> {
  const folder = join(temporaryFolder(), 'bert')
  const vocabularyFrom = ['Who keeps the light? Mara keeps it, and the gulls cry.']
  await createRandomBert(folder, { seed: 1, vocabularyFrom, hidden: 16, layers: 1, heads: 2, maxLength: 48 })
  return folder
}

describe('canopy quickstart', () => {
  it('runs every verb, ends with one table and says where everything is', async () => {
    const output = join(temporaryFolder(), 'quick start')
    const { code, stdout, stderr } = await canopy(['quickstart', '--encoder', await smallBert(), '--output', output])
      .finished
    expect(code, stderr).toBe(0)
    const commands = [...stdout.matchAll(/^\$ canopy (\w+) /gm)].map(([, verb]) => verb)
    expect(commands).toEqual(['preferences', 'train', 'evaluate', 'report', 'export', 'refine'])

    const table = stdout.slice(stdout.indexOf('What fine-tuning brought'))
    for (const name of ['frozen', 'permuted', 'always-left', 'keep-root', 'constant'])
      expect(table).toMatch(
        new RegExp(`^${name} +[\\d.]+ \\[[\\d.]+, [\\d.]+\\] +[+-]?[\\d.]+ \\[.*\\] +[\\d.]+ +[\\d.]+$`, 'm'),
      )
    expect(table).toMatch(/^fine-tuned +[\d.]+ \[[\d.]+, [\d.]+\] +– +[\d.]+ +[\d.]+$/m)
    expect(table).toMatch(/^Fine-tuned against the frozen encoder: [+-]?\d/m)
    expect(table).toMatch(/^Fine-tuned against (permuted|always-left|keep-root|constant), the best control: [+-]?\d/m)

    expect(table).toMatch(/^Fine-tuned minus frozen: gold recall .* points \(.+\), tokens kept .* points \(.+\)\.$/m)

    // the exported card holds the evaluation, and the example is a text that a small encoder reads in full
    const summary = readFileSync(join(output, 'run', 'eval', 'summary.md'), 'utf8')
    expect(readFileSync(join(output, 'export', 'README.md'), 'utf8')).toContain(summary.trim())
    const { text } = JSON.parse(readFileSync(join(output, 'example.json'), 'utf8')) as { text: string }
    expect(text.length).toBeLessThanOrEqual(900)

    const link = /^The report +(file:\/\/\/\S+)$/m.exec(table)?.[1]
    expect(readFileSync(fileURLToPath(link!), 'utf8')).toMatch(/^<!doctype html>/i)
    expect(existsSync(join(output, 'export', 'onnx', 'model.onnx'))).toBe(true)
    expect(table).toMatch(/^A program +node .*examples\/refine\.mjs '.*quick start\/export'$/m)
    expect(stdout).not.toMatch(/random/)
  })

  it('prints JSON with the metrics and where everything is, the rest on standard error', async () => {
    const output = join(temporaryFolder(), 'quick')
    const encoder = await smallBert()
    const { stdout, stderr } = await canopy(['quickstart', '--encoder', encoder, '--output', output, '--json']).finished
    expect(JSON.parse(stdout)).toMatchObject({
      ...{ output, encoder, adapter: join(output, 'run', 'adapter'), export: join(output, 'export') },
      ...{ report: join(output, 'report.html'), metrics: { sample: { frozen: {}, 'fine-tuned': {} } } },
    })
    expect(stderr).toMatch(/What fine-tuning brought/)
  })

  it('leaves a folder alone that it did not make', async () => {
    const output = temporaryFolder()
    writeFileSync(join(output, 'thesis.txt'), 'years of work')
    const { code, stderr } = await canopy(['quickstart', '--encoder', await smallBert(), '--output', output]).finished
    expect(code).toBe(1)
    expect(stderr).toMatch(/was not made by the quickstart\. Choose another --output/)
    expect(readFileSync(join(output, 'thesis.txt'), 'utf8')).toBe('years of work')
  })

  it('keeps the older quickstart when it cannot begin', async () => {
    const output = temporaryFolder()
    for (const name of ['quickstart.txt', 'report.html']) writeFileSync(join(output, name), 'older')
    const encoder = join(output, 'no-such-encoder')
    const missing = await canopy(['quickstart', '--encoder', encoder, '--output', output]).finished
    expect(missing).toMatchObject({ code: 1, stdout: '' })
    expect(missing.stderr).toMatch(/no-such-encoder/)
    const seed = await canopy(['quickstart', '--encoder', encoder, '--output', output, '--seed', 'abc']).finished
    expect(seed).toMatchObject({ code: 2, stdout: '' })
    expect(readFileSync(join(output, 'report.html'), 'utf8')).toBe('older')
  })

  it.each([
    ['a file', 'taken.txt', 1, /taken\.txt: This exists and was not made by the quickstart/],
    ['a path below a file', 'taken.txt/quick', 1, /taken\.txt\/quick.*a part of the path is a file/],
    ['nothing', '', 2, /--output needs the name of a folder/],
  ])('refuses %s as --output in a sentence', async (_, name, code, sentence) => {
    const folder = temporaryFolder()
    writeFileSync(join(folder, 'taken.txt'), 'mine')
    const output = name === '' ? '' : join(folder, name)
    const finished = await canopy(['quickstart', '--encoder', await smallBert(), '--output', output]).finished
    expect(finished).toMatchObject({ code, stdout: '' })
    expect(finished.stderr).toMatch(sentence)
    expect(finished.stderr).not.toMatch(/should not have/)
    expect(readFileSync(join(folder, 'taken.txt'), 'utf8')).toBe('mine')
  })

  describe('in an incomplete installation', () => {
    let installed: Record<string, string>
    beforeAll(() => {
      installed = { datasets: join(root, 'datasets'), configs: join(root, 'configs'), examples: join(root, 'examples') }
    })

    /** Runs the quickstart of a copy of the package that has only these folders beside the program. */
    async function runWith(folders: Record<string, string>): Promise<Finished & { output: string }> {
      const copy = temporaryFolder()
      cpSync(dirname(dirname(cli)), join(copy, 'dist'), { recursive: true })
      cpSync(join(root, 'package.json'), join(copy, 'package.json'))
      for (const [name, folder] of Object.entries({ ...folders, node_modules: join(root, 'node_modules') }))
        symlinkSync(folder, join(copy, name))
      const output = join(copy, 'quick')
      mkdirSync(join(copy, 'empty'))
      const shell = `cd ${join(copy, 'empty')} && exec "$1" ${join(copy, 'dist', 'cli', 'main.js')} "$3" "$4" "$5"`
      return { ...(await canopy(['quickstart', '--output', output], { shell }).finished), output }
    }

    it('says that the encoder is missing and how to go on, and begins nothing', async () => {
      const { code, stdout, stderr, output } = await runWith(installed)
      expect({ code, stdout }).toEqual({ code: 1, stdout: '' })
      expect(stderr).toMatch(/models\/canopy-mini.*installation is incomplete.*Install it again.*--encoder <folder>/)
      expect(existsSync(output)).toBe(false)
    })

    it('says that the sample data is missing', async () => {
      const { datasets: _, ...rest } = installed
      const { code, stderr } = await runWith(rest)
      expect(code).toBe(1)
      expect(stderr).toMatch(/datasets\/sample.*installation is incomplete/)
    })
  })
})

describe('the table of the quickstart', () => {
  const figure = (value: number, lo: number | null = value - 0.01, hi: number | null = value + 0.01) => ({
    ...{ value, lo, hi, n: 200 },
  })
  const row = (accuracy: number) => ({
    ...{ decision_accuracy: figure(accuracy), retained_tokens: figure(0.3), gold_recall: figure(0.9) },
  })
  const metrics = (
    over: number,
    lo: number | null = over - 0.05,
    hi: number | null = over + 0.05,
  ): QuickstartMetrics => ({
    pooled: {
      frozen: row(0.4),
      'fine-tuned': row(0.6),
      permuted: row(0.3),
      'always-left': row(0.5),
      constant: row(0.1),
    },
    differences: {
      pooled: {
        'fine-tuned - frozen': { decision_accuracy: figure(0.2) },
        'fine-tuned - always-left': { decision_accuracy: figure(over, lo, hi) },
      },
    },
  })

  it('finds the best control among those that were measured, frozen and fine-tuned not among them', () => {
    expect(bestControl(metrics(0.1))).toBe('always-left')
    expect(bestControl({ ...metrics(0.1), pooled: { frozen: row(0.4), 'fine-tuned': row(0.6) } })).toBeUndefined()
  })

  it('gives a row to each policy that was measured', () => {
    const lines = quickstartTable(metrics(0.1)).split('\n')
    expect(lines[2]).toBe('frozen       40.0 [39.0, 41.0]  +20.0 [+19.0, +21.0]    30.0         90.0')
    expect(lines.slice(2, 7).map((line) => line.split(' ')[0])).toEqual(Object.keys(metrics(0).pooled))
  })

  it('claims a difference only where its interval lies above zero', () => {
    expect(quickstartTable(metrics(0.1))).toContain(
      'always-left, the best control: +10.0 [+5.0, +15.0] points; the paired interval lies above 0.',
    )
    expect(quickstartTable(metrics(0.04))).toContain(
      'always-left, the best control: +4.0 [-1.0, +9.0] points; the paired interval reaches 0, so that nothing is shown.',
    )
  })

  it('says so where fine-tuning is worse, changes nothing, or has no interval', () => {
    const against = (...interval: Parameters<typeof metrics>): string =>
      quickstartTable(metrics(...interval))
        .split('\n')
        .at(-2)!
    expect(against(-0.1)).toMatch(/-10\.0 \[-15\.0, -5\.0\] points; .* lies below 0, so that fine-tuning is worse\.$/)
    expect(against(0, 0, 0)).toMatch(/0\.0 \[0\.0, 0\.0\] points; both decide alike on every subject/)
    expect(against(0.1, null, null)).toMatch(/\+10\.0 points; there are too few subjects for an interval\.$/)
  })

  const price = (recall: (number | null)[], kept: (number | null)[]): string => {
    const found = metrics(0.1)
    const difference = ([value, lo, hi]: (number | null)[]) => ({ ...{ value: value!, lo: lo!, hi: hi!, n: 200 } })
    found.differences.pooled['fine-tuned - frozen'] = {
      ...found.differences.pooled['fine-tuned - frozen'],
      ...{ gold_recall: difference(recall), retained_tokens: difference(kept) },
    }
    return quickstartTable(found).split('\n').at(-1)!
  }

  it('closes with what fine-tuning costs in gold recall and saves in tokens', () => {
    expect(price([-0.083, -0.138, -0.026], [-0.2, -0.25, -0.15])).toBe(
      'Fine-tuned minus frozen: gold recall -8.3 [-13.8, -2.6] points (its cost: evidence is lost that the frozen encoder keeps), tokens kept -20.0 [-25.0, -15.0] points (what it saves a reader).',
    )
  })

  it('says the reverse where fine-tuning keeps more of either', () => {
    const sentence = price([0.05, 0.01, 0.09], [0.1, 0.05, 0.15])
    expect(sentence).toContain('gold recall +5.0 [+1.0, +9.0] points (more of the evidence is kept)')
    expect(sentence).toContain('tokens kept +10.0 [+5.0, +15.0] points (its cost: a reader gets more to read)')
  })

  it('shows neither cost nor saving where an interval reaches zero, is missing, or nothing changed', () => {
    const reaches = price([-0.05, -0.1, 0.01], [-0.05, -0.1, 0])
    expect(reaches.match(/the paired interval reaches 0, so that nothing is shown/g)).toHaveLength(2)
    expect(price([-0.05, null, null], [-0.05, null, null])).toBe(
      'Fine-tuned minus frozen: gold recall -5.0 points (too few subjects for an interval), tokens kept -5.0 points (too few subjects for an interval).',
    )
    expect(price([0, 0, 0], [0, 0, 0])).toBe(
      'Fine-tuned minus frozen: gold recall 0.0 [0.0, 0.0] points (both keep the same evidence), tokens kept 0.0 [0.0, 0.0] points (both keep as many).',
    )
  })
})

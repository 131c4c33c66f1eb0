import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import { sentence, writeArticles } from '../eval/articles.ts'
import { canopy, type Finished } from '../support/cli.ts'
import { snapshot } from '../support/temporary.ts'

// Evaluations of scores from elsewhere, and their comparison, through the built command line.

const folder = mkdtempSync(join(tmpdir(), 'canopy-compare-cli-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
const at = (name: string): string => join(folder, name)
const run = (...args: string[]): Promise<Finished> => canopy(args).finished

/** Lines of scores for the articles: right at every decision for the first `right` questions, the root kept for the rest. */
function write(name: string, right: number): string {
  const lines = readFileSync(join(at('bert-eval'), 'scores.jsonl'), 'utf8')
    .trimEnd()
    .split('\n')
  const file = at(name)
  writeFileSync(
    file,
    lines
      .map((text) => {
        const { question, item, nodes, gold } = JSON.parse(text)
        const holds = ([from, to]: [number, number]): boolean => gold.some((leaf: number) => leaf >= from && leaf < to)
        const scores = nodes.map((node: [number, number]) => {
          const depth = node[0] - node[1]
          if (Number(question.slice(1)) >= right) return -depth
          return holds(node) ? depth : depth - 100
        })
        return `${JSON.stringify({ question, item, nodes, scores })}\n`
      })
      .join(''),
  )
  return file
}

describe('canopy evaluate --scores and canopy compare', () => {
  beforeAll(async () => {
    await createRandomBert(at('bert'), {
      ...{ seed: 1, vocabularyFrom: [sentence('river', 1)], hidden: 16, layers: 1, heads: 2 },
      ...{ intermediate: 32, maxLength: 64 },
    })
    await writeArticles(at('articles'), 'Articles', 12)
    const data = ['--dataset', at('articles'), '--split', 'dev', '--resamples', '200']
    const bert = await run('evaluate', '--encoder', at('bert'), ...data, '--output', at('bert-eval'), '--threads', '1')
    expect(bert.code, bert.stderr).toBe(0)
    for (const [name, right] of [
      ['good', 11],
      ['poor', 2],
    ] as const) {
      const scores = ['--scores', write(`${name}.jsonl`, right), '--name', name]
      const done = await run('evaluate', ...scores, '--encoder', at('bert'), ...data, '--output', at(name))
      expect(done.code, done.stderr).toBe(0)
      expect(done.stdout).toContain('counted by the tokenizer of bert')
      expect(done.stdout).toContain('gold-span')
      expect(done.stdout).not.toContain('Overlap')
    }
  })

  it('tell the better one, write the comparison and keep its bytes', async () => {
    const args = ['compare', at('poor'), at('good'), '--resamples', '300', '--output', at('comparison')]
    const first = await run(...args)
    expect(first.code, first.stderr).toBe(0)
    expect(first.stdout).toMatch(/Articles: B is better on decision accuracy by \d+\.\d points \[/)
    const before = await snapshot(at('comparison'))
    expect(Object.keys(before).map((path) => path.split('/').at(-1))).toEqual([
      ...['comparison.csv', 'comparison.json', 'comparison.md'],
    ])
    expect((await run(...args)).code).toBe(0)
    expect(await snapshot(at('comparison'))).toEqual(before)
  })

  it('exit with 3 when a requirement is not met, and with 0 when it is', async () => {
    const compare = ['compare', at('poor'), at('good'), '--resamples', '300', '--require']
    const met = await run(...compare, 'decision_accuracy > 0', 'gold_f1@* >= 1')
    expect(met.code, met.stdout + met.stderr).toBe(0)
    expect(met.stdout).toContain('met: decision_accuracy > 0 (pooled: ')
    const unmet = await run(...compare, 'decision_accuracy >= 99', 'gold_f1 >= 0')
    expect(unmet.code).toBe(3)
    expect(unmet.stdout).toContain('UNMET: decision_accuracy >= 99')
    const json = await run(...compare, 'decision_accuracy >= 99', '--json')
    expect(json.code).toBe(3)
    expect(JSON.parse(json.stdout).requirements).toMatchObject([{ benchmark: 'pooled', met: false }])
  })

  it('find no difference of a run to itself, and the controls of it', async () => {
    const same = await run('compare', at('good'), at('good'), '--resamples', '100')
    expect(same.stdout).toContain('Articles: There is no difference at all')
    const left = await run(
      ...[
        'compare',
        at('good'),
        at('good'),
        '--encoder-a',
        'always-left',
        '--require',
        'decision_accuracy.value@* >= 8',
      ],
    )
    expect(left.code, left.stdout).toBe(0)
    expect(left.stdout).toContain('A: always-left (')
  })

  it('say what was used wrongly with status 2, what is missing with status 1', async () => {
    const common = ['--dataset', at('articles'), '--split', 'dev', '--output', at('x')]
    for (const [args, code, text] of [
      [['compare', at('good'), at('poor'), '--require', 'accuracy'], 2, 'is no requirement'],
      [['compare', at('good'), at('poor'), '--encoder-a', 'best'], 2, 'always-left'],
      [['compare', at('good')], 2, "missing required argument 'B'"],
      [['compare', at('good'), at('nowhere')], 1, 'nowhere'],
      [['evaluate', ...common], 2, '--scores'],
      [['evaluate', '--encoder', at('bert'), '--name', 'x', ...common], 2, 'belong to --scores'],
      [['evaluate', '--scores', at('good.jsonl'), '--adapter', 'a', ...common], 2, '--adapter is of no use'],
      [['evaluate', '--scores', at('nowhere.jsonl'), ...common], 1, 'nowhere.jsonl'],
    ] as const) {
      const done = await run(...args)
      expect([done.code, done.stderr], args.join(' ')).toEqual([code, expect.stringContaining(text)])
      expect(done.stderr).not.toContain('    at ')
    }
  })

  it('have an example in their help', async () => {
    expect((await run('compare', '--help')).stdout).toContain('$ canopy compare')
    expect((await run('evaluate', '--help')).stdout).toContain('$ canopy evaluate --scores')
  })
})

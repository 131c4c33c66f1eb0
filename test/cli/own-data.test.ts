import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import { canopy, type Finished } from '../support/cli.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

// A user's own long documents, through the built command line: cut, checked, divided, and turned into pairs.

const fact = (document: number, n: number): string =>
  `In chapter ${n % 12} of book ${document} the keeper number ${n} finds a lamp and writes it down.`

/** About 5 000 tokens, in sections. */
function book(document: number): object {
  const facts = Array.from(
    { length: 290 },
    (_, n) => (n % 25 === 0 ? `\n\n## Section ${n}\n\n` : ' ') + fact(document, n),
  )
  return { id: `book ${document}`, title: `Book ${document}`, text: facts.join('').trim() }
}

const questions = (document: number): object[] =>
  [3, 120, 289].map((n) => ({
    ...{ id: `${document}-${n}`, question: `What does keeper ${n} find?`, answers: ['a lamp'] },
    gold: [{ item: `book ${document}`, quotes: [`${fact(document, n)}`] }],
    retrieved: [`book ${document}`],
  }))

async function run(...args: string[]): Promise<Finished> {
  const finished = await canopy(args).finished
  expect(finished, args.join(' ')).toMatchObject({ code: 0 })
  return finished
}

describe('long documents of a user', () => {
  it('become items without a truncated root, are divided by document, and keep all of their gold', async () => {
    const folder = temporaryFolder()
    const at = (name: string): string => join(folder, name)
    const books = Array.from({ length: 10 }, (_, document) => document)
    const content = lines(...books.map(book), ...books.flatMap(questions))
    writeFileSync(at('own.jsonl'), content)
    const bert = { hidden: 8, layers: 1, heads: 2, maxLength: 256 }
    await createRandomBert(at('bert'), { seed: 1, vocabularyFrom: [content], ...bert })

    const own = ['import', 'jsonl', '--input', at('own.jsonl'), '--split', 'all']
    await run(...own, '--output', at('whole'))
    const checkWhole = JSON.parse((await run('check', at('whole'), '--encoder', at('bert'), '--json')).stdout)
    expect(checkWhole.encoder).toMatchObject({ items: 10, truncatedRoots: 10 })
    expect(checkWhole.encoder.droppedPairs).toBeGreaterThan(0)

    const cut = ['--max-item-tokens', '256', '--encoder', at('bert'), '--output', at('cut')]
    expect((await run(...own, ...cut)).stdout).toMatch(/10 long items cut into \d+\n/)
    const check = JSON.parse((await run('check', at('cut'), '--encoder', at('bert'), '--json')).stdout)
    expect(check.items.text).toBeGreaterThan(10 * 19)
    expect(check.encoder).toMatchObject({ truncated: 0, truncatedRoots: 0, droppedPairs: 0 })
    const stored = readFileSync(join(at('cut'), 'questions.jsonl'), 'utf8')
      .trim()
      .split('\n')
    expect(stored).toHaveLength(30)
    const items = new Map(
      readFileSync(join(at('cut'), 'items.jsonl'), 'utf8')
        .trim()
        .split('\n')
        .map((line) => [JSON.parse(line).id, JSON.parse(line).text] as [string, string]),
    )
    for (const line of stored) {
      const { id, gold, source } = JSON.parse(line)
      const [document, n] = id.split('-').map(Number)
      expect(
        gold.map((g: { item: string; spans: [number, number][] }) => items.get(g.item)!.slice(...g.spans[0]!)),
      ).toEqual([fact(document, n)])
      expect(source).toBe(`book ${document}`)
    }

    const divided = await run('split', at('cut'), '--from', 'all', '--into', 'train', 'dev', '--dev', '0.2', '--json')
    expect(JSON.parse(divided.stdout).splits).toMatchObject({
      train: { questions: 24, groups: 8 },
      dev: { questions: 6, groups: 2 },
    })
    const built = await run(
      'preferences',
      '--dataset',
      at('cut'),
      '--split',
      'dev',
      '--output',
      at('dev.jsonl'),
      '--json',
    )
    expect(JSON.parse(built.stdout)).toMatchObject({ instances: 6, withoutPairs: { oneLeaf: 0, noGoldLeaf: 0 } })
  })

  it.each([
    [['jsonl', '--max-item-tokens', '256'], /needs --encoder <folder>/],
    [['jsonl', '--encoder', 'x'], /give --max-item-tokens/],
    [['nq', '--max-item-tokens', '256', '--encoder', 'x'], /cuts items of the format jsonl/],
    [['jsonl', '--max-item-tokens', '3'], /A whole number, at least 16/],
  ])('import %j is wrong usage', async ([format, ...flags], message) => {
    const finished = await canopy(['import', format!, '--input', 'x', '--split', 's', '--output', 'y', ...flags])
      .finished
    expect(finished.code).toBe(2)
    expect(finished.stderr).toMatch(message)
  })
})

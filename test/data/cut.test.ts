import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { cutAtRanges, cutItem, documentId, parentId, rootTokens } from '../../src/data/cut.ts'
import { checkDataset, importJsonl, type JsonlOptions, type JsonlSummary, openDataset } from '../../src/data/index.ts'
import {
  buildHierarchy,
  goldLeaves,
  type Item,
  type Question,
  segmentSentences,
  type TableItem,
  type TextItem,
} from '../../src/hierarchy/index.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

/** Words and marks, and two special tokens around them, as WordPiece counts them. */
const countTokens = (text: string): number => 2 + (text.match(/[\p{L}\p{N}]+|[^\s\p{L}\p{N}]/gu)?.length ?? 0)

const textItem = (text: string, title?: string): TextItem => ({
  id: 'doc',
  modality: 'text',
  ...(title !== undefined && { title }),
  text,
  sentences: segmentSentences(text),
})

/** A sentence of `words` words and its full stop. */
const sentence = (words: number, name = 'word'): string => `The ${`${name} `.repeat(words - 2)}ends.`

async function importLines(
  content: string,
  options: Partial<JsonlOptions> = {},
): Promise<{ folder: string; summary: JsonlSummary; items: Map<string, Item>; questions: Question[] }> {
  const parent = temporaryFolder()
  writeFileSync(join(parent, 'in.jsonl'), content)
  const folder = join(parent, 'data')
  const summary = await importJsonl({
    inputs: [join(parent, 'in.jsonl')],
    output: folder,
    split: 'all',
    countTokens,
    ...options,
  })
  await checkDataset(folder, (fault) => expect(fault).toBeUndefined())
  const dataset = await openDataset(folder)
  const items = new Map<string, Item>()
  for await (const { item } of dataset.items()) items.set(item.id, item)
  const questions: Question[] = []
  for await (const { question } of dataset.questions()) questions.push(question)
  await dataset.close()
  return { folder, summary, items, questions }
}

/** The visible text of the gold leaves of a question, over all its items, in order. */
function goldTexts(question: Question, items: Map<string, Item>): string[] {
  return question.gold.flatMap((entry) => {
    const item = items.get(entry.item)!
    const hierarchy = buildHierarchy(item)
    const { gold, dropped } = goldLeaves(hierarchy, entry)
    expect(dropped).toEqual([])
    return hierarchy.leaves.flatMap(([start, end], leaf) => {
      if (!gold[leaf]) return []
      return [
        item.modality === 'text' ? item.text.slice(start, end).trim() : JSON.stringify((item as TableItem).rows[start]),
      ]
    })
  })
}

describe('a text that is too long', () => {
  const paragraphs = fc.array(
    fc
      .array(fc.integer({ min: 2, max: 30 }), { minLength: 1, maxLength: 8 })
      .map((lengths) => lengths.map((n) => sentence(n)).join(' ')),
    { minLength: 1, maxLength: 8 },
  )
  const joint = fc.constantFrom(' ', '\n\n', '\n', '\r\n\r\n', '\n\n## Heading\n\n', '\n# A\n')

  it('is cut into parts that fit, and no gold leaf is lost, doubled or moved', async () => {
    await fc.assert(
      fc.asyncProperty(
        paragraphs,
        joint,
        fc.option(fc.constant('A title of six words here'), { nil: undefined }),
        fc.integer({ min: 12, max: 120 }),
        fc.array(fc.tuple(fc.nat(), fc.nat(200)), { minLength: 1, maxLength: 4 }),
        async (texts, between, title, maxItemTokens, places) => {
          const item = textItem(texts.join(between), title)
          const spans = places
            .map(([at, length]): [number, number] => [
              at % item.text.length,
              Math.min(item.text.length, (at % item.text.length) + length + 1),
            ])
            .filter(([start, end]) => item.text.slice(start, end).trim() !== '')
          fc.pre(spans.length > 0)
          const question = { id: 'q', question: '?', gold: [{ item: 'doc', spans }], retrieved: ['doc'] }
          const content = lines({ ...item, sentences: undefined }, question)
          const whole = await importLines(content)
          const cut = await importLines(content, { maxItemTokens })
          const parts = [...cut.items.values()]
          for (const part of parts) {
            const fits = rootTokens(part as TextItem, countTokens) <= maxItemTokens
            expect(fits || buildHierarchy(part).leaves.length === 1).toBe(true)
          }
          const tooLong = parts.filter((part) => rootTokens(part as TextItem, countTokens) > maxItemTokens)
          expect(cut.summary.cut!.tooLong).toBe(tooLong.length)
          const leavesOf = (items: Iterable<Item>): string[] =>
            [...items].flatMap((i) => buildHierarchy(i).leaves.map(([a, b]) => (i as TextItem).text.slice(a, b).trim()))
          expect(leavesOf(parts)).toEqual(leavesOf(whole.items.values()))
          expect(goldTexts(cut.questions[0]!, cut.items)).toEqual(goldTexts(whole.questions[0]!, whole.items))
          expect(cut.questions[0]!.retrieved).toEqual(parts.map(({ id }) => id))
          expect(cut.questions[0]!.source).toBe('doc')
        },
      ),
      { numRuns: 60 },
    )
  })

  it('of 5 000 tokens gives no truncated root', async () => {
    const text = Array.from({ length: 250 }, (_, i) => sentence(19, `w${i % 7}`)).join(' ')
    const item = textItem(text, 'A long document')
    expect(rootTokens(item, countTokens)).toBeGreaterThan(5000)
    const { parts, tooLong } = cutItem(item, 256, countTokens)
    expect(tooLong).toEqual([])
    const tokens = parts.map((part) => rootTokens(part.item, countTokens))
    expect(Math.max(...tokens)).toBeLessThanOrEqual(256)
    // of about equal length: no sliver is left at the end
    expect(Math.min(...tokens)).toBeGreaterThan(200)
    expect(parts.length).toBe(21)
  })

  it('is cut before a heading rather than at a blank line, and at a blank line rather than inside a paragraph', () => {
    const paragraph = [sentence(10), sentence(10), sentence(10)].join(' ')
    const cut = (text: string, limit: number): string[] =>
      cutItem(textItem(text), limit, countTokens).parts.map(({ item }) => (item as TextItem).text.slice(0, 9))
    const section = `${paragraph}\n\n## Section\n\n${paragraph}`
    expect(cut(section, 60)).toEqual(['The word ', '## Sectio'])
    // half of the tokens lie within the second paragraph of three
    expect(cut([paragraph, paragraph, paragraph].join('\n\n'), 70)).toHaveLength(2)
    const unequal = `${sentence(10)} ${sentence(10)} ${sentence(10)} ${sentence(10)}\n\n${sentence(10, 'x')} ${sentence(10)}`
    expect(cut(unequal, 50)).toEqual(['The word ', 'The x x x'])
  })

  it('never ends a part with a heading where another boundary fits', () => {
    const body = Array.from({ length: 12 }, (_, i) => `## Part ${i}\n\n${sentence(9)} ${sentence(9)} ${sentence(9)}`)
    for (let limit = 20; limit < 200; limit += 7) {
      for (const { item } of cutItem(textItem(body.join('\n\n')), limit, countTokens).parts) {
        expect((item as TextItem).text.trim().split('\n').at(-1)).not.toMatch(/^## Part \d+$/)
      }
    }
  })

  it('keeps a sentence that is longer by itself as an item of its own, and says so', async () => {
    const text = `${sentence(5)} ${sentence(50)} ${sentence(5)}`
    const { items, summary } = await importLines(
      lines({ id: 'doc', text }, { id: 'q', question: '?', gold: [{ item: 'doc', quotes: [sentence(50)] }] }),
      { maxItemTokens: 20 },
    )
    const long = [...items.keys()].find((id) => (items.get(id) as TextItem).text === sentence(50))!
    expect(items.size).toBe(3)
    expect(summary.cut).toMatchObject({
      items: 1,
      parts: 3,
      maxItemTokens: 20,
      tooLong: 1,
      places: [expect.stringMatching(new RegExp(`:1: ${long}$`))],
    })
  })

  it('is an error when its title leaves no room', () => {
    expect(() => cutItem(textItem(sentence(40), sentence(30)), 20, countTokens)).toThrow(
      /the title of item "doc" alone take 33 of 20 tokens/,
    )
  })

  it('is not cut when it fits', async () => {
    const { items, summary } = await importLines(
      lines({ id: 'a', text: 'One. Two.' }, { id: 'q', question: '?', gold: [{ item: 'a', quotes: ['Two.'] }] }),
      { maxItemTokens: 6 },
    )
    expect([...items.keys()]).toEqual(['a'])
    expect(summary.cut).toEqual({ items: 0, parts: 0, maxItemTokens: 6, tooLong: 0, places: [] })
  })

  it('of tens of thousands of sentences is cut in time that grows with its length', () => {
    const item = textItem(Array.from({ length: 40_000 }, (_, i) => `Sentence ${i} tells of otters.`).join(' '))
    const { parts } = cutItem(item, 30, countTokens)
    expect(parts.length).toBeGreaterThan(5000)
    expect(parts.map((part) => part.item.modality === 'text' && part.item.text).join(' ')).toBe(item.text)
    expect(
      cutAtRanges(
        item,
        parts.map(({ range }) => range),
      ),
    ).toEqual(parts)
  }, 20_000)

  it('needs something that counts tokens', async () => {
    await expect(importJsonl({ inputs: ['x'], output: 'y', split: 'all', maxItemTokens: 20 })).rejects.toThrow(
      /needs a tokenizer/,
    )
  })
})

describe('a table that is too long', () => {
  const table = (rows: number, title = 'Medals'): TableItem => ({
    id: 'table',
    modality: 'table',
    title,
    header: ['Year', 'Name'],
    rows: Array.from({ length: rows }, (_, i) => [String(1900 + i), `Person ${i}`]),
  })

  it('is cut between rows, title and header in every part, and its gold rows go along', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 60 }),
        fc.integer({ min: 30, max: 200 }),
        fc.array(fc.nat(), { minLength: 1, maxLength: 5 }),
        async (rows, maxItemTokens, gold) => {
          const item = table(rows)
          const question = { id: 'q', question: '?', gold: [{ item: 'table', rows: gold.map((row) => row % rows) }] }
          const content = lines(item, question)
          const whole = await importLines(content)
          const { items, questions } = await importLines(content, { maxItemTokens })
          const parts = [...items.values()] as TableItem[]
          for (const part of parts) {
            expect(rootTokens(part, countTokens)).toBeLessThanOrEqual(maxItemTokens)
            expect([part.title, part.header]).toEqual([item.title, item.header])
          }
          expect(parts.flatMap((part) => part.rows)).toEqual(item.rows)
          expect(goldTexts(questions[0]!, items)).toEqual(goldTexts(whole.questions[0]!, whole.items))
        },
      ),
      { numRuns: 40 },
    )
  })

  it('that is gold throughout gives parts that are gold throughout', async () => {
    const { questions, items } = await importLines(
      lines(table(40), { id: 'q', question: '?', gold: [{ item: 'table', whole: true }] }),
      { maxItemTokens: 80 },
    )
    expect(questions[0]!.gold).toEqual([...items.keys()].map((id) => ({ item: id, whole: true })))
  })
})

describe("chunks of the user's own", () => {
  const text = 'One is here. Two is here. Three is here. Four is here.'
  const quote = (words: string) => ({ id: 'q', question: '?', gold: [{ item: 'a', quotes: [words] }] })

  it('may overlap: evidence in the overlap belongs to both', async () => {
    const item = {
      id: 'a',
      text,
      chunks: [
        [0, 26],
        [13, 40],
        [41, 54],
      ],
    }
    const { items, questions, summary } = await importLines(lines(item, quote('Two is here.')))
    expect([...items.keys()]).toEqual(['a#0-26', 'a#13-40', 'a#41-54'])
    expect((items.get('a#13-40') as TextItem).text).toBe('Two is here. Three is here.')
    expect(questions[0]!.gold).toEqual([
      { item: 'a#0-26', spans: [[13, 25]] },
      { item: 'a#13-40', spans: [[0, 12]] },
    ])
    expect(summary.cut).toEqual({ items: 1, parts: 3, tooLong: 0, places: [] })
  })

  it('are in the unit of the offsets, and may cut sentences', async () => {
    const item = {
      id: 'a',
      text: '🦦🦦 swim here. They sleep.',
      chunks: [
        [0, 8],
        [8, 25],
      ],
    }
    const { items } = await importLines(
      lines(item, { id: 'q', question: '?', gold: [{ item: 'a', spans: [[3, 7]] }] }),
      {
        offsets: 'codepoint',
      },
    )
    expect([...items.values()].map((i) => (i as TextItem).text)).toEqual(['🦦🦦 swim ', 'here. They sleep.'])
    expect(items.get('a#10-27')).toMatchObject({
      sentences: [
        [0, 5],
        [6, 17],
      ],
    })
  })

  it('that leave evidence out lose it, counted', async () => {
    const item = { id: 'a', text, chunks: [[0, 13]] }
    const { summary, questions } = await importLines(lines(item, quote('Four is here.')))
    expect(questions[0]!.gold).toEqual([])
    expect(summary.dropped).toMatchObject([
      { what: 'annotation', reason: 'evidence that no chunk of its item holds', count: 1 },
    ])
    const half = await importLines(lines(item, quote('One is here. Two is here.')))
    expect(half.questions[0]!.gold).toEqual([{ item: 'a#0-13', spans: [[0, 12]] }])
    expect(half.summary.dropped).toMatchObject([{ count: 1 }])
  })

  it.each([
    [[[0, 99]], /a chunk of item "a": Span \[0, 99\) is not a range within the text of 54/],
    [[[5, 5]], /is no range/],
    [[[12, 13]], /is white space only/],
    [
      [
        [0, 12],
        [0, 12],
      ],
      /is there twice/,
    ],
    [[], /list of chunks of item "a"/],
    [[[0.5, 3]], /list of chunks of item "a"/],
    ['all', /list of chunks of item "a"/],
  ])('%j are a fault with file and line', async (chunks, message) => {
    const failed = importLines(lines({ id: 'a', text, chunks }, quote('Two is here.')))
    await expect(failed).rejects.toThrow(message)
    await expect(failed).rejects.toThrow(/in\.jsonl:1: /)
  })

  it('belong to texts and tables only', async () => {
    const item = { id: 'v', modality: 'video', start: 0, end: 90, chunks: [[0, 30]] }
    await expect(importLines(lines(item))).rejects.toThrow(/"chunks" belong to a text or a table/)
  })

  it('of a table are ranges of rows', () => {
    const item: TableItem = { id: 't', modality: 'table', header: ['a'], rows: [['1'], ['2'], ['3']] }
    expect(
      cutAtRanges(item, [
        [0, 2],
        [1, 3],
      ]).map((part) => (part.item as TableItem).rows),
    ).toEqual([
      [['1'], ['2']],
      [['2'], ['3']],
    ])
  })
})

describe('the parts of one document', () => {
  const document = (id: string) => ({ id, text: Array.from({ length: 12 }, (_, i) => sentence(9, `w${i}`)).join(' ') })
  const about = (id: string, item: string, part: number) => ({
    id,
    question: '?',
    gold: [{ item, quotes: [sentence(9, `w${part}`)] }],
  })

  it('give their questions one source, also when a second import cuts elsewhere', async () => {
    const { folder, questions } = await importLines(
      lines(document('a'), document('b'), about('1', 'a', 0), about('2', 'a', 11), about('3', 'b', 5)),
      { maxItemTokens: 30 },
    )
    expect(questions.map(({ source }) => source)).toEqual(['a', 'a', 'b'])
    expect(new Set(questions.flatMap(({ gold }) => gold.map(({ item }) => item))).size).toBe(3)
    const second = join(temporaryFolder(), 'second.jsonl')
    writeFileSync(second, lines(document('a'), about('4', 'a', 6)))
    await importJsonl({ inputs: [second], output: folder, split: 'more', maxItemTokens: 50, countTokens })
    const dataset = await openDataset(folder)
    for await (const { question } of dataset.questions('more')) expect(question.source).toBe('a')
    await dataset.close()
  })

  it('have ids that name it and their range', () => {
    expect(parentId('a#0-26')).toBe('a')
    expect(documentId('a#1-2#0-26')).toBe('a#1-2')
    for (const id of ['a', 'a#b', '#0-26', 'a#0-']) expect(documentId(id)).toBe(id)
  })

  it('cannot come from two documents of one id', async () => {
    const other = { id: 'a', text: sentence(60) }
    await expect(importLines(lines(document('a'), other), { maxItemTokens: 30 })).rejects.toThrow(/another content/)
    await expect(importLines(lines(document('a'), { id: 'a', text: 'Short.' }), { maxItemTokens: 30 })).rejects.toThrow(
      /was cut with another content before/,
    )
    await expect(importLines(lines({ id: 'a', text: 'Short.' }, document('a')), { maxItemTokens: 30 })).rejects.toThrow(
      /is there already, and was not cut/,
    )
  })
})

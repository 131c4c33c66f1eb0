import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { decode } from 'html-entities'
import { describe, expect, it } from 'vitest'
import {
  checkDataset,
  type ImportOptions,
  type ImportSummary,
  import2wiki,
  importHotpotqa,
  openDataset,
} from '../../src/data/index.ts'
import { leafExtents, type Question, type TextItem } from '../../src/hierarchy/index.ts'
import { sharedDir } from '../support/shared.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

interface Record_ {
  _id: string
  question: string
  answer: string
  context: [string, string[]][]
  supporting_facts: [string, number][]
}

interface Imported {
  summary: ImportSummary
  questions: Question[]
  items: Map<string, TextItem>
}

type Importer = (options: ImportOptions & { split: string }) => Promise<ImportSummary>

async function contentOf(folder: string): Promise<Omit<Imported, 'summary'>> {
  const dataset = await openDataset(folder)
  const questions: Question[] = []
  const items = new Map<string, TextItem>()
  for await (const { question } of dataset.questions()) questions.push(question)
  for await (const { item } of dataset.items()) items.set(item.id, item as TextItem)
  await dataset.close()
  await checkDataset(folder, (fault) => expect(fault).toBeUndefined())
  return { questions, items }
}

async function imported(
  content: unknown,
  importer: Importer = importHotpotqa,
  more: Pick<ImportOptions, 'onError'> = {},
): Promise<Imported> {
  const parent = temporaryFolder()
  const input = join(parent, 'in.json')
  writeFileSync(input, typeof content === 'string' ? content : JSON.stringify(content))
  const summary = await importer({ inputs: [input], output: join(parent, 'data'), split: 'dev', ...more })
  return { summary, ...(await contentOf(join(parent, 'data'))) }
}

const record = (more: Partial<Record_> = {}): Record_ => ({
  _id: 'r1',
  question: 'Who?',
  answer: 'She',
  context: [
    ['Rock &amp; Roll', ['It began.', '', ' It went on.', '  It ended. ']],
    ['Other', ['Something else.']],
  ],
  supporting_facts: [['Rock &amp; Roll', 2]],
  ...more,
})

/** The texts that a question's gold marks, by title. */
const marked = ({ questions, items }: Imported, i = 0): [string | undefined, string[]][] =>
  questions[i]!.gold.map((entry) => {
    const item = items.get(entry.item)!
    return [item.title, 'spans' in entry ? entry.spans.map(([start, end]) => item.text.slice(start, end)) : []]
  })

describe('importing the HotpotQA format', () => {
  it('makes every paragraph an item, counts sentences before empty ones are removed, decodes titles', async () => {
    const result = await imported([record()])
    expect(result.questions).toEqual([
      expect.objectContaining({ id: 'r1', benchmark: 'hotpotqa', split: 'dev', question: 'Who?', answers: ['She'] }),
    ])
    expect(marked(result)).toEqual([['Rock & Roll', ['It went on.']]])
    const [rock, other] = result.questions[0]!.retrieved!.map((id) => result.items.get(id)!)
    expect(rock!.text).toBe('It began. It went on.  It ended. ')
    expect(leafExtents(rock!).map(([s, e]) => rock!.text.slice(s, e))).toEqual([
      'It began.',
      ' It went on.',
      '  It ended. ',
    ])
    expect(other!.text).toBe('Something else.')
  })

  it('joins the sentences of 2Wiki with one blank', async () => {
    const result = await imported(
      [record({ context: [['Rock &amp; Roll', ['It began.', '', 'It went on.']]] })],
      import2wiki,
    )
    expect(result.questions[0]!.benchmark).toBe('2wiki')
    expect(result.items.get(result.questions[0]!.gold[0]!.item)!.text).toBe('It began. It went on.')
    expect(marked(result)).toEqual([['Rock & Roll', ['It went on.']]])
  })

  it('keeps paragraphs that share a title, and finds facts among them where there is one place only', async () => {
    const context: [string, string[]][] = [
      ['T', ['First.']],
      ['T', ['Second.', ' More.']],
      ['U', ['Same.']],
      ['U', ['Same.']],
    ]
    const result = await imported([
      record({
        context,
        supporting_facts: [
          ['T', 1],
          ['T', 0],
          ['U', 0],
        ],
      }),
    ])
    expect(result.questions[0]!.retrieved).toHaveLength(3)
    expect(marked(result)).toEqual([
      ['T', ['More.']],
      ['U', ['Same.']],
    ])
    expect(result.summary.dropped).toEqual([
      expect.objectContaining({ reason: 'a supporting fact that fits several paragraphs of one title', count: 1 }),
    ])
    expect(result.summary.dropped[0]!.places[0]).toMatch(/in\.json:1: the supporting fact \["T", 0\]/)
  })

  it('drops and counts facts that name an empty sentence, paragraphs without text, questions without a fact', async () => {
    const { summary, questions } = await imported([
      record({
        supporting_facts: [
          ['Rock &amp; Roll', 1],
          ['Other', 0],
        ],
      }),
      record({ _id: 'r2', supporting_facts: [] }),
      record({ _id: 'r3', context: [...record().context, ['Empty', ['', ' ']]] }),
      record({ _id: 'r3', context: [...record().context, ['Empty', ['', ' ']]] }),
    ])
    expect(questions.map(({ id }) => id)).toEqual(['r1', 'r3'])
    expect(summary.dropped.map(({ what, reason, count }) => [what, reason, count])).toEqual([
      ['annotation', 'a supporting fact that names an empty sentence', 1],
      ['question', 'without a supporting fact', 1],
      ['item', 'a paragraph without text', 2],
      ['question', 'the same question once more', 1],
    ])
  })

  it("reads the column layout of Hugging Face's copy, and one object a line", async () => {
    const { _id, context, supporting_facts: facts, ...rest } = record()
    const columns = {
      ...rest,
      id: _id,
      context: { title: context.map(([t]) => t), sentences: context.map(([, s]) => s) },
      supporting_facts: { title: facts.map(([t]) => t), sent_id: facts.map(([, i]) => i) },
    }
    const expected = await imported([record()])
    for (const content of [lines(columns), lines(record()), JSON.stringify([columns], null, 2)]) {
      const { questions, items } = await imported(content)
      expect({ questions, items }).toEqual({ questions: expected.questions, items: expected.items })
    }
  })

  it.each<[string, unknown, RegExp]>([
    [
      'a fact whose title no paragraph has',
      [record({ supporting_facts: [['Rock & Roll', 0]] })],
      /in\.json:1: .*\["Rock & Roll", 0\] of question "r1" names no sentence: no paragraph has that title/,
    ],
    [
      'a fact whose sentence is not there',
      [record({ supporting_facts: [['Other', 1]] })],
      /names no sentence: the paragraph has 1 sentences, counted from 0/,
    ],
    ['a negative index', [record({ supporting_facts: [['Other', -1]] })], /names no sentence/],
    ['no id', [{ ...record(), _id: undefined }], /in\.json:1: the record has no "_id"/],
    ['a context that is a text', [{ ...record(), context: 'text' }], /"context": expected \[\[title/],
    [
      'one id with two contents',
      [record(), record({ question: 'When?' })],
      /in\.json:1: the question "r1" has another content/,
    ],
    ['a cut file', JSON.stringify([record(), record({ _id: 'r2' })]).slice(0, -40), /in\.json:1: the file ends inside/],
    ['a cut file of lines', `${lines(record())}{"_id"`, /in\.json:2: not valid JSON.*cut off/],
    ['an empty array', [], /no question is left/],
    ['an empty file', '', /no question is left/],
  ])('stops at %s, naming the place, and writes nothing', async (_, content, message) => {
    const parent = temporaryFolder()
    writeFileSync(join(parent, 'in.json'), typeof content === 'string' ? content : JSON.stringify(content))
    const importing = importHotpotqa({ inputs: [join(parent, 'in.json')], output: join(parent, 'data'), split: 'dev' })
    await expect(importing).rejects.toThrow(message)
    expect(readdirSync(parent)).toEqual(['in.json'])
  })

  it('skips and counts faulty records when that is asked for', async () => {
    const content = JSON.stringify(
      [record({ _id: 'r0', supporting_facts: [['No', 0]] }), record(), record({ _id: 'r2' })],
      null,
      1,
    )
    const { summary, questions } = await imported(content.slice(0, -30), importHotpotqa, { onError: 'skip' })
    expect(questions.map(({ id }) => id)).toEqual(['r1'])
    expect(summary).toMatchObject({ records: 3, skipped: 2, questions: 1 })
    expect(summary.dropped[0]!.places).toHaveLength(2)
    expect(summary.dropped[0]!.places[0]).toMatch(/in\.json:2: .*names no sentence/)
  })

  it.each([
    ['HotpotQA', importHotpotqa],
    ['2Wiki', import2wiki],
  ])('marks exactly the sentences that the facts name, whatever the record holds (%s)', async (_, importer) => {
    const sentence = fc.constantFrom('', ' ', 'One.', ' Two.', '  Three. ', '😀 Four.', '\r\nFive.', 'Q&amp;A')
    const title = fc.constantFrom('A', 'B', 'A&amp;B', 'A&B', '&eacute;')
    const context = fc.array(fc.tuple(title, fc.array(sentence, { maxLength: 4 })), { minLength: 1, maxLength: 5 })
    const facts = fc.array(fc.tuple(fc.nat(), fc.nat()), { minLength: 1, maxLength: 4 })
    await fc.assert(
      fc.asyncProperty(context, facts, async (paragraphs, picks) => {
        const all = paragraphs.flatMap(([name, sentences]) => sentences.map((_, i): [string, number] => [name, i]))
        fc.pre(all.length > 0)
        const supporting = picks.map(([pick]) => all[pick % all.length]!)
        const keep = record({ _id: 'keep' })
        const result = await imported([keep, record({ context: paragraphs, supporting_facts: supporting })], importer)
        const expected = new Set<string>()
        for (const [name, index] of supporting) {
          const found = paragraphs.filter(([t, s]) => t === name && s.length > index && s[index]!.trim() !== '')
          const distinct = new Set(found.map(([, s]) => JSON.stringify(s.filter((x) => x.trim() !== ''))))
          if (distinct.size === 1) expected.add(`${decode(name)}: ${found[0]![1][index]!.trim()}`)
        }
        const got = new Set(
          result.questions.length < 2
            ? []
            : marked(result, 1).flatMap(([t, texts]) => texts.map((text) => `${t}: ${text}`)),
        )
        // paragraphs whose visible sentences agree may still differ in their blanks: such facts have two places
        for (const text of got) expect(expected).toContain(text)
        const ambiguous = result.summary.dropped.some(({ reason }) =>
          reason.startsWith('a supporting fact that fits several'),
        )
        if (!ambiguous) expect(got).toEqual(expected)
        for (const item of result.items.values()) {
          const extents = leafExtents(item)
          expect(extents.map(([s, e]) => item.text.slice(s, e)).join('')).toBe(item.text)
          expect(extents.every(([s, e]) => item.text.slice(s, e).trim() !== '')).toBe(true)
        }
      }),
      { numRuns: 30 },
    )
  })
})

const data = sharedDir() === undefined ? undefined : join(sharedDir()!, 'data', 'hotpotqa')

describe.skipIf(data === undefined)('the official records (skipped without the shared data)', () => {
  it.each([
    ['train_distractor.json', importHotpotqa, '', 200],
    ['dev_distractor.json', importHotpotqa, '', 198],
    ['sibling_2wiki_dev.json', import2wiki, ' ', 300],
  ] as const)('of %s are all imported, each fact at its sentence', async (name, importer, joint, count) => {
    const records = JSON.parse(readFileSync(join(data!, name), 'utf8')) as Record_[]
    expect(records).toHaveLength(count)
    const output = join(temporaryFolder(), 'data')
    const summary = await importer({ inputs: [join(data!, name)], output, split: 'dev' })
    const { questions, items } = await contentOf(output)
    const textOf = (sentences: string[]): string =>
      (joint === '' ? sentences : sentences.filter((s) => s.trim() !== '')).join(joint)
    const paragraphs = new Set(
      records.flatMap((r) =>
        r.context.map(([t, s]) =>
          JSON.stringify([decode(t), textOf(s), s.filter((x) => x.trim() !== '').map((x) => x.trim())]),
        ),
      ),
    )
    expect(items.size).toBe(paragraphs.size)
    expect(summary).toMatchObject({ records: count, questions: count, skipped: 0, dropped: [] })
    expect(questions.map(({ id }) => id)).toEqual(records.map(({ _id }) => _id))
    for (const [i, r] of records.entries()) {
      const expected = new Set(
        r.supporting_facts.map(([t, index]) => {
          const paragraph = r.context.find(([name, sentences]) => name === t && sentences.length > index)!
          return JSON.stringify([decode(t), textOf(paragraph[1]), paragraph[1][index]!.trim()])
        }),
      )
      const got = questions[i]!.gold.flatMap((entry) => {
        const item = items.get(entry.item)!
        return 'spans' in entry
          ? entry.spans.map(([s, e]) => JSON.stringify([item.title, item.text, item.text.slice(s, e)]))
          : []
      })
      expect(new Set(got)).toEqual(expected)
      expect(got).toHaveLength(expected.size)
      expect(questions[i]!.retrieved).toHaveLength(new Set(r.context.map(([t, s]) => JSON.stringify([t, s]))).size)
    }
    expect([...items.values()].some(({ title }) => /&(?:amp|quot|#)/.test(title ?? ''))).toBe(false)
  })
})

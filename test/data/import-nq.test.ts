import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { detokenise } from '../../src/data/importers/detokenise.ts'
import { checkDataset, type ImportOptions, type ImportSummary, importNq, openDataset } from '../../src/data/index.ts'
import type { GoldEntry, Question, TextItem } from '../../src/hierarchy/index.ts'
import { sharedDir } from '../support/shared.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

interface Imported {
  summary: ImportSummary
  questions: Question[]
  items: Map<string, TextItem>
}

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

async function imported(content: string, more: Pick<ImportOptions, 'onError'> = {}): Promise<Imported> {
  const parent = temporaryFolder()
  writeFileSync(join(parent, 'in.jsonl'), content)
  const output = join(parent, 'data')
  const summary = await importNq({ inputs: [join(parent, 'in.jsonl')], output, split: 'dev', ...more })
  return { summary, ...(await contentOf(output)) }
}

const textsOf = (items: Map<string, TextItem>, entry: GoldEntry): string[] =>
  'spans' in entry ? entry.spans.map(([start, end]) => items.get(entry.item)!.text.slice(start, end)) : []

const answered = (text: string, shorts: string[], more: object = {}): object => ({
  question: 'who',
  answers: ['Another answer', ...shorts],
  ctxs: [{ title: 'T', text: text.slice(0, 5), hasanswer: true, isgold: true }],
  nq_annotated_gold: { title: 'Q&amp;A', long_answer: text, short_answers: shorts },
  ...more,
})

describe('importing long and short answers', () => {
  it('marks every whole, case-sensitive occurrence of a short answer, and nothing else', async () => {
    const text = 'Ann met Anna. ANN, (Ann)! éAnn Ann2 Ann字 Ann-Ann; Ann'
    const { questions, items } = await imported(lines(answered(text, ['Ann'])))
    const [entry] = questions[0]!.gold
    expect('spans' in entry! && entry.spans).toEqual([0, 20, 41, 45, 50].map((start) => [start, start + 3]))
    expect(items.get(entry!.item)).toMatchObject({ title: 'Q&A', text })
    expect(questions[0]).toMatchObject({ benchmark: 'nq', source: 'Q&A', answers: ['Another answer', 'Ann'] })
    expect(questions[0]!.retrieved).toBeUndefined()
  })

  it('takes a page without a title', async () => {
    const gold = { title: '', long_answer: 'Ann sang.', short_answers: ['Ann'] }
    const { questions, items } = await imported(lines(answered('', [], { nq_annotated_gold: gold })))
    const [entry] = questions[0]!.gold
    expect(items.get(entry!.item)).toMatchObject({ text: 'Ann sang.' })
    expect(questions[0]!.source).toBe(entry!.item)
  })

  it('looks at whole characters on either side, also beyond the basic plane', async () => {
    const { questions } = await imported(lines(answered('😀Ann😀 𝒜Ann Ann𝒜', ['Ann'])))
    const [entry] = questions[0]!.gold
    expect('spans' in entry! && entry.spans).toEqual([[2, 5]])
  })

  it('drops and counts records without one, and empty short answers do not count as one', async () => {
    const { summary, questions } = await imported(
      lines(answered('Anna.', ['Ann']), answered('x', ['', ' ']), answered('x', []), answered('Ann.', ['Ann'])),
    )
    expect(questions).toHaveLength(1)
    expect(summary.dropped).toEqual([
      expect.objectContaining({ what: 'record', reason: 'no short answer stands in the long answer', count: 3 }),
    ])
    expect(summary.dropped[0]!.places[0]).toMatch(/in\.jsonl:1: \["Ann"\]/)
  })

  it('names other passages as retrieved', async () => {
    const ctxs = [
      { title: 'A', text: 'Elsewhere.', isgold: false },
      { title: 'T', text: 'Ann', isgold: true },
    ]
    const { questions, items } = await imported(lines(answered('Ann.', ['Ann'], { ctxs })))
    expect(questions[0]!.retrieved!.map((id) => items.get(id)!.text)).toEqual(['Ann.', 'Elsewhere.'])
  })

  it('agrees with a regular expression on any text', async () => {
    const part = fc.constantFrom('Ann', 'ann', 'a', ' ', '.', '1', 'é', '😀', '字', '-')
    await fc.assert(
      fc.asyncProperty(fc.array(part, { maxLength: 12 }), async (parts) => {
        const text = `Ann ${parts.join('')}`
        const { questions } = await imported(lines(answered(text, ['Ann', 'a'])))
        const expected = [...text.matchAll(/(?<![\p{L}\p{N}])(?:Ann|a)(?![\p{L}\p{N}])/gu)]
        const [entry] = questions[0]!.gold
        expect('spans' in entry! && entry.spans).toEqual(expected.map((m) => [m.index, m.index + m[0].length]))
      }),
      { numRuns: 40 },
    )
  })
})

const HTML = /^<.*>$/
const words =
  "Page <P> Ann ( born 1900 ) met `` Bob '' . </P> <P> She did n't . </P> <Ul> <Li> one , </Li> <Li> two </Li> </Ul>".split(
    ' ',
  )
const range = (start: number, end: number): object => ({ start_token: start, end_token: end })
const none = { candidate_index: -1, ...range(-1, -1) }

interface Annotated {
  long_answer: object
  short_answers: object[]
}

const simplified = (annotations: Annotated[], more: object = {}): object => ({
  example_id: 1,
  question_text: 'who',
  document_url: 'https://en.wikipedia.org//w/index.php?title=Ann_%26_Bob_(film)&amp;oldid=1',
  document_text: words.join(' '),
  annotations,
  ...more,
})

const original = (annotations: Annotated[]): object => ({
  example_id: 1,
  question_text: 'who',
  document_title: 'Ann &amp; Bob (film)',
  document_url: 'https://en.wikipedia.org/wiki/Other',
  document_tokens: words.map((token) => ({ token, html_token: HTML.test(token), start_byte: 0, end_byte: 0 })),
  annotations,
})

const multiqa = (long: [number, number], inclusive: [number, number]): object => ({
  id: 'p1',
  title: 'Ann &amp; Bob (film)',
  url: 'u',
  tokens: words,
  is_html_token: words.map((token) => (HTML.test(token) ? 1 : 0)),
  qas: [
    {
      qid: 'q1',
      question: 'who',
      answers: {
        'open-ended': {
          answer_candidates: [
            {
              metadata: { long_answer: range(...long) },
              extractive: { single_answer: { answer: 'wrong', instances: [{ token_inds: inclusive, text: 'wrong' }] } },
            },
            { metadata: { long_answer: range(...long) } },
          ],
        },
      },
    },
  ],
})

describe('importing official pages', () => {
  it('gives the same item and gold in all three forms', async () => {
    const annotations = [{ long_answer: range(1, 13), short_answers: [range(8, 12)] }]
    for (const record of [simplified(annotations), original(annotations), multiqa([1, 13], [8, 11])]) {
      const { questions, items } = await imported(lines(record))
      const [entry] = questions[0]!.gold
      expect(items.get(entry!.item)).toMatchObject({ title: 'Ann & Bob (film)', text: 'Ann (born 1900) met "Bob".' })
      expect(textsOf(items, entry!)).toEqual(['"Bob".'])
      expect(questions[0]).toMatchObject({ source: 'Ann & Bob (film)', answers: ['"Bob".'] })
    }
  })

  it('merges annotators who agree on a long answer and keeps different long answers apart', async () => {
    const { questions, items, summary } = await imported(
      lines(
        simplified([
          { long_answer: range(1, 13), short_answers: [range(9, 10)] },
          { long_answer: none, short_answers: [] },
          { long_answer: range(13, 19), short_answers: [range(14, 15)] },
          { long_answer: range(1, 13), short_answers: [range(2, 3), range(9, 10)] },
          { long_answer: range(1, 13), short_answers: [] },
          { long_answer: range(19, 27), short_answers: [] },
        ]),
      ),
    )
    expect(questions).toHaveLength(1)
    expect(questions[0]!.gold.map((entry) => textsOf(items, entry))).toEqual([['Ann', 'Bob'], ['She']])
    expect([...items.values()].map(({ text }) => text)).toEqual(['Ann (born 1900) met "Bob".', "She didn't."])
    expect(summary.dropped).toEqual([
      expect.objectContaining({ what: 'item', reason: 'a long answer without a short answer', count: 1 }),
    ])
  })

  it('drops and counts questions without a long answer, without a short one, and short answers without text', async () => {
    const { summary } = await imported(
      lines(
        simplified([{ long_answer: none, short_answers: [] }]),
        simplified([{ long_answer: range(1, 13), short_answers: [] }]),
        simplified([{ long_answer: range(1, 13), short_answers: [range(1, 2)] }]),
        simplified([{ long_answer: range(1, 13), short_answers: [range(14, 15)] }]),
        simplified([{ long_answer: range(1, 13), short_answers: [range(2, 3)] }]),
      ),
    )
    expect(summary.dropped.map(({ what, reason, count }) => [what, reason, count])).toEqual([
      ['question', 'no annotator found a long answer', 1],
      ['item', 'a long answer without a short answer', 3],
      ['question', 'no short answer', 3],
      ['annotation', 'a short answer without text in its long answer', 2],
    ])
  })

  it('keeps every digit of the official ids', async () => {
    const content = lines(simplified([{ long_answer: range(1, 13), short_answers: [range(2, 3)] }]))
    const { questions } = await imported(content.replace('"example_id":1', '"example_id":-8062182676792486818'))
    expect(questions[0]!.id).toBe('-8062182676792486818')
  })

  it('puts line breaks between blocks, and takes a lone < for text', async () => {
    const text = '<Ul> <Li> one < </Li> <Li> two </Li> </Ul>'
    const { items } = await imported(
      lines(simplified([{ long_answer: range(0, 9), short_answers: [range(2, 3)] }], { document_text: text })),
    )
    expect([...items.values()][0]!.text).toBe('one <\ntwo')
  })

  it.each<[string, object, RegExp]>([
    [
      'a long answer outside of the page',
      simplified([{ long_answer: range(1, 99), short_answers: [] }]),
      /in\.jsonl:1: the long answer of "1" is tokens \[1, 99\), the page has 28/,
    ],
    [
      'an inverted short answer',
      simplified([{ long_answer: range(1, 9), short_answers: [range(4, 2)] }]),
      /in\.jsonl:1: a short answer of "1" is tokens \[4, 2\)/,
    ],
    ['no known form', { question: 'who' }, /in\.jsonl:1: no known form/],
    ['no annotations', { ...simplified([]), annotations: undefined }, /in\.jsonl:1: .*"annotations"/],
    [
      'token lists that do not fit',
      { ...multiqa([1, 2], [1, 1]), is_html_token: [] },
      /in\.jsonl:1: "tokens" has 28 entries and "is_html_token" 0/,
    ],
  ])('stops at %s, naming the place, and writes nothing', async (_, record, message) => {
    const parent = temporaryFolder()
    writeFileSync(join(parent, 'in.jsonl'), lines(record))
    const importing = importNq({ inputs: [join(parent, 'in.jsonl')], output: join(parent, 'data'), split: 'dev' })
    await expect(importing).rejects.toThrow(message)
    expect(readdirSync(parent)).toEqual(['in.jsonl'])
  })

  it('never loses or adds a visible character, and every span is its tokens, for any page', () => {
    const token = fc.constantFrom(
      'a',
      'Bob',
      '.',
      ',',
      '(',
      ')',
      '-',
      '–',
      '1',
      '``',
      "''",
      '"',
      "'s",
      '<P>',
      '</Li>',
      '<B>',
      '😀',
      '$',
    )
    fc.assert(
      fc.property(fc.array(token, { maxLength: 30 }), fc.nat(), fc.nat(), (tokens, a, b) => {
        const page = tokens.map((t) => ({ token: t, html: HTML.test(t) }))
        const { text, spans } = detokenise(page)
        const plain = (list: string[]): string =>
          list
            .filter((t) => !HTML.test(t))
            .map((t) => t.replace(/^(?:``|'')$/, '"'))
            .join('')
        expect(text.replace(/\s/g, '')).toBe(plain(tokens))
        expect(text).toBe(text.trim())
        expect(text).not.toMatch(/\s\s/)
        const [from, to] = [a % (tokens.length + 1), b % (tokens.length + 1)].sort((x, y) => x - y) as [number, number]
        const covered = spans.slice(from, to).filter((span) => span !== undefined)
        const marked = covered.length === 0 ? '' : text.slice(covered[0]![0], covered.at(-1)![1])
        expect(marked.replace(/\s/g, '')).toBe(plain(tokens.slice(from, to)))
      }),
      { numRuns: 500 },
    )
  })
})

const data = sharedDir() === undefined ? undefined : join(sharedDir()!, 'data', 'nq')

describe.skipIf(data === undefined)('the official records (skipped without the shared data)', () => {
  it.each([
    ['train.jsonl', 600],
    ['dev.jsonl', 400],
  ])('of %s are all imported, gold being what a regular expression finds', async (name, count) => {
    const records = readFileSync(join(data!, name), 'utf8')
      .trim()
      .split('\n')
      .map(
        (line) =>
          JSON.parse(line) as {
            question: string
            nq_annotated_gold: { title: string; long_answer: string; short_answers: string[] }
          },
      )
    expect(records).toHaveLength(count)
    const output = join(temporaryFolder(), 'data')
    const summary = await importNq({ inputs: [join(data!, name)], output, split: 'dev' })
    const { questions, items } = await contentOf(output)
    const literal = (text: string): string => text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&')
    const expected = records.flatMap(({ question, nq_annotated_gold: gold }) => {
      const starts = gold.short_answers.flatMap((answer) =>
        [
          ...gold.long_answer.matchAll(new RegExp(`(?<![\\p{L}\\p{N}])(?=${literal(answer)}(?![\\p{L}\\p{N}]))`, 'gu')),
        ].map(({ index }) => `${index}-${index + answer.length}`),
      )
      return starts.length === 0
        ? []
        : [{ question, title: gold.title, text: gold.long_answer, spans: [...new Set(starts)].sort() }]
    })
    const got = questions.map((question) => {
      const [entry] = question.gold
      const item = items.get(entry!.item)!
      const spans = 'spans' in entry! ? entry.spans.map((span) => span.join('-')).sort() : []
      return { question: question.question, title: item.title, text: item.text, spans }
    })
    expect(got).toEqual(expected)
    expect(summary).toMatchObject({ records: count, questions: expected.length, skipped: 0 })
    expect(items.size).toBe(new Set(expected.map(({ title, text }) => JSON.stringify([title, text]))).size)
    expect(summary.dropped.reduce((sum, entry) => sum + entry.count, 0)).toBe(count - expected.length)
  })

  it('of the full pages give the annotated long answers that have a short one', async () => {
    const output = join(temporaryFolder(), 'data')
    const inputs = ['original', 'simplified', 'multiqa'].map((form) => join(data!, `fullpage_${form}.jsonl`))
    const summary = await importNq({ inputs, output, split: 'dev' })
    const { questions, items } = await contentOf(output)
    expect(summary).toMatchObject({ records: 9, questions: 6, items: { added: 5, merged: 1 } })
    expect(Object.fromEntries(summary.dropped.map(({ reason, count }) => [reason, count]))).toEqual({
      'no annotator found a long answer': 3,
      'a long answer without a short answer': 1,
    })
    const byId = new Map(questions.map((question) => [question.id, question]))
    const trade = byId.get('5225754983651766092')!
    expect(trade.source).toBe('Trade winds')
    expect(textsOf(items, trade.gold[0]!)).toEqual([
      'enabled European empire expansion into the Americas and trade routes to become established across the Atlantic and Pacific oceans',
    ])
    expect(byId.get('NaturalQuestions_q_5225754983651766092')!.gold).toEqual(trade.gold)
    expect(items.get(byId.get('5328212470870865242')!.gold[0]!.item)!.text).toMatch(
      /^Tracy McConnell, better known as "The Mother", is the title character/,
    )
  })
})

import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { detokenise } from '../../src/data/importers/detokenise.ts'
import { readTable, tableAround } from '../../src/data/importers/nq/tables.ts'
import { checkDataset, type ImportOptions, type ImportSummary, importNq, openDataset } from '../../src/data/index.ts'
import {
  buildHierarchy,
  type GoldEntry,
  type Item,
  type Question,
  type TableItem,
  type TextItem,
} from '../../src/hierarchy/index.ts'
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

const table = (
  '<H1> Ann </H1> <H2> Films ( edit ) </H2> <Table> <Caption> Films of Ann </Caption> ' +
  '<Tr> <Th> Year </Th> <Th_colspan="2"> Film </Th> </Tr> <Tr> <Td> 1990 </Td> <Td> Otter | One </Td> <Td> won </Td> </Tr> ' +
  '<Tr> <Td> 1990 </Td> <Td> <Ul> <Li> Two </Li> <Li> Three </Li> </Ul> </Td> </Tr> <Tr> </Tr> <Tr> <Td> <Table> <Tr> <Td> In </Td> ' +
  '<Td> side </Td> </Tr> <Tr> <Td> 1990 </Td> </Tr> </Table> </Td> </Tr> </Table> <P> Behind . </P>'
).split(' ')
/** The index of the n-th token of that kind. */
const at = (token: string, nth = 0): number => table.flatMap((t, i) => (t === token ? [i] : []))[nth]!
const wholeTable = range(at('<Table>'), at('</Table>', 1) + 1)
const inTable = (long: object, shorts: object[], more: object = {}): object =>
  simplified([{ long_answer: long, short_answers: shorts }], { document_text: table.join(' '), ...more })
const tablesOf = (items: Map<string, Item>): TableItem[] => [...items.values()] as TableItem[]

describe('importing tables of official pages', () => {
  it('makes a table item of header, rows and caption, gold being the rows that hold the tokens of a short answer', async () => {
    const { questions, items } = await imported(lines(inTable(wholeTable, [range(at('1990', 1), at('1990', 1) + 1)])))
    expect(tablesOf(items)).toEqual([
      {
        id: expect.any(String),
        modality: 'table',
        title: 'Ann & Bob (film)',
        caption: 'Films of Ann',
        header: ['Year', 'Film', ''],
        rows: [['1990', 'Otter | One', 'won'], ['1990', 'Two\nThree'], [], ['In side\n1990']],
      },
    ])
    expect(questions[0]!.gold).toEqual([{ item: tablesOf(items)[0]!.id, rows: [1] }])
    expect(questions[0]!.answers).toEqual(['1990'])
  })

  it('gives the same item and gold in the original and the MultiQA form', async () => {
    const long: [number, number] = [at('<Table>'), at('</Table>', 1) + 1]
    const annotation = { long_answer: range(...long), short_answers: [range(at('Three'), at('Three') + 1)] }
    const tokens = table.map((token) => ({ token: token.replace('_', ' '), html_token: HTML.test(token) }))
    const forms = [
      simplified([annotation], { document_text: table.join(' ') }),
      { ...original([annotation]), document_tokens: tokens },
      {
        ...multiqa(long, [at('Three'), at('Three')]),
        tokens: tokens.map(({ token }) => token),
        is_html_token: tokens.map(({ html_token }) => html_token),
      },
    ]
    const results = await Promise.all(forms.map((form) => imported(lines(form))))
    for (const { items, questions } of results) {
      expect([...items.values()]).toEqual([...results[0]!.items.values()])
      expect(questions[0]!.gold).toEqual([{ item: [...items.keys()][0], rows: [1] }])
    }
  })

  it('takes the whole table for a row or a cell of it, the innermost of nested ones, and merges what lies in one', async () => {
    const nested: [number, number] = [at('<Table>', 1), at('</Table>') + 1]
    const second = range(at('<Tr>', 2), at('</Tr>', 2) + 1)
    const cell = range(at('<Td>', 1), at('</Td>', 1) + 1)
    const annotations = [
      { long_answer: second, short_answers: [range(at('Two'), at('Two') + 1)] },
      { long_answer: cell, short_answers: [range(at('Otter'), at('One') + 1)] },
      { long_answer: range(at('<Tr>', 5), at('</Tr>', 4) + 1), short_answers: [range(at('side'), at('side') + 1)] },
      { long_answer: range(...nested), short_answers: [range(at('1990', 2), at('1990', 2) + 1)] },
    ]
    const { questions, items } = await imported(lines(simplified(annotations, { document_text: table.join(' ') })))
    const [outer, inner] = tablesOf(items)
    expect(inner).toMatchObject({ caption: 'Films', header: [], rows: [['In', 'side'], ['1990']] })
    expect(questions[0]!.gold).toEqual([
      { item: outer!.id, rows: [0, 1] },
      { item: inner!.id, rows: [0, 1] },
    ])
  })

  it('counts a nested table to the row of the outer one that holds it, and a long short answer to all its rows', async () => {
    const inner = await imported(lines(inTable(wholeTable, [range(at('side'), at('side') + 1)])))
    expect(inner.questions[0]!.gold).toMatchObject([{ rows: [3] }])
    const long = await imported(lines(inTable(wholeTable, [range(at('Year'), at('Two') + 1)])))
    expect(long.questions[0]!.gold).toMatchObject([{ rows: [0, 1] }])
  })

  it('leaves a list or a paragraph in a cell a text', async () => {
    const list = range(at('<Ul>'), at('</Ul>') + 1)
    const { items } = await imported(lines(inTable(list, [range(at('Two'), at('Two') + 1)])))
    expect([...items.values()]).toMatchObject([{ modality: 'text', text: 'Two\nThree' }])
  })

  it('drops and counts short answers that are in no row: of the header, the caption, and outside of the table', async () => {
    const good = inTable(wholeTable, [range(at('won'), at('won') + 1)])
    const { summary } = await imported(
      lines(
        good,
        inTable(wholeTable, [range(at('Year'), at('Year') + 1)], { example_id: 2 }),
        inTable(wholeTable, [range(at('Films', 1), at('Films', 1) + 1)], { example_id: 3 }),
        inTable(wholeTable, [range(at('Behind'), at('Behind') + 1), range(at('<Tr>', 1), at('<Tr>', 1) + 1)], {
          example_id: 4,
        }),
        inTable(wholeTable, [range(at('Year'), at('Year') + 1), range(at('won'), at('won') + 1)], { example_id: 5 }),
      ),
    )
    expect(summary).toMatchObject({ questions: 2, gold: 2, items: { added: 1, merged: 1 } })
    expect(summary.dropped.map(({ what, reason, count }) => [what, reason, count])).toEqual([
      ['annotation', 'a short answer in the header of its table', 2],
      ['item', 'a long answer without a short answer', 3],
      ['question', 'no short answer', 3],
      ['annotation', 'a short answer in the caption of its table', 1],
      ['annotation', 'a short answer outside of the rows of its table', 2],
    ])
    expect(summary.dropped[0]!.places[0]).toMatch(/in\.jsonl:2: tokens \[\d+,\d+\) of "2"/)
  })

  it.each<[string, string, string[], string[][]]>([
    ['no header cells', '<Tr> <Td> a </Td> <Td> b </Td> </Tr> <Tr> <Td> x </Td> </Tr>', [], [['a', 'b'], ['x']]],
    [
      'a header cell in each row',
      '<Tr> <Th> a </Th> <Td> b </Td> </Tr> <Tr> <Th> c </Th> <Td> x </Td> </Tr>',
      [],
      [
        ['a', 'b'],
        ['c', 'x'],
      ],
    ],
    [
      'an empty corner',
      '<Tr> <Td> </Td> <Th> a </Th> <Th> b </Th> </Tr> <Tr> <Th> c </Th> <Td> x </Td> </Tr>',
      ['', 'a', 'b'],
      [['c', 'x']],
    ],
    [
      'a title above',
      '<Tr> <Th colspan="2"> t </Th> </Tr> <Tr> <Th> a </Th> <Th> b </Th> </Tr> <Tr> <Td> x </Td> </Tr>',
      ['a', 'b'],
      [['t', ''], ['x']],
    ],
    [
      'a title alone',
      '<Tr> <Th colspan="2"> t </Th> </Tr> <Tr> <Th> a </Th> <Td> x </Td> </Tr>',
      [],
      [
        ['t', ''],
        ['a', 'x'],
      ],
    ],
    [
      'two header rows',
      '<Tr> <Th> a </Th> <Th> b </Th> </Tr> <Tr> <Th> c </Th> <Th> d </Th> </Tr> <Tr> <Td> x </Td> </Tr>',
      ['a', 'b'],
      [['c', 'd'], ['x']],
    ],
    ['one column', '<Tr> <Th> a </Th> </Tr> <Tr> <Td> x </Td> </Tr>', ['a'], [['x']]],
    ['nothing but a header', '<Tr> <Th> a </Th> <Th> x </Th> </Tr>', [], [['a', 'x']]],
    ['cells outside of a row', '<Td> a </Td> <Td> x </Td>', [], [['a', 'x']]],
    ['text outside of a cell', '<Tr> a b <Td> x </Td> </Tr>', [], [['a b', 'x']]],
    ['nothing closed', '<Tr> <Td> a <Td> b <Tr> <Td> x', [], [['a', 'b'], ['x']]],
    [
      'parts of a table',
      '<Thead> <Tr> <Th> a </Th> </Tr> </Thead> <Tbody> <Tr> <Td> x </Td> </Tr> </Tbody>',
      ['a'],
      [['x']],
    ],
    ['a colspan beyond reason', '<Tr> <Td colspan="0"> a </Td> <Td colspan="x"> x </Td> </Tr>', [], [['a', 'x']]],
  ])('reads a table with %s', async (_, content, header, rows) => {
    const tokens = ['<Table>', ...content.split(/ (?![^<]*>)/), '</Table>']
    const record = {
      ...original([
        { long_answer: range(0, tokens.length), short_answers: [range(tokens.indexOf('x'), tokens.indexOf('x') + 1)] },
      ]),
      document_tokens: tokens.map((token) => ({ token, html_token: HTML.test(token) })),
    }
    const { items, questions } = await imported(lines(record))
    expect(tablesOf(items)).toMatchObject([{ header, rows }])
    expect(questions[0]!.gold).toMatchObject([{ rows: [rows.findIndex((row) => row.includes('x'))] }])
  })

  it('drops and counts a table without rows, and refuses one of millions of cells', async () => {
    const empty = inTable(range(0, 3), [range(1, 2)], { document_text: '<Table> x </Table>', example_id: 2 })
    const { summary } = await imported(lines(empty, inTable(wholeTable, [range(at('won'), at('won') + 1)])))
    expect(summary.dropped).toMatchObject([
      { what: 'item', reason: 'a table without rows', count: 1 },
      { what: 'question', count: 1 },
    ])
    const wide = `<Table> <Tr> ${'<Td_colspan="99999999"> x '.repeat(1001)}</Tr> </Table>`
    const record = inTable(range(0, wide.split(' ').length), [range(3, 4)], { document_text: wide })
    await expect(imported(lines(record))).rejects.toThrow(/in\.jsonl:1: the table of tokens .* 1001000 cells/)
  })

  it('puts every visible token of any tags into at most one part, and gold rows are those of the tokens', () => {
    const tag = fc.constantFrom(
      '<Table>',
      '</Table>',
      '<Tr>',
      '</Tr>',
      '<Td>',
      '</Td>',
      '<Th>',
      '</Th>',
      '<Caption>',
      '</Caption>',
      '<P>',
      '<Td colspan="3">',
    )
    const word = fc.nat({ max: 999 }).map((n) => `w${n}`)
    fc.assert(
      fc.property(fc.array(fc.oneof(tag, word), { maxLength: 40 }), (content) => {
        const tokens = ['<Table>', ...content].map((token) => ({ token, html: HTML.test(token) }))
        const around = tableAround(tokens, [0, 1])!
        const { content: read, partOf } = readTable(tokens, around, 'T', { file: 'x' })
        for (const [i, { token, html }] of tokens.entries()) {
          const part = partOf(i)
          if (html || part === undefined) continue
          const where = part === 'header' ? read.header : part === 'caption' ? [read.caption!] : read.rows[part]!
          expect(where.join('\n').split(/\s/)).toContain(token)
        }
      }),
      { numRuns: 500 },
    )
  })
})

describe('the lists of official pages', () => {
  it('have a leaf for every entry, whatever it begins with, and sentences within', async () => {
    const text =
      '<Ul> <Li> one , </Li> <Li> 2 . </Li> <Li> Ann sang . She left . </Li> <Li> two <Ul> <Li> ( three ) </Li> </Ul> </Li> </Ul>'
    const tokens = text.split(' ')
    const { items } = await imported(
      lines(
        simplified([{ long_answer: range(0, tokens.length), short_answers: [range(2, 3)] }], { document_text: text }),
      ),
    )
    const item = [...items.values()][0]!
    expect(buildHierarchy(item).leaves.map((leaf) => item.text.slice(...leaf))).toEqual([
      'one,',
      '\n2.',
      '\nAnn sang.',
      ' She left.',
      '\ntwo',
      '\n(three)',
    ])
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

  it('of the full pages have tables whose rows are found by the tokens of a short answer', async () => {
    const [line] = readFileSync(join(data!, 'fullpage_multiqa.jsonl'), 'utf8').split('\n')
    const record = JSON.parse(line!)
    const winner = record.tokens.indexOf('Feynman', 394) as number
    const [candidate] = record.qas[0].answers['open-ended'].answer_candidates
    candidate.extractive = { single_answer: { instances: [{ token_inds: [winner, winner] }] } }
    const { questions, items } = await imported(JSON.stringify(record))
    const entry = questions[0]!.gold.find(({ item }) => (items.get(item) as Item).modality === 'table')!
    const laureates = items.get(entry.item) as Item as TableItem
    expect(laureates).toMatchObject({
      title: 'List of Nobel laureates in Physics',
      caption: 'Laureates',
      header: ['Year', 'Laureate', '', 'Country', 'Rationale'],
    })
    expect(laureates.rows).toHaveLength(213)
    const [row, ...others] = 'rows' in entry ? entry.rows : []
    expect(others).toEqual([])
    expect(laureates.rows[row!]!.join(' ')).toMatch(/Richard (?:Phillips )?Feynman/)
    expect(questions[0]!.answers).toContain('Feynman')
  })
})

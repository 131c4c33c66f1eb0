import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { gzipSync } from 'node:zlib'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { tolerantOccurrences } from '../../src/data/importers/occurrences.ts'
import { titleOfLink } from '../../src/data/importers/ottqa.ts'
import { type ImportOptions, type ImportSummary, importOttqa, openDataset } from '../../src/data/index.ts'
import {
  buildHierarchy,
  goldLeaves,
  type Item,
  type Question,
  type TableItem,
  type TextItem,
} from '../../src/hierarchy/index.ts'
import { canopy, cli } from '../support/cli.ts'
import { sharedDir } from '../support/shared.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'
import { damagedBytes, damagedValue, sound } from './damage.ts'

const cell = (text: string, ...links: string[]): unknown => [text, links]

const table = (id: string, more: object = {}): object => ({
  table_id: id,
  uid: id,
  title: 'Otters &amp; Co',
  section_title: 'Places -- Rivers',
  section_text: '',
  intro: 'Otters live in many rivers.',
  header: [cell('Year'), cell('River'), cell('Otter')],
  data: [
    [cell('1990'), cell('Spey', '/wiki/River_Spey'), cell('Ann')],
    [cell('1991'), cell('Tay', '/wiki/River_Tay'), cell('Bob')],
    [cell('1991'), cell('Tay', '/wiki/River_Tay'), cell('Bob')],
    [cell('1993'), cell('Dee', '/wiki/River_Dee,_Wales#Course'), cell('')],
  ],
  ...more,
})

const passages = {
  '/wiki/River_Spey': 'The Spey is a river . It is 172 km long . It flows north - east .',
  '/wiki/River_Tay': 'The Tay is a river . It is 188 km ( 117 mi ) long . The mouth is at Perth .',
  '/wiki/River_Dee,_Wales#Course': 'The Dee flows from Wales . It ends near Chester .',
}

type Node = [string, [number, number], string | null, 'table' | 'passage']

const asked = (nodes: Node[], more: object = {}): object => ({
  question_id: 'q1',
  question: 'How long is the river of Ann ?',
  table_id: 'Otters_0',
  'answer-text': '172 km',
  question_postag: 'WRB JJ',
  'answer-node': nodes,
  ...more,
})

const spey: Node = ['River Spey', [0, 1], '/wiki/River_Spey', 'passage']

interface Imported {
  summary: ImportSummary
  questions: Question[]
  items: Map<string, Item>
}

async function importedFrom(
  inputs: string[],
  more: Pick<ImportOptions, 'onError' | 'maxRecordBytes'> = {},
): Promise<Imported> {
  const output = join(temporaryFolder(), 'data')
  const summary = await importOttqa({ inputs, output, split: 'dev', ...more })
  const dataset = await openDataset(output)
  const questions: Question[] = []
  const items = new Map<string, Item>()
  for await (const { question } of dataset.questions()) questions.push(question)
  for await (const { item } of dataset.items()) items.set(item.id, item)
  await dataset.close()
  expect(await sound(output, async () => summary)).toBe('imported')
  return { summary, questions, items }
}

/** Files of a folder of their own, by name. */
function files(contents: Record<string, string | Buffer>): (...names: string[]) => string[] {
  const folder = temporaryFolder()
  for (const [name, content] of Object.entries(contents)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true })
    writeFileSync(join(folder, name), content)
  }
  return (...names) => names.map((name) => join(folder, name))
}

const usual = {
  'tables.jsonl': lines(table('Otters_0')),
  'passages.jsonl': lines({ table_id: 'Otters_0', n_linked_in_source: 3, passages }),
}

const imported = (
  questions: object[],
  more: Pick<ImportOptions, 'onError' | 'maxRecordBytes'> = {},
): Promise<Imported> => {
  const at = files({ ...usual, 'q.json': JSON.stringify(questions) })
  return importedFrom(at('q.json', 'tables.jsonl', 'passages.jsonl'), more)
}

/** Titles and the gold rows or sentences of a question, as a reader would name them. */
function evidence({ questions, items }: Imported, index = 0): Record<string, unknown> {
  const marked = questions[index]!.gold.map((entry) => {
    const item = items.get(entry.item) as TableItem | TextItem
    const { leaves } = buildHierarchy(item, 2)
    const { gold } = goldLeaves(buildHierarchy(item, 2), entry)
    const found = leaves.flatMap(([from, to], leaf) => {
      if (!gold[leaf]) return []
      return [item.modality === 'table' ? from : item.text.slice(from, to).trim()]
    })
    return [`${item.modality}: ${item.title}`, found] as const
  })
  return Object.fromEntries(marked)
}

describe('the evidence of a question', () => {
  it('is the row of the cell that links to a passage, and the sentences of the passage that hold the answer', async () => {
    const all = await imported([asked([spey])])
    expect(evidence(all)).toEqual({ 'table: Otters & Co': [0], 'text: River Spey': ['It is 172 km long .'] })
    expect(all.questions[0]).toMatchObject({
      id: 'q1',
      benchmark: 'ottqa',
      split: 'dev',
      answers: ['172 km'],
      source: 'Otters_0',
    })
    expect(all.questions[0]).not.toHaveProperty('variant')
    expect(all.questions[0]).not.toHaveProperty('retrieved')
    expect([...all.items.values()].find((item) => item.modality === 'table')).toMatchObject({
      title: 'Otters & Co',
      caption: 'Places -- Rivers',
      header: ['Year', 'River', 'Otter'],
      rows: [
        ['1990', 'Spey', 'Ann'],
        ['1991', 'Tay', 'Bob'],
        ['1991', 'Tay', 'Bob'],
        ['1993', 'Dee', ''],
      ],
    })
  })

  it('is the row by its index, whatever the node calls the cell', async () => {
    const all = await imported([asked([['1990', [2, 2], null, 'table']], { 'answer-text': 'Bob' })])
    expect(evidence(all)).toEqual({ 'table: Otters & Co': [2] })
  })

  it('has the variant several-rows when its nodes lie in several rows, of the table or of passages', async () => {
    const tay: Node = ['Tay', [1, 1], '/wiki/River_Tay', 'passage']
    const inTable: Node = ['Tay', [1, 1], null, 'table']
    const all = await imported([
      asked([spey, tay], { 'answer-text': 'river' }),
      asked([['Tay', [2, 1], null, 'table'], inTable], { question_id: 'q2', 'answer-text': 'Tay' }),
      asked([tay, inTable], { question_id: 'q3', 'answer-text': 'Tay' }),
    ])
    expect(all.questions.map(({ variant }) => variant)).toEqual(['several-rows', 'several-rows', undefined])
    expect(evidence(all, 0)).toMatchObject({
      'table: Otters & Co': [0, 1],
      'text: River Tay': ['The Tay is a river .'],
    })
    expect(evidence(all, 1)).toEqual({ 'table: Otters & Co': [1, 2] })
    expect(evidence(all, 2)).toEqual({ 'table: Otters & Co': [1], 'text: River Tay': ['The Tay is a river .'] })
  })

  it('is one entry for a passage that several cells link to', async () => {
    const { questions } = await imported([
      asked([spey, ['Spey again', [0, 0], '/wiki/River_Spey', 'passage']], { 'answer-text': 'is' }),
    ])
    expect(questions[0]!.gold).toHaveLength(2)
    expect(questions[0]!.gold[1]).toMatchObject({
      spans: [
        [9, 11],
        [25, 27],
      ],
    })
  })

  it('leaves out and counts passages without the answer, and what is not at hand', async () => {
    const { summary, questions } = await imported([
      asked([spey], { 'answer-text': '2 km' }),
      asked([['x', [1, 1], '/wiki/Nowhere', 'passage']], { question_id: 'q2' }),
      asked([['x', [1, 1], null, 'passage']], { question_id: 'q3' }),
      asked([spey], { question_id: 'q4', table_id: 'Elsewhere_1' }),
      asked([], { question_id: 'q5' }),
    ])
    expect(questions.map(({ id, gold }) => [id, gold.length])).toEqual([
      ['q1', 1],
      ['q2', 1],
      ['q3', 1],
    ])
    const dropped = Object.fromEntries(summary.dropped.map(({ what, reason, count }) => [`${what} ${reason}`, count]))
    expect(dropped).toEqual({
      'annotation a linked passage without the answer': 1,
      'annotation in a passage that is not at hand': 3,
      'annotation in a table that is not at hand': 1,
      'question without evidence at hand': 1,
      'question without an answer node': 1,
    })
    expect(summary.dropped[0]!.places[0]).toMatch(/q\.json:1: "\/wiki\/River_Spey", "2 km"/)
  })
})

describe('the places of an answer', () => {
  it.each([
    ['J.R . Smith left .', 'J.R. Smith', ['J.R . Smith']],
    ['( Growth and Emergence ) came', '(Growth  and Emergence)', ['( Growth and Emergence )']],
    ['It cost $ 5 , or $5.', '$ 5', ['$ 5', '$5']],
    ['Six men, six women', 'six', ['six']],
    ['Six men', 'six', ['Six']],
    ['12 of 123, 1 2', '12', ['12']],
    ['NewYork and New  York', 'New York', ['New  York']],
    ['ÉCOLE, İstanbul', 'école', ['ÉCOLE']],
    ['𝒜𝒜 a', 'a', ['a']],
    ['a', ' ', []],
    ['a', '', []],
    ['', 'a', []],
    ['Σ σ', 'Σ', ['Σ']],
  ])('of %j hold %j: %j', (text, answer, expected) => {
    expect(tolerantOccurrences(text, answer).map(([start, end]) => text.slice(start, end))).toEqual(expected)
  })

  it('are found however blanks lie beside punctuation, and stand between no letters or digits', () => {
    const parts = fc.array(fc.constantFrom('Ann', 'b', '7', '.', ',', '(', '’', '字', '😀'), {
      minLength: 1,
      maxLength: 6,
    })
    const blank = fc.constantFrom('', ' ', '  ')
    const word = /[\p{L}\p{N}]/u
    const written = (list: string[], blanks: string[]): string =>
      list
        .map((part, i) =>
          i === 0 ? part : (word.test(part) && word.test(list[i - 1]!) ? ' ' : blanks[i % blanks.length]) + part,
        )
        .join('')
    fc.assert(
      fc.property(
        parts,
        fc.array(blank, { minLength: 1 }),
        fc.array(blank, { minLength: 1 }),
        parts,
        parts,
        (answer, one, two, left, right) => {
          const text = `${written(left, one)} ${written(answer, one)} ${written(right, two)}`
          const found = tolerantOccurrences(text, written(answer, two))
          expect(found.length).toBeGreaterThan(0)
          for (const [start, end] of found) {
            expect(text.slice(start, end).replace(/\s/g, '')).toBe(answer.join(''))
            expect(word.test([...text.slice(0, start)].at(-1) ?? '')).toBe(false)
            expect(word.test([...text.slice(end)][0] ?? '')).toBe(false)
          }
        },
      ),
    )
  })

  it('are found in time that grows with the text', () => {
    const text = 'a . '.repeat(200_000)
    const started = performance.now()
    expect(tolerantOccurrences(text, 'a')).toHaveLength(200_000)
    expect(performance.now() - started).toBeLessThan(5000)
  })
})

it.each([
  ['/wiki/Dracula_(2013_TV_series)', 'Dracula (2013 TV series)'],
  ['/wiki/Caf%C3%A9_%26_Bar', 'Café & Bar'],
  ['/wiki/100%_pure', '100% pure'],
  ['/wiki/Tom_&amp;_Jerry#Plot', 'Tom & Jerry'],
  ['/wiki/AC/DC', 'AC/DC'],
  ['https://en.wikipedia.org/wiki/A', 'A'],
  ['/wiki/#1_Hits', '#1 Hits'],
])('the title of %j is %j', (link, title) => {
  expect(titleOfLink(link)).toBe(title)
})

describe('the files', () => {
  const question = asked([spey])
  const official = (id: string): object => {
    const { table_id: _, ...rest } = table(id) as { table_id: string }
    return rest
  }
  const folders = {
    'data/traindev_tables_tok/Otters_0.json': JSON.stringify(official('Otters_0'), null, 2),
    'data/traindev_request_tok/Otters_0.json': JSON.stringify(passages, null, 2),
    'data/traindev_tables_tok/other.txt': 'not read',
    'q.json': JSON.stringify([question]),
  }

  it('come in any order and form, and give the same items', async () => {
    const at = files({
      ...usual,
      ...folders,
      'q.jsonl': lines(question),
      'q.json.gz': gzipSync(JSON.stringify([question])),
      'passages.jsonl.gz': gzipSync(usual['passages.jsonl']),
      'tables.json': JSON.stringify([table('Otters_0')]),
      'links.json': JSON.stringify(passages),
    })
    const results = await Promise.all(
      [
        ['q.json', 'tables.jsonl', 'passages.jsonl'],
        ['passages.jsonl.gz', 'tables.json', 'q.json.gz'],
        ['tables.jsonl', 'q.jsonl', 'links.json'],
        ['q.json', 'data'],
        ['data/traindev_request_tok', 'q.json', 'data/traindev_tables_tok'],
        ['q.json', 'data/traindev_tables_tok/Otters_0.json', 'data/traindev_request_tok/Otters_0.json'],
      ].map((names) => importedFrom(at(...names))),
    )
    for (const { questions, items } of results) {
      expect(questions).toEqual(results[0]!.questions)
      expect(new Set(items.keys())).toEqual(new Set(results[0]!.items.keys()))
    }
  })

  it.each(['../../q', 'traindev_tables_tok/Otters_0', '/etc/passwd', '../x', 'C:x', 'a\0b', '..\\q'])(
    'are never opened outside of their folder: %j',
    async (id) => {
      const at = files({ ...folders, 'q.json': JSON.stringify([asked([spey], { table_id: id })]) })
      await expect(importedFrom(at('q.json', 'data'))).rejects.toThrow(/q\.json:1: the table id .* is no file name/)
    },
  )

  it('that lead in a circle are an error that names them', async () => {
    const at = files({ 'q.json': folders['q.json'], 'data/x/keep': '' })
    const [loop] = at('data/x/Otters_0.json')
    symlinkSync('Otters_0.json', loop!)
    await expect(importedFrom(at('q.json', 'data'))).rejects.toThrow(/no question is left.*table that is not at hand/)
    await expect(importedFrom([...at('q.json'), loop!])).rejects.toThrow(/Otters_0\.json: cannot read the input/)
  })

  it('that are cut off or too large are told by name', async () => {
    const cut = files({ ...folders, 'data/traindev_tables_tok/Otters_0.json': '{\n "title": "Ott' })
    await expect(importedFrom(cut('q.json', 'data'))).rejects.toThrow(
      /Otters_0\.json:1: not valid JSON.*may be cut off/,
    )
    await expect(importedFrom(files(folders)('q.json', 'data'), { maxRecordBytes: 600 })).rejects.toThrow(
      /Otters_0\.json:1: the file has more than 600 bytes/,
    )
    const wide = lines(table('Otters_0', { data: [[cell('x'.repeat(5000)), cell(''), cell('')]] }))
    const at = files({ ...usual, 'tables.jsonl': wide, 'q.json': folders['q.json'] })
    await expect(importedFrom(at('q.json', 'tables.jsonl'), { maxRecordBytes: 2000 })).rejects.toThrow(
      /tables\.jsonl:1: the record has more than 2000 bytes/,
    )
  })

  it('that are missing are named', async () => {
    await expect(importedFrom(['/nowhere/q.json'])).rejects.toThrow(
      /\/nowhere\/q\.json: cannot read the input: no such file/,
    )
  })
})

describe('faults', () => {
  it.each([
    [[9, 1], /the cell \[9, 1\] is not there; the table has 4 rows and 3 columns/],
    [[-1, 0], /the cell \[-1, 0\] is not there/],
    [[0, 3], /the cell \[0, 3\] is not there/],
    [[0, -1], /the cell \[0, -1\] is not there/],
    [[0.5, 1], /not a valid ottqa question/],
  ])('cell %j', async (place, message) => {
    const broken = asked([['x', place as [number, number], null, 'table']], { question_id: 'q0' })
    await expect(imported([broken, asked([spey])])).rejects.toThrow(message)
    const { summary, questions } = await imported([broken, asked([spey])], { onError: 'skip' })
    expect(questions.map(({ id }) => id)).toEqual(['q1'])
    expect(summary.skipped).toBe(1)
    expect(summary.dropped[0]!.places[0]).toMatch(/q\.json:1: /)
  })

  it('a table id with two contents is told with both places, an equal repetition is not', async () => {
    const run = (second: object, more: Pick<ImportOptions, 'onError' | 'maxRecordBytes'> = {}): Promise<Imported> => {
      const at = files({ ...usual, 'tables.jsonl': lines(table('Otters_0'), second), 'q.json': lines(asked([spey])) })
      return importedFrom(at('q.json', 'tables.jsonl', 'passages.jsonl'), more)
    }
    expect((await run(table('Otters_0'))).summary.dropped).toEqual([])
    const other = table('Otters_0', { title: 'Others' })
    await expect(run(other)).rejects.toThrow(
      /tables\.jsonl:2: the table "Otters_0" has another content than at .*tables\.jsonl:1/,
    )
    expect((await run(other, { onError: 'skip' })).summary.skipped).toBe(1)
  })

  it('a question id with two contents is told', async () => {
    await expect(imported([asked([spey]), asked([spey], { question: 'Who ?' })])).rejects.toThrow(
      /"q1" has another content/,
    )
  })

  it('a table without rows leaves its questions without it', async () => {
    const at = files({
      ...usual,
      'tables.jsonl': lines(table('Otters_0', { data: [] })),
      'q.json': lines(asked([spey])),
    })
    const { summary, questions } = await importedFrom(at('q.json', 'tables.jsonl', 'passages.jsonl'))
    expect(questions[0]!.gold).toHaveLength(1)
    expect(summary.dropped.map(({ reason }) => reason)).toEqual([
      'a table without rows',
      'in a table that is not at hand',
    ])
  })

  it('ragged rows and empty headers are kept', async () => {
    const ragged = table('Otters_0', { header: [], data: [[cell('a')], [], [cell('b'), cell('c')]] })
    const at = files({
      ...usual,
      'tables.jsonl': lines(ragged),
      'q.json': lines(asked([['b', [2, 1], null, 'table']])),
    })
    const all = await importedFrom(at('q.json', 'tables.jsonl'))
    expect(evidence(all)).toEqual({ 'table: Otters & Co': [2] })
  })

  it('of any kind end in a sound dataset or in an InputError, and leave nothing behind', async () => {
    const parts = {
      'q.json': [asked([spey]), asked([['x', [3, 1], null, 'table']], { question_id: 'q2', 'answer-text': 'Dee' })],
      'tables.jsonl': table('Otters_0'),
      'passages.jsonl': { table_id: 'Otters_0', n_linked_in_source: 3, passages },
    }
    const name = fc.constantFrom(...(Object.keys(parts) as (keyof typeof parts)[]))
    const damage = name.chain((file) => {
      const content = Buffer.from(JSON.stringify(parts[file]))
      const bytes = fc.oneof(
        damagedBytes(content),
        damagedValue(parts[file]).map((value) => Buffer.from(JSON.stringify(value))),
      )
      return fc.tuple(fc.constant(file), bytes, fc.constantFrom('stop' as const, 'skip' as const))
    })
    const seen = { imported: 0, refused: 0 }
    await fc.assert(
      fc.asyncProperty(damage, async ([file, bytes, onError]) => {
        const whole = Object.fromEntries(Object.entries(parts).map(([key, value]) => [key, JSON.stringify(value)]))
        const inputs = files({ ...whole, [file]: bytes })('q.json', 'tables.jsonl', 'passages.jsonl')
        const output = join(temporaryFolder(), 'data')
        seen[await sound(output, () => importOttqa({ inputs, output, split: 'dev', onError }))]++
        expect(readdirSync(dirname(output)).filter((entry) => entry !== 'data')).toEqual([])
      }),
      { numRuns: 150 },
    )
    expect(Math.min(seen.imported, seen.refused)).toBeGreaterThan(15)
  }, 60_000)
})

it.skipIf(!existsSync(cli))('runs from the command line', async () => {
  const at = files({ ...usual, 'q.json': JSON.stringify([asked([spey])]) })
  const output = join(temporaryFolder(), 'data')
  const args = ['import', 'ottqa', '--input', ...at('q.json', 'tables.jsonl', 'passages.jsonl'), '--split', 'dev']
  const { code, stdout } = await canopy([...args, '--output', output, '--json']).finished
  expect(code).toBe(0)
  expect(JSON.parse(stdout)).toMatchObject({ benchmark: 'ottqa', questions: 1, gold: 2, dropped: [] })
})

const shared = sharedDir()

describe.skipIf(shared === undefined)('the staged questions (third-party data beside the repository)', () => {
  const inputs = (split: string): string[] =>
    ['.traced.json', '_tables.jsonl', '_passages.jsonl'].map((end) => join(shared!, 'data/ottqa', split + end))

  it.each([
    ['dev', { questions: 551, gold: 1501, tables: 200, several: 196 }],
    ['train', { questions: 547, gold: 1287, tables: 480, several: 200 }],
  ])(
    '%s: every node is found, nothing is left out',
    async (split, expected) => {
      const { summary, questions, items } = await importedFrom(inputs(split))
      expect(summary).toMatchObject({ questions: expected.questions, gold: expected.gold, dropped: [], skipped: 0 })
      expect([...items.values()].filter((item) => item.modality === 'table')).toHaveLength(expected.tables)
      expect(questions.filter(({ variant }) => variant === 'several-rows')).toHaveLength(expected.several)
      expect(new Set(questions.map(({ source }) => source)).size).toBe(expected.tables)
    },
    60_000,
  )

  it("marks what the paper's published example marks", async () => {
    const { questions, items } = await importedFrom(inputs('dev'))
    const cases = JSON.parse(readFileSync(join(shared!, 'data/canopy_cases/cases.json'), 'utf8')) as {
      items: { question_id?: string; kind: string; n_units: number; gold: string[] }[]
    }
    const published = cases.items.filter((entry) => entry.question_id !== undefined)
    expect(published).toHaveLength(2)
    for (const { question_id, kind, n_units, gold } of published) {
      const question = questions.find(({ id }) => id === question_id)!
      const entry = question.gold.find(({ item }) => items.get(item)!.modality === kind)!
      const marked = goldLeaves(buildHierarchy(items.get(entry.item)!, 2), entry).gold
      expect(marked).toHaveLength(n_units)
      expect(marked.flatMap((isGold, leaf) => (isGold ? [`${kind === 'table' ? 'r' : 's'}${leaf}`] : []))).toEqual(gold)
    }
  }, 60_000)
})

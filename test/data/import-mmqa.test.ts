import { existsSync, readdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { gzipSync } from 'node:zlib'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type ImportOptions, type ImportSummary, importMmqa, openDataset } from '../../src/data/index.ts'
import type { Item, Question, TextItem } from '../../src/hierarchy/index.ts'
import { canopy, cli } from '../support/cli.ts'
import { sharedDir } from '../support/shared.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'
import { damagedBytes, damagedValue, sound } from './damage.ts'

const cell = (text: string): object => ({ text, links: [] })

const table = (more: object = {}): object => ({
  id: 't1',
  title: 'Otters &amp; Co',
  url: 'https://en.wikipedia.org/wiki/Otters',
  table: {
    table_name: 'Rivers',
    header: [
      { column_name: 'Year', metadata: { type: 'float' } },
      { column_name: 'River', metadata: {} },
    ],
    table_rows: [
      [cell('1990'), cell('Spey')],
      [cell('1991'), cell('Tay')],
      [cell('1992'), cell('Dee')],
    ],
    ...more,
  },
})
const joined = {
  mmqa_table_id: 't2',
  ottqa_table_id: 'Otters_0',
  table: { title: 'Otters', section_title: 'Lakes', header: [['Lake', []]], data: [[['Ness', []]], [['Awe', []]]] },
}
const text = (id: string, content: string): object => ({ id, title: 'The Spey', url: '', text: content })
const image = (id: string, path = `${id}.jpg`): object => ({ id, title: 'An otter', url: '', path })

const answer = (value: unknown, more: object = {}): object => ({
  answer: value,
  type: 'string',
  modality: 'text',
  text_instances: [],
  table_indices: [],
  image_instances: [],
  ...more,
})
const at = (doc_id: string, start_byte: number | undefined, stated: string | undefined): object => ({
  doc_id,
  part: 'text',
  ...(start_byte !== undefined && { start_byte }),
  ...(stated !== undefined && { text: stated }),
})
const asked = (answers: object[], metadata: object = {}, more: object = {}): object => ({
  qid: 'q1',
  question: 'Which river?',
  answers,
  metadata: {
    type: 'TableQ',
    modalities: ['table'],
    image_doc_ids: [],
    text_doc_ids: [],
    intermediate_answers: [],
    table_id: 't1',
    ...metadata,
  },
  supporting_context: [],
  ...more,
})

type More = Pick<ImportOptions, 'onError' | 'maxRecordBytes'>

interface Imported {
  summary: ImportSummary
  questions: Question[]
  items: Map<string, Item>
  /** Left out: reason -> count. */
  left: Record<string, number>
}

const IMAGE_IS_MISSING = /^the file "images\/.*" of item .* is not there$/

async function imported(contents: Record<string, string | Buffer>, more: More = {}): Promise<Imported> {
  const folder = temporaryFolder()
  for (const [name, content] of Object.entries(contents)) writeFileSync(join(folder, name), content)
  return importedFrom(
    Object.keys(contents).map((name) => join(folder, name)),
    more,
  )
}

async function importedFrom(inputs: string[], more: More = {}): Promise<Imported> {
  const output = join(temporaryFolder(), 'data')
  const summary = await importMmqa({ inputs, output, split: 'dev', ...more })
  const dataset = await openDataset(output)
  const questions: Question[] = []
  const items = new Map<string, Item>()
  for await (const { question } of dataset.questions()) questions.push(question)
  for await (const { item } of dataset.items()) items.set(item.id, item)
  await dataset.close()
  expect(await sound(output, async () => summary, IMAGE_IS_MISSING)).toBe('imported')
  return { summary, questions, items, left: Object.fromEntries(summary.dropped.map((d) => [d.reason, d.count])) }
}

/** The gold of a question: rows, the marked pieces of a text, or `whole`. */
function marked({ questions, items }: Imported, index = 0): unknown[] {
  return questions[index]!.gold.map((entry) => {
    if ('rows' in entry) return entry.rows
    if ('spans' in entry) {
      return entry.spans.map(([start, end]) => (items.get(entry.item) as TextItem).text.slice(start, end))
    }
    return (items.get(entry.item) as { image?: string }).image
  })
}

describe('gold', () => {
  it('is the rows of the cells that answers and intermediate answers name', async () => {
    const all = await imported({
      'q.jsonl': lines(
        asked(
          [answer('Dee', { table_indices: [[2, 1]] }), answer(1990.5, { type: 'number', table_indices: [[2, 0]] })],
          {
            intermediate_answers: [[answer('Spey', { table_indices: [[0, 1]] })]],
          },
        ),
      ),
      'tables.jsonl': lines(table()),
    })
    expect(marked(all)).toEqual([[0, 2]])
    expect(all.questions[0]).toMatchObject({ answers: ['Dee', '1990.5'], source: 't1', benchmark: 'mmqa' })
    expect([...all.items.values()][0]).toMatchObject({
      title: 'Otters & Co',
      caption: 'Rivers',
      header: ['Year', 'River'],
      rows: [
        ['1990', 'Spey'],
        ['1991', 'Tay'],
        ['1992', 'Dee'],
      ],
    })
  })

  it('is the rows of tables that OTT-QA holds', async () => {
    const all = await imported({
      'q.jsonl': lines(asked([answer('Awe', { table_indices: [[1, 0]] })], { table_id: 't2' })),
      'tables.jsonl': lines(joined),
    })
    expect(marked(all)).toEqual([[1]])
    expect([...all.items.values()][0]).toMatchObject({ title: 'Otters', caption: 'Lakes', header: ['Lake'] })
  })

  it.each([
    ['bytes', 'Éire and Spey. Spey.', 10, 'Spey'],
    ['code points', '😀Éire and Spey. Spey.', 10, 'Spey'],
  ])('is the text at its offset in %s', async (_, content, start, stated) => {
    const all = await imported({
      'q.jsonl': lines(asked([answer('Spey', { text_instances: [at('x', start, stated)] })])),
      'texts.jsonl': lines(text('x', content)),
    })
    const [entry] = all.questions[0]!.gold
    const first = content.indexOf('Spey')
    expect(entry).toMatchObject({ spans: [[first, first + 4]] })
    expect([...all.items.values()][0]).toMatchObject({
      title: 'The Spey',
      sentences: [expect.anything(), expect.anything()],
    })
  })

  it('is found by its text where the offset fails and one place has it, else left out and counted', async () => {
    const all = await imported({
      'q.jsonl': lines(
        asked([answer('a', { text_instances: [at('x', 900, 'otters')] })], {}, { qid: 'q1' }),
        asked([answer('a', { text_instances: [at('x', 900, 'river'), at('y', 0, 'A lake')] })], {}, { qid: 'q2' }),
        asked([answer('a', { text_instances: [at('x', 0, 'heron')] })], {}, { qid: 'q3' }),
      ),
      'texts.jsonl': lines(text('x', 'A river of otters is a river.'), text('y', 'A lake.')),
    })
    expect(all.questions.map(({ id }) => id)).toEqual(['q1', 'q2'])
    expect([marked(all, 0), marked(all, 1)]).toEqual([[['otters']], [['A lake']]])
    expect(all.left).toEqual({ 'a text that does not stand where it is said to': 2, 'without evidence at hand': 1 })
  })

  it('is a whole image, from an answer or as supporting context', async () => {
    const all = await imported({
      'q.jsonl': lines(
        asked(
          [answer('x', { image_instances: [{ doc_id: 'i1', doc_part: 'image' }] })],
          { image_doc_ids: [] },
          {
            supporting_context: [
              { doc_id: 'i2', doc_part: 'image' },
              { doc_id: 'i1', doc_part: 'image' },
            ],
          },
        ),
      ),
      'images.jsonl': lines(image('i1'), image('i2', 'sub/two.PNG')),
    })
    expect(marked(all)).toEqual(['images/i1.jpg', 'images/sub/two.PNG'])
    expect([...all.items.values()][0]).toMatchObject({ modality: 'image', title: 'An otter' })
  })

  it('is left out and counted where it has no place, or its item is not at hand', async () => {
    const { left, questions } = await imported({
      'q.jsonl': lines(
        asked([answer('yes', { type: 'yesno', text_instances: [at('x', undefined, undefined)] })], {
          intermediate_answers: [[answer('Tay', { table_indices: [[1, 1]] })]],
        }),
        asked(
          [answer('b', { text_instances: [at('gone', 0, 'b')], table_indices: [[0, 0]] })],
          { table_id: 'gone' },
          {
            qid: 'q2',
            supporting_context: [
              { doc_id: 'gone2', doc_part: 'image' },
              { doc_id: 'x', doc_part: 'text' },
            ],
          },
        ),
        { ...asked([]), answers: undefined, qid: 'q3' },
      ),
      'tables.jsonl': lines(table()),
      'texts.jsonl': lines(text('x', 'Yes.'), text('blank', ' ')),
    })
    expect(questions.map(({ id }) => id)).toEqual(['q1'])
    expect(left).toEqual({
      'a text without a visible character': 1,
      'a text without a place, as of a yes/no answer': 1,
      'in a table that is not at hand': 1,
      'in a text that is not at hand': 1,
      'in an image that is not at hand': 1,
      'supporting context without a place': 1,
      'without evidence at hand': 1,
      'without answers': 1,
    })
  })

  it('of two ids with one content is one entry', async () => {
    const instances = [at('x', 0, 'A'), at('y', 2, 'river')]
    const all = await imported({
      'q.jsonl': lines(asked([answer('a', { text_instances: instances })])),
      'texts.jsonl': lines(text('x', 'A river.'), text('y', 'A river.')),
    })
    expect(marked(all)).toEqual([['A', 'river']])
  })
})

describe('retrieved', () => {
  const question = asked([answer('Tay', { table_indices: [[1, 1]] })], {
    text_doc_ids: ['x', 'y'],
    image_doc_ids: ['i1'],
  })
  const files = {
    'q.jsonl': lines(question),
    'tables.jsonl': lines(table()),
    'texts.jsonl': lines(text('x', 'One.'), text('y', 'Two.')),
  }

  it('names the context when all of it is at hand', async () => {
    const { questions, items } = await imported({ ...files, 'images.jsonl.gz': gzipSync(lines(image('i1'))) })
    const modalities = questions[0]!.retrieved!.map((id) => items.get(id)!.modality)
    expect(modalities).toEqual(['table', 'text', 'text', 'image'])
  })

  it('is absent, and other items too, when a part is missing', async () => {
    const { questions, items } = await imported(files)
    expect(questions[0]).not.toHaveProperty('retrieved')
    expect(items.size).toBe(1)
  })
})

describe('faults', () => {
  const good = asked([answer('Tay', { table_indices: [[1, 1]] })])

  it.each([[[3, 0]], [[-1, 0]], [[0, 2]]])(
    'a cell outside of its table, %j, is told with its line',
    async (indices) => {
      const files = {
        'q.jsonl': lines(good, asked([answer('a', { table_indices: [indices] })], {}, { qid: 'q2' })),
        'tables.jsonl': lines(table()),
      }
      await expect(imported(files)).rejects.toThrow(
        /q\.jsonl:2: question "q2", table "t1": the cell \[.*\] is not there/,
      )
      const { summary, questions } = await imported(files, { onError: 'skip' })
      expect([questions.length, summary.skipped]).toEqual([1, 1])
    },
  )

  it.each(['../a.jpg', '/etc/passwd', 'C:\\a.jpg', 'a/../../b', '..\\b', '.', 'a\0b'])(
    'an image path that leaves its folder, %j, is told with its line',
    async (path) => {
      const files = {
        'q.jsonl': lines(good),
        'tables.jsonl': lines(table()),
        'images.jsonl': lines(image('i0'), image('i1', path)),
      }
      await expect(imported(files)).rejects.toThrow(/images\.jsonl:2: The path .* (leaves the folder|names no file)/)
      expect((await imported(files, { onError: 'skip' })).summary.skipped).toBe(1)
    },
  )

  it('an id with two contents is told with both places', async () => {
    const files = { 'q.jsonl': lines(good), 'tables.jsonl': lines(table(), table({ table_name: 'Other' })) }
    await expect(imported(files)).rejects.toThrow(/tables\.jsonl:2: the table "t1" has another content than at .*:1/)
    const repeated = { ...files, 'tables.jsonl': lines(table(), table()) }
    expect((await imported(repeated)).summary.dropped).toEqual([])
  })

  it('a record of another kind among tables, and a negative offset, are told', async () => {
    const mixed = { 'tables.jsonl': lines(table(), good), 'q.jsonl': lines(good) }
    await expect(imported(mixed)).rejects.toThrow(/tables\.jsonl:2: neither a table, a text nor an image/)
    const negative = asked([answer('a', { text_instances: [at('x', -1, 'a')] })])
    await expect(imported({ 'q.jsonl': lines(negative) })).rejects.toThrow(/q\.jsonl:1: not a valid mmqa question/)
  })

  it('a gigantic row is over the limit of a record', async () => {
    const wide = table({ table_rows: [[cell('x'.repeat(5000)), cell('')]] })
    const files = { 'q.jsonl': lines(good), 'tables.jsonl': lines(wide) }
    await expect(imported(files, { maxRecordBytes: 3000 })).rejects.toThrow(
      /tables\.jsonl:1: the record has more than 3000/,
    )
  })

  it('of any kind end in a sound dataset or in an InputError, and leave nothing behind', async () => {
    const parts = {
      'q.jsonl': [
        asked(
          [answer('Tay', { table_indices: [[1, 1]], text_instances: [at('x', 2, 'river')] })],
          {
            text_doc_ids: ['x'],
            image_doc_ids: ['i1'],
            intermediate_answers: [[answer('a', { table_indices: [[0, 0]] })]],
          },
          { supporting_context: [{ doc_id: 'i1', doc_part: 'image' }] },
        ),
        asked([answer('Awe', { table_indices: [[1, 0]] })], { table_id: 't2' }, { qid: 'q2' }),
      ],
      'tables.jsonl': [table(), joined],
      'texts.jsonl': [text('x', 'A river. An otter.')],
      'images.jsonl': [image('i1')],
    }
    const name = fc.constantFrom(...(Object.keys(parts) as (keyof typeof parts)[]))
    const damage = name.chain((file) => {
      const whole = parts[file] as object[]
      const bytes = fc.oneof(
        damagedBytes(Buffer.from(lines(...whole))),
        damagedValue(whole).map((value) => Buffer.from(lines(...(Array.isArray(value) ? value : [value])))),
      )
      return fc.tuple(fc.constant(file), bytes, fc.constantFrom('stop' as const, 'skip' as const))
    })
    const seen = { imported: 0, refused: 0 }
    await fc.assert(
      fc.asyncProperty(damage, async ([file, bytes, onError]) => {
        const folder = temporaryFolder()
        for (const [other, content] of Object.entries(parts)) writeFileSync(join(folder, other), lines(...content))
        writeFileSync(join(folder, file), bytes)
        const inputs = Object.keys(parts).map((other) => join(folder, other))
        const output = join(temporaryFolder(), 'data')
        seen[await sound(output, () => importMmqa({ inputs, output, split: 'dev', onError }), IMAGE_IS_MISSING)]++
        expect(readdirSync(dirname(output)).filter((entry) => entry !== 'data')).toEqual([])
      }),
      { numRuns: 150 },
    )
    expect(Math.min(seen.imported, seen.refused)).toBeGreaterThan(15)
  }, 60_000)
})

it.skipIf(!existsSync(cli))('runs from the command line', async () => {
  const folder = temporaryFolder()
  const contents = {
    'q.jsonl': lines(asked([answer('Tay', { table_indices: [[1, 1]] })])),
    'tables.jsonl': lines(table()),
  }
  for (const [name, content] of Object.entries(contents)) writeFileSync(join(folder, name), content)
  const inputs = Object.keys(contents).map((name) => join(folder, name))
  const output = join(folder, 'data')
  const { code, stdout } = await canopy([
    'import',
    'mmqa',
    '--input',
    ...inputs,
    '--split',
    'dev',
    '--output',
    output,
    '--json',
  ]).finished
  expect(code).toBe(0)
  expect(JSON.parse(stdout)).toMatchObject({ benchmark: 'mmqa', questions: 1, gold: 1, dropped: [] })
})

const shared = sharedDir()

describe.skipIf(shared === undefined)('the staged questions (third-party data beside the repository)', () => {
  const file = (name: string): string => join(shared!, 'data/mmqa', name)

  it('give rows of the joined tables and images; the rest is counted', async () => {
    const { summary, questions, items, left } = await importedFrom(
      ['dev_questions.jsonl', 'images_meta.jsonl', 'joined_tables.jsonl'].map(file),
    )
    expect(summary).toMatchObject({ questions: 239, gold: 291, skipped: 0 })
    expect(left).toEqual({
      'in a text that is not at hand': 319,
      'in a table that is not at hand': 264,
      'a text without a place, as of a yes/no answer': 24,
      'supporting context without a place': 78,
      'without evidence at hand': 361,
    })
    const withRows = questions.filter(({ gold }) => gold.some((entry) => 'rows' in entry))
    expect(withRows).toHaveLength(24)
    expect([...items.values()].filter(({ modality }) => modality === 'table')).toHaveLength(10)
  }, 60_000)

  it('oracle passages carry neither ids nor places and are refused', async () => {
    await expect(importedFrom([file('train_text_oracle.jsonl')])).rejects.toThrow(
      /train_text_oracle\.jsonl:1: not a valid mmqa question: "qid"/,
    )
  })
})

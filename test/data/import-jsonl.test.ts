import { existsSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { checkDataset, importJsonl, type JsonlOptions, type JsonlSummary, openDataset } from '../../src/data/index.ts'
import {
  buildHierarchy,
  goldLeaves,
  type Item,
  type OffsetUnit,
  type Question,
  type TextItem,
} from '../../src/hierarchy/index.ts'
import { lines, snapshot, temporaryFolder } from '../support/temporary.ts'

interface Imported {
  folder: string
  summary: JsonlSummary
  questions: Question[]
  items: Map<string, Item>
}

async function importLines(content: string | Uint8Array, options: Partial<JsonlOptions> = {}): Promise<Imported> {
  const parent = temporaryFolder()
  const input = join(parent, 'in.jsonl')
  writeFileSync(input, content)
  const folder = join(parent, 'data')
  const summary = await importJsonl({ inputs: [input], output: folder, split: 'train', ...options })
  return { folder, summary, ...(await contentOf(folder)) }
}

async function contentOf(folder: string): Promise<{ questions: Question[]; items: Map<string, Item> }> {
  const dataset = await openDataset(folder)
  const questions: Question[] = []
  const items = new Map<string, Item>()
  for await (const { question } of dataset.questions()) questions.push(question)
  for await (const { item } of dataset.items()) items.set(item.id, item)
  await dataset.close()
  await checkDataset(folder, (fault) => expect(fault).toBeUndefined())
  return { questions, items }
}

/** Offset of a UTF-16 position in another unit, by encoding what stands before it. */
const inUnit = (text: string, position: number, unit: OffsetUnit): number => {
  const before = text.slice(0, position)
  return unit === 'utf16' ? before.length : unit === 'byte' ? Buffer.byteLength(before) : [...before].length
}

const units = ['utf16', 'codepoint', 'byte'] as const

describe('offsets', () => {
  const text = '🦦🦦 Otters – Ünïcode!\r\nThey hold 🤝 hands.\r\n\r\nIn Zürich they say “Fischotter” 🐟. The end.\r\n'
  const sentences = ['🦦🦦 Otters – Ünïcode!', 'They hold 🤝 hands.', 'In Zürich they say “Fischotter” 🐟.', 'The end.']
  const gold = ['hold 🤝 hands', '🐟. The']

  it('of any unit, with or without expected text, and quotes give the same gold, emoji and CRLF and all', async () => {
    const results: { gold: unknown; sentences: unknown; leaves: boolean[] }[] = []
    const add = async (entry: object, unit: OffsetUnit): Promise<void> => {
      const item = {
        id: 'otters',
        text,
        sentences: sentences.map((s) => {
          const start = text.indexOf(s)
          return [inUnit(text, start, unit), inUnit(text, start + s.length, unit)]
        }),
      }
      const question = { id: 1, question: 'What?', gold: [{ item: 'otters', ...entry }] }
      const { questions, items } = await importLines(lines(item, question), { offsets: unit })
      const stored = items.get('otters') as TextItem
      const leaves = goldLeaves(buildHierarchy(stored), questions[0]!.gold[0]!)
      expect(leaves.dropped).toEqual([])
      results.push({ gold: questions[0]!.gold, sentences: stored.sentences, leaves: leaves.gold })
    }
    for (const unit of units) {
      const spans = gold.map((quote): [number, number, string] => {
        const start = text.indexOf(quote)
        return [inUnit(text, start, unit), inUnit(text, start + quote.length, unit), quote]
      })
      await add({ spans }, unit)
      await add({ spans: spans.map(([start, end]) => [start, end]) }, unit)
      await add({ quotes: gold }, unit)
    }
    expect(results[0]!.leaves).toEqual([false, true, true, true])
    for (const result of results) expect(result).toEqual(results[0])
  })

  it('mark the same characters in every unit, for any text and span', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.constantFrom('a', 'é', '字', '😀', '👩‍🚀', ' ', '\r\n', '.', '"', '\u2028'), {
          minLength: 1,
          maxLength: 20,
        }),
        fc.nat(),
        fc.nat(),
        async (parts, a, b) => {
          const whole = `x${parts.join('')}y`
          const points = [...whole]
          const [from, to] = [a % points.length, b % points.length].sort((x, y) => x - y) as [number, number]
          const start = points.slice(0, from).join('').length
          const end = start + points.slice(from, to + 1).join('').length
          const marked = whole.slice(start, end).trim()
          const found = await Promise.all(
            units.map(async (unit) => {
              const spans = [[inUnit(whole, start, unit), inUnit(whole, end, unit)]]
              const content = lines({ id: 'a', text: whole }, { id: 'q', question: '?', gold: [{ item: 'a', spans }] })
              const { questions, summary } = await importLines(content, { offsets: unit })
              expect(summary.dropped.length).toBe(marked === '' ? 1 : 0)
              return questions[0]!.gold
            }),
          )
          for (const entries of found) {
            expect(entries).toEqual(found[0])
            const texts = entries
              .flatMap((entry) => ('spans' in entry ? entry.spans : []))
              .map(([s, e]) => whole.slice(s, e))
            expect(texts).toEqual(marked === '' ? [] : [marked])
          }
        },
      ),
      { numRuns: 15 },
    )
  })
})

describe('importing jsonl', () => {
  it('fills in sentences, split, benchmark and source, and takes numbers for ids without losing a digit', async () => {
    const { questions, items, summary, folder } = await importLines(
      '{"id": 12345678901234567890, "text": "One. Two.", "title": "T"}\n' +
        '{"id": 7, "question": "?", "gold": [{"item": 12345678901234567890, "spans": [[0, 4]]}], "retrieved": [12345678901234567890]}\n',
      { benchmark: 'mine', name: 'My data', licence: 'CC0' },
    )
    expect(items.get('12345678901234567890')).toEqual({
      id: '12345678901234567890',
      modality: 'text',
      title: 'T',
      text: 'One. Two.',
      sentences: [
        [0, 4],
        [4, 9],
      ],
    })
    expect(questions).toEqual([
      {
        id: '7',
        benchmark: 'mine',
        split: 'train',
        question: '?',
        answers: [],
        source: '12345678901234567890',
        gold: [{ item: '12345678901234567890', spans: [[0, 4]] }],
        retrieved: ['12345678901234567890'],
      },
    ])
    expect(summary).toMatchObject({ records: 2, questions: 1, gold: 1, items: { added: 1, merged: 0 }, dropped: [] })
    expect((await openDataset(folder)).meta).toMatchObject({ name: 'My data', benchmark: 'mine', licence: 'CC0' })
  })

  it('reads several files in any order, a folder, and questions before their items', async () => {
    const parent = temporaryFolder()
    writeFileSync(
      join(parent, 'questions.jsonl'),
      lines({ id: 'q', question: '?', gold: [{ item: 'a', whole: true }] }),
    )
    writeFileSync(join(parent, 'items.jsonl'), lines({ id: 'a', text: 'One.' }))
    for (const [i, inputs] of [[parent], [join(parent, 'questions.jsonl'), join(parent, 'items.jsonl')]].entries()) {
      const output = join(temporaryFolder(), `out${i}`)
      await importJsonl({ inputs, output, split: 'train' })
      expect((await contentOf(output)).questions[0]!.gold).toEqual([{ item: 'a', whole: true }])
    }
  })

  it('merges the gold entries of an item, and spans and quotes that say the same', async () => {
    const { questions } = await importLines(
      lines(
        { id: 'a', text: 'One. Two. Three.' },
        {
          id: 'q',
          question: '?',
          gold: [
            { item: 'a', spans: [[5, 9]] },
            { item: 'a', quotes: ['One.', 'Two.'] },
          ],
        },
      ),
    )
    expect(questions[0]!.gold).toEqual([
      {
        item: 'a',
        spans: [
          [0, 4],
          [5, 9],
        ],
      },
    ])
  })

  it('clips spans, drops empty ones, leaves unknown fields out, and counts all of it with its place', async () => {
    const { questions, summary } = await importLines(
      lines(
        { id: 'a', text: 'One.  Two.', url: 'x' },
        {
          id: 'q',
          question: '?',
          gold: [
            {
              item: 'a',
              spans: [
                [6, 99],
                [4, 6],
                [3, 3],
              ],
            },
          ],
        },
      ),
    )
    expect(questions[0]!.gold).toEqual([{ item: 'a', spans: [[6, 10]] }])
    expect(summary.dropped.map(({ what, reason, count }) => [what, reason, count])).toEqual([
      ['annotation', 'the field "url", which the format does not know', 1],
      ['annotation', 'the part of a span that lies outside of its text', 1],
      ['annotation', 'a span of white space only', 1],
      ['annotation', 'an empty span', 1],
    ])
    expect(summary.dropped[1]!.places[0]).toMatch(/in\.jsonl:2: span \[6, 99\) of item "a"/)
  })

  it('adds a second split whose items were there before', async () => {
    const { folder } = await importLines(lines({ id: 'a', text: 'One.' }, { id: 'q', question: '?', gold: [] }))
    const input = join(temporaryFolder(), 'dev.jsonl')
    writeFileSync(
      input,
      lines({ id: 'a', text: 'One.' }, { id: 'q', question: '?', gold: [{ item: 'a', whole: true }] }),
    )
    const summary = await importJsonl({ inputs: [input], output: folder, split: 'dev' })
    expect(summary.items).toEqual({ added: 0, merged: 1 })
    expect((await contentOf(folder)).questions.map(({ split }) => split)).toEqual(['train', 'dev'])
  })
})

const a = { id: 'a', text: 'Old 🦦 otters. They swim.' }
const ask = (gold: object, more: object = {}): object => ({
  id: 'q',
  question: '?',
  gold: [{ item: 'a', ...gold }],
  ...more,
})

describe('a fault', () => {
  const faults: [string, string | Uint8Array, RegExp, Partial<JsonlOptions>?][] = [
    ['malformed JSON', `${lines(a)}{"id": "q", "question": }\n`, /in\.jsonl:2: not valid JSON/],
    ['a cut file', lines(a) + lines(ask({ whole: true })).slice(0, 30), /in\.jsonl:2: not valid JSON.*cut off/],
    ['Latin-1', Buffer.from(lines({ id: 'a', text: 'Zürich.' }), 'latin1'), /in\.jsonl:1: not UTF-8/],
    [
      'a gigantic line',
      lines({ id: 'a', text: 'x'.repeat(9000) }),
      /in\.jsonl:1: the record has more than 5000 bytes/,
      { maxRecordBytes: 5000 },
    ],
    ['no object', '[1]\n', /in\.jsonl:1: a JSON object was expected/],
    ['an item without id', lines({ text: 'One.' }), /in\.jsonl:1: not a valid item: "id": expected an id/],
    [
      'an item without modality',
      lines({ id: 'x', txt: 'One.' }),
      /in\.jsonl:1: not a valid item \("x"\): "modality": is missing \(text, table, image or video\)$/,
    ],
    [
      'an item of no known modality',
      lines({ id: 'x', modality: 'audio' }),
      /in\.jsonl:1: not a valid item \("x"\): "modality": is none of text, table, image and video$/,
    ],
    ['an item without text', lines({ id: 'a', text: ' ' }), /in\.jsonl:1: .*empty or only white space/],
    [
      'one id with two contents',
      lines(a, { id: 'a', text: 'Other.' }),
      /in\.jsonl:2: the item "a" has another content than at .*in\.jsonl:1/,
    ],
    [
      'a question twice',
      lines(a, ask({ whole: true }), ask({ spans: [[0, 3]] })),
      /in\.jsonl:3: the question "q" has another content than at .*in\.jsonl:2/,
    ],
    [
      'a span outside',
      lines(a, ask({ spans: [[30, 40]] })),
      /in\.jsonl:2: span \[30, 40\) lies outside of the text of item "a", which has 25 UTF-16 code units.*--offsets/,
    ],
    ['a negative span', lines(a, ask({ spans: [[-5, -1]] })), /in\.jsonl:2: span \[-5, -1\) lies outside/],
    ['an inverted span', lines(a, ask({ spans: [[5, 1]] })), /in\.jsonl:2: span \[5, 1\) .* ends before it starts/],
    [
      'a span inside a character',
      lines(a, ask({ spans: [[0, 5]] })),
      /in\.jsonl:2: span \[0, 5\) of item "a" cuts a character/,
    ],
    [
      'bytes inside a character',
      lines(a, ask({ spans: [[0, 6]] })),
      /in\.jsonl:2: Byte offset 6 lies inside a character/,
      { offsets: 'byte' },
    ],
    [
      'an unexpected text',
      lines(a, ask({ spans: [[6, 12, 'otters']] })),
      /in\.jsonl:2: .*expects "otters", but the text there is " otter"; it stands at \[7, 13\) with --offsets utf16, \[6, 12\) with --offsets codepoint, \[9, 15\) with --offsets byte/,
    ],
    [
      'an absent quote',
      lines(a, ask({ quotes: ['THEY swim'] })),
      /in\.jsonl:2: The quote "THEY swim" is not in the text letter for letter; close to it: \[15, 24\)/,
    ],
    [
      'an ambiguous quote',
      lines({ id: 'a', text: 'It is. It is.' }, ask({ quotes: ['It is.'] })),
      /in\.jsonl:2: The quote "It is\." stands in several places: \[0, 6\).*\[7, 13\)/,
    ],
    [
      'a missing gold item',
      lines(ask({ whole: true })),
      /in\.jsonl:1: the gold of question "q" names the item "a", which no input holds/,
    ],
    [
      'a missing retrieved item',
      lines(a, ask({ whole: true }, { retrieved: ['b'] })),
      /in\.jsonl:2: .*names the item "b", which is not there/,
    ],
    [
      'gold of another modality',
      lines(a, ask({ rows: [0] })),
      /in\.jsonl:2: the gold of the text item "a" gives "rows"/,
    ],
    ['gold without a location', lines(a, ask({})), /in\.jsonl:2: .*give exactly one of "spans"/],
    [
      'a row outside',
      lines({ id: 'a', modality: 'table', header: ['h'], rows: [['1']] }, ask({ rows: [1] })),
      /in\.jsonl:2: gold row 1 of item "a" is not there/,
    ],
    [
      'overlapping sentences',
      lines({
        ...a,
        sentences: [
          [0, 14],
          [13, 24],
        ],
      }),
      /in\.jsonl:1: Sentence 1 .* starts before the previous one ends/,
    ],
    ['sentences that leave text out', lines({ ...a, sentences: [[0, 14]] }), /in\.jsonl:1: .*leave out " They swim\."/],
    [
      'a path that escapes',
      lines({ id: 'a', modality: 'image', image: '../x.jpg' }),
      /in\.jsonl:1: The path "\.\.\/x\.jpg" leaves/,
    ],
    [
      'a path from the root',
      lines({ id: 'a', modality: 'video', video: '/x.mp4', start: 0, end: 1 }),
      /in\.jsonl:1: The path "\/x\.mp4" leaves the folder \S+data; give a path relative to it/,
    ],
    [
      'a URL',
      lines({ id: 'a', modality: 'image', image: 'https://x.test/a.png' }),
      /in\.jsonl:1: "https:\/\/x\.test\/a\.png" is a URL, and URLs are not read/,
    ],
    [
      'a point in time that is no pair',
      lines({ id: 'v', modality: 'video', start: 0, end: 190 }, ask({ item: 'v', times: [[100, 110], 170] })),
      /in\.jsonl:2: .*"gold\[0\]\.times\[1\]": expected \[start, end\] in seconds; a point in time is \[170, 170\]/,
    ],
    [
      'another split',
      lines(a, ask({ whole: true }, { split: 'dev' })),
      /in\.jsonl:2: .*of the split "dev", but --split says "train"/,
    ],
    [
      'two benchmarks',
      lines(a, ask({ whole: true }, { benchmark: 'x' }), { ...ask({ whole: true }), id: 'r', benchmark: 'y' }),
      /in\.jsonl:3: .*benchmark "y", others of "x"/,
    ],
    [
      'a video without a segment',
      lines({ id: 'v', modality: 'video', start: 0, end: 0.0001 }),
      /in\.jsonl:1: The video item "v" goes from 0 s to 0\.0001 s/,
    ],
    [
      'a video of ages',
      lines({ id: 'v', modality: 'video', start: 0, end: 1e12 }),
      /in\.jsonl:1: The video item "v" lasts 1000000000000 s/,
    ],
    [
      'a time that only touches its video',
      lines({ id: 'v', modality: 'video', start: 0, end: 190 }, ask({ item: 'v', times: [[190, 200]] })),
      /in\.jsonl:2: the gold time \[190,200\] lies outside of item "v"/,
    ],
    [
      'a row that makes every other one gigantic',
      lines({
        id: 't',
        modality: 'table',
        header: ['a'],
        rows: [new Array(20_000).fill(''), ...new Array(999).fill([''])],
      }),
      /in\.jsonl:1: not a valid item \("t"\): has more than \d+ cells/,
    ],
    ['no question', lines(a), /no question is left to import/],
  ]

  it.each(faults)(
    '(%s) stops the import with its place, and nothing is written',
    async (_, content, message, options) => {
      const parent = temporaryFolder()
      const input = join(parent, 'in.jsonl')
      writeFileSync(input, content)
      const importing = importJsonl({ inputs: [input], output: join(parent, 'data'), split: 'train', ...options })
      await expect(importing).rejects.toThrow(message)
      expect(readdirSync(parent)).toEqual(['in.jsonl'])
    },
  )

  it('counts pictures and videos that are not in the folder', async () => {
    const content = lines(
      { id: 'i', modality: 'image', image: 'media/i.png' },
      { id: 'v', modality: 'video', video: 'v.mp4', start: 0, end: 60 },
      { id: 'w', modality: 'video', start: 0, end: 60 },
      ask({ item: 'v', times: [[10, 10]] }),
    )
    const { folder, summary } = await importLines(content)
    expect(summary.missingMedia).toEqual({ items: 2, paths: ['media/i.png', 'v.mp4'] })
    const input = join(folder, '..', 'in.jsonl')
    writeFileSync(join(folder, 'v.mp4'), '')
    writeFileSync(input, content)
    const again = await importJsonl({ inputs: [input], output: folder, split: 'dev' })
    expect(again.missingMedia).toEqual({ items: 1, paths: ['media/i.png'] })
    expect((await importLines(lines(a, ask({ whole: true })))).summary).not.toHaveProperty('missingMedia')
  })

  it('needs a split from somewhere', async () => {
    await expect(importLines(lines(a, ask({ whole: true })), { split: undefined })).rejects.toThrow(
      /in\.jsonl:2: .*no "split"/,
    )
  })

  it('is skipped and counted when that is asked for', async () => {
    const content = [
      lines(a, { id: 'b', text: '' }, { id: 'c', text: 'Fine.' }),
      'nonsense\n',
      lines(
        ask({ spans: [[0, 3]] }),
        { ...ask({ spans: [[90, 99]] }), id: 'r' },
        { id: 's', question: '?', gold: [{ item: 'b', whole: true }] },
      ),
      '{"id": "t", "quest',
    ].join('')
    const { summary, questions, items } = await importLines(content, { onError: 'skip' })
    expect(questions.map(({ id }) => id)).toEqual(['q'])
    expect([...items.keys()]).toEqual(['a', 'c'])
    expect(summary).toMatchObject({ records: 8, questions: 1, skipped: 5 })
    expect(summary.dropped[0]!.places.map((place) => /in\.jsonl:(\d+): /.exec(place)?.[1])).toEqual(
      // items are read first, questions after them
      ['2', '4', '8', '6', '7'],
    )
  })

  it('in a second split leaves the dataset as it was', async () => {
    const { folder } = await importLines(lines(a, ask({ whole: true })))
    const before = await snapshot(folder)
    const input = join(temporaryFolder(), 'dev.jsonl')
    for (const content of [
      lines({ ...a, text: 'Other.' }, ask({ whole: true })),
      lines(a, ask({ spans: [[70, 80]] })),
    ]) {
      writeFileSync(input, content)
      await expect(importJsonl({ inputs: [input], output: folder, split: 'dev' })).rejects.toThrow(/dev\.jsonl:/)
      expect(await snapshot(folder)).toEqual(before)
    }
    expect(readdirSync(join(folder, '..')).sort()).toEqual(['data', 'in.jsonl'])
  })
})

it('never crashes on any input: it imports, or says what is wrong', async () => {
  const field = fc.oneof(
    { arbitrary: fc.jsonValue(), weight: 1 },
    { arbitrary: fc.constantFrom('a', 'b', 'text', [[0, 1]], [{ item: 'a', spans: [[0, 1]] }], []), weight: 3 },
  )
  const record = fc.dictionary(
    fc.constantFrom(
      'id',
      'modality',
      'text',
      'sentences',
      'question',
      'gold',
      'answers',
      'split',
      'retrieved',
      '__proto__',
      'x',
    ),
    field,
  )
  await fc.assert(
    fc.asyncProperty(
      fc.array(record, { maxLength: 4 }),
      fc.constantFrom('stop' as const, 'skip' as const),
      async (records, onError) => {
        const parent = temporaryFolder()
        writeFileSync(join(parent, 'in.jsonl'), lines({ id: 'a', text: 'One. Two.' }, ...records))
        const output = join(parent, 'data')
        const result = await importJsonl({ inputs: [join(parent, 'in.jsonl')], output, split: 's', onError }).catch(
          (e: Error) => e,
        )
        if (result instanceof Error) {
          expect(result.name, result.stack).toBe('InputError')
          expect(existsSync(output)).toBe(false)
        } else await contentOf(output)
      },
    ),
    { numRuns: 150 },
  )
})

import { cpSync, existsSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { checkDataset, type Fault, openDataset, openDatasetWriter, splitHash } from '../../src/data/index.ts'
import { buildItemIndex, openItemIndex } from '../../src/data/index-file.ts'
import type { Question, TextItem } from '../../src/hierarchy/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { lines, snapshot, temporaryFolder } from '../support/temporary.ts'

const item = (id: string, text = `Text of ${id}. It has two sentences.`): TextItem => ({ id, modality: 'text', text })

const question = (id: string, split: string, items: string[], more: Partial<Question> = {}): Question => ({
  id,
  benchmark: 'test',
  split,
  question: `What is ${id}?`,
  answers: [],
  gold: items.map((name) => ({ item: name, spans: [[0, 4]] })),
  ...more,
})

/** Writes a split of a dataset; items are those that the questions name. */
async function write(folder: string, questions: Question[], items?: TextItem[]): Promise<void> {
  const writer = await openDatasetWriter({ folder, benchmark: 'test' })
  try {
    const named = new Set(questions.flatMap((q) => [...q.gold.map((gold) => gold.item), ...(q.retrieved ?? [])]))
    for (const entry of items ?? [...named].map((id) => item(id))) await writer.addItem(entry, { file: 'in', line: 1 })
    for (const [i, entry] of questions.entries()) await writer.addQuestion(entry, { file: 'in', line: i + 1 })
    await writer.commit()
  } finally {
    await writer.abort()
  }
}

async function questionsOf(folder: string, split?: string): Promise<Question[]> {
  const dataset = await openDataset(folder)
  const found: Question[] = []
  for await (const record of dataset.questions(split)) found.push(record.question)
  await dataset.close()
  return found
}

async function hashOf(folder: string, split: string): Promise<string> {
  const dataset = await openDataset(folder)
  try {
    return await splitHash(dataset, split)
  } finally {
    await dataset.close()
  }
}

async function faultsOf(folder: string): Promise<Fault[]> {
  const faults: Fault[] = []
  await checkDataset(folder, (fault) => faults.push(fault))
  return faults
}

describe('a dataset', () => {
  it('gives back questions by split and items by id', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('q1', 'train', ['a', 'b']), question('q2', 'dev', ['c'])])
    const dataset = await openDataset(folder)
    expect(dataset.meta).toMatchObject({
      name: 'data',
      benchmark: 'test',
      splits: { train: { questions: 1 }, dev: { questions: 1 } },
      counts: { items: 3, questions: 2 },
    })
    expect(await dataset.item('b')).toEqual(item('b'))
    expect(await dataset.item('c')).toEqual(item('c'))
    await expect(dataset.item('d')).rejects.toThrow(/there is no item "d"/)
    await dataset.close()
    expect((await questionsOf(folder, 'dev')).map(({ id }) => id)).toEqual(['q2'])
    expect((await questionsOf(folder)).map(({ id }) => id)).toEqual(['q1', 'q2'])
    await expect(questionsOf(folder, 'test')).rejects.toThrow(/no split "test"; it has "train", "dev"/)
    expect(await faultsOf(folder)).toEqual([])
  })

  it('is found wanting without dataset.json, with the way to make one', async () => {
    await expect(openDataset(temporaryFolder())).rejects.toThrow(/dataset\.json: no such file; "canopy import"/)
  })

  it('finds items after items.jsonl was edited by hand', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('q1', 'train', ['a', 'b'])])
    writeFileSync(join(folder, 'items.jsonl'), lines(item('b', 'Longer than it was before.'), item('a'), item('z')))
    const dataset = await openDataset(folder)
    expect(await dataset.item('a')).toEqual(item('a'))
    expect(await dataset.item('b')).toEqual(item('b', 'Longer than it was before.'))
    expect(await dataset.item('z')).toEqual(item('z'))
    await dataset.close()
  })

  it('is readable without its index, which is not written behind the back of its owner', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('q1', 'train', ['a'])])
    const copy = join(temporaryFolder(), 'copy')
    cpSync(folder, copy, { recursive: true, filter: (path) => !path.endsWith('items.index') })
    const dataset = await openDataset(copy)
    expect(await dataset.item('a')).toEqual(item('a'))
    await dataset.close()
    expect(readdirSync(copy).sort()).toEqual(['dataset.json', 'items.jsonl', 'questions.jsonl'])
  })
})

describe('the index of items', () => {
  it('finds every item and no other, however many runs are merged', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(fc.string({ minLength: 1, unit: 'binary' }), { maxLength: 40 }),
        fc.integer({ min: 1, max: 50 }),
        async (ids, inMemory) => {
          const folder = temporaryFolder()
          const [file, indexFile] = [join(folder, 'items.jsonl'), join(folder, 'items.index')]
          writeFileSync(file, lines(...ids.map((id) => item(id))))
          await buildItemIndex(file, indexFile, inMemory)
          const index = await openItemIndex(file, indexFile)
          const bytes = readFileSync(file)
          for (const [i, id] of ids.entries()) {
            const { offset, length, line } = (await index.find(id))!
            expect(JSON.parse(bytes.subarray(offset, offset + length).toString())).toEqual(item(id))
            expect(line).toBe(i + 1)
          }
          expect(await index.find(`${ids.join('')}x`)).toBeUndefined()
          await index.close()
        },
      ),
      { numRuns: 40 },
    )
  })

  it('finds items among thousands', async () => {
    const folder = temporaryFolder()
    const file = join(folder, 'items.jsonl')
    writeFileSync(file, lines(...Array.from({ length: 20_000 }, (_, i) => item(`item ${i}`, 'Text.'))))
    await buildItemIndex(file, join(folder, 'items.index'), 3000)
    const index = await openItemIndex(file, join(folder, 'items.index'))
    expect(index.count).toBe(20_000)
    for (let i = 0; i < 20_000; i += 617) expect((await index.find(`item ${i}`))?.line).toBe(i + 1)
    expect(await index.find('item 20000')).toBeUndefined()
    await index.close()
  })

  it.each([2, 100])('refuses one id with two contents (%i in memory)', async (inMemory) => {
    const folder = temporaryFolder()
    const file = join(folder, 'items.jsonl')
    writeFileSync(file, lines(item('a'), item('b'), item('c'), item('a'), item('b', 'Other.')))
    await expect(buildItemIndex(file, join(folder, 'items.index'), inMemory)).rejects.toThrow(
      /items\.jsonl:5: the item "b" stands on line 2 already, with another content/,
    )
  })
})

describe('the writer', () => {
  it('leaves nothing of an import that is given up', async () => {
    const parent = temporaryFolder()
    const writer = await openDatasetWriter({ folder: join(parent, 'data'), benchmark: 'test' })
    await writer.addItem(item('a'), { file: 'in', line: 1 })
    await writer.abort()
    expect(readdirSync(parent)).toEqual([])
  })

  it('refuses an empty name, which no dataset could be opened under', async () => {
    const parent = temporaryFolder()
    const opened = openDatasetWriter({ folder: join(parent, 'data'), benchmark: 'test', name: '' })
    await expect(opened).rejects.toThrow(/the name of the dataset is empty/)
    expect(readdirSync(parent)).toEqual([])
  })

  it('fills an empty folder that is there, and follows a link to one, first split and second', async () => {
    const [parent, elsewhere] = [temporaryFolder(), temporaryFolder()]
    const link = join(parent, 'data')
    symlinkSync(elsewhere, link)
    await write(link, [question('q1', 'train', ['a'])])
    await write(link, [question('q2', 'dev', ['b'])])
    expect(await faultsOf(link)).toEqual([])
    expect(readdirSync(parent)).toEqual(['data'])
    expect(readdirSync(elsewhere).sort()).toEqual(['dataset.json', 'items.index', 'items.jsonl', 'questions.jsonl'])
  })

  it('adds a split and keeps the first one as it was, its hash included', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('q1', 'train', ['a', 'b'])])
    const before = await hashOf(folder, 'train')
    await write(folder, [question('q2', 'dev', ['b', 'c'])])
    expect((await questionsOf(folder)).map(({ id }) => id)).toEqual(['q1', 'q2'])
    expect(await hashOf(folder, 'train')).toBe(before)
    expect(await faultsOf(folder)).toEqual([])
  })

  it('gives an added split the same hash wherever it is added', async () => {
    const [one, two] = [join(temporaryFolder(), 'data'), join(temporaryFolder(), 'data')]
    const train = [question('q1', 'train', ['a', 'b'], { source: 's' })]
    const dev = [question('q2', 'dev', ['c', 'b'], { source: 's' })]
    await write(one, train)
    await write(one, dev)
    await write(two, dev)
    await write(two, train)
    for (const split of ['train', 'dev']) expect(await hashOf(one, split)).toBe(await hashOf(two, split))
  })

  it('refuses a split that is there, another benchmark, and a folder that is something else', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('q1', 'train', ['a'])])
    const before = await snapshot(folder)
    await expect(write(folder, [question('q2', 'train', ['b'])])).rejects.toThrow(/has a split "train" already/)
    await expect(openDatasetWriter({ folder, benchmark: 'other' })).rejects.toThrow(
      /of the benchmark "test", not "other"/,
    )
    expect(await snapshot(folder)).toEqual(before)
    const other = temporaryFolder()
    writeFileSync(join(other, 'thesis.tex'), '')
    await expect(openDatasetWriter({ folder: other, benchmark: 'test' })).rejects.toThrow(/is not empty/)
    expect(readdirSync(other)).toEqual(['thesis.tex'])
  })

  it('refuses one id with two contents, also across splits, and changes nothing', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('q1', 'train', ['a'])])
    const before = await snapshot(folder)
    const clash = write(folder, [question('q2', 'dev', ['a'])], [item('a', 'Other text.')])
    await expect(clash).rejects.toThrow(/in:1: the item "a" has another content than at .*items\.jsonl:1/)
    const twice = write(folder, [question('q2', 'dev', ['a']), question('q2', 'dev', ['a'], { answers: ['x'] })])
    await expect(twice).rejects.toThrow(/in:2: the question "q2" has another content than at in:1/)
    expect(await snapshot(folder)).toEqual(before)
    expect(readdirSync(join(folder, '..'))).toEqual(['data'])
  })

  it('notices that another program changed the dataset meanwhile', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('q1', 'train', ['a'])])
    const writer = await openDatasetWriter({ folder, benchmark: 'test' })
    await write(folder, [question('q2', 'dev', ['b'])])
    await writer.addItem(item('c'), { file: 'in' })
    await writer.addQuestion(question('q3', 'other', ['c']), { file: 'in' })
    await expect(writer.commit()).rejects.toThrow(/another program changed the dataset/)
    await writer.abort()
    expect((await questionsOf(folder)).map(({ id }) => id)).toEqual(['q1', 'q2'])
  })

  it('loses nothing when it is killed between two of its renames', async () => {
    const [folder, after] = [join(temporaryFolder(), 'data'), join(temporaryFolder(), 'data')]
    const dev = [question('q2', 'dev', ['b', 'c'])]
    await write(folder, [question('q1', 'train', ['a', 'b'])])
    cpSync(folder, after, { recursive: true })
    await write(after, dev)
    const train = await hashOf(folder, 'train')
    for (const name of ['items.jsonl', 'items.index', 'questions.jsonl']) {
      cpSync(join(after, name), join(folder, name))
      expect(await hashOf(folder, 'train')).toBe(train)
      expect((await questionsOf(folder)).map(({ id }) => id)).toEqual(['q1'])
    }
    await write(folder, dev)
    for (const name of ['dataset.json', 'items.jsonl', 'questions.jsonl']) {
      expect(readFileSync(join(folder, name), 'utf8')).toBe(readFileSync(join(after, name), 'utf8'))
    }
  })

  it('takes names that objects have of their own for names', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('constructor', 'constructor', ['toString'])])
    expect(await faultsOf(folder)).toEqual([])
    expect((await questionsOf(folder, 'constructor')).length).toBe(1)
    await expect(questionsOf(folder, 'valueOf')).rejects.toThrow(InputError)
  })
})

describe('sources', () => {
  it('are shared exactly by questions that share gold items, directly or through others', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.uniqueArray(fc.integer({ min: 0, max: 12 }), { minLength: 1, maxLength: 3 }), {
          minLength: 1,
          maxLength: 12,
        }),
        async (goldItems) => {
          const folder = join(temporaryFolder(), 'data')
          await write(
            folder,
            goldItems.map((items, i) =>
              question(
                `q${i}`,
                'train',
                items.map((n) => `item ${n}`),
              ),
            ),
          )
          const sources = (await questionsOf(folder)).map(({ source }) => source)
          // reachability by repeated spreading
          const reach = goldItems.map((items) => new Set(items))
          for (let round = 0; round < goldItems.length; round++) {
            for (const a of reach) for (const b of reach) if ([...a].some((n) => b.has(n))) for (const n of b) a.add(n)
          }
          for (const [i, a] of reach.entries()) {
            for (const [j, b] of reach.entries()) {
              expect(sources[i] === sources[j]).toBe([...a].some((n) => b.has(n)))
            }
          }
        },
      ),
      { numRuns: 40 },
    )
  })

  it('of a second split are those of the first where they share gold items, and the first keeps its own', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('q1', 'train', ['a']), question('q2', 'train', ['b'])])
    const [first, second] = (await questionsOf(folder)).map(({ source }) => source)
    await write(folder, [question('q3', 'dev', ['b', 'c']), question('q4', 'dev', ['c']), question('q5', 'dev', ['d'])])
    const sources = (await questionsOf(folder)).map(({ source }) => source)
    expect(sources.slice(0, 4)).toEqual([first, second, second, second])
    expect(new Set([first, second, sources[4]]).size).toBe(3)
  })

  it('do not come from retrieved items', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [
      question('q1', 'train', ['a'], { retrieved: ['a', 'z'] }),
      question('q2', 'train', ['b'], { retrieved: ['z', 'b'] }),
    ])
    const [first, second] = (await questionsOf(folder)).map(({ source }) => source)
    expect(first).not.toBe(second)
  })
})

describe('splitHash', () => {
  it('changes with a question of the split and with an item that one names, and with nothing else', async () => {
    const base = [question('q1', 'train', ['a'], { retrieved: ['b'] }), question('q2', 'dev', ['c'])]
    const hash = async (questions: Question[], items: TextItem[]): Promise<string> => {
      const folder = join(temporaryFolder(), 'data')
      await write(folder, questions, items)
      return hashOf(folder, 'train')
    }
    const items = [item('a'), item('b'), item('c')]
    const expected = await hash(base, items)
    expect(await hash(base, [item('c'), item('d'), item('b'), item('a')])).toBe(expected)
    expect(await hash([base[0]!, question('q3', 'dev', ['c'])], items)).toBe(expected)
    expect(await hash(base, [item('a'), item('b'), item('c', 'Changed.')])).toBe(expected)
    expect(await hash(base, [item('a', 'Changed.'), item('b'), item('c')])).not.toBe(expected)
    expect(await hash(base, [item('a'), item('b', 'Changed.'), item('c')])).not.toBe(expected)
    expect(await hash([{ ...base[0]!, question: 'Other?' }, base[1]!], items)).not.toBe(expected)
  })

  it('names an item that is missing', async () => {
    const folder = join(temporaryFolder(), 'data')
    await write(folder, [question('q1', 'train', ['a', 'b'])])
    writeFileSync(join(folder, 'items.jsonl'), lines(item('a')))
    await expect(hashOf(folder, 'train')).rejects.toThrow(/items\.jsonl: there is no item "b"/)
  })
})

describe('checkDataset', () => {
  /** A folder whose `items.jsonl` and `questions.jsonl` are those lines, with a fitting dataset.json unless one is given. */
  function folderOf(items: unknown[], questions: unknown[], meta: object = {}): string {
    const folder = temporaryFolder()
    const text = (values: unknown[]): string =>
      values.map((value) => (typeof value === 'string' ? `${value}\n` : lines(value))).join('')
    writeFileSync(join(folder, 'items.jsonl'), text(items))
    writeFileSync(join(folder, 'questions.jsonl'), text(questions))
    const counts = { items: items.length, questions: questions.length }
    const splits = { train: { questions: questions.length } }
    const content = { schema: 'canopy-dataset/1', name: 'n', benchmark: 'test', splits, counts, ...meta }
    writeFileSync(join(folder, 'dataset.json'), JSON.stringify(content))
    return folder
  }
  const faultTexts = async (folder: string): Promise<string[]> =>
    (await faultsOf(folder)).map(({ file, line, message }) => `${file.slice(folder.length + 1)}:${line} ${message}`)

  it.each<[string, unknown[], unknown[], RegExp]>([
    ['malformed JSON', ['{"id":'], [], /^items\.jsonl:1 not valid JSON/],
    ['an unknown field', [{ ...item('a'), sentence: [] }], [], /^items\.jsonl:1 not a valid item \("a"\): .*sentence/],
    ['an empty text', [item('a', ' \n')], [], /^items\.jsonl:1 .*"text": is empty or only white space/],
    ['half a surrogate pair', [item('a', 'x \ud83d y')], [], /^items\.jsonl:1 .*half of a surrogate pair/],
    [
      'overlapping sentences',
      [
        {
          ...item('a', 'One. Two.'),
          sentences: [
            [0, 5],
            [4, 9],
          ],
        },
      ],
      [],
      /^items\.jsonl:1 Sentence 1/,
    ],
    ['sentences that leave text out', [{ ...item('a', 'One. Two.'), sentences: [[0, 4]] }], [], /leave out " Two\."/],
    [
      'two contents',
      [item('a'), item('a', 'Other.')],
      [],
      /^items\.jsonl:2 the item "a" has another content on line 1/,
    ],
    [
      'a path that escapes',
      [{ id: 'i', modality: 'image', image: '../../etc/passwd' }],
      [],
      /^items\.jsonl:1 The path .*leaves/,
    ],
    [
      'gold that is missing',
      [item('a')],
      [question('q', 'train', ['b'])],
      /^questions\.jsonl:1 .*names the item "b", which is not there/,
    ],
    [
      'retrieved that is missing',
      [item('a')],
      [question('q', 'train', ['a'], { retrieved: ['c'] })],
      /names the item "c"/,
    ],
    [
      'a span outside',
      [item('a', 'Short.')],
      [question('q', 'train', [], { gold: [{ item: 'a', spans: [[10, 12]] }] })],
      /^questions\.jsonl:1 .*span outside the text: \[10,12\]/,
    ],
    [
      'a span that leaves',
      [item('a', 'Short.')],
      [question('q', 'train', [], { gold: [{ item: 'a', spans: [[3, 12]] }] })],
      /the span \[3, 12\) leaves the text/,
    ],
    [
      'another text',
      [item('a', 'Short.')],
      [question('q', 'train', [], { gold: [{ item: 'a', spans: [[0, 5, 'Shirt']] }] })],
      /expects "Shirt"/,
    ],
    [
      'an absent quote',
      [item('a', 'Short.')],
      [question('q', 'train', [], { gold: [{ item: 'a', quotes: ['short'] }] })],
      /close to it: \[0, 5\)/,
    ],
    [
      'rows of a text',
      [item('a')],
      [question('q', 'train', [], { gold: [{ item: 'a', rows: [1] }] })],
      /gives rows; give spans/,
    ],
    [
      'a row outside',
      [{ id: 't', modality: 'table', header: ['a'], rows: [['1']] }],
      [question('q', 'train', [], { gold: [{ item: 't', rows: [1] }] })],
      /row 1 is not there; the table has 1/,
    ],
    [
      'a video without a segment',
      [{ id: 'v', modality: 'video', start: 0, end: 0.0001 }],
      [],
      /^items\.jsonl:1 The video item "v" goes from 0 s/,
    ],
    [
      'a time outside',
      [{ id: 'v', modality: 'video', start: 0, end: 190 }],
      [question('q', 'train', [], { gold: [{ item: 'v', times: [[190, 200]] }] })],
      /the time \[190,200\] lies outside of \[0, 190\] s/,
    ],
    [
      'two locations',
      [item('a')],
      [{ ...question('q', 'train', []), gold: [{ item: 'a', whole: true, rows: [1] }] }],
      /give exactly one of "spans"/,
    ],
    ['two entries', [item('a')], [question('q', 'train', ['a', 'a'])], /has a second entry/],
    [
      'a question twice',
      [item('a')],
      [question('q', 'train', ['a']), question('q', 'train', ['a'])],
      /^questions\.jsonl:2 the question "q" of this split stands on line 1/,
    ],
  ])('tells %s, once, with its place', async (_, items, questions, message) => {
    const faults = await faultTexts(
      folderOf(items, questions, {
        counts: {
          items: new Set(items.filter((entry) => typeof entry !== 'string').map((entry) => (entry as TextItem).id))
            .size,
          questions: 0,
        },
      }),
    )
    const told = faults.filter((fault) => !fault.startsWith('dataset.json'))
    expect(told).toHaveLength(1)
    expect(told[0]).toMatch(message)
  })

  it('tells every fault of a folder, not only the first', async () => {
    const folder = folderOf(
      [item('a'), 'nonsense', item('a', 'Other.'), item('b')],
      [question('q1', 'train', ['x']), '{', question('q2', 'train', ['y'])],
    )
    const told = await faultTexts(folder)
    expect(told.map((fault) => fault.split(' ')[0])).toEqual([
      'items.jsonl:2',
      'items.jsonl:3',
      'questions.jsonl:1',
      'questions.jsonl:2',
      'questions.jsonl:3',
      'dataset.json:undefined',
      'dataset.json:undefined',
      'dataset.json:undefined',
    ])
  })

  it('counts pictures and videos that are missing, which are a fault where media are needed', async () => {
    const folder = folderOf(
      [
        { id: 'i', modality: 'image', image: 'no.jpg' },
        { id: 'v', modality: 'video', video: 'no.mp4', start: 0, end: 60 },
        { id: 'w', modality: 'video', start: 0, end: 60 },
      ],
      [question('q1', 'train', ['i'])],
    )
    expect(await checkDataset(folder, () => {})).toMatchObject({ missingMedia: 2 })
    expect((await faultTexts(folder)).filter((fault) => fault.includes('no.'))).toEqual([])
    const faults: Fault[] = []
    const report = await checkDataset(folder, (fault) => faults.push(fault), { needsMedia: true })
    expect(report.missingMedia).toBe(2)
    expect(faults.filter(({ missing }) => missing !== undefined)).toMatchObject([
      { line: 1, missing: 'i', message: 'the image "no.jpg" of the item "i" is not in the folder' },
      { line: 2, missing: 'v', message: 'the video "no.mp4" of the item "v" is not in the folder' },
    ])
  })

  it('counts what is there', async () => {
    const folder = folderOf(
      [item('a', 'One. Two. Three.'), item('b', 'One.')],
      [question('q1', 'train', ['a', 'b']), question('q2', 'train', [], { retrieved: ['a'] })],
    )
    expect(await checkDataset(folder, (fault) => expect(fault).toBeUndefined())).toMatchObject({
      faults: 0,
      items: { text: 2, table: 0, image: 0, video: 0 },
      leaves: 4,
      oneLeafItems: 1,
      splits: { train: { questions: 2, gold: 2, withoutGold: 1, withRetrieved: 1 } },
    })
  })

  it('tells that dataset.json is missing, and goes on', async () => {
    const folder = temporaryFolder()
    writeFileSync(join(folder, 'items.jsonl'), 'x\n')
    writeFileSync(join(folder, 'questions.jsonl'), '')
    expect((await faultsOf(folder)).length).toBe(2)
    expect(existsSync(join(folder, 'dataset.json'))).toBe(false)
  })
})

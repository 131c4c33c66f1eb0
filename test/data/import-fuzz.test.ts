import { readdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  type ImportOptions,
  type ImportSummary,
  import2wiki,
  importHotpotqa,
  importLvbench,
  importNq,
} from '../../src/data/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { lines, snapshot, temporaryFolder } from '../support/temporary.ts'
import { damagedBytes, damagedValue, sound } from './damage.ts'

interface Format {
  importer: (options: ImportOptions & { split: string }) => Promise<ImportSummary>
  /** Records of each input, by the file's name. */
  files: Record<string, object[]>
  faults?: RegExp
}

const paragraphs = (id: string): object => ({
  _id: id,
  question: 'Who sang?',
  answer: 'Ann',
  context: [
    ['Ann', ['Ann sang.', ' She &amp; Bob left.', '']],
    ['Bob', [' Bob stayed.']],
    ['Ann', ['Another Ann.']],
  ],
  supporting_facts: [
    ['Ann', 1],
    ['Bob', 0],
  ],
})

const answers = (question: string): object => ({
  question,
  answers: ['Ann'],
  ctxs: [{ title: 'T', text: 'Elsewhere.', isgold: false }],
  nq_annotated_gold: { title: 'Ann', long_answer: 'Ann sang. Bob met Ann.', short_answers: ['Ann', 'Bob'] },
})

const tokens =
  '<H2> Films </H2> <P> Ann sang . </P> <Table> <Tr> <Th> Year </Th> <Th colspan="2"> Film </Th> </Tr> <Tr> <Td> 1990 </Td> <Td> Otter </Td> </Tr> <Tr> <Td> 1991 </Td> <Td> Seal </Td> </Tr> </Table>'.split(
    / (?![^<]*>)/,
  )
const isTag = (token: string): boolean => token.startsWith('<')
const range = (start: number, end: number): object => ({ start_token: start, end_token: end })
const long: Record<'text' | 'table', [number, number]> = { text: [3, 8], table: [8, tokens.length] }
const short = { text: tokens.indexOf('Ann'), table: tokens.indexOf('Seal') }
const official = (id: number): object => ({
  example_id: id,
  question_text: 'who sang',
  document_url: 'https://en.wikipedia.org//w/index.php?title=Ann_%26_Bob&amp;oldid=1',
  annotations: [
    { long_answer: range(...long.text), short_answers: [range(short.text, short.text + 1)], yes_no_answer: 'NONE' },
    { long_answer: range(...long.table), short_answers: [range(short.table, short.table + 1)], yes_no_answer: 'NONE' },
    { long_answer: range(-1, -1), short_answers: [], yes_no_answer: 'NONE' },
  ],
})
const original = (id: number): object => ({
  ...official(id),
  document_tokens: tokens.map((token) => ({ token, html_token: isTag(token) })),
})
const simplified = (id: number): object => ({
  ...official(id),
  document_text: tokens.map((token) => token.replaceAll(' ', '_')).join(' '),
})
const candidate = (part: 'text' | 'table'): object => ({
  metadata: { long_answer: range(...long[part]) },
  extractive: { single_answer: { instances: [{ token_inds: [short[part], short[part]] }] } },
})
const multiqa = (qid: string): object => ({
  title: 'Ann',
  url: 'u',
  tokens,
  is_html_token: tokens.map((token) => Number(isTag(token))),
  qas: [
    {
      qid,
      question: 'who sang',
      answers: { 'open-ended': { answer_candidates: [candidate('text'), candidate('table')] } },
    },
  ],
})

const asked = (index: string, time_reference: [number, number]): object => ({
  index,
  question: 'Who sings?\n(A) Ann\n(B) Bob',
  answer: 'B',
  time_reference,
  gt_videos: ['videos/abc.mp4'],
})

const FORMATS: Record<string, Format> = {
  hotpotqa: { importer: importHotpotqa, files: { 'in.json': [paragraphs('a'), paragraphs('b')] } },
  '2wiki': { importer: import2wiki, files: { 'in.json': [paragraphs('a'), paragraphs('b')] } },
  'nq, long and short answers': { importer: importNq, files: { 'in.jsonl': [answers('who'), answers('who else')] } },
  'nq, original pages': { importer: importNq, files: { 'in.jsonl': [original(1), original(2)] } },
  'nq, simplified pages': { importer: importNq, files: { 'in.jsonl': [simplified(1), simplified(2)] } },
  "nq, MultiQA's pages": { importer: importNq, files: { 'in.jsonl': [multiqa('a'), multiqa('b')] } },
  lvbench: {
    importer: importLvbench,
    files: {
      'q.json': [asked('a', [20, 65]), asked('b', [100, 100])],
      'official.jsonl': [
        { key: 'abc', qa: [{ uid: 7, question: 'Who?\n(A) Ann', answer: 'A', time_reference: '01:35-03:15' }] },
      ],
      'clips.jsonl': [
        {
          video: 'abc',
          title: 'Ann',
          clips: [
            { index: 0, start: 0, end: 100 },
            { index: 1, start: 100, end: 400.1234 },
          ],
        },
      ],
    },
    // items name videos that nobody has at hand
    faults: /^the file "videos\/[^"]*\.mp4" of item "\w+" is not there$/,
  },
}

/** One JSON value a line, or one JSON array, as the file's name says. */
const written = (name: string, records: unknown): string =>
  name.endsWith('.jsonl') && Array.isArray(records) ? lines(...records) : JSON.stringify(records)

/** One of the inputs damaged. */
function damage(files: Format['files']): fc.Arbitrary<{ name: string; bytes: Buffer; onError: 'stop' | 'skip' }> {
  return fc.constantFrom(...Object.keys(files)).chain((name) =>
    fc.record({
      name: fc.constant(name),
      bytes: fc.oneof(
        damagedBytes(Buffer.from(written(name, files[name]))),
        damagedValue(files[name]).map((value) => Buffer.from(written(name, value))),
      ),
      onError: fc.constantFrom('stop' as const, 'skip' as const),
    }),
  )
}

function inputs(files: Format['files'], changed: Record<string, Buffer> = {}): string[] {
  const folder = temporaryFolder()
  return Object.entries(files).map(([name, records]) => {
    writeFileSync(join(folder, name), changed[name] ?? written(name, records))
    return join(folder, name)
  })
}

describe.each(Object.entries(FORMATS))('%s', (_, { importer, files, faults }) => {
  it('imports damaged files soundly or refuses them, and leaves nothing behind', async () => {
    const seen = { imported: 0, refused: 0 }
    await fc.assert(
      fc.asyncProperty(damage(files), async ({ name, bytes, onError }) => {
        const output = join(temporaryFolder(), 'data')
        const options = { inputs: inputs(files, { [name]: bytes }), output, split: 'dev', onError }
        seen[await sound(output, () => importer(options), faults)]++
        expect(readdirSync(dirname(output)).filter((entry) => entry !== 'data')).toEqual([])
      }),
      { numRuns: 60 },
    )
    expect(Math.min(seen.imported, seen.refused)).toBeGreaterThan(5)
  }, 120_000)

  it('leaves a dataset as it was when a second split is refused', async () => {
    const parent = temporaryFolder()
    const output = join(parent, 'data')
    await importer({ inputs: inputs(files), output, split: 'train' })
    const before = await snapshot(parent)
    const [name, records] = Object.entries(files)[0]!
    const whole = Buffer.from(written(name, records))
    const damaged = [
      whole.subarray(0, -9),
      Buffer.from(whole.toString('utf8'), 'utf16le'),
      Buffer.from(written(name, [...records, null])),
    ]
    for (const bytes of damaged) {
      const importing = importer({ inputs: inputs(files, { [name]: bytes }), output, split: 'dev' })
      await expect(importing).rejects.toBeInstanceOf(InputError)
      expect(await snapshot(parent)).toEqual(before)
    }
  }, 60_000)

  it('refuses a record over the limit, naming its line, or counts it', async () => {
    const [name, records] = Object.entries(files)[0]!
    const huge = { ...records[0], padding: 'x'.repeat(20_000) }
    const changed = { [name]: Buffer.from(written(name, [huge, ...records.slice(1)])) }
    const run = (onError: 'stop' | 'skip'): Promise<ImportSummary> =>
      importer({
        inputs: inputs(files, changed),
        output: join(temporaryFolder(), 'data'),
        split: 'dev',
        maxRecordBytes: 10_000,
        onError,
      })
    await expect(run('stop')).rejects.toThrow(/\.jsonl?:1: the record has more than 10000 bytes/)
    const summary = await run('skip')
    expect(summary.skipped).toBe(1)
    expect(summary.dropped[0]!.places[0]).toMatch(/\.jsonl?:1: the record has more than 10000 bytes/)
  })
})

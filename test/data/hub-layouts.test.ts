import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { import2wiki, importHotpotqa, importNq } from '../../src/data/index.ts'
import { type ColumnType, writeParquet } from '../support/parquet.ts'
import { sharedDir } from '../support/shared.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

const PARAGRAPHS: Record<string, ColumnType> = {
  ...{ id: 'string', question: 'string', answer: 'string', type: 'string', level: 'string' },
  supporting_facts: { title: ['string'], sent_id: ['int32'] },
  context: { title: ['string'], sentences: [['string']] },
}
const TEXTS: Record<string, ColumnType> = {
  ...{ _id: 'string', type: 'string', question: 'string', context: 'string', supporting_facts: 'string' },
  ...{ evidences: 'string', answer: 'string' },
}
const PAGES: Record<string, ColumnType> = {
  id: 'string',
  document: {
    ...{ html: 'string', title: 'string', url: 'string' },
    tokens: { end_byte: ['int64'], is_html: ['boolean'], start_byte: ['int64'], token: ['string'] },
  },
  question: { text: 'string', tokens: ['string'] },
  long_answer_candidates: { start_token: ['int64'], end_token: ['int64'], top_level: ['boolean'] },
  annotations: {
    id: ['string'],
    long_answer: [
      { candidate_index: 'int64', end_byte: 'int64', end_token: 'int64', start_byte: 'int64', start_token: 'int64' },
    ],
    short_answers: [
      {
        ...{ end_byte: ['int64'], end_token: ['int64'], start_byte: ['int64'], start_token: ['int64'] },
        text: ['string'],
      },
    ],
    yes_no_answer: ['int64'],
  },
}

interface Official {
  _id: string
  question: string
  answer: string
  context: [string, string[]][]
  supporting_facts: [string, number][]
}

const official: Official[] = [
  {
    ...{ _id: 'q1', question: 'Which otter?', answer: 'the sea otter' },
    context: [
      ['Otter', ['Otters swim.', ' They hold hands.']],
      ['Sea &amp; shore', ['One.', '', ' Three.']],
    ],
    supporting_facts: [
      ['Otter', 1],
      ['Sea &amp; shore', 2],
    ],
  },
  {
    ...{ _id: 'q2', question: 'Who?', answer: 'nobody' },
    context: [['Nobody', ['Nobody came.']]],
    supporting_facts: [['Nobody', 0]],
  },
]

const columns = ({ _id, context, supporting_facts, ...rest }: Official) => ({
  id: _id,
  ...rest,
  supporting_facts: { title: supporting_facts.map(([t]) => t), sent_id: supporting_facts.map(([, i]) => i) },
  context: { title: context.map(([t]) => t), sentences: context.map(([, s]) => s) },
})

/** Writes the files that `write` makes of them, imports them, and gives what the dataset holds. */
async function imported(importer: typeof importNq, file: string): Promise<{ questions: string; items: string }> {
  const output = join(temporaryFolder(), 'set')
  await importer({ inputs: [file], output, split: 'dev' })
  return {
    questions: readFileSync(join(output, 'questions.jsonl'), 'utf8'),
    items: readFileSync(join(output, 'items.jsonl'), 'utf8'),
  }
}

function file(name: string, write: (path: string) => void): string {
  const path = join(temporaryFolder(), name)
  write(path)
  return path
}

describe('the hub layout of HotpotQA', () => {
  const asOfficial = () =>
    imported(
      importHotpotqa,
      file('a.json', (path) => writeFileSync(path, JSON.stringify(official))),
    )

  it('gives the same dataset as the official file: Parquet', async () => {
    const parquet = file('a.parquet', (path) =>
      writeParquet(path, official.map(columns), PARAGRAPHS, { rowGroupSize: 1 }),
    )
    expect(await imported(importHotpotqa, parquet)).toEqual(await asOfficial())
  })

  it('gives the same dataset as the official file: JSON Lines of columns, of structs, and of JSON text', async () => {
    const whole = await asOfficial()
    const structs = official.map(({ context, supporting_facts, ...rest }) => ({
      ...rest,
      context: context.map(([title, content]) => ({ title, content })),
      supporting_facts: supporting_facts.map(([title, sent_id]) => ({ title, sent_id })),
    }))
    const texts = official.map(({ context, supporting_facts, ...rest }) => ({
      ...rest,
      context: JSON.stringify(context),
      supporting_facts: JSON.stringify(supporting_facts),
    }))
    for (const records of [official.map(columns), structs, texts])
      expect(
        await imported(
          importHotpotqa,
          file('a.jsonl', (path) => writeFileSync(path, lines(...records))),
        ),
      ).toEqual(whole)
  })

  it('with columns of different lengths is a fault of its row', async () => {
    const [first] = official.map(columns)
    const broken = { ...first!, context: { title: ['Otter'], sentences: [] } }
    const path = file('a.parquet', (p) => writeParquet(p, [first!, { ...broken, id: 'q9' }], PARAGRAPHS))
    await expect(imported(importHotpotqa, path)).rejects.toThrow(/a\.parquet:2: .*"context": expected \[\[title/)
  })
})

it("2WikiMultihopQA's columns of JSON text give the same dataset as the official file", async () => {
  const texts = official.map(({ context, supporting_facts, ...rest }) => ({
    ...{ ...rest, type: 'comparison', evidences: '[]' },
    context: JSON.stringify(context),
    supporting_facts: JSON.stringify(supporting_facts),
  }))
  const parquet = file('dev.parquet', (path) => writeParquet(path, texts, TEXTS))
  const json = file('dev.json', (path) => writeFileSync(path, JSON.stringify(official)))
  expect(await imported(import2wiki, parquet)).toEqual(await imported(import2wiki, json))
})

describe('the hub layout of Natural Questions', () => {
  const words = ['<P>', 'Otters', 'swim', '.', 'They', 'hold', 'hands', '.', '</P>']
  const original = {
    ...{ example_id: '-123456789012345678', question_text: 'what do otters hold', document_title: 'Otter' },
    document_url: 'https://en.wikipedia.org/w/index.php?title=Otter',
    document_tokens: words.map((token) => ({ token, html_token: token.startsWith('<') })),
    annotations: [
      { long_answer: { start_token: 0, end_token: 9 }, short_answers: [{ start_token: 6, end_token: 7 }] },
      { long_answer: { start_token: -1, end_token: -1 }, short_answers: [] },
    ],
  }

  function row(record: typeof original): Record<string, unknown> {
    const zeros = record.document_tokens.map(() => 0n)
    const bytes = { start_byte: 0n, end_byte: 0n }
    return {
      id: record.example_id,
      document: {
        ...{ html: '<html>', title: record.document_title, url: record.document_url },
        tokens: {
          ...{ end_byte: zeros, start_byte: zeros },
          is_html: record.document_tokens.map((t) => t.html_token),
          token: record.document_tokens.map((t) => t.token),
        },
      },
      question: { text: record.question_text, tokens: record.question_text.split(' ') },
      long_answer_candidates: { start_token: [0n], end_token: [9n], top_level: [true] },
      annotations: {
        id: record.annotations.map((_, i) => `${i}`),
        long_answer: record.annotations.map(({ long_answer: { start_token, end_token } }) => ({
          ...{ ...bytes, candidate_index: 0n, start_token: BigInt(start_token), end_token: BigInt(end_token) },
        })),
        short_answers: record.annotations.map(({ short_answers }) => ({
          start_token: short_answers.map((s) => BigInt(s.start_token)),
          end_token: short_answers.map((s) => BigInt(s.end_token)),
          ...{ start_byte: short_answers.map(() => 0n), end_byte: short_answers.map(() => 0n) },
          text: short_answers.map(() => ''),
        })),
        yes_no_answer: record.annotations.map(() => -1n),
      },
    }
  }
  const asOfficial = (records: unknown[]) =>
    imported(
      importNq,
      file('a.jsonl', (path) => writeFileSync(path, lines(...records))),
    )

  it('gives the same dataset as the official file: Parquet', async () => {
    const parquet = file('a.parquet', (path) => writeParquet(path, [row(original)], PAGES))
    const whole = await asOfficial([original])
    expect(whole.questions).toContain('hands')
    expect(await imported(importNq, parquet)).toEqual(whole)
  })

  it('gives the same dataset as the official file: JSON Lines', async () => {
    const plain = JSON.parse(JSON.stringify(row(original), (_, v) => (typeof v === 'bigint' ? Number(v) : v)))
    expect(await asOfficial([plain])).toEqual(await asOfficial([original]))
  })

  const shared = sharedDir()
  it.skipIf(shared === undefined)('gives the same dataset for a real page (needs ../shared)', async () => {
    const path = join(shared!, 'data', 'nq', 'fullpage_original.jsonl')
    const records = readFileSync(path, 'utf8')
      .trim()
      .split('\n')
      .map((text) => JSON.parse(text) as typeof original)
    // ids beyond 2^53 are text in the hub's files
    const ids = [...readFileSync(path, 'utf8').matchAll(/"example_id": ?(-?\d+)/g)].map((match) => match[1]!)
    const rows = records.map((record, i) => row({ ...record, example_id: ids[i]! }))
    const parquet = file('a.parquet', (p) => writeParquet(p, rows, PAGES))
    expect(await imported(importNq, parquet)).toEqual(await imported(importNq, path))
  })
})

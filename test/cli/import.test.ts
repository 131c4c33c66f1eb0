import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Command, CommanderError } from 'commander'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { register as registerCheck } from '../../src/cli/check.ts'
import { register as registerImport } from '../../src/cli/import.ts'
import { InputError, UsageError } from '../../src/support/errors.ts'
import { minilmDir } from '../support/minilm.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

interface Run {
  out: string
  status: number
  error: unknown
}

afterEach(() => {
  vi.restoreAllMocks()
  process.exitCode = undefined
})

/** Runs `canopy` with those arguments, as main does, and catches what it prints. */
async function canopy(...args: string[]): Promise<Run> {
  const program = new Command('canopy').exitOverride()
  let out = ''
  const print = (text: unknown): boolean => {
    out += String(text)
    return true
  }
  vi.spyOn(process.stdout, 'write').mockImplementation(print)
  vi.spyOn(process.stderr, 'write').mockImplementation(() => true)
  process.exitCode = undefined
  registerImport(program)
  registerCheck(program)
  let error: unknown
  try {
    await program.parseAsync(['node', 'canopy', ...args])
  } catch (thrown) {
    error = thrown
  }
  vi.restoreAllMocks()
  const status = error === undefined ? Number(process.exitCode ?? 0) : 1
  process.exitCode = undefined
  return { out, status, error }
}

function inputFile(...values: unknown[]): string {
  const file = join(temporaryFolder(), 'in.jsonl')
  writeFileSync(file, lines(...values))
  return file
}

const item = { id: 'a', text: 'Otters swim. They hold hands. They sleep.' }
const question = { id: 'q', question: 'What?', gold: [{ item: 'a', quotes: ['They hold hands.'] }] }

describe('canopy import', () => {
  it('writes a dataset that canopy check finds nothing wrong with', async () => {
    const output = join(temporaryFolder(), 'mine')
    const imported = await canopy(
      'import',
      'jsonl',
      '--input',
      inputFile(item, question),
      '--split',
      'train',
      '--output',
      output,
    )
    expect(imported.error).toBeUndefined()
    expect(imported.out).toMatch(/split "train" of mine\n {2}2 records read\n {2}1 items added/)
    expect(readdirSync(output).sort()).toEqual(['dataset.json', 'items.index', 'items.jsonl', 'questions.jsonl'])
    const checked = await canopy('check', output)
    expect(checked.status).toBe(0)
    expect(checked.out).toMatch(/no fault\n {2}items: 1 text\n {2}text leaves: 3/)
  })

  it('prints one JSON document with --json', async () => {
    const output = join(temporaryFolder(), 'mine')
    const file = inputFile(item, question, { ...question, id: 'r', gold: [{ item: 'b', whole: true }] })
    const { out } = await canopy(
      ...['import', 'jsonl', '--input', file, '--split', 'train', '--output', output, '--on-error', 'skip', '--json'],
    )
    expect(JSON.parse(out)).toMatchObject({
      format: 'jsonl',
      splits: ['train'],
      questions: 1,
      skipped: 1,
      dropped: [{ what: 'record', reason: 'faulty', count: 1, places: [expect.stringContaining(`${file}:3: `)] }],
    })
  })

  it('fails on a fault with an input error that names file and line, and writes nothing', async () => {
    const parent = temporaryFolder()
    const file = inputFile(item, { ...question, gold: [{ item: 'a', spans: [[90, 95]] }] })
    const args = ['import', 'jsonl', '--input', file, '--split', 'train', '--output', join(parent, 'mine')]
    const { error } = await canopy(...args)
    expect(error).toBeInstanceOf(InputError)
    expect((error as Error).message).toContain(`${file}:2: span [90, 95) lies outside`)
    expect(readdirSync(parent)).toEqual([])
  })

  it('takes the unit of offsets', async () => {
    const output = join(temporaryFolder(), 'mine')
    const file = inputFile(
      { id: 'a', text: '🦦 é. End.' },
      { ...question, gold: [{ item: 'a', spans: [[9, 13, 'End.']] }] },
    )
    const args = ['import', 'jsonl', '--input', file, '--split', 'train', '--output', output]
    expect((await canopy(...args)).error).toBeInstanceOf(InputError)
    expect((await canopy(...args, '--offsets', 'byte')).error).toBeUndefined()
    expect(readFileSync(join(output, 'questions.jsonl'), 'utf8')).toContain('"spans":[[6,10]]')
  })

  it.each([
    ['--offsets', 'byte'],
    ['--benchmark', 'mine'],
  ])('is wrong usage with %s where the format is not jsonl, which would not heed it', async (...flag) => {
    const { error } = await canopy('import', 'nq', '--input', 'x', '--split', 's', '--output', 'y', ...flag)
    expect(error).toBeInstanceOf(UsageError)
  })

  it('is wrong usage without a split, with an unknown format or unit', async () => {
    const args = ['--input', 'x', '--output', 'y']
    expect((await canopy('import', 'nq', ...args)).error).toBeInstanceOf(UsageError)
    expect((await canopy('import', 'squad', '--split', 's', ...args)).error).toBeInstanceOf(CommanderError)
    expect((await canopy('import', 'jsonl', '--offsets', 'word', ...args)).error).toBeInstanceOf(CommanderError)
    expect((await canopy('import', 'jsonl', '--max-record-mb', '0', ...args)).error).toBeInstanceOf(CommanderError)
  })

  it.each(['import', 'check'])('canopy %s --help shows an example', async (verb) => {
    const { out } = await canopy(verb, '--help')
    expect(out).toMatch(new RegExp(`Examples:\\n {2}\\$ canopy ${verb} `))
  })
})

describe('canopy check', () => {
  async function broken(): Promise<string> {
    const output = join(temporaryFolder(), 'mine')
    await canopy('import', 'jsonl', '--input', inputFile(item, question), '--split', 'train', '--output', output)
    const file = join(output, 'questions.jsonl')
    writeFileSync(file, `${readFileSync(file, 'utf8').replace('[13,29]', '[93,99]')}{"id"\n`)
    return output
  }

  it('prints every fault with file and line, and exits with status 1', async () => {
    const folder = await broken()
    const { out, status } = await canopy('check', folder)
    expect(status).toBe(1)
    expect(out).toContain(
      `${join(folder, 'questions.jsonl')}:1: the gold of question "q" for item "a": span outside the text`,
    )
    expect(out).toContain(`${join(folder, 'questions.jsonl')}:2: not valid JSON`)
    expect(out).toContain('2 faults')
  })

  it('lists the faults with --json', async () => {
    const folder = await broken()
    const { out, status } = await canopy('check', folder, '--json')
    expect(status).toBe(1)
    expect(JSON.parse(out)).toMatchObject({ faults: 2, faultList: [{ line: 1 }, { line: 2 }], items: { text: 1 } })
  })

  it.skipIf(minilmDir() === undefined)(
    'counts nodes that an encoder cuts (skipped without CANOPY_MINILM)',
    async () => {
      const output = join(temporaryFolder(), 'mine')
      const long = { id: 'long', text: Array.from({ length: 60 }, (_, i) => `Sentence number ${i} is here.`).join(' ') }
      const file = inputFile(item, long, question, { ...question, id: 'r', gold: [{ item: 'long', spans: [[0, 5]] }] })
      await canopy('import', 'jsonl', '--input', file, '--split', 'train', '--output', output)
      const { out } = await canopy('check', output, '--encoder', minilmDir()!, '--json')
      const { encoder } = JSON.parse(out) as { encoder: Record<string, number> }
      // 60 sentences of 8 tokens: of the 119 nodes, the root is cut at 256, its halves (30 sentences, 242 tokens) are not
      expect(encoder).toMatchObject({ maxLength: 256, items: 2, nodes: 119 + 5, truncated: 1, equalToParent: 0 })
    },
  )
})

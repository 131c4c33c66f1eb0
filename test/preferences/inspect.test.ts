import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Command } from 'commander'
import fc from 'fast-check'
import sharp from 'sharp'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { register } from '../../src/cli/check.ts'
import { importHotpotqa, importJsonl, openDataset } from '../../src/data/index.ts'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import { judgeDecisions } from '../../src/eval/decisions.ts'
import { blindScores, scoreOf } from '../../src/eval/index.ts'
import { buildTree, preOrder, renderNode } from '../../src/hierarchy/index.ts'
import {
  buildPreferences,
  decisionCase,
  decisionNodes,
  type GoldRow,
  type InspectedEncoder,
  type InspectOptions,
  inspectGold,
} from '../../src/preferences/index.ts'
import { sharedDir } from '../support/shared.ts'
import { lines, temporaryFolder } from '../support/temporary.ts'

afterEach(() => {
  vi.restoreAllMocks()
  process.exitCode = undefined
})

async function dataset(...records: unknown[]): Promise<string> {
  const parent = temporaryFolder()
  const input = join(parent, 'in.jsonl')
  writeFileSync(input, lines(...records))
  await importJsonl({ inputs: [input], output: join(parent, 'data'), benchmark: 'mine' })
  return join(parent, 'data')
}

async function inspect(folder: string, options: Partial<InspectOptions> = {}): Promise<GoldRow[]> {
  const opened = await openDataset(folder)
  try {
    return await inspectGold({ dataset: opened, ...options })
  } finally {
    await opened.close()
  }
}

/** An encoder of text: a token for each word, at most `most` of them. */
const wordTokens = (most: number, title = true): InspectedEncoder => ({
  multimodal: false,
  encode: async (hierarchy) =>
    hierarchy.nodes.map((node) => {
      const words = renderNode(hierarchy, node, { title }).trim().split(/\s+/)
      return {
        sequence: words.slice(0, most).join(' '),
        length: Math.min(words.length, most),
        truncated: words.length > most,
      }
    }),
})

const text = { id: 'a', title: 'T', text: 'One is it. Two is it. Three is it. Four is it.' }
const ask = (id: string, gold: object[], more: object = {}) => ({ id, split: 'train', question: '?', gold, ...more })

describe('inspectGold', () => {
  it('keeps the tokens of a few items only, however many nodes they have', async () => {
    const long = (id: string): object => ({
      id,
      modality: 'table',
      header: ['n'],
      rows: Array.from({ length: 10_000 }, (_, n) => [`${id} ${n}`]),
    })
    const folder = await dataset(
      ...['a', 'b'].map(long),
      ...['a', 'a', 'b', 'a'].map((item, i) => ask(`q${i}`, [{ item, rows: [i] }])),
    )
    let tokenised = 0
    const encoder: InspectedEncoder = {
      multimodal: false,
      encode: async ({ nodes }) => nodes.map(() => ({ sequence: String(++tokenised), length: 1, truncated: false })),
    }
    const [row] = await inspect(folder, { encoder })
    // a, once for two questions; b in its place; a anew
    expect(tokenised).toBe(3 * 19_999)
    expect(row).toMatchObject({ instances: { table: 4 }, tokens: { items: 2, nodes: 2 * 19_999 } })
  })

  it('counts decision nodes by case and pairs by kind, for each split, benchmark and variant', async () => {
    const folder = await dataset(
      text,
      { id: 't', modality: 'table', header: ['a'], rows: [['1'], ['2']] },
      { id: 'i', modality: 'image', image: 'x.png' },
      { id: 'v', modality: 'video', start: 0, end: 90 },
      { id: 'one', text: 'Only one.' },
      ask('1', [{ item: 'a', quotes: ['One is it.'] }]),
      ask('2', [
        { item: 'a', quotes: ['Three is it. Four is it.'] },
        { item: 'i', whole: true },
        { item: 'v', times: [[0, 30]] },
      ]),
      ask(
        '3',
        [
          { item: 't', rows: [0, 1] },
          { item: 'one', whole: true },
        ],
        { variant: 'several-rows' },
      ),
      ask('4', [], { split: 'dev' }),
    )
    const rows = await inspect(folder)
    expect(rows.map(({ split, benchmark }) => [split, benchmark])).toEqual([
      ['train', 'mine'],
      ['train', 'mine:several-rows'],
      ['dev', 'mine'],
    ])
    expect(rows[0]).toMatchObject({
      questions: 2,
      instances: { text: 2, table: 0, image: 1, video: 1 },
      notText: 2,
      // root and left half for the first question, root and the right half, gold throughout, for the second; of the video, the
      // root and the left half
      decisions: { total: 6, cases: { left: 4, right: 1, both: 0, full: 1 } },
      pairs: { total: 3 + 3 + 3 + 2 + 3 + 3 },
      withoutDecision: { oneLeaf: 1 },
    })
    expect(rows[1]).toMatchObject({
      instances: { text: 1, table: 1 },
      withoutDecision: { oneLeaf: 1, noGoldLeaf: 0 },
      decisions: { total: 1, cases: { full: 1 } },
    })
    expect(rows[2]).toMatchObject({ questions: 1, decisions: { total: 0 }, controls: { 'always-left': Number.NaN } })
    expect(rows[0]!.controls['always-left']).toBeCloseTo(4 / 6)
    expect(rows[0]).not.toHaveProperty('tokens')
    // an encoder of text leaves the picture and the video out
    const [read] = await inspect(folder, { encoder: wordTokens(20) })
    expect(read).toMatchObject({ notText: 2, decisions: { total: 4 }, controls: { 'always-left': 0.5 } })
  })

  it('counts videos where the encoder reads them, and apart those whose file cannot be read', async () => {
    const video = (id: string): object => ({ id, modality: 'video', video: `${id}.mp4`, start: 0, end: 120 })
    const folder = await dataset(
      ...['good', 'bad'].map(video),
      ask('1', [
        { item: 'good', times: [[0, 30]] },
        { item: 'bad', times: [[0, 30]] },
      ]),
    )
    const encoder: InspectedEncoder = {
      multimodal: true,
      encode: async ({ item, nodes }) =>
        item.id === 'bad'
          ? undefined
          : nodes.map((_, i) => ({ sequence: String(i), length: 10 + i, truncated: false })),
    }
    const [row] = await inspect(folder, { encoder })
    expect(row).toMatchObject({
      instances: { video: 2 },
      ...{ notText: 0, unreadable: 1 },
      decisions: { total: 2, cases: { left: 2 } },
      tokens: { items: 1, nodes: 7, sizes: { video: { nodes: 7, tokens: 7 * 13, longest: 16 } } },
    })
  })

  it('agrees with what building preferences counts', async () => {
    const sample = join(import.meta.dirname, '../../datasets/sample')
    const opened = await openDataset(sample)
    for (const branching of [2, 3]) {
      const rows = await inspectGold({ dataset: opened, branching })
      for (const split of Object.keys(opened.meta.splits)) {
        const output = join(temporaryFolder(), 'p.jsonl')
        const built = await buildPreferences({ dataset: opened, split, output, branching })
        const row = rows.find((r) => r.split === split)!
        expect(row.decisions.total).toBe(built.decisions.total)
        expect(row.decisions.cases).toMatchObject(built.decisions.cases)
        expect(row.pairs).toEqual(built.pairs)
      }
    }
    await opened.close()
  })

  it('scores blind policies as evaluation does', () => {
    fc.assert(
      fc.property(
        fc.array(fc.boolean(), { minLength: 2, maxLength: 30 }),
        fc.integer({ min: 2, max: 4 }),
        (gold, branching) => {
          fc.pre(gold.includes(true))
          const root = buildTree(gold.length, branching)
          const nodes = preOrder(root)
          const decisions = decisionNodes(root, (leaf) => gold[leaf]!)
          const right = (control: 'always-left' | 'keep-root' | 'constant') =>
            judgeDecisions(decisions, scoreOf(nodes, blindScores(control, nodes))).map(({ correct }) => correct)
          const cases = decisions.map(decisionCase)
          expect(right('always-left')).toEqual(cases.map((c) => c === 'left'))
          expect(right('keep-root')).toEqual(cases.map((c) => c === 'full'))
          expect(right('constant')).toEqual(cases.map((c) => c === 'both'))
        },
      ),
    )
  })

  it('counts what an encoder would see cut, each item once, and pairs that it cannot tell apart', async () => {
    const folder = await dataset(
      text,
      ask('1', [{ item: 'a', quotes: ['One is it.'] }]),
      ask('2', [{ item: 'a', quotes: ['One is it.'] }]),
    )
    const none = Object.fromEntries(
      ['table', 'image', 'video'].map((modality) => [modality, { nodes: 0, tokens: 0, longest: 0 }]),
    )
    // title and two sentences are seven words: of them and of the root the encoder sees six
    const [row] = await inspect(folder, { encoder: wordTokens(6) })
    expect(row!.tokens).toEqual({
      items: 1,
      nodes: 7,
      // seven words where six are seen; the leaves have four
      sizes: { ...none, text: { nodes: 7, tokens: 3 * 6 + 4 * 4, longest: 6 } },
      truncatedNodes: 3,
      truncatedRoots: 1,
      equalToParent: 1,
      // root against its left half, for either question
      droppedPairs: {
        total: 2,
        kinds: { 'fully-gold': 0, 'gold-child': 2, 'non-gold-child': 0, 'sibling-separation': 0 },
      },
    })
    const [bare] = await inspect(folder, { encoder: wordTokens(8, false) })
    expect(bare!.tokens).toMatchObject({ truncatedNodes: 1, droppedPairs: { total: 0 } })
  })
})

const shared = sharedDir()
describe.skipIf(shared === undefined)('the staged HotpotQA dev', () => {
  it('has 655 decision nodes, of which always-left decides 67.5 %', async () => {
    const folder = join(temporaryFolder(), 'hotpotqa')
    await importHotpotqa({ inputs: [join(shared!, 'data/hotpotqa/dev_distractor.json')], output: folder, split: 'dev' })
    const [row] = await inspect(folder)
    expect(row!.decisions).toMatchObject({ total: 655, cases: { left: 442, right: 119, both: 37, full: 57 } })
    expect(row!.controls['always-left']).toBeCloseTo(0.675, 3)
  })
})

describe('canopy check', () => {
  async function canopy(...args: string[]): Promise<{ out: string; status: number }> {
    const program = new Command('canopy').exitOverride()
    let out = ''
    vi.spyOn(process.stdout, 'write').mockImplementation((chunk) => {
      out += String(chunk)
      return true
    })
    vi.spyOn(process.stderr, 'write').mockImplementation(() => true)
    process.exitCode = undefined
    register(program)
    await program.parseAsync(['node', 'canopy', ...args])
    const status = Number(process.exitCode ?? 0)
    vi.restoreAllMocks()
    return { out, status }
  }

  it('shows what there is to learn without any encoder', async () => {
    const folder = await dataset(text, ask('1', [{ item: 'a', quotes: ['One is it.'] }]))
    const { out } = await canopy('check', folder)
    expect(out).toContain('"train" of mine: 1 questions; gold items: 1 text')
    expect(out).toContain('2 decision nodes (2 left); 6 pairs (2 gold-child, 2 non-gold-child, 2 sibling-separation)')
    expect(out).toContain('always-left 100.0 %, keep-root 0.0 %, constant 0.0 %')
    expect(out).not.toContain('cut:')
    // with three branches the root has three children: two leaves, one, one
    expect((await canopy('check', folder, '--branching', '3')).out).toContain('2 decision nodes (2 left); 8 pairs')
  })

  it('shows what an encoder would see cut', async () => {
    const folder = await dataset(text, ask('1', [{ item: 'a', quotes: ['One is it.'] }]))
    const bert = join(temporaryFolder(), 'bert')
    const vocabularyFrom = [readFileSync(join(folder, 'items.jsonl'), 'utf8')]
    await createRandomBert(bert, { seed: 1, vocabularyFrom, hidden: 8, layers: 1, heads: 2, maxLength: 12 })
    const { out, status } = await canopy('check', folder, '--encoder', bert)
    expect(status).toBe(0)
    // [CLS] t one is it . two is it . [SEP]: 11 tokens for a half, 19 for the root
    expect(out).toMatch(/at most 12 tokens a node/)
    expect(out).toContain('cut: 1 of 1 roots (100.0 %), 1 of 7 nodes (14.3 %)')
    expect(out).toContain('pairs dropped, both nodes being the same tokens: 0 (0 %)'.replace('(0 %)', '(0.0 %)'))
    const { encoder } = JSON.parse((await canopy('check', folder, '--encoder', bert, '--no-title', '--json')).out)
    expect(encoder).toMatchObject({
      maxLength: 12,
      items: 1,
      nodes: 7,
      truncated: 1,
      truncatedRoots: 1,
      droppedPairs: 0,
    })
  })

  it('decodes media when it is told to, and fails for broken ones', async () => {
    const folder = await dataset(
      { id: 'good', modality: 'image', image: 'good.png' },
      { id: 'bad', modality: 'image', image: 'pictures/bad.png' },
      ask('1', [
        { item: 'good', whole: true },
        { item: 'bad', whole: true },
      ]),
    )
    mkdirSync(join(folder, 'pictures'))
    await sharp({ create: { width: 4, height: 4, channels: 3, background: '#123456' } }).toFile(
      join(folder, 'good.png'),
    )
    writeFileSync(join(folder, 'pictures', 'bad.png'), 'no picture')
    expect((await canopy('check', folder)).status).toBe(0)
    const { out, status } = await canopy('check', folder, '--media')
    expect(status).toBe(1)
    expect(out).toContain('1 of 2 pictures decoded')
    expect(out).toMatch(/cannot be read: item "bad": the picture cannot be decoded/)
    expect(out).toContain(`${folder}: 1 fault\n`)
    expect(existsSync(join(folder, 'items.index'))).toBe(true)
  })

  it('shows what there is to learn although pictures are not there, which is said', async () => {
    const folder = await dataset(
      { id: 'gone', modality: 'image', image: 'gone.png' },
      text,
      ask('1', [
        { item: 'gone', whole: true },
        { item: 'a', quotes: ['One is it.'] },
      ]),
    )
    const { out, status } = await canopy('check', folder)
    expect(status).toBe(0)
    expect(out).toContain(
      'pictures and videos that are not in the folder: 1 (no fault for encoders that read only text',
    )
    expect(out).toContain('no fault\n')
    expect(out).toContain('1 of them are images or videos, which an encoder of text cannot read')
    expect(out).toContain('2 decision nodes (2 left)')
  })

  it('fails where media are to be decoded and are not there, each named once', async () => {
    const folder = await dataset(
      { id: 'gone', modality: 'image', image: 'gone.png' },
      { id: 'clip', modality: 'video', video: 'clip.mp4', start: 0, end: 60 },
      { id: 'nameless', modality: 'video', start: 0, end: 60 },
      ask('1', [{ item: 'gone', whole: true }]),
    )
    const { out, status } = await canopy('check', folder, '--media')
    expect(status).toBe(1)
    expect(out).toContain('items.jsonl:1: the image "gone.png" of the item "gone" is not in the folder')
    expect(out).toContain(`${folder}: 2 faults\n`)
    expect(out).toContain('0 of 1 pictures decoded; 0 of 2 videos, 1 of them without a file to read; 0 frames')
    expect(out).not.toMatch(/no fault|cannot be read/)
    const { faults, missingMedia, gold } = JSON.parse((await canopy('check', folder, '--media', '--json')).out)
    expect({ faults, missingMedia, questions: gold[0].questions }).toEqual({ faults: 2, missingMedia: 2, questions: 1 })
  })

  it('says that an encoder is not there before it says anything else', async () => {
    const folder = await dataset(text, ask('1', [{ item: 'a', whole: true }]))
    await expect(canopy('check', folder, '--encoder', join(folder, 'nope'))).rejects.toThrow(/there is no folder/)
    expect(process.stdout.write).not.toHaveBeenCalled()
  })
})

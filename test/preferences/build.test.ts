import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { Command } from 'commander'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { register } from '../../src/cli/preferences.ts'
import { DATASET_SCHEMA, type Dataset, importHotpotqa, openDataset, splitHash } from '../../src/data/index.ts'
import { buildHierarchy, goldLeaves, nodeKey } from '../../src/hierarchy/index.ts'
import {
  buildPreferences,
  checkFresh,
  countPreferences,
  openPreferences,
  type PreferenceInstance,
  type PreferenceSummary,
  preferencePairs,
} from '../../src/preferences/index.ts'
import { InputError } from '../../src/support/errors.ts'
import { sharedDir } from '../support/shared.ts'

let folder: string
const opened: Dataset[] = []

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'canopy-preferences-'))
})
afterEach(async () => {
  for (const dataset of opened.splice(0)) await dataset.close()
  rmSync(folder, { recursive: true })
})

const SIX = 'One is here. Two is near. Three is far. Four is up. Five is down. Six is off.'

/** A dataset of one train split over the items "six" (six sentences), "two" (two) and "one" (one). */
async function dataset(gold: unknown[][], name = 'tiny', text = SIX): Promise<Dataset> {
  const items = [
    { id: 'six', modality: 'text', title: 'Six', text },
    { id: 'two', modality: 'text', text: 'Yes it is. No it is not.' },
    { id: 'one', modality: 'text', text: 'Only one.' },
    { id: 'table', modality: 'table', header: ['a'], rows: [['1'], ['2']] },
  ]
  const questions = gold.map((entries, i) => ({
    ...{ id: `q${i}`, benchmark: 'tiny', split: 'train', question: `What is ${i}?`, answers: ['it'] },
    gold: entries,
  }))
  const meta = {
    ...{ schema: DATASET_SCHEMA, name, benchmark: 'tiny' },
    splits: { train: { questions: questions.length } },
    counts: { items: items.length, questions: questions.length },
  }
  const lines = (values: unknown[]): string => values.map((value) => `${JSON.stringify(value)}\n`).join('')
  writeFileSync(join(folder, 'items.jsonl'), lines(items))
  writeFileSync(join(folder, 'questions.jsonl'), lines(questions))
  writeFileSync(join(folder, 'dataset.json'), JSON.stringify(meta))
  const made = await openDataset(folder)
  opened.push(made)
  return made
}

const output = (): string => join(folder, 'out', 'preferences.jsonl')
const build = async (
  made: Dataset,
  more: { branching?: number; signal?: AbortSignal } = {},
): Promise<PreferenceSummary> => buildPreferences({ dataset: made, split: 'train', output: output(), ...more })
const written = (): unknown[] =>
  readFileSync(output(), 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line))

describe('buildPreferences', () => {
  it('writes a header, then nodes in pre-order and pairs as indices into them', async () => {
    const made = await dataset([[{ item: 'six', quotes: ['Three is far.'] }]])
    const summary = await build(made)
    expect(written()).toEqual([
      {
        ...{ schema: 'canopy-preferences/1', dataset: 'tiny', split: 'train' },
        ...{ hash: await splitHash(made, 'train'), branching: 2 },
      },
      {
        ...{ question: 'q0', item: 'six' },
        nodes: [
          [0, 6],
          [0, 3],
          [0, 2],
          [2, 3],
          [3, 6],
        ],
        pairs: [
          [1, 0, 'gold-child'],
          [0, 4, 'non-gold-child'],
          [1, 4, 'sibling-separation'],
          [3, 1, 'gold-child'],
          [1, 2, 'non-gold-child'],
          [3, 2, 'sibling-separation'],
        ],
      },
    ])
    expect(Object.keys(written()[0] as object)).toEqual(['schema', 'dataset', 'split', 'hash', 'branching'])
    expect(summary).toMatchObject({
      ...{ questions: 1, questionsWithoutGold: 0, instances: 1, withoutPairs: { oneLeaf: 0, noGoldLeaf: 0 } },
      decisions: { total: 2, cases: { left: 1, right: 1, both: 0, full: 0 } },
      pairs: {
        total: 6,
        kinds: { 'fully-gold': 0, 'gold-child': 2, 'non-gold-child': 2, 'sibling-separation': 2 },
      },
    })
  })

  it('counts what gives no pairs, and writes it as an instance without nodes', async () => {
    const gold = [
      [{ item: 'one', whole: true }],
      [{ item: 'two', spans: [[10, 11]] }],
      [],
      [
        { item: 'two', whole: true },
        { item: 'six', quotes: ['One is here. Two is near.', 'Six is off.'] },
      ],
    ]
    const summary = await build(await dataset(gold))
    expect(summary).toMatchObject({
      ...{ questions: 4, questionsWithoutGold: 1, instances: 4, withoutPairs: { oneLeaf: 1, noGoldLeaf: 1 } },
      decisions: { total: 5, cases: { left: 1, right: 1, both: 1, full: 2 } },
      droppedAnnotations: {
        total: 1,
        reasons: [
          {
            reason: 'span of white space only',
            count: 1,
            places: [{ question: 'q1', item: 'two', line: 2, annotation: [10, 11] }],
          },
        ],
      },
    })
    const instances = written().slice(1) as PreferenceInstance[]
    expect(instances.map(({ question, item, pairs }) => [question, item, pairs.length])).toEqual([
      ['q0', 'one', 0],
      ['q1', 'two', 0],
      ['q3', 'two', 2],
      ['q3', 'six', 2 + 3 + 2 + 3],
    ])
    expect(instances[0]).toEqual({ question: 'q0', item: 'one', nodes: [], pairs: [] })
  })

  it('merges the gold entries of one question and item', async () => {
    const apart = [
      { item: 'six', quotes: ['One is here.'] },
      { item: 'two', whole: true },
      { item: 'six', spans: [[40, 50]] },
    ]
    const together = [
      { item: 'six', quotes: ['One is here.', SIX.slice(40, 50)] },
      { item: 'two', whole: true },
    ]
    const first = await build(await dataset([apart]))
    const lines = written().slice(1)
    expect(first).toMatchObject({ instances: 2, mergedEntries: 1 })
    expect(await build(await dataset([together]))).toMatchObject({ instances: 2, mergedEntries: 0 })
    expect(written().slice(1)).toEqual(lines)
  })

  it('builds other trees for another branching factor', async () => {
    const made = await dataset([[{ item: 'six', quotes: ['One is here.', 'Five is down. Six is off.'] }]])
    const summary = await build(made, { branching: 3 })
    expect(summary).toMatchObject({
      branching: 3,
      decisions: { total: 3, cases: { left: 1, right: 0, both: 0, full: 1, some: 1 } },
    })
    expect((written()[1] as PreferenceInstance).nodes.slice(0, 2)).toEqual([
      [0, 6],
      [0, 2],
    ])
    await expect(build(made, { branching: 1 })).rejects.toThrow('branching factor')
  })

  it('says in which line of the questions gold does not fit, and writes nothing', async () => {
    const cases: [unknown[], string][] = [
      [[{ item: 'six', quotes: ['is'] }], 'stands in several places'],
      [[{ item: 'six', quotes: ['Seven'] }], 'is not in the text'],
      [[{ item: 'six', spans: [[0, 3, 'Two']] }], 'expects "Two"'],
      [[{ item: 'six', rows: [1] }], 'gives rows'],
      [[{ item: 'table', spans: [[0, 1]] }], 'gives spans'],
    ]
    for (const [gold, message] of cases) {
      const attempt = build(await dataset([[{ item: 'one', whole: true }], gold]))
      await expect(attempt).rejects.toThrow(InputError)
      await expect(attempt).rejects.toThrow(`questions.jsonl:2: question "q1": `)
      await expect(attempt).rejects.toThrow(message)
    }
    await expect(build(await dataset([[{ item: 'gone', whole: true }]]))).rejects.toThrow('"gone"')
    expect(existsSync(output()) ? readdirSync(join(folder, 'out')) : []).toEqual([])
  })

  it('counts the same as it writes, without writing', async () => {
    const made = await dataset([[{ item: 'six', quotes: ['Three is far.'] }], [{ item: 'two', whole: true }], []])
    const counts = await countPreferences({ dataset: made, split: 'train' })
    expect(existsSync(output())).toBe(false)
    expect(await build(made)).toMatchObject(counts)
    expect(counts).toMatchObject({ questions: 3, questionsWithoutGold: 1, instances: 2, pairs: { total: 8 } })
  })

  it('leaves out questions that are marked with a variant when it is told to, and says so in the header', async () => {
    const gold = [{ item: 'six', quotes: ['Three is far.'] }]
    const made = await dataset([gold, gold, gold])
    const file = join(folder, 'questions.jsonl')
    const [first, ...rest] = readFileSync(file, 'utf8').trimEnd().split('\n')
    const marked = rest.map((line) => JSON.stringify({ ...JSON.parse(line), variant: 'several-rows' }))
    writeFileSync(file, `${[first, ...marked].join('\n')}\n`)

    const kept = await build(made)
    expect(kept).toMatchObject({ instances: 3, variantsLeftOut: 0, questionsByVariant: { 'several-rows': 2 } })
    expect(written()[0]).not.toHaveProperty('variants')
    const all = await openPreferences(output())
    await expect(checkFresh(all, made, { variants: 'leave-out' })).rejects.toThrow(
      /variant are among them.*--no-variants/,
    )
    await checkFresh(all, made, { variants: 'keep' })

    const left = await buildPreferences({ dataset: made, split: 'train', output: output(), variants: 'leave-out' })
    expect(left).toMatchObject({ questions: 3, instances: 1, variantsLeftOut: 2 })
    expect(written().slice(1)).toHaveLength(1)
    const some = await openPreferences(output())
    expect(some.header.variants).toBe('leave-out')
    await checkFresh(some, made)
    await expect(checkFresh(some, made, { variants: 'keep' })).rejects.toThrow('were left out of them')
  })

  it('leaves the old file as it was when it is interrupted or fails', async () => {
    const made = await dataset([[{ item: 'two', whole: true }]])
    await build(made)
    const before = readFileSync(output(), 'utf8')
    await expect(build(made, { signal: AbortSignal.abort() })).rejects.toThrow(/abort/i)
    await expect(build(await dataset([[{ item: 'six', quotes: ['Seven'] }]]))).rejects.toThrow(InputError)
    expect(readdirSync(join(folder, 'out'))).toEqual(['preferences.jsonl'])
    expect(readFileSync(output(), 'utf8')).toBe(before)
  })

  it('never replaces a file of the dataset', async () => {
    const data = await dataset([[{ item: 'six', spans: [[0, 5]] }]])
    for (const name of ['dataset.json', 'items.jsonl', 'questions.jsonl']) {
      const output = join(data.folder, name)
      const before = readFileSync(output)
      await expect(buildPreferences({ dataset: data, split: 'train', output })).rejects.toThrow(/part of the dataset/)
      expect(readFileSync(output)).toEqual(before)
    }
  })

  it('refuses a split that is not there', async () => {
    const made = await dataset([[{ item: 'two', whole: true }]])
    await expect(buildPreferences({ dataset: made, split: 'dev', output: output() })).rejects.toThrow('"dev"')
  })
})

describe('openPreferences', () => {
  const gold = Array.from({ length: 40 }, (_, i) => [{ item: i % 3 ? 'six' : 'two', spans: [[i % 20, (i % 20) + 3]] }])

  it('gives every instance by its number, in any order, and all in file order', async () => {
    await build(await dataset(gold))
    const preferences = await openPreferences(output())
    const lines = written()
    expect(preferences.header).toEqual(lines[0])
    expect(preferences.count).toBe(40)
    for (const i of [39, 0, 17, 17, 3]) expect(await preferences.at(i)).toEqual(lines[i + 1])
    const all: PreferenceInstance[] = []
    for await (const instance of preferences.instances()) all.push(instance)
    expect(all).toEqual(lines.slice(1))
    for (const i of [-1, 40, 0.5]) await expect(preferences.at(i)).rejects.toThrow(RangeError)
  })

  it('names file and line of whatever is wrong', async () => {
    await build(await dataset(gold.slice(0, 2)))
    const [header, first] = readFileSync(output(), 'utf8').split('\n') as [string, string]
    const instance = JSON.parse(first) as PreferenceInstance
    const broken: [string[], number, string][] = [
      [[first], 1, 'header'],
      [[header.replace('preferences/1', 'preferences/2')], 1, 'canopy-preferences/1'],
      [[header.replace('"branching":2', '"branching":1')], 1, 'branching'],
      [[header, first, '{"question":"q'], 3, 'JSON'],
      [[header, JSON.stringify({ ...instance, question: 7 })], 2, 'question'],
      [[header, JSON.stringify({ ...instance, pairs: [[0, 99, 'gold-child']] })], 2, 'node 99 is not among'],
      [[header, JSON.stringify({ ...instance, pairs: [[1, 1, 'gold-child']] })], 2, 'over itself'],
      [[header, JSON.stringify({ ...instance, pairs: [[0, 1, 'better']] })], 2, 'pairs'],
      [[header, JSON.stringify({ ...instance, nodes: [...instance.nodes, [3, 3]] })], 2, 'covers no leaf'],
      [[header, JSON.stringify({ ...instance, nodes: [...instance.nodes, instance.nodes[0]] })], 2, 'listed twice'],
      [[header, JSON.stringify({ ...instance, more: 1 })], 2, 'more'],
    ]
    for (const [lines, line, message] of broken) {
      writeFileSync(output(), `${lines.join('\n')}\n`)
      await expect(openPreferences(output()), message).rejects.toThrow(InputError)
      await expect(openPreferences(output())).rejects.toThrow(`${output()}:${line}: `)
      await expect(openPreferences(output())).rejects.toThrow(message)
    }
    writeFileSync(output(), '')
    await expect(openPreferences(output())).rejects.toThrow('empty')
    await expect(openPreferences(join(folder, 'none.jsonl'))).rejects.toThrow(InputError)
  })

  it('notices that the file changed underneath', async () => {
    await build(await dataset(gold))
    const preferences = await openPreferences(output())
    writeFileSync(output(), readFileSync(output(), 'utf8').slice(0, 500))
    await expect(preferences.at(30)).rejects.toThrow('changed while it was in use')
  })
})

describe('checkFresh', () => {
  const gold = [[{ item: 'six', quotes: ['One is here.'] }]]

  it('accepts preferences of the same questions and items', async () => {
    await build(await dataset(gold))
    await checkFresh(await openPreferences(output()), await dataset(gold), { split: 'train', branching: 2 })
  })

  it('says what changed, and how to build them again', async () => {
    await build(await dataset(gold))
    const preferences = await openPreferences(output())
    const refusal = async (made: Dataset, expected = {}): Promise<string> =>
      checkFresh(preferences, made, expected).then(
        () => 'accepted',
        (error: InputError) => error.message,
      )
    const otherQuestion = await refusal(await dataset([...gold, ...gold]))
    expect(otherQuestion).toMatch(/questions of the split "train", or items that they name, have changed \(hash/)
    expect(otherQuestion).toContain(`canopy preferences --dataset ${folder} --split train --branching 2`)
    expect(await refusal(await dataset(gold, 'tiny', `${SIX} Seven.`))).toContain('have changed')
    const otherName = await refusal(await dataset(gold, 'large'))
    expect(otherName).toContain('built from the dataset "tiny", this one is "large"')
    const other = await refusal(await dataset(gold), { split: 'dev', branching: 3 })
    expect(other).toContain('of the split "train", not "dev"')
    expect(other).toContain('branching factor 2, not 3')
  })
})

describe('canopy preferences', () => {
  const run = async (...flags: string[]): Promise<string> => {
    const program = new Command('canopy').exitOverride().configureOutput({ writeErr: () => {} })
    register(program)
    let printed = ''
    const stdout = vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
      printed += text
      return true
    })
    const stderr = vi.spyOn(process.stderr, 'write').mockImplementation(() => true)
    try {
      await program.parseAsync(['node', 'canopy', 'preferences', ...flags])
    } finally {
      stdout.mockRestore()
      stderr.mockRestore()
    }
    return printed
  }

  it('prints a summary, for people or as JSON', async () => {
    await dataset([
      [
        {
          item: 'six',
          spans: [
            [0, 4],
            [12, 13],
          ],
        },
      ],
      [{ item: 'one', whole: true }],
    ])
    const flags = ['--dataset', folder, '--split', 'train', '--output', output()]
    const text = await run(...flags)
    expect(text).toContain('2 instances')
    expect(text).toContain('3 left, 0 right')
    expect(text).toContain('1 × annotation dropped: span of white space only')
    expect(text).toContain('questions.jsonl:1: question "q0", item "six": [12,13]')
    const summary = JSON.parse(await run(...flags, '--json', '--branching', '4')) as PreferenceSummary
    expect(summary).toMatchObject({ instances: 2, branching: 4, output: output() })
  })

  it('refuses a branching factor that makes no tree, and missing flags', async () => {
    const flags = ['--dataset', folder, '--split', 'train', '--output', output()]
    await expect(run(...flags, '--branching', '1')).rejects.toMatchObject({ code: 'commander.invalidArgument' })
    await expect(run('--dataset', folder)).rejects.toMatchObject({ code: 'commander.missingMandatoryOptionValue' })
  })
})

describe.skipIf(sharedDir() === undefined)('on HotpotQA (needs the shared data)', () => {
  it('has the known number of decision nodes by case on dev, and on every instance the pairs of its own tree', async () => {
    const input = resolve(sharedDir()!, 'data/hotpotqa/dev_distractor.json')
    const target = join(folder, 'hotpotqa')
    await importHotpotqa({ inputs: [input], split: 'dev', output: target })
    const made = await openDataset(target)
    opened.push(made)
    const summary = await buildPreferences({ dataset: made, split: 'dev', output: output() })
    expect(summary.decisions).toEqual({ total: 655, cases: { left: 442, right: 119, both: 37, full: 57 } })
    expect(summary).toMatchObject({ questions: 198, instances: 396, droppedAnnotations: { total: 0 } })

    const preferences = (await openPreferences(output())).instances()[Symbol.asyncIterator]()
    for await (const { question } of made.questions('dev')) {
      for (const entry of question.gold) {
        const { value } = (await preferences.next()) as { value: PreferenceInstance }
        const hierarchy = buildHierarchy(await made.item(entry.item))
        const { gold } = goldLeaves(hierarchy, entry)
        const keys = value.nodes.map(([from, to]) => nodeKey({ from, to, children: [] }))
        expect(value.pairs.map(([a, b, kind]) => `${keys[a]} ${keys[b]} ${kind}`)).toEqual(
          preferencePairs(hierarchy.root, (leaf) => gold[leaf]!).map(
            ({ preferred, other, kind }) => `${nodeKey(preferred)} ${nodeKey(other)} ${kind}`,
          ),
        )
      }
    }
    expect((await preferences.next()).done).toBe(true)
  })
})

import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Command, CommanderError } from 'commander'
import fc from 'fast-check'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { register } from '../../src/cli/split.ts'
import { chooseGroups } from '../../src/data/choose.ts'
import { checkDataset, importJsonl, openDataset, type SplitSummary, splitDataset } from '../../src/data/index.ts'
import type { Question } from '../../src/hierarchy/index.ts'
import { InputError, UsageError } from '../../src/support/errors.ts'
import { createRandom } from '../../src/support/random.ts'
import { lines, snapshot, temporaryFolder } from '../support/temporary.ts'

/** Renames left before the disk fails; below zero it never does. */
let renames = -1
vi.mock('node:fs/promises', async (original) => {
  const real = await original<typeof import('node:fs/promises')>()
  const rename: typeof real.rename = async (from, to) => {
    if (renames === 0) throw new Error('the power is gone')
    renames--
    return real.rename(from, to)
  }
  return { ...real, rename }
})
afterEach(() => {
  renames = -1
  vi.restoreAllMocks()
})

interface Ask {
  id: string
  items: string[]
  source?: string
  variant?: string
  retrieved?: string[]
}

/** A dataset of one split, "all", whose items are those that the questions name. */
async function dataset(asks: Ask[], split = 'all'): Promise<string> {
  const parent = temporaryFolder()
  const input = join(parent, 'in.jsonl')
  const items = new Set(asks.flatMap(({ items, retrieved = [] }) => [...items, ...retrieved]))
  const questions = asks.map(({ id, items, ...fields }) => ({
    ...{ id, split, question: `What is ${id}?`, ...fields },
    gold: items.map((item) => ({ item, whole: true })),
  }))
  writeFileSync(input, lines(...[...items].map((id) => ({ id, text: `This is ${id}. It is here.` })), ...questions))
  await importJsonl({ inputs: [input], output: join(parent, 'data') })
  return join(parent, 'data')
}

async function questionsOf(folder: string): Promise<Map<string, Question[]>> {
  const opened = await openDataset(folder)
  const splits = new Map<string, Question[]>()
  for (const split of Object.keys(opened.meta.splits)) {
    splits.set(split, [])
    for await (const { question } of opened.questions(split)) splits.get(split)!.push(question)
    expect(splits.get(split)).toHaveLength(opened.meta.splits[split]!.questions)
  }
  await opened.close()
  return splits
}

const into: [string, string] = ['train', 'dev']
const single = (count: number): Ask[] => Array.from({ length: count }, (_, i) => ({ id: `q${i}`, items: [`i${i}`] }))

async function canopy(...args: string[]): Promise<{ out: string; error: unknown }> {
  const program = new Command('canopy').exitOverride()
  let out = ''
  vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
    out += String(text)
    return true
  })
  vi.spyOn(process.stderr, 'write').mockImplementation(() => true)
  register(program)
  const error = await program.parseAsync(['node', 'canopy', ...args]).then(
    () => undefined,
    (thrown: unknown) => thrown,
  )
  vi.restoreAllMocks()
  return { out, error }
}

describe('canopy split', () => {
  it('divides a split by the share and leaves a dataset without a fault', async () => {
    const folder = await dataset(single(50))
    const { out, error } = await canopy('split', folder, '--from', 'all', '--into', 'train', 'dev', '--dev', '0.2')
    expect(error).toBeUndefined()
    expect(out).toMatch(/"train": 40 questions in 40 groups, 40 gold items/)
    expect(out).toMatch(/"dev": 10 questions in 10 groups/)
    const splits = await questionsOf(folder)
    expect([...splits.keys()].sort()).toEqual(['dev', 'train'])
    const report = await checkDataset(folder, (fault) => expect(fault).toBeUndefined())
    expect(report.splits).toMatchObject({ train: { questions: 40 }, dev: { questions: 10 } })
    expect(readdirSync(folder).sort()).toEqual(['dataset.json', 'items.index', 'items.jsonl', 'questions.jsonl'])
  })

  it('prints one JSON document with --json', async () => {
    const folder = await dataset(single(10))
    const args = ['split', folder, '--from', 'all', '--into', 'train', 'dev', '--dev', '0.3', '--seed', '7', '--json']
    const summary = JSON.parse((await canopy(...args)).out) as SplitSummary
    expect(summary).toMatchObject({
      ...{ from: 'all', seed: '7', wanted: 0.3, share: 0.3, sharedItems: 0, largestGroup: { questions: 1 } },
      splits: { train: { questions: 7, groups: 7, goldItems: 7, items: 7 }, dev: { questions: 3 } },
    })
  })

  it('is wrong usage without two names, or with a share that is none', async () => {
    const args = ['split', 'x', '--from', 'all', '--dev', '0.2', '--into', 'train']
    expect((await canopy(...args)).error).toBeInstanceOf(UsageError)
    expect((await canopy(...args, 'dev', 'test')).error).toBeInstanceOf(UsageError)
    for (const dev of ['0', '1', 'half']) {
      expect((await canopy('split', 'x', '--from', 'all', '--into', 'a', 'b', '--dev', dev)).error).toBeInstanceOf(
        CommanderError,
      )
    }
  })

  it('--help shows an example', async () => {
    expect((await canopy('split', '--help')).out).toMatch(/Example:\n {2}\$ canopy split /)
  })
})

describe('dividing a split', () => {
  const asks = fc
    .array(
      fc.record({
        items: fc.uniqueArray(fc.integer({ min: 0, max: 25 }), { maxLength: 2 }),
        source: fc.option(fc.integer({ min: 0, max: 12 }), { nil: undefined }),
        part: fc.integer({ min: 0, max: 3 }),
        retrieved: fc.uniqueArray(fc.integer({ min: 0, max: 40 }), { maxLength: 3 }),
      }),
      { minLength: 2, maxLength: 40 },
    )
    .map((list) =>
      list.map(
        ({ items, source, part, retrieved }, i): Ask => ({
          id: `q${i}`,
          // every fourth item is a document that was cut into parts
          items: items.map((n) => (n % 4 === 0 ? `d${n}#${part}-${part + 9}` : `i${n}`)),
          retrieved: retrieved.map((n) => `r${n}`),
          ...(source !== undefined && { source: `s${source}` }),
        }),
      ),
    )

  it('separates no source, no gold item and no document, and keeps every question as it is', async () => {
    await fc.assert(
      fc.asyncProperty(asks, fc.double({ min: 0.1, max: 0.9, noNaN: true }), fc.nat(), async (list, dev, seed) => {
        const folder = await dataset(list)
        const before = (await questionsOf(folder)).get('all')!
        const untouched = await snapshot(folder)
        const summary = await splitDataset({ folder, from: 'all', into, dev, seed: String(seed) }).catch((e) => e)
        if (summary instanceof InputError) {
          expect(summary.message).toMatch(/no choice of whole groups/)
          expect(await snapshot(folder)).toEqual(untouched)
          return
        }
        const splits = await questionsOf(folder)
        const sideOf = new Map<string, string>()
        const bond = (key: string, split: string): void => {
          expect(sideOf.get(key) ?? split).toBe(split)
          sideOf.set(key, split)
        }
        for (const [split, questions] of splits) {
          for (const { source, gold } of questions) {
            if (source !== undefined) bond(`source ${source}`, split)
            for (const { item } of gold) bond(`item ${item.replace(/#.*/, '')}`, split)
          }
        }
        const after = [...splits.values()].flat().sort((a, b) => Number(a.id.slice(1)) - Number(b.id.slice(1)))
        expect(after.map((question) => ({ ...question, split: 'all' }))).toEqual(before)
        expect(summary.splits.dev.questions).toBe(splits.get('dev')!.length)
        const named = [...splits.values()].map(
          (qs) => new Set(qs.flatMap((q) => [...q.gold.map((g) => g.item), ...(q.retrieved ?? [])])),
        )
        expect(summary.sharedItems).toBe([...named[0]!].filter((id) => named[1]!.has(id)).length)
      }),
      { numRuns: 60 },
    )
  })

  it('comes as near to the share as whole groups allow', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1, maxLength: 12 }),
        fc.double({ min: 0.05, max: 0.95, noNaN: true }),
        fc.string(),
        (sizes, share, seed) => {
          const kinds = new Map<number, number[]>()
          for (const [group, size] of sizes.entries()) kinds.set(size, [...(kinds.get(size) ?? []), group])
          const { chosen, total } = chooseGroups(
            [...kinds].map(([size, groups]) => ({ size, groups })),
            share,
            createRandom(seed),
          )
          expect(new Set(chosen).size).toBe(chosen.length)
          expect(chosen.reduce((sum, group) => sum + sizes[group]!, 0)).toBe(total)
          const wanted = share * sizes.reduce((a, b) => a + b)
          let totals = [0]
          for (const size of sizes) totals = [...new Set(totals.flatMap((t) => [t, t + size]))]
          const nearest = Math.min(...totals.map((t) => Math.abs(t - wanted)))
          expect(Math.abs(total - wanted)).toBeCloseTo(nearest, 9)
        },
      ),
    )
  })

  it('gives the same division for a seed and another one for another', async () => {
    const devOf = async (seed: string): Promise<string[]> => {
      const folder = await dataset(single(60))
      await splitDataset({ folder, from: 'all', into, dev: 0.5, seed })
      return (await questionsOf(folder)).get('dev')!.map(({ id }) => id)
    }
    expect(await devOf('1')).toEqual(await devOf('1'))
    expect(await devOf('1')).not.toEqual(await devOf('2'))
  })

  it('gives both sides large and small groups, and every variant, in proportion', async () => {
    const asks = Array.from({ length: 400 }, (_, i): Ask => {
      const group = i < 200 ? `pair ${i >> 1}` : `${i}`
      return { id: `q${i}`, items: [group], source: group, ...(i % 4 === 0 && { variant: 'rare' }) }
    })
    const folder = await dataset(asks)
    const { splits } = await splitDataset({ folder, from: 'all', into, dev: 0.2 })
    expect(splits.dev).toMatchObject({ questions: 80 })
    const { dev } = splits
    // 60 of 300 groups, 20 of 100 rare questions
    expect(Math.abs(dev!.groups - 60)).toBeLessThanOrEqual(2)
    expect(Math.abs(dev!.variants.rare! - 20)).toBeLessThanOrEqual(2)
  })

  it('may keep the old name for one side, and leaves other splits alone', async () => {
    const folder = await dataset(single(20), 'train')
    const input = join(temporaryFolder(), 'more.jsonl')
    writeFileSync(input, lines({ id: 't', question: 'Test?', gold: [{ item: 'i0', whole: true }] }))
    await importJsonl({ inputs: [input], output: folder, split: 'test' })
    await splitDataset({ folder, from: 'train', into, dev: 0.25 })
    const splits = await questionsOf(folder)
    expect(Object.fromEntries([...splits].map(([name, { length }]) => [name, length]))).toEqual({
      train: 15,
      dev: 5,
      test: 1,
    })
    await checkDataset(folder, (fault) => expect(fault).toBeUndefined())
  })

  it('refuses when the groups are too large, saying how large and what to do, and changes nothing', async () => {
    const folder = await dataset([
      ...single(2),
      ...Array.from({ length: 18 }, (_, i) => ({ id: `x${i}`, items: ['hub', `j${i}`] })),
    ])
    const before = await snapshot(folder)
    const failed = splitDataset({ folder, from: 'all', into, dev: 0.4 })
    await expect(failed).rejects.toThrow(
      /20 questions .* 3 groups, the largest of 18 .* about 8 questions: the nearest is 2.*finer sources/,
    )
    expect(await snapshot(folder)).toEqual(before)
  })

  it.each([
    [{ from: 'train' }, /has no split "train"; it has "all"/],
    [{ into: ['a', 'a'] as [string, string] }, /both new splits are called "a"/],
    [{ into: ['', 'a'] as [string, string] }, /no name/],
    [{ dev: Number.NaN }, /between 0 and 1/],
  ])('refuses %j', async (options, message) => {
    const folder = await dataset(single(4))
    await expect(splitDataset({ folder, from: 'all', into, dev: 0.5, ...options })).rejects.toThrow(message)
  })

  it('refuses a name that another split has', async () => {
    const folder = await dataset(single(4))
    await splitDataset({ folder, from: 'all', into, dev: 0.5 })
    await expect(splitDataset({ folder, from: 'train', into: ['dev', 'x'], dev: 0.5 })).rejects.toThrow(/"dev" already/)
  })

  it.each([
    ['all', 3],
    ['train', 6],
  ])('of "%s", interrupted at any moment, leaves whole splits that its dataset.json lists', async (from, steps) => {
    for (let after = 0; after <= steps; after++) {
      const folder = await dataset(single(10), from)
      renames = after
      const failed = await splitDataset({ folder, from, into, dev: 0.2 }).catch((error: unknown) => error)
      renames = -1
      expect(failed instanceof Error).toBe(after < steps)
      const splits = await questionsOf(folder)
      const ids = [...splits.values()].flat().map(({ id }) => id)
      expect(ids.sort()).toEqual(
        single(10)
          .map(({ id }) => id)
          .sort(),
      )
      // and it can go on from there
      if (splits.has(from) && splits.size === 1) await splitDataset({ folder, from, into, dev: 0.2 })
      expect(readdirSync(folder).filter((name) => name.includes('.tmp-'))).toEqual([])
    }
  })

  it('keeps the files of the items as they are', async () => {
    const folder = await dataset(single(10))
    const before = readFileSync(join(folder, 'items.jsonl'))
    await splitDataset({ folder, from: 'all', into, dev: 0.2 })
    expect(readFileSync(join(folder, 'items.jsonl'))).toEqual(before)
  })
})

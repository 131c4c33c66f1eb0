import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeAll, describe, expect, it } from 'vitest'
import { checkDataset, contentId, type Fault } from '../../src/data/index.ts'
import { type Item, segmentSentences } from '../../src/hierarchy/index.ts'
import { type DecisionCase, decisionCase, decisionNodes } from '../../src/preferences/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { folder, readSample, root, type Sample } from './sample.ts'

describe('datasets/sample', () => {
  let sample: Sample
  beforeAll(async () => {
    sample = await readSample()
  })
  const of = (split: string, modality?: Item['modality']) => sample.of(split, modality)

  it('is what scripts/make-sample.mjs makes', () => {
    const output = temporaryFolder()
    execFileSync(process.execPath, [join(root, 'scripts', 'make-sample.mjs'), '--output', output], { stdio: 'pipe' })
    for (const name of ['dataset.json', 'items.jsonl', 'questions.jsonl']) {
      expect(readFileSync(join(output, name), 'utf8'), name).toBe(readFileSync(join(folder, name), 'utf8'))
    }
  })

  it('has no fault, and every picture and clip', async () => {
    const faults: Fault[] = []
    const report = await checkDataset(folder, (fault) => faults.push(fault), { needsMedia: true })
    expect(faults).toEqual([])
    expect(Object.keys(report.splits).sort()).toEqual(['dev', 'media-dev', 'media-train', 'train'])
    for (const { questions, gold, withoutGold } of Object.values(report.splits)) {
      expect(gold).toBe(questions)
      expect(withoutGold).toBe(0)
    }
    expect(report.oneLeafItems).toBe(0)
  })

  it('asks about 300 questions or more, of text and of tables', () => {
    expect(of('train').length + of('dev').length).toBeGreaterThanOrEqual(290)
    expect(of('train', 'table').length + of('dev', 'table').length).toBeGreaterThanOrEqual(60)
    for (const split of ['train', 'dev']) {
      const kinds = new Set(of(split).map(({ hierarchy }) => hierarchy.item.modality))
      expect([...kinds].sort(), split).toEqual(['table', 'text'])
    }
  })

  it('keeps questions about pictures and clips in splits and a benchmark of their own', () => {
    for (const { question, hierarchy } of sample.instances) {
      const isMedium = ['image', 'video'].includes(hierarchy.item.modality)
      expect(question.split).toMatch(isMedium ? /^media-(train|dev)$/ : /^(train|dev)$/)
      expect(question.benchmark).toBe(isMedium ? 'sample-media' : 'sample')
    }
  })

  it('asks no question twice', () => {
    const asked = sample.instances.map(({ question, hierarchy }) => `${hierarchy.item.id} ${question.question}`)
    expect(new Set(asked).size).toBe(asked.length)
  })

  it('names items by their content', () => {
    for (const { id, ...content } of sample.items.values()) expect(contentId(content)).toBe(id)
  })

  it('has the sentences that the segmenter would find', () => {
    for (const item of sample.items.values()) {
      if (item.modality !== 'text') continue
      const found = segmentSentences(item.text).map(([start, end]) => item.text.slice(start, end).trim())
      expect(found).toEqual(item.sentences?.map(([start, end]) => item.text.slice(start, end)))
    }
  })

  it('has tables of 4 to 24 rows and 3 to 6 columns, each of one width', () => {
    for (const item of sample.items.values()) {
      if (item.modality !== 'table') continue
      expect(item.rows.length, item.title).toBeGreaterThanOrEqual(4)
      expect(item.rows.length, item.title).toBeLessThanOrEqual(24)
      expect(item.header.length, item.title).toBeGreaterThanOrEqual(3)
      expect(item.header.length, item.title).toBeLessThanOrEqual(6)
      for (const row of item.rows) expect(row).toHaveLength(item.header.length)
    }
  })

  it('shares no subject and no item between training and dev, media included', () => {
    const names = (splits: string[]): Set<string | undefined> =>
      new Set(
        splits.flatMap((split) =>
          of(split).flatMap(({ question }) => [question.source, ...(question.retrieved ?? [])]),
        ),
      )
    const dev = names(['dev', 'media-dev'])
    for (const name of names(['train', 'media-train'])) expect(dev.has(name), name).toBe(false)
  })

  it('retrieves the gold item and three others of its split', () => {
    for (const { question } of sample.instances) {
      expect(new Set(question.retrieved).size).toBe(4)
      expect(question.retrieved).toContain(question.gold[0]?.item)
    }
    const isMedium = (id: string): boolean => ['image', 'video'].includes(sample.items.get(id)!.modality)
    for (const { question } of [...of('train'), ...of('dev')]) expect(question.retrieved?.some(isMedium)).toBe(false)
  })

  describe.each(['train', 'dev'])('%s', (split) => {
    it.each([undefined, 'text', 'table'] as const)('has its gold on both sides of the trees (%s)', (modality) => {
      const cases = { left: 0, right: 0, both: 0, full: 0, some: 0 } satisfies Record<DecisionCase, number>
      for (const { hierarchy, gold } of of(split, modality)) {
        for (const node of decisionNodes(hierarchy.root, (leaf) => gold[leaf] === true)) cases[decisionCase(node)]++
      }
      const total = cases.left + cases.right + cases.both + cases.full
      // what is left for a policy that always goes one way
      expect(cases.left / total).toBeLessThan(0.43)
      expect(cases.right / total).toBeLessThan(0.43)
      expect(Math.abs(cases.left - cases.right) / total).toBeLessThan(0.05)
      expect(cases.both / total).toBeGreaterThan(0.08)
      expect(cases.full / total).toBeGreaterThan(0.05)
    })

    it.each(['text', 'table'] as const)('has its gold in every part of the items (%s)', (modality) => {
      const thirds = [0, 0, 0]
      for (const { gold } of of(split, modality)) {
        gold.forEach((isGold, leaf) => {
          if (isGold) thirds[Math.floor((3 * (leaf + 0.5)) / gold.length)]! += 1
        })
      }
      const total = thirds[0]! + thirds[1]! + thirds[2]!
      for (const third of thirds) expect(Math.abs(third / total - 1 / 3)).toBeLessThan(0.08)
    })
  })
})

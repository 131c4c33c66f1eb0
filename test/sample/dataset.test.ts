import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { beforeAll, describe, expect, it } from 'vitest'
import { checkDataset, contentId, type Fault, openDataset } from '../../src/data/index.ts'
import {
  buildHierarchy,
  goldLeaves,
  type Hierarchy,
  type Item,
  type Question,
  segmentSentences,
} from '../../src/hierarchy/index.ts'
import { type DecisionCase, decisionCase, decisionNodes } from '../../src/preferences/index.ts'
import { temporaryFolder } from '../support/temporary.ts'

const root = resolve(import.meta.dirname, '../..')
const folder = join(root, 'datasets', 'sample')

interface Instance {
  question: Question
  hierarchy: Hierarchy
  gold: boolean[]
}

describe('datasets/sample', () => {
  const instances: Instance[] = []
  const items = new Map<string, Item>()
  const of = (split: string): Instance[] => instances.filter(({ question }) => question.split === split)

  beforeAll(async () => {
    const dataset = await openDataset(folder)
    for await (const { question } of dataset.questions()) {
      for (const id of question.retrieved ?? []) items.set(id, await dataset.item(id))
      for (const entry of question.gold) {
        const hierarchy = buildHierarchy(await dataset.item(entry.item))
        instances.push({ question, hierarchy, gold: goldLeaves(hierarchy, entry).gold })
      }
    }
    await dataset.close()
  })

  it('is what scripts/make-sample.mjs makes', () => {
    const output = temporaryFolder()
    execFileSync(process.execPath, [join(root, 'scripts', 'make-sample.mjs'), '--output', output], { stdio: 'pipe' })
    for (const name of ['dataset.json', 'items.jsonl', 'questions.jsonl']) {
      expect(readFileSync(join(output, name), 'utf8'), name).toBe(readFileSync(join(folder, name), 'utf8'))
    }
  })

  it('has no fault', async () => {
    const faults: Fault[] = []
    const report = await checkDataset(folder, (fault) => faults.push(fault))
    expect(faults).toEqual([])
    expect(report.items.text).toBe(48)
    expect(report.splits).toMatchObject({ train: { questions: 128, gold: 128 }, dev: { questions: 47, gold: 47 } })
  })

  it('names items by their content', () => {
    for (const { id, ...content } of items.values()) expect(contentId(content)).toBe(id)
  })

  it('has the sentences that the segmenter would find', () => {
    for (const item of items.values()) {
      if (item.modality !== 'text') throw new Error('an item of the sample is no text')
      const found = segmentSentences(item.text).map(([start, end]) => item.text.slice(start, end).trim())
      expect(found).toEqual(item.sentences?.map(([start, end]) => item.text.slice(start, end)))
    }
  })

  it('shares no subject and no item between train and dev', () => {
    const dev = new Set(of('dev').flatMap(({ question }) => [question.source, ...(question.retrieved ?? [])]))
    for (const { question } of of('train')) {
      for (const name of [question.source, ...(question.retrieved ?? [])]) expect(dev.has(name)).toBe(false)
    }
  })

  it('retrieves the gold item and three others', () => {
    for (const { question } of instances) {
      expect(new Set(question.retrieved).size).toBe(4)
      expect(question.retrieved).toContain(question.gold[0]?.item)
    }
  })

  it.each(['train', 'dev'])('gives no advantage to a policy that never reads the question (%s)', (split) => {
    const cases = { left: 0, right: 0, both: 0, full: 0, some: 0 } satisfies Record<DecisionCase, number>
    for (const { hierarchy, gold } of of(split)) {
      for (const node of decisionNodes(hierarchy.root, (leaf) => gold[leaf] === true)) cases[decisionCase(node)]++
    }
    const total = cases.left + cases.right + cases.both + cases.full
    expect(cases.left / total).toBeLessThan(0.5)
    expect(cases.right / total).toBeLessThan(0.5)
    expect(Math.abs(cases.left - cases.right) / total).toBeLessThan(0.08)
    expect(cases.both / total).toBeGreaterThan(0.04)
    expect(cases.full / total).toBeGreaterThan(0.04)
  })

  it.each(['train', 'dev'])('has its gold in every part of the articles (%s)', (split) => {
    const thirds = [0, 0, 0]
    for (const { gold } of of(split)) {
      gold.forEach((isGold, leaf) => {
        if (isGold) thirds[Math.floor((3 * (leaf + 0.5)) / gold.length)]! += 1
      })
    }
    const total = thirds[0]! + thirds[1]! + thirds[2]!
    for (const third of thirds) expect(Math.abs(third / total - 1 / 3)).toBeLessThan(0.08)
  })
})

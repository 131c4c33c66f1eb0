import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openDataset } from '../../src/data/index.ts'
import { checkInstances } from '../../src/export/index.ts'
import { heldOutInstances } from '../../src/train/index.ts'
import { temporaryFolder } from '../support/temporary.ts'

const sample = join(import.meta.dirname, '..', '..', 'datasets', 'sample')

/** Question and item of every gold entry of a split. */
async function goldOf(split: string): Promise<{ text: string; question: string; item: string }[]> {
  const dataset = await openDataset(sample)
  const gold = []
  for await (const { question } of dataset.questions(split))
    for (const { item } of question.gold) gold.push({ text: question.question, question: question.id, item })
  await dataset.close()
  return gold
}

describe('what an export is compared on', () => {
  it('is spread over a split of a data set, of which it takes a part', async () => {
    const gold = await goldOf('dev')
    const found = await checkInstances(sample, 'dev', 2, 7)
    expect(found).toHaveLength(7)
    const places = found.map(({ question, hierarchy }) =>
      gold.findIndex(({ text, item }) => text === question && item === hierarchy.item.id),
    )
    expect(places).toEqual([0, 1, 2, 3, 4, 5, 6].map((i) => Math.floor((i * gold.length) / 7)))
    for (const { hierarchy, gold: leaves } of found) expect(leaves).toHaveLength(hierarchy.leaves.length)
    expect(await checkInstances(sample, 'dev', 2, 10_000)).toHaveLength(gold.length)
    await expect(checkInstances(sample, 'test', 2, 5)).rejects.toThrow(/sample.*test/)
  })

  it('is spread over the data sets of a run', async () => {
    const run = temporaryFolder()
    const data = ['train', 'dev'].map((split) => ({ folder: sample, split }))
    writeFileSync(join(run, 'config.json'), JSON.stringify({ data }))
    const gold = [(await goldOf('train')).slice(0, 30), (await goldOf('dev')).slice(0, 10)]
    const lines = gold.flatMap((part, i) => part.map(({ question, item }) => ({ data: i, question, item })))
    writeFileSync(join(run, 'validation.jsonl'), lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
    const asked = async (most?: number) =>
      (await heldOutInstances(run, 2, most)).map(({ question, hierarchy }) => `${question} ${hierarchy.item.id}`)
    const all = gold.map((part) => part.map(({ text, item }) => `${text} ${item}`))
    const eight = await asked(8)
    expect(eight).toHaveLength(8)
    expect(eight.filter((name) => all[1]!.includes(name))).toHaveLength(2)
    expect(await asked()).toEqual(all.flat())
    expect(await asked(1000)).toEqual(all.flat())
    expect(await asked(0)).toEqual([])
  })
})

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { openDatasetWriter } from '../../src/data/index.ts'
import { evaluate, readScores } from '../../src/eval/index.ts'
import type { Item, Question } from '../../src/hierarchy/index.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { writeArticles } from './articles.ts'
import { optionsFor } from './bag.ts'

const json = (path: string) => JSON.parse(readFileSync(join(path, 'metrics.json'), 'utf8'))

/** Rewrites the questions of a dataset, line by line. */
function changeQuestions(folder: string, change: (question: Record<string, unknown>, i: number) => object): void {
  const file = join(folder, 'questions.jsonl')
  const lines = readFileSync(file, 'utf8').trimEnd().split('\n')
  writeFileSync(file, lines.map((line, i) => `${JSON.stringify(change(JSON.parse(line), i))}\n`).join(''))
}

describe('questions of a variant', () => {
  it('have rows of their own and no part in pooled figures, means or the permutation of the rest', async () => {
    const folder = temporaryFolder()
    const mixed = await writeArticles(join(folder, 'ten'), 'Articles', 16)
    changeQuestions(mixed, (question, i) => (i < 10 ? question : { ...question, variant: 'hard' }))
    const second = await writeArticles(join(folder, 'second'), 'Other', 6)
    const output = join(folder, 'mixed-out')
    await evaluate(optionsFor([mixed, second], output))
    const found = json(output)
    // Sources of question 10 reach into the plain ones, so only the values are compared with a dataset without them.
    const plain = await writeArticles(join(folder, 'plain', 'ten'), 'Articles', 10)
    await evaluate(optionsFor([plain, second], join(folder, 'plain-out')))
    const alone = json(join(folder, 'plain-out'))
    expect(Object.keys(found)).toEqual([
      ...['Articles', 'Articles:hard', 'Other', 'pooled', 'mean'],
      ...['differences', 'selection', 'selection_differences', 'evaluation'],
    ])
    for (const row of ['Articles', 'Other', 'pooled', 'mean']) {
      expect(found[row], row).toEqual(alone[row])
      expect(found.selection[row], row).toEqual(alone.selection[row])
    }
    expect(found.evaluation.accuracyByLevel.pooled).toEqual(alone.evaluation.accuracyByLevel.pooled)
    expect(found['Articles:hard'].permuted.decision_accuracy.n).toBeGreaterThan(5)
    expect(found.evaluation.apart).toEqual(['Articles:hard'])
    expect(found.evaluation.counts['Articles:hard'].questions).toBe(6)
    const summary = readFileSync(join(output, 'summary.md'), 'utf8')
    expect(summary.match(/in no pooled figure and no mean: Articles:hard/g)!.length).toBe(3)
    const variants = new Map<string, string | undefined>()
    for await (const { benchmark, question, variant } of readScores(output)) {
      variants.set(`${benchmark} ${question}`, variant)
    }
    expect([variants.get('Articles q9'), variants.get('Articles q10')]).toEqual([undefined, 'hard'])
    expect(readFileSync(join(output, 'decisions.jsonl'), 'utf8')).toContain('"variant":"hard"')
  })

  it('may be all there is; then nothing is pooled', async () => {
    const folder = temporaryFolder()
    const data = await writeArticles(join(folder, 'data'), 'Articles', 4)
    changeQuestions(data, (question) => ({ ...question, variant: 'hard' }))
    await evaluate(optionsFor([data], join(folder, 'out')))
    expect(Object.keys(json(join(folder, 'out')))[1]).toBe('differences')
    expect(readFileSync(join(folder, 'out', 'summary.md'), 'utf8')).not.toMatch(/undefined|NaN/)
  })

  it('do not mix with a benchmark that has their name', async () => {
    const folder = temporaryFolder()
    const data = await writeArticles(join(folder, 'data'), 'Articles', 4)
    changeQuestions(data, (question, i) =>
      i < 2 ? { ...question, variant: 'hard' } : { ...question, benchmark: 'Articles:hard' },
    )
    await expect(evaluate(optionsFor([data], join(folder, 'out')))).rejects.toThrow(
      /questions\.jsonl:3: .*both be called "Articles:hard"/,
    )
  })
})

/** A dataset with texts, a table, pictures and a video. */
async function writeMedia(folder: string, split: 'mixed' | 'media'): Promise<string> {
  const writer = await openDatasetWriter({ folder, name: 'media', benchmark: 'Media', split: 'dev' })
  const place = { file: 'made up', line: 1 }
  const items: Item[] = [
    { id: 'text', modality: 'text', text: 'The river is long. The castle is high.' },
    {
      id: 'table',
      modality: 'table',
      title: 'Lengths',
      header: ['river', 'km'],
      rows: [
        ['Elbe', '1094'],
        ['Oder', '840'],
        ['Ems', '371'],
      ],
    }, // prettier-ignore
    { id: 'picture', modality: 'image', title: 'A castle', image: 'castle.jpg' },
    { id: 'clip', modality: 'video', title: 'A walk', start: 0, end: 95 },
  ]
  for (const item of items) await writer.addItem(item, place)
  const ask = async (id: string, gold: Question['gold'], retrieved?: string[]): Promise<void> => {
    const about = { id, benchmark: 'Media', split: 'dev', question: `What about the ${id}?`, answers: [], gold }
    await writer.addQuestion({ ...about, ...(retrieved && { retrieved }) }, place)
  }
  if (split === 'mixed') {
    await ask(
      'river',
      [
        { item: 'text', spans: [[0, 18]] },
        { item: 'picture', whole: true },
      ],
      ['text', 'clip'],
    )
    await ask('length', [{ item: 'table', rows: [1] }])
  }
  await ask(
    'castle',
    [
      { item: 'picture', whole: true },
      { item: 'clip', times: [[31, 40]] },
    ],
    ['clip'],
  ) // prettier-ignore
  await writer.commit()
  return folder
}

describe('images and videos before an encoder of text', () => {
  it('are left out and counted, whatever else the question names', async () => {
    const folder = temporaryFolder()
    const data = await writeMedia(join(folder, 'data'), 'mixed')
    const output = join(folder, 'out')
    const { evaluation } = await evaluate(optionsFor([data], output))
    expect(evaluation.counts.Media).toMatchObject({
      ...{ questions: 3, goldItems: 2, goldItemsNotText: 3, otherItems: 0, otherItemsNotText: 1 },
    })
    expect(evaluation.notes.join()).toContain('Media: 3 gold items and 1 other retrieved items are images or videos')
    // Only the question of which something is left is one to divide tokens by.
    const { Media } = JSON.parse(readFileSync(join(output, 'metrics.json'), 'utf8'))
    expect(Media.frozen.tokens_gold.n).toBe(1)
    expect(Media.constant.tokens_gold_ratio.value).toBe(1)
    expect(evaluation.clusters.Media).toBe(2)
    const items: string[] = []
    for await (const { item } of readScores(output)) items.push(item)
    expect(items).toEqual(['text', 'table'])
    expect(readFileSync(join(output, 'summary.md'), 'utf8')).toContain('| gold images and videos')
  })

  it('are an error with a way out when they are all there is', async () => {
    const folder = temporaryFolder()
    const data = await writeMedia(join(folder, 'data'), 'media')
    await expect(evaluate(optionsFor([data], join(folder, 'out')))).rejects.toThrow(
      /All 2 gold items of the split "dev" are images or videos.*--scores/,
    )
  })
})

import { readFileSync, writeFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { openDataset } from '../../src/data/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { openTrainingSet } from '../../src/train/data/training-set.ts'
import { temporaryFolder } from '../support/temporary.ts'
import { createSetup, type Setup } from './command.ts'

/** A training set of every other instance of a data set, in another order than its questions. */
async function openShuffled(): Promise<{ setup: Setup; set: Awaited<ReturnType<typeof openTrainingSet>> }> {
  const setup = await createSetup(temporaryFolder(), 20)
  const [header, ...instances] = readFileSync(setup.preferences, 'utf8').trimEnd().split('\n')
  const kept = instances.filter((_, i) => i % 2 === 0)
  createRandom('shuffled').shuffle(kept)
  writeFileSync(setup.preferences, [header, ...kept, ''].join('\n'))
  const dataset = await openDataset(setup.dataset)
  return { setup, set: await openTrainingSet([setup.preferences], [dataset]) }
}

describe('a training set', () => {
  it('numbers its questions, whatever the order of its instances', async () => {
    const { setup, set } = await openShuffled()
    const textOf = new Map<string, string>()
    const dataset = await openDataset(setup.dataset)
    for await (const { question } of dataset.questions('train')) textOf.set(question.id, question.question)
    const texts = new Map<number, string>()
    for await (const { number, text } of set.questions()) texts.set(number, text)

    expect(set.questionCount).toBeGreaterThan(5)
    expect([...texts.keys()].sort((a, b) => a - b)).toEqual([...Array(set.questionCount).keys()])
    for (let i = 0; i < set.index.count; i++) {
      const { question } = await set.name(i)
      expect(texts.get(set.index.question[i]!)).toBe(textOf.get(question))
    }
  })

  it('lists what it trains on, and not what else its data set has', async () => {
    const { set } = await openShuffled()
    const { questions, items, sources } = await set.trainingData()
    expect(questions.size).toBe(set.questionCount)
    expect(items.size).toBe(set.questionCount)
    expect(sources.size).toBe(new Set(set.index.source).size)
  })
})

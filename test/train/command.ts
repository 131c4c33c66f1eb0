import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { importJsonl, openDataset } from '../../src/data/index.ts'
import { createRandomBert } from '../../src/encoder/bert/random.ts'
import { buildPreferences } from '../../src/preferences/index.ts'
import { createRandom } from '../../src/support/random.ts'

export { canopy } from '../support/cli.ts'

export interface Setup {
  encoder: string
  dataset: string
  preferences: string
}

const subjects = ['otter', 'lantern', 'harbour', 'violin', 'glacier', 'bakery', 'comet', 'orchard', 'canal', 'beacon']
const facts = ['weighs', 'sleeps under', 'was built beside', 'sings about', 'is older than', 'borrowed', 'painted']

/** A small data set with its preferences and a BERT that has learned nothing, in `folder`. */
export async function createSetup(folder: string, questions = 40): Promise<Setup> {
  const random = createRandom('command')
  const pick = (words: string[]): string => words[random.int(words.length)]!
  const lines: string[] = []
  const texts: string[] = []
  for (let q = 0; q < questions; q++) {
    const sentences = Array.from(
      { length: 2 + random.int(5) },
      (_, s) => `The ${pick(subjects)} number ${s} ${pick(facts)} the ${pick(subjects)} of ${pick(subjects)} ${q}.`,
    )
    const gold = pick(sentences)
    texts.push(...sentences)
    lines.push(JSON.stringify({ id: `i${q}`, title: `Page ${q}`, text: sentences.join(' ') }))
    const question = `Which ${gold.split(' ')[1]} ${gold.split(' ').slice(4, -3).join(' ')}?`
    lines.push(
      JSON.stringify({
        id: `q${q}`,
        benchmark: 'made-up',
        question,
        answers: ['none'],
        source: `s${Math.floor(q / 2)}`,
        gold: [{ item: `i${q}`, quotes: [gold] }],
      }),
    )
  }
  const input = join(folder, 'input.jsonl')
  writeFileSync(input, `${lines.join('\n')}\n`)
  const setup = {
    encoder: join(folder, 'bert'),
    dataset: join(folder, 'dataset'),
    preferences: join(folder, 'train.jsonl'),
  }
  await importJsonl({ inputs: [input], split: 'train', output: setup.dataset })
  const dataset = await openDataset(setup.dataset)
  await buildPreferences({ dataset, split: 'train', output: setup.preferences })
  await dataset.close()
  await createRandomBert(setup.encoder, {
    seed: 3,
    vocabularyFrom: texts,
    hidden: 32,
    layers: 2,
    heads: 2,
    maxLength: 64,
  })
  return setup
}

import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { importJsonl, openDataset } from '../../src/data/index.ts'
import { createRandomBert } from '../../src/encoder/random-bert.ts'
import { buildPreferences } from '../../src/preferences/index.ts'
import { createRandom } from '../../src/support/random.ts'

/** The built command line; CANOPY_CLI names another build. */
const cli = process.env.CANOPY_CLI ?? resolve(import.meta.dirname, '../../dist/cli/main.js')

export interface Finished {
  code: number | null
  signal: NodeJS.Signals | null
  stdout: string
  stderr: string
}

/** Starts `canopy …` as a process of its own. */
export function canopy(args: string[]): { process: ChildProcess; finished: Promise<Finished> } {
  if (!existsSync(cli)) throw new Error(`${cli} is missing: run "npm run build" first`)
  const child = spawn(process.execPath, [cli, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  const out: Finished = { code: null, signal: null, stdout: '', stderr: '' }
  child.stdout.on('data', (data: Buffer) => {
    out.stdout += data.toString()
  })
  child.stderr.on('data', (data: Buffer) => {
    out.stderr += data.toString()
  })
  const finished = new Promise<Finished>((done, failed) => {
    child.on('error', failed)
    child.on('close', (code, signal) => done({ ...out, code, signal }))
  })
  return { process: child, finished }
}

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

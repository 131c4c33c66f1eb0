import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import {
  addTrainingQuestion,
  createOverlapCounter,
  emptyTrainingData,
  readTrainingData,
  TRAINING_DATA_FILE,
  writeTrainingData,
} from '../../src/eval/index.ts'
import { appendLook, countLooks } from '../../src/eval/looks.ts'
import type { Question } from '../../src/hierarchy/index.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-overlap-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const question = (id: string, item: string, source?: string): Question => ({
  id,
  benchmark: 'b',
  split: 'train',
  question: `text of ${id}`,
  answers: [],
  gold: [{ item, spans: [[0, 1]] }],
  ...(source !== undefined && { source }),
})

describe('training data beside an adapter', () => {
  const data = emptyTrainingData()
  for (const q of [question('q2', 'item b', 'page 2'), question('q1', 'item a', 'page 1'), question('q3', 'item a')]) {
    addTrainingQuestion(data, q)
  }

  it('comes back as written, and holds hashes only', async () => {
    await writeTrainingData(folder, data)
    expect(await readTrainingData(folder)).toEqual(data)
    const text = readFileSync(join(folder, TRAINING_DATA_FILE), 'utf8')
    expect(text).not.toMatch(/page|item a|text of/)
    expect([data.questions.size, data.items.size, data.sources.size]).toEqual([3, 2, 2])
  })

  it('is found in the run around the adapter, and undefined elsewhere', async () => {
    mkdirSync(join(folder, 'adapter'), { recursive: true })
    expect(await readTrainingData(join(folder, 'adapter'))).toEqual(data)
    mkdirSync(join(folder, 'a', 'b', 'c'), { recursive: true })
    expect(await readTrainingData(join(folder, 'a', 'b', 'c'))).toBeUndefined()
  })

  it('has an overlap with a split that is counted without repetition', () => {
    const counter = createOverlapCounter(data)
    for (const q of [
      question('q1', 'item a', 'page 1'),
      question('new', 'item a', 'page 1'),
      question('other', 'item c', 'page 9'),
      question('q3', 'item d'),
    ]) {
      counter.add(q)
    }
    expect(counter.result()).toEqual({
      questions: 2,
      items: 1,
      sources: 1,
      of: { questions: 4, items: 3, sources: 2 },
      examples: ['page 1'],
    })
  })

  it('is refused when it is something else', async () => {
    const broken = join(folder, 'broken')
    mkdirSync(broken)
    writeFileSync(join(broken, TRAINING_DATA_FILE), '{"schema":')
    await expect(readTrainingData(broken)).rejects.toThrow(/broken.training-data\.json: Not JSON/)
    writeFileSync(
      join(broken, TRAINING_DATA_FILE),
      '{"schema":"canopy-training-data/1","questions":["x"],"items":[],"sources":[]}',
    )
    await expect(readTrainingData(broken)).rejects.toThrow('questions.0')
  })
})

describe('the count of looks', () => {
  it('gives each configuration its place, and repetitions keep it', async () => {
    const file = join(folder, 'evaluations.jsonl')
    const look = async (configuration: string, split = 'dev'): Promise<[number, number]> => {
      const count = await countLooks(file, { split, configuration })
      await appendLook(file, { time: 'now', split, configuration })
      return [count.configuration, count.repetitions]
    }
    expect(await look('a')).toEqual([1, 1])
    expect(await look('a')).toEqual([1, 2])
    expect(await look('b')).toEqual([2, 1])
    expect(await look('a')).toEqual([1, 3])
    expect(await look('b', 'test')).toEqual([1, 1])
  })

  it('names the line of a broken log', async () => {
    const file = join(folder, 'broken.jsonl')
    writeFileSync(file, '{"time":"","split":"dev","configuration":"a"}\n{"time"\n')
    await expect(countLooks(file, { split: 'dev', configuration: 'a' })).rejects.toThrow('broken.jsonl:2:')
  })
})

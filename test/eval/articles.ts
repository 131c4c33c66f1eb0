import { basename } from 'node:path'
import { openDatasetWriter } from '../../src/data/index.ts'
import type { Question, TextItem } from '../../src/hierarchy/index.ts'

const nouns = ['river', 'castle', 'engine', 'orchard', 'library', 'harbour', 'glacier', 'violin', 'market', 'lantern']
export const sentence = (topic: string, i: number): string =>
  `The ${topic} number ${'abcdefgh'[i]} was described in an old chronicle.`

/**
 * Writes a dataset with a split `dev`: questions whose gold sentence names what they ask about. The first two share a source;
 * of every other one it is known what was retrieved.
 */
export async function writeArticles(path: string, benchmark: string, count: number): Promise<string> {
  const name = basename(path)
  const writer = await openDatasetWriter({ folder: path, name, benchmark, split: 'dev' })
  const place = { file: 'made up', line: 1 }
  for (let i = 0; i < count; i++) {
    const leaves = 2 + (i % 5)
    const goldLeaf = (i * 3) % leaves
    const parts = Array.from({ length: leaves }, (_, leaf) => sentence(nouns[(i + leaf) % nouns.length]!, leaf))
    const text = parts.join(' ')
    const start = parts.slice(0, goldLeaf).join(' ').length + (goldLeaf > 0 ? 1 : 0)
    const item: TextItem = { id: `${name} item ${i}`, modality: 'text', title: `Article ${i}`, text }
    const other: TextItem = {
      id: `${name} other ${i}`,
      modality: 'text',
      text: `${sentence('desert', 0)} ${sentence('moon', 1)}`,
    }
    await writer.addItem(item, place)
    await writer.addItem(other, place)
    const question: Question = {
      id: `q${i}`,
      benchmark,
      split: 'dev',
      question: `Which ${nouns[(i + goldLeaf) % nouns.length]} is number ${'abcdefgh'[goldLeaf]}, asked ${i}?`,
      answers: [],
      source: `page ${Math.max(0, i - 1)}`,
      gold: [{ item: item.id, spans: [[start, start + parts[goldLeaf]!.length]] }],
      ...(i % 2 === 0 && { retrieved: [other.id, item.id] }),
    }
    await writer.addQuestion(question, place)
  }
  await writer.commit()
  return path
}

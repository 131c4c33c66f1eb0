import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type EncodeOptions, type EncodeRun, encodeToFile } from '../../src/encode/index.ts'
import {
  type Embedder,
  type EncoderPair,
  openEmbedder,
  type PairOptions,
  readEncoderPair,
} from '../../src/encoder/index.ts'
import { tinyBert } from '../encoder/fixtures.ts'
import { lines } from '../support/temporary.ts'

const places = ['harbour', 'mill', 'tower', 'quarry', 'orchard', 'ferry', 'chapel']

/** Texts of one to seven sentences, one far longer than the encoder reads, and a table with equal rows. */
export function testItems(count = 40): { id: string; [field: string]: unknown }[] {
  const items: { id: string; [field: string]: unknown }[] = Array.from({ length: count }, (_, i) => ({
    id: `item ${i}`,
    modality: 'text',
    title: `The ${places[i % 7]} ${i}`,
    text: Array.from({ length: 1 + (i % 7) }, (_, s) => `The ${places[(i + s) % 7]} has ${i + s} doors.`).join(' '),
  }))
  items.push({ id: 'long', modality: 'text', text: 'A word and another word. '.repeat(60).trim() })
  const row = ['the same', 'again']
  items.push({
    id: 'table',
    modality: 'table',
    title: 'Rows',
    header: ['a', 'b'],
    rows: [row, row, ['other', '1'], row],
  })
  return items
}

/** A data set folder with a question about each of the first ten items, half of them in each split. */
export function writeDataset(folder: string, items: object[] = testItems()): string {
  mkdirSync(folder, { recursive: true })
  const ids = items.slice(0, 10).map((item) => (item as { id: string }).id)
  const questions = ids.map((item, i) => ({
    ...{ id: `q${i}`, benchmark: 'test', split: i < 5 ? 'train' : 'dev', question: `How many doors, ${i}?` },
    ...{ answers: [], gold: [{ item, whole: true }] },
  }))
  writeFileSync(join(folder, 'items.jsonl'), lines(...items))
  writeFileSync(join(folder, 'questions.jsonl'), lines(...questions))
  const splits = { train: { questions: Math.min(5, ids.length) }, dev: { questions: Math.max(0, ids.length - 5) } }
  const counts = { items: items.length, questions: ids.length }
  const meta = { schema: 'canopy-dataset/1', name: 'doors', benchmark: 'test', splits, counts }
  writeFileSync(join(folder, 'dataset.json'), JSON.stringify(meta))
  return folder
}

export interface Opened {
  pair: EncoderPair
  embedder: Embedder
}

export async function openTiny(variant: 'mean' | 'cls' = 'mean', options: PairOptions = {}): Promise<Opened> {
  const pair = await readEncoderPair(tinyBert(variant), options)
  const adapter = pair.adapter === undefined ? {} : { adapter: pair.adapter }
  return { pair, embedder: await openEmbedder(pair.encoder, { threads: 1, ...adapter }) }
}

export const SETTINGS = { title: true, tableFormat: 'markdown', branching: 2 } as const
export const COMPUTING = { device: 'cpu', precision: 'fp32', tokenBudget: 4096 }

/** Encodes in small blocks. */
export function encodeSmall(
  { pair, embedder }: Opened,
  dataset: string,
  output: string,
  more: Partial<EncodeOptions> = {},
): Promise<EncodeRun> {
  return encodeToFile({
    ...{ pair, embedder, side: 'node', settings: SETTINGS, output, format: 'safetensors', dtype: 'float32' },
    ...{ computing: COMPUTING, resume: false, blockRows: 16 },
    selection: { datasets: [dataset], itemFiles: [], splits: undefined },
    ...more,
  })
}

import { type Dataset, openDataset } from '../data/index.ts'
import {
  buildHierarchy,
  type Item,
  leafExtents,
  preOrder,
  readsAsText,
  renderNode,
  segmentSentences,
} from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { sha256File } from '../support/files.ts'
import { createRandom } from '../support/random.ts'
import { textLines } from './lines.ts'

/** What a text is: one sentence; several of one passage; a node of an item, as it is rendered; a question. */
export const KINDS = ['sentence', 'passage', 'node', 'question'] as const
export type TextKind = (typeof KINDS)[number]

/** Texts that stand or fall together: all that one passage, item or question gives. */
export interface TextGroup {
  /** The passage, item text or question itself. */
  origin: string
  texts: { kind: TextKind; text: string }[]
  /** Its sentences, rows or itself, by which it is compared with what is to be kept out. */
  parts: string[]
}

export interface DatasetPart {
  folder: string
  split: string
}

/** A file that was read, for the log. */
export interface SourceFile {
  file: string
  sha256: string
}

/** Reads `folder:split`, as the command line names a part of a data set. */
export function datasetPart(text: string): DatasetPart {
  const at = text.lastIndexOf(':')
  if (at < 1 || at === text.length - 1)
    throw new InputError(`"${text}" names no part of a data set; write folder:split, as in datasets/mine:train.`)
  return { folder: text.slice(0, at), split: text.slice(at + 1) }
}

/** Words of a text that tell languages from tables of numbers. */
const MIN_WORDS = 3
/** Characters of a line that are read; of a longer one the whole sentences among them. */
const MAX_LINE = 20_000

/**
 * The passages of a text file, one a line: every sentence of at least three words, and where there are several one run of two to eight
 * of them, chosen by `seed`.
 *
 * @throws InputError for a file that cannot be read or is no UTF-8 text
 */
export async function* fileGroups(file: string, seed: string): AsyncGenerator<TextGroup> {
  const random = createRandom(seed)
  for await (const { text: line, cut } of textLines(file, MAX_LINE)) {
    const sentences = sentencesOf(line)
    // half a sentence could not be recognised as one that is to be kept out
    const parts = cut ? sentences.slice(0, -1) : sentences
    const texts: TextGroup['texts'] = parts
      .filter((part) => wordCount(part) >= MIN_WORDS)
      .map((text) => ({ kind: text.endsWith('?') ? 'question' : 'sentence', text }))
    if (parts.length > 1) {
      const length = Math.min(parts.length, 2 + random.int(7))
      const from = random.int(parts.length - length + 1)
      texts.push({ kind: 'passage', text: parts.slice(from, from + length).join(' ') })
    }
    yield { origin: line, texts, parts }
  }
}

/** What a part of a data set says: the nodes of the items that its questions name, as they are rendered, and the questions. */
export async function* datasetGroups({ folder, split }: DatasetPart): AsyncGenerator<TextGroup> {
  for await (const { question, item } of itemsAndQuestions(folder, split)) {
    if (question !== undefined)
      yield { origin: question, texts: [{ kind: 'question', text: question }], parts: [question] }
    else if (item !== undefined && readsAsText(item)) {
      const hierarchy = buildHierarchy(item)
      const nodes = preOrder(hierarchy.root).map((node) => renderNode(hierarchy, node, { title: true }))
      const sentences = item.modality === 'text' ? leafTexts(item) : []
      yield {
        origin: nodes[0] as string,
        texts: [
          ...[...new Set(nodes)].map((text) => ({ kind: 'node' as const, text })),
          ...sentences.filter((s) => wordCount(s) >= MIN_WORDS).map((text) => ({ kind: 'sentence' as const, text })),
        ],
        parts: partsOf(item),
      }
    }
  }
}

/** What is to be kept out of everything: the sentences and rows of a part's items, and its questions. */
export async function* datasetParts({ folder, split }: DatasetPart): AsyncGenerator<string> {
  for await (const { question, item } of itemsAndQuestions(folder, split)) {
    if (question !== undefined) yield question
    else if (item !== undefined) yield* partsOf(item)
  }
}

/** The files of a data set and their hashes. */
export async function hashesOf(files: readonly string[]): Promise<SourceFile[]> {
  const hashes: SourceFile[] = []
  for (const file of files) hashes.push({ file, sha256: await sha256File(file) })
  return hashes
}

async function* itemsAndQuestions(folder: string, split: string): AsyncGenerator<{ question?: string; item?: Item }> {
  const dataset: Dataset = await openDataset(folder)
  try {
    const seen = new Set<string>()
    for await (const { question } of dataset.questions(split)) {
      yield { question: question.question }
      for (const id of [...question.gold.map((gold) => gold.item), ...(question.retrieved ?? [])]) {
        if (seen.has(id)) continue
        seen.add(id)
        yield { item: await dataset.item(id) }
      }
    }
  } finally {
    await dataset.close()
  }
}

function partsOf(item: Item): string[] {
  if (item.modality === 'text') return leafTexts(item)
  return item.modality === 'table' ? item.rows.map((row) => row.join(' ')) : []
}

function leafTexts(item: Extract<Item, { modality: 'text' }>): string[] {
  return leafExtents(item).map(([start, end]) => item.text.slice(start, end).trim())
}

function sentencesOf(line: string): string[] {
  return segmentSentences(line).map(([start, end]) => line.slice(start, end).trim())
}

function wordCount(text: string): number {
  return text.split(/\s+/).length
}

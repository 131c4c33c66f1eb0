import { createHash } from 'node:crypto'
import { type FileHandle, open, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Item, Question } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { exists, fileError } from '../support/files.ts'
import { comesWithPackage, packagedFolder } from '../support/packaged.ts'
import { sha256 } from './hashes.ts'
import { createKeyTable } from './ids.ts'
import { INDEX_NAME, type ItemIndex, openItemIndex, readAt } from './index-file.ts'
import { canonicalJson, parseJsonLossless } from './json.ts'
import { readJsonLines } from './jsonl.ts'
import { type DatasetMeta, parseItem, parseMeta, parseQuestion } from './schema.ts'

export const META_NAME = 'dataset.json'
export const ITEMS_NAME = 'items.jsonl'
export const QUESTIONS_NAME = 'questions.jsonl'
/** The files of a dataset folder, in the order in which a new version of them is installed. */
export const DATASET_FILES: readonly string[] = [ITEMS_NAME, INDEX_NAME, QUESTIONS_NAME, META_NAME]

/** A question and the 1-based line of `questions.jsonl` on which it stands. */
export interface QuestionRecord {
  question: Question
  line: number
}

/** A dataset folder open for reading; memory does not grow with its size. */
export interface Dataset {
  readonly folder: string
  readonly meta: DatasetMeta
  /**
   * The questions of a split (of all splits when none is named), in file order.
   *
   * @throws InputError for a split that is not there (naming those that are) and, with file and line, for a bad question
   */
  questions(split?: string): AsyncIterable<QuestionRecord>
  /** All items, in file order. */
  items(): AsyncIterable<{ item: Item; line: number }>
  /**
   * The item of that id.
   *
   * @throws InputError when there is none, and with file and line for a bad item
   */
  item(id: string): Promise<Item>
  close(): Promise<void>
}

/**
 * Opens a dataset folder (`dataset.json`, `items.jsonl`, `questions.jsonl`).
 *
 * @throws InputError naming the file that is missing or at fault
 */
export async function openDataset(folder: string): Promise<Dataset> {
  const meta = await readMeta(folder)
  const itemsFile = join(folder, ITEMS_NAME)
  const questionsFile = join(folder, QUESTIONS_NAME)
  let opened: Promise<{ index: ItemIndex; handle: FileHandle }> | undefined
  const openItems = async (): Promise<{ index: ItemIndex; handle: FileHandle }> => {
    const index = await openItemIndex(itemsFile, join(folder, INDEX_NAME))
    return { index, handle: await open(itemsFile, 'r') }
  }
  return {
    folder,
    meta,
    async *questions(split) {
      requireSplit(meta, folder, split)
      for await (const { value, line } of readJsonLines(questionsFile)) {
        const question = parseQuestion(value, { file: questionsFile, line })
        // lines of a split that dataset.json does not list are what an import left that was killed before it was done
        if (split === undefined ? Object.hasOwn(meta.splits, question.split) : question.split === split) {
          yield { question, line }
        }
      }
    },
    async *items() {
      for await (const { value, line } of readJsonLines(itemsFile)) {
        yield { item: parseItem(value, { file: itemsFile, line }), line }
      }
    },
    async item(id) {
      opened ??= openItems()
      const { index, handle } = await opened
      const location = await index.find(id)
      if (location === undefined) {
        throw new InputError(`there is no item "${id}"; run "canopy check" to find what names it`, { file: itemsFile })
      }
      const place = { file: itemsFile, line: location.line }
      const item = parseItem(await parseAt(handle, location, place), place)
      if (item.id !== id) {
        throw new InputError(`item "${id}" was expected here; the file changed while it was open`, place)
      }
      return item
    },
    async close() {
      const items = await opened?.catch(() => undefined)
      opened = undefined
      await items?.handle.close()
      await items?.index.close()
    },
  }
}

async function parseAt(
  handle: FileHandle,
  { offset, length }: { offset: number; length: number },
  place: { file: string; line: number },
): Promise<unknown> {
  const bytes = await readAt(handle, offset, length)
  try {
    return parseJsonLossless(bytes.toString('utf8'))
  } catch (error) {
    throw new InputError(
      `not valid JSON: ${(error as Error).message}; the file changed while it was open`,
      place,
      error,
    )
  }
}

/**
 * The content of a dataset folder's `dataset.json`.
 *
 * @throws InputError naming the file when it is missing or at fault
 */
export async function readMeta(folder: string): Promise<DatasetMeta> {
  const file = join(folder, META_NAME)
  let text: string
  try {
    text = await readFile(file, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') {
      const packaged = (await exists(folder)) ? undefined : await packagedFolder(folder)
      if (packaged !== undefined) throw new InputError(comesWithPackage(folder, packaged), {}, error)
      throw new InputError('no such file; "canopy import" makes a dataset folder of your files', { file }, error)
    }
    throw fileError(error, 'cannot read the dataset', file)
  }
  let value: unknown
  try {
    value = parseJsonLossless(text)
  } catch (error) {
    throw new InputError(`not valid JSON: ${(error as Error).message}`, { file }, error)
  }
  return parseMeta(value, { file })
}

function requireSplit(meta: DatasetMeta, folder: string, split: string | undefined): void {
  if (split === undefined || Object.hasOwn(meta.splits, split)) return
  const names = Object.keys(meta.splits)
  const have = names.length === 0 ? 'it has none' : `it has ${names.map((name) => `"${name}"`).join(', ')}`
  throw new InputError(`the dataset ${folder} has no split "${split}"; ${have}`)
}

/** The ids of the items that a question names: gold first, then retrieved, each once. */
export function namedItems(question: Question): string[] {
  return [...new Set([...question.gold.map((entry) => entry.item), ...(question.retrieved ?? [])])]
}

/**
 * What guards a split: SHA-256 (hexadecimal) over the canonical JSON of its questions in file order and of every item they
 * name. Other splits, other items and the order of the items have no part in it.
 *
 * @throws InputError for a split that is not there and for an item that a question names and that is not there
 */
export async function splitHash(dataset: Dataset, split: string): Promise<string> {
  const hash = createHash('sha256')
  const named = createKeyTable()
  let firstMissing: string | undefined
  for await (const { question } of dataset.questions(split)) {
    hash.update(canonicalJson(question)).update('\n')
    for (const id of namedItems(question)) named.add(id)
  }
  const contents = Buffer.alloc(named.size * 32)
  const seen = new Uint8Array(named.size)
  for await (const { item } of dataset.items()) {
    const entry = named.find(item.id)
    if (entry < 0) continue
    seen[entry] = 1
    sha256(canonicalJson(item)).copy(contents, entry * 32)
  }
  if (seen.includes(0)) {
    for await (const { question } of dataset.questions(split)) {
      firstMissing ??= namedItems(question).find((id) => seen[named.find(id)] === 0)
    }
    throw new InputError(`there is no item "${firstMissing}", which a question of the split "${split}" names`, {
      file: join(dataset.folder, ITEMS_NAME),
    })
  }
  // entries are numbered in the order in which the questions name the items first
  return hash.update(contents).digest('hex')
}

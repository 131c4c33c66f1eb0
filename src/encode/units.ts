import { basename, dirname, join } from 'node:path'
import {
  canonicalJson,
  createKeyTable,
  type Dataset,
  namedItems,
  openDataset,
  parseItem,
  readJsonLines,
} from '../data/index.ts'
import { type EncoderInput, encoderInput } from '../encoder/index.ts'
import {
  buildHierarchy,
  extentOf,
  type Hierarchy,
  type Item,
  type Question,
  readsAsText,
  type TableFormatName,
} from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'

/** What is encoded: data set folders, or files of items alone. */
export interface Selection {
  /** Folders of data sets; items and questions come in the order of the folders and of their files. */
  datasets: readonly string[]
  /**
   * Files of items, one JSON object a line as in a data set's `items.jsonl`; paths of media are relative to the file's folder. `called`
   * is what errors call it, its path where absent.
   */
  itemFiles: readonly { path: string; name: string; folder: string; called?: string }[]
  /** Only what questions of these splits name (their gold and retrieved items), or these questions; everything where absent. */
  splits: readonly string[] | undefined
}

/** How an item becomes nodes, and nodes text. */
export interface NodeSettings {
  title: boolean
  tableFormat: TableFormatName
  branching: number
}

/** What an index says of one row: a node of an item (offsets in the unit of refinement's results), or a question. */
export type RowHead =
  | { item: string; from: number; to: number; start: number; end: number }
  | { question: string; benchmark: string; split: string }

/** One item with all of its nodes, or one question. */
export interface Unit {
  /** For messages. */
  label: string
  /** What names it, as JSON. */
  name: string
  /** The whole of it, as canonical JSON. */
  content: string
  /** How many rows it gives. */
  rows: number
  /** What its rows take to compute, about: characters that an encoder reads. */
  cost: number
  /** Why the encoder cannot read it, where it cannot; then it has no rows. A sentence without a full stop. */
  refused?: string
  /** Whether reading it can fail for its own sake: it shows pictures. */
  media: boolean
  head(row: number): RowHead
  input(row: number): EncoderInput
}

/** What decides how units are read. */
export interface UnitOptions {
  settings: NodeSettings
  /** Of the encoder. */
  multimodal: boolean
  maxLength: number
  encoder: string
}

/** Characters of a token, of long English texts about: only the balance of shards hangs on it. */
const CHARACTERS_PER_TOKEN = 5
/** A picture or frame of 512 x 512 pixels. */
const PICTURE_COST = 256 * CHARACTERS_PER_TOKEN

/** Where items or questions come from, in a fixed order. */
export interface Source {
  /** Names of the data sets or files. */
  names: string[]
  /** Units in order, each name once. */
  units(signal?: AbortSignal): AsyncIterable<Unit>
  close(): Promise<void>
}

/**
 * Opens a selection's items for the node side.
 *
 * @throws InputError for a data set, a split or a file that is not there
 */
export async function openItems(selection: Selection, options: UnitOptions): Promise<Source> {
  const datasets = await openAll(selection)
  const close = async (): Promise<void> => {
    for (const dataset of datasets) await dataset.close()
  }
  async function* units(signal?: AbortSignal): AsyncIterable<Unit> {
    const known = createContents()
    for (const dataset of datasets) {
      const chosen = selection.splits === undefined ? undefined : await namedBy(dataset, selection.splits)
      for await (const { item, line } of dataset.items()) {
        signal?.throwIfAborted()
        if (chosen !== undefined && !chosen.take(item.id)) continue
        const unit = itemUnit(item, dataset.folder, { file: join(dataset.folder, 'items.jsonl'), line }, options)
        if (known.isNew(unit)) yield unit
      }
      await chosen?.checkAll()
    }
    for (const { path, folder, called = path } of selection.itemFiles)
      for await (const { value, line } of readJsonLines(path, { signal, name: called })) {
        const place = { file: called, line }
        const unit = itemUnit(parseItem(value, place), folder, place, options)
        if (known.isNew(unit)) yield unit
      }
  }
  return { names: namesOf(datasets, selection), units, close }
}

/**
 * Opens a selection's questions for the query side.
 *
 * @throws InputError for a data set or a split that is not there
 */
export async function openQuestions(selection: Selection): Promise<Source> {
  const datasets = await openAll(selection)
  async function* units(signal?: AbortSignal): AsyncIterable<Unit> {
    const known = createContents()
    for (const dataset of datasets)
      for (const split of selection.splits ?? [undefined])
        for await (const { question } of dataset.questions(split)) {
          signal?.throwIfAborted()
          const unit = questionUnit(question)
          if (known.isNew(unit)) yield unit
        }
  }
  const close = async (): Promise<void> => {
    for (const dataset of datasets) await dataset.close()
  }
  return { names: namesOf(datasets, selection), units, close }
}

async function openAll({ datasets, splits }: Selection): Promise<Dataset[]> {
  const opened: Dataset[] = []
  for (const folder of datasets) {
    const dataset = await openDataset(folder)
    for (const split of splits ?? []) {
      if (Object.hasOwn(dataset.meta.splits, split)) continue
      const have = Object.keys(dataset.meta.splits).map((name) => `"${name}"`)
      const list = have.length === 0 ? 'it has none' : `it has ${have.join(', ')}`
      throw new InputError(`the data set has no split "${split}"; ${list}`, { file: folder })
    }
    opened.push(dataset)
  }
  return opened
}

function namesOf(datasets: readonly Dataset[], { itemFiles }: Selection): string[] {
  return [...datasets.map(({ meta }) => meta.name), ...itemFiles.map(({ name }) => name)]
}

/** A file of items, named by its last part. */
export function itemFile(path: string): Selection['itemFiles'][number] {
  return { path, name: basename(path), folder: dirname(path) }
}

/** The items that questions of some splits name; `checkAll` finds one that no line of the items has. */
async function namedBy(dataset: Dataset, splits: readonly string[]) {
  const table = createKeyTable()
  for (const split of splits)
    for await (const { question } of dataset.questions(split)) for (const id of namedItems(question)) table.add(id)
  const seen = new Uint8Array(table.size)
  return {
    take(id: string): boolean {
      const entry = table.find(id)
      if (entry < 0) return false
      seen[entry] = 1
      return true
    },
    async checkAll(): Promise<void> {
      if (!seen.includes(0)) return
      for (const split of splits)
        for await (const { question, line } of dataset.questions(split)) {
          const missing = namedItems(question).find((id) => seen[table.find(id)] === 0)
          if (missing !== undefined)
            throw new InputError(`the question names the item "${missing}", which is not among the items`, {
              file: join(dataset.folder, 'questions.jsonl'),
              line,
            })
        }
    },
  }
}

/** Tells units by their names; the same one again is no news, and one name with two contents an error. */
function createContents() {
  const names = createKeyTable()
  const contents = createKeyTable()
  /** Entry of the content by entry of the name. */
  const contentOf: number[] = []
  return {
    isNew({ name, label, content }: Unit): boolean {
      const { entry, isNew } = names.add(name)
      const { entry: found } = contents.add(content)
      if (isNew) {
        contentOf[entry] = found
        return true
      }
      if (contentOf[entry] === found) return false
      throw new InputError(
        `${label} is there twice, with two contents; an id names one of them. Encode such data sets one by one.`,
      )
    },
  }
}

function itemUnit(item: Item, folder: string, place: { file: string; line: number }, options: UnitOptions): Unit {
  const { settings, multimodal, maxLength, encoder } = options
  const shared = {
    label: `the item ${JSON.stringify(item.id)}`,
    name: JSON.stringify(item.id),
    content: canonicalJson(item),
    media: !readsAsText(item),
  }
  const refused =
    shared.media && !multimodal
      ? `${item.modality === 'image' ? 'an image' : 'a video'}, and the encoder ${encoder} reads texts only`
      : undefined
  const tree = hierarchyOf(item, settings.branching, place)
  const unreadable = (): never => {
    throw new RangeError('A refused item has no rows.')
  }
  if (refused !== undefined) return { ...shared, refused, rows: 0, cost: 0, head: unreadable, input: unreadable }
  const node = (row: number) => tree.nodes[row] as Hierarchy['nodes'][number]
  return {
    ...shared,
    rows: tree.nodes.length,
    cost: costOf(tree, settings, maxLength),
    head(row) {
      const { from, to } = node(row)
      const [start, end] = extentOf(tree, node(row))
      const unit = item.modality === 'video' ? 1000 : 1
      return { item: item.id, from, to, start: start / unit, end: end / unit }
    },
    input: (row) => encoderInput(tree, node(row), settings, folder),
  }
}

function hierarchyOf(item: Item, branching: number, place: { file: string; line: number }): Hierarchy {
  try {
    return buildHierarchy(item, branching)
  } catch (error) {
    if (!(error instanceof InputError) || error.file !== undefined) throw error
    throw new InputError(error.message, place, error)
  }
}

/** Characters that an encoder reads of an item's nodes, about; what is cut at the maximum length costs nothing. */
function costOf(tree: Hierarchy, { title }: NodeSettings, maxLength: number): number {
  const { item } = tree
  const most = maxLength * CHARACTERS_PER_TOKEN
  let header = title ? (item.title?.length ?? 0) : 0
  /** Characters of the leaves before each leaf. */
  let before: number[] | undefined
  if (item.modality === 'table') {
    const width = (cells: readonly string[]): number => cells.reduce((sum, cell) => sum + cell.length + 3, 1)
    header += width(item.header) + (title ? (item.caption?.length ?? 0) : 0)
    before = [0]
    for (const row of item.rows) before.push((before.at(-1) as number) + width(row))
  }
  return tree.nodes.reduce((sum, node) => {
    const [start, end] = extentOf(tree, node)
    if (item.modality === 'image') return sum + header + PICTURE_COST
    if (item.modality === 'video')
      return sum + header + PICTURE_COST * Math.min(32, Math.max(1, Math.ceil((end - start) / 10_000)))
    const content = before === undefined ? end - start : (before[end] as number) - (before[start] as number)
    return sum + Math.min(most, header + content)
  }, 0)
}

function questionUnit(question: Question): Unit {
  const { id, benchmark, split } = question
  return {
    label: `the question ${JSON.stringify(id)}`,
    name: JSON.stringify([benchmark, split, id]),
    content: canonicalJson(question),
    rows: 1,
    cost: question.question.length,
    media: false,
    head: () => ({ question: id, benchmark, split }),
    input: () => ({ text: question.question }),
  }
}

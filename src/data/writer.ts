import { createHash } from 'node:crypto'
import { type FileHandle, mkdir, open, readdir, readFile, realpath, rename, rm, writeFile } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import type { Item, Question } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { exists, fileError, openLineWriter, removeLeftovers, syncFolder, temporaryName } from '../support/files.ts'
import { documentId, parentId } from './cut.ts'
import { DATASET_FILES, ITEMS_NAME, META_NAME, QUESTIONS_NAME, readMeta } from './dataset.ts'
import { sha256 } from './hashes.ts'
import { createColumn, createKeyTable } from './ids.ts'
import { buildItemIndex, INDEX_NAME, readAt } from './index-file.ts'
import { canonicalJson } from './json.ts'
import { readJsonLines } from './jsonl.ts'
import { DATASET_SCHEMA, type DatasetMeta, type Place, parseItem, parseQuestion } from './schema.ts'
import { createDisjointSets } from './sources.ts'

export interface WriterOptions {
  /** The dataset folder: not there yet, empty, or a dataset to which a split is added. */
  folder: string
  /** Default: the folder's name. */
  name?: string | undefined
  benchmark: string
  /** Where the data come from, in words. */
  source?: string | undefined
  licence?: string | undefined
  /** The version of the segmenter whose sentences the items carry, where their source gave none. */
  segmenter?: string | undefined
  /** A split that must not be there yet; checked before anything is read. */
  split?: string | undefined
}

export interface DatasetWriter {
  /**
   * Adds an item; one of equal id and content is there once.
   *
   * @throws InputError when the id is there with another content
   */
  addItem(item: Item, place: Place): Promise<'added' | 'merged'>
  /**
   * Adds a question whose items are there. Without `source` it gets that of the questions with which it shares a gold item, or has
   * gold in parts of one item, directly or through others.
   *
   * @returns 'repeated' when the split has the same question already
   * @throws InputError when the split has another question of that id, when the split was there before, when an item is not
   */
  addQuestion(question: Question, place: Place): Promise<'added' | 'repeated'>
  has(itemId: string): boolean
  /** An item that was added, or was there before. */
  item(id: string): Promise<Item>
  /** Puts everything under its final name, whole. */
  commit(): Promise<DatasetMeta>
  /** Removes what was written; does nothing after `commit`. */
  abort(): Promise<void>
}

/**
 * Starts writing a dataset folder, or adding to one. Until `commit` the folder is as it was. A new folder appears by one
 * rename. In one that is there the files are replaced one by one, each by a rename, `dataset.json` last: at every moment, also after
 * a crash, the folder holds the splits that its `dataset.json` lists, unchanged.
 *
 * Memory: about 70 bytes for each item and each question.
 *
 * @throws InputError when the folder holds something else, another benchmark, or the split already, and for an empty name
 */
export async function openDatasetWriter(options: WriterOptions): Promise<DatasetWriter> {
  const { folder } = options
  const old = await existingDataset(options)
  if ((options.name ?? basename(resolve(folder))) === '') {
    throw new InputError('the name of the dataset is empty; give it one', { file: folder })
  }
  // beside the folder itself, not beside a link to it, which may lie on another disk
  const real = await realpath(folder).catch(() => folder)
  const stage = temporaryName(real)
  await removeLeftovers(real)
  try {
    await mkdir(stage, { recursive: true })
    return await writerInto(stage, old, options)
  } catch (error) {
    await rm(stage, { recursive: true, force: true })
    throw fileError(error, 'cannot write the dataset', folder)
  }
}

interface OldDataset {
  meta: DatasetMeta
  /** Of `dataset.json`, to notice another program's change. */
  digest: string
}

const digestOf = async (file: string): Promise<string> =>
  createHash('sha256')
    .update(await readFile(file))
    .digest('hex')

async function existingDataset(options: WriterOptions): Promise<OldDataset | undefined> {
  const { folder, split, benchmark, segmenter } = options
  if (!(await exists(join(folder, META_NAME)))) {
    const entries = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return []
      throw fileError(error, 'cannot write a dataset here', folder)
    })
    if (entries.length > 0) {
      throw new InputError(`the folder is not empty and holds no ${META_NAME}; name a new folder for the dataset`, {
        file: folder,
      })
    }
    return undefined
  }
  const meta = await readMeta(folder)
  const place = { file: join(folder, META_NAME) }
  if (split !== undefined) requireNewSplit(meta, split, place)
  if (meta.benchmark !== benchmark) {
    throw new InputError(
      `the dataset is of the benchmark "${meta.benchmark}", not "${benchmark}"; name another folder (commands take several datasets)`,
      place,
    )
  }
  if (meta.segmenter !== undefined && segmenter !== undefined && meta.segmenter !== segmenter) {
    throw new InputError(
      `the sentences of this dataset were found by ${meta.segmenter}, this program has ${segmenter}; import all splits anew into another folder`,
      place,
    )
  }
  return { meta, digest: await digestOf(place.file) }
}

function requireNewSplit(meta: DatasetMeta, split: string, place: Place): void {
  if (!Object.hasOwn(meta.splits, split)) return
  throw new InputError(
    `the dataset has a split "${split}" already; name another split, or remove the folder and import anew`,
    place,
  )
}

async function writerInto(stage: string, old: OldDataset | undefined, options: WriterOptions): Promise<DatasetWriter> {
  const { folder } = options
  const itemsFile = join(stage, ITEMS_NAME)
  const newQuestionsFile = join(stage, 'questions.new')
  const itemLines = await openLineWriter(itemsFile)
  const questionLines = await openLineWriter(newQuestionsFile)

  const files: string[] = []
  const itemIds = createKeyTable()
  const itemOffset = createColumn(0)
  const itemLength = createColumn(0)
  const itemContent = createColumn(0)
  const itemPlace = createColumn(0)
  const questionIds = createKeyTable()
  const questionContent = createColumn(0)
  const questionPlace = createColumn(0)
  const splits = new Map(Object.entries(old?.meta.splits ?? {}))
  const shared = createDisjointSets()
  /** Items that others were cut from, and the first part of each. */
  const parents = createKeyTable()
  const firstPart = createColumn(0)
  /** Of a gold item of the old splits: the number of its source in `oldSources`. */
  const oldSource = createColumn(-1)
  const oldSources: string[] = []
  let reader: FileHandle | undefined
  let finished = false

  const packPlace = (place: Place): number => {
    if (files.at(-1) !== place.file) files.push(place.file)
    return (files.length - 1) * 2 ** 32 + (place.line ?? 0)
  }
  const placeName = (packed: number): string => `${files[Math.floor(packed / 2 ** 32)]}:${packed % 2 ** 32}`
  /** 48 bits of SHA-256: exact in a double. */
  const contentNumber = (value: unknown): number => sha256(canonicalJson(value)).readUIntLE(0, 6)

  const writer: DatasetWriter = {
    async addItem(item, place) {
      const { entry, isNew } = itemIds.add(item.id)
      const content = contentNumber(item)
      if (!isNew) {
        if (itemContent.get(entry) === content) return 'merged'
        throw new InputError(
          `the item "${item.id}" has another content than at ${placeName(itemPlace.get(entry))}; an id names one item`,
          place,
        )
      }
      const parent = parentId(item.id)
      if (parent !== undefined) {
        const known = parents.add(parent)
        if (known.isNew) firstPart.set(known.entry, entry)
        shared.union(firstPart.get(known.entry), entry)
      }
      itemContent.set(entry, content)
      itemPlace.set(entry, packPlace(place))
      itemOffset.set(entry, itemLines.bytes)
      itemLength.set(entry, (await itemLines.write(JSON.stringify(item))) - 1)
      return 'added'
    },
    async addQuestion(question, place) {
      if (old !== undefined) requireNewSplit(old.meta, question.split, { file: join(folder, META_NAME) })
      for (const id of [...question.gold.map((entry) => entry.item), ...(question.retrieved ?? [])]) {
        if (!writer.has(id)) {
          throw new InputError(`the question "${question.id}" names the item "${id}", which is not there`, place)
        }
      }
      const { entry, isNew } = questionIds.add(`${question.split}\0${question.id}`)
      const content = contentNumber(question)
      if (!isNew) {
        if (questionContent.get(entry) === content) return 'repeated'
        throw new InputError(
          `the question "${question.id}" has another content than at ${placeName(questionPlace.get(entry))}; an id names one question of a split`,
          place,
        )
      }
      questionContent.set(entry, content)
      questionPlace.set(entry, packPlace(place))
      const [first, ...others] = question.gold.map((gold) => itemIds.find(gold.item))
      if (first !== undefined && question.source === undefined) for (const other of others) shared.union(first, other)
      splits.set(question.split, { questions: (splits.get(question.split)?.questions ?? 0) + 1 })
      await questionLines.write(JSON.stringify(question))
      return 'added'
    },
    has: (id) => itemIds.find(id) >= 0,
    async item(id) {
      const entry = itemIds.find(id)
      if (entry < 0) throw new InputError(`there is no item "${id}"`)
      await itemLines.flush()
      reader ??= await open(itemsFile, 'r')
      const bytes = await readAt(reader, itemOffset.get(entry), itemLength.get(entry))
      return JSON.parse(bytes.toString('utf8')) as Item
    },
    async commit() {
      try {
        const meta = await finish()
        await install(stage, folder, old)
        finished = true
        return meta
      } catch (error) {
        throw fileError(error, 'cannot write the dataset', folder)
      }
    },
    async abort() {
      if (finished) return
      finished = true
      await reader?.close().catch(() => {})
      await itemLines.abandon()
      await questionLines.abandon()
      await rm(stage, { recursive: true, force: true })
    },
  }

  if (old !== undefined) await readOld(old)
  return writer

  async function readOld({ meta }: OldDataset): Promise<void> {
    const items = join(folder, ITEMS_NAME)
    for await (const { value, line } of readJsonLines(items)) {
      const place = { file: items, line }
      await writer.addItem(parseItem(value, place), place)
    }
    const questions = join(folder, QUESTIONS_NAME)
    const numbers = new Map<string, number>()
    for await (const { value, line } of readJsonLines(questions)) {
      const question = parseQuestion(value, { file: questions, line })
      if (!Object.hasOwn(meta.splits, question.split) || question.source === undefined) continue
      let number = numbers.get(question.source)
      if (number === undefined) {
        number = oldSources.push(question.source) - 1
        numbers.set(question.source, number)
      }
      for (const gold of question.gold) {
        const entry = itemIds.find(gold.item)
        if (entry >= 0 && oldSource.get(entry) < 0) oldSource.set(entry, number)
      }
    }
  }

  async function finish(): Promise<DatasetMeta> {
    await reader?.close()
    reader = undefined
    await itemLines.close()
    await questionLines.close()
    const total = await writeQuestions()
    await rm(newQuestionsFile)
    await buildItemIndex(itemsFile, join(stage, INDEX_NAME))
    const meta: DatasetMeta = {
      schema: DATASET_SCHEMA,
      name: options.name ?? old?.meta.name ?? basename(resolve(folder)),
      benchmark: options.benchmark,
      splits: Object.fromEntries(splits),
      counts: { items: itemIds.size, questions: total },
      ...optional('source', options.source ?? old?.meta.source),
      ...optional('licence', options.licence ?? old?.meta.licence),
      ...optional('segmenter', options.segmenter ?? old?.meta.segmenter),
    }
    await writeFile(join(stage, META_NAME), `${JSON.stringify(meta, null, 2)}\n`, { flush: true })
    return meta
  }

  /** The old splits' lines as they were, then the new ones, each with its source. */
  async function writeQuestions(): Promise<number> {
    const sourceOf = new Map<number, string>()
    for (let entry = 0; entry < itemIds.size && oldSources.length > 0; entry++) {
      const number = oldSource.get(entry)
      const set = shared.find(entry)
      if (number >= 0 && !sourceOf.has(set)) sourceOf.set(set, oldSources[number]!)
    }
    const lines = await openLineWriter(join(stage, QUESTIONS_NAME))
    let total = 0
    try {
      if (old !== undefined) {
        for await (const { value } of readJsonLines(join(folder, QUESTIONS_NAME))) {
          if (!Object.hasOwn(old.meta.splits, (value as Question).split)) continue
          await lines.write(JSON.stringify(value))
          total++
        }
      }
      for await (const { value } of readJsonLines(newQuestionsFile)) {
        const question = value as Question
        const first = question.gold[0]?.item
        if (question.source === undefined && first !== undefined) {
          const set = shared.find(itemIds.find(first))
          const source = sourceOf.get(set) ?? documentId(first)
          sourceOf.set(set, source)
          question.source = source
        }
        await lines.write(JSON.stringify(question))
        total++
      }
    } finally {
      await lines.close()
    }
    return total
  }
}

function optional<K extends string>(key: K, value: string | undefined): { [P in K]?: string } {
  return value === undefined ? {} : ({ [key]: value } as { [P in K]?: string })
}

async function install(stage: string, folder: string, old: OldDataset | undefined): Promise<void> {
  await syncFolder(stage)
  if (!(await exists(folder))) await rename(stage, folder)
  else {
    const metaFile = join(folder, META_NAME)
    if (old !== undefined && (await digestOf(metaFile)) !== old.digest) {
      throw new InputError('another program changed the dataset meanwhile; run the command again', { file: metaFile })
    }
    for (const name of DATASET_FILES) {
      await rename(join(stage, name), join(folder, name))
    }
    await syncFolder(folder)
    await rm(stage, { recursive: true, force: true })
  }
  await syncFolder(dirname(resolve(folder)))
}

import { createHash } from 'node:crypto'
import { readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Question } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError, openLineWriter, removeLeftovers, syncFolder, temporaryName } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { createRandom } from '../support/random.ts'
import { chooseGroups, type GroupKind } from './choose.ts'
import { documentId } from './cut.ts'
import { META_NAME, namedItems, openDataset, QUESTIONS_NAME, readMeta } from './dataset.ts'
import { createColumn, createKeyTable } from './ids.ts'
import { readJsonLines } from './jsonl.ts'
import { type DatasetMeta, parseMeta } from './schema.ts'
import { createDisjointSets } from './sources.ts'

export interface SplitOptions {
  /** Dataset folder. */
  folder: string
  /** The split whose questions are divided; it is gone afterwards, unless one of `into` has its name. */
  from: string
  /** Names of the two new splits: train first. */
  into: [string, string]
  /** Share of the questions that the second one gets, above 0 and below 1. */
  dev: number
  /** Default `1`. */
  seed?: string | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

export interface SplitSide {
  questions: number
  /** Groups of questions that belong together. */
  groups: number
  /** Distinct items that are gold, and distinct items named at all (gold or retrieved). */
  goldItems: number
  items: number
  /** Questions by variant; `''` are those without one. */
  variants: Record<string, number>
}

export interface SplitSummary {
  dataset: string
  from: string
  seed: string
  /** Share of the questions that was asked for, and that came out. */
  wanted: number
  share: number
  splits: Record<string, SplitSide>
  /** The group with the most questions, and a question of it. */
  largestGroup: { questions: number; question: string; source?: string }
  /** Items that both sides name; gold of one side at most. */
  sharedItems: number
}

/**
 * Divides the questions of a split in two, so that no group is separated: questions of one `source`, and questions that share a gold
 * item or have gold in parts of one document, directly or through others. Which groups go where is drawn (seeded), kinds of
 * groups (their number of questions of each variant) in proportion, so that the second split gets as near to its share of the
 * questions as whole groups allow.
 *
 * Only `questions.jsonl` and `dataset.json` are written, each by a rename, in such an order that the folder holds the splits that
 * its `dataset.json` lists at every moment, also after a crash. Memory: about 100 bytes for each question and each item named.
 *
 * @throws InputError for a split that is not there, a new one that is there already, and when the groups are too large to come near
 *   to the share
 */
export async function splitDataset(options: SplitOptions): Promise<SplitSummary> {
  const { folder, from, into, seed = '1', signal, onProgress } = options
  const meta = await readMeta(folder)
  checkNames(meta, options)
  const digest = await digestOf(folder)
  const grouping = await readGroups(options)
  const devGroups = await chosenGroups(grouping, options)
  const isDev = Uint8Array.from(grouping.groupOf.subarray(0, grouping.questions), (group) =>
    devGroups.has(group) ? 1 : 0,
  )
  signal?.throwIfAborted()
  const summary = await summarise(options, grouping, isDev)
  if ((await digestOf(folder)) !== digest) {
    throw new InputError('another program changed the dataset meanwhile; run the command again', {
      file: join(folder, META_NAME),
    })
  }
  onProgress?.({ phase: 'writing the dataset', done: 0 })
  // a side that keeps the old name has another one for a moment: lines of both are in the file then
  const names = into.map((name) => (name === from ? unusedName(meta, `${from} (being split)`) : name))
  let number = 0
  await rewrite(folder, from, () => names[isDev[number++]!]!)
  for (const [i, name] of into.entries()) if (names[i] !== name) await rewrite(folder, names[i]!, () => name)
  return { ...summary, seed }
}

function checkNames(meta: DatasetMeta, { folder, from, into, dev }: SplitOptions): void {
  const place = { file: join(folder, META_NAME) }
  const names = Object.keys(meta.splits)
  if (!names.includes(from)) {
    const have = names.length === 0 ? 'it has none' : `it has ${names.map((name) => `"${name}"`).join(', ')}`
    throw new InputError(`the dataset has no split "${from}"; ${have}`, place)
  }
  if (into[0] === into[1]) throw new InputError(`both new splits are called "${into[0]}"; give them two names`, place)
  for (const name of into) {
    if (name === '' || name === '__proto__') throw new InputError(`"${name}" is no name for a split`, place)
    if (name !== from && names.includes(name)) {
      throw new InputError(`the dataset has a split "${name}" already; choose another name`, place)
    }
  }
  if (!(dev > 0 && dev < 1)) throw new InputError(`the share of "${into[1]}" lies between 0 and 1, not ${dev}`, place)
}

const unusedName = (meta: DatasetMeta, name: string): string =>
  Object.hasOwn(meta.splits, name) ? unusedName(meta, `${name}'`) : name

const digestOf = async (folder: string): Promise<string> => {
  const file = join(folder, META_NAME)
  const bytes = await readFile(file).catch((error: unknown) => {
    throw fileError(error, 'cannot read the dataset', file)
  })
  return createHash('sha256').update(bytes).digest('hex')
}

/** Which group each question of the split is in, questions in file order. */
interface Grouping {
  questions: number
  /** [questions]: number of the group, any whole number. */
  groupOf: Int32Array
  /** [questions]: number of the variant among `variants`. */
  variantOf: Uint16Array
  variants: string[]
}

async function readGroups({ folder, from, signal, onProgress }: SplitOptions): Promise<Grouping> {
  const dataset = await openDataset(folder)
  try {
    const total = dataset.meta.splits[from]!.questions
    const keys = createKeyTable()
    const sets = createDisjointSets()
    const element = createColumn(-1)
    const variant = createColumn(0)
    const variants = new Map<string, number>([['', 0]])
    let questions = 0
    for await (const { question } of dataset.questions(from)) {
      signal?.throwIfAborted()
      const bonds = question.gold.map((entry) => `item\0${documentId(entry.item)}`)
      if (question.source !== undefined) bonds.push(`source\0${question.source}`)
      // one that nothing binds is a group of its own
      if (bonds.length === 0) bonds.push(`question\0${question.id}`)
      const entries = bonds.map((bond) => keys.add(bond).entry)
      for (const entry of entries) sets.union(entries[0]!, entry)
      element.set(questions, entries[0]!)
      const name = question.variant ?? ''
      if (!variants.has(name)) variants.set(name, variants.size)
      variant.set(questions, variants.get(name)!)
      questions++
      if (questions % 1000 === 0) onProgress?.({ phase: 'grouping questions', done: questions, total })
    }
    return {
      questions,
      groupOf: Int32Array.from({ length: questions }, (_, i) => sets.find(element.get(i))),
      variantOf: Uint16Array.from({ length: questions }, (_, i) => variant.get(i)),
      variants: [...variants.keys()],
    }
  } finally {
    await dataset.close()
  }
}

/** The groups that go to the second split. */
async function chosenGroups(grouping: Grouping, options: SplitOptions): Promise<Set<number>> {
  const { dev, from, into, folder, seed = '1' } = options
  const { questions, groupOf, variantOf, variants } = grouping
  const place = { file: join(folder, QUESTIONS_NAME) }
  if (questions === 0) throw new InputError(`the split "${from}" has no questions to divide`, place)
  const counts = new Map<number, number[]>()
  for (let i = 0; i < questions; i++) {
    const group = groupOf[i]!
    if (!counts.has(group))
      counts.set(
        group,
        variants.map(() => 0),
      )
    counts.get(group)![variantOf[i]!]!++
  }
  const kinds = new Map<string, GroupKind>()
  for (const [group, byVariant] of counts) {
    const key = byVariant.join()
    const size = byVariant.reduce((a, b) => a + b)
    if (!kinds.has(key)) kinds.set(key, { size, groups: [] })
    kinds.get(key)!.groups.push(group)
  }
  const { chosen, total } = chooseGroups([...kinds.values()], dev, createRandom(`${seed}/split`))
  const wanted = dev * questions
  if (total === 0 || total === questions || Math.abs(total - wanted) > Math.max(1, wanted / 2)) {
    const largest = Math.max(...[...kinds.values()].map(({ size }) => size))
    throw new InputError(
      `the ${questions} questions of the split "${from}" fall into ${counts.size} groups, the largest of ${largest} questions, ` +
        `and no choice of whole groups gives "${into[1]}" about ${Math.round(wanted)} questions: the nearest is ${total}. ` +
        'Questions are in one group when they have one "source" or share gold items. Give them finer sources, take another ' +
        '--dev, or bring more data',
      place,
    )
  }
  return new Set(chosen)
}

async function summarise(
  options: SplitOptions,
  grouping: Grouping,
  isDev: Uint8Array,
): Promise<Omit<SplitSummary, 'seed'>> {
  const { folder, from, into, dev } = options
  const side = (): SplitSide & { groupSet: Set<number> } => ({
    questions: 0,
    groups: 0,
    goldItems: 0,
    items: 0,
    variants: {},
    groupSet: new Set(),
  })
  const sides = [side(), side()] as const
  const items = createKeyTable()
  // of each item: 1 and 2 named by train and dev, 4 and 8 gold there
  const seen = createColumn(0)
  const sizes = new Map<number, number>()
  for (const group of grouping.groupOf) sizes.set(group, (sizes.get(group) ?? 0) + 1)
  let largest = 0
  for (const [i, group] of grouping.groupOf.entries()) {
    if (sizes.get(group)! > sizes.get(grouping.groupOf[largest]!)!) largest = i
  }
  let largestQuestion: Question | undefined
  let number = 0
  const dataset = await openDataset(folder)
  try {
    for await (const { question } of dataset.questions(from)) {
      options.signal?.throwIfAborted()
      const which = isDev[number]!
      const mine = sides[which]!
      if (number === largest) largestQuestion = question
      mine.questions++
      mine.groupSet.add(grouping.groupOf[number]!)
      const variant = question.variant ?? ''
      mine.variants[variant] = (mine.variants[variant] ?? 0) + 1
      const gold = new Set(question.gold.map((entry) => entry.item))
      for (const id of namedItems(question)) {
        const { entry } = items.add(id)
        seen.set(entry, seen.get(entry) | (1 << which) | (gold.has(id) ? 4 << which : 0))
      }
      number++
    }
  } finally {
    await dataset.close()
  }
  let sharedItems = 0
  for (let entry = 0; entry < items.size; entry++) {
    const bits = seen.get(entry)
    if ((bits & 3) === 3) sharedItems++
    for (const [which, mine] of sides.entries()) {
      if (bits & (1 << which)) mine.items++
      if (bits & (4 << which)) mine.goldItems++
    }
  }
  const splits = sides.map(({ groupSet, ...counts }, i) => [into[i], { ...counts, groups: groupSet.size }])
  return {
    dataset: folder,
    from,
    wanted: dev,
    share: sides[1].questions / grouping.questions,
    splits: Object.fromEntries(splits) as Record<string, SplitSide>,
    largestGroup: {
      questions: sizes.get(grouping.groupOf[largest]!)!,
      question: largestQuestion!.id,
      ...(largestQuestion!.source !== undefined && { source: largestQuestion!.source }),
    },
    sharedItems,
  }
}

/**
 * Gives the questions of a split other splits. First `questions.jsonl` holds the lines of both the old and the new splits (those of
 * a split that `dataset.json` does not list count for nothing), then `dataset.json` lists the new ones, then the old lines go.
 */
async function rewrite(folder: string, from: string, splitOf: () => string): Promise<void> {
  const meta = await readMeta(folder)
  const questionsFile = join(folder, QUESTIONS_NAME)
  const metaFile = join(folder, META_NAME)
  const [both, final, newMeta] = [questionsFile, questionsFile, metaFile].map(temporaryName) as [string, string, string]
  await removeLeftovers(questionsFile)
  await removeLeftovers(metaFile)
  try {
    const counts = new Map<string, number>()
    const bothLines = await openLineWriter(both)
    const finalLines = await openLineWriter(final)
    try {
      for await (const { value } of readJsonLines(questionsFile)) {
        const question = value as Question
        if (!Object.hasOwn(meta.splits, question.split)) continue
        await bothLines.write(JSON.stringify(question))
        if (question.split === from) {
          question.split = splitOf()
          counts.set(question.split, (counts.get(question.split) ?? 0) + 1)
          await bothLines.write(JSON.stringify(question))
        }
        await finalLines.write(JSON.stringify(question))
      }
    } finally {
      await bothLines.close()
      await finalLines.close()
    }
    const splits = Object.entries(meta.splits).flatMap(([name, split]) =>
      name === from ? [...counts].map(([made, questions]) => [made, { questions }] as const) : [[name, split] as const],
    )
    const next = parseMeta({ ...meta, splits: Object.fromEntries(splits) }, { file: metaFile })
    await writeFile(newMeta, `${JSON.stringify(next, null, 2)}\n`, { flush: true })
    for (const [temporary, name] of [
      [both, questionsFile],
      [newMeta, metaFile],
      [final, questionsFile],
    ] as const) {
      await rename(temporary, name)
      await syncFolder(folder)
    }
  } catch (error) {
    throw fileError(error, 'cannot write the dataset', folder)
  } finally {
    for (const temporary of [both, final, newMeta]) await rm(temporary, { force: true }).catch(() => {})
  }
}

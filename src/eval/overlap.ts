import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { z } from 'zod'
import type { Question } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError, writeFileAtomic } from '../support/files.ts'

/** Name of the file that says what an adapter was trained on; it lies in the adapter's folder. */
export const TRAINING_DATA_FILE = 'training-data.json'

/**
 * What an adapter was trained (and selected) on, as hashes: enough to find an overlap, nothing to read the data from.
 *
 * ```json
 * {"schema":"canopy-training-data/1","questions":["<16 hex digits>",…],"items":[…],"sources":[…]}
 * ```
 *
 * A hash is the first 16 hexadecimal digits of SHA-256 over UTF-8: of `question\0<id>\0<text>`, `item\0<id>` (an item named as
 * gold) or `source\0<source>`. Lists are sorted and without repetition, so equal data gives equal bytes.
 */
export interface TrainingData {
  questions: Set<string>
  items: Set<string>
  sources: Set<string>
}

const hashes = z.array(z.string().regex(/^[0-9a-f]{16}$/))
const schema = z.object({
  schema: z.literal('canopy-training-data/1'),
  questions: hashes,
  items: hashes,
  sources: hashes,
})

export function emptyTrainingData(): TrainingData {
  return { questions: new Set(), items: new Set(), sources: new Set() }
}

/** Adds a question that was trained on or that helped to select the adapter, its gold items and its source. */
export function addTrainingQuestion(data: TrainingData, question: Question): void {
  data.questions.add(questionHash(question))
  for (const entry of question.gold) data.items.add(itemHash(entry.item))
  if (question.source !== undefined) data.sources.add(sourceHash(question.source))
}

/** What two trainings, one after the other, have seen. */
export function joinedTrainingData(data: TrainingData, before: TrainingData | undefined): TrainingData {
  return before === undefined
    ? data
    : {
        questions: new Set([...data.questions, ...before.questions]),
        items: new Set([...data.items, ...before.items]),
        sources: new Set([...data.sources, ...before.sources]),
      }
}

/** Writes {@link TRAINING_DATA_FILE} into a folder, atomically. */
export async function writeTrainingData(folder: string, data: TrainingData): Promise<void> {
  const sorted = (set: Set<string>): string[] => [...set].sort()
  const value = {
    schema: 'canopy-training-data/1',
    questions: sorted(data.questions),
    items: sorted(data.items),
    sources: sorted(data.sources),
  }
  await writeFileAtomic(join(folder, TRAINING_DATA_FILE), `${JSON.stringify(value)}\n`)
}

/**
 * What the adapter (or exported encoder) in `folder` was trained on, from its own folder or the run around it; undefined where
 * no file says so.
 *
 * @throws InputError when the file is there but is not what it should be
 */
export async function readTrainingData(folder: string): Promise<TrainingData | undefined> {
  for (const place of [resolve(folder), dirname(resolve(folder))]) {
    const file = join(place, TRAINING_DATA_FILE)
    let text: string
    try {
      text = await readFile(file, 'utf8')
    } catch (error) {
      if (['ENOENT', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '')) continue
      throw fileError(error, 'cannot read the file', file)
    }
    let value: unknown
    try {
      value = JSON.parse(text)
    } catch (error) {
      throw new InputError(`Not JSON (${(error as Error).message}); train again, or delete it to do without.`, { file })
    }
    const parsed = schema.safeParse(value)
    if (!parsed.success) {
      const issue = parsed.error.issues[0]
      throw new InputError(
        `Not a list of training data: "${issue?.path.join('.')}" ${issue?.message}. Train again, or delete it to do without.`,
        { file },
      )
    }
    const { questions, items, sources } = parsed.data
    return { questions: new Set(questions), items: new Set(items), sources: new Set(sources) }
  }
  return undefined
}

/** How much of an evaluated split the adapter has seen. */
export interface Overlap {
  questions: number
  items: number
  sources: number
  /** Of so many different ones in the split. */
  of: { questions: number; items: number; sources: number }
  /** Up to five sources that were seen in training. */
  examples: string[]
}

/** Counts the questions, gold items and sources of a split that are among the training data, question by question. */
export function createOverlapCounter(data: TrainingData): { add(question: Question): void; result(): Overlap } {
  const seen = { questions: new Set<string>(), items: new Set<string>(), sources: new Set<string>() }
  const all = { questions: new Set<string>(), items: new Set<string>(), sources: new Set<string>() }
  const examples: string[] = []
  const note = (kind: keyof TrainingData, hash: string): boolean => {
    all[kind].add(hash)
    if (!data[kind].has(hash) || seen[kind].has(hash)) return false
    seen[kind].add(hash)
    return true
  }
  return {
    add(question) {
      note('questions', questionHash(question))
      for (const entry of question.gold) note('items', itemHash(entry.item))
      if (question.source !== undefined && note('sources', sourceHash(question.source)) && examples.length < 5) {
        examples.push(question.source)
      }
    },
    result: () => ({
      questions: seen.questions.size,
      items: seen.items.size,
      sources: seen.sources.size,
      of: { questions: all.questions.size, items: all.items.size, sources: all.sources.size },
      examples,
    }),
  }
}

const questionHash = (question: Question): string => hash(`question\0${question.id}\0${question.question}`)
const itemHash = (id: string): string => hash(`item\0${id}`)
const sourceHash = (source: string): string => hash(`source\0${source}`)
const hash = (text: string): string => createHash('sha256').update(text).digest().toString('hex', 0, 8)

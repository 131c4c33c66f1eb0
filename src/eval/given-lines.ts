import { createReadStream } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { createInterface } from 'node:readline'
import { z } from 'zod'
import { createColumn, createKeyTable, type Place, parseJsonLossless, parseWith, readJsonLines } from '../data/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import { MODEL_ENCODERS, type ModelEncoder } from './scored.ts'

/** A file with the scores of nodes, and the encoder that a plain list of scores is of. */
export interface ScoresInput {
  file: string
  encoder: 'fine-tuned' | 'frozen'
}

const id = z.union([z.string().min(1), z.int()]).transform(String)
const index = z.int().min(0)
const tokens = index.max(2 ** 31 - 1)
// Looked at one by one later, so that an error can name the node.
const scoreList = z.array(z.unknown())

const lineSchema = z.object({
  benchmark: z.string().min(1).exactOptional(),
  question: id,
  item: id,
  nodes: z.array(z.tuple([index, index])),
  scores: z.union(
    [
      scoreList,
      z.strictObject({
        frozen: scoreList.exactOptional(),
        'fine-tuned': scoreList.exactOptional(),
        permuted: scoreList.exactOptional(),
      }),
    ],
    { error: 'expected a list of scores, or lists by "frozen", "fine-tuned" and "permuted"' },
  ),
  branching: z.int().exactOptional(),
  headerTokens: tokens.exactOptional(),
  leafTokens: z.array(tokens).exactOptional(),
  truncated: z.array(index).exactOptional(),
  same: z.array(index).exactOptional(),
})

/** A line of scores. */
export type Line = z.infer<typeof lineSchema>

/** A line and where it stands. */
export interface PlacedLine {
  line: Line
  place: Place
  encoder: ScoresInput['encoder']
}

/** Scores of nodes that were computed elsewhere, found by question and item. */
export interface GivenScores {
  /** Encoders that any line has scores of. */
  readonly models: readonly ModelEncoder[]
  /** Whether any line says how many tokens its item has. */
  readonly countsTokens: boolean
  /** Whether every line says which nodes were cut. */
  readonly saysTruncated: boolean
  readonly lines: number
  /** Lines that were asked for so far. */
  readonly used: number
  /**
   * The lines for an item of a question, at most one of each file.
   *
   * @param shared whether another benchmark has a question of that id
   * @throws InputError for a line that names no benchmark where it has to
   */
  find(benchmark: string, question: string, item: string, shared: boolean): Promise<PlacedLine[]>
  close(): Promise<void>
}

/**
 * Opens files of node scores: JSON lines `{"question","item","nodes":[[from,to],…],"scores":[…]}` in any order, with `"benchmark"`
 * where questions of several share an id. `scores` may also be `{"frozen":[…],"fine-tuned":[…],"permuted":[…]}`, and the lines
 * that an evaluation writes are such lines. Every line is checked; 40 bytes of each stay in memory.
 *
 * @throws InputError with file and line: a missing file, a line that is none, an item that is scored twice
 */
export async function openGivenScores(
  inputs: readonly ScoresInput[],
  options: { signal?: AbortSignal | undefined } = {},
): Promise<GivenScores> {
  const models = new Set<ModelEncoder>()
  const files: Awaited<ReturnType<typeof indexFile>>[] = []
  const close = async (): Promise<void> => {
    for (const { handle } of files) await handle.close()
  }
  let countsTokens = false
  let saysTruncated = true
  let used = 0
  try {
    for (const input of inputs) {
      files.push(
        await indexFile(input, options, (line, place) => {
          const found = Object.keys(listsOf(line, input.encoder)) as ModelEncoder[]
          if (found.length === 0) {
            throw new InputError(`The line has no scores${input.encoder === 'frozen' ? ' named "frozen"' : ''}.`, place)
          }
          for (const model of found) models.add(model)
          countsTokens ||= line.leafTokens !== undefined
          saysTruncated &&= line.truncated !== undefined
        }),
      )
    }
    if (models.has('permuted') && !models.has('fine-tuned')) {
      throw new InputError(
        'There are "permuted" scores but none of the "fine-tuned" encoder, whose they are; add those.',
        {
          file: inputs[0]!.file,
        },
      )
    }
  } catch (error) {
    await close()
    throw error
  }
  return {
    models: MODEL_ENCODERS.filter((model) => models.has(model)),
    countsTokens,
    saysTruncated,
    lines: files.reduce((sum, { count }) => sum + count, 0),
    get used() {
      return used
    },
    async find(benchmark, question, item, shared) {
      const found: PlacedLine[] = []
      for (const { input, find } of files) {
        const [named, plain] = [await find(keyOf(benchmark, question, item)), await find(keyOf('', question, item))]
        for (const hit of [named, plain]) if (hit?.first) used++
        if (plain !== undefined && shared) {
          throw new InputError(
            `Several benchmarks have a question "${question}"; say which one is meant by "benchmark".`,
            plain.place,
          )
        }
        const hits = [named, plain].filter((hit) => hit !== undefined)
        if (hits.length > 1) throw scoredTwice(question, item, hits[1]!.place, hits[0]!.place)
        for (const { line, place } of hits) found.push({ line, place, encoder: input.encoder })
      }
      return found
    },
    close,
  }
}

const keyOf = (benchmark: string, question: string, item: string): string => JSON.stringify([benchmark, question, item])

export const scoredTwice = (question: string, item: string, place: Place, before: Place): InputError =>
  new InputError(
    `Item "${item}" of question "${question}" is scored twice, here and in ${before.file}:${before.line}; leave one line out.`,
    place,
  )

async function indexFile(
  input: ScoresInput,
  options: { signal?: AbortSignal | undefined },
  onLine: (line: Line, place: Place) => void,
) {
  const { file } = input
  if (file.endsWith('.gz'))
    throw new InputError('Scores are read from their places; decompress the file first.', { file })
  const keys = createKeyTable()
  const columns = { offset: createColumn(0), length: createColumn(0), line: createColumn(0), used: createColumn(0) }
  let count = 0
  try {
    for await (const { value, line, offset, length } of readJsonLines(file, options)) {
      const place = { file, line }
      const parsed = parseWith(lineSchema, value, place, 'line of scores')
      const { benchmark = '', question, item } = parsed
      const { entry, isNew } = keys.add(keyOf(benchmark, question, item))
      if (!isNew) throw scoredTwice(question, item, place, { file, line: columns.line.get(entry) })
      columns.offset.set(entry, offset)
      columns.length.set(entry, length)
      columns.line.set(entry, line)
      onLine(parsed, place)
      count++
    }
  } catch (error) {
    throw await withoutNumbers(error, file)
  }
  if (count === 0) throw new InputError('The file has no line of scores.', { file })
  const handle: FileHandle = await open(file, 'r').catch((error) => {
    throw fileError(error, 'cannot read the scores', file)
  })
  return {
    input,
    count,
    handle,
    async find(key: string): Promise<{ line: Line; place: Place; first: boolean } | undefined> {
      const entry = keys.find(key)
      if (entry < 0) return undefined
      const place = { file, line: columns.line.get(entry) }
      const bytes = Buffer.alloc(columns.length.get(entry))
      await handle.read(bytes, 0, bytes.length, columns.offset.get(entry))
      const first = columns.used.get(entry) === 0
      columns.used.set(entry, 1)
      try {
        const line = parseWith(lineSchema, parseJsonLossless(bytes.toString('utf8')), place, 'line of scores')
        return { line, place, first }
      } catch (error) {
        throw new InputError('The file changed while it was in use; start again.', place, error)
      }
    },
  }
}

/** Names of what is no finite number, as a line may have them in place of one. */
const NUMBER_NAMES = /^-?(?:NaN|Infinity|nan|inf)$/

/** A line that is no JSON because of a NaN or an Infinity, as Python writes them: an error that names the node. */
async function withoutNumbers(error: unknown, file: string): Promise<unknown> {
  if (!(error instanceof InputError) || error.line === undefined || !error.message.includes('JSON')) return error
  const lines = createInterface({ input: createReadStream(file, 'utf8'), crlfDelay: Number.POSITIVE_INFINITY })
  let number = 0
  for await (const text of lines) {
    if (++number < error.line) continue
    lines.close()
    // Strings as they are; names of numbers outside of them as strings.
    const quoted = text.replace(/"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity|nan|inf)\b/g, (token) =>
      token.startsWith('"') ? token : `"${token}"`,
    )
    if (quoted === text) return error
    try {
      const line = parseWith(lineSchema, parseJsonLossless(quoted), { file, line: number }, 'line of scores')
      const lists = Object.values(listsOf(line, 'fine-tuned'))
      for (const list of lists) checkedScores(list, line, { file, line: number })
    } catch (better) {
      if (better instanceof InputError) return better
    }
    return error
  }
  return error
}

/** The lists of scores in a line, by encoder; of a plain list, the file says whose it is. */
export function listsOf(
  { scores }: Line,
  encoder: ScoresInput['encoder'],
): Partial<Record<ModelEncoder, readonly unknown[]>> {
  if (Array.isArray(scores)) return { [encoder]: scores }
  // Of a file that is to give the frozen scores, nothing else is wanted.
  if (encoder === 'frozen') return scores.frozen === undefined ? {} : { frozen: scores.frozen }
  return scores
}

/** The scores of a line's nodes, every one a finite number. */
export function checkedScores(list: readonly unknown[], { nodes, item, question }: Line, place: Place): number[] {
  const where = `item "${item}" of question "${question}"`
  if (list.length !== nodes.length) {
    throw new InputError(`There are ${list.length} scores for the ${nodes.length} nodes of ${where}.`, place)
  }
  return list.map((score, i) => {
    if (typeof score === 'number' && Number.isFinite(score)) return score
    throw new InputError(
      `The score of node [${nodes[i]![0]}, ${nodes[i]![1]}) of ${where} is ${shown(score)}; a finite number was expected.`,
      place,
    )
  })
}

const shown = (score: unknown): string =>
  typeof score === 'number' || NUMBER_NAMES.test(String(score)) ? String(score) : JSON.stringify(score)

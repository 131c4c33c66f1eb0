import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { z } from 'zod'
import { type Place, parseWith, readJsonLines } from '../data/index.ts'
import { buildTree, preOrder } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { MODEL_ENCODERS, type ScoredInstance } from './scored.ts'

/** Name of the file in a folder of results that holds the scores of every node of every item. */
export const SCORES_FILE = 'scores.jsonl'

/** A scored instance as it is kept in a file, with the branching factor of its tree. */
export interface StoredInstance extends ScoredInstance {
  branching: number
}

const index = z.int().min(0)
const tokens = index.max(2 ** 31 - 1)
const text = z.string().min(1)
const numbers = z.array(z.number())

const lineSchema = z.object({
  benchmark: text,
  variant: text.exactOptional(),
  dataset: index.exactOptional(),
  question: text,
  item: text,
  source: text,
  role: z.enum(['gold', 'other']),
  retrieved: z.boolean(),
  branching: z.int().min(2),
  leaves: z.int().min(1),
  gold: z.array(index),
  headerTokens: tokens,
  leafTokens: z.array(tokens),
  truncated: z.array(index),
  same: z.array(index),
  nodes: z.array(z.tuple([index, index])),
  scores: z
    .strictObject({
      frozen: numbers.exactOptional(),
      'fine-tuned': numbers.exactOptional(),
      permuted: numbers.exactOptional(),
    })
    .refine((scores) => Object.keys(scores).length > 0, { message: 'has the scores of no encoder' }),
})

/**
 * The line of {@link SCORES_FILE} for an instance: everything its metrics depend on, numbers in full precision.
 *
 * ```json
 * {"benchmark":"…","variant":"…","dataset":0,"question":"…","item":"…","source":"…","role":"gold","retrieved":true,
 *  "branching":2,"leaves":3,"gold":[0],"headerTokens":2,"leafTokens":[9,7,8],"truncated":[],"same":[0,1,2,3,4],
 *  "nodes":[[0,3],[0,2],[0,1],[1,2],[2,3]],"scores":{"frozen":[…],"fine-tuned":[…],"permuted":[…]}}
 * ```
 *
 * `gold` lists leaves, `truncated` and `same` places in `nodes`, which are the tree's in pre-order, as are the scores. `variant`
 * and `dataset` (the place among the evaluation's datasets) stand there where they are known.
 */
export function scoresLine(instance: ScoredInstance, branching: number): string {
  const { benchmark, variant, dataset, question, item, source, role, retrieved, root, nodes } = instance
  return JSON.stringify({
    benchmark,
    variant,
    dataset,
    question,
    item,
    source,
    role,
    retrieved,
    branching,
    leaves: root.to - root.from,
    gold: placesOf(instance.gold),
    headerTokens: instance.headerTokens,
    leafTokens: Array.from(instance.leafTokens),
    truncated: placesOf(instance.truncated),
    same: Array.from(instance.same),
    nodes: nodes.map(({ from, to }) => [from, to]),
    scores: Object.fromEntries(
      MODEL_ENCODERS.flatMap((encoder) => {
        const scores = instance.scores[encoder]
        return scores === undefined ? [] : [[encoder, Array.from(scores)]]
      }),
    ),
  })
}

/**
 * The instances of an evaluation, one after the other, as they were measured; trees are built anew and every part is checked
 * against them. Memory does not grow with their number.
 *
 * @param folder folder of results that "canopy evaluate" wrote, or a {@link SCORES_FILE} itself
 * @throws InputError with file and line: a missing file, a line that is none, parts that don't fit each other
 */
export async function* readScores(
  folder: string,
  options: { signal?: AbortSignal | undefined } = {},
): AsyncGenerator<StoredInstance> {
  const file = await scoresFile(folder)
  for await (const { value, line } of readJsonLines(file, options)) yield parseScoresLine(value, { file, line })
}

async function scoresFile(folder: string): Promise<string> {
  const found = await stat(folder).catch(() => undefined)
  if (found?.isFile()) return folder
  const file = join(folder, SCORES_FILE)
  if ((await stat(file).catch(() => undefined))?.isFile()) return file
  throw new InputError(
    found === undefined
      ? 'There is no such folder; "canopy evaluate" writes one.'
      : `There is no ${SCORES_FILE} in it; evaluate again with "canopy evaluate", which writes one.`,
    { file: folder },
  )
}

/**
 * A line of {@link SCORES_FILE}, checked.
 *
 * @throws InputError naming the place and what is wrong there
 */
export function parseScoresLine(value: unknown, place: Place): StoredInstance {
  const line = parseWith(lineSchema, value, place, 'line of scores')
  const where = `item "${line.item}" of question "${line.question}"`
  const fail = (what: string): never => {
    throw new InputError(`Not the scores of ${where}: ${what}.`, place)
  }
  const { leaves, branching, nodes: ranges } = line
  // Before a tree is built: as many leaves as the line itself proves.
  if (line.leafTokens.length !== leaves) fail(`"leafTokens" has ${line.leafTokens.length} entries, expected ${leaves}`)
  const root = buildTree(leaves, branching)
  const nodes = preOrder(root)
  if (ranges.length !== nodes.length) fail(`"nodes" has ${ranges.length} entries, expected ${nodes.length}`)
  const other = nodes.findIndex(({ from, to }, i) => ranges[i]![0] !== from || ranges[i]![1] !== to)
  if (other >= 0) {
    const { from, to } = nodes[other]!
    fail(`"nodes[${other}]" is [${ranges[other]}], the tree of ${leaves} leaves has [${from},${to}] there`)
  }
  if (line.same.length !== nodes.length) fail(`"same" has ${line.same.length} entries, expected ${nodes.length}`)
  for (const [i, first] of line.same.entries()) {
    if (first > i || line.same[first] !== first) fail(`"same[${i}]" is ${first}, which is no first node of its kind`)
  }
  for (const [encoder, scores] of Object.entries(line.scores)) {
    if (scores.length !== nodes.length) {
      fail(`"scores.${encoder}" has ${scores.length} entries, expected ${nodes.length}`)
    }
  }
  const marks = (name: 'gold' | 'truncated', length: number): boolean[] => {
    const marked = new Array<boolean>(length).fill(false)
    for (const at of line[name]) {
      if (at >= length) fail(`"${name}" names ${at}, but there are ${length}`)
      marked[at] = true
    }
    return marked
  }
  return {
    benchmark: line.benchmark,
    ...(line.variant !== undefined && { variant: line.variant }),
    ...(line.dataset !== undefined && { dataset: line.dataset }),
    question: line.question,
    item: line.item,
    source: line.source,
    role: line.role,
    retrieved: line.retrieved,
    branching,
    root,
    nodes,
    gold: marks('gold', leaves),
    headerTokens: line.headerTokens,
    leafTokens: Int32Array.from(line.leafTokens),
    truncated: marks('truncated', nodes.length),
    same: Int32Array.from(line.same),
    scores: Object.fromEntries(
      Object.entries(line.scores).map(([encoder, scores]) => [encoder, Float64Array.from(scores)]),
    ),
  }
}

const placesOf = (marked: readonly boolean[]): number[] => marked.flatMap((is, i) => (is ? [i] : []))

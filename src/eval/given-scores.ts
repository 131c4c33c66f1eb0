import { join } from 'node:path'
import type { Dataset, Place } from '../data/index.ts'
import { buildHierarchy, type Hierarchy, type TableFormatName } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { checkedScores, type GivenScores, type Line, listsOf, type PlacedLine, scoredTwice } from './given-lines.ts'
import {
  countItemTokens,
  entriesByItem,
  firstWithin,
  type ItemTokens,
  type PlacedQuestion,
  type ScoredQuestion,
  sourceOf,
  unscoredInstance,
} from './items.ts'
import type { ModelEncoder, ScoredInstance } from './scored.ts'
import type { Survey } from './survey.ts'

export interface GivenOptions {
  split: string
  tableFormat: TableFormatName
  branching: number
  /** Counts tokens in place of the lines; undefined: take the lines' own counts. */
  countTokens: ((text: string) => number) | undefined
  /** Ask for scores of what was retrieved beside the gold items, too. */
  retrieved: boolean
  signal?: AbortSignal | undefined
}

/**
 * The questions of all datasets in file order, with the scores that were given for their items, of any modality.
 *
 * @throws InputError for an item without scores (naming the question's place), for a node without one, a node that the tree does
 *   not have and a score that is no finite number (naming file, line and node)
 */
export async function* givenQuestions(
  datasets: readonly Dataset[],
  survey: Survey,
  given: GivenScores,
  options: GivenOptions,
): AsyncIterable<ScoredQuestion> {
  const { split, tableFormat, branching, countTokens, signal } = options
  for (const [index, dataset] of datasets.entries()) {
    for await (const { question, line } of dataset.questions(split)) {
      signal?.throwIfAborted()
      const retrieved = question.retrieved !== undefined && options.retrieved
      const place = { file: join(dataset.folder, 'questions.jsonl'), line }
      const asked: PlacedQuestion = { question, dataset: index, place, retrieved }
      const instances: ScoredInstance[] = []
      let droppedAnnotations = 0
      for (const [id, entries] of entriesByItem(question, retrieved)) {
        const found = await given.find(question.benchmark, question.id, id, survey.sharedIds.has(question.id))
        if (found.length === 0) {
          throw new InputError(
            `There are no scores of item "${id}" of question "${question.id}"; ${entries.length === 0 ? 'it was retrieved beside the gold items: score it as well, or add --no-retrieved' : 'score every gold item of the split'}.`,
            place,
          )
        }
        const hierarchy = buildHierarchy(await dataset.item(id), branching)
        const tokens =
          countTokens === undefined
            ? ownTokens(found.find(({ line }) => line.leafTokens !== undefined) ?? found[0]!, hierarchy)
            : countItemTokens(hierarchy, countTokens, tableFormat)
        const unscored = unscoredInstance(asked, hierarchy, entries, tokens)
        droppedAnnotations += unscored.droppedAnnotations
        instances.push({ ...unscored.instance, ...scoresOnTree(found, hierarchy, branching, given.models) })
      }
      const none = { gold: 0, other: 0 }
      yield {
        question,
        source: sourceOf(question),
        retrieved,
        instances,
        droppedAnnotations,
        notText: none,
        unreadable: none,
      }
    }
  }
}

function ownTokens({ line, place }: PlacedLine, { leaves }: Hierarchy): ItemTokens {
  const { leafTokens, headerTokens = 0, item, question } = line
  const where = `item "${item}" of question "${question}"`
  if (leafTokens === undefined) {
    throw new InputError(
      `There is no "leafTokens" for ${where}, though other lines have it; give it, or add --encoder to count tokens by its tokenizer.`,
      place,
    )
  }
  if (leafTokens.length !== leaves.length) {
    throw new InputError(
      `"leafTokens" of ${where} has ${leafTokens.length} entries for ${leaves.length} leaves.`,
      place,
    )
  }
  return { headerTokens, leafTokens: Int32Array.from(leafTokens) }
}

/** Scores, and what else the lines say of nodes, in the order of the tree's nodes. */
function scoresOnTree(
  found: readonly PlacedLine[],
  { nodes, leaves }: Hierarchy,
  branching: number,
  models: readonly ModelEncoder[],
): Pick<ScoredInstance, 'scores' | 'truncated' | 'same'> {
  const scores: ScoredInstance['scores'] = {}
  const givenAt = new Map<string, Place>()
  let truncated: boolean[] | undefined
  let same: Int32Array | undefined
  for (const { line, place, encoder } of found) {
    const order = orderOf(line, place, nodes, leaves.length, branching)
    for (const [name, list] of Object.entries(listsOf(line, encoder)) as [ModelEncoder, unknown[]][]) {
      if (givenAt.has(name)) throw scoredTwice(line.question, line.item, place, givenAt.get(name)!)
      givenAt.set(name, place)
      const values = checkedScores(list, line, place)
      scores[name] = Float64Array.from(order, (at) => values[at]!)
    }
    const { truncated: cut, same: keys } = line
    if (cut !== undefined) {
      requirePlaces('truncated', cut, line, place)
      const places = new Set(cut)
      truncated ??= order.map((at) => places.has(at))
    }
    if (keys !== undefined) {
      if (keys.length !== nodes.length) {
        const where = `item "${line.item}" of question "${line.question}"`
        throw new InputError(`"same" of ${where} has ${keys.length} entries for ${nodes.length} nodes.`, place)
      }
      requirePlaces('same', keys, line, place)
      same ??= firstWithin(Int32Array.from(order, (at) => keys[at]!))
    }
  }
  for (const model of models) {
    if (model === 'permuted' || scores[model] !== undefined) continue
    const { line, place } = found[0]!
    throw new InputError(
      `Item "${line.item}" of question "${line.question}" has no ${model} scores, though other lines have; score every item by the same encoders.`,
      place,
    )
  }
  return {
    scores,
    truncated: truncated ?? nodes.map(() => false),
    same: same ?? Int32Array.from(nodes.keys()),
  }
}

/** What a line says of its nodes by their places in it. */
function requirePlaces(name: string, places: readonly number[], { nodes, item, question }: Line, place: Place): void {
  const wrong = places.find((at) => at >= nodes.length)
  if (wrong === undefined) return
  throw new InputError(
    `"${name}" of item "${item}" of question "${question}" names the node ${wrong}; there are ${nodes.length}, counted from 0.`,
    place,
  )
}

/** [nodes of the tree]: the node's place in the line. */
function orderOf(line: Line, place: Place, nodes: Hierarchy['nodes'], leaves: number, branching: number): number[] {
  const where = `item "${line.item}" of question "${line.question}"`
  if (line.branching !== undefined && line.branching !== branching) {
    throw new InputError(
      `The scores of ${where} are of a tree of branching ${line.branching}, not ${branching}; add --branching ${line.branching}.`,
      place,
    )
  }
  const placeOf = new Map<string, number>()
  for (const [i, [from, to]] of line.nodes.entries()) {
    if (placeOf.has(`${from}-${to}`)) throw new InputError(`Node [${from}, ${to}) of ${where} is listed twice.`, place)
    placeOf.set(`${from}-${to}`, i)
  }
  const order = nodes.map(({ from, to }) => {
    const at = placeOf.get(`${from}-${to}`)
    if (at === undefined) {
      throw new InputError(
        `Node [${from}, ${to}) of ${where} has no score; score every node of the tree over its ${leaves} leaves (branching ${branching}).`,
        place,
      )
    }
    placeOf.delete(`${from}-${to}`)
    return at
  })
  const [extra] = placeOf.keys()
  if (extra !== undefined) {
    const [from, to] = line.nodes[placeOf.get(extra)!]!
    throw new InputError(
      `The tree over the ${leaves} leaves of ${where} (branching ${branching}) has no node [${from}, ${to}).`,
      place,
    )
  }
  return order
}

import {
  buildHierarchy,
  extentOf,
  type Hierarchy,
  renderContent,
  renderNode,
  type TreeNode,
} from '../hierarchy/index.ts'
import { refine } from '../refine/index.ts'
import { InputError } from '../support/errors.ts'
import type { CanopySettings } from './canopy.ts'
import type { Embedder } from './embed.ts'

/**
 * What to refine. A passage: its text, or text with title and, where they are known, sentence boundaries (UTF-16 offsets). A table:
 * column header (or `[]`) and rows of cells, with title and caption.
 */
export type RefineInput =
  | string
  | { id?: string; title?: string; text: string; sentences?: [number, number][] }
  | { id?: string; title?: string; caption?: string; header: string[]; rows: string[][] }

/** A region that refinement kept. */
export interface KeptRange {
  /** Leaves `[from, to)` of the item: sentences of a text, rows of a table. */
  from: number
  to: number
  /** Where it lies in the item, `[start, end)`: UTF-16 offsets into a text, rows of a table. */
  start: number
  end: number
  /** The text between them; of a table, its rows as the encoder's table format has them. */
  text: string
  /** cos(f0(question), fθ(region)). */
  score: number
}

/** What refinement made of one item. */
export interface RefinedItem {
  id?: string
  title?: string
  modality: 'text' | 'table'
  /** How many leaves the item has. */
  leaves: number
  /** In reading order, disjoint. */
  kept: KeptRange[]
  /** Every node in pre-order with its score, the tree that the decisions were taken on. */
  nodes: { from: number; to: number; start: number; end: number; score: number; truncated: boolean }[]
}

/**
 * Refines items for a question, with the same segmentation, rendering, prompts and batching as training. Scores are compared
 * inside an item only.
 *
 * @returns one result an item, in input order
 * @throws InputError for an empty question, and for an item without text or with sentences that do not fit it, naming the item
 */
export async function refineItems(
  encoders: { query: Embedder; node: Embedder },
  settings: Pick<CanopySettings, 'title' | 'tableFormat' | 'branching'>,
  question: string,
  items: readonly RefineInput[],
  options: { signal?: AbortSignal } = {},
): Promise<RefinedItem[]> {
  if (typeof question !== 'string' || question.trim() === '') throw new InputError('The question is empty.')
  const trees = items.map((input, i) => toHierarchy(input, i, settings.branching))
  const texts = trees.flatMap((tree) => tree.nodes.map((node) => renderNode(tree, node, settings)))
  const asked = await encoders.query.embedTexts([question], 'query', options)
  const embedded = await encoders.node.embedTexts(texts, 'node', options)
  const { dimension } = encoders.node
  if (encoders.query.dimension !== dimension)
    throw new InputError(
      `The query encoder's embeddings have ${encoders.query.dimension} numbers, the node encoder's ${dimension}; they are no pair.`,
    )

  let at = 0
  return trees.map((tree, i) => {
    const first = at
    at += tree.nodes.length
    const scores = new Map(
      tree.nodes.map((node, n) => [node, cosine(asked.embeddings, embedded.embeddings, (first + n) * dimension)]),
    )
    const score = (node: TreeNode): number => scores.get(node) as number
    const input = items[i]
    return {
      ...(typeof input === 'object' && input.id !== undefined ? { id: input.id } : {}),
      ...(typeof input === 'object' && input.title !== undefined ? { title: input.title } : {}),
      modality: tree.item.modality as 'text' | 'table',
      leaves: tree.leaves.length,
      kept: refine(tree.root, score).map((node) => ({
        from: node.from,
        to: node.to,
        ...extent(tree, node),
        text: renderContent(tree, node, settings),
        score: score(node),
      })),
      nodes: tree.nodes.map((node, n) => ({
        from: node.from,
        to: node.to,
        ...extent(tree, node),
        score: score(node),
        truncated: embedded.truncated[first + n] as boolean,
      })),
    }
  })
}

/**
 * The hierarchy of what is to be refined.
 *
 * @param place of the input among its likes, for messages
 * @throws InputError when it is neither a text with words nor a table with rows
 */
export function toHierarchy(input: RefineInput, place: number, branching: number): Hierarchy {
  const given = typeof input === 'string' ? { text: input } : input
  if (given === null || typeof given !== 'object')
    throw new InputError(`Item ${place + 1} is neither a text nor an object with "text" or "rows".`)
  const id = given.id ?? `item ${place + 1}`
  const name = `Item ${place + 1}${given.id === undefined ? '' : ` ("${given.id}")`}`
  if ('rows' in given) {
    const { header, rows } = given
    const isCells = (cells: unknown): boolean => Array.isArray(cells) && cells.every((cell) => typeof cell === 'string')
    if (!isCells(header) || !Array.isArray(rows) || !rows.every(isCells))
      throw new InputError(
        `${name} is no table: "header" is a list of cells, "rows" a list of such lists, all of them text.`,
      )
    return buildHierarchy({ ...given, id, modality: 'table' }, branching)
  }
  if (typeof given.text !== 'string' || given.text.trim() === '') throw new InputError(`${name} has no text to refine.`)
  return buildHierarchy({ ...given, id, modality: 'text' }, branching)
}

function extent(tree: Hierarchy, node: TreeNode): { start: number; end: number } {
  const [start, end] = extentOf(tree, node)
  return { start, end }
}

/** Cosine of the first row of `a` and the row of `b` that starts at `at`. */
function cosine(a: Float32Array, b: Float32Array, at: number): number {
  let [dot, aa, bb] = [0, 0, 0]
  for (let k = 0; k < a.length; k++) {
    const [x, y] = [a[k]!, b[at + k]!]
    dot += x * y
    aa += x * x
    bb += y * y
  }
  return dot / Math.max(Math.sqrt(aa * bb), 1e-24)
}

import {
  buildHierarchy,
  extentOf,
  type Hierarchy,
  type Item,
  renderContent,
  renderNode,
  type TableFormat,
  type TableFormatName,
  type TreeNode,
} from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import { refine } from './refine.ts'

/**
 * A passage: its text, or text with title and, where they are known, sentence boundaries (UTF-16 offsets). A table: column header
 * (or `[]`) and rows of cells, with title and caption.
 */
export type TextInput =
  | string
  | { id?: string; title?: string; text: string; sentences?: [number, number][] }
  | { id?: string; title?: string; caption?: string; header: string[]; rows: string[][] }

/** A region that refinement kept. */
export interface KeptRange {
  /** Leaves `[from, to)` of the item: sentences of a text, rows of a table, segments of a video; an image is one leaf. */
  from: number
  to: number
  /** Where it lies, `[start, end)`: UTF-16 offsets into a text, rows of a table, seconds on a video file's clock; `[0, 1)` of an image. */
  start: number
  end: number
  /** The text between them; of a table, its rows as the encoder's table format has them; empty for images and videos. */
  text: string
  /** cos(f0(question), fθ(region)). */
  score: number
}

/** What refinement made of one item. */
export interface RefinedItem {
  id?: string
  title?: string
  modality: Item['modality']
  /** How many leaves the item has. */
  leaves: number
  /** In reading order, disjoint. */
  kept: KeptRange[]
  /** Every node in pre-order with its score, the tree that the decisions were taken on. */
  nodes: { from: number; to: number; start: number; end: number; score: number; truncated: boolean }[]
}

/** What a canopy.json says about trees and their texts; an exported folder's may be given as it stands. */
export interface RefineSettings {
  /** Whether every region's text starts with its item's title. */
  title: boolean
  /** How a table's header and rows become text; Markdown where absent. */
  tableFormat?: TableFormatName | TableFormat | undefined
  /** Children of a node, at most; 2 where absent. */
  branching?: number | undefined
  /** Margin of {@link refine}; 0 where absent. */
  margin?: number | undefined
}

/** Embeddings by whatever computes them: ONNX Runtime in a browser, a service of one's own. */
export interface RefineFunctions {
  /** f0 of the question, with the prompt of a question in front. */
  embedQuery(question: string): Promise<ArrayLike<number>>
  /**
   * fθ of the texts of all regions of all items, with the prompt of a node in front: `embeddings` [texts, dimension] row after row, and
   * which texts were cut at the encoder's maximum length, where that is known.
   */
  embedNodes(texts: string[]): Promise<{ embeddings: ArrayLike<number>; truncated?: readonly boolean[] }>
  settings: RefineSettings
}

/**
 * Refines texts and tables for a question with embeddings from elsewhere: trees, their nodes' texts, scores, and what is kept.
 * `Encoder.refine` is the same with the encoders of a folder, in Node.
 *
 * @returns one result an item, in input order
 * @throws InputError for an empty question; for an item without text or rows, or with sentences that do not fit it, naming the item;
 *   for embeddings that are not as many as the texts, or not finite
 * @example
 * const [item] = await refineWith({ embedQuery, embedNodes, settings: canopyJson }, 'Who wound the clock?', [{ title, text }])
 */
export async function refineWith(
  { embedQuery, embedNodes, settings }: RefineFunctions,
  question: string,
  items: readonly TextInput[],
): Promise<RefinedItem[]> {
  checkQuestion(question)
  const { title, tableFormat = 'markdown', branching = 2 } = settings
  const trees = items.map((input, place) => textHierarchy(input, place, branching))
  const texts = trees.flatMap((tree) => tree.nodes.map((node) => renderNode(tree, node, { title, tableFormat })))
  if (texts.length === 0) return []
  const asked = await embedQuery(question)
  const { embeddings, truncated } = await embedNodes(texts)
  const dimension = asked.length
  if (dimension === 0 || embeddings.length !== texts.length * dimension)
    throw new InputError(
      `The embeddings of ${texts.length} regions are ${embeddings.length} numbers, and the question's are ${dimension}; a region has as many as the question.`,
    )
  let at = 0
  return trees.map((tree, i) => {
    const first = at
    at += tree.nodes.length
    return refinedItem(items[i] as TextInput, tree, settings, (n) => ({
      score: cosine(asked, embeddings, (first + n) * dimension),
      truncated: truncated?.[first + n] ?? false,
    }))
  })
}

/** @throws InputError for a question without words */
export function checkQuestion(question: string): void {
  if (typeof question !== 'string' || question.trim() === '') throw new InputError('The question is empty.')
}

/**
 * What is kept of an item, and the tree that it was decided on.
 *
 * @param input the item as it was given, whose id and title come back
 * @param found score of the nth node in pre-order, and whether its text was cut
 * @throws InputError naming the node whose score is missing or NaN
 */
function refinedItem(
  input: TextInput,
  tree: Hierarchy,
  settings: Pick<RefineSettings, 'tableFormat' | 'margin'>,
  found: (node: number) => { score: number; truncated: boolean },
): RefinedItem {
  const place = (node: TreeNode): { from: number; to: number; start: number; end: number } => {
    const [start, end] = extentOf(tree, node)
    return { from: node.from, to: node.to, start, end }
  }
  const nodes = tree.nodes.map((node, n) => ({ ...place(node), ...found(n) }))
  const scores = new Map(tree.nodes.map((node, n) => [node, nodes[n]?.score as number]))
  const score = (node: TreeNode): number => scores.get(node) as number
  const rendering = settings.tableFormat === undefined ? {} : { tableFormat: settings.tableFormat }
  return {
    ...(typeof input === 'object' && input.id !== undefined ? { id: input.id } : {}),
    ...(typeof input === 'object' && input.title !== undefined ? { title: input.title } : {}),
    modality: tree.item.modality,
    leaves: tree.leaves.length,
    kept: refine(tree.root, score, { margin: settings.margin ?? 0 }).map((node) => ({
      ...place(node),
      text: renderContent(tree, node, rendering),
      score: score(node),
    })),
    nodes,
  }
}

/**
 * The hierarchy of a text or a table that is to be refined.
 *
 * @param place of the input among its likes, for messages
 * @throws InputError when it is neither a text with words nor a table with rows
 */
export function textHierarchy(input: TextInput, place: number, branching: number): Hierarchy {
  const given = typeof input === 'string' ? { text: input } : input
  if (given === null || typeof given !== 'object')
    throw new InputError(`Item ${place + 1} is neither a text nor an object with "text" or "rows".`)
  const id = given.id ?? `item ${place + 1}`
  const name = nameOf(given, place)
  if ('rows' in given) {
    if ('text' in given) throw new InputError(`${name} has "text" and "rows"; make it an item for each.`)
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

/** What messages call an item: its place, and its id where it has one. */
export function nameOf(input: unknown, place: number): string {
  const id = typeof input === 'object' && input !== null && 'id' in input ? input.id : undefined
  return `Item ${place + 1}${id === undefined ? '' : ` ("${id}")`}`
}

/** Cosine of `a` and the row of `b` that starts at `at`. */
export function cosine(a: ArrayLike<number>, b: ArrayLike<number>, at: number): number {
  let [dot, aa, bb] = [0, 0, 0]
  for (let k = 0; k < a.length; k++) {
    const [x, y] = [a[k] as number, b[at + k] as number]
    dot += x * y
    aa += x * x
    bb += y * y
  }
  return dot / Math.max(Math.sqrt(aa * bb), 1e-24)
}

import { buildHierarchy, type Hierarchy, renderNode, type TextItem, type TreeNode } from '../hierarchy/index.ts'
import { refine } from '../refine/index.ts'
import { InputError } from '../support/errors.ts'
import type { CanopySettings } from './canopy.ts'
import type { Embedder } from './embed.ts'

/** A passage to refine: its text, or text with title and, where they are known, sentence boundaries (UTF-16 offsets). */
export type RefineInput = string | { id?: string; title?: string; text: string; sentences?: [number, number][] }

/** A region that refinement kept. */
export interface KeptRange {
  /** Leaves `[from, to)` of the item: sentences, for text. */
  from: number
  to: number
  /** UTF-16 offsets `[start, end)` into the item's text. */
  start: number
  end: number
  /** The text between them. */
  text: string
  /** cos(f0(question), fθ(region)). */
  score: number
}

/** What refinement made of one item. */
export interface RefinedItem {
  id?: string
  title?: string
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
  settings: Pick<CanopySettings, 'title' | 'branching'>,
  question: string,
  items: readonly RefineInput[],
  options: { signal?: AbortSignal } = {},
): Promise<RefinedItem[]> {
  if (typeof question !== 'string' || question.trim() === '') throw new InputError('The question is empty.')
  const trees = items.map((input, i) => toHierarchy(input, i, settings.branching))
  const texts = trees.flatMap((tree) => tree.nodes.map((node) => renderNode(tree, node, { title: settings.title })))
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
      leaves: tree.leaves.length,
      kept: refine(tree.root, score).map((node) => keptRange(tree, node, score(node))),
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

function toHierarchy(input: RefineInput, place: number, branching: number): Hierarchy {
  const given = typeof input === 'string' ? { text: input } : input
  if (given === null || typeof given !== 'object')
    throw new InputError(`Item ${place + 1} is neither a text nor an object with "text".`)
  const item: TextItem = { ...given, id: given.id ?? `item ${place + 1}`, modality: 'text' }
  if (typeof item.text !== 'string' || item.text.trim() === '')
    throw new InputError(`Item ${place + 1}${given.id === undefined ? '' : ` ("${given.id}")`} has no text to refine.`)
  return buildHierarchy(item, branching)
}

function extent(tree: Hierarchy, node: TreeNode): { start: number; end: number } {
  return { start: tree.leaves[node.from]![0], end: tree.leaves[node.to - 1]![1] }
}

function keptRange(tree: Hierarchy, node: TreeNode, score: number): KeptRange {
  const { start, end } = extent(tree, node)
  return { from: node.from, to: node.to, start, end, text: (tree.item as TextItem).text.slice(start, end), score }
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

import { buildTree, type Item, preOrder, type TreeNode } from '../../hierarchy/index.ts'
import { type Lru, lru } from '../../support/lru.ts'

/** An item with all that refinement needs of it, whatever the question. */
export interface PreparedItem {
  item: Item
  /** As `Hierarchy.leaves` has them. */
  leaves: [number, number][]
  /** float32 [nodes, dimension], nodes in pre-order. */
  embeddings: Float32Array
  /** [nodes]: sums of the squares of each embedding. */
  squares: Float64Array
  /** [nodes]: 1 where the node was cut at the encoder's maximum length. */
  truncated: Uint8Array
  /** What it takes of a memory. */
  bytes: number
}

/** A question as f0 embeds it. */
export interface AskedQuestion {
  question: string
  /** float32 [dimension]. */
  embedding: Float32Array
  /** Sum of the embedding's squares. */
  square: number
}

/** The tree over some number of leaves; items with as many leaves share it. */
export interface Shape {
  root: TreeNode
  /** In pre-order. */
  nodes: TreeNode[]
  /** Index of a node in `nodes`. */
  placeOf: ReadonlyMap<TreeNode, number>
}

/**
 * Items and questions that were embedded last, by their content. It belongs to one pair of encoders and one set of settings: nothing
 * in it says which.
 */
export interface Memory {
  items: Lru<PreparedItem>
  questions: Lru<AskedQuestion>
  shapes: Lru<Shape>
}

/** Bytes of the memory behind openEncoder unless told. */
export const DEFAULT_MEMORY = 128 * 2 ** 20

/** Most nodes of the trees that are kept for the next item with as many leaves: about 15 MB. */
const SHAPE_NODES = 1 << 16

/** @param bytes at most, a sixteenth of them for questions; the shared trees' few megabytes come to it */
export function openMemory(bytes: number): Memory {
  const forQuestions = bytes / 16
  return {
    items: lru(bytes - forQuestions, ({ bytes }) => bytes),
    questions: lru(forQuestions, ({ question, embedding }) => embedding.byteLength + 2 * question.length + 256),
    shapes: lru(SHAPE_NODES, ({ nodes }) => nodes.length),
  }
}

export function shapeOf(leaves: number, branching: number, memory: Memory | undefined): Shape {
  const key = `${leaves} ${branching}`
  const known = memory?.shapes.get(key)
  if (known !== undefined) return known
  const root = buildTree(leaves, branching)
  const nodes = preOrder(root)
  const shape = { root, nodes, placeOf: new Map(nodes.map((node, n) => [node, n])) }
  return memory === undefined ? shape : memory.shapes.put(key, shape)
}

/**
 * Bytes: a character counts as two.
 *
 * @param key that it is found by, in which its content is there again
 */
export function sizeOf(
  { item, leaves, embeddings, squares, truncated }: Omit<PreparedItem, 'bytes'>,
  key: string | undefined,
): number {
  const numbers = embeddings.byteLength + squares.byteLength + truncated.byteLength
  return numbers + 72 * leaves.length + 2 * (contentLength(item) + (key?.length ?? 0)) + 512
}

/** Characters of an item; a cell's own object counts as some more. */
function contentLength(item: Item): number {
  if (item.modality === 'text') return item.text.length
  if (item.modality !== 'table') return 0
  let length = 0
  for (const cells of [item.header, ...item.rows]) for (const cell of cells) length += cell.length + 16
  return length
}

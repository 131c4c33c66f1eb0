import { setImmediate } from 'node:timers/promises'
import { type Hierarchy, type Item, readsAsText, renderContent } from '../../hierarchy/index.ts'
import { type RefinedItem, type RefineSettings, refine } from '../../refine/index.ts'
import type { AskedQuestion, PreparedItem, Shape } from './memory.ts'

/**
 * Refined items in the form that goes from thread to thread: numbers of all nodes in one array, which moves without a copy, since an
 * object a node is slow to clone.
 */
export interface PackedItems {
  /** float64 [nodes of all items, 6], items one after the other, nodes in pre-order: from, to, start, end, score, truncated. */
  nodes: Float64Array<ArrayBuffer>
  items: PackedItem[]
}

interface PackedItem {
  id: string | undefined
  title: string | undefined
  modality: Item['modality']
  leaves: number
  /** How many nodes it has. */
  nodes: number
  /** Indices of the nodes that are kept, in reading order, and their texts. */
  kept: number[]
  texts: string[]
}

const COLUMNS = 6
/** Nodes that are made objects at once, in about a millisecond. */
const NODES_AT_ONCE = 8192

/** Refines prepared items, each with the tree over its leaves. */
export function packRefined(
  prepared: readonly { item: PreparedItem; shape: Shape; id: string | undefined; title: string | undefined }[],
  asked: AskedQuestion,
  settings: Pick<RefineSettings, 'tableFormat' | 'margin'>,
): PackedItems {
  const nodes = new Float64Array(COLUMNS * prepared.reduce((sum, { shape }) => sum + shape.nodes.length, 0))
  const rendering = settings.tableFormat === undefined ? {} : { tableFormat: settings.tableFormat }
  let first = 0
  const items = prepared.map(({ item: { item, leaves, ...numbers }, shape, id, title }): PackedItem => {
    const scores = cosines(asked, numbers.embeddings, numbers.squares)
    const unit = item.modality === 'video' ? 1000 : 1
    for (const [n, { from, to }] of shape.nodes.entries()) {
      const at = COLUMNS * (first + n)
      nodes[at] = from
      nodes[at + 1] = to
      nodes[at + 2] = leaves[from]![0] / unit
      nodes[at + 3] = leaves[to - 1]![1] / unit
      nodes[at + 4] = scores[n]!
      nodes[at + 5] = numbers.truncated[n]!
    }
    first += shape.nodes.length
    const tree: Hierarchy = { item, leaves, root: shape.root, nodes: shape.nodes }
    const kept = refine(shape.root, (node) => scores[shape.placeOf.get(node)!]!, { margin: settings.margin })
    return {
      ...{ id, title, modality: item.modality, leaves: leaves.length, nodes: shape.nodes.length },
      kept: kept.map((node) => shape.placeOf.get(node)!),
      texts: kept.map((node) => (readsAsText(item) ? renderContent(tree, node, rendering) : '')),
    }
  })
  return { nodes, items }
}

/** The items as a program reads them. Many nodes are made objects a few at a time, so that the event loop goes on turning. */
export async function unpackRefined({ nodes, items }: PackedItems): Promise<RefinedItem[]> {
  const refined: RefinedItem[] = []
  let at = 0
  let paused = 0
  for (const { id, title, modality, leaves, nodes: count, kept, texts } of items) {
    const all: RefinedItem['nodes'] = []
    for (let n = 0; n < count; n++, at += COLUMNS) {
      all.push({
        from: nodes[at]!,
        to: nodes[at + 1]!,
        start: nodes[at + 2]!,
        end: nodes[at + 3]!,
        score: nodes[at + 4]!,
        truncated: nodes[at + 5] === 1,
      })
      if (at - paused < COLUMNS * NODES_AT_ONCE) continue
      paused = at
      await setImmediate()
    }
    refined.push({
      ...(id === undefined ? {} : { id }),
      ...(title === undefined ? {} : { title }),
      modality,
      leaves,
      kept: kept.map((node, k) => {
        const { from, to, start, end, score } = all[node]!
        return { from, to, start, end, text: texts[k]!, score }
      }),
      nodes: all,
    })
  }
  return refined
}

/**
 * cos(question, node) of every node, float64 [nodes], to the bit what `refineWith` has: each sum is added up in the
 * order of the numbers, four nodes side by side, for a processor that waits for one addition has time for three others.
 */
export function cosines(
  { embedding, square }: AskedQuestion,
  embeddings: Float32Array,
  squares: Float64Array,
): Float64Array {
  const dimension = embedding.length
  const count = squares.length
  const scores = new Float64Array(count)
  let n = 0
  for (; n + 4 <= count; n += 4) {
    let [a, b, c, d] = [0, 0, 0, 0]
    let [i, j, k, l] = [n * dimension, (n + 1) * dimension, (n + 2) * dimension, (n + 3) * dimension]
    for (let x = 0; x < dimension; x++) {
      const q = embedding[x]!
      a += q * embeddings[i++]!
      b += q * embeddings[j++]!
      c += q * embeddings[k++]!
      d += q * embeddings[l++]!
    }
    scores[n] = a
    scores[n + 1] = b
    scores[n + 2] = c
    scores[n + 3] = d
  }
  for (; n < count; n++) {
    let dot = 0
    for (let x = 0, i = n * dimension; x < dimension; x++) dot += embedding[x]! * embeddings[i++]!
    scores[n] = dot
  }
  for (n = 0; n < count; n++) scores[n]! /= Math.max(Math.sqrt(square * squares[n]!), 1e-24)
  return scores
}

/** Sums of the squares of rows, float64 [rows]. */
export function squaresOf(rows: Float32Array, dimension: number): Float64Array {
  const squares = new Float64Array(rows.length / dimension)
  for (let n = 0, i = 0; n < squares.length; n++) {
    let sum = 0
    for (let x = 0; x < dimension; x++, i++) sum += rows[i]! * rows[i]!
    squares[n] = sum
  }
  return squares
}

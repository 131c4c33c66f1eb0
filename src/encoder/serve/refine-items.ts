import {
  buildHierarchy,
  extentOf,
  type Hierarchy,
  type Item,
  readsAsText,
  renderContent,
  type TreeNode,
} from '../../hierarchy/index.ts'
import { probeVideo } from '../../media/index.ts'
import { refine } from '../../refine/index.ts'
import { InputError } from '../../support/errors.ts'
import { refuseUrl } from '../../support/files.ts'
import type { Embedder, EmbedOptions } from '../embedding/embed.ts'
import type { CanopySettings } from '../folder/canopy.ts'
import type { Side } from '../folder/profile.ts'
import { encoderInput } from '../input/node-input.ts'

/**
 * What to refine. A passage: its text, or text with title and, where they are known, sentence boundaries (UTF-16 offsets). A table:
 * column header (or `[]`) and rows of cells, with title and caption. A picture or a video, for encoders that read them: the path of
 * its file, absolute or from the working directory; of a video the part from `start` to `end`, in seconds on the file's clock, where
 * absent its beginning and its end.
 */
export type RefineInput =
  | string
  | { id?: string; title?: string; text: string; sentences?: [number, number][] }
  | { id?: string; title?: string; caption?: string; header: string[]; rows: string[][] }
  | { id?: string; title?: string; image: string }
  | { id?: string; title?: string; video: string; start?: number; end?: number }

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

/**
 * Refines items for a question, with the same segmentation, rendering, prompts, frames and batching as training. Scores are compared
 * inside an item only.
 *
 * @returns one result an item, in input order
 * @throws InputError for an empty question; for an item without text or with sentences that do not fit it, naming the item; for a
 *   picture or video that cannot be read, naming the file, or that the encoder does not read
 */
export async function refineItems(
  encoders: Record<Side, Pick<Embedder, 'embed' | 'dimension' | 'reader' | 'profile'>>,
  settings: Pick<CanopySettings, 'title' | 'tableFormat' | 'branching'>,
  question: string,
  items: readonly RefineInput[],
  options: EmbedOptions = {},
): Promise<RefinedItem[]> {
  if (typeof question !== 'string' || question.trim() === '') throw new InputError('The question is empty.')
  const { dimension, reader, profile } = encoders.node
  if (encoders.query.dimension !== dimension)
    throw new InputError(
      `The query encoder's embeddings have ${encoders.query.dimension} numbers, the node encoder's ${dimension}; they are no pair.`,
    )
  const trees: Hierarchy[] = []
  for (const [i, input] of items.entries()) {
    if (!reader.multimodal) refuseMedia(input, i, profile.id)
    trees.push(toHierarchy(await timed(input, i, options.signal), i, settings.branching))
  }
  const inputs = trees.flatMap((tree) => tree.nodes.map((node) => encoderInput(tree, node, settings, undefined)))
  const asked = await encoders.query.embed([{ text: question }], 'query', options)
  const embedded = await encoders.node.embed(inputs, 'node', options)

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
      modality: tree.item.modality,
      leaves: tree.leaves.length,
      kept: refine(tree.root, score).map((node) => ({
        from: node.from,
        to: node.to,
        ...extent(tree, node),
        text: readsAsText(tree.item) ? renderContent(tree, node, settings) : '',
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
 * @throws InputError when it is neither a text with words, a table with rows, a picture nor a part of a video
 */
export function toHierarchy(input: RefineInput, place: number, branching: number): Hierarchy {
  const given = typeof input === 'string' ? { text: input } : input
  if (given === null || typeof given !== 'object')
    throw new InputError(`Item ${place + 1} is neither a text nor an object with "text", "rows", "image" or "video".`)
  const id = given.id ?? `item ${place + 1}`
  const name = nameOf(given, place)
  const kinds = ['text', 'rows', 'image', 'video'].filter((kind) => kind in given)
  if (kinds.length > 1)
    throw new InputError(`${name} has ${kinds.map((kind) => `"${kind}"`).join(' and ')}; make it an item for each.`)
  if ('rows' in given) {
    const { header, rows } = given
    const isCells = (cells: unknown): boolean => Array.isArray(cells) && cells.every((cell) => typeof cell === 'string')
    if (!isCells(header) || !Array.isArray(rows) || !rows.every(isCells))
      throw new InputError(
        `${name} is no table: "header" is a list of cells, "rows" a list of such lists, all of them text.`,
      )
    return buildHierarchy({ ...given, id, modality: 'table' }, branching)
  }
  if ('image' in given) {
    requirePath(given.image, `${name}, "image"`)
    return buildHierarchy({ ...given, id, modality: 'image' }, branching)
  }
  if ('video' in given) {
    requirePath(given.video, `${name}, "video"`)
    const { start = 0, end = Number.NaN } = given
    if (!Number.isFinite(start) || !Number.isFinite(end))
      throw new InputError(`${name} is a video whose "start" and "end" are not both a time in seconds.`)
    return buildHierarchy({ ...given, id, modality: 'video', start, end }, branching)
  }
  if (typeof given.text !== 'string' || given.text.trim() === '') throw new InputError(`${name} has no text to refine.`)
  return buildHierarchy({ ...given, id, modality: 'text' }, branching)
}

/** An input, and of a video without an end, where its file ends. */
async function timed(input: RefineInput, place: number, signal: AbortSignal | undefined): Promise<RefineInput> {
  if (input === null || typeof input !== 'object' || !('video' in input) || input.end !== undefined) return input
  requirePath(input.video, `${nameOf(input, place)}, "video"`)
  const { duration } = await probeVideo(input.video, { signal })
  return { ...input, end: duration / 1000 }
}

function refuseMedia(input: RefineInput, place: number, encoder: string): void {
  if (input === null || typeof input !== 'object') return
  const what = 'image' in input ? 'an image' : 'video' in input ? 'a video' : undefined
  if (what === undefined) return
  throw new InputError(
    `${nameOf(input, place)} is ${what}, and the encoder ${encoder} reads only text; leave it out, or give an encoder that reads pictures.`,
  )
}

function nameOf(input: RefineInput | undefined, place: number): string {
  const id = typeof input === 'object' ? input.id : undefined
  return `Item ${place + 1}${id === undefined ? '' : ` ("${id}")`}`
}

function requirePath(path: unknown, name: string): void {
  if (typeof path !== 'string' || path === '') throw new InputError(`${name}: the path of a file was expected.`)
  refuseUrl(path)
}

function extent(tree: Hierarchy, node: TreeNode): { start: number; end: number } {
  const [start, end] = extentOf(tree, node)
  return tree.item.modality === 'video' ? { start: start / 1000, end: end / 1000 } : { start, end }
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

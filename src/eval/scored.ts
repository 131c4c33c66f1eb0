import { preOrder, type TreeNode } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'

/**
 * Who decides, in the order of every table. `frozen`: node encoder = query encoder. `fine-tuned`: the trained node encoder.
 * The rest are controls: `permuted` is `fine-tuned` asked another question of the same benchmark; `always-left`,
 * `keep-root` and `constant` read nothing at all.
 */
export const ENCODERS = ['frozen', 'fine-tuned', 'permuted', 'always-left', 'keep-root', 'constant'] as const
export type EncoderName = (typeof ENCODERS)[number]

/** The encoders whose scores come from a model; the others follow from the tree alone. */
export const MODEL_ENCODERS = ['frozen', 'fine-tuned', 'permuted'] as const
export type ModelEncoder = (typeof MODEL_ENCODERS)[number]

/**
 * What selects evidence without descending a tree, to stand beside refinement on the same gold items: exactly the gold leaves, the
 * best leaf, the best node of any size.
 */
export const SELECTORS = ['gold-span', 'flat-leaf', 'flat-node'] as const
export type Selector = (typeof SELECTORS)[number]

/** Whatever keeps a part of an item and is measured by it. */
export type RowName = EncoderName | Selector

export const isModel = (row: RowName): row is ModelEncoder => (MODEL_ENCODERS as readonly string[]).includes(row)
export const isSelector = (row: RowName): row is Selector => (SELECTORS as readonly string[]).includes(row)

/** One item of one question with everything that its metrics depend on; plain data, no encoder and no text. */
export interface ScoredInstance {
  benchmark: string
  /** The question's kind, where results show it apart from its benchmark; see {@link tableRow}. */
  variant?: string
  /** Place of the question's dataset among those of the evaluation. */
  dataset?: number
  question: string
  item: string
  /** Bootstrap cluster: what questions of one origin share; the question itself where no source is known. */
  source: string
  /** `gold`: the question names it as gold. `other`: it was only retrieved. */
  role: 'gold' | 'other'
  /** Whether it is known what was retrieved for the question; only then do its items count as tokens per question. */
  retrieved: boolean
  root: TreeNode
  /** Every node of the tree in pre-order; `same`, `truncated` and scores are parallel to it. */
  nodes: TreeNode[]
  /** [leaves]: whether the leaf holds evidence. */
  gold: readonly boolean[]
  /** [leaves]: tokens of the leaf's text, without special tokens. */
  leafTokens: ArrayLike<number>
  /** Tokens of what the item repeats in front of every node (title, header); the reader sees it once per item. */
  headerTokens: number
  /** [nodes]: whether the encoder saw only the node's beginning. */
  truncated: readonly boolean[]
  /** [nodes]: index of the first node of the item with the same token sequence (its own index when it is the first). */
  same: Int32Array
  /** [nodes] each. */
  scores: { [E in ModelEncoder]?: Float64Array }
}

/** The name under which results count a question: its benchmark, or `benchmark:variant`, a row of its own. */
export function tableRow({ benchmark, variant }: { benchmark: string; variant?: string }): string {
  return variant === undefined ? benchmark : `${benchmark}:${variant}`
}

/** The scores as the function of a node that refinement asks for. `scores` is parallel to `nodes`. */
export function scoreOf(nodes: readonly TreeNode[], scores: ArrayLike<number>): (node: TreeNode) => number {
  const index = indexOfNodes(nodes)
  return (node) => scores[index.get(node) ?? -1] as number
}

/** Node -> its place in `nodes`. */
export function indexOfNodes(nodes: readonly TreeNode[]): Map<TreeNode, number> {
  return new Map(nodes.map((node, i) => [node, i]))
}

/**
 * The instance, checked for agreement of its parts.
 *
 * @throws InputError naming the item and the part of the wrong length
 */
export function checkInstance(instance: ScoredInstance): ScoredInstance {
  const { nodes, root, item, question } = instance
  const where = `item "${item}" of question "${question}"`
  if (nodes[0] !== root || preOrder(root).some((node, i) => nodes[i] !== node)) {
    throw new InputError(`The nodes of ${where} are not the tree's in pre-order.`)
  }
  const leaves = root.to - root.from
  const expect = (name: string, part: ArrayLike<unknown>, length: number): void => {
    if (part.length !== length)
      throw new InputError(`${name} of ${where} has ${part.length} entries, expected ${length}.`)
  }
  expect('gold', instance.gold, leaves)
  expect('leafTokens', instance.leafTokens, leaves)
  expect('truncated', instance.truncated, nodes.length)
  expect('same', instance.same, nodes.length)
  for (const [encoder, scores] of Object.entries(instance.scores)) expect(`scores.${encoder}`, scores, nodes.length)
  return instance
}

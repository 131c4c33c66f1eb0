import type { ScoredInstance } from '../../src/eval/index.ts'
import { buildTree, preOrder, type TreeNode } from '../../src/hierarchy/index.ts'

/** An instance over `gold.length` leaves whose scores are given by node range (`"0-2"`), 0 elsewhere. */
export function instanceOf(
  gold: boolean[],
  more: Partial<Omit<ScoredInstance, 'scores'>> & {
    branching?: number
    frozen?: Record<string, number> | number[]
    fineTuned?: Record<string, number> | number[]
    permuted?: Record<string, number> | number[]
  } = {},
): ScoredInstance {
  const { branching = 2, frozen = {}, fineTuned, permuted, ...rest } = more
  const root = rest.root ?? buildTree(gold.length, branching)
  const nodes = preOrder(root)
  const scores = (given: Record<string, number> | number[]): Float64Array =>
    Float64Array.from(nodes, (node, i) => (Array.isArray(given) ? given[i]! : (given[`${node.from}-${node.to}`] ?? 0)))
  return {
    benchmark: 'bench',
    question: 'q',
    item: 'i',
    source: 's',
    role: 'gold',
    retrieved: false,
    gold,
    leafTokens: gold.map(() => 10),
    headerTokens: 5,
    truncated: nodes.map(() => false),
    same: Int32Array.from(nodes.keys()),
    scores: {
      frozen: scores(frozen),
      ...(fineTuned !== undefined && { 'fine-tuned': scores(fineTuned) }),
      ...(permuted !== undefined && { permuted: scores(permuted) }),
    },
    ...rest,
    root,
    nodes,
  }
}

/** The nodes of a tree transcribed with ids and scores, as ours with a score for each. */
export interface PublishedNode {
  range: [number, number]
  score: number
  children?: PublishedNode[]
}

export function publishedTree(node: PublishedNode, scores: Map<TreeNode, number> = new Map()): TreeNode {
  const tree: TreeNode = {
    from: node.range[0],
    to: node.range[1],
    children: (node.children ?? []).map((child) => publishedTree(child, scores)),
  }
  scores.set(tree, node.score)
  return tree
}

import type { TreeNode } from '../hierarchy/index.ts'
import { InputError } from '../support/errors.ts'
import type { RowName, ScoredInstance, Selector } from './scored.ts'

/**
 * The rows of the selection table, in its order, and the row of the measurements that each one is: the whole gold item is what
 * never descending keeps, CANOPY what refinement keeps.
 */
export const SELECTION_ROWS = {
  'gold-item': 'keep-root',
  'gold-span': 'gold-span',
  'flat-leaf': 'flat-leaf',
  'flat-node': 'flat-node',
  'canopy-frozen': 'frozen',
  'canopy-fine-tuned': 'fine-tuned',
} as const satisfies Record<string, RowName>

export type SelectionRow = keyof typeof SELECTION_ROWS

/**
 * What a selector keeps of an item, in reading order. `gold-span`: the gold leaves. `flat-leaf`: the leaf with the best score,
 * `flat-node`: the node with the best score, whatever its size; on a tie the first in pre-order. Scores are the fine-tuned
 * encoder's, the frozen one's where nothing was trained.
 *
 * @throws InputError naming the node whose score is NaN
 */
export function select(instance: ScoredInstance, selector: Selector): TreeNode[] {
  const { nodes, root, gold } = instance
  const leaves = nodes.filter(({ children }) => children.length === 0)
  switch (selector) {
    case 'gold-span':
      return leaves.filter(({ from }) => gold[from - root.from])
    case 'flat-leaf':
      return [best(instance, (node) => node.children.length === 0)]
    case 'flat-node':
      return [best(instance, () => true)]
  }
}

function best(instance: ScoredInstance, eligible: (node: TreeNode) => boolean): TreeNode {
  const { nodes, item } = instance
  const scores = instance.scores['fine-tuned'] ?? instance.scores.frozen
  if (scores === undefined) throw new RangeError(`Item "${item}" has no scores to select by.`)
  let found = -1
  for (const [i, node] of nodes.entries()) {
    if (!eligible(node)) continue
    const score = scores[i]!
    if (Number.isNaN(score)) {
      throw new InputError(`The score of node [${node.from}, ${node.to}) is NaN; score every node of the item.`)
    }
    if (found < 0 || score > scores[found]!) found = i
  }
  return nodes[found]!
}

import type { TreeNode } from '../hierarchy/index.ts'
import { createRandom } from '../support/random.ts'
import type { EncoderName, ModelEncoder } from './scored.ts'

export type BlindControl = Exclude<EncoderName, ModelEncoder>

/**
 * Scores [nodes] that make refinement follow a policy which reads neither question nor item, at every node of the tree:
 * `always-left` enters exactly the first child, `keep-root` enters none, `constant` gives every node the same score and so
 * enters all (ties descend).
 *
 * @param nodes every node of a tree in pre-order
 */
export function blindScores(control: BlindControl, nodes: readonly TreeNode[]): Float64Array {
  // One step above the parent for a child that is to be entered, one below for the others.
  const step = { 'always-left': (i: number) => (i === 0 ? 1 : -1), 'keep-root': () => -1, constant: () => 0 }[control]
  const scores = new Float64Array(nodes.length)
  const index = new Map(nodes.map((node, i) => [node, i]))
  for (const [i, node] of nodes.entries()) {
    for (const [c, child] of node.children.entries()) scores[index.get(child)!] = scores[i]! + step(c)
  }
  return scores
}

/**
 * Another question for each question text: a seeded permutation of the distinct texts in which none stays in place (one
 * cycle, Sattolo's algorithm). Undefined when there are fewer than two distinct texts.
 */
export function permuteQuestions(texts: Iterable<string>, seed: string): Map<string, string> | undefined {
  const distinct = [...new Set(texts)]
  if (distinct.length < 2) return undefined
  const random = createRandom(seed)
  const partners = [...distinct]
  for (let i = partners.length - 1; i > 0; i--) {
    const j = random.int(i)
    ;[partners[i], partners[j]] = [partners[j]!, partners[i]!]
  }
  return new Map(distinct.map((text, i) => [text, partners[i]!]))
}

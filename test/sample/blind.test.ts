import { beforeAll, describe, expect, it } from 'vitest'
import { accuracyOf, blindScores } from '../../src/eval/index.ts'
import { type Hierarchy, renderContent, type TreeNode } from '../../src/hierarchy/index.ts'
import { type Instance, readSample } from './sample.ts'

/** What a policy looks at: the own text of a node. */
type Reading = (text: string) => number

const count =
  (pattern: RegExp): Reading =>
  (text) =>
    text.match(pattern)?.length ?? 0

/** Policies that enter exactly the child of which they find most. */
const READINGS: Record<string, Reading> = {
  'the longest child': (text) => text.length,
  'the shortest child': (text) => -text.length,
  'the child with most digits': count(/\d/g),
  'the child with fewest digits': (text) => -count(/\d/g)(text),
  'the child with most capitalised words': count(/\b\p{Lu}\p{L}*/gu),
  'the child with most different words': (text) => new Set(text.toLowerCase().match(/\p{L}+/gu)).size,
  'the child with the longest words': (text) => text.length / (count(/[\p{L}\p{N}]+/gu)(text) || 1),
}

/** Scores [nodes], by which refinement enters at each node the child of which `read` finds most, the first of equals. */
function scoresBy(read: Reading, hierarchy: Hierarchy): Float64Array {
  const { nodes } = hierarchy
  const scores = new Float64Array(nodes.length)
  const index = new Map(nodes.map((node, i) => [node, i]))
  const found = (node: TreeNode): number => read(renderContent(hierarchy, node))
  for (const [i, node] of nodes.entries()) {
    if (node.children.length === 0) continue
    const best = node.children.reduce((a, b) => (found(b) > found(a) ? b : a))
    for (const child of node.children) scores[index.get(child)!] = scores[i]! + (child === best ? 1 : -1)
  }
  return scores
}

describe('a policy that never reads the question is wrong at half of the decisions of datasets/sample or more', () => {
  let instances: Record<string, Instance[]>
  beforeAll(async () => {
    const { of } = await readSample()
    instances = { train: of('train'), dev: of('dev') }
  })
  const accuracy = (split: string, scores: (hierarchy: Hierarchy) => Float64Array): number =>
    accuracyOf(
      instances[split]!.map(({ hierarchy, gold }) => ({ nodes: hierarchy.nodes, gold, scores: scores(hierarchy) })),
    ).decisionAccuracy
  const mirrored = ({ nodes }: Hierarchy): Float64Array => blindScores('always-left', nodes).map((score) => -score)

  describe.each(['train', 'dev'])('%s', (split) => {
    it.each(['always-left', 'keep-root', 'constant'] as const)('%s', (control) => {
      expect(accuracy(split, ({ nodes }) => blindScores(control, nodes))).toBeLessThan(0.5)
    })

    it('always-right', () => {
      // in binary trees, the child that always-left enters is the one that its mirror does not
      expect(accuracy(split, mirrored)).toBeLessThan(0.5)
    })

    it.each(Object.keys(READINGS))('%s', (name) => {
      expect(accuracy(split, (hierarchy) => scoresBy(READINGS[name]!, hierarchy))).toBeLessThan(0.5)
    })
  })
})

import fc from 'fast-check'
import { buildTree, type TreeNode } from '../../src/hierarchy/index.ts'

export interface TreeWithGold {
  root: TreeNode
  /** By leaf; at least one is true. */
  gold: boolean[]
}

/** Trees of up to 500 leaves and branching factors 2 to 5, with a gold set that is not empty: scattered, or in runs. */
export const treeWithGold: fc.Arbitrary<TreeWithGold> = fc
  .record({
    leaves: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 500 })),
    branching: fc.integer({ min: 2, max: 5 }),
  })
  .chain(({ leaves, branching }) =>
    fc.record({
      root: fc.constant(buildTree(leaves, branching)),
      gold: fc.oneof(scattered(leaves), inRuns(leaves)),
    }),
  )

function scattered(leaves: number): fc.Arbitrary<boolean[]> {
  return fc
    .record({ share: fc.integer({ min: 0, max: 100 }), seed: fc.infiniteStream(fc.nat(99)), one: fc.nat(leaves - 1) })
    .map(({ share, seed, one }) => {
      const gold = Array.from({ length: leaves }, () => (seed.next().value as number) < share)
      gold[one] = true
      return gold
    })
}

function inRuns(leaves: number): fc.Arbitrary<boolean[]> {
  return fc.array(fc.tuple(fc.nat(leaves - 1), fc.nat(leaves - 1)), { minLength: 1, maxLength: 3 }).map((runs) => {
    const gold = Array.from({ length: leaves }, () => false)
    for (const [a, b] of runs) gold.fill(true, Math.min(a, b), Math.max(a, b) + 1)
    return gold
  })
}

/** Properties are tried on this many trees. */
export const RUNS = { numRuns: 1000 }

export const range = ({ from, to }: TreeNode): [number, number] => [from, to]

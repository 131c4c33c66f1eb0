import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { buildTree, nodeKey, preOrder } from '../../src/hierarchy/index.ts'
import { RUNS, range } from './arbitrary.ts'
import { publishedCases } from './published.ts'

const shape = { leaves: fc.integer({ min: 1, max: 500 }), branching: fc.integer({ min: 2, max: 5 }) }

describe('buildTree', () => {
  it('partitions every node among min(B, n) children whose sizes differ by at most one, larger ones first', () => {
    fc.assert(
      fc.property(shape.leaves, shape.branching, (leaves, branching) => {
        const root = buildTree(leaves, branching)
        expect(range(root)).toEqual([0, leaves])
        const wrong = preOrder(root).filter(({ from, to, children }) => {
          if (to - from === 1) return children.length > 0
          const ends = [from, ...children.map((child) => child.to)]
          const sizes = children.map((child) => child.to - child.from)
          return !(
            children.length === Math.min(branching, to - from) &&
            children.every((child, i) => child.from === ends[i]) &&
            ends.at(-1) === to &&
            sizes.every((size, i) => size >= (sizes[i + 1] ?? 1)) &&
            sizes[0]! - sizes.at(-1)! <= 1
          )
        })
        expect(wrong).toEqual([])
      }),
      RUNS,
    )
  })

  it('is at most ceil(log_B n) deep and never covers a range twice', () => {
    fc.assert(
      fc.property(shape.leaves, shape.branching, (leaves, branching) => {
        let level = [buildTree(leaves, branching)]
        const keys = new Set(level.map(nodeKey))
        let nodes = 1
        let depth = 0
        let reach = 1
        while (reach < leaves) {
          reach *= branching
          depth++
        }
        for (let d = 0; ; d++) {
          level = level.flatMap((node) => node.children)
          if (level.length === 0) break
          expect(d + 1).toBeLessThanOrEqual(depth)
          nodes += level.length
          for (const node of level) keys.add(nodeKey(node))
        }
        expect(keys.size).toBe(nodes)
      }),
      RUNS,
    )
  })

  it('gives the left child of a binary node ceil(n / 2) leaves, and branches in two unless told', () => {
    expect(preOrder(buildTree(5)).map(range)).toEqual([
      [0, 5],
      [0, 3],
      [0, 2],
      [0, 1],
      [1, 2],
      [2, 3],
      [3, 5],
      [3, 4],
      [4, 5],
    ])
    expect(buildTree(11, 4).children.map(range)).toEqual([
      [0, 3],
      [3, 6],
      [6, 9],
      [9, 11],
    ])
    expect(buildTree(3, 5).children.length).toBe(3)
  })

  it('refuses counts and branching factors that make no tree', () => {
    for (const leaves of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY])
      expect(() => buildTree(leaves)).toThrow(RangeError)
    for (const branching of [1, 0, -2, 2.5, Number.NaN]) expect(() => buildTree(3, branching)).toThrow(RangeError)
  })

  it('lists a tree of a hundred thousand leaves', () => {
    expect(preOrder(buildTree(100_000)).length).toBe(199_999)
  })

  const cases = publishedCases()
  it.skipIf(cases.length === 0)('builds the published trees (skipped without the shared data)', () => {
    expect(cases.length).toBe(5)
    for (const { root, leaves } of cases) expect(buildTree(leaves)).toEqual(root)
  })
})

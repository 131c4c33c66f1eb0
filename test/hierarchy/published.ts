import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import type { TreeNode } from '../../src/hierarchy/index.ts'
import { sharedDir } from '../support/shared.ts'

interface PublishedNode {
  range: [number, number]
  score: number
  children?: PublishedNode[]
}

/** An item of the CANOPY project page: its tree, scores and outcome. */
export interface PublishedCase {
  title: string
  leaves: number
  gold: number[]
  /** Leaves that the reader was sent. */
  sent: number[]
  root: TreeNode
  score: (node: TreeNode) => number
}

/** The published cases, or none where the shared data are absent. */
export function publishedCases(): PublishedCase[] {
  const shared = sharedDir()
  if (shared === undefined) return []
  const { items } = JSON.parse(readFileSync(resolve(shared, 'data/canopy_cases/cases.json'), 'utf8')) as {
    items: { title: string; n_units: number; gold: string[]; sent: string[]; tree: PublishedNode }[]
  }
  const leafNumbers = (names: string[]): number[] => names.map((name) => Number(name.slice(1)))
  return items.map(({ title, n_units, gold, sent, tree }) => {
    const scores = new Map<string, number>()
    const convert = ({ range: [from, to], score, children = [] }: PublishedNode): TreeNode => {
      scores.set(`${from}-${to}`, score)
      return { from, to, children: children.map(convert) }
    }
    return {
      title,
      leaves: n_units,
      gold: leafNumbers(gold),
      sent: leafNumbers(sent),
      root: convert(tree),
      score: ({ from, to }) => scores.get(`${from}-${to}`)!,
    }
  })
}

import pc from 'picocolors'
import type { RefinedItem } from '../encoder/index.ts'
import type { TreeNode } from '../hierarchy/index.ts'
import { leafMargins } from '../refine/index.ts'

/**
 * A refined item for a terminal: its tree with scores and what became of each visited node, then its leaves, a line each, kept
 * ones marked `+`, those that are kept because of the margin alone `~`, and dropped ones `-`.
 *
 * @param leafTexts [leaves]
 * @param heading a line in front of the leaves: a table's column header
 */
export function refinedText(item: RefinedItem, leafTexts: readonly string[], heading?: string): string {
  const keptLeaf = (leaf: number): boolean => item.kept.some(({ from, to }) => from <= leaf && leaf < to)
  const byRule = keptByRule(item)
  const lines: string[] = []
  if (item.title !== undefined) lines.push(pc.bold(printable(item.title)))
  lines.push(...treeLines(item, byRule))
  if (heading !== undefined) lines.push(`  ${printable(heading)}`)
  for (const [leaf, text] of leafTexts.entries()) {
    if (!keptLeaf(leaf)) lines.push(pc.dim(`- ${printable(text)}`))
    else lines.push(byRule[leaf] ? pc.green(`+ ${printable(text)}`) : pc.yellow(`~ ${printable(text)}`))
  }
  return lines.join('\n')
}

/** One line without control characters, which a terminal would obey. */
function printable(text: string): string {
  return text
    .replace(/\s+/g, ' ')
    .replace(/\p{Cc}/gu, '\uFFFD')
    .trim()
}

/** [leaves]: whether refinement keeps the leaf without a margin, too. */
function keptByRule({ nodes }: RefinedItem): boolean[] {
  const scores = new Map<TreeNode, number>()
  const open: TreeNode[] = []
  let root: TreeNode | undefined
  for (const { from, to, score } of nodes) {
    while (open.length > 0 && from >= (open.at(-1) as TreeNode).to) open.pop()
    const node: TreeNode = { from, to, children: [] }
    scores.set(node, score)
    open.at(-1)?.children.push(node)
    open.push(node)
    root ??= node
  }
  if (root === undefined) return []
  return Array.from(
    leafMargins(root, (node) => scores.get(node) as number),
    (margin) => margin === 0,
  )
}

/**
 * The nodes that refinement looked at: those kept or replaced, and the children it dropped; those that were cut with a mark, and
 * those named that only the margin let in.
 */
function treeLines({ nodes, kept }: RefinedItem, byRule: readonly boolean[]): string[] {
  const isKept = new Set(kept.map(({ from, to }) => `${from}-${to}`))
  const keptInside = (from: number, to: number): boolean => kept.some((range) => from <= range.from && range.to <= to)
  const lines: string[] = []
  let skipUntil = -1
  const open: number[] = []
  for (const { from, to, score, truncated } of nodes) {
    while (open.length > 0 && from >= (open.at(-1) as number)) open.pop()
    const depth = open.length
    open.push(to)
    if (from < skipUntil) continue
    const outcome = isKept.has(`${from}-${to}`) ? 'kept' : keptInside(from, to) ? 'replaced' : 'dropped'
    // Nothing below a node that only the margin let in is kept by the rule.
    const byMargin = outcome !== 'dropped' && !byRule.slice(from, to).includes(true)
    const paint =
      outcome === 'dropped' ? pc.dim : outcome === 'replaced' ? (s: string) => s : byMargin ? pc.yellow : pc.green
    lines.push(
      paint(
        `${'  '.repeat(depth)}[${from}, ${to})  ${score.toFixed(4)}  ${outcome}${byMargin ? ' (margin)' : ''}${truncated ? '  ✂' : ''}`,
      ),
    )
    if (outcome !== 'replaced') skipUntil = to
  }
  return lines
}

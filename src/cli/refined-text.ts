import pc from 'picocolors'
import type { RefinedItem } from '../encoder/index.ts'

/**
 * A refined item for a terminal: its tree with scores and what became of each visited node, then its leaves, a line each, kept
 * ones marked `+` and dropped ones `-`.
 *
 * @param leafTexts [leaves]
 * @param heading a line in front of the leaves: a table's column header
 */
export function refinedText(item: RefinedItem, leafTexts: readonly string[], heading?: string): string {
  const keptLeaf = (leaf: number): boolean => item.kept.some(({ from, to }) => from <= leaf && leaf < to)
  const lines: string[] = []
  if (item.title !== undefined) lines.push(pc.bold(printable(item.title)))
  lines.push(...treeLines(item))
  if (heading !== undefined) lines.push(`  ${printable(heading)}`)
  for (const [leaf, text] of leafTexts.entries()) {
    lines.push(keptLeaf(leaf) ? pc.green(`+ ${printable(text)}`) : pc.dim(`- ${printable(text)}`))
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

/** The nodes that refinement looked at: those kept or replaced, and the children it dropped; those that were cut with a mark. */
function treeLines({ nodes, kept }: RefinedItem): string[] {
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
    const paint = outcome === 'kept' ? pc.green : outcome === 'dropped' ? pc.dim : (s: string) => s
    lines.push(paint(`${'  '.repeat(depth)}[${from}, ${to})  ${score.toFixed(4)}  ${outcome}${truncated ? '  ✂' : ''}`))
    if (outcome !== 'replaced') skipUntil = to
  }
  return lines
}

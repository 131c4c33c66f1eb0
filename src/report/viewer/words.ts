import type { TreeNode } from '../../hierarchy/index.ts'
import type { Step } from '../replay.ts'
import { leafCount, type ViewerItem } from '../viewer-data.ts'

/** A score as people read it. */
export function scoreText(score: number, digits = 3): string {
  return score.toFixed(digits).replace('-', '−')
}

/** A difference of scores. */
export function deltaText(delta: number): string {
  return `${delta > 0 ? '+' : ''}${scoreText(delta)}`
}

/** `1:05`, `1:02:03`; a fraction where there is one. */
export function clock(milliseconds: number): string {
  const seconds = Math.floor(milliseconds / 1000)
  const two = (n: number): string => String(n).padStart(2, '0')
  const hours = Math.floor(seconds / 3600)
  const minutes = Math.floor((seconds % 3600) / 60)
  const rest =
    milliseconds % 1000 === 0
      ? ''
      : `.${String(milliseconds % 1000)
          .padStart(3, '0')
          .replace(/0+$/, '')}`
  return `${hours > 0 ? `${hours}:${two(minutes)}` : minutes}:${two(seconds % 60)}${rest}`
}

const UNITS = {
  text: ['sentence', 'sentences'],
  table: ['row', 'rows'],
  video: ['segment', 'segments'],
  image: ['image', 'images'],
} as const

/** `6 sentences`. */
export function countText(item: ViewerItem, count: number): string {
  return `${count} ${UNITS[item.modality][count === 1 ? 0 : 1]}`
}

/** What a node covers, leaves counted from 1: `sentence 2`, `rows 3–5`, `0:30–1:00`. */
export function nodeText(item: ViewerItem, { from, to }: TreeNode): string {
  if (item.modality === 'image') return 'the image'
  if (item.modality === 'video') return `${clock(item.segments[from]![0])}–${clock(item.segments[to - 1]![1])}`
  const [one, many] = UNITS[item.modality]
  return to - from === 1 ? `${one} ${to}` : `${many} ${from + 1}–${to}`
}

/** Number of leaves, and of what. */
export const sizeText = (item: ViewerItem): string => countText(item, leafCount(item))

/** What happens in a step, as a sentence or two. Step 0 is the moment before the first. */
export function stepText(
  item: ViewerItem,
  steps: readonly Step[],
  position: number,
  root: TreeNode,
  score: (node: TreeNode) => number,
): string {
  if (position === 0)
    return `Start: refinement begins at the root, ${nodeText(item, root)}, score ${scoreText(score(root))}.`
  const { node, entered, dropped, kept } = steps[position - 1]!
  const threshold = score(node)
  // Two scores that look alike get more digits.
  const digits = node.children.some(
    (child) => score(child) !== threshold && scoreText(score(child)) === scoreText(threshold),
  )
    ? 6
    : 3
  const name = (child: TreeNode): string => `${nodeText(item, child)} (${scoreText(score(child), digits)})`
  const at = `${capital(nodeText(item, node))}, score ${scoreText(threshold, digits)}`
  if (node.children.length === 0) return `${at}: a leaf, kept.`
  if (kept) return `${at}: no child scores as high (${node.children.map(name).join(', ')}), so it is kept whole.`
  const lost = dropped.length === 0 ? '' : ` Dropped: ${dropped.map(name).join(', ')}.`
  return `${at}. Entered: ${entered.map(name).join(', ')}.${lost}`
}

export const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1)

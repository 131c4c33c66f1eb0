import { buildTree, frameTimes, preOrder, type TreeNode } from '../../hierarchy/index.ts'
import { replay, statesAfter } from '../replay.ts'
import { leafCount, type ViewerEncoder, type ViewerInstance, type ViewerItem } from '../viewer-data.ts'
import { itemTable, leafContent, leafWords } from './content.ts'
import { button, h } from './dom.ts'
import { askedChildren } from './judge.ts'
import { type TreeView, treeView } from './tree.ts'
import { capital, clock, countText, deltaText, nodeText, scoreText, sizeText, stepText } from './words.ts'

const PLAY_MS = 1200

/** An item of a question with everything to follow its refinement. */
export interface ItemView {
  element: HTMLElement
  /** Goes to a step; 0 is before the first. */
  goTo(position: number): void
  next(): void
  previous(): void
  togglePlay(): void
  /** Ends what goes on by itself. */
  dispose(): void
}

export function itemView(item: ViewerItem, instance: ViewerInstance, encoder: ViewerEncoder): ItemView {
  const root = buildTree(leafCount(item), instance.branching)
  const nodes = preOrder(root)
  const place = new Map(nodes.map((node, i) => [node, i]))
  const scores = instance.scores[encoder]!
  const wrong = new Set(instance.wrong[encoder])
  const score = (node: TreeNode): number => scores[place.get(node)!]!
  const steps = replay(nodes, score)
  let position = steps.length
  let timer: ReturnType<typeof setInterval> | undefined

  const status = h('p', { class: 'step', role: 'status', 'aria-live': 'polite' })
  const counter = h('span', { class: 'counter' })
  const detail = h('p', { class: 'detail' })
  const control = (text: string, name: string, title: string, act: () => void): HTMLButtonElement =>
    button(text, { title, 'data-focus': name }, act)
  const start = control('Start', 'start', 'To the start (0)', () => goTo(0))
  const back = control('Back', 'back', 'Previous step (p)', () => previous())
  const play = control('Play', 'play', 'Play or pause (s)', () => togglePlay())
  const forward = control('Next', 'next', 'Next step (n)', () => next())
  const end = control('Outcome', 'end', 'To the outcome (1)', () => goTo(steps.length))

  const tree = treeView({
    item,
    instance,
    nodes,
    scores,
    wrong: [...wrong],
    ...(item.modality !== 'table' && { leafContent: (leaf: number) => leafContent(item, leaf) }),
    leafWords: (leaf) => leafWords(item, leaf),
    onFocus: (node) => {
      detail.textContent = detailText(item, instance, nodes, scores, node)
    },
    onOpen: (node) => {
      const step = steps.findIndex((s) => s.node === nodes[node])
      if (step >= 0) goTo(step + 1)
    },
  })
  const stage = item.modality === 'table' ? tableStage(item, instance, tree) : { element: tree.element, show: () => {} }

  const stop = (): void => {
    clearInterval(timer)
    timer = undefined
    play.textContent = 'Play'
  }
  const show = (): void => {
    const states = statesAfter(nodes, steps, position)
    tree.show(states, position === 0 ? undefined : place.get(steps[position - 1]!.node))
    stage.show(nodes.flatMap((node, i) => (node.children.length === 0 ? [states[i]!] : [])))
    counter.textContent = `step ${position} of ${steps.length}`
    status.textContent = `${stepText(item, steps, position, root, score)}${position === 0 ? '' : verdictText(steps[position - 1]!.node)}`
    for (const one of [start, back]) one.setAttribute('aria-disabled', String(position === 0))
    end.setAttribute('aria-disabled', String(position === steps.length))
  }
  const verdictText = (node: TreeNode): string => {
    const i = place.get(node)!
    if (!instance.decisions.includes(i)) return ''
    if (!wrong.has(i)) return ' Right: gold asks for exactly this.'
    const asked = askedChildren(node, instance)
    return asked.length === 0
      ? ' Wrong: all of it is gold, to be kept whole.'
      : ` Wrong: gold asks to enter ${asked.map((child) => nodeText(item, child)).join(' and ')}.`
  }
  const move = (to: number): void => {
    position = Math.max(0, Math.min(steps.length, to))
    show()
  }
  const goTo = (to: number): void => {
    stop()
    move(to)
  }
  const next = (): void => goTo(position === steps.length ? 0 : position + 1)
  const previous = (): void => goTo(position - 1)
  const togglePlay = (): void => {
    if (timer !== undefined) {
      stop()
      return
    }
    if (position === steps.length) move(0)
    play.textContent = 'Pause'
    timer = setInterval(() => {
      if (position >= steps.length - 1) stop()
      move(position + 1)
    }, PLAY_MS)
  }

  const element = h(
    'div',
    { class: 'item' },
    h(
      'p',
      { class: 'item-title' },
      h('strong', {}, item.title ?? item.id),
      h('span', {}, `${item.modality}, ${sizeText(item)}`),
    ),
    h(
      'p',
      { class: 'outcome' },
      outcomeText(
        item,
        instance,
        steps.filter((s) => s.kept).map((s) => s.node),
      ),
    ),
    h(
      'div',
      { class: 'player', role: 'toolbar', 'aria-label': 'Refinement, step by step' },
      start,
      back,
      play,
      forward,
      end,
      counter,
    ),
    status,
    h('div', { class: `stage ${item.modality}` }, stage.element),
    detail,
  )
  show()
  return { element, goTo, next, previous, togglePlay, dispose: stop }
}

/** What refinement keeps of the item in the end. */
function outcomeText(item: ViewerItem, instance: ViewerInstance, kept: readonly TreeNode[]): string {
  const leaves = kept.reduce((sum, { from, to }) => sum + to - from, 0)
  const isKept = (leaf: number): boolean => kept.some(({ from, to }) => leaf >= from && leaf < to)
  const all = instance.leafTokens.reduce((sum, tokens) => sum + tokens, instance.headerTokens)
  const tokens = instance.leafTokens.reduce((sum, t, leaf) => sum + (isKept(leaf) ? t : 0), instance.headerTokens)
  const found = instance.gold.filter(isKept).length
  const goldText =
    instance.role === 'other'
      ? 'retrieved, no gold item'
      : instance.gold.length === 0
        ? 'no gold leaf'
        : `${found} of ${instance.gold.length} gold`
  return `Keeps ${leaves} of ${sizeText(item)}, ${tokens} of ${all} tokens; ${goldText}.`
}

/** Everything about one node. */
function detailText(
  item: ViewerItem,
  instance: ViewerInstance,
  nodes: readonly TreeNode[],
  scores: readonly number[],
  i: number,
): string {
  const node = nodes[i]!
  const parent = nodes.findIndex(({ children }) => children.includes(node))
  const tokens = instance.leafTokens.slice(node.from, node.to).reduce((sum, t) => sum + t, 0)
  const frames =
    item.modality === 'video' ? frameTimes(item.segments[node.from]![0], item.segments[node.to - 1]![1]) : undefined
  return [
    `${capital(nodeText(item, node))}: score ${scoreText(scores[i]!, 4)}`,
    parent >= 0 &&
      `${deltaText(scores[i]! - scores[parent]!)} to its parent, ${deltaText(scores[i]! - scores[0]!)} to the root`,
    node.to - node.from > 1 && countText(item, node.to - node.from),
    item.modality !== 'image' && item.modality !== 'video' && `${tokens} tokens`,
    frames && `${frames.length} frames at ${frames.map(clock).join(' ')}`,
    instance.truncated?.includes(i) && 'cut by the encoder, which saw only its beginning',
  ]
    .filter(Boolean)
    .join(' · ')
}

/** A tree beside a real table, each leaf as tall as its row. */
function tableStage(
  item: Extract<ViewerItem, { modality: 'table' }>,
  instance: ViewerInstance,
  { element: tree }: TreeView,
): { element: HTMLElement; show(states: readonly string[]): void } {
  const table = itemTable(item)
  const rows = [...table.tBodies[0]!.rows]
  for (const [leaf, row] of rows.entries()) row.dataset.gold = instance.gold.includes(leaf) ? 'full' : 'none'
  const align = (): void => {
    const top = rows[0]!.getBoundingClientRect().top - table.getBoundingClientRect().top
    tree.style.marginTop = `${top}px`
    tree.style.gridTemplateRows = rows.map((row) => `${row.getBoundingClientRect().height}px`).join(' ')
  }
  new ResizeObserver(align).observe(table)
  const box = h(
    'div',
    { class: 'beside', tabindex: '0', role: 'group', 'aria-label': 'The table beside its hierarchy' },
    tree,
    table,
  )
  // What was visited last stays in sight, below the header.
  const follow = (): void => {
    const current = tree.querySelector('.current')?.getBoundingClientRect()
    if (current === undefined) return
    const { top, bottom } = box.getBoundingClientRect()
    const header = table.tHead!.getBoundingClientRect().height
    if (current.top < top + header || current.top > bottom - 2 * header) box.scrollTop += current.top - top - header
  }
  return {
    element: box,
    show(states) {
      for (const [leaf, row] of rows.entries()) row.dataset.state = states[leaf]!
      requestAnimationFrame(follow)
    },
  }
}

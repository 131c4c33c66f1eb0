import type { TreeNode } from '../../hierarchy/index.ts'
import type { NodeState } from '../replay.ts'
import type { ViewerInstance, ViewerItem } from '../viewer-data.ts'
import { h } from './dom.ts'
import { capital, deltaText, nodeText, scoreText } from './words.ts'

export interface TreeView {
  element: HTMLElement
  /** Shows the state of every node [nodes] and which one was visited last. */
  show(states: readonly NodeState[], current: number | undefined): void
  focus(node: number): void
}

export interface TreeOptions {
  item: ViewerItem
  instance: ViewerInstance
  nodes: readonly TreeNode[]
  scores: readonly number[]
  wrong: readonly number[]
  /** What a leaf shows beside its box; absent where a table beside the tree shows it. */
  leafContent?: (leaf: number) => Node
  /** The words that `leafContent` shows. */
  leafWords: (leaf: number) => string
  onFocus(node: number): void
  onOpen(node: number): void
}

const STATE_WORDS: Record<NodeState, string> = {
  open: 'not reached',
  waiting: 'entered, to be visited',
  entered: 'entered',
  kept: 'kept',
  within: 'kept with the node above',
  dropped: 'dropped',
}

/**
 * The hierarchy of an item: a column for every level, each node as tall as its leaves, leaves beside their content. A tree
 * with the keys of one: arrows, Home, End; Enter goes to the step that decides the node.
 */
export function treeView(options: TreeOptions): TreeView {
  const { item, instance, nodes, scores, wrong, leafContent, leafWords, onFocus, onOpen } = options
  const place = new Map(nodes.map((node, i) => [node, i]))
  const parents = new Map<number, number>()
  const levels: number[] = [0]
  for (const [i, node] of nodes.entries()) {
    for (const child of node.children) {
      const c = place.get(child)!
      parents.set(c, i)
      levels[c] = levels[i]! + 1
    }
  }
  const depth = Math.max(...levels)
  const cut = new Set(instance.truncated)
  const decisions = new Set(instance.decisions)
  const missed = new Set(wrong)

  const element = h('div', {
    role: 'tree',
    'aria-label': 'Hierarchy of the item',
    class: depth > 6 ? 'tree deep' : 'tree',
  })
  element.style.setProperty('--levels', String(depth + 1))
  const labels: string[] = []
  const boxes = nodes.map((node, i) => {
    const { from, to, children } = node
    const parent = parents.get(i)
    const inside = instance.gold.filter((leaf) => leaf >= from && leaf < to).length
    const goldKind = inside === 0 ? 'none' : inside === to - from ? 'full' : 'part'
    const verdict = decisions.has(i) ? (missed.has(i) ? 'wrong' : 'right') : undefined
    const delta = parent === undefined ? undefined : scores[i]! - scores[parent]!
    const siblings = parent === undefined ? [node] : nodes[parent]!.children
    labels[i] = [
      capital(nodeText(item, node)),
      `score ${scoreText(scores[i]!)}`,
      delta === undefined ? 'the root' : delta >= 0 ? 'at least its parent’s' : 'below its parent’s',
      goldKind === 'full' ? 'gold' : goldKind === 'part' ? 'gold in part' : undefined,
      verdict && `decision ${verdict}`,
      cut.has(i) ? 'cut by the encoder' : undefined,
    ]
      .filter(Boolean)
      .join(', ')
    const box = h(
      'span',
      { class: 'box' },
      h('span', { class: 'score' }, scoreText(scores[i]!)),
      delta !== undefined && h('span', { class: 'delta' }, deltaText(delta)),
      h(
        'span',
        { class: 'marks' },
        goldKind !== 'none' && h('span', { class: 'gold-mark' }, goldKind === 'full' ? '◆' : '◇'),
        verdict && h('span', { class: `verdict ${verdict}` }, verdict === 'right' ? '✓' : '✗'),
        cut.has(i) && h('span', { class: 'cut', title: 'The encoder saw only the beginning' }, '✂'),
      ),
    )
    const isLeaf = children.length === 0
    const treeItem = h(
      'div',
      {
        role: 'treeitem',
        class: isLeaf ? 'node leaf' : 'node',
        tabindex: i === 0 ? 0 : -1,
        'data-focus': `node-${i}`,
        'data-gold': goldKind,
        'aria-level': levels[i]! + 1,
        'aria-setsize': siblings.length,
        'aria-posinset': siblings.indexOf(node) + 1,
        'aria-expanded': isLeaf ? undefined : 'true',
      },
      box,
      isLeaf && leafContent !== undefined && h('span', { class: 'content' }, leafContent(from)),
    )
    treeItem.style.setProperty('--level', String(levels[i]))
    treeItem.style.gridRow = `${from + 1} / ${to + 1}`
    treeItem.style.gridColumn = isLeaf ? `${levels[i]! + 1} / -1` : String(levels[i]! + 1)
    if (isLeaf) box.style.gridColumn = `1 / ${depth + 2 - levels[i]!}`
    treeItem.addEventListener('focus', () => setCurrent(i))
    treeItem.addEventListener('click', () => treeItem.focus())
    treeItem.addEventListener('dblclick', () => onOpen(i))
    return treeItem
  })
  element.append(...boxes)

  let focused = 0
  const setCurrent = (i: number): void => {
    boxes[focused]!.tabIndex = -1
    boxes[i]!.tabIndex = 0
    focused = i
    onFocus(i)
  }
  element.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const to: Record<string, number | undefined> = {
      ArrowDown: Math.min(focused + 1, nodes.length - 1),
      ArrowUp: Math.max(focused - 1, 0),
      ArrowLeft: parents.get(focused),
      ArrowRight: nodes[focused]!.children.length > 0 ? focused + 1 : undefined,
      Home: 0,
      End: nodes.length - 1,
    }
    if (event.key === 'Enter' || event.key === ' ') onOpen(focused)
    else if (!Object.hasOwn(to, event.key)) return
    event.preventDefault()
    const target = to[event.key]
    if (target !== undefined) boxes[target]!.focus()
  })

  return {
    element,
    focus: (node) => boxes[node]?.focus(),
    show(states, current) {
      for (const [i, box] of boxes.entries()) {
        const state = states[i]!
        box.classList.toggle('current', i === current)
        // A table of thousands of rows has as many nodes that stay as they are.
        if (box.dataset.state === state) continue
        box.dataset.state = state
        const { from, children } = nodes[i]!
        const words = children.length === 0 ? `. ${leafWords(from)}` : ''
        box.setAttribute('aria-label', `${labels[i]}, ${STATE_WORDS[state]}${words}`)
      }
    },
  }
}

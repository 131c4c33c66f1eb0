// The evidence viewer, run in the page of a report: data come from the page's JSON, texts go in as text nodes only.
import './page.css'
import './tables.css'
import './figures.css'
import './viewer.css'
import './tree.css'
import './print.css'
import { VIEWER_ENCODERS, type ViewerData, type ViewerEncoder } from '../viewer-data.ts'
import { h } from './dom.ts'
import { type ItemView, itemView } from './item.ts'
import { questionList } from './list.ts'
import { questionView } from './question.ts'

const KEYS: [string, string][] = [
  ['n', 'next step; after the outcome, from the start'],
  ['p', 'previous step'],
  ['0', 'to the start'],
  ['1', 'to the outcome'],
  ['s', 'play, or pause'],
  ['f', 'switch between frozen and fine-tuned'],
  ['t', 'next item of the question'],
  ['j', 'next question'],
  ['k', 'previous question'],
  ['/', 'search'],
  ['↑ ↓ ← →', 'in the list: questions; in the tree: nodes'],
  ['Enter', 'in the tree: to the step that decides the node'],
]

function start(viewer: HTMLElement, data: ViewerData): void {
  const head = h('div', { class: 'question' })
  const panel = h('div', { class: 'panel-item', role: 'tabpanel', id: 'viewer-item' })
  const evidence = h('div', { class: 'evidence' }, head, panel)
  let question = 0
  let place = 0
  let encoder: ViewerEncoder = 'fine-tuned'
  let view: ItemView | undefined

  const render = (): void => {
    const asked = data.questions[question]!
    const encoders = VIEWER_ENCODERS.filter((one) => asked.items.every(({ scores }) => scores[one] !== undefined))
    const shown = encoders.includes(encoder) ? encoder : encoders[0]!
    const focused = focusedWithin(evidence)
    view?.dispose()
    head.replaceChildren(
      questionView(data, asked, {
        encoders,
        encoder: shown,
        place,
        onEncoder: (one) => {
          encoder = one
          render()
        },
        onItem: (i) => {
          place = i
          render()
        },
      }),
    )
    const instance = asked.items[place]
    panel.setAttribute('aria-labelledby', `item-tab-${place}`)
    if (instance === undefined) {
      view = undefined
      panel.replaceChildren(h('p', { class: 'note' }, 'None of its items was scored.'))
    } else {
      view = itemView(data.items[instance.item]!, instance, shown)
      panel.replaceChildren(view.element)
    }
    if (focused !== undefined) evidence.querySelector<HTMLElement>(`[data-focus="${CSS.escape(focused)}"]`)?.focus()
  }

  const list = questionList(data, (picked) => {
    question = picked
    place = 0
    render()
  })
  const keys = h(
    'details',
    { class: 'keys' },
    h('summary', {}, 'Keys'),
    h('dl', {}, ...KEYS.flatMap(([key, what]) => [h('dt', {}, h('kbd', {}, key)), h('dd', {}, what)])),
  )
  viewer.replaceChildren(list.element, h('div', { class: 'side' }, evidence, legend(), keys))

  // Single letters act only while the focus is inside the viewer, and never while somebody types.
  const actions: Record<string, () => void> = {
    n: () => view?.next(),
    p: () => view?.previous(),
    0: () => view?.goTo(0),
    1: () => view?.goTo(Number.POSITIVE_INFINITY),
    s: () => view?.togglePlay(),
    f: () => {
      encoder = encoder === 'frozen' ? 'fine-tuned' : 'frozen'
      render()
    },
    t: () => {
      place = (place + 1) % Math.max(1, data.questions[question]!.items.length)
      render()
    },
    j: () => list.move(1),
    k: () => list.move(-1),
    '/': () => list.focusSearch(),
  }
  viewer.addEventListener('keydown', (event) => {
    const typing = (event.target as HTMLElement).closest('input, select, textarea') !== null
    const action = Object.hasOwn(actions, event.key) ? actions[event.key] : undefined
    if (typing || action === undefined || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    action()
  })
}

function focusedWithin(element: HTMLElement): string | undefined {
  const { activeElement } = document
  return activeElement instanceof HTMLElement && element.contains(activeElement)
    ? activeElement.dataset.focus
    : undefined
}

function legend(): HTMLElement {
  const entry = (className: string, sample: string, text: string): HTMLElement =>
    h('li', {}, h('span', { class: `sample ${className}` }, sample), text)
  return h(
    'ul',
    { class: 'tree-legend', 'aria-label': 'Marks' },
    entry('kept', '', 'kept'),
    entry('within', '', 'kept with the node above'),
    entry('entered', '', 'entered, replaced by its children'),
    entry('dropped', '', 'dropped'),
    entry('gold-mark', '◆', 'all gold'),
    entry('gold-mark', '◇', 'gold in part'),
    entry('verdict right', '✓', 'decision as gold asks'),
    entry('verdict wrong', '✗', 'decision wrong'),
    entry('cut', '✂', 'cut by the encoder'),
  )
}

const viewer = document.getElementById('viewer')
const json = document.getElementById('canopy-data')
if (viewer !== null && json !== null) start(viewer, JSON.parse(json.textContent) as ViewerData)

import type { ViewerData, ViewerEncoder, ViewerQuestion } from '../viewer-data.ts'
import { button, h } from './dom.ts'

export interface QuestionOptions {
  encoders: readonly ViewerEncoder[]
  encoder: ViewerEncoder
  /** The item that is shown. */
  place: number
  onEncoder(encoder: ViewerEncoder): void
  onItem(place: number): void
}

/** A question with its answers, the choice of encoder and its items. */
export function questionView(data: ViewerData, question: ViewerQuestion, options: QuestionOptions): HTMLElement {
  const { encoders, encoder, place, onEncoder, onItem } = options
  const { name } = data.evaluations[question.evaluation]!
  const facts = [
    question.benchmark,
    question.id,
    data.evaluations.length > 1 && name,
    encoders.length === 1 && `${encoder} scores`,
  ]
    .filter(Boolean)
    .join(' · ')
  const choices = [...encoders]
    .reverse()
    .map((one) =>
      button(one, { 'aria-pressed': String(one === encoder), 'data-focus': `encoder-${one}` }, () => onEncoder(one)),
    )
  const tabs = question.items.map(({ item, role, decisions, wrong }, i) => {
    const { title, id } = data.items[item]!
    const isWrong = (wrong[encoder]?.length ?? 0) > 0
    const tab = button(
      '',
      {
        role: 'tab',
        id: `item-tab-${i}`,
        'aria-controls': 'viewer-item',
        'aria-selected': String(i === place),
        tabindex: i === place ? 0 : -1,
        'data-focus': `item-${i}`,
      },
      () => onItem(i),
    )
    tab.append(
      role === 'gold' ? h('span', { class: 'gold-mark', role: 'img', 'aria-label': 'gold item' }, '◆') : '',
      h('span', { class: 'tab-title' }, title ?? id),
      decisions.length > 0
        ? h(
            'span',
            {
              class: `verdict ${isWrong ? 'wrong' : 'right'}`,
              role: 'img',
              'aria-label': isWrong ? 'a decision is wrong' : 'all decisions right',
            },
            isWrong ? '✗' : '✓',
          )
        : '',
    )
    return tab
  })
  const list = h('div', { class: 'tabs', role: 'tablist', 'aria-label': 'Items of the question' }, ...tabs)
  list.addEventListener('keydown', (event) => {
    const by: Record<string, number> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }
    const step = by[event.key]
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    const to = (place + step + tabs.length) % tabs.length
    // The focus goes where the selection goes: what replaces this tab list takes it over by its name.
    tabs[to]!.focus()
    onItem(to)
  })
  return h(
    'div',
    {},
    h('p', { class: 'facts' }, facts),
    h('h3', {}, question.question),
    question.answers.length > 0 && h('p', { class: 'answers' }, h('span', {}, 'Answer '), question.answers.join(' · ')),
    h(
      'div',
      { class: 'choices' },
      encoders.length > 1 &&
        h('div', { class: 'encoders', role: 'group', 'aria-label': 'Scores of the encoder' }, ...choices),
      list,
    ),
  )
}

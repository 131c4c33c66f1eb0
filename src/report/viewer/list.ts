import { VIEWER_ENCODERS, type ViewerData, type ViewerEncoder, type ViewerQuestion } from '../viewer-data.ts'
import { h, reveal } from './dom.ts'
import { tally } from './judge.ts'

/** The questions, to be searched, filtered and picked from. */
export interface QuestionList {
  element: HTMLElement
  /** Goes that many questions further in what the filters leave. */
  move(by: number): void
  focusSearch(): void
}

const OUTCOMES: Record<string, [ViewerEncoder[], (right: (encoder: ViewerEncoder) => number) => boolean]> = {
  'fine-tuned: every decision right': [['fine-tuned'], (right) => right('fine-tuned') === 1],
  'fine-tuned: a decision wrong': [['fine-tuned'], (right) => right('fine-tuned') < 1],
  'frozen: every decision right': [['frozen'], (right) => right('frozen') === 1],
  'frozen: a decision wrong': [['frozen'], (right) => right('frozen') < 1],
  'fine-tuned better than frozen': [['fine-tuned', 'frozen'], (right) => right('fine-tuned') > right('frozen')],
  'frozen better than fine-tuned': [['fine-tuned', 'frozen'], (right) => right('frozen') > right('fine-tuned')],
}

export function questionList(data: ViewerData, onSelect: (question: number) => void): QuestionList {
  const { questions, items, evaluations } = data
  const encoders = VIEWER_ENCODERS.filter((encoder) =>
    questions.some((question) => question.items.some(({ scores }) => scores[encoder] !== undefined)),
  )
  // Made when somebody searches first.
  let texts: string[] | undefined
  const searched = (): string[] =>
    (texts ??= questions.map((question) =>
      [
        question.question,
        question.id,
        ...question.answers,
        ...question.items.flatMap(({ item }) => [items[item]!.title ?? '', items[item]!.id]),
      ]
        .join('\n')
        .toLowerCase(),
    ))

  const search = h('input', {
    type: 'search',
    id: 'viewer-search',
    placeholder: 'words, an answer, a title, an id',
    autocomplete: 'off',
  })
  const select = (id: string, all: string, options: readonly string[], values = options): HTMLSelectElement =>
    h(
      'select',
      { id },
      h('option', { value: '' }, all),
      ...options.map((text, i) => h('option', { value: values[i] }, text)),
    )
  const benchmarks = [...new Set(questions.map(({ benchmark }) => benchmark))]
  const benchmark = select('viewer-benchmark', 'all benchmarks', benchmarks)
  const outcome = select(
    'viewer-outcome',
    'all outcomes',
    Object.entries(OUTCOMES)
      .filter(([, [needs]]) => needs.every((encoder) => encoders.includes(encoder)))
      .map(([name]) => name),
  )
  const evaluation = select(
    'viewer-evaluation',
    'all evaluations',
    evaluations.map(({ name }) => name),
    evaluations.map((_, i) => String(i)),
  )
  const field = (label: string, control: HTMLElement): HTMLElement =>
    h('label', { for: control.id }, h('span', {}, label), control)

  const count = h('p', { class: 'count', role: 'status' })
  const options = questions.map((question, i) => optionOf(question, i, encoders))
  const box = h(
    'div',
    { class: 'options', role: 'listbox', tabindex: '0', 'aria-label': 'Questions', 'data-focus': 'list' },
    ...options,
  )
  let shown = questions.map((_, i) => i)
  let selected = -1

  const pick = (question: number, tell = true): void => {
    options[selected]?.setAttribute('aria-selected', 'false')
    selected = question
    const option = options[question]!
    option.setAttribute('aria-selected', 'true')
    box.setAttribute('aria-activedescendant', option.id)
    reveal(option, box)
    if (tell) onSelect(question)
  }
  const move = (by: number): void => {
    if (shown.length === 0) return
    const at = shown.indexOf(selected)
    const to = at < 0 ? 0 : Math.max(0, Math.min(shown.length - 1, at + by))
    if (shown[to] !== selected) pick(shown[to]!)
  }
  const filter = (): void => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean)
    const wanted = OUTCOMES[outcome.value]
    shown = questions.flatMap((question, i) => {
      if (benchmark.value !== '' && question.benchmark !== benchmark.value) return []
      if (evaluation.value !== '' && question.evaluation !== Number(evaluation.value)) return []
      if (words.length > 0 && !words.every((word) => searched()[i]!.includes(word))) return []
      if (wanted === undefined) return [i]
      const right = (encoder: ViewerEncoder): number => {
        const counts = tally(question, encoder)
        return counts === undefined || counts.of === 0 ? Number.NaN : counts.right / counts.of
      }
      return wanted[1](right) ? [i] : []
    })
    const visible = new Set(shown)
    for (const [i, option] of options.entries()) option.hidden = !visible.has(i)
    count.textContent =
      shown.length === questions.length
        ? `${shown.length} questions`
        : `${shown.length} of ${questions.length} questions`
    if (!visible.has(selected) && shown.length > 0) pick(shown[0]!)
  }
  search.addEventListener('input', filter)
  for (const control of [benchmark, outcome, evaluation]) control.addEventListener('change', filter)
  box.addEventListener('click', (event) => {
    const option = (event.target as HTMLElement).closest<HTMLElement>('[role=option]')
    if (option !== null) pick(options.indexOf(option as HTMLDivElement))
  })
  box.addEventListener('keydown', (event) => {
    const by: Record<string, number> = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: 10,
      PageUp: -10,
      Home: -questions.length,
      End: questions.length,
    }
    const steps = by[event.key]
    if (steps === undefined || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    move(steps)
  })
  const element = h(
    'div',
    { class: 'list' },
    h(
      'div',
      { class: 'filters', role: 'search', 'aria-label': 'Questions' },
      field('Search', search),
      benchmarks.length > 1 && field('Benchmark', benchmark),
      field('Outcome', outcome),
      evaluations.length > 1 && field('Evaluation', evaluation),
    ),
    count,
    box,
  )
  filter()
  return { element, move, focusSearch: () => search.focus() }
}

function optionOf(question: ViewerQuestion, i: number, encoders: readonly ViewerEncoder[]): HTMLDivElement {
  const results = [...encoders].reverse().flatMap((encoder) => {
    const counts = tally(question, encoder)
    if (counts === undefined || counts.of === 0) return []
    return [
      h(
        'span',
        { class: counts.right === counts.of ? 'tally all' : 'tally' },
        `${encoder} ${counts.right}/${counts.of}`,
      ),
    ]
  })
  return h(
    'div',
    { role: 'option', id: `question-${i}`, 'aria-selected': 'false' },
    h('span', { class: 'asked' }, question.question),
    h(
      'span',
      { class: 'facts' },
      h('span', {}, question.benchmark),
      ...(results.length > 0 ? results : [h('span', {}, 'nothing to decide')]),
    ),
  )
}

// The form and the drawing; what is computed is computed in worker.js. User text goes into the page as text nodes only.
const $ = (id) => document.getElementById(id)

const EXAMPLES = [
  {
    name: 'a ferry',
    title: 'The ferry to Sorn',
    question: 'What did the islanders eat during the storm?',
    text: `The ferry to Sorn leaves at six. It carries the post, two cows at most, and whoever has a ticket. The captain, Ida Brandt, bought it with the money from her first novel. Before that she had taught school on the mainland for eleven years. The engine was built in Gdynia and rebuilt twice since. In winter a sledge crosses the ice instead. Passengers then pay by weight, and children ride free. The crossing takes forty minutes in calm weather. In 1987 a storm kept the ferry away for nineteen days. The islanders lived on herring and on what the priest had stored for the wedding of his niece.`,
  },
  {
    name: 'a clock tower',
    title: 'The clock tower of Brennick',
    question: 'What were the winders paid with?',
    text: `The clock tower of Brennick was finished in 1704. Its bell weighs two tons and is called Old Martha. For a century the clock was wound by hand every morning. The winder was always a woman of the Haas family, who were paid in firewood. Since 1911 an electric motor has done the work. Lightning struck the spire in 1836 and melted the weathercock. The new one, a gilded heron, was a gift of the fishermen's guild. From the gallery one sees the river, the salt works and, on clear days, the sea. Visitors may climb the 212 steps on Sundays. A plaque at the door remembers the mason, Piet Olofsen, who fell from the scaffold and lived.`,
  },
]

let worker
let ready = false
let waiting = 0
/** The passage that is computed; its field may say something else by the time the scores are there. */
let passage = ''
/** Whether the reader is taken to the result: not where the page computed unasked, since they may be typing by then. */
let asked = false

for (const example of EXAMPLES) {
  const button = element('button', { type: 'button' }, example.name)
  button.addEventListener('click', () => {
    for (const name of ['title', 'text', 'question']) $(name).value = example[name]
    if (ready) $('form').requestSubmit()
  })
  document.querySelector('.examples').append(button)
}
for (const name of ['title', 'text', 'question']) $(name).value ||= EXAMPLES[0][name]

$('form').addEventListener('submit', (event) => {
  event.preventDefault()
  refine(true)
})

function refine(byReader) {
  const [title, text, question] = ['title', 'text', 'question'].map((name) => $(name).value)
  const missing = text.trim() === '' ? 'text' : question.trim() === '' ? 'question' : undefined
  say('form-error', missing && (missing === 'text' ? 'Paste a passage first.' : 'Type a question first.'))
  for (const name of ['text', 'question']) $(name).setAttribute('aria-invalid', String(name === missing))
  if (missing !== undefined) {
    $(missing).focus()
    return
  }
  if (!ready) return
  waiting++
  passage = text
  asked = byReader
  busy(true)
  worker.postMessage({ kind: 'refine', id: waiting, question, item: { ...(title && { title }), text } })
}
$('device').addEventListener('change', open)

const gpu = await navigator.gpu?.requestAdapter().catch(() => null)
if (gpu) {
  $('device').append(element('option', { value: 'webgpu' }, 'GPU (WebGPU)'))
  $('device').value = 'webgpu'
}
const wanted = new URLSearchParams(location.search).get('device')
if (wanted !== null && [...$('device').options].some(({ value }) => value === wanted)) $('device').value = wanted
open()

/** Starts the worker with the device that is chosen; an earlier one is ended with its memory. */
function open() {
  worker?.terminate()
  ready = false
  busy(false)
  $('refine').disabled = true
  say('failure', undefined)
  $('load').hidden = false
  const loaded = new Map()
  const device = $('device').value
  worker = new Worker('worker.js', { type: 'module' })
  worker.addEventListener('error', ({ message }) => fail(message || 'The page’s program cannot be loaded.'))
  worker.addEventListener('message', ({ data }) => {
    if (data.kind === 'progress') {
      loaded.set(data.file, [data.loaded, data.total])
      const [done, total] = [...loaded.values()].reduce((sum, [a, b]) => [sum[0] + a, sum[1] + b], [0, 0])
      $('progress').value = total > 0 ? done / total : 0
      $('load-text').textContent = `Loading the encoder… ${(done / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`
    } else if (data.kind === 'ready') {
      ready = true
      $('load').hidden = true
      $('refine').disabled = false
      describe(data.settings, data.threads, device)
      if ($('text').value.trim() !== '' && $('question').value.trim() !== '') refine(false)
    } else if (data.kind === 'failed') fail(data.message)
    else if (data.id === waiting) {
      busy(false)
      if (data.kind === 'error') say('form-error', data.message)
      else show(data.item, data.milliseconds)
    }
  })
  worker.postMessage({ kind: 'open', device })

  function fail(message) {
    $('load').hidden = true
    const way = device === 'webgpu' ? ' Choose the CPU below, or reload the page.' : ' Reload the page to try again.'
    say('failure', `The encoder cannot be opened: ${message}${way}`)
  }
}

function describe(settings, threads, device) {
  $('title-note').textContent = settings.title ? 'optional' : 'optional; this encoder was trained without titles'
  const by = device === 'webgpu' ? 'WebGPU' : `WebAssembly, ${threads} ${threads === 1 ? 'thread' : 'threads'}`
  $('about').textContent =
    `Encoder: ${settings.base.id}, ${settings.dimension} numbers an embedding, ${settings.maxLength} tokens a region, ` +
    `at most ${settings.branching} children a node. Computed by ${by}.`
  const margin = settings.margin ?? 0
  $('rule').textContent =
    margin === 0
      ? 'From the whole passage down: a region is replaced by every child that scores at least as high as it; where none does, it is kept whole.'
      : `From the whole passage down: where a child scores at least as high as its region, the region is replaced by every child at most ${margin} below it; else it is kept whole.`
}

function show({ leaves, kept, nodes, tokens }, milliseconds) {
  const cut = nodes.filter((node) => node.truncated).length
  const sentences = kept.reduce((sum, { from, to }) => sum + to - from, 0)
  $('figures').replaceChildren(
    figure('Sentences kept', `${sentences} of ${leaves}`),
    figure(`Tokens kept, ${Math.round((100 * tokens.kept) / tokens.all)} %`, `${tokens.kept} of ${tokens.all}`),
    figure('Regions scored', String(nodes.length)),
    figure('Time', `${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms`),
  )
  const longer = cut === 1 ? 'One region is longer' : `${cut} regions are longer`
  say(
    'cut',
    cut > 0 && `${longer} than the encoder reads and was scored by its beginning. Shorter passages are decided better.`,
  )

  const tree = withStates(nodes, kept)
  const isKept = (leaf) => kept.some(({ from, to }) => from <= leaf && leaf < to)
  // a leaf is a node of its own: its text is what lies between its offsets
  const leafNodes = tree.filter(({ from, to }) => to - from === 1)
  $('passage').replaceChildren(
    ...leafNodes.flatMap(({ from, start, end }) => {
      const sentence = passage.slice(start, end)
      // white space between two sentences belongs to the later one; it is marked between two that are kept
      const outside = isKept(from) && !isKept(from - 1) ? sentence.length - sentence.trimStart().length : 0
      const span = element(isKept(from) ? 'mark' : 'span', { 'data-leaf': from }, sentence.slice(outside))
      if (!isKept(from)) span.className = 'out'
      return [sentence.slice(0, outside), span]
    }),
  )

  const depth = Math.max(...tree.map((node) => node.depth))
  const icicle = $('icicle')
  icicle.style.gridTemplateColumns = `repeat(${leaves}, minmax(0, 1fr))`
  icicle.style.gridTemplateRows = `repeat(${depth + 1}, auto)`
  icicle.replaceChildren(
    ...tree.map((node) => {
      const cell = element('div', {
        class: node.state,
        title: `sentences ${region(node)}: ${node.score.toFixed(3)}, ${OUTCOMES[node.state]}`,
      })
      cell.append(element('span', {}, node.score.toFixed(2)))
      cell.style.gridColumn = `${node.from + 1} / ${node.to + 1}`
      cell.style.gridRow = String(node.depth + 1)
      pointing(cell, node)
      return cell
    }),
  )
  $('decisions').replaceChildren(
    ...tree
      .filter(({ state }) => state !== 'unseen')
      .map((node) => {
        const row = element('tr', { class: node.state })
        const name = element('th', { scope: 'row' }, region(node))
        name.style.setProperty('--depth', String(node.depth))
        const gap = node.parent === undefined ? '' : signed(node.score - node.parent.score)
        row.append(
          name,
          element('td', {}, node.score.toFixed(4)),
          element('td', {}, gap),
          element('td', {}, OUTCOMES[node.state]),
        )
        pointing(row, node)
        return row
      }),
  )
  $('result').hidden = false
  if (asked) $('result-heading').focus({ preventScroll: true })
}

const OUTCOMES = { kept: 'kept', entered: 'gone into', dropped: 'dropped', unseen: 'not looked at' }

/** Nodes in pre-order, with depth, parent and what became of each: something is kept inside every node that was gone into. */
function withStates(nodes, kept) {
  const path = []
  return nodes.map((plain) => {
    while (path.length > 0 && path.at(-1).to <= plain.from) path.pop()
    const parent = path.at(-1)
    const whole = kept.some(({ from, to }) => from === plain.from && to === plain.to)
    const inside = kept.some(({ from, to }) => plain.from <= from && to <= plain.to)
    const reached = parent === undefined || parent.state === 'entered'
    const state = !reached ? 'unseen' : whole ? 'kept' : inside ? 'entered' : 'dropped'
    const node = { ...plain, parent, depth: path.length, state }
    path.push(node)
    return node
  })
}

const region = ({ from, to }) => (to - from === 1 ? String(to) : `${from + 1}–${to}`)
const signed = (x) => `${x < 0 ? '−' : '+'}${Math.abs(x).toFixed(4)}`

/** Shows in the passage where a region lies while it is pointed at. */
function pointing(target, { from, to }) {
  const mark = (on) => {
    for (const span of $('passage').children) {
      const leaf = Number(span.dataset.leaf)
      span.classList.toggle('pointed', on && from <= leaf && leaf < to)
    }
  }
  target.addEventListener('pointerenter', () => mark(true))
  target.addEventListener('pointerleave', () => mark(false))
}

function figure(name, value) {
  const pair = element('div', {})
  pair.append(element('dt', {}, name), element('dd', {}, value))
  return pair
}

function element(name, attributes, text) {
  const made = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value))
  if (text !== undefined) made.textContent = text
  return made
}

function say(id, message) {
  $(id).textContent = message || ''
  $(id).hidden = !message
}

function busy(on) {
  $('refine').textContent = on ? 'Refining…' : 'Refine'
  $('form').setAttribute('aria-busy', String(on))
}

// Draws docs/refined-item.svg from what `canopy refine --json` really makes of an item: its tree with every score, beside its
// sentences (a table's rows), of which the kept ones are marked.
//
//   npm run quickstart && node scripts/make-refined-picture.mjs
//   node scripts/make-refined-picture.mjs --export <folder> --sample <id of a question in datasets/sample>
//   node scripts/make-refined-picture.mjs --export <folder> --question <text> --item <item.json> --output <file.svg>
//
// By default the first question of the sample's dev split that has a text as its gold item. CANOPY_CLI names another build than dist/.
import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'

const root = resolve(import.meta.dirname, '..')
const cli = process.env.CANOPY_CLI ?? `${root}/dist/cli/main.js`
const { values } = parseArgs({
  options: {
    export: { type: 'string', default: `${root}/runs/quickstart/export` },
    question: { type: 'string' },
    item: { type: 'string' },
    sample: { type: 'string' },
    output: { type: 'string', default: `${root}/docs/refined-item.svg` },
  },
})
if ((values.question === undefined) !== (values.item === undefined))
  throw new Error('Give --question and --item together.')

const { question, item } =
  values.item === undefined
    ? fromSample(values.sample)
    : { question: values.question, item: JSON.parse(readFileSync(values.item, 'utf8')) }
const args = ['refine', '--encoder', values.export, '--query', question, '--input', '-', '--json']
const { status, stdout } = spawnSync(process.execPath, [cli, ...args], {
  input: JSON.stringify(item),
  stdio: ['pipe', 'pipe', 'inherit'],
  maxBuffer: 2 ** 28,
})
if (status !== 0) process.exit(1)
const [refined] = JSON.parse(stdout)
writeFileSync(values.output, picture(question, refined, leafTexts(item, refined)))

/** A question of datasets/sample with its first gold item, as `canopy refine` takes it. */
function fromSample(id) {
  const lines = (name) =>
    readFileSync(`${root}/datasets/sample/${name}.jsonl`, 'utf8').trim().split('\n').map(JSON.parse)
  const items = new Map(lines('items').map((entry) => [entry.id, entry]))
  for (const entry of lines('questions')) {
    const gold = items.get(entry.gold[0]?.item)
    const wanted = id === undefined ? entry.split === 'dev' && gold?.modality === 'text' : entry.id === id
    if (!wanted) continue
    if (gold?.text === undefined && gold?.rows === undefined)
      throw new Error(`Question ${entry.id} is not about a text or a table.`)
    const { title, text, sentences, caption, header, rows } = gold
    return { question: entry.question, item: { title, text, sentences, caption, header, rows } }
  }
  throw new Error(`datasets/sample has no question ${id ?? 'of dev about a text'}.`)
}

/** What a reader sees of each leaf: a sentence, or the cells of a row. */
function leafTexts(given, { nodes }) {
  const leaves = nodes.filter(({ from, to }) => to === from + 1)
  return leaves.map(({ start, end }, i) =>
    given.rows ? given.rows[i].join(' · ') : given.text.slice(start, end).trim(),
  )
}

/**
 * The picture, 900 wide, on a card of its own so that it reads on any background. A node is a box over the height of its leaves, its
 * depth the column; leaves meet their text on the right.
 */
function picture(asked, { title, nodes, kept }, texts) {
  const [WIDTH, MARGIN, LINE] = [900, 20, 18]
  const depths = depthsOf(nodes)
  const columns = Math.max(...depths) + 1
  const column = Math.min(72, 340 / columns)
  const textX = MARGIN + columns * column + 18
  const lines = texts.map((text) => wrapped(text, (WIDTH - MARGIN - textX) / 7.6))
  const heading = wrapped(`Question: ${asked}`, (WIDTH - 2 * MARGIN) / 9.5)
  const top = MARGIN + heading.length * 21 + 34

  const tops = [top]
  for (const each of lines) tops.push(tops.at(-1) + each.length * LINE + 16)
  const keptLeaf = (leaf) => kept.some(({ from, to }) => from <= leaf && leaf < to)
  const outcomes = outcomesOf(nodes, kept)

  const parts = []
  parts.push(...heading.map((line, i) => svgText(MARGIN, MARGIN + 16 + i * 21, line, 'question')))
  parts.push(svgText(textX, top - 12, title ?? '', 'title'))
  for (const [leaf, each] of lines.entries()) {
    const y = tops[leaf]
    if (keptLeaf(leaf)) parts.push(box(textX - 8, y + 2, WIDTH - MARGIN - textX + 8, tops[leaf + 1] - y - 4, 'kept'))
    const style = keptLeaf(leaf) ? 'leaf' : 'leaf out'
    parts.push(...each.map((line, i) => svgText(textX, y + 21 + i * LINE, line, style)))
  }
  for (const [i, { from, to, score }] of nodes.entries()) {
    const [x, y, height] = [MARGIN + depths[i] * column, tops[from], tops[to] - tops[from]]
    parts.push(box(x + 2, y + 2, column - 4, height - 4, outcomes[i]))
    parts.push(svgText(x + column / 2, y + height / 2 + 4, score.toFixed(3), `score ${outcomes[i]}`))
    const right = x + column
    if (outcomes[i] === 'kept' && to === from + 1 && right < textX - 18)
      parts.push(`<path class="lead" d="M${round(right)} ${round(y + height / 2)}H${round(textX - 10)}"/>`)
  }

  const legend = [
    ['replaced', 'replaced by children that score at least as high'],
    ['kept', 'kept'],
    ['dropped', 'dropped: scores below its parent'],
    ['inside', 'inside a region already decided'],
  ]
  const bottom = tops.at(-1) + 20
  let x = MARGIN
  for (const [name, text] of legend) {
    parts.push(box(x, bottom, 18, 14, name), svgText(x + 25, bottom + 12, text, 'legend'))
    x += 25 + text.length * 6.1 + 18
  }
  const height = round(bottom + 14 + MARGIN)
  const summary = `${texts.filter((_, leaf) => keptLeaf(leaf)).length} of ${texts.length} parts of "${title}" are kept for: ${asked}`
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img">
<title>${escaped(summary)}</title>
<style>
text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.question { font-size: 16px; font-weight: 600 }
.title { font-size: 14px; font-weight: 600 }
.leaf { font-size: 14px }
.leaf.out { fill: #6e7781 }
.score { font-size: 12px; text-anchor: middle; font-variant-numeric: tabular-nums }
.score.kept { font-weight: 700 }
.score.dropped { fill: #59636e }
.score.inside { fill: #6e7781 }
.legend { font-size: 12px }
rect { stroke-width: 1.5 }
rect.card { fill: #ffffff; stroke: #d0d7de }
rect.replaced { fill: #ddf4ff; stroke: #54aeff }
rect.kept { fill: #b4f1c0; stroke: #2da44e }
rect.dropped { fill: #eaeef2; stroke: #afb8c1; stroke-dasharray: 4 3 }
rect.inside { fill: none; stroke: #d8dee4; stroke-dasharray: 2 3 }
.lead { stroke: #2da44e; stroke-width: 1.5 }
</style>
<rect class="card" x="0.75" y="0.75" width="${WIDTH - 1.5}" height="${height - 1.5}" rx="8"/>
${parts.join('\n')}
</svg>
`
}

/** Depth of each node, given in pre-order. */
function depthsOf(nodes) {
  const open = []
  return nodes.map(({ from, to }) => {
    while (open.length > 0 && from >= open.at(-1)) open.pop()
    return open.push(to) - 1
  })
}

/** What refinement did with each node, given in pre-order. `inside`: it lies in a region that was kept whole or dropped. */
function outcomesOf(nodes, kept) {
  let decidedUntil = -1
  return nodes.map(({ from, to }) => {
    if (from < decidedUntil) return 'inside'
    const isKept = kept.some((range) => range.from === from && range.to === to)
    if (!isKept && kept.some((range) => from <= range.from && range.to <= to)) return 'replaced'
    decidedUntil = to
    return isKept ? 'kept' : 'dropped'
  })
}

/** Lines of at most `width` characters, broken between words. */
function wrapped(text, width) {
  const lines = ['']
  for (const word of text.split(/\s+/)) {
    const line = lines.at(-1)
    if (line === '') lines[lines.length - 1] = word
    else if (line.length + 1 + word.length <= width) lines[lines.length - 1] = `${line} ${word}`
    else lines.push(word)
  }
  return lines
}

function box(x, y, width, height, style) {
  const [left, top, across, down] = [x, y, width, height].map(round)
  return `<rect class="${style}" x="${left}" y="${top}" width="${across}" height="${down}" rx="4"/>`
}

function svgText(x, y, text, style) {
  return `<text class="${style}" x="${round(x)}" y="${round(y)}">${escaped(text)}</text>`
}

function round(value) {
  return Math.round(value * 10) / 10
}

function escaped(text) {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
}

// How well encoders find a question's gold paragraphs in a pool, beside BM25 and random order, all in one run; every encoder is set
// against the first one, with a paired interval.
//
//   npm run build
//   node dist/cli/main.js import hotpotqa --input ../shared/data/hotpotqa/dev_distractor.json --split dev --output datasets/hotpotqa
//   node dist/cli/main.js import nq --input ../shared/data/nq/dev.jsonl --split dev --output datasets/nq    (train likewise)
//   node bench/retrieval.mjs --encoder <MiniLM folder> --encoder models/canopy-mini \
//     --dataset datasets/hotpotqa --dataset datasets/nq [--json result.json]
import { writeFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { namedItems, openDataset } from '../dist/data/index.js'
import { openPair, readEncoderPair } from '../dist/encoder/index.js'
import { resampleSums } from '../dist/eval/bootstrap.js'
import { markdownTable, percentileInterval } from '../dist/eval/index.js'
import { buildHierarchy, readsAsText, renderNode } from '../dist/hierarchy/index.js'
import { createRandom } from '../dist/support/random.js'
import { describeMachine, machineText } from './support/machine.mjs'
import { wholeNumber } from './support/numbers.mjs'
import { bm25, product, rankAmong, unitRows } from './support/ranking.mjs'

const HELP = `Recall of the right paragraph in a pool, for several encoders, BM25 and random order.

  --encoder <folder>   checkpoint or exported encoder; several times, the first is the one that others are divided by
  --dataset <folder>   made by "canopy import"; several times, each has a pool of its own
  --split <name>       whose questions are asked (dev)
  --pool <n>           texts in a pool (1000): the questions' gold items; then other items that the split names; then other items of
                       the dataset; then items of the other datasets given; each drawn at random
  --limit <n>          questions of each dataset, the first ones; all by default
  --no-title           texts without their titles, whose words many questions repeat
  --threads <n>        of ONNX Runtime (2)
  --seed <text>        of the pool, the random order and the resamples (retrieval)
  --resamples <n>      of the bootstrap over sources (10000)
  --json <file>        all figures

example: node bench/retrieval.mjs --encoder minilm --encoder models/canopy-mini --dataset datasets/hotpotqa --dataset datasets/nq`

const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string', multiple: true, default: [] },
    dataset: { type: 'string', multiple: true, default: [] },
    split: { type: 'string', default: 'dev' },
    pool: { type: 'string', default: '1000' },
    limit: { type: 'string' },
    'no-title': { type: 'boolean', default: false },
    threads: { type: 'string', default: '2' },
    seed: { type: 'string', default: 'retrieval' },
    resamples: { type: 'string', default: '10000' },
    json: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
})
if (flags.help) {
  console.log(HELP)
  process.exit(0)
}
if (flags.encoder.length === 0 || flags.dataset.length === 0)
  throw new Error('Give at least one --encoder and one --dataset; --help says more.')
const poolSize = wholeNumber(flags, 'pool')
const threads = wholeNumber(flags, 'threads')
const resamples = wholeNumber(flags, 'resamples')
const limit = flags.limit === undefined ? Number.POSITIVE_INFINITY : wholeNumber(flags, 'limit')

/** What is measured of a question from the ranks of its gold items, ascending; all are means over questions. */
const METRICS = {
  'recall@1': (ranks) => shareWithin(ranks, 1),
  'recall@10': (ranks) => shareWithin(ranks, 10),
  'recall@100': (ranks) => shareWithin(ranks, 100),
  'any@10': ([first]) => (first <= 10 ? 1 : 0),
  'MRR@10': ([first]) => (first <= 10 ? 1 / first : 0),
}
const shareWithin = (ranks, k) => ranks.filter((rank) => rank <= k).length / ranks.length
const NAMES = Object.keys(METRICS)

const machine = describeMachine({ gigabytes: 2 })
const log = (line) => console.error(line)
const datasets = await Promise.all(flags.dataset.map((folder) => openDataset(folder)))
const tasks = []
for (const dataset of datasets) tasks.push(await makeTask(dataset))
await Promise.all(datasets.map((dataset) => dataset.close()))

const encoders = []
for (const folder of flags.encoder) encoders.push(await rankWithEncoder(folder))
const results = tasks.map((task, t) => {
  const contestants = [
    ...encoders.map(({ name, tasks }) => ({ name, ...tasks[t] })),
    { name: 'BM25', ranks: rankWith(task, bm25(task.texts)) },
    { name: 'random order', ranks: rankWith(task, randomScores(task)) },
  ]
  return { ...describe(task), contestants: measure(task, contestants) }
})

console.log(machineText(machine))
for (const { benchmark, split, questions, golds, pool, contestants } of results) {
  const from = Object.entries(pool)
    .filter(([, count]) => count > 0)
    .map(([kind, count]) => `${count} ${kind}`)
  const first = contestants[0].name
  console.log(`\n${benchmark}, ${split}: ${questions} questions with ${golds} gold items; pool: ${from.join(', ')}\n`)
  const rows = contestants.map(({ name, metrics, ratios, cut, tokens }, c) => [
    name,
    ...NAMES.map((metric) => interval(metrics[metric], 100, 1)),
    c === 0 ? '–' : interval(ratios['recall@10'], 1, 3),
    cut === undefined ? '–' : `${cut} of ${poolSize}`,
    tokens === undefined ? '–' : tokens.toFixed(0),
  ])
  const header = ['', ...NAMES, `recall@10 ÷ ${first}`, 'texts cut', 'tokens a text']
  console.log(markdownTable(header, rows))
}
console.log(
  `\nrecall@k: share of a question's gold items among the first k, mean over questions; any@k: questions with at least one there. In % with 95 % bootstrap intervals, ${resamples} resamples of sources; ratios paired. ${flags['no-title'] ? 'Texts without titles. ' : ''}Texts longer than an encoder reads are cut at its own limit. Seed "${flags.seed}".`,
)
if (flags.json !== undefined)
  writeFileSync(flags.json, `${JSON.stringify({ machine, flags, encoders: encoders.map(about), results }, null, 2)}\n`)

/** The questions of a dataset's split, and the pool in which their gold items lie. */
async function makeTask(dataset) {
  const questions = []
  const named = new Set()
  for await (const { question } of dataset.questions(flags.split)) {
    if (questions.length < limit) questions.push(question)
    for (const id of namedItems(question)) named.add(id)
  }
  if (questions.length === 0) throw new Error(`${dataset.folder}: the split "${flags.split}" has no questions.`)
  const { benchmark } = dataset.meta
  const random = createRandom(`${flags.seed}/${benchmark}`)
  const gold = new Set(questions.flatMap((question) => question.gold.map(({ item }) => item)))
  const [ofSplit, ofDataset, ofOthers] = [[], [], []]
  const texts = new Map()
  for await (const { item } of dataset.items())
    if (readsAsText(item)) {
      texts.set(item.id, rootText(item))
      if (!gold.has(item.id)) (named.has(item.id) ? ofSplit : ofDataset).push(item.id)
    }
  for (const other of datasets)
    if (other !== dataset)
      for await (const { item } of other.items())
        if (readsAsText(item) && !texts.has(item.id)) {
          texts.set(item.id, rootText(item))
          ofOthers.push(item.id)
        }
  const missing = [...gold].find((id) => !texts.has(id))
  if (missing !== undefined)
    throw new Error(
      `${dataset.folder}: the gold item "${missing}" is neither a text nor a table; choose another --split.`,
    )

  const chosen = new Map()
  const counts = {}
  const kinds = {
    gold: [...gold],
    [`others of ${flags.split}`]: ofSplit,
    'others of the dataset': ofDataset,
    'of other datasets': ofOthers,
  }
  const seen = new Set()
  for (const [kind, ids] of Object.entries(kinds)) {
    random.shuffle(ids)
    const before = chosen.size
    for (const id of ids) {
      const text = texts.get(id)
      // a second copy of a text would compete with the first
      if (kind !== 'gold' && (chosen.size >= poolSize || seen.has(text))) continue
      chosen.set(id, text)
      seen.add(text)
    }
    counts[kind] = chosen.size - before
  }
  if (chosen.size !== poolSize)
    throw new Error(
      `${dataset.folder}: ${chosen.size} texts (${gold.size} of them gold) make no pool of ${poolSize}; give another --pool, a --limit of questions, or more datasets.`,
    )
  const order = [...chosen.keys()]
  random.shuffle(order)
  const place = new Map(order.map((id, i) => [id, i]))
  return {
    benchmark,
    texts: order.map((id) => chosen.get(id)),
    questions: questions.map(({ id, question, source, gold }) => ({
      text: question,
      cluster: source ?? `question\0${id}`,
      gold: [...new Set(gold.map(({ item }) => place.get(item)))],
    })),
    counts,
  }
}

/** An item as an encoder reads the root of its hierarchy: title, unless left out, then the whole. */
function rootText(item) {
  const hierarchy = buildHierarchy(item, 2)
  return renderNode(hierarchy, hierarchy.root, { title: !flags['no-title'], tableFormat: 'markdown' })
}

/** The ranks of every question's gold items, ascending: [questions][gold]. */
function rankWith({ questions }, scoresOf) {
  return questions.map(({ text, gold }, q) => {
    const scores = scoresOf(text, q)
    return gold.map((place) => rankAmong(scores, place)).sort((a, b) => a - b)
  })
}

/** Questions are asked of the pair's query encoder, with its prompt; the node encoder embeds the pool. */
async function rankWithEncoder(folder) {
  const pair = await readEncoderPair(folder)
  const open = await openPair(pair, { threads })
  const { dimension } = open.node
  const ranked = []
  for (const task of tasks) {
    const began = performance.now()
    const pool = await open.node.embedTexts(task.texts, 'node')
    const seconds = (performance.now() - began) / 1000
    const asked = await open.query.embedTexts(
      task.questions.map(({ text }) => text),
      'query',
    )
    const [nodes, queries] = [unitRows(pool.embeddings, dimension), unitRows(asked.embeddings, dimension)]
    const cosines = (_, q) => Float64Array.from(task.texts, (_, place) => product(queries, q, nodes, place, dimension))
    ranked.push({
      ranks: rankWith(task, cosines),
      cut: pool.truncated.filter(Boolean).length,
      tokens: pool.tokens.reduce((a, b) => a + b, 0) / task.texts.length,
    })
    log(`${pair.encoder.id}, ${task.benchmark}: ${task.texts.length} texts in ${seconds.toFixed(1)} s`)
  }
  await open.close()
  const name = encoders.some((other) => other.name === pair.encoder.id) ? folder : pair.encoder.id
  return { name, pair, tasks: ranked }
}

function randomScores({ benchmark, texts }) {
  const random = createRandom(`${flags.seed}/random order/${benchmark}`)
  return () => Float64Array.from(texts, () => random.next())
}

/** Each contestant's metrics, and their ratios to the first contestant's, with intervals over resampled sources. */
function measure({ questions }, contestants) {
  const columns = contestants.length * NAMES.length
  const values = contestants.map(({ ranks }) => ranks.map((gold) => NAMES.map((name) => METRICS[name](gold))))
  const clusters = new Map()
  for (const [q, { cluster }] of questions.entries()) {
    const sums = clusters.get(cluster) ?? new Float64Array(columns + 1)
    clusters.set(cluster, sums)
    values.forEach((ofContestant, c) => {
      ofContestant[q].forEach((value, m) => {
        sums[c * NAMES.length + m] += value
      })
    })
    sums[columns]++
  }
  const totals = new Float64Array(columns + 1)
  for (const sums of clusters.values()) for (const [column, value] of sums.entries()) totals[column] += value
  const drawn = Array.from({ length: columns + 1 }, () => new Float64Array(resamples))
  resampleSums(
    [...clusters.values()].map((sums) => [{ group: 0, values: sums }]),
    { groups: 1, columns: columns + 1, resamples, seed: flags.seed },
    (sums, resample) => {
      for (const [column, value] of sums.entries()) drawn[column][resample] = value
    },
  )
  const ratio = (column, other) => {
    const [lo, hi] = percentileInterval(drawn[column].map((value, i) => value / drawn[other][i])) ?? []
    return { value: totals[column] / totals[other], lo, hi }
  }
  return contestants.map(({ name, cut, tokens }, c) => ({
    name,
    metrics: Object.fromEntries(NAMES.map((metric, m) => [metric, ratio(c * NAMES.length + m, columns)])),
    ratios: Object.fromEntries(NAMES.map((metric, m) => [metric, ratio(c * NAMES.length + m, m)])),
    cut,
    tokens,
  }))
}

function describe({ benchmark, questions, counts }) {
  const golds = questions.reduce((sum, { gold }) => sum + gold.length, 0)
  return { benchmark, split: flags.split, questions: questions.length, golds, pool: counts }
}

function about({ name, pair: { encoder, query } }) {
  const { fingerprint, maxLength, dimension, prompts } = encoder
  return { name, fingerprint, queryFingerprint: query.fingerprint, maxLength, dimension, prompts }
}

function interval({ value, lo, hi }, times, digits) {
  const text = (x) => (x * times).toFixed(digits)
  return lo === undefined ? text(value) : `${text(value)} [${text(lo)}, ${text(hi)}]`
}

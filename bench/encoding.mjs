// Encoding speed and memory on nodes of mixed lengths (HotpotQA paragraphs, OTT-QA tables and passages): this engine beside
// sentence-transformers and transformers.js, in turn, each in a process of its own.
//
//   npm run build
//   node bench/encoding.mjs --encoder <MiniLM folder> --onnx <its ONNX export> --data ../shared/data \
//     --python <python of bench/peers/requirements.txt> [--rounds 3] [--nodes 600] [--threads n] [--json result.json]
//
// Distinct nodes, in random order, that fit the encoder's maximum length (transformers.js' pipeline cuts elsewhere). Loading and a
// warm-up, which also picks the batch sizes, are not measured; tokenising is. Tokens are counted without padding for everyone.
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { importHotpotqa, importOttqa, openDataset } from '../dist/data/index.js'
import { loadTokenizer, readEncoder } from '../dist/encoder/index.js'
import { markdownTable } from '../dist/eval/index.js'
import { buildHierarchy, renderNode } from '../dist/hierarchy/index.js'
import { openSafetensors } from '../dist/onnx/index.js'
import { createRandom } from '../dist/support/random.js'
import { alternate, median, medianRatio } from './support/alternate.mjs'
import { describeMachine, machineText } from './support/machine.mjs'

const number = { type: 'string' }
const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string' },
    onnx: { type: 'string' },
    data: { type: 'string' },
    python: { type: 'string', default: 'python3' },
    rounds: { ...number, default: '3' },
    nodes: { ...number, default: '600' },
    threads: number,
    'token-budget': { ...number, default: '4096' },
    work: { type: 'string' },
    json: { type: 'string' },
  },
})
for (const name of ['encoder', 'onnx', 'data']) if (flags[name] === undefined) throw new Error(`Give --${name}.`)
const threads = Number(flags.threads ?? availableParallelism())
const here = import.meta.dirname
const work = flags.work === undefined ? mkdtempSync(join(tmpdir(), 'canopy-encoding-')) : resolve(flags.work)
mkdirSync(work, { recursive: true })
const log = (line) => console.error(line)
const machine = describeMachine({ gigabytes: 4 })
log(machineText(machine))

const profile = await readEncoder(flags.encoder)
const { texts, lengths } = await mixedNodes(Number(flags.nodes))
const tokens = lengths.reduce((a, b) => a + b, 0)
const spread = [...lengths].sort((a, b) => a - b)
const quantile = (share) => spread[Math.floor(share * (spread.length - 1))]
const described = `${texts.length} nodes, ${tokens} tokens (10 %, 50 %, 90 %, longest: ${[0.1, 0.5, 0.9, 1].map(quantile).join(', ')}), ${threads} threads`
log(described)

const common = { texts, warm: texts.slice(0, Math.ceil(texts.length / 8)), threads, model: resolve(flags.encoder) }
const tokenBudget = Number(flags['token-budget'])
const contestant = (name, label, command, script, request) => ({
  name,
  label,
  command,
  script: join(here, script),
  request: () => ({ ...common, ...request }),
})
const { execPath: node } = process
const onnx = resolve(flags.onnx)
const finished = await alternate(
  [
    contestant('ours', 'this engine', node, 'encoding/ours.mjs', { tokenBudget }),
    contestant('sentence-transformers', 'sentence-transformers', flags.python, 'peers/encode.py', {}),
    contestant('transformers-js', 'transformers.js, in the order given', node, 'encoding/transformers-js.mjs', {
      onnx,
      batchSizes: [32],
      sorted: false,
    }),
    contestant(
      'transformers-js-best',
      'transformers.js, sorted, best batch size',
      node,
      'encoding/transformers-js.mjs',
      {
        onnx,
        batchSizes: [1, 4, 8, 16, 32],
        sorted: true,
      },
    ),
  ],
  { rounds: Number(flags.rounds), folder: join(work, 'runs'), log },
)

const [ours] = finished
const rows = []
for (const { name, label, results, error } of finished) {
  const seconds = results.map((result) => result.seconds)
  rows.push({
    name,
    label,
    error,
    seconds,
    ratio: medianRatio(
      seconds,
      ours.results.map((result) => result.seconds),
    ),
    memory: median(results.map(({ memory }) => memory)),
    note: results.at(-1)?.note,
    cosine: results.length === 0 ? Number.NaN : await leastCosine(ours.results.at(-1), results.at(-1)),
  })
}
const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : '–')
const table = markdownTable(
  ['encoder', 'nodes/s', 'tokens/s', 'this engine ÷ it', 'peak memory GiB', 'least cosine', 'batches'],
  rows.map(({ label, error, seconds, ratio, memory, note, cosine }) => [
    label,
    error === undefined ? fixed(texts.length / median(seconds), 0) : 'failed',
    fixed(tokens / median(seconds), 0),
    fixed(ratio, 2),
    fixed(memory / 2 ** 30, 2),
    fixed(cosine, 6),
    note ?? '–',
  ]),
)
const notes = `${described}; medians of ${flags.rounds} rounds, ratios round by round; cosine with this engine's embedding of the same node.`
console.log(`${machineText(machine)}\n\n${table}\n\n${notes}`)
if (flags.json !== undefined)
  writeFileSync(
    flags.json,
    `${JSON.stringify({ machine, flags, tokens, lengths: spread, contestants: rows }, null, 2)}\n`,
  )
if (flags.work === undefined) rmSync(work, { recursive: true })
process.exitCode =
  finished.every(({ error }) => error === undefined) && rows.every(({ cosine }) => cosine > 0.9999) ? 0 : 1

/** Distinct nodes of the gold items of both sets, half of each, in seeded order. */
async function mixedNodes(count) {
  const tokenizer = await loadTokenizer(profile)
  const random = createRandom('encoding')
  const chosen = new Map()
  const sets = [
    ['hotpotqa', importHotpotqa, ['hotpotqa/train_distractor.json']],
    ['ottqa', importOttqa, ['ottqa/train.traced.json', 'ottqa/train_tables.jsonl', 'ottqa/train_passages.jsonl']],
  ]
  for (const [i, [name, importer, inputs]] of sets.entries()) {
    const folder = join(work, 'datasets', name)
    if (!existsSync(folder)) {
      mkdirSync(join(work, 'datasets'), { recursive: true })
      await importer({ inputs: inputs.map((file) => join(resolve(flags.data), file)), split: 'train', output: folder })
    }
    const dataset = await openDataset(folder)
    const items = new Set()
    for await (const { question } of dataset.questions('train')) for (const { item } of question.gold) items.add(item)
    const nodes = []
    for (const id of items) {
      const hierarchy = buildHierarchy(await dataset.item(id), 2)
      for (const tree of hierarchy.nodes)
        nodes.push(renderNode(hierarchy, tree, { title: true, tableFormat: 'markdown' }))
    }
    await dataset.close()
    random.shuffle(nodes)
    for (const text of nodes) {
      if (chosen.size >= Math.round(((i + 1) * count) / sets.length)) break
      const { ids, truncated } = tokenizer.encode(profile.prompts.node + text)
      if (!truncated) chosen.set(text, ids.length)
    }
  }
  const order = [...chosen]
  random.shuffle(order)
  return { texts: order.map(([text]) => text), lengths: order.map(([, length]) => length) }
}

async function leastCosine(a, b) {
  const read = async ({ output }) =>
    (await openSafetensors(join(output, 'embeddings.safetensors'))).readTensor('embeddings')
  const [x, y] = [await read(a), await read(b)]
  const dimension = x.length / texts.length
  let least = 1
  for (let start = 0; start < x.length; start += dimension) {
    let [xy, xx, yy] = [0, 0, 0]
    for (let k = start; k < start + dimension; k++) {
      xy += x[k] * y[k]
      xx += x[k] * x[k]
      yy += y[k] * y[k]
    }
    least = Math.min(least, xy / Math.sqrt(xx * yy))
  }
  return least
}

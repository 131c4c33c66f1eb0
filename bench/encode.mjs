// `canopy encode` on a data set: nodes a second beside the embedder alone and beside sentence-transformers, sizes of the files,
// shards and their merge; and, without any encoder, what writing, merging, verifying and opening a million rows takes.
//
//   npm run build
//   node bench/encode.mjs --encoder models/canopy-mini <MiniLM folder> --dataset <data set folder> \
//     [--python <python of bench/peers/requirements.txt>] [--items 2000] [--rounds 3] [--threads n] [--scale 1000000] [--json out.json]
//
// All contestants get the same nodes (text and tables, cut where the encoder cuts). Loading and a warm-up, which picks the peer's
// batch size, are not measured; reading, tokenising and, of `encode`, writing and syncing are.

import { once } from 'node:events'
import { createWriteStream, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { basename, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { openDataset } from '../dist/data/index.js'
import { encodeToFile, itemFile, mergeShards, openEmbeddings, verifyEmbeddings } from '../dist/encode/index.js'
import { markdownTable } from '../dist/eval/index.js'
import { buildHierarchy, readsAsText, renderNode } from '../dist/hierarchy/index.js'
import { openSafetensors } from '../dist/onnx/index.js'
import { alternate, median, medianRatio } from './support/alternate.mjs'
import { describeMachine, machineText } from './support/machine.mjs'

const { values: flags } = parseArgs({
  options: {
    encoder: { type: 'string', multiple: true, default: [] },
    dataset: { type: 'string' },
    python: { type: 'string' },
    items: { type: 'string', default: '2000' },
    rounds: { type: 'string', default: '3' },
    threads: { type: 'string' },
    'token-budget': { type: 'string', default: '4096' },
    scale: { type: 'string', default: '0' },
    json: { type: 'string' },
  },
})
const threads = Number(flags.threads ?? availableParallelism())
const tokenBudget = Number(flags['token-budget'])
const rounds = Number(flags.rounds)
const here = import.meta.dirname
const work = mkdtempSync(join(tmpdir(), 'canopy-encode-'))
const log = (line) => console.error(line)
const machine = describeMachine({ gigabytes: 3 })
console.log(`${machineText(machine)}\n`)
const answer = { machine, flags, encoders: [], scale: undefined }
const MiB = 2 ** 20
const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : '–')

try {
  if (flags.dataset !== undefined) {
    const { items, texts, count } = await chosenItems(flags.dataset, Number(flags.items))
    for (const encoder of flags.encoder) answer.encoders.push(await throughput(encoder, items, texts, count))
  }
  if (Number(flags.scale) > 0) answer.scale = await scale(Number(flags.scale))
} finally {
  rmSync(work, { recursive: true, force: true })
}
if (flags.json !== undefined) writeFileSync(flags.json, `${JSON.stringify(answer, null, 2)}\n`)

/** The first items of a data set that an encoder of texts reads, and the texts of their nodes. */
async function chosenItems(folder, most) {
  const dataset = await openDataset(folder)
  const lines = []
  const texts = []
  for await (const { item } of dataset.items()) {
    if (lines.length >= most) break
    if (!readsAsText(item)) continue
    const tree = buildHierarchy(item, 2)
    for (const node of tree.nodes) texts.push(renderNode(tree, node, { title: true, tableFormat: 'markdown' }))
    lines.push(`${JSON.stringify(item)}\n`)
  }
  await dataset.close()
  const items = join(work, 'items.jsonl')
  writeFileSync(items, lines.join(''))
  return { items, texts, count: lines.length }
}

async function throughput(encoder, items, texts, count) {
  const model = resolve(encoder)
  const name = basename(model)
  const common = { model, texts, warm: texts.slice(0, Math.min(512, texts.length)), threads, tokenBudget }
  const contestant = (id, label, command, script, request = {}) => ({
    ...{ name: id, label, command },
    script: join(here, script),
    request: () => ({ ...common, ...request }),
  })
  const ours = (id, label, request) =>
    contestant(id, label, process.execPath, 'encoding/whole.mjs', { items, ...request })
  const finished = await alternate(
    [
      ours('encode', 'canopy encode', {}),
      contestant('embedder', 'openEmbedder alone', process.execPath, 'encoding/ours.mjs'),
      ...(flags.python === undefined
        ? []
        : [contestant('sentence-transformers', 'sentence-transformers encode', flags.python, 'peers/encode.py')]),
    ],
    { rounds, folder: join(work, name, 'runs'), log },
  )
  const [first] = finished
  if (first.error !== undefined) throw new Error(first.error)
  const { encoded } = first.results[0]
  const seconds = (results) => results.map((result) => result.seconds)
  const rows = []
  for (const { name: id, label, results, error } of finished)
    rows.push({
      ...{ id, label, error, seconds: seconds(results) },
      ratio: medianRatio(seconds(results), seconds(first.results)),
      memory: median(results.map(({ memory }) => memory)),
      note: results.at(-1)?.note,
      cosine: results.length === 0 ? Number.NaN : await leastCosine(first.results[0], results.at(-1)),
    })
  const { rows: nodes, tokens, truncated, same } = encoded.counts
  console.log(
    `## ${name}\n\n${count} items of ${basename(flags.dataset)}: ${nodes} nodes, ${tokens} tokens, ${truncated} nodes cut, ${same} with the tokens of another one; ${threads} threads; medians of ${rounds} rounds.\n`,
  )
  console.log(
    markdownTable(
      ['', 'nodes/s', 'tokens/s', 'seconds ÷ encode', 'peak memory MiB', 'least cosine', 'batches'],
      rows.map(({ label, error, seconds: all, ratio, memory, note, cosine }) => [
        label,
        error === undefined ? fixed(nodes / median(all), 0) : 'failed',
        fixed(tokens / median(all), 0),
        fixed(ratio, 2),
        fixed(memory / MiB, 0),
        fixed(cosine, 6),
        note ?? '–',
      ]),
    ),
  )
  for (const { label, error } of rows) if (error !== undefined) console.log(`\n${label}: ${error}`)

  // the other forms, and the work shared by four machines, once
  const forms = [
    ours('float16', 'float16', { dtype: 'float16' }),
    ours('parquet', 'parquet', { format: 'parquet' }),
    ...[1, 2, 3, 4].map((index) => ours(`shard-${index}`, `shard ${index}/4`, { shard: { index, of: 4 } })),
  ]
  const others = await alternate(forms, { rounds: 1, folder: join(work, name, 'forms'), log })
  for (const { error } of others) if (error !== undefined) throw new Error(error)
  const output = (id) => others.find((other) => other.name === id).results[0].output
  const whole = join(first.results[0].output, 'embeddings')
  const merged = join(work, name, 'merged')
  const began = performance.now()
  await mergeShards({
    shards: [1, 2, 3, 4].map((index) => join(output(`shard-${index}`), 'embeddings')),
    ...{ output: merged, format: 'safetensors' },
  })
  const mergeSeconds = (performance.now() - began) / 1000
  const files = ['embeddings.safetensors', 'index.jsonl', 'encode.json']
  const identical = files.every((file) => readFileSync(join(merged, file)).equals(readFileSync(join(whole, file))))
  const sizeOf = (folder) => files.reduce((sum, file) => sum + statSync(join(folder, file)).size, 0)
  const sizes = {
    float32: sizeOf(whole),
    float16: sizeOf(join(output('float16'), 'embeddings')),
    parquet: statSync(join(output('parquet'), 'embeddings.parquet')).size,
    index: statSync(join(whole, 'index.jsonl')).size,
  }
  const shares = [1, 2, 3, 4].map(
    (index) => others.find((o) => o.name === `shard-${index}`).results[0].work.tokens / tokens,
  )
  const { rounding } = others.find((other) => other.name === 'float16').results[0].encoded
  console.log(
    `\nBytes a node: float32 ${fixed(sizes.float32 / nodes, 0)} (of them index ${fixed(sizes.index / nodes, 0)}), float16 ${fixed(sizes.float16 / nodes, 0)}, Parquet ${fixed(sizes.parquet / nodes, 0)}. ` +
      `float16: least cosine ${rounding.leastCosine.toFixed(7)}, largest difference ${rounding.largestDifference.toExponential(1)}.\n` +
      `Four shards: ${shares.map((share) => `${(100 * share).toFixed(1)} %`).join(', ')} of the tokens; merged and verified in ${mergeSeconds.toFixed(2)} s, ${identical ? 'the same bytes as one run' : 'OTHER BYTES THAN ONE RUN'}.\n`,
  )
  if (!identical) process.exitCode = 1
  return { name, nodes, tokens, rows, sizes, rounding, shares, mergeSeconds, identical }
}

/** Least cosine of the rows with those of `canopy encode`, in the order of the items. */
async function leastCosine(a, b) {
  const read = async ({ output }) => {
    for (const file of ['embeddings/embeddings.safetensors', 'embeddings.safetensors'])
      try {
        return await (await openSafetensors(join(output, file))).readTensor('embeddings')
      } catch {}
    throw new Error(`no embeddings in ${output}`)
  }
  const [x, y] = [await read(a), await read(b)]
  const { dimension } = a.encoded.space
  let least = x.length === y.length ? 1 : Number.NaN
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

/** Everything but the encoder, whose place random numbers take: rows of 384 numbers. */
async function scale(rows) {
  const dimension = 384
  const file = join(work, 'many.jsonl')
  const stream = createWriteStream(file)
  // 8 sentences: 15 nodes
  const count = Math.ceil(rows / 15)
  for (let i = 0; i < count; i++) {
    const text = Array.from(
      { length: 8 },
      (_, s) => `Sentence ${s} of item ${i} says a little of what there is to say.`,
    )
    const sentences = []
    let at = 0
    for (const part of text) {
      sentences.push([at, at + part.length])
      at += part.length
    }
    const line = JSON.stringify({
      id: `item-${i}`,
      modality: 'text',
      title: `Item ${i}`,
      text: text.join(''),
      sentences,
    })
    if (!stream.write(`${line}\n`)) await once(stream, 'drain')
  }
  stream.end()
  await once(stream, 'finish')

  const profile = { id: 'random', fingerprint: '0'.repeat(64), prompts: { node: '', query: '' } }
  let next = 0
  const numbers = Float32Array.from({ length: 1 << 16 }, () => Math.random() - 0.5)
  const embedder = {
    ...{ profile, dimension, fingerprint: '1'.repeat(64), counts: { computed: 0, cached: 0 } },
    reader: {
      ...{ multimodal: false, maxLength: 256 },
      encode: async (inputs) =>
        inputs.map(() => ({ sequence: { ids: Int32Array.of(next++, 1, 2) }, truncated: false })),
    },
    async embedSequences(sequences) {
      const out = new Float32Array(sequences.length * dimension)
      sequences.forEach(({ ids }, i) => {
        const from = (ids[0] * 97) % (numbers.length - dimension)
        out.set(numbers.subarray(from, from + dimension), i * dimension)
      })
      return out
    },
  }
  const encode = (output, more = {}) => {
    next = 0
    return encodeToFile({
      ...{ pair: { encoder: profile, query: profile, adapter: undefined }, embedder, side: 'node', dtype: 'float32' },
      ...{ format: 'safetensors', output, resume: false },
      selection: { datasets: [], itemFiles: [itemFile(file)], splits: undefined },
      settings: { title: true, tableFormat: 'markdown', branching: 2 },
      computing: { device: 'cpu', precision: 'fp32', tokenBudget },
      ...more,
    })
  }
  const result = { memory: {}, processor: {} }
  const timed = async (name, action) => {
    const began = performance.now()
    const used = process.cpuUsage()
    const value = await action()
    const { user, system } = process.cpuUsage(used)
    result[name] = (performance.now() - began) / 1000
    result.processor[name] = (user + system) / 1e6
    result.memory[name] = process.resourceUsage().maxRSS * 1024
    log(`${name}: ${result[name].toFixed(1)} s, at most ${(result.memory[name] / MiB).toFixed(0)} MiB so far`)
    return value
  }
  const whole = join(work, 'whole')
  const { encoded, work: done } = await timed('encode', () => encode(whole))
  const embeddings = await timed('open', () => openEmbeddings(whole))
  await timed('read100k', async () => {
    for (let i = 0; i < 100_000; i++) embeddings.byKey(embeddings.key(Math.floor(Math.random() * embeddings.rows)))
  })
  embeddings.close()
  await timed('verify', () => verifyEmbeddings(whole))
  await timed('parquet', () => encode(join(work, 'whole.parquet'), { format: 'parquet' }))
  const parquetBytes = statSync(join(work, 'whole.parquet')).size
  rmSync(join(work, 'whole.parquet'))
  rmSync(whole, { recursive: true })
  const shards = []
  for (let index = 1; index <= 4; index++) {
    shards.push(join(work, `shard-${index}`))
    await encode(shards.at(-1), { shard: { index, of: 4 } })
  }
  const merged = join(work, 'merged')
  await timed('merge', () => mergeShards({ shards, output: merged, format: 'safetensors' }))
  const bytes = statSync(join(merged, 'embeddings.safetensors')).size
  Object.assign(result, { rows: encoded.counts.rows, dimension, bytes, parquetBytes, planSeconds: done.planSeconds })
  console.log(`## ${encoded.counts.rows} rows of ${dimension} random numbers (${(bytes / 2 ** 30).toFixed(2)} GiB)\n`)
  console.log(
    markdownTable(
      ['', 'seconds', 'processor seconds', 'rows/s', 'peak memory so far MiB'],
      [
        ['encode: read twice, render, write, commit', 'encode'],
        ['open: index read and checked', 'open'],
        ['100 000 embeddings by key', 'read100k'],
        ['verify: every byte', 'verify'],
        ['encode into Parquet', 'parquet'],
        ['merge of four shards, verified', 'merge'],
      ].map(([label, name]) => [
        label,
        fixed(result[name], 2),
        fixed(result.processor[name], 2),
        fixed((name === 'read100k' ? 1e5 : encoded.counts.rows) / result[name], 0),
        fixed(result.memory[name] / MiB, 0),
      ]),
    ),
  )
  return result
}

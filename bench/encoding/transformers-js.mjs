// The transformers.js side of `bench/encoding.mjs`: its feature-extraction pipeline, at the best of `batchSizes`. A request and an answer are
// otherwise those of bench/peers/encode.py; `sorted` hands it the texts by length, which it does not do itself.
//
//   node bench/encoding/transformers-js.mjs request.json
import { readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { env, pipeline } from '@huggingface/transformers'
import { writeSafetensors } from '../../dist/onnx/index.js'

const { onnx, texts, warm, threads, batchSizes, sorted, output } = JSON.parse(readFileSync(process.argv[2], 'utf8'))
env.allowRemoteModels = false
const opening = performance.now()
const extract = await pipeline('feature-extraction', resolve(onnx), {
  dtype: 'fp32',
  local_files_only: true,
  session_options: { intraOpNumThreads: threads, interOpNumThreads: 1 },
})
const loadSeconds = (performance.now() - opening) / 1000

async function encode(all, batchSize) {
  const order = [...all.keys()]
  if (sorted) order.sort((a, b) => all[a].length - all[b].length)
  const rows = new Array(all.length)
  for (let start = 0; start < order.length; start += batchSize) {
    const members = order.slice(start, start + batchSize)
    const { data, dims } = await extract(
      members.map((i) => all[i]),
      { pooling: 'mean', normalize: true },
    )
    members.forEach((i, row) => {
      rows[i] = data.slice(row * dims[1], (row + 1) * dims[1])
    })
  }
  return rows
}

async function secondsOf(all, batchSize) {
  const began = performance.now()
  const rows = await encode(all, batchSize)
  return { seconds: (performance.now() - began) / 1000, rows }
}

await encode(warm, batchSizes.at(-1))
let best
for (const size of batchSizes) {
  const { seconds } = await secondsOf(warm, size)
  if (best === undefined || seconds < best.seconds) best = { size, seconds }
}
const { seconds, rows } = await secondsOf(texts, best.size)
const memory = process.resourceUsage().maxRSS * 1024
const data = Float32Array.from(rows.flatMap((row) => [...row]))
const shape = [rows.length, rows[0].length]
await writeSafetensors(
  join(output, 'embeddings.safetensors'),
  new Map([['embeddings', { dtype: 'float32', shape, data }]]),
  {},
)
const note = `batches of ${best.size}`
writeFileSync(
  join(output, 'result.json'),
  JSON.stringify({ seconds, loadSeconds, memory, note, versions: { 'transformers.js': env.version } }),
)

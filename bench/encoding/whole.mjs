// This project's `encode` side of `bench/encode.mjs`: items into a portable file, committed block by block.
//
//   node bench/encoding/whole.mjs request.json {"model", "items", "warm", "threads", "tokenBudget", "output"}
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { encodeToFile, itemFile } from '../../dist/encode/index.js'
import { openEmbedder, readEncoderPair } from '../../dist/encoder/index.js'

const request = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const { model, items, warm, threads, tokenBudget, output } = request
const pair = await readEncoderPair(model)
const embedder = await openEmbedder(pair.encoder, { threads, tokenBudget })
await embedder.embedTexts(warm, 'node')
const { encoded, work } = await encodeToFile({
  ...{ pair, embedder, side: 'node', dtype: request.dtype ?? 'float32', format: request.format ?? 'safetensors' },
  output: join(output, request.format === 'parquet' ? 'embeddings.parquet' : 'embeddings'),
  selection: { datasets: [], itemFiles: [itemFile(items)], splits: undefined },
  settings: { title: true, tableFormat: 'markdown', branching: 2 },
  computing: { device: 'cpu', precision: 'fp32', tokenBudget },
  resume: false,
  shard: request.shard,
})
const memory = process.resourceUsage().maxRSS * 1024
await embedder.close()
const note = `blocks of ${encoded.computing.blockRows} nodes`
// as the others, which are given texts: the look over the data before is not part of it
writeFileSync(join(output, 'result.json'), JSON.stringify({ seconds: work.seconds, memory, note, work, encoded }))

// This project's side of `bench/encoding.mjs`: the embedder that everything here encodes with. A request and an answer are those
// of bench/peers/encode.py.
//
//   node bench/encoding/ours.mjs request.json
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openEmbedder, readEncoder } from '../../dist/encoder/index.js'
import { writeSafetensors } from '../../dist/onnx/index.js'

const { model, texts, warm, threads, tokenBudget, output } = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const opening = performance.now()
const profile = await readEncoder(model)
const embedder = await openEmbedder(profile, { threads, tokenBudget })
const loadSeconds = (performance.now() - opening) / 1000
await embedder.embedTexts(warm, 'node')
const began = performance.now()
const { embeddings } = await embedder.embedTexts(texts, 'node')
const seconds = (performance.now() - began) / 1000
const memory = process.resourceUsage().maxRSS * 1024
await embedder.close()
const shape = [texts.length, embeddings.length / texts.length]
const tensors = new Map([['embeddings', { dtype: 'float32', shape, data: embeddings }]])
await writeSafetensors(join(output, 'embeddings.safetensors'), tensors, {})
const note = `${tokenBudget} tokens at once`
writeFileSync(join(output, 'result.json'), JSON.stringify({ seconds, loadSeconds, memory, note }))

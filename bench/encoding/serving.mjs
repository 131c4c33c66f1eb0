// How long a program waits for refined items: `openEncoder` on a folder, then one question after the other. The request has
// `{ model, threads, cases: [{ question, items }], output }`.
//
//   node bench/encoding/serving.mjs request.json
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { openEncoder } from '../../dist/encoder/index.js'

const { model, threads, cases, output } = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const opening = performance.now()
const encoder = await openEncoder(model, { threads })
const loadSeconds = (performance.now() - opening) / 1000
const { question, items } = cases[0]
await encoder.refine(question, items)

const milliseconds = []
let nodes = 0
for (const { question, items } of cases) {
  const began = performance.now()
  const refined = await encoder.refine(question, items)
  milliseconds.push(performance.now() - began)
  for (const item of refined) nodes += item.nodes.length
}
const memory = process.resourceUsage().maxRSS * 1024
await encoder.close()
writeFileSync(join(output, 'result.json'), JSON.stringify({ loadSeconds, milliseconds, nodes, memory }))

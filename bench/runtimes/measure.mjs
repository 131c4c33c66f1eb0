// The course that every runtime in Node takes, so that figures can be compared. A request:
//
//   { model, file, dtype, f0, texts, long, questions, queries: [{ question, items, texts }], prompts: { query, node }, pooling,
//     normalize, dimension, threads, output }
//
// `model` is the exported folder, `file` its graph inside onnx/, `dtype` what transformers.js calls that, `f0` the exported query
// encoder. The answer is <output>/result.json and <output>/embeddings.safetensors with nodes (texts, then long ones) and questions.
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { writeSafetensors } from '../../dist/onnx/index.js'

/** Texts that are embedded before anything is timed. */
const WARM = 8

export const request = () => JSON.parse(readFileSync(process.argv[2], 'utf8'))

/**
 * Runs a runtime's course and leaves its answer.
 *
 * @param runtime `{ versions, importMs, open, embedNodes(texts), embedQuestions(texts), query(case) }`: open loads both encoders; embed…
 *   give float32 [texts, dimension]; query does what a program does for one question and ten items
 */
export async function measure(asked, runtime, rssBefore) {
  const { texts, long, questions, queries, dimension, output } = asked
  const opening = performance.now()
  await runtime.open()
  const loadMs = performance.now() - opening
  const rssLoaded = process.memoryUsage.rss()

  await runtime.query(queries[0])
  const milliseconds = []
  for (const [i, query] of queries.entries()) {
    const began = performance.now()
    await runtime.query(query)
    milliseconds.push(performance.now() - began)
    console.error(`query ${i + 1} of ${queries.length}`)
  }

  await runtime.embedNodes(texts.slice(0, WARM))
  const began = performance.now()
  const nodes = await runtime.embedNodes(texts)
  const seconds = (performance.now() - began) / 1000
  const longRows = long.length === 0 ? new Float32Array(0) : await runtime.embedNodes(long)
  const asQuestions = await runtime.embedQuestions(questions)
  const peak = process.resourceUsage().maxRSS * 1024
  await runtime.close?.()
  await writeAnswer(output, {
    result: {
      ...{ loadMs, importMs: runtime.importMs, seconds, milliseconds, versions: runtime.versions },
      memory: { loaded: rssLoaded - rssBefore, peak: peak - rssBefore },
    },
    nodes: joined(nodes, longRows),
    questions: asQuestions,
    dimension,
  })
}

/** Rows of two matrices, one below the other. */
export function joined(above, below) {
  const all = new Float32Array(above.length + below.length)
  all.set(above)
  all.set(below, above.length)
  return all
}

export async function writeAnswer(output, { result, nodes, questions, dimension }) {
  const matrix = (data) => ({ dtype: 'float32', shape: [data.length / dimension, dimension], data })
  const tensors = new Map([
    ['nodes', matrix(nodes)],
    ['questions', matrix(questions)],
  ])
  await writeSafetensors(join(output, 'embeddings.safetensors'), tensors, {})
  writeFileSync(join(output, 'result.json'), JSON.stringify(result))
}

/** Texts in batches of similar length, as one writes it by hand; `embed` gives rows [batch, dimension]. */
export async function inBatches(texts, dimension, embed, size = 16) {
  const order = [...texts.keys()].sort((a, b) => texts[a].length - texts[b].length)
  const rows = new Float32Array(texts.length * dimension)
  for (let start = 0; start < order.length; start += size) {
    const members = order.slice(start, start + size)
    const data = await embed(members.map((i) => texts[i]))
    members.forEach((i, row) => {
      rows.set(data.subarray(row * dimension, (row + 1) * dimension), i * dimension)
    })
  }
  return rows
}

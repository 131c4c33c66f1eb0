// transformers.js in Node: its feature-extraction pipeline on the exported folder.
//
//   node bench/runtimes/transformers-js.mjs request.json
import { resolve } from 'node:path'
import { inBatches, measure, request } from './measure.mjs'

const rssBefore = process.memoryUsage.rss()
const importing = performance.now()
const { env, pipeline } = await import('@huggingface/transformers')
const importMs = performance.now() - importing
env.allowRemoteModels = false

const asked = request()
const { model, dtype, f0, threads, dimension, pooling, normalize, prompts } = asked
const settings = { local_files_only: true, session_options: { intraOpNumThreads: threads, interOpNumThreads: 1 } }
let [nodeExtractor, queryExtractor] = []
const embed = (extract, prompt, texts) =>
  inBatches(texts, dimension, async (batch) => {
    const { data } = await extract(
      batch.map((text) => prompt + text),
      { pooling, normalize },
    )
    return data
  })
await measure(
  asked,
  {
    importMs,
    versions: { 'transformers.js': env.version },
    open: async () => {
      nodeExtractor = await pipeline('feature-extraction', resolve(model), { ...settings, dtype })
      queryExtractor = await pipeline('feature-extraction', resolve(f0), { ...settings, dtype: 'fp32' })
    },
    query: async ({ question, texts }) => [
      await embed(queryExtractor, prompts.query, [question]),
      await embed(nodeExtractor, prompts.node, texts),
    ],
    embedNodes: (texts) => embed(nodeExtractor, prompts.node, texts),
    embedQuestions: (texts) => embed(queryExtractor, prompts.query, texts),
  },
  rssBefore,
)

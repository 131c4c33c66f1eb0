// This toolkit on the exported folder: openEncoder for a question of ten items, openEmbedder for embeddings.
//
//   node bench/runtimes/canopy.mjs request.json
import { measure, request } from './measure.mjs'

const rssBefore = process.memoryUsage.rss()
const importing = performance.now()
const { openEmbedder, openEncoder, readEncoder } = await import('../../dist/encoder/index.js')
const importMs = performance.now() - importing

const asked = request()
const { model, file, f0, threads } = asked
let [encoder, embedder, query] = []
/** The embedders open when the waiting time has been measured, so that only one pair is in memory at a time. */
const embedders = async () => {
  if (embedder !== undefined) return
  await encoder.close()
  embedder = await openEmbedder(await readEncoder(model, { kind: 'onnx', onnxFile: file }), { threads })
  query = await openEmbedder(await readEncoder(f0), { threads })
}
await measure(
  asked,
  {
    importMs,
    versions: {},
    open: async () => {
      // the folder bundles f0
      encoder = await openEncoder(model, { threads, onnxFile: file })
    },
    query: ({ question, items }) => encoder.refine(question, items),
    embedNodes: async (texts) => {
      await embedders()
      return (await embedder.embedTexts(texts, 'node')).embeddings
    },
    embedQuestions: async (texts) => (await query.embedTexts(texts, 'query')).embeddings,
    close: async () => {
      await embedder.close()
      await query.close()
    },
  },
  rssBefore,
)

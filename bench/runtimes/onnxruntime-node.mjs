// onnxruntime-node as one writes it by hand, without this toolkit: the folder's tokenizer by transformers.js, a session, mean pooling.
//
//   node bench/runtimes/onnxruntime-node.mjs request.json
import { join, resolve } from 'node:path'
import { inBatches, measure, request } from './measure.mjs'

const rssBefore = process.memoryUsage.rss()
const importing = performance.now()
const ort = await import('onnxruntime-node')
const { AutoTokenizer, env } = await import('@huggingface/transformers')
const importMs = performance.now() - importing
env.allowRemoteModels = false

const asked = request()
const { model, file, f0, threads, dimension, pooling, normalize, prompts } = asked

async function open(folder, graph) {
  const tokenizer = await AutoTokenizer.from_pretrained(resolve(folder), { local_files_only: true })
  const session = await ort.InferenceSession.create(join(folder, 'onnx', graph), {
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
  })
  return async (texts) => {
    const { input_ids, attention_mask } = tokenizer(texts, { padding: true, truncation: true })
    const [rows, length] = input_ids.dims
    const tensor = (data) => new ort.Tensor('int64', data, [rows, length])
    const feeds = { input_ids: tensor(input_ids.data), attention_mask: tensor(attention_mask.data) }
    if (session.inputNames.includes('token_type_ids'))
      feeds.token_type_ids = tensor(new BigInt64Array(input_ids.data.length))
    const { last_hidden_state: hidden } = await session.run(feeds)
    return pooled(hidden.data, hidden.dims, attention_mask.data)
  }
}

/** [rows, length, width] -> [rows, dimension] */
function pooled(hidden, [rows, length, width], mask) {
  const out = new Float32Array(rows * dimension)
  for (let row = 0; row < rows; row++) {
    const sum = new Float64Array(width)
    for (let t = 0; t < length; t++) {
      const wanted = pooling === 'cls' ? t === 0 : mask[row * length + t] === 1n
      if (!wanted) continue
      for (let k = 0; k < width; k++) sum[k] += hidden[(row * length + t) * width + k]
    }
    const kept = sum.subarray(0, dimension)
    const norm = normalize ? Math.sqrt(kept.reduce((total, x) => total + x * x, 0)) : 1
    out.set(
      kept.map((x) => x / norm),
      row * dimension,
    )
  }
  return out
}

let [nodeEncoder, queryEncoder] = []
const embedNodes = (texts) =>
  inBatches(
    texts.map((text) => prompts.node + text),
    dimension,
    nodeEncoder,
  )
const embedQuestions = (texts) =>
  inBatches(
    texts.map((text) => prompts.query + text),
    dimension,
    queryEncoder,
  )
await measure(
  asked,
  {
    importMs,
    versions: { 'onnxruntime-node': ort.env.versions.node ?? ort.env.versions.common, 'transformers.js': env.version },
    open: async () => {
      nodeEncoder = await open(model, file)
      queryEncoder = await open(f0, 'model.onnx')
    },
    query: async ({ question, texts }) => [await embedQuestions([question]), await embedNodes(texts)],
    embedNodes,
    embedQuestions,
  },
  rssBefore,
)

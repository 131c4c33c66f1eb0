// f0 and fθ of an exported folder in the browser: canopy-encoder/web for trees, tokens, pooling and the rule, transformers.js for the
// tokenizer and ONNX Runtime. Everything is fetched from where this page lies, and nothing from elsewhere.
import { InputError, poolRows, RENDERING_VERSION, refineWith, tokenReader } from './lib/canopy/web.js'
import { AutoModel, AutoTokenizer, env, Tensor } from './lib/transformers.min.js'

/** Tokens computed at once, padding included. */
const TOKENS_AT_ONCE = 2048

/**
 * Opens the encoders of a site that serve.mjs has written.
 *
 * @param {string} site address of the folder that holds site.json
 * @param {'webgpu' | 'wasm'} device
 * @param {(file: string, loaded: number, total: number) => void} onProgress bytes of each file of the model
 */
export async function openWebEncoder(site, device, onProgress) {
  const { node, query } = await json(new URL('site.json', site))
  env.allowRemoteModels = false
  env.allowLocalModels = true
  env.localModelPath = new URL('.', site).pathname
  // a browser's own cache asks the server whether a file has changed; the Cache API does not
  env.useBrowserCache = false
  env.useWasmCache = false
  // the build without WebGPU is half as large
  const build = `ort-wasm-simd-threaded${device === 'webgpu' ? '.asyncify' : ''}`
  const wasm = env.backends.onnx.wasm
  wasm.wasmPaths = { mjs: new URL(`lib/${build}.mjs`, site).href, wasm: new URL(`lib/${build}.wasm`, site).href }
  // threads share memory, which a browser allows only to a page that its server isolates (serve.mjs does)
  wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency || 1) : 1

  const canopy = await json(new URL(`${node}/canopy.json`, site))
  if (canopy.schema !== 'canopy-encoder/1' || canopy.rendering !== RENDERING_VERSION)
    throw new InputError(
      `${node}/canopy.json was written by another version of canopy-encoder (${canopy.schema}, ${canopy.rendering}) than this page's (${RENDERING_VERSION}). Export the encoder again.`,
    )
  const nodes = await openSide(site, node, { canopy, prompt: canopy.prompts.node, device, onProgress })
  const questions =
    query === node
      ? { ...nodes, embed: (texts) => nodes.embed(texts, canopy.prompts.query) }
      : await openSide(site, query, { canopy, prompt: canopy.prompts.query, device, onProgress })

  // the first run of a session prepares it
  await Promise.all([nodes.embed(['.']), questions.embed(['?'])])
  return {
    settings: { ...canopy, maxLength: nodes.reader.maxLength, dimension: nodes.dimension },
    threads: device === 'wasm' ? wasm.numThreads : undefined,
    /** @param {{ title?: string, text: string }} item */
    async refine(question, item) {
      const embedQuery = async (text) => (await questions.embed([text])).embeddings
      const [refined] = await refineWith({ embedQuery, embedNodes: nodes.embed, settings: canopy }, question, [item])
      const count = (text) => nodes.reader.pieces(text).length
      return {
        ...refined,
        tokens: { all: count(item.text), kept: refined.kept.reduce((sum, { text }) => sum + count(text), 0) },
      }
    },
  }
}

/** One encoder of the pair, with what its folder says about texts and pooling. */
async function openSide(site, folder, { canopy, prompt, device, onProgress }) {
  const file = (name) => json(new URL(`${folder}/${name}`, site))
  const [own, modules, tokenizerJson, config] = await Promise.all(
    ['canopy.json', 'modules.json', 'tokenizer.json', 'config.json'].map(file),
  )
  const [sentence, saved, pooling] = await Promise.all([
    file('sentence_bert_config.json'),
    file('config_sentence_transformers.json'),
    file(`${modules.find(({ type }) => type.endsWith('.Pooling')).path}/config.json`),
  ])
  const flag = Object.keys(POOLINGS).find((name) => pooling[name] === true)
  if (flag === undefined) throw new InputError(`${folder}: only mean, cls and last-token pooling can be computed here.`)

  const progress_callback = ({ status, file: name, loaded, total }) => {
    if (status === 'progress') onProgress(`${folder}/${name}`, loaded, total)
  }
  const tokenizer = await AutoTokenizer.from_pretrained(folder, { progress_callback })
  const graph = own.onnxFile ?? 'model.onnx'
  const data = Object.keys(own.files ?? {}).filter((name) => name.startsWith(`onnx/${graph}_data`))
  const model = await AutoModel.from_pretrained(folder, {
    progress_callback,
    device,
    dtype: 'fp32', // stands for "no ending": the file is named
    model_file_name: graph.replace(/\.onnx$/, ''),
    use_external_data_format: data.length,
    session_options: { graphOptimizationLevel: 'all' },
  })

  const reader = tokenReader(tokenizer, {
    json: tokenizerJson,
    lowerCase: sentence.do_lower_case ?? false,
    maxLength: sentence.max_seq_length,
    fromLeft: tokenizer.config?.truncation_side === 'left',
    file: `${folder}/tokenizer.json`,
  })
  const width = pooling.word_embedding_dimension ?? config.hidden_size
  const dimension = canopy.dimensions ?? saved.truncate_dim ?? width
  const normalize = modules.some(({ type }) => type.endsWith('.Normalize'))
  const profile = { normalize, dimension, width, weights: `${folder}/onnx/${graph}` }
  // where operators quantise activations by their range in the batch, a row depends on its neighbours
  const alone = !['model.onnx', 'model_fp16.onnx'].includes(graph)

  /** float32 [sequences, dimension] of rows of like length. */
  const compute = async (rows) => {
    const length = Math.max(...rows.map(({ ids }) => ids.length))
    const ids = new BigInt64Array(rows.length * length).fill(BigInt(tokenizer.pad_token_id ?? 0))
    const mask = new BigInt64Array(rows.length * length)
    for (const [r, row] of rows.entries())
      for (const [t, id] of row.ids.entries()) {
        ids[r * length + t] = BigInt(id)
        mask[r * length + t] = 1n
      }
    const tensor = (values) => new Tensor('int64', values, [rows.length, length])
    const { last_hidden_state } = await model({
      ...{ input_ids: tensor(ids), attention_mask: tensor(mask) },
      token_type_ids: tensor(new BigInt64Array(rows.length * length)),
    })
    const vectors = last_hidden_state.to('float32').data
    return poolRows(vectors, rows, POOLINGS[flag], profile)
  }

  return {
    reader,
    dimension,
    /** Embeddings float32 [texts, dimension]; equal token sequences are computed once, so that they tie exactly. */
    async embed(texts, before = prompt) {
      const encoded = texts.map((text) => reader.encode(before + text))
      const places = new Map()
      for (const [i, { ids }] of encoded.entries()) {
        const key = ids.join()
        const place = places.get(key)
        if (place === undefined) places.set(key, { ids, at: [i] })
        else place.at.push(i)
      }
      const rows = [...places.values()].sort((a, b) => a.ids.length - b.ids.length)
      const embeddings = new Float32Array(texts.length * dimension)
      for (let from = 0; from < rows.length; ) {
        let to = from + 1
        while (!alone && to < rows.length && rows[to].ids.length * (to + 1 - from) <= TOKENS_AT_ONCE) to++
        const batch = rows.slice(from, to)
        const found = await compute(batch)
        for (const [r, { at }] of batch.entries())
          for (const i of at) embeddings.set(found.subarray(r * dimension, (r + 1) * dimension), i * dimension)
        from = to
      }
      return { embeddings, truncated: encoded.map(({ truncated }) => truncated) }
    },
  }
}

const POOLINGS = { pooling_mode_mean_tokens: 'mean', pooling_mode_cls_token: 'cls', pooling_mode_lasttoken: 'last' }

async function json(url) {
  const response = await fetch(url).catch((error) => {
    throw new InputError(`${url.pathname} cannot be loaded (${error.message}). Is the server still running?`)
  })
  if (!response.ok)
    throw new InputError(
      `${url.pathname} is not there (${response.status}). Write the site with "node examples/browser/serve.mjs <exported folder>".`,
    )
  return response.json()
}

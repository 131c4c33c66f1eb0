// In the page: transformers.js over the folders below /models/, WebAssembly files from this server only.
import { env, pipeline } from '@huggingface/transformers'

env.allowRemoteModels = false
env.allowLocalModels = true
env.localModelPath = '/models/'
env.useBrowserCache = false
env.backends.onnx.wasm.wasmPaths = '/onnxruntime-web/'

const extractors = new Map()

globalThis.runtime = {
  version: env.version,
  isolated: globalThis.crossOriginIsolated,
  /** What WebGPU runs on here; undefined where there is none. */
  async gpu() {
    const adapter = await navigator.gpu?.requestAdapter()
    return (
      adapter && {
        vendor: adapter.info.vendor,
        architecture: adapter.info.architecture,
        description: adapter.info.description,
        features: [...adapter.features],
      }
    )
  },
  /** Loads /models/<name>/ in a type, on `wasm` or `webgpu`. */
  async load(name, dtype, device, threads) {
    env.backends.onnx.wasm.numThreads = threads
    extractors.set(name, await pipeline('feature-extraction', name, { dtype, device }))
  },
  /** Rows of a batch of texts, as an array of numbers. */
  async embed(name, texts, pooling, normalize) {
    const output = await extractors.get(name)(texts, { pooling, normalize })
    const rows = [...output.data]
    output.dispose?.()
    return rows
  },
}

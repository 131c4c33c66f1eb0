import { realpath } from 'node:fs/promises'
import * as ort from 'onnxruntime-node'
import { InputError } from '../support/errors.ts'
import { checkGraph } from './check.ts'
import type { Dim, DType, Graph, Tensor, ValueType } from './graph.ts'
import { encodeModel } from './serialise.ts'
import { checkTensor, isExternal } from './tensor.ts'

export interface SessionOptions {
  /** Folder of the files that the graph's external tensors name. */
  externalFolder?: string
  /** Threads within an operator; ONNX Runtime's choice (one per physical core) where absent. */
  threads?: number
  /** ONNX Runtime's graph optimisations; `all` where absent. They change results in the last bits. */
  optimization?: 'disabled' | 'basic' | 'extended' | 'all'
  /** Execution providers in order of preference; the CPU where absent. */
  providers?: string[]
}

/** A loaded graph. It holds native memory until it is released. */
export interface Session {
  readonly inputs: ReadonlyMap<string, ValueType>
  readonly outputs: readonly string[]
  /**
   * Runs the graph on exactly its inputs and returns all its outputs. The event loop stands still meanwhile.
   *
   * @throws TypeError or RangeError for a feed that is missing, unknown, or not of the declared type and shape.
   */
  run(feeds: Record<string, Tensor>): Promise<Record<string, Tensor>>
  /** Frees the native memory; the session cannot run afterwards. */
  release(): Promise<void>
}

/**
 * Loads a graph, or the bytes or the path of an ONNX file, into ONNX Runtime. A path loads any size and finds external
 * data beside the file; a graph or bytes need `externalFolder` for it.
 *
 * @throws InputError when ONNX Runtime refuses the model or does not find its external data.
 */
export async function openSession(source: Graph | Uint8Array | string, options: SessionOptions = {}): Promise<Session> {
  const settings: ort.InferenceSession.SessionOptions = {
    executionProviders: options.providers ?? ['cpu'],
    graphOptimizationLevel: options.optimization ?? 'all',
    executionMode: 'sequential',
    interOpNumThreads: 1,
    enableCpuMemArena: true,
    // Memory planned by the shapes of the first run would not fit the next: batches differ in shape.
    enableMemPattern: false,
    // Failures arrive as exceptions; ONNX Runtime need not print them too.
    logSeverityLevel: 4,
    ...(options.threads === undefined ? {} : { intraOpNumThreads: options.threads }),
  }
  // Idle threads that spin cost a busy machine about a third of its speed or more, and give a quiet one a few percent.
  const session: Record<string, unknown> = { intra_op: { allow_spinning: '0' } }
  if (options.externalFolder !== undefined)
    session.model_external_initializers_file_folder_path = await realFolder(options.externalFolder)
  settings.extra = { session }
  const created = await create(source, options, settings)
  return wrap(created, typeof source === 'object' && !(source instanceof Uint8Array) ? source : undefined)
}

async function create(
  source: Graph | Uint8Array | string,
  options: SessionOptions,
  settings: ort.InferenceSession.SessionOptions,
): Promise<ort.InferenceSession> {
  if (typeof source === 'string') {
    // ONNX Runtime looks for external data beside the file it is given, and refuses links out of that folder.
    const file = await realpath(source).catch((e: NodeJS.ErrnoException) => {
      throw new InputError(`there is no ONNX model here (${e.code ?? e.message})`, { file: source }, e)
    })
    return ort.InferenceSession.create(file, settings).catch((e: Error) => {
      throw new InputError(`ONNX Runtime cannot load this model: ${reason(e)}`, { file: source }, e)
    })
  }
  if (!(source instanceof Uint8Array)) checkExternal(source, options)
  const bytes = source instanceof Uint8Array ? source : encodeModel(source)
  return ort.InferenceSession.create(bytes, settings).catch((e: Error) => {
    const place = options.externalFolder === undefined ? '' : ` with weights in ${options.externalFolder}`
    throw new InputError(`ONNX Runtime cannot load the graph${place}: ${reason(e)}`, {}, e)
  })
}

function checkExternal(graph: Graph, options: SessionOptions): void {
  checkGraph(graph)
  for (const [name, tensor] of graph.initializers)
    if (isExternal(tensor) && options.externalFolder === undefined)
      throw new Error(`The initializer "${name}" lies in the file "${tensor.external.file}": give its folder`)
}

async function realFolder(folder: string): Promise<string> {
  try {
    return await realpath(folder)
  } catch (e) {
    throw new InputError('the folder of the weights does not exist', { file: folder }, e)
  }
}

/** ONNX Runtime's own words, without the addresses of its source lines. */
function reason(e: Error): string {
  return e.message.replace(/^Error: /, '').replace(/\/\S*\/(?=[\w.]+:\d+ )/g, '')
}

function wrap(session: ort.InferenceSession, graph: Graph | undefined): Session {
  const inputs = new Map<string, ValueType>()
  for (const meta of session.inputMetadata) {
    if (!meta.isTensor) throw new InputError(`the model's input "${meta.name}" is no tensor`)
    const shape = meta.shape.map((d): Dim => (typeof d === 'string' && d === '' ? '?' : d))
    inputs.set(meta.name, graph?.types.get(meta.name) ?? { dtype: meta.type as DType, shape })
  }
  let open = true
  return {
    inputs,
    outputs: session.outputNames,
    async run(feeds) {
      if (!open) throw new Error('The session has been released')
      checkFeeds(inputs, feeds)
      const native: Record<string, ort.Tensor> = {}
      for (const [name, tensor] of Object.entries(feeds)) native[name] = toNative(name, tensor)
      const results = await session.run(native).catch((e: Error) => {
        throw new Error(`ONNX Runtime failed: ${reason(e)}`, { cause: e })
      })
      return Object.fromEntries(
        session.outputNames.map((name) => [name, fromNative(name, results[name] as ort.Tensor)]),
      )
    },
    async release() {
      if (!open) return
      open = false
      await session.release()
    },
  }
}

/** Feeds are exactly the inputs, of their types, and equal symbols are equal sizes. */
function checkFeeds(inputs: Map<string, ValueType>, feeds: Record<string, Tensor>): void {
  const sizes = new Map<string, { size: number; input: string }>()
  for (const name of Object.keys(feeds))
    if (!inputs.has(name))
      throw new RangeError(`The graph has no input "${name}"; it has ${[...inputs.keys()].join(', ')}`)
  for (const [name, { dtype, shape }] of inputs) {
    const tensor = feeds[name]
    if (tensor === undefined) throw new RangeError(`The input "${name}" is missing`)
    checkTensor(`input "${name}"`, tensor)
    if (tensor.dtype !== dtype) throw new TypeError(`The input "${name}" is ${dtype}, not ${tensor.dtype}`)
    const found = `[${tensor.shape.join(', ')}]`
    if (tensor.shape.length !== shape.length)
      throw new RangeError(`The input "${name}" has shape [${shape.join(', ')}], not ${found}`)
    shape.forEach((d, i) => {
      const size = tensor.shape[i] as number
      if (typeof d === 'number') {
        if (d !== size) throw new RangeError(`The input "${name}" has shape [${shape.join(', ')}], not ${found}`)
        return
      }
      if (d === '?') return
      const seen = sizes.get(d)
      if (seen === undefined) sizes.set(d, { size, input: name })
      else if (seen.size !== size)
        throw new RangeError(
          `"${d}" is ${seen.size} in the input "${seen.input}" and ${size} in "${name}", of shape ${found}`,
        )
    })
  }
}

function toNative(name: string, tensor: Tensor): ort.Tensor {
  if (tensor.dtype === 'bfloat16')
    throw new TypeError(`The input "${name}" is bfloat16, which ONNX Runtime's Node binding does not pass on`)
  return new ort.Tensor(tensor.dtype, tensor.data as ort.Tensor.DataType, tensor.shape)
}

function fromNative(name: string, tensor: ort.Tensor): Tensor {
  if (!known.has(tensor.type)) throw new TypeError(`The output "${name}" is ${tensor.type}, which is not supported`)
  const raw = tensor.data as Exclude<ort.Tensor.DataType, string[]>
  // From Node 24 on float16 arrives as a Float16Array; here it is always bits.
  const data =
    tensor.type === 'float16'
      ? new Uint16Array(raw.buffer as ArrayBuffer, raw.byteOffset, raw.length)
      : (raw as Tensor['data'])
  return { dtype: tensor.type as DType, shape: [...tensor.dims], data }
}

const known = new Set<string>(['float32', 'float16', 'float64', 'int8', 'uint8', 'int32', 'int64', 'bool'])

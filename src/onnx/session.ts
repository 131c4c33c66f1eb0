import { realpath } from 'node:fs/promises'
import type * as ort from 'onnxruntime-node'
import { InputError } from '../support/errors.ts'
import { castWhereUsed, leavesWeightsStored } from './cast-where-used.ts'
import { checkGraph } from './check.ts'
import type { Dim, DType, Graph, Tensor, ValueType } from './graph.ts'
import { beginProfile, type Placement, type Profile } from './placement.ts'
import { type Device, deviceFault, loadRuntime, providerSettings, type Runtime } from './providers.ts'
import { encodeModel } from './serialise.ts'
import { checkTensor, isExternal } from './tensor.ts'
import { forWebgpu } from './webgpu.ts'

export interface SessionOptions {
  /** Folder of the files that the graph's external tensors name. */
  externalFolder?: string
  /** Threads within an operator; ONNX Runtime's choice (one per physical core) where absent. */
  threads?: number
  /**
   * ONNX Runtime's graph optimisations; `all` where absent. They change results in the last bits. A graph whose large weights are
   * stored in half precision has none.
   */
  optimization?: 'disabled' | 'basic' | 'extended' | 'all'
  /** Where the graph runs; the CPU where absent. Nodes for which another device has no kernel run on the CPU beside it. */
  device?: Device
  /** Told after the first run on another device than the CPU which nodes ran where. */
  onPlacement?: (placement: Placement) => void
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
 * @throws InputError when ONNX Runtime refuses the model or does not find its external data, and when the device is not there;
 *   it never runs elsewhere instead
 */
export async function openSession(source: Graph | Uint8Array | string, options: SessionOptions = {}): Promise<Session> {
  const device = options.device ?? 'cpu'
  const runtime = await loadRuntime()
  const given = typeof source === 'object' && !(source instanceof Uint8Array) ? source : undefined
  const mapped = given !== undefined && device === 'cpu' && leavesWeightsStored(given)
  const settings: ort.InferenceSession.SessionOptions = {
    ...providerSettings(device, runtime),
    // ONNX Runtime's first level already folds casts into copies; graphs built here gain nothing by the others.
    graphOptimizationLevel: mapped ? 'disabled' : (options.optimization ?? 'all'),
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
  if (given !== undefined) {
    // ONNX Runtime would multiply by quantised weights in int8 (MatMulNBits), activations too; graphs mean what they say.
    session.disable_quant_qdq = '1'
    // Products with weights packed beforehand sum in another order than those with matrices that a run makes. Without packing a
    // map with a LoRA update of zero gives the bits of the map itself, and no session holds copies of its weights; no slower.
    session.disable_prepacking = '1'
  }
  if (options.externalFolder !== undefined)
    session.model_external_initializers_file_folder_path = await realFolder(options.externalFolder)
  // What a backward pass computes again, ONNX Runtime would take from the forward pass and keep until then.
  const again = given?.nodes.some((node) => node.again)
  const optimization = again ? { disable_specified_optimizers: 'CommonSubexpressionElimination' } : {}
  settings.extra = { session, optimization }
  const profile = device === 'cpu' ? undefined : await beginProfile()
  try {
    const loaded = mapped ? castWhereUsed(given) : source
    const created = await create(runtime, loaded, options, { ...settings, ...profile?.settings })
    const opened = wrap(runtime, created, device, given)
    return profile === undefined ? opened : placed(opened, created, profile, { ...options, device })
  } catch (error) {
    await profile?.discard()
    throw error
  }
}

/** A session that looks after its first run at where nodes ran. */
function placed(
  session: Session,
  created: ort.InferenceSession,
  profile: Profile,
  { device, onPlacement }: Pick<SessionOptions, 'onPlacement'> & { device: Device },
): Session {
  let looked = false
  return {
    ...session,
    async run(feeds) {
      const results = await session.run(feeds)
      if (looked) return results
      looked = true
      const placement = await profile.placement(created, device)
      if (placement.onDevice === 0)
        throw new InputError(`No node of the graph ran on ${device}: it has no kernel for any of them.`)
      onPlacement?.(placement)
      return results
    },
    async release() {
      await session.release()
      await profile.discard()
    },
  }
}

async function create(
  runtime: Runtime,
  source: Graph | Uint8Array | string,
  options: SessionOptions,
  settings: ort.InferenceSession.SessionOptions,
): Promise<ort.InferenceSession> {
  if (typeof source === 'string') {
    // ONNX Runtime looks for external data beside the file it is given, and refuses links out of that folder.
    const file = await realpath(source).catch((e: NodeJS.ErrnoException) => {
      throw new InputError(`there is no ONNX model here (${e.code ?? e.message})`, { file: source }, e)
    })
    return runtime.InferenceSession.create(file, settings).catch((e: Error) => {
      throw (
        deviceFault(options.device ?? 'cpu', reason(e)) ??
        new InputError(`ONNX Runtime cannot load this model: ${reason(e)}`, { file: source }, e)
      )
    })
  }
  if (!(source instanceof Uint8Array)) checkExternal(source, options)
  const bytes =
    source instanceof Uint8Array ? source : encodeModel(options.device === 'webgpu' ? forWebgpu(source) : source)
  return runtime.InferenceSession.create(bytes, settings).catch((e: Error) => {
    const place = options.externalFolder === undefined ? '' : ` with weights in ${options.externalFolder}`
    throw (
      deviceFault(options.device ?? 'cpu', reason(e)) ??
      new InputError(`ONNX Runtime cannot load the graph${place}: ${reason(e)}`, {}, e)
    )
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

/** ONNX Runtime's own words in one line, without the addresses of its source lines. */
function reason(e: Error): string {
  return e.message
    .trim()
    .replace(/\s+/g, ' ')
    .replace(/^Error: /, '')
    .replace(/\/\S*\/(?=[\w.]+:\d+ )/g, '')
}

function wrap(runtime: Runtime, session: ort.InferenceSession, device: Device, graph: Graph | undefined): Session {
  const inputs = new Map<string, ValueType>()
  for (const meta of session.inputMetadata) {
    if (!meta.isTensor) throw new InputError(`the model's input "${meta.name}" is no tensor`)
    const shape = meta.shape.map((d): Dim => (typeof d === 'string' && d === '' ? '?' : d))
    inputs.set(meta.name, graph?.types.get(meta.name) ?? { dtype: meta.type as DType, shape })
  }
  // Some (int4) end the process where they are returned.
  for (const meta of session.outputMetadata)
    if (meta.isTensor && !known.has(meta.type))
      throw new InputError(`the model's output "${meta.name}" is ${meta.type}, which is not supported`)
  let open = true
  return {
    inputs,
    outputs: session.outputNames,
    async run(feeds) {
      if (!open) throw new Error('The session has been released')
      checkFeeds(inputs, feeds)
      const native: Record<string, ort.Tensor> = {}
      for (const [name, tensor] of Object.entries(feeds)) native[name] = toNative(runtime, name, tensor)
      const results = await session.run(native).catch((e: Error) => {
        throw deviceFault(device, reason(e)) ?? new Error(`ONNX Runtime failed: ${reason(e)}`, { cause: e })
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

function toNative(runtime: Runtime, name: string, tensor: Tensor): ort.Tensor {
  if (!known.has(tensor.dtype))
    throw new TypeError(`The input "${name}" is ${tensor.dtype}, which ONNX Runtime's Node binding does not pass on`)
  return new runtime.Tensor(tensor.dtype as ort.Tensor.Type, tensor.data as ort.Tensor.DataType, tensor.shape)
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

const known = new Set<string>(
  ['float32', 'float16', 'float64', 'int8', 'uint8', 'int16', 'uint16'].concat([
    'int32',
    'uint32',
    'int64',
    'uint64',
    'bool',
  ]),
)

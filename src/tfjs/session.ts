import { type Graph, loadTensor, type Node, prune, type Tensor } from '../onnx/index.ts'
import { type LoadedTfjs, loadTfjs } from './backend.ts'
import type { TfjsBackend } from './backend-names.ts'
import { hostOperators } from './host.ts'
import { unpacked } from './host-tensors.ts'
import type { OperatorContext } from './operator.ts'
import { operators } from './operators.ts'
import { download, type Float, int64, onHost, type Tfjs, upload, type Value } from './values.ts'

export interface TfjsOptions {
  /** Folder of the files that the graph's external tensors name. */
  externalFolder?: string
  /** The best backend that is installed where absent. */
  backend?: TfjsBackend
  /** Most bytes of tensors, of all sessions together; 3 GiB for the wasm backend and no limit for others where absent. */
  memoryLimit?: number
}

/** What is differentiated, and with respect to what. */
export interface GradientRequest {
  /** A float32 value of the graph. */
  of: string
  /** Its gradient, of its shape; 1 where absent, for a scalar. */
  seed?: Tensor
  /** Names of float32 inputs. */
  wrt: readonly string[]
  /** Further values of the graph that are returned. */
  outputs?: readonly string[]
}

/** A graph whose weights lie in the memory of a TensorFlow.js backend. Close it. */
export interface TfjsSession {
  readonly backend: TfjsBackend
  /** The version of TensorFlow.js. */
  readonly version: string
  /** Evaluates the graph's outputs, or some of them, on those of its inputs that they need. */
  run(feeds: Record<string, Tensor>, outputs?: readonly string[]): Promise<Record<string, Tensor>>
  /** Gradients by reverse differentiation in TensorFlow.js (`tf.valueAndGrads`), by the inputs' names. */
  gradients(
    feeds: Record<string, Tensor>,
    request: GradientRequest,
  ): Promise<{ outputs: Record<string, Tensor>; gradients: Map<string, Float32Array> }>
  /** Frees the weights. */
  close(): void
}

/**
 * The backend that would be used, and the version of TensorFlow.js.
 *
 * @throws InputError where none (or not the one asked for) is installed, or it does not run here
 */
export async function installedTfjs(wanted?: TfjsBackend): Promise<{ backend: TfjsBackend; version: string }> {
  const { backend, version } = await loadTfjs(wanted)
  return { backend, version }
}

/**
 * The wasm backend addresses 4 GiB, packed copies of weights and the backward pass's own tensors included, and past them writes to
 * wrong places instead of failing.
 */
const WASM_MEMORY = 3 * 2 ** 30

/** Beyond this rank the wasm backend's kernels give wrong numbers without an error. */
const MAX_RANK = 6

/**
 * Loads a graph into TensorFlow.js. float32 values live in the backend; integers, truth values and whatever else is not float32
 * stay here and are exact. Whatever does not depend on the graph's inputs is computed now.
 *
 * @throws InputError where TensorFlow.js is not installed, or a weights file cannot be read
 * @throws Error naming an operator that has no TensorFlow.js expression, and its node
 */
export async function openTfjs(graph: Graph, options: TfjsOptions = {}): Promise<TfjsSession> {
  const pruned = prune(graph)
  for (const { op, name } of pruned.nodes)
    if (!(op in operators || op in hostOperators || op in shapeOperators))
      throw new Error(`No TensorFlow.js expression for: ${op} (node "${name}")`)
  const loaded = await loadTfjs(options.backend)
  const { tf } = loaded
  const memoryLimit = options.memoryLimit ?? (loaded.backend === 'wasm' ? WASM_MEMORY : Number.POSITIVE_INFINITY)
  const constants = new Map<string, Value>()
  let nodes: Node[]
  try {
    nodes = await loadConstants(pruned, constants, loaded, memoryLimit, options.externalFolder)
  } catch (error) {
    dispose(constants.values())
    throw error
  }
  const plans = new Map<string, Node[]>()
  const planFor = (outputs: readonly string[]): Node[] => {
    const key = outputs.join('\n')
    const plan = plans.get(key) ?? needed(nodes, outputs)
    plans.set(key, plan)
    return plan
  }

  const read = (values: Map<string, Value>, names: readonly string[]): Record<string, Tensor> =>
    Object.fromEntries(
      names.map((name) => {
        const value = lookUp(values, name)
        return [name, onHost(value) ? value : download(value)]
      }),
    )

  return {
    backend: loaded.backend,
    version: loaded.version,
    async run(feeds, outputs = pruned.outputs) {
      await loaded.activate()
      const plan = planFor(outputs)
      let result: Record<string, Tensor> = {}
      tf.tidy(() => {
        const values = new Map(constants)
        feed(tf, values, pruned, plan, outputs, feeds)
        evaluate(tf, plan, pruned.opset, values, { memoryLimit, keep: new Set([...constants.keys(), ...outputs]) })
        result = read(values, outputs)
      })
      return result
    },
    async gradients(feeds, { of, seed, wrt, outputs = [] }) {
      await loaded.activate()
      const wanted = [of, ...outputs]
      const plan = planFor(wanted)
      let result: Record<string, Tensor> = {}
      const gradients = new Map<string, Float32Array>()
      tf.tidy(() => {
        const variables = wrt.map((name) => upload(tf, fed(feeds, name)))
        const loss = (...inputs: Float[]): Float => {
          const values = new Map(constants)
          feed(tf, values, pruned, plan, wanted, feeds)
          wrt.forEach((name, i) => {
            values.set(name, inputs[i]!)
          })
          evaluate(tf, plan, pruned.opset, values, { memoryLimit, tracked: new Set(wrt) })
          result = read(values, outputs)
          const value = lookUp(values, of)
          if (onHost(value)) throw new Error(`"${of}" is ${value.dtype}, which cannot be differentiated`)
          return value
        }
        const grads = differentiate(tf, loss, variables, seed === undefined ? undefined : upload(tf, seed))
        wrt.forEach((name, i) => {
          gradients.set(name, download(grads[i]!).data as Float32Array)
        })
      })
      return { outputs: result, gradients }
    },
    close() {
      dispose(constants.values())
      constants.clear()
    },
  }
}

/** Gradients of `f` at `variables` by the tape of TensorFlow.js. */
function differentiate(
  tf: Tfjs,
  f: (...inputs: Float[]) => Float,
  variables: Float[],
  seed: Float | undefined,
): Float[] {
  try {
    return tf.valueAndGrads(f)(variables, seed).grads
  } catch (error) {
    // what is kept for the backward pass is freed after it, but not when it fails
    for (const { saved } of tf.engine().state.activeTape) for (const tensor of saved ?? []) tensor.dispose()
    throw error
  }
}

function dispose(values: Iterable<Value>): void {
  for (const value of values) if (!onHost(value)) value.dispose()
}

/** Operators that look at nothing but a shape. */
const shapeOperators: Record<string, (shape: number[], node: Node) => Tensor> = {
  Shape: (shape, { attributes: { start, end } }) =>
    int64(
      shape.slice(
        start !== undefined && 'i' in start ? start.i : 0,
        end !== undefined && 'i' in end ? end.i : undefined,
      ),
    ),
  Size: (shape) => int64([shape.reduce((a, b) => a * b, 1)], []),
}

/**
 * Adds the initializers and everything that follows from them alone to `constants`, as far as the rest of the graph needs it.
 *
 * @returns the rest: the nodes that depend on the graph's inputs
 */
async function loadConstants(
  graph: Graph,
  constants: Map<string, Value>,
  { tf, activate }: LoadedTfjs,
  memoryLimit: number,
  folder: string | undefined,
): Promise<Node[]> {
  const settle = (tensor: Tensor): Value => (tensor.dtype === 'float32' ? upload(tf, tensor) : unpacked(tensor))
  for (const [name, tensor] of graph.initializers) {
    const inMemory = await loadTensor(name, tensor, folder)
    constants.set(name, settle(inMemory))
  }
  // reading files lets others run, and another engine may have made its backend the current one
  await activate()
  const known = new Set(constants.keys())
  const folded: Node[] = []
  const rest: Node[] = []
  for (const node of graph.nodes) {
    const isConstant = node.inputs.every((name) => name === '' || known.has(name))
    if (isConstant) for (const name of node.outputs) known.add(name)
    ;(isConstant ? folded : rest).push(node)
  }
  const read = new Set([...graph.outputs, ...rest.flatMap(({ inputs }) => inputs)])
  evaluate(tf, folded, graph.opset, constants, { memoryLimit, keep: read })
  for (const [name, value] of constants)
    if (!read.has(name)) {
      dispose([value])
      constants.delete(name)
    }
  return rest
}

/** The nodes that the outputs need. */
function needed(nodes: readonly Node[], outputs: readonly string[]): Node[] {
  const wanted = new Set(outputs)
  return nodes
    .toReversed()
    .filter((node) => {
      if (!node.outputs.some((name) => wanted.has(name))) return false
      for (const name of node.inputs) wanted.add(name)
      return true
    })
    .reverse()
}

function fed(feeds: Record<string, Tensor>, name: string): Tensor {
  const tensor = feeds[name]
  if (tensor === undefined) throw new RangeError(`The input "${name}" is missing`)
  return tensor
}

/** Adds the inputs that the plan reads. */
function feed(
  tf: Tfjs,
  values: Map<string, Value>,
  graph: Graph,
  plan: readonly Node[],
  outputs: readonly string[],
  feeds: Record<string, Tensor>,
): void {
  const read = new Set([...outputs, ...plan.flatMap(({ inputs }) => inputs)])
  for (const name of graph.inputs) {
    if (!read.has(name)) continue
    const tensor = fed(feeds, name)
    const declared = graph.types.get(name)?.dtype
    if (declared !== undefined && declared !== tensor.dtype)
      throw new TypeError(`The input "${name}" is ${declared}, not ${tensor.dtype}`)
    values.set(name, tensor.dtype === 'float32' ? upload(tf, tensor) : tensor)
  }
}

function lookUp(values: ReadonlyMap<string, Value>, name: string): Value {
  const value = values.get(name)
  if (value === undefined) throw new RangeError(`The graph has no value "${name}"`)
  return value
}

/**
 * Evaluates nodes in their order and adds their outputs to `values`.
 *
 * @param options.memoryLimit most bytes that tensors may take
 * @param options.keep where it is given, every other value is disposed of after its last reader
 * @param options.tracked values that depend on what is differentiated; none of them may leave float32
 */
function evaluate(
  tf: Tfjs,
  nodes: readonly Node[],
  opset: number,
  values: Map<string, Value>,
  options: { memoryLimit: number; keep?: ReadonlySet<string>; tracked?: Set<string> },
): void {
  const { memoryLimit, keep, tracked } = options
  const lastReader = new Map<string, Node>()
  if (keep !== undefined) for (const node of nodes) for (const name of node.inputs) lastReader.set(name, node)
  for (const node of nodes) {
    const outputs = evaluateNode(tf, node, opset, values)
    const { numBytes } = tf.memory()
    if (numBytes > memoryLimit)
      throw new Error(
        `TensorFlow.js is out of memory: its ${tf.getBackend()} backend may hold ${gibibytes(memoryLimit)}, and ${gibibytes(numBytes)} are in use at ${place(node)}`,
      )
    node.outputs.forEach((name, i) => {
      const value = outputs[i]
      if (value === undefined) return
      if (name !== '') values.set(name, value)
      else dispose([value])
    })
    if (tracked !== undefined && node.inputs.some((name) => tracked.has(name))) track(node, outputs, tracked)
    if (keep === undefined) continue
    for (const name of new Set([...node.inputs, ...node.outputs])) {
      const value = values.get(name)
      const isRead = lastReader.has(name) && lastReader.get(name) !== node
      if (value === undefined || keep.has(name) || isRead) continue
      dispose([value])
      values.delete(name)
    }
  }
}

/** Gradients go on through float32; truth values and integers have none. */
function track(node: Node, outputs: readonly Value[], tracked: Set<string>): void {
  node.outputs.forEach((name, i) => {
    const value = outputs[i]
    if (value === undefined) return
    if (!onHost(value)) tracked.add(name)
    else if (value.dtype === 'float64' || value.dtype === 'float16' || value.dtype === 'bfloat16')
      throw new Error(
        `${place(node)}: the graph computes in ${value.dtype} between what is trained and the loss, which TensorFlow.js cannot`,
      )
  })
}

const gibibytes = (bytes: number): string => `${(bytes / 2 ** 30).toFixed(1)} GiB`

const place = (node: Node): string => `node "${node.name}" (${node.op})`

function evaluateNode(tf: Tfjs, node: Node, opset: number, values: ReadonlyMap<string, Value>): Value[] {
  const x = node.inputs.map((name) => (name === '' ? undefined : lookUp(values, name)))
  let outputs: Value[] = []
  try {
    tf.tidy(() => {
      const results = apply(tf, node, opset, x)
      outputs = results.map((value): Value => {
        if (onHost(value)) return value.dtype === 'float32' ? upload(tf, value) : value
        // an operator that hands an input on gives it to another owner
        return x.includes(value) ? tf.clone(value) : value
      })
      return outputs.filter((value) => !onHost(value)) as Float[]
    })
  } catch (error) {
    throw new Error(`${place(node)}: ${(error as Error).message}`, { cause: error })
  }
  for (const value of outputs)
    if (!onHost(value) && value.rank > MAX_RANK)
      throw new RangeError(`${place(node)}: TensorFlow.js computes with at most ${MAX_RANK} axes, not ${value.rank}`)
  return outputs
}

function apply(tf: Tfjs, node: Node, opset: number, x: (Value | undefined)[]): Value[] {
  const missing = (i: number, what: string) => new TypeError(`input ${i} is not ${what}`)
  const context: OperatorContext = {
    tf,
    node,
    attributes: node.attributes,
    opset,
    outputs: node.outputs.length,
    x,
    float(i) {
      const value = x[i]
      if (value === undefined || onHost(value)) throw missing(i, 'float32')
      return value
    },
    host(i) {
      const value = x[i]
      if (value === undefined || !onHost(value)) throw missing(i, 'of integers or truth values')
      return value
    },
    optionalHost: (i) => (x[i] === undefined ? undefined : context.host(i)),
  }
  const results = (): Value | Value[] => {
    const shapeOf = shapeOperators[node.op]
    if (shapeOf !== undefined) return shapeOf([...x[0]!.shape], node)
    if (x.some((value) => value !== undefined && !onHost(value))) return named(operators, node.op, 'float32')(context)
    return named(hostOperators, node.op, 'anything but float32')({ ...context, x: x as (Tensor | undefined)[] })
  }
  const result = results()
  return Array.isArray(result) ? result : [result]
}

function named<T>(table: Record<string, T>, op: string, what: string): T {
  const operator = Object.hasOwn(table, op) ? table[op] : undefined
  if (operator === undefined) throw new TypeError(`there is no TensorFlow.js expression for ${op} of ${what}`)
  return operator
}

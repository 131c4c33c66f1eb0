import { writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import {
  type Adapter,
  adapterInputs,
  type EncoderProfile,
  feedsOf,
  loraA,
  loraB,
  readImported,
  readsPictures,
} from '../encoder/index.ts'
import {
  encodeModel,
  floatAttribute,
  type Graph,
  type ModelInfo,
  type Node,
  openSession,
  type Tensor,
  type ValueType,
} from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { floatGraphs } from './float-graphs.ts'
import { type ExportType, variant, variantFile } from './variants.ts'
import { dataFile, writeWeights } from './write-model.ts'

/** Names of the two graphs that take adapters: over the exported one unless they are fed another, and over what they are fed. */
export const WITH_ADAPTER = 'model_lora'
export const FOR_ADAPTERS = 'model_lora_inputs'
/** The file of the exported adapter's matrices begins with this. */
export const MATRICES = 'model_lora_matrices'

/** A product of a graph that an adapter changes: y, which is scale · x W and perhaps a sum. */
interface Place {
  x: string
  y: string
  scale: number
}

/**
 * Writes the encoder with its adapter beside the weights, for programs that serve many adapters over one encoder. The adapter's
 * matrices stand under PEFT's keys, each with the factor of its update (`….scaling`, alpha / rank), and may have any rank:
 *
 * - `model_lora.onnx` holds them as initializers that are inputs, too: a run that is not fed others computes the exported encoder;
 * - `model_lora_inputs.onnx` has them as plain inputs, for runtimes that cannot override initializers (ONNX Runtime's bindings for
 *   Node.js and browsers take no notice of such feeds).
 *
 * Both share one file of the encoder's weights; the matrices of the exported adapter lie in a file of their own.
 *
 * @returns the names of the files
 * @throws InputError for an encoder of several graphs, and where a module's product is no value of the graph
 */
export async function writeAdapterGraphs(
  folder: string,
  profile: EncoderProfile,
  adapter: Adapter,
  type: ExportType,
  info: ModelInfo,
  signal?: AbortSignal,
): Promise<string[]> {
  if (readsPictures(profile))
    throw new InputError(
      'An encoder of several graphs cannot be written with --keep-adapter; its adapter can only be merged.',
      { file: profile.folder },
    )
  const { graphs, of } = await floatGraphs(profile, undefined, signal)
  const base = graphs.get('model') as Graph
  const adapted = withAdapter(base, await placesOf(profile, base, adapter), adapter)
  const { graph, stream } = variant(adapted.graph, of, type)
  const files = [WITH_ADAPTER, FOR_ADAPTERS].map((name) => variantFile(name, type))
  const [file, bare] = files as [string, string]
  const apart = { file: dataFile(variantFile(MATRICES, type)), names: adapted.matrices }
  const weights = await writeWeights(join(folder, dataFile(file)), { graph, stream }, apart)
  const fed = { ...graph, inputs: [...graph.inputs, ...adapted.inputs.keys()] }
  const without = new Map([...weights].filter(([name]) => !adapted.inputs.has(name)))
  const types = new Map([...graph.types, ...adapted.inputs])
  await writeFile(
    join(folder, file),
    encodeModel({ ...graph, initializers: weights }, { ...info, overridable: adapted.inputs }),
  )
  await writeFile(join(folder, bare), encodeModel({ ...fed, types, initializers: without }, info))
  return [...files, dataFile(file), apart.file].map((path) => basename(path))
}

/** Where each module of an adapter is computed. */
async function placesOf(profile: EncoderProfile, graph: Graph, adapter: Adapter): Promise<Map<string, Place[]>> {
  const places = new Map<string, Place[]>()
  const imported = profile.kind === 'onnx' ? (await readImported(profile)).modules : []
  const made = new Set([...graph.inputs, ...graph.nodes.flatMap(({ outputs }) => outputs)])
  for (const { module } of adapter.targets) {
    const found = imported.find((other) => other.module === module)
    // graphs that are built here name a product after its module
    const built = graph.nodes
      .filter(({ op, name }) => op === 'Gemm' && name === module)
      .map(({ inputs, outputs, attributes }): Place => {
        const [x, y] = [inputs[0] as string, outputs[0] as string]
        return { x, y, scale: floatAttribute(attributes, 'alpha', 1) }
      })
    const uses = profile.kind === 'onnx' ? (found?.uses ?? []) : built
    const whole = found === undefined || found.outputs === found.width
    if (uses.length === 0 || !whole || !uses.every(({ x, y }) => made.has(x) && made.has(y)))
      throw new InputError(
        `The product of ${module} is no value of the graph by itself, so that no adapter can be put beside it (--keep-adapter). Export the checkpoint, or an ONNX graph that is not fused.`,
        { file: profile.weights },
      )
    places.set(module, uses)
  }
  return places
}

/** y + scale · scaling · (x Aᵀ) Bᵀ in the place of every y; A, B and scaling as initializers under PEFT's names. */
function withAdapter(
  graph: Graph,
  places: ReadonlyMap<string, readonly Place[]>,
  adapter: Adapter,
): { graph: Graph; inputs: Map<string, ValueType>; matrices: Set<string> } {
  const initializers = new Map(graph.initializers)
  const types = new Map(graph.types)
  const inputs = new Map<string, ValueType>()
  const matrices = new Set<string>()
  let nodes = graph.nodes
  for (const target of adapter.targets) {
    const { module, rank, inputs: width, outputs: height } = target
    const names = adapterInputs(module)
    const anyRank = `${module}.rank`
    const put = (name: string, tensor: Tensor, shape: ValueType['shape']): void => {
      initializers.set(name, tensor)
      // the graph's own types stay open, so that nothing is settled by this adapter's rank
      types.set(name, { dtype: 'float32', shape })
      inputs.set(name, { dtype: 'float32', shape })
    }
    const matrix = (of: (m: string) => string, shape: number[]): Tensor => ({
      ...{ dtype: 'float32', shape },
      data: adapter.tensors.get(of(module)) as Float32Array,
    })
    put(names.a, matrix(loraA, [rank, width]), [anyRank, width])
    put(names.b, matrix(loraB, [height, rank]), [height, anyRank])
    put(names.scaling, { dtype: 'float32', shape: [1], data: Float32Array.of(target.alpha / rank) }, [1])
    for (const name of [names.a, names.b]) matrices.add(name)
    for (const [i, place] of (places.get(module) as readonly Place[]).entries())
      nodes = withUpdate(nodes, { initializers, types }, place, names, {
        ...{ at: i === 0 ? module : `${module}/${i}`, rank: anyRank, width, height },
      })
  }
  return { graph: { ...graph, nodes, initializers, types }, inputs, matrices }
}

function withUpdate(
  nodes: readonly Node[],
  { initializers, types }: Pick<Graph, 'initializers' | 'types'>,
  { x, y, scale }: Place,
  names: ReturnType<typeof adapterInputs>,
  { at, rank, width, height }: { at: string; rank: string; width: number; height: number },
): Node[] {
  const index = nodes.findIndex(({ outputs }) => outputs.includes(y))
  const node = nodes[index] as Node
  const rows = types.get(x)?.shape.slice(0, -1) ?? []
  const added: Node[] = []
  const value = (what: string, shape: ValueType['shape']): string => {
    // no path of a module, so that whoever reads the graph finds that of the product alone (`<module>/frozen`)
    const name = `lora.${at}.${what}`
    types.set(name, { dtype: 'float32', shape })
    return name
  }
  const add = (op: string, inputs: string[], output: string, attributes: Node['attributes'] = {}): string => {
    added.push({ op, domain: '', name: output, inputs, outputs: [output], attributes })
    return output
  }
  const turn = { perm: { ints: [1, 0] } }
  const down = add(
    'MatMul',
    [x, add('Transpose', [names.a], value('down', [width, rank]), turn)],
    value('x', [...rows, rank]),
  )
  const up = add('Transpose', [names.b], value('up', [rank, height]), turn)
  let scaled = add('Mul', [down, names.scaling], value('scaled', [...rows, rank]))
  if (scale !== 1) {
    const factor = value('scale', [])
    initializers.set(factor, { dtype: 'float32', shape: [], data: Float32Array.of(scale) })
    scaled = add('Mul', [scaled, factor], value('rescaled', [...rows, rank]))
  }
  const update = add('MatMul', [scaled, up], value('update', [...rows, height]))
  const frozen = `${at}/frozen`
  types.set(frozen, { dtype: 'float32', shape: types.get(y)?.shape ?? [...rows, height] })
  const sum: Node = {
    ...{ op: 'Add', domain: '', name: `lora.${at}`, inputs: [frozen, update], attributes: {} },
    outputs: [y],
  }
  return [
    ...nodes.slice(0, index),
    { ...node, outputs: node.outputs.map((output) => (output === y ? frozen : output)) },
    ...added,
    sum,
    ...nodes.slice(index + 1),
  ]
}

/**
 * Feeds the graph that takes adapters the exported one, and compares it with the graph that holds it.
 *
 * @param tokens of a text
 * @returns the largest difference of their outputs, relative to the largest number in them; NaN where one is not finite
 * @throws InputError for a graph with inputs that are not known here
 */
export async function adapterInputsDiffer(
  folder: string,
  type: ExportType,
  adapter: Adapter,
  tokens: Int32Array,
  threads: number | undefined,
): Promise<number> {
  const fed = Object.fromEntries(
    Object.entries(feedsOf(adapter)).map(([name, { data, dims }]): [string, Tensor] => [
      name,
      { dtype: 'float32', shape: dims, data },
    ]),
  )
  const results: Float32Array[] = []
  for (const [name, feeds] of [
    [WITH_ADAPTER, {}],
    [FOR_ADAPTERS, fed],
  ] as const) {
    const file = join(folder, 'onnx', variantFile(name, type))
    // at another level of optimisation products may round otherwise
    const session = await openSession(file, { optimization: 'disabled', ...(threads !== undefined && { threads }) })
    try {
      const own = [...session.inputs].filter(([input]) => !Object.hasOwn(feeds, input))
      const text = own.map(([input, { dtype }]): [string, Tensor] => [input, textFeed(input, dtype, tokens, file)])
      const values = await session.run({ ...Object.fromEntries(text), ...feeds })
      results.push(values[session.outputs[0] as string]?.data as Float32Array)
    } finally {
      await session.release()
    }
  }
  const [a, b] = results as [Float32Array, Float32Array]
  let [largest, difference] = [0, a.length === b.length ? 0 : Number.NaN]
  for (const [i, x] of a.entries()) {
    largest = Math.max(largest, Math.abs(x))
    difference = Math.max(difference, Math.abs(x - (b[i] as number)))
  }
  return difference / largest
}

function textFeed(input: string, dtype: string, tokens: Int32Array, file: string): Tensor {
  const values: Record<string, (at: number) => number> = {
    input_ids: (at) => tokens[at] as number,
    attention_mask: () => 1,
    token_type_ids: () => 0,
    position_ids: (at) => at,
  }
  const value = Object.hasOwn(values, input) ? values[input] : undefined
  if (value === undefined)
    throw new InputError(
      `--keep-adapter: the graph takes "${input}", not only tokens, masks and positions. Export it without a cache.`,
      { file },
    )
  const data = Int32Array.from(tokens, (_, at) => value(at))
  const shape = [1, tokens.length]
  return dtype === 'int32' ? { dtype, shape, data } : { dtype: 'int64', shape, data: BigInt64Array.from(data, BigInt) }
}

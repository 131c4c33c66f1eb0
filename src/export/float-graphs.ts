import { type Adapter, arithmeticOf, type EncoderProfile, plainEncoder, readsPictures } from '../encoder/index.ts'
import {
  byteLength,
  type ExternalTensor,
  type Graph,
  inferTypes,
  intsAttribute,
  isExternal,
  loadTensor,
  type Node,
  prune,
  type Tensor,
  upgradeOpset,
} from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { adaptedGraph } from './imported.ts'
import { mergedWeights } from './merge.ts'
import { exportedParts } from './parts.ts'
import { rowsOf, transposed, type WeightRows } from './streams.ts'

/** The graphs of an encoder in float32, by their names, over references to its weights. */
export interface FloatGraphs {
  graphs: Map<string, Graph>
  /** The numbers behind an initializer that is a reference, the adapter's update in them. */
  of(tensor: ExternalTensor): WeightRows
  written: Written
}

/** What became of an adapter: modules whose weights were changed, and modules that got their update beside them. */
export interface Written {
  merged: number
  beside: number
  /** Quantised weights inside fused operators that became floats, so that updates could be merged into them. */
  dequantised: number
}

/**
 * What the types of an export are made from: of a checkpoint the graphs that are built over its merged weights, of an ONNX folder its
 * own graph with the adapter in it, at operator set 17 or later.
 *
 * @throws InputError for an ONNX folder whose graph is not plain float32, naming what it holds
 */
export async function floatGraphs(
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  signal?: AbortSignal,
): Promise<FloatGraphs> {
  if (profile.kind === 'onnx') return importedFloats(profile, adapter)
  const { references, of } = await mergedWeights(profile, adapter, signal)
  const graphs = readsPictures(profile)
    ? new Map<string, Graph>(Object.entries(exportedParts(profile, references)))
    : new Map([['model', plainEncoder(profile, references)]])
  return { graphs, of, written: { merged: adapter?.targets.length ?? 0, beside: 0, dequantised: 0 } }
}

async function importedFloats(profile: EncoderProfile, adapter: Adapter | undefined): Promise<FloatGraphs> {
  const { graph: adapted, folder, written } = await adaptedGraph(profile, adapter)
  const fault = notPlain(adapted)
  if (fault !== undefined)
    throw new InputError(
      `${fault}; --dtype fp16, int8 and int4 and --keep-adapter take plain float32 graphs. Leave them out, which keeps the graph's own types, or export the checkpoint, or an ONNX graph of it that is neither quantised nor fused.`,
      { file: profile.weights },
    )
  const graph = inferTypes(upgradeOpset(adapted))
  const initializers: Graph['initializers'] = new Map()
  const matrices = new Map<string, WeightRows>()
  const put = (name: string, weight: WeightRows): void => {
    const { shape } = weight
    const length = byteLength('float32', shape)
    matrices.set(name, weight)
    initializers.set(name, { dtype: 'float32', shape: [...shape], external: { file: name, offset: 0, length } })
  }
  for (const [name, tensor] of graph.initializers) {
    const { dtype, shape } = tensor
    if (dtype === 'float32' && shape.length === 2)
      put(name, { shape, rows: (from, to) => someRows(name, tensor, from, to, folder) })
    else initializers.set(name, await loadTensor(name, tensor, folder))
  }
  const turned = new Map<string, string>()
  const known = new Set([...graph.initializers.keys(), ...graph.nodes.flatMap(({ outputs }) => outputs)])
  // A weight that is turned before its product, as exporters that fold nothing write it, is stored turned: other types are made of
  // initializers alone, and the product would keep its floats.
  const nodes = graph.nodes.flatMap((node): Node[] => {
    const [from = ''] = node.inputs
    const [weight, name, output] = [matrices.get(from), `${from}_transposed`, node.outputs[0] as string]
    const swaps = node.op === 'Transpose' && intsAttribute(node.attributes, 'perm')?.join() !== '0,1'
    if (weight === undefined || !swaps || graph.outputs.includes(output) || known.has(name))
      return [{ ...node, inputs: node.inputs.map((input) => turned.get(input) ?? input) }]
    put(name, transposed(weight))
    turned.set(output, name)
    return []
  })
  const types = new Map(graph.types)
  for (const name of turned.values())
    types.set(name, { dtype: 'float32', shape: [...(initializers.get(name)?.shape ?? [])] })
  return {
    graphs: new Map([['model', prune({ ...graph, nodes, initializers, types })]]),
    of({ external }) {
      const weight = matrices.get(external.file)
      if (weight === undefined) throw new RangeError(`The graph has no matrix "${external.file}"`)
      return weight
    },
    written,
  }
}

/** Operators of ONNX Runtime that may stay as they are: they read no weights, or tables of a rotary encoding. */
const NO_WEIGHTS = new Set(['GroupQueryAttention', 'RotaryEmbedding'])

/** Why a graph's weights cannot be stored in another type, in words; undefined where they can. */
function notPlain(graph: Graph): string | undefined {
  const arithmetic = arithmeticOf(graph)
  if (arithmetic === 'fp16') return 'The graph is in half precision already'
  if (arithmetic === 'quantised') return 'The graph is quantised already'
  const isMatrix = (name: string): boolean => (graph.initializers.get(name)?.shape.length ?? 0) >= 2
  const fused = graph.nodes.filter(
    ({ domain, op, inputs }) => domain !== '' && !NO_WEIGHTS.has(op) && inputs.some(isMatrix),
  )
  if (fused.length === 0) return undefined
  const names = [...new Set(fused.map(({ domain, op }) => `${op} (${domain})`))]
  return `The graph keeps weights inside fused operators, ${names.join(', ')}`
}

/** Rows `from` to `to` of a tensor's first axis, as it is stored. */
export async function tensorRows(
  name: string,
  tensor: Tensor | ExternalTensor,
  from: number,
  to: number,
  folder: string,
): Promise<Tensor> {
  const { dtype, shape } = tensor
  const { size } = rowsOf(shape)
  const part = [to - from, ...shape.slice(1)]
  if (isExternal(tensor)) {
    const { file, offset, length } = tensor.external
    const row = length / (shape[0] as number)
    const external = { file, offset: offset + from * row, length: (to - from) * row }
    return loadTensor(name, { dtype, shape: part, external }, folder)
  }
  // numbers of less than a byte lie two to one
  const each = tensor.data.length / ((shape[0] as number) * size)
  return { dtype, shape: part, data: tensor.data.slice(from * size * each, to * size * each) }
}

const someRows = async (...args: Parameters<typeof tensorRows>): Promise<Float32Array> =>
  (await tensorRows(...args)).data as Float32Array

import { type Dim, floatAttribute, type Graph, intAttribute, intsAttribute, type Node } from '../../onnx/index.ts'
import type { LinearModule } from '../lora/lora.ts'
import { attentionNames, inLayers, moduleName, type NameClues, wrapperOf } from './names.ts'

/** How a weight is stored. */
export type Storage = 'fp32' | 'fp16' | 'bf16' | 'int8' | '4-bit'

/** A linear map of an encoder, with what a user wants to know of it. */
export interface EncoderModule extends LinearModule {
  /** Whether LoRA adapts it unless a run says otherwise. */
  standard: boolean
  storage: Storage
  /** Products of the graph that share the weight, where they are several. */
  uses?: number
}

/** A product of the graph with the weight of a linear map: y = scale · x W. */
export interface WeightUse {
  x: string
  y: string
  scale: number
}

/** A linear map found in an ONNX graph. */
export interface ImportedModule extends Omit<EncoderModule, 'uses'> {
  /** The initializer that holds the weight, under its name in the file. */
  weight: string
  /** Whether the initializer is [outputs, inputs]; else [inputs, outputs]. */
  transposed: boolean
  /** Whether the initializer holds the weight's numbers themselves, so that an update can be added to it. */
  plain: boolean
  /** The module's columns of a weight that several modules share, [from, to). */
  columns: [number, number]
  /** Columns of the whole weight. */
  width: number
  /** Every product with it, in the graph's order. */
  uses: WeightUse[]
}

/** A weight that products share, before it is named. */
interface SharedWeight extends Pick<ImportedModule, 'weight' | 'transposed' | 'plain' | 'storage' | 'uses'> {
  inputs: number
  outputs: number
  clues: NameClues
}

/**
 * The linear maps of an encoder's graph: the products of what the tokens become with a matrix of the file, whether that is
 * stored as it is, in half precision or quantised. A weight that several products share is one module, and one that a fused
 * attention packs from three is three.
 *
 * @param original the file's graph
 * @param graph the same without fused operators, with types
 */
export function linearMaps(original: Graph, graph: Graph): ImportedModule[] {
  const weights = sharedWeights(original, graph)
  const wrapper = wrapperOf(original)
  const named = weights.map(({ clues }) => moduleName(clues, wrapper))
  const packed = packedAttention(original)
  const taken = new Set<string>()
  /** The name, or where another module has it already the name and a number. */
  const unique = (name: string): string => {
    let free = name
    for (let n = 1; taken.has(free); n++) free = `${name}.${n}`
    taken.add(free)
    return free
  }
  return weights.flatMap(({ clues: _, ...weight }, i): ImportedModule[] => {
    const fused = packed.get(weight.weight)
    if (fused === undefined) {
      const module = unique(named[i] ?? `linear.${i}`)
      const columns: [number, number] = [0, weight.outputs]
      const standard = named[i] === undefined || inLayers(module)
      return [{ ...weight, module, columns, width: weight.outputs, standard }]
    }
    const names = attentionNames(
      fused.node,
      named.slice(i + 1).find((name) => name !== undefined),
    )
    const sizes = fused.sizes ?? [0, 1, 2].map(() => weight.outputs / 3)
    let from = 0
    return sizes.map((outputs, part) => {
      const module = unique(names[part] as string)
      const columns: [number, number] = [from, from + outputs]
      from += outputs
      return { ...weight, module, outputs, columns, width: weight.outputs, standard: true }
    })
  })
}

/** Fused attention operators by the initializer of their packed query, key and value weights. */
function packedAttention(original: Graph): Map<string, { node: Node; sizes: number[] | undefined }> {
  const found = new Map<string, { node: Node; sizes: number[] | undefined }>()
  for (const node of original.nodes)
    if (node.domain === 'com.microsoft' && (node.op === 'Attention' || node.op === 'QAttention'))
      found.set(node.inputs[1] as string, { node, sizes: intsAttribute(node.attributes, 'qkv_hidden_sizes') })
  return found
}

function sharedWeights(original: Graph, graph: Graph): SharedWeight[] {
  const hidden = hiddenValues(graph)
  const products = frozenProducts(graph)
  const adaptable = new Set(products.filter(({ use }) => hidden.has(use.x)).map(({ key }) => key))
  const biases = biasesOf(graph)
  const scopes = new Map(
    original.nodes.flatMap((node) => node.outputs.map((name) => [name, node.metadata?.['pkg.torch.onnx.name_scopes']])),
  )
  const weights = new Map<string, SharedWeight>()
  // what follows from no token may be multiplied by the same weight (a table of relative positions by that of keys, say)
  for (const { key, node, use, source, inputs, outputs } of products) {
    if (!adaptable.has(key)) continue
    const before = weights.get(key)
    if (before !== undefined) {
      before.uses.push(use)
      continue
    }
    const { weight, transposed, plain } = source
    const stored = original.initializers.get(weight)
    weights.set(key, {
      ...{ weight, transposed, inputs, outputs },
      plain: plain && stored !== undefined && isFloat(stored.dtype),
      storage: storageOf(stored?.dtype, stored?.shape ?? [], inputs * outputs),
      uses: [use],
      clues: { weight, bias: biases.get(use.y), node: node.name, output: use.y, scopes: scopes.get(use.y) },
    })
  }
  return [...weights.values()]
}

/** A product with a matrix that no input has a say in, and the initializer that the matrix comes from. */
interface FrozenProduct {
  node: Node
  use: WeightUse
  source: Pick<SharedWeight, 'weight' | 'transposed' | 'plain'>
  inputs: number
  outputs: number
  /** The same for all products with the same weight. */
  key: string
}

function frozenProducts(graph: Graph): FrozenProduct[] {
  const producers = producersOf(graph)
  const frozen = frozenValues(graph)
  return graph.nodes.flatMap((node): FrozenProduct[] => {
    const product = productOf(node)
    if (product === undefined) return []
    const [x, w] = node.inputs as [string, string]
    const shape = graph.types.get(w)?.shape
    const found = frozen.has(w) && isMatrix(shape) ? weightSource(graph, producers, w) : undefined
    if (found === undefined || !isMatrix(shape)) return []
    const [inputs, outputs] = product.transB ? [shape[1], shape[0]] : shape
    const source = { ...found, transposed: found.transposed !== product.transB }
    const use = { x, y: node.outputs[0] as string, scale: product.scale }
    return [{ node, use, source, inputs, outputs, key: `${source.weight}\0${source.transposed}` }]
  })
}

const isMatrix = (shape: Dim[] | undefined): shape is [number, number] =>
  shape?.length === 2 && shape.every((d) => typeof d === 'number')

/** A node that multiplies by a matrix from the right, as y = scale · x op(W). */
function productOf(node: Node): { transB: boolean; scale: number } | undefined {
  const flag = (name: string): boolean => intAttribute(node.attributes, name, 0) === 1
  if (node.op === 'MatMul') return { transB: false, scale: 1 }
  if ((node.op === 'Gemm' || node.op === 'FusedMatMul') && !flag('transA'))
    return { transB: flag('transB'), scale: floatAttribute(node.attributes, 'alpha', 1) }
  return undefined
}

function producersOf(graph: Graph): Map<string, Node> {
  return new Map(graph.nodes.flatMap((node) => node.outputs.map((name) => [name, node])))
}

/** Values that no input of the graph has a say in. */
function frozenValues(graph: Graph): Set<string> {
  const frozen = new Set(graph.initializers.keys())
  for (const node of graph.nodes)
    if (node.inputs.every((name) => name === '' || frozen.has(name))) for (const name of node.outputs) frozen.add(name)
  return frozen
}

/** Float values that depend on the tokens. */
function hiddenValues(graph: Graph): Set<string> {
  const depends = new Set(['input_ids'])
  const hidden = new Set<string>()
  for (const node of graph.nodes) {
    if (node.op === 'Shape' || node.op === 'Size' || !node.inputs.some((name) => depends.has(name))) continue
    for (const name of node.outputs) {
      depends.add(name)
      if (isFloat(graph.types.get(name)?.dtype)) hidden.add(name)
    }
  }
  return hidden
}

const isFloat = (dtype: string | undefined): boolean =>
  dtype === 'float32' || dtype === 'float16' || dtype === 'bfloat16' || dtype === 'float64'

/** The initializers that are added to values. Exporters store equal biases once: one that is added twice names nothing. */
function biasesOf(graph: Graph): Map<string, string> {
  const biases = new Map<string, string>()
  for (const node of graph.nodes) {
    if (node.op === 'Gemm' && graph.initializers.has(node.inputs[2] ?? ''))
      biases.set(node.outputs[0] as string, node.inputs[2] as string)
    if (node.op !== 'Add') continue
    const [a, b] = node.inputs as [string, string]
    if (graph.initializers.has(b)) biases.set(a, b)
    if (graph.initializers.has(a)) biases.set(b, a)
  }
  const uses = new Map<string, number>()
  for (const node of graph.nodes) for (const name of node.inputs) uses.set(name, (uses.get(name) ?? 0) + 1)
  return new Map([...biases].filter(([, bias]) => uses.get(bias) === 1))
}

/**
 * The initializer that a matrix comes from: through casts and transpositions its numbers are the weight's own (`plain`);
 * through arithmetic, as dequantisation is, it is the largest one that takes part.
 */
function weightSource(
  graph: Graph,
  producers: Map<string, Node>,
  value: string,
): { weight: string; transposed: boolean; plain: boolean } | undefined {
  let transposed = false
  let plain = true
  let at = value
  for (let node = producers.get(at); node !== undefined; node = producers.get(at)) {
    const largest = node.inputs
      .filter((name) => name !== '')
      .reduce((a, b) => (elements(graph, b) > elements(graph, a) ? b : a))
    const turns = node.op === 'Transpose' && graph.types.get(largest)?.shape.length === 2
    if (turns) transposed = !transposed
    else if (node.op !== 'Cast' && node.op !== 'Identity') plain = false
    at = largest
  }
  return graph.initializers.has(at) ? { weight: at, transposed, plain } : undefined
}

function elements(graph: Graph, value: string): number {
  const shape = graph.types.get(value)?.shape ?? []
  return shape.every((d) => typeof d === 'number') ? shape.reduce((a, b) => a * b, 1) : 0
}

function storageOf(dtype: string | undefined, shape: number[], numbers: number): Storage {
  if (dtype === 'float16') return 'fp16'
  if (dtype === 'bfloat16') return 'bf16'
  if (dtype === 'int4' || dtype === 'uint4') return '4-bit'
  if (dtype === 'int8' || dtype === 'uint8') return shape.reduce((a, b) => a * b, 1) < numbers ? '4-bit' : 'int8'
  return 'fp32'
}

import {
  type Adapter,
  type EncoderProfile,
  type ImportedModel,
  type ImportedModule,
  type LoraTarget,
  loraA,
  loraB,
  mergedWeight,
  readImported,
} from '../encoder/index.ts'
import {
  bfloat16ToFloat32,
  type DType,
  type ExternalTensor,
  elementCount,
  float16ToFloat32,
  float32ToBfloat16,
  float32ToFloat16,
  type Graph,
  loadTensor,
  type Node,
  prune,
  type Tensor,
} from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import type { Written } from './float-graphs.ts'

/** An encoder's own graph with an adapter in it. */
export interface AdaptedGraph {
  graph: Graph
  /** Folder of the files that its external tensors name. */
  folder: string
  written: Written
}

/**
 * The graph of an ONNX folder, as its file has it, with an adapter in it. Into weights that are stored as floats the update is
 * merged, W + (alpha / rank) B A, and rounded to their type; fused operators and operator set stay. Beside quantised weights,
 * which could not hold it, two small products are put that add it: y + (alpha / rank) x Aᵀ Bᵀ. Inside QAttention there is no such
 * place: it becomes Attention, with float32 weights.
 *
 * @throws InputError for an update of a quantised weight whose product is no value of the graph
 */
export async function adaptedGraph(profile: EncoderProfile, adapter: Adapter | undefined): Promise<AdaptedGraph> {
  const model = await readImported(profile)
  const written: Written = { merged: 0, beside: 0, dequantised: 0 }
  let nodes = model.original.nodes
  const initializers = new Map(model.original.initializers)
  const asFloats = new Map<string, string>()
  for (const target of adapter?.targets ?? []) {
    const found = model.modules.find((candidate) => candidate.module === target.module)
    if (found === undefined)
      throw new InputError(`The adapter changes ${target.module}, which the graph does not have.`, {
        file: profile.weights,
      })
    const fused = nodes.find((node) => node.op === 'QAttention' && node.inputs[1] === found.weight)
    if (fused !== undefined) {
      const weight = `${found.weight}/float`
      initializers.set(weight, await dequantisedWeight(initializers, fused, model.folder))
      nodes = nodes.map((node) => (node === fused ? floatAttention(node, found, weight) : node))
      asFloats.set(found.weight, weight)
    }
    const float = asFloats.get(found.weight)
    const module = float === undefined ? found : { ...found, weight: float, plain: true }
    if (module.plain && multipliesOnly(model, module)) {
      const stored = await loadTensor(module.weight, weightOf(initializers, module), model.folder)
      initializers.set(module.weight, mergedTensor(stored, module, adapter as Adapter, target))
      written.merged++
    } else {
      nodes = withUpdateBeside(nodes, initializers, model, module, adapter as Adapter, target, profile.weights)
      written.beside++
    }
  }
  const graph = prune({ ...model.original, nodes, initializers })
  return { graph, folder: model.folder, written: { ...written, dequantised: asFloats.size } }
}

/** (stored - zero point) · scale, both of the whole weight or of its columns: float32 [inputs, columns]. */
async function dequantisedWeight(initializers: Graph['initializers'], node: Node, folder: string): Promise<Tensor> {
  const numbers = async (input: number): Promise<Tensor> => {
    const name = node.inputs[input] as string
    return loadTensor(name, initializers.get(name) as Tensor | ExternalTensor, folder)
  }
  const [weight, scale] = [await numbers(1), await numbers(4)]
  const zeros = (node.inputs[7] ?? '') === '' ? undefined : (await numbers(7)).data
  const columns = weight.shape[1] as number
  const of = (values: ArrayLike<number | bigint>, i: number): number =>
    Number(values[values.length === 1 ? 0 : i % columns])
  const data = Float32Array.from(weight.data as Int8Array | Uint8Array, (q, i) => {
    const zero = zeros === undefined ? 0 : of(zeros, i)
    return (q - zero) * of(scale.data, i)
  })
  return { dtype: 'float32', shape: weight.shape, data }
}

/** QAttention's node as Attention over the values that it quantised. */
function floatAttention(node: Node, module: ImportedModule, weight: string): Node {
  const [use] = module.uses
  const { inputs } = node
  return {
    ...node,
    op: 'Attention',
    inputs: [use?.x ?? '', weight, inputs[2] ?? '', inputs[5] ?? '', inputs[8] ?? ''],
  }
}

const weightOf = (initializers: Graph['initializers'], { weight }: ImportedModule): Tensor | ExternalTensor =>
  initializers.get(weight) as Tensor | ExternalTensor

/** Whether nothing but the module's products reads its weight: one that is a table of embeddings too, say, must stay as it is. */
function multipliesOnly({ graph, modules }: ImportedModel, { weight, transposed }: ImportedModule): boolean {
  const same = modules.filter((other) => other.weight === weight && other.transposed === transposed)
  const products = new Set(same.flatMap(({ uses }) => uses.map(({ y }) => y)))
  const carriers = new Set([weight])
  for (const { op, inputs, outputs } of graph.nodes) {
    if (!inputs.some((name) => carriers.has(name))) continue
    if (op === 'Transpose' || op === 'Cast' || op === 'Identity') carriers.add(outputs[0] as string)
    else if (!products.has(outputs[0] as string)) return false
  }
  return true
}

/** The stored weight with the update added to the module's columns, in the type that it had. */
function mergedTensor(stored: Tensor, module: ImportedModule, adapter: Adapter, target: LoraTarget): Tensor {
  const values = floatsOf(stored)
  const { inputs, outputs, width, transposed } = module
  const [from] = module.columns
  // where the weight from input i to output o lies
  const place = (o: number, i: number): number => (transposed ? (from + o) * inputs + i : i * width + from + o)
  const own = new Float32Array(outputs * inputs)
  for (let o = 0; o < outputs; o++) for (let i = 0; i < inputs; i++) own[o * inputs + i] = values[place(o, i)] as number
  const sum = mergedWeight(own, adapter, target)
  const all = values === stored.data ? values.slice() : values
  for (let o = 0; o < outputs; o++) for (let i = 0; i < inputs; i++) all[place(o, i)] = sum[o * inputs + i] as number
  return { ...stored, data: fromFloats(all, stored.dtype) }
}

function floatsOf({ dtype, data }: Tensor): Float32Array {
  if (dtype === 'float16') return float16ToFloat32(data as Uint16Array)
  if (dtype === 'bfloat16') return bfloat16ToFloat32(data as Uint16Array)
  return data instanceof Float32Array ? data : Float32Array.from(data as Float64Array)
}

function fromFloats(values: Float32Array, dtype: DType): Tensor['data'] {
  if (dtype === 'float16') return float32ToFloat16(values)
  if (dtype === 'bfloat16') return float32ToBfloat16(values)
  return dtype === 'float64' ? Float64Array.from(values) : values
}

/**
 * The nodes with y + scale · (alpha / rank) x Aᵀ Bᵀ in place of every product y of the module. Names are such that the export can
 * be read, trained and exported again: `<module>/frozen` still says the module, and what an earlier adapter put there stays.
 */
function withUpdateBeside(
  nodes: readonly Node[],
  initializers: Graph['initializers'],
  model: ImportedModel,
  module: ImportedModule,
  adapter: Adapter,
  target: LoraTarget,
  file: string,
): Node[] {
  let changed = [...nodes]
  module.uses.forEach(({ x, y, scale }) => {
    const at = changed.findIndex((node) => node.outputs.includes(y))
    const known = model.original.inputs.includes(x) || nodes.some((node) => node.outputs.includes(x))
    if (at < 0 || !known)
      throw new InputError(
        `The weight of ${module.module} is quantised, or has other uses, inside a larger operator, so that an adapter can be neither merged into it nor put beside it. Train and export an ONNX graph of the model that is not quantised, or not fused.`,
        { file },
      )
    const dtype = model.types.get(y)?.dtype ?? 'float32'
    const matrixName = (side: 'A' | 'B', end: string): string => `${target.module}.lora_${side}.default${end}.weight`
    let end = ''
    for (let n = 1; initializers.has(matrixName('A', end)); n++) end = `_${n}`
    const [down, up] = [matrixName('A', end), matrixName('B', end)]
    const value = (what: string): string => `${target.module}/${what}${end}`
    const [a, b] = updateMatrices(module, adapter, target, scale)
    initializers.set(down, { dtype, shape: a.shape, data: fromFloats(a.data, dtype) })
    initializers.set(up, { dtype, shape: b.shape, data: fromFloats(b.data, dtype) })
    const node = changed[at] as Node
    const added = (op: string, inputs: string[], output: string, name = output): Node => ({
      ...{ op, domain: '', name, inputs, attributes: {} },
      outputs: [output],
    })
    const frozen = value('frozen')
    changed = [
      ...changed.slice(0, at),
      { ...node, outputs: node.outputs.map((output) => (output === y ? frozen : output)) },
      added('MatMul', [x, down], value('down')),
      added('MatMul', [value('down'), up], value('update')),
      added('Add', [frozen, value('update')], y, value('adapted')),
      ...changed.slice(at + 1),
    ]
  })
  return changed
}

/** Aᵀ [inputs, rank], and scale · (alpha / rank) Bᵀ in the module's columns of [rank, width], zeros in the others. */
function updateMatrices(
  { inputs, outputs, width, columns: [from] }: ImportedModule,
  adapter: Adapter,
  { module, rank, alpha }: LoraTarget,
  scale: number,
): [{ shape: number[]; data: Float32Array }, { shape: number[]; data: Float32Array }] {
  const a = adapter.tensors.get(loraA(module)) as Float32Array
  const b = adapter.tensors.get(loraB(module)) as Float32Array
  const down = new Float32Array(elementCount([inputs, rank]))
  for (let r = 0; r < rank; r++) for (let i = 0; i < inputs; i++) down[i * rank + r] = a[r * inputs + i] as number
  const up = new Float32Array(elementCount([rank, width]))
  const factor = (scale * alpha) / rank
  for (let o = 0; o < outputs; o++)
    for (let r = 0; r < rank; r++) up[r * width + from + o] = factor * (b[o * rank + r] as number)
  return [
    { shape: [inputs, rank], data: down },
    { shape: [rank, width], data: up },
  ]
}

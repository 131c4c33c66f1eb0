import { readFile, realpath } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join, relative } from 'node:path'
import {
  decodeModel,
  type ExternalTensor,
  type Graph,
  inferTypes,
  isExternal,
  lower,
  prune,
  type Tensor,
  upgradeOpset,
  type ValueType,
} from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { fileError } from '../../support/files.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { type EncoderOutput, encoderOutput } from './feeds.ts'
import { type ImportedModule, linearMaps } from './modules.ts'
import { withOwnNames } from './own-names.ts'
import { withoutPast } from './past.ts'

/** Names of the two sizes of an imported graph's token inputs. */
export const ROWS = 'rows'
export const LENGTH = 'length'

/** An encoder's ONNX graph, as its file has it and in a form that can be differentiated. */
export interface ImportedModel {
  /** The graph of the file. */
  original: Graph
  /** Folder of the files that the external tensors of both graphs name. */
  folder: string
  output: EncoderOutput
  /**
   * What `output` needs, from operators that have a gradient, in float32; `input_ids` is [{@link ROWS}, {@link LENGTH}]. Values
   * that the file has too keep their names.
   */
  graph: Graph
  /** Types of the file's values, as far as they are known. */
  types: ReadonlyMap<string, ValueType>
  modules: ImportedModule[]
}

const known = new Map<string, WeakRef<ImportedModel>>()

/**
 * Reads an encoder's ONNX graph: operator set, types, fused and quantised operators, linear maps.
 *
 * @throws InputError for a file that is no model, external data that is missing, fixed sizes, and inputs, outputs or operators
 *   that an encoder here cannot have
 */
export async function readImported(profile: EncoderProfile): Promise<ImportedModel> {
  const key = `${profile.weights}\0${profile.fingerprint}`
  const before = known.get(key)?.deref()
  if (before !== undefined) return before
  const model = await read(profile.weights)
  known.set(key, new WeakRef(model))
  return model
}

async function read(file: string): Promise<ImportedModel> {
  const bytes = await readFile(file).catch((error: unknown) => {
    throw fileError(error, 'cannot read the model', file)
  })
  const decoded = withOwnNames(decodeModel(bytes, file))
  const output = encoderOutput(decoded.inputs, decoded.outputs, file)
  const { graph: original, folder } = await locateExternal(decoded, file)
  const bare = withoutPast(prune(original, { outputs: [output.name], unusedInputs: false }))
  const place = <T>(make: () => T): T => {
    try {
      return make()
    } catch (error) {
      if (error instanceof InputError && error.file === undefined) throw new InputError(error.message, { file }, error)
      throw error
    }
  }
  const typed = place(() => inferTypes(upgradeOpset(withSizes(bare, file))))
  const graph = place(() => prune(inferTypes(lower(typed).graph), { unusedInputs: false }))
  return { original, folder, output, graph, types: typed.types, modules: linearMaps(original, graph) }
}

/** The graph with `input_ids` [rows, length], and without types that do not follow from these sizes. */
function withSizes(graph: Graph, file: string): Graph {
  const shape = (graph.types.get('input_ids') as ValueType).shape
  const fixed = shape.find((d) => typeof d === 'number')
  if (fixed !== undefined || shape.length !== 2)
    throw new InputError(
      `The graph takes texts of [${shape.join(', ')}] tokens only. Export it with dynamic axes for batch and sequence.`,
      { file },
    )
  const names = new Map([
    [shape[0], ROWS],
    [shape[1], LENGTH],
  ])
  const types = new Map<string, ValueType>()
  for (const [name, type] of graph.types) {
    if (graph.inputs.includes(name)) types.set(name, { ...type, shape: [ROWS, LENGTH] })
    else if (type.shape.every((d) => typeof d === 'number' || names.has(d)))
      types.set(name, { ...type, shape: type.shape.map((d) => names.get(d) ?? d) })
  }
  return { ...graph, types }
}

/** The graph with its external tensors in one folder of real files, which is where ONNX Runtime takes them from. */
async function locateExternal(graph: Graph, file: string): Promise<{ graph: Graph; folder: string }> {
  const folder = await realpath(dirname(file))
  const real = new Map<string, string>()
  for (const tensor of graph.initializers.values()) {
    if (!isExternal(tensor) || real.has(tensor.external.file)) continue
    real.set(tensor.external.file, await realpath(join(folder, tensor.external.file)))
  }
  const outside = (path: string): boolean => {
    const inside = relative(folder, path)
    return inside.startsWith('..') || isAbsolute(inside)
  }
  if (![...real.values()].some(outside)) return { graph, folder }
  // a hub's cache links to files that lie side by side
  const folders = new Set([...real.values()].map(dirname))
  if (folders.size > 1)
    throw new InputError(
      `The external data of the model are links into different folders (${[...folders].join(', ')}); put the files themselves beside the model.`,
      { file },
    )
  const initializers = new Map<string, Tensor | ExternalTensor>()
  for (const [name, tensor] of graph.initializers) {
    const moved = isExternal(tensor) ? basename(real.get(tensor.external.file) as string) : ''
    initializers.set(name, isExternal(tensor) ? { ...tensor, external: { ...tensor.external, file: moved } } : tensor)
  }
  return { graph: { ...graph, initializers }, folder: [...folders][0] as string }
}

/** What a graph computes in. */
export type Arithmetic = 'fp32' | 'fp16' | 'quantised'

/** Operators that round what they multiply to integers, weights or activations. */
const QUANTISED =
  /^(?:DynamicQuantize|QLinear|QAttention|QGemm|QuantizeLinear|DequantizeLinear|MatMulInteger|MatMulNBits|MatMulBnb4)/

/** The coarsest arithmetic of a graph, which says how closely its results can be reproduced. */
export function arithmeticOf(original: Graph): Arithmetic {
  if (original.nodes.some(({ op }) => QUANTISED.test(op))) return 'quantised'
  const half = [...original.initializers.values()].some(({ dtype }) => dtype === 'float16' || dtype === 'bfloat16')
  return half ? 'fp16' : 'fp32'
}

import type { StoredTensor } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import type { EncoderModule } from '../imported/index.ts'
import type { LinearModule } from './lora.ts'
import { innerPath, isHead } from './module-path.ts'
import { MERGE_INSTEAD } from './peft-config.ts'

/** PEFT wraps the adapted model twice, and so begins every key. */
export const PEFT_PREFIX = 'base_model.model.'

/** A module's two matrices in an adapter's file, by their keys. */
export interface StoredMatrices {
  a: string
  b: string
  /** Path of the module in the model that was adapted. */
  path: string
}

/** What an adapter's file holds for an encoder. */
export interface Matched {
  /** By module of the encoder. */
  matrices: Map<string, StoredMatrices>
  /** Adapted modules that embeddings do not come from. */
  leftOut: string[]
}

/** Names that are shown of many. */
const SHOWN = 3

/** The first names of a list, in quotes. */
export const firstOf = (names: readonly string[]): string =>
  names
    .slice(0, SHOWN)
    .map((name) => `"${name}"`)
    .join(', ')

/**
 * Finds the modules that the keys of an adapter's file belong to.
 *
 * @param id the encoder's, for messages
 * @throws InputError for keys that name no module of the encoder, for what is no matrix of LoRA, for a matrix under two keys, and
 *   for one whose other half is missing
 */
export function matchKeys(
  stored: ReadonlyMap<string, StoredTensor>,
  modules: readonly EncoderModule[],
  id: string,
  file: string,
): Matched {
  const known = knownPaths(modules)
  const halves = new Map<string, { A?: string; B?: string; path: string }>()
  const leftOut = new Set<string>()
  const strange: string[] = []
  for (const key of stored.keys()) {
    const bare = bareKey(key)
    const parts = /^(.*)\.lora_([AB])(?:\.[^.]+)?\.weight$/.exec(bare)
    const path = parts?.[1] ?? bare
    const module = parts === null ? undefined : (known.get(path) ?? known.get(innerPath(path)))
    if (module === undefined) {
      if (isHead(path)) leftOut.add(parts === null ? innerPath(path).replace(/\.[^.]+$/, '') : innerPath(path))
      else strange.push(key)
      continue
    }
    const half = parts?.[2] as 'A' | 'B'
    const found = halves.get(module) ?? { path }
    if (found[half] !== undefined)
      throw new InputError(
        `"${found[half]}" and "${key}" are the same matrix of ${module}; the file holds more than one adapter. Save one alone.`,
        { file },
      )
    halves.set(module, { ...found, [half]: key })
  }
  if (strange.length > 0) throw new InputError(misfit(strange, stored, modules, id), { file })
  const matrices = new Map<string, StoredMatrices>()
  for (const [module, { A, B, path }] of halves) {
    if (A === undefined || B === undefined) {
      const [there, missing] = A === undefined ? ['B', 'A'] : ['A', 'B']
      throw new InputError(`The module ${module} has lora_${there} but no lora_${missing}.`, { file })
    }
    matrices.set(module, { a: A, b: B, path })
  }
  return { matrices, leftOut: [...leftOut] }
}

const bareKey = (key: string): string => (key.startsWith(PEFT_PREFIX) ? key.slice(PEFT_PREFIX.length) : key)

/** The encoder's modules by path, and by the path inside their model of text where that is one module's alone. */
function knownPaths(modules: readonly EncoderModule[]): Map<string, string> {
  const inner = new Map<string, string[]>()
  for (const { module } of modules) {
    const path = innerPath(module)
    inner.set(path, [...(inner.get(path) ?? []), module])
  }
  const known = new Map([...inner].flatMap(([path, [only, other]]) => (other === undefined ? [[path, only!]] : [])))
  for (const { module } of modules) known.set(module, module)
  return known
}

/** Says which keys fit no module, and why as far as it can be told. */
function misfit(
  strange: readonly string[],
  stored: ReadonlyMap<string, StoredTensor>,
  modules: readonly EncoderModule[],
  id: string,
): string {
  const shown = strange.slice(0, SHOWN).map((key) => `"${key}" [${stored.get(key)?.shape.join(', ')}]`)
  const what = `${strange.length} of ${stored.size} keys name no linear module of the encoder "${id}", first ${shown.join(', ')}`
  const special = specialKeys(strange)
  if (special !== undefined) return `${what}. ${special}`
  return `${what}; its modules are called like "${modules[0]?.module}". ${reason(strange, modules)}`
}

/** What keys mean that are no matrices of a linear map. */
function specialKeys(keys: readonly string[]): string | undefined {
  const has = (part: RegExp): boolean => keys.some((key) => part.test(key))
  if (has(/\.lora_magnitude_vector(?:\.|$)/))
    return `They are DoRA's, which also learns the length of each row of the weight; that is not supported. ${MERGE_INSTEAD}`
  if (has(/\.lora_embedding_[AB](?:\.|$)/))
    return `An embedding table is adapted, too; only linear maps can be. ${MERGE_INSTEAD}`
  if (has(/\.lora_[AB](?:\.[^.]+)?\.bias$|\.base_layer\.bias$/))
    return `The adapter has biases of its own beside the matrices, which is not supported. ${MERGE_INSTEAD}`
  if (keys.every((key) => !/\.lora_[AB](?:\.[^.]+)?\.weight$/.test(key)))
    return `The adapter brings whole parameters of the encoder with it (modules_to_save, or a vocabulary that was resized), which is not supported. ${MERGE_INSTEAD}`
  return undefined
}

function reason(strange: readonly string[], modules: readonly EncoderModule[]): string {
  if (strange.some((key) => key.includes('visual.')))
    return 'The vision tower stays as it is here; adapt the language model alone.'
  const paths = strange.map((key) => innerPath(bareKey(key)).replace(/\.lora_[AB](?:\.[^.]+)?\.weight$/, ''))
  return (
    fusedReason(paths, modules) ??
    sharedReason(paths, modules) ??
    depthReason(paths, modules) ??
    'The adapter is for another model.'
  )
}

const PART = /\.(?:q_proj|k_proj|v_proj|query|key|value|q|k|v|gate_proj|up_proj)$/
const FUSED = /\.(?:w?qkv(?:_proj)?|query_key_value|in_proj|c_attn|gate_up_proj)$/i

/**
 * Modules of an ONNX graph under names that the checkpoint's class may not have: maps that an exporter made one of several, and those
 * whose names it left out.
 */
export const graphNames = (modules: readonly LinearModule[]): string[] =>
  modules.map(({ module }) => module).filter((module) => FUSED.test(module) || /^linear\.\d+$/.test(module))

/** For maps that the encoder's graph computes as one. */
function fusedReason(paths: readonly string[], modules: readonly EncoderModule[]): string | undefined {
  const place = (path: string): string => path.replace(/(?:\.self)?\.[^.]+$/, '')
  for (const path of paths) {
    if (!PART.test(path)) continue
    const fused = modules.find(({ module }) => FUSED.test(module) && place(innerPath(module)) === place(path))
    if (fused !== undefined)
      return `The encoder's graph computes ${path} together with others as one fused map, ${fused.module} (${fused.outputs} x ${fused.inputs}), so matrices of its parts do not fit: give the checkpoint itself, or a graph that was exported without fusion.`
  }
  return undefined
}

/** For maps of other layers whose weight is the same initializer of the graph. */
function sharedReason(paths: readonly string[], modules: readonly EncoderModule[]): string | undefined {
  const anyLayer = (path: string): string => path.replace(/\d+/g, '*')
  for (const path of paths) {
    const tied = modules.find(({ module, uses = 1 }) => uses > 1 && anyLayer(innerPath(module)) === anyLayer(path))
    if (tied !== undefined)
      return `The encoder's weights are tied: ${tied.uses} products of its graph share the weight of ${tied.module}, so ${path} has none of its own to adapt. Give the checkpoint itself, or a graph that was exported with each weight by itself.`
  }
  return undefined
}

/** For layers that the encoder does not have. */
function depthReason(paths: readonly string[], modules: readonly EncoderModule[]): string | undefined {
  const layer = (path: string): number => Number(/\.(\d+)\./.exec(path)?.[1] ?? Number.NaN)
  const last = Math.max(...modules.map(({ module }) => layer(module)).filter((n) => !Number.isNaN(n)))
  const shape = (path: string): string => path.replace(/\d+/, '*')
  const known = new Set(modules.map(({ module }) => shape(innerPath(module))))
  if (!paths.every((path) => layer(path) > last && known.has(shape(path)))) return undefined
  const deepest = Math.max(...paths.map(layer))
  return `The adapter is for another model, of ${deepest + 1} layers or more; the encoder has ${last + 1}.`
}

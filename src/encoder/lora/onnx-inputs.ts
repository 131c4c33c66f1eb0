import { readdir, readFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { decodeModel } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { readCanopySettings } from '../folder/canopy.ts'
import { readEncoder } from '../folder/profile.ts'
import { readAdapter } from './adapter.ts'
import { type Adapter, loraA, loraB } from './lora.ts'

/** Begins the name of every input of a graph that takes adapters, as it begins PEFT's keys. */
const PREFIX = 'base_model.model.'

/** What the inputs of a graph that takes adapters are called for one module: the keys of PEFT, and the factor of the update. */
export const adapterInputs = (module: string): { a: string; b: string; scaling: string } => ({
  a: PREFIX + loraA(module),
  b: PREFIX + loraB(module),
  scaling: `${PREFIX}${module}.scaling`,
})

/** The module whose A an input is; undefined for any other input. */
export const moduleOfInput = (name: string): string | undefined =>
  name.startsWith(PREFIX) && name.endsWith(loraA('')) ? name.slice(PREFIX.length, -loraA('').length) : undefined

/** The graph of an exported folder that takes adapters (`canopy export --keep-adapter`), unless its weights have another type. */
export const ADAPTER_GRAPH = 'model_lora.onnx'

/** A float32 tensor, as ONNX Runtime is fed: `new Tensor('float32', data, dims)`. */
export interface AdapterFeed {
  data: Float32Array
  dims: number[]
}

/**
 * A PEFT adapter as what `canopy export --keep-adapter`'s graph is fed for it, by the names of its inputs: A [rank, inputs] and B
 * [outputs, rank] unchanged, and the factor of their product (alpha / rank, or alpha / √rank) for every module of the graph. Modules
 * that the adapter leaves alone get matrices of zeros. Ranks may differ from those of the adapter that was exported.
 *
 * ```ts
 * const feeds = Object.entries(await adapterFeeds('export', 'runs/other/adapter'))
 * const tensors = Object.fromEntries(feeds.map(([name, { data, dims }]) => [name, new Tensor('float32', data, dims)]))
 * const { last_hidden_state } = await session.run({ input_ids, attention_mask, token_type_ids, ...tensors })
 * ```
 *
 * @param folder an exported folder
 * @param adapter a folder with adapter_config.json and adapter_model.safetensors, of the same encoder
 * @param onnxFile name of the graph inside `onnx/`
 * @throws InputError for a folder without such a graph, for what readAdapter refuses, and for modules that the graph has no inputs for
 */
export async function adapterFeeds(
  folder: string,
  adapter: string,
  { onnxFile = ADAPTER_GRAPH }: { onnxFile?: string } = {},
): Promise<Record<string, AdapterFeed>> {
  await requireGraph(join(folder, 'onnx'), onnxFile)
  const profile = await readEncoder(folder, { kind: 'onnx', onnxFile })
  const { initializers, inputs, types } = decodeModel(await readFile(profile.weights), profile.weights)
  const modules = [...initializers.keys(), ...inputs].flatMap((name) => moduleOfInput(name) ?? [])
  if (modules.length === 0)
    throw new InputError(
      'The graph takes no adapters: export it with --keep-adapter, which writes one that does beside it.',
      { file: profile.weights },
    )
  // the export's own fingerprint is of the encoder with the adapter merged
  const base = (await readCanopySettings(folder))?.base
  const { targets, tensors } = await readAdapter(adapter, { ...profile, ...base })
  const strange = targets.filter(({ module }) => !modules.includes(module)).map(({ module }) => module)
  if (strange.length > 0)
    throw new InputError(
      `The adapter changes ${strange.length} modules that ${basename(profile.weights)} has no inputs for, first ${strange.slice(0, 3).join(', ')}: the graph takes adapters of the modules that the exported one changes (${modules.length}). Export the one that changes the most.`,
      { file: adapter },
    )
  const feeds = feedsOf({ targets, tensors })
  const sizeOf = (name: string, axis: 0 | 1): number => types.get(name)?.shape[axis] as number
  for (const module of modules) {
    const { a, b, scaling } = adapterInputs(module)
    if (a in feeds) continue
    const [width, height] = [sizeOf(a, 1), sizeOf(b, 0)]
    feeds[a] = { data: new Float32Array(width), dims: [1, width] }
    feeds[b] = { data: new Float32Array(height), dims: [height, 1] }
    feeds[scaling] = { data: new Float32Array(1), dims: [1] }
  }
  return feeds
}

/** @throws InputError for a folder of graphs that lacks this one; a folder without any is told by reading the encoder */
async function requireGraph(graphs: string, name: string): Promise<void> {
  const names = await readdir(graphs).catch(() => undefined)
  if (names === undefined || names.includes(name)) return
  const others = names.filter((other) => /^model_lora.*\.onnx$/.test(other))
  throw new InputError(
    others.length === 0
      ? `There is no graph here that takes adapters (${name}): export it again with --keep-adapter (in a program "keepAdapter").`
      : `There is no ${name} here. Name the graph that takes adapters ("onnxFile"): ${others.sort().join(', ')}.`,
    { file: graphs },
  )
}

/** What a graph is fed for the modules that an adapter changes. */
export function feedsOf({ targets, tensors }: Pick<Adapter, 'targets' | 'tensors'>): Record<string, AdapterFeed> {
  const feeds: Record<string, AdapterFeed> = {}
  for (const { module, rank, inputs, outputs, alpha } of targets) {
    const { a, b, scaling } = adapterInputs(module)
    feeds[a] = { data: tensors.get(loraA(module)) as Float32Array, dims: [rank, inputs] }
    feeds[b] = { data: tensors.get(loraB(module)) as Float32Array, dims: [outputs, rank] }
    feeds[scaling] = { data: Float32Array.of(alpha / rank), dims: [1] }
  }
  return feeds
}

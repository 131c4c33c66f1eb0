import { mkdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import {
  type Adapter,
  CANOPY_FILE,
  type CanopySettings,
  type EncoderProfile,
  MAIN_PART,
  readsPictures,
  writeAdapter,
} from '../encoder/index.ts'
import { InputError } from '../support/errors.ts'
import { sha256File } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { writeAdapterGraphs } from './adapter-graphs.ts'
import { type FloatGraphs, floatGraphs, type Written } from './float-graphs.ts'
import { writeFolderFiles, writeJson } from './folder-files.ts'
import { adaptedGraph } from './imported.ts'
import { type ExportType, variant, variantFile } from './variants.ts'
import { dataFile, fromFiles, type Writable, writeModel } from './write-model.ts'

/** Weights of a part of an encoder go into a second file beyond this, so that they can be mapped into memory. */
const PART_BYTES = 2 ** 18

/** What is written, and who is told. */
export interface WriteOptions {
  /** The toolkit's version. */
  version: string
  /** Types of the weights, each a graph of its own; float32 by default. */
  types?: readonly ExportType[]
  /** Write graphs that take adapters, too, in the first type, see {@link writeAdapterGraphs}, and the adapter itself. */
  keepAdapter?: boolean | undefined
  signal?: AbortSignal | undefined
  onProgress?: Progress | undefined
}

/** Where the adapter's own files lie in an export that keeps it. */
export const ADAPTER_FOLDER = 'adapter'

/** A graph to write, by the name of its file, and how many bytes of weights that file may hold. */
interface NamedGraph {
  file: string
  writable: Writable
  inside?: number
}

/**
 * Writes a merged node encoder into an existing, empty folder, in the layout that transformers.js, sentence-transformers
 * (`backend="onnx"`) and plain ONNX Runtime load: of a checkpoint the graph, or the graphs of its parts (`qwen3_vl`), with weights in
 * the types asked for (float32: opset 17, no contrib operators); of an ONNX folder its own graph, which as `fp32` keeps its own types,
 * whatever these are, and in the others is made from plain float32; config, tokenizer, processor, pooling, and canopy.json with the
 * weights' hashes and the graph of the first type as the one that the folder is opened by. Weights are read, merged, converted and
 * written some megabytes at a time.
 *
 * @throws InputError for a weight that a type cannot hold, and for an ONNX folder whose graph cannot be stored in a type
 */
export async function writeEncoderFolder(
  folder: string,
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  settings: CanopySettings,
  { version, types = ['fp32'], keepAdapter = false, signal, onProgress }: WriteOptions,
): Promise<Written> {
  const { graphs, written } = await graphsOf(profile, adapter, types, signal)
  const info = { name: 'node-encoder', producer: 'canopy-encoder', producerVersion: version }
  await mkdir(join(folder, 'onnx'))
  const files: string[] = []
  const external = new Map<string, { external: boolean }>()
  for (const [done, { file, writable, inside }] of graphs.entries()) {
    onProgress?.({ phase: 'writing', done, total: graphs.length })
    signal?.throwIfAborted()
    const made = await writeModel(join(folder, 'onnx', file), writable, info, inside)
    files.push(...made)
    external.set(file, { external: made.length > 1 })
  }
  if (keepAdapter && adapter !== undefined) {
    files.push(...(await writeAdapterGraphs(join(folder, 'onnx'), profile, adapter, types[0] ?? 'fp32', info, signal)))
    await writeAdapter(join(folder, ADAPTER_FOLDER), adapter, profile)
    await writeJson(join(folder, ADAPTER_FOLDER, CANOPY_FILE), settings)
  }
  await writeFolderFiles(folder, profile, external, ownTypes(profile, types) ? undefined : types)
  const hashes: Record<string, string> = {}
  for (const file of files) {
    signal?.throwIfAborted()
    hashes[`onnx/${file}`] = await sha256File(join(folder, 'onnx', file))
  }
  const onnxFile = mainGraph(profile, types[0] ?? 'fp32')
  await writeJson(join(folder, CANOPY_FILE), { ...settings, files: hashes, onnxFile })
  onProgress?.({ phase: 'writing', done: graphs.length, total: graphs.length })
  return written
}

/** Whether nothing is written but an ONNX folder's graph in the types that it has. */
export const ownTypes = (profile: EncoderProfile, types: readonly ExportType[]): boolean =>
  profile.kind === 'onnx' && types.every((type) => type === 'fp32')

/** The graph in a type that opens an exported encoder, see {@link partFiles}. */
export const mainGraph = (profile: EncoderProfile, type: ExportType): string =>
  variantFile(readsPictures(profile) ? MAIN_PART : 'model', type)

async function graphsOf(
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  types: readonly ExportType[],
  signal: AbortSignal | undefined,
): Promise<{ graphs: NamedGraph[]; written: Written }> {
  if (profile.kind === 'onnx' && readsPictures(profile))
    throw new InputError(
      'This folder is an export already, of several graphs; export the checkpoint that it was made from.',
      {
        file: profile.folder,
      },
    )
  const own = profile.kind === 'onnx' && types.includes('fp32') ? await ownGraph(profile, adapter) : undefined
  const made = types.filter((type) => type !== 'fp32' || own === undefined)
  const floats = made.length > 0 ? await floatGraphs(profile, adapter, signal) : undefined
  return {
    graphs: types.flatMap((type) =>
      type === 'fp32' && own !== undefined
        ? [own.graph]
        : [...(floats as FloatGraphs).graphs].map(([name, graph]) => ({
            ...{ file: variantFile(name, type), writable: variant(graph, (floats as FloatGraphs).of, type) },
            ...weightsInside(profile),
          })),
    ),
    written: (own ?? (floats as FloatGraphs)).written,
  }
}

/** An ONNX folder's graph in its own types, under the name of the graph that is opened by default. */
async function ownGraph(
  profile: EncoderProfile,
  adapter: Adapter | undefined,
): Promise<{ graph: NamedGraph; written: Written }> {
  const { graph, folder, written } = await adaptedGraph(profile, adapter)
  const writable = { graph, stream: fromFiles(folder) }
  // weights that lie beside the graph stay there
  const inside = [...graph.initializers.values()].some((tensor) => 'external' in tensor) ? { inside: 0 } : {}
  return {
    graph: { file: variantFile('model', 'fp32'), writable, ...inside },
    written,
  }
}

const weightsInside = (profile: EncoderProfile): { inside?: number } =>
  readsPictures(profile) ? { inside: PART_BYTES } : {}

/**
 * Runs with an encoder's graphs in float32 beside those of a written folder: what weights in whole numbers are rounded from.
 *
 * @param use gets what the graphs' names end in, in place of `.onnx`
 */
export async function withFloatGraphs<T>(
  folder: string,
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  signal: AbortSignal | undefined,
  use: (ending: string) => Promise<T>,
): Promise<T> {
  const ending = '_unrounded.onnx'
  const files: string[] = []
  try {
    const { graphs, of } = await floatGraphs(profile, adapter, signal)
    for (const [name, graph] of graphs) {
      const file = join(folder, 'onnx', name + ending)
      files.push(file, dataFile(file))
      await writeModel(file, variant(graph, of, 'fp32'), {}, weightsInside(profile).inside)
    }
    return await use(ending)
  } finally {
    for (const file of files) await rm(file, { force: true })
  }
}

import { mkdir, rm } from 'node:fs/promises'
import { join } from 'node:path'
import {
  type Adapter,
  CANOPY_FILE,
  type CanopySettings,
  type EncoderProfile,
  MAIN_PART,
  plainEncoder,
  readsPictures,
} from '../encoder/index.ts'
import type { Graph } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { sha256File } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { writeFolderFiles, writeJson } from './folder-files.ts'
import { adaptedGraph } from './imported.ts'
import { type MergedWeights, mergedWeights } from './merge.ts'
import { exportedParts } from './parts.ts'
import { type ExportType, variant, variantFile } from './variants.ts'
import { dataFile, fromFiles, type Writable, writeModel } from './write-model.ts'

/** Weights of a part of an encoder go into a second file beyond this, so that they can be mapped into memory. */
const PART_BYTES = 2 ** 18

/** What became of an adapter: modules whose weights were changed, and modules that got their update beside them. */
export interface Written {
  merged: number
  beside: number
  /** Quantised weights inside fused operators that became floats, so that updates could be merged into them. */
  dequantised: number
}

/** What is written, and who is told. */
export interface WriteOptions {
  /** The toolkit's version. */
  version: string
  /** Types of the weights, each a graph of its own; float32 by default. */
  types?: readonly ExportType[]
  signal?: AbortSignal | undefined
  onProgress?: Progress | undefined
}

/** A graph to write, by the name of its file, and how many bytes of weights that file may hold. */
interface NamedGraph {
  file: string
  writable: Writable
  inside?: number
}

/**
 * Writes a merged node encoder into an existing, empty folder, in the layout that transformers.js, sentence-transformers
 * (`backend="onnx"`) and plain ONNX Runtime load: of a checkpoint the graph, or the graphs of its parts (`qwen3_vl`), with weights in
 * the types asked for (float32: opset 17, no contrib operators), of an ONNX folder its own graph in its own types; config,
 * tokenizer, processor, pooling, and canopy.json with the weights' hashes and the graph of the first type as the one that the folder
 * is opened by. Weights are read, merged, converted and written some megabytes at a time.
 *
 * @throws InputError for a weight that a type cannot hold, and for other types of an ONNX folder than its own
 */
export async function writeEncoderFolder(
  folder: string,
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  settings: CanopySettings,
  { version, types = ['fp32'], signal, onProgress }: WriteOptions,
): Promise<Written> {
  const { graphs, written } =
    profile.kind === 'onnx'
      ? await ownGraph(profile, adapter, types)
      : await builtGraphs(profile, adapter, types, signal)
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
  await writeFolderFiles(folder, profile, external, profile.kind === 'onnx' ? undefined : types)
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

/** The graph in a type that opens an exported encoder, see {@link partFiles}. */
export const mainGraph = (profile: EncoderProfile, type: ExportType): string =>
  variantFile(readsPictures(profile) ? MAIN_PART : 'model', type)

async function ownGraph(
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  types: readonly ExportType[],
): Promise<{ graphs: NamedGraph[]; written: Written }> {
  if (types.length !== 1 || types[0] !== 'fp32')
    throw new InputError('An ONNX graph keeps the types that it has; --dtype is for checkpoints.', {
      file: profile.weights,
    })
  if (readsPictures(profile))
    throw new InputError(
      'This folder is an export already, of several graphs; export the checkpoint that it was made from.',
      {
        file: profile.folder,
      },
    )
  const { graph, folder, merged, beside, dequantised } = await adaptedGraph(profile, adapter)
  const writable = { graph, stream: fromFiles(folder) }
  // weights that lie beside the graph stay there
  const inside = [...graph.initializers.values()].some((tensor) => 'external' in tensor) ? { inside: 0 } : {}
  return {
    graphs: [{ file: variantFile('model', 'fp32'), writable, ...inside }],
    written: { merged: merged.length, beside: beside.length, dequantised: dequantised.length },
  }
}

async function builtGraphs(
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  types: readonly ExportType[],
  signal: AbortSignal | undefined,
): Promise<{ graphs: NamedGraph[]; written: Written }> {
  const { graphs, of } = await floatGraphs(profile, adapter, signal)
  return {
    graphs: types.flatMap((type) =>
      [...graphs].map(([name, graph]) => ({
        ...{ file: variantFile(name, type), writable: variant(graph, of, type) },
        ...weightsInside(profile),
      })),
    ),
    written: { merged: adapter?.targets.length ?? 0, beside: 0, dequantised: 0 },
  }
}

const weightsInside = (profile: EncoderProfile): { inside?: number } =>
  readsPictures(profile) ? { inside: PART_BYTES } : {}

/**
 * Runs with a checkpoint's graphs in float32 beside those of a written folder: what weights in whole numbers are rounded from.
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

/** The graphs of a checkpoint's export in float32, by their names, over references to its merged weights. */
export async function floatGraphs(
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  signal?: AbortSignal,
): Promise<{ graphs: Map<string, Graph>; of: MergedWeights['of'] }> {
  const { references, of } = await mergedWeights(profile, adapter, signal)
  const graphs = readsPictures(profile)
    ? new Map<string, Graph>(Object.entries(exportedParts(profile, references)))
    : new Map([['model', plainEncoder(profile, references)]])
  return { graphs, of }
}

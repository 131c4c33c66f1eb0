import { readFile, stat } from 'node:fs/promises'
import { join, posix } from 'node:path'
import { InputError } from '../../support/errors.ts'
import { exists } from '../../support/files.ts'
import { readsPictures, standardsOf } from '../architecture.ts'
import { PROCESSOR_FILES } from '../folder/fingerprint.ts'
import { openedGraph } from '../folder/opened-graph.ts'
import { MAIN_PART, partFiles } from '../qwen3-vl/part-files.ts'

/** A file of a repository, as its listing tells. */
export interface RepositoryFile {
  /** Path inside the repository, with `/`. */
  path: string
  size: number
  /** Hexadecimal SHA-256 of a file kept in LFS, else the SHA-1 of its Git blob; also its name among the cache's blobs. */
  hash: string
}

/** Folder inside an export that holds f0, when it was exported with its query encoder. */
export const QUERY_FOLDER = 'query-encoder'

/** What encoders read beside their weights. */
const SMALL_FILES = new Set([
  'config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'vocab.txt',
  'vocab.json',
  'merges.txt',
  'modules.json',
  'sentence_bert_config.json',
  'config_sentence_transformers.json',
  'canopy.json',
  ...PROCESSOR_FILES,
])

const SAFETENSORS = 'model.safetensors'
const SAFETENSORS_INDEX = 'model.safetensors.index.json'
const SHARD = /^model-\d+-of-\d+\.safetensors$/
const ONNX = 'onnx/model.onnx'
/** What opens an encoder in `onnx/` unless another file is asked for: its one graph, or the main one of several. */
export const MAIN_GRAPHS = ['model.onnx', `${MAIN_PART}.onnx`] as const

/** The graphs of an encoder in `onnx/`, by the one that opens it. */
export function graphsOf(main: string): string[] {
  return Object.values(partFiles(main) ?? { main })
}

/** Whether a path is that of an ONNX graph's external data. */
const isDataOf = (graph: string, path: string): boolean =>
  path.startsWith(graph) && /^(_data(_\d+)?|\.data)$/.test(path.slice(graph.length))
/** Folder of a module, as sentence-transformers names them: 1_Pooling. */
const MODULE = /^\d+_\w+$/

/**
 * The files of a repository that an encoder needs: configuration, tokenizer, modules, and the weights as safetensors or, where there
 * are none, as the ONNX graph; of a bundled query encoder (a folder of its own inside an export) the same.
 *
 * @param bundle name of the bundled query encoder's folder
 * @param onnxFile a graph inside `onnx/` that is wanted in place of these weights
 * @param opened the graph inside `onnx/` that the repository's canopy.json names as the one to open
 * @throws InputError when the listing holds a path that leaves the folder, or no encoder that can be read
 */
export function encoderFiles(
  id: string,
  listed: readonly RepositoryFile[],
  bundle: string,
  onnxFile?: string,
  opened?: string,
): RepositoryFile[] {
  for (const { path } of listed) {
    if (!isPlainPath(path))
      throw new InputError(
        `The repository ${id} lists the file ${JSON.stringify(path)}, which is no plain path inside it. Nothing was downloaded.`,
      )
  }
  const files = new Map(listed.map((file) => [file.path, file]))
  const root = filesBelow([...files.keys()], onnxFile, opened)
  if (root.weights.length === 0 && onnxFile !== undefined) {
    const graphs = [...files.keys()]
      .filter((path) => /^onnx\/[^/]+\.onnx$/.test(path))
      .map((path) => posix.basename(path))
    throw new InputError(
      `The repository ${id} has no onnx/${onnxFile}; ${graphs.length === 0 ? 'it has no ONNX graphs' : `its ONNX graphs are ${graphs.join(', ')}`}.`,
    )
  }
  if (root.weights.length === 0) {
    const pickled = files.has('pytorch_model.bin')
    throw new InputError(
      `The repository ${id} holds no weights that are read here: neither ${SAFETENSORS} (or its index) nor ${ONNX}. ${
        pickled
          ? 'Its pytorch_model.bin is not read, since it can run code: convert it to safetensors (many repositories have a conversion under the revision refs/pr/<number>).'
          : 'Name the repository of an encoder with safetensors weights.'
      }`,
    )
  }
  for (const name of ['config.json', 'tokenizer.json'])
    if (!files.has(posix.join(root.modelFolder, name)))
      throw new InputError(
        `The repository ${id} has no ${posix.join(root.modelFolder, name)}, which an encoder needs. Name the repository of a text encoder.`,
      )
  const bundled = filesBelow(
    [...files.keys()].filter((path) => path.startsWith(`${bundle}/`)).map((path) => path.slice(bundle.length + 1)),
  )
  const wanted = [
    ...root.small,
    ...root.weights,
    ...[...bundled.small, ...bundled.weights].map((path) => `${bundle}/${path}`),
  ]
  // small files first: what is wrong with them shows before the weights are fetched
  return wanted.map((path) => files.get(path) as RepositoryFile).sort((a, b) => a.size - b.size)
}

/** A relative path with `/` that stays inside its folder on every platform. */
function isPlainPath(path: string): boolean {
  const parts = path.split('/')
  return !/[\\\0]|^[a-zA-Z]:/.test(path) && parts.every((part) => part !== '' && part !== '.' && part !== '..')
}

/** The encoder files among `paths`: those in the folder itself and in its modules' folders. */
function filesBelow(
  paths: string[],
  onnxFile?: string,
  opened?: string,
): { small: string[]; weights: string[]; modelFolder: string } {
  const here = paths.filter((path) => posix.dirname(path) === '.' || MODULE.test(posix.dirname(path)))
  const small = here.filter((path) => SMALL_FILES.has(posix.basename(path)))
  const modelFolders = [...new Set(here.map((path) => posix.dirname(path)))].sort()
  const name = onnxFile ?? opened ?? MAIN_GRAPHS.find((main) => paths.includes(`onnx/${main}`)) ?? MAIN_GRAPHS[0]
  const graphs = graphsOf(name).map((graph) => `onnx/${graph}`)
  const onnx = graphs.every((graph) => paths.includes(graph))
    ? graphs.flatMap((graph) => [graph, ...paths.filter((path) => isDataOf(graph, path))])
    : []
  if (onnxFile !== undefined) return { small, weights: onnx, modelFolder: '.' }
  for (const folder of modelFolders) {
    const inside = here.filter((path) => posix.dirname(path) === folder)
    const named = (test: (name: string) => boolean): string[] => inside.filter((path) => test(posix.basename(path)))
    const single = named((name) => name === SAFETENSORS)
    if (single.length > 0) return { small, weights: single, modelFolder: folder }
    const index = named((name) => name === SAFETENSORS_INDEX)
    if (index.length > 0)
      return { small, weights: [...index, ...named((name) => SHARD.test(name))], modelFolder: folder }
  }
  return { small, weights: onnx, modelFolder: '.' }
}

/**
 * What a folder lacks to be a whole encoder, as far as its own files tell; none when nothing is missing. Meant for snapshots that another
 * program put into the cache, of which it may have fetched only some files.
 *
 * @param onnxFile a graph inside `onnx/` that is wanted; a repository of such need not have modules.json
 */
export async function missingFiles(folder: string, onnxFile?: string): Promise<string[]> {
  const found = await readJson(join(folder, 'modules.json'))
  const config = (await readJson(join(folder, 'config.json'))) as { model_type?: unknown } | undefined
  const architecture = String(config?.model_type)
  if (!Array.isArray(found) && onnxFile === undefined && standardsOf(architecture) === undefined)
    return ['modules.json']
  const modules = Array.isArray(found) ? found : []
  const pathOf = (kind: string): string | undefined => {
    const module = modules.find((m) => typeof m?.type === 'string' && m.type.split('.').at(-1) === kind)
    return typeof module?.path === 'string' ? module.path : undefined
  }
  const model = pathOf('Transformer') ?? ''
  const wanted = ['config.json', 'tokenizer.json', 'tokenizer_config.json'].map((name) => posix.join(model, name))
  if (readsPictures({ architecture }) && !(await exists(join(folder, model, 'processor_config.json'))))
    wanted.push(posix.join(model, 'preprocessor_config.json'))
  const pooling = pathOf('Pooling')
  if (pooling !== undefined) wanted.push(posix.join(pooling, 'config.json'))
  if (onnxFile !== undefined) wanted.push(...graphsOf(onnxFile).map((graph) => `onnx/${graph}`))
  else if (!(await exists(join(folder, model, SAFETENSORS)))) {
    const index = (await readJson(join(folder, model, SAFETENSORS_INDEX))) as { weight_map?: unknown } | undefined
    const shards = typeof index?.weight_map === 'object' && index.weight_map !== null ? index.weight_map : undefined
    if (shards !== undefined)
      wanted.push(...new Set(Object.values(shards).map((name) => posix.join(model, String(name)))))
    else {
      const main = await mainGraphIn(folder)
      wanted.push(
        ...(main === undefined ? [posix.join(model, SAFETENSORS)] : graphsOf(main).map((graph) => `onnx/${graph}`)),
      )
    }
  }
  const missing: string[] = []
  for (const path of wanted) if (!(await exists(join(folder, path)))) missing.push(path)
  return missing
}

/** The graph that opens a snapshot: the one that its canopy.json names, else the one of the usual names that is there. */
async function mainGraphIn(folder: string): Promise<string | undefined> {
  const opened = await openedGraph(folder)
  if (opened !== undefined) return opened
  for (const main of MAIN_GRAPHS) if (await exists(join(folder, 'onnx', main))) return main
  return undefined
}

async function readJson(file: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(file, 'utf8'))
  } catch {
    return undefined
  }
}

/** Whether a file is there with that size, links followed. */
export async function hasSize(path: string, size: number): Promise<boolean> {
  const found = await stat(path).catch(() => undefined)
  return found?.isFile() === true && found.size === size
}

import { copyFile, mkdir, readdir, readFile, realpath, writeFile } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join, relative, resolve, sep } from 'node:path'
import {
  type Adapter,
  arithmeticOf,
  CANOPY_FILE,
  type CanopySettings,
  type Embedder,
  type EncoderProfile,
  openEmbedder,
  QUERY_FOLDER,
  readEncoder,
  readImported,
} from '../encoder/index.ts'
import { type TrainingData, writeTrainingData } from '../eval/index.ts'
import type { Device, Graph } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { atomicFolder, exists } from '../support/files.ts'
import type { Progress } from '../support/progress.ts'
import { modelCard } from './card.ts'
import { MODEL_FILE, type Written, writeEncoderFolder, writePooling } from './folder.ts'
import { type CheckInstance, type FloatType, failures, type SelfCheck, selfCheck } from './self-check.ts'

export interface ExportOptions {
  /** The checkpoint, or the ONNX folder. */
  encoder: EncoderProfile
  /** LoRA matrices to merge; without them the encoder itself is exported. */
  adapter?: Adapter | undefined
  /** f0. */
  queryEncoder: EncoderProfile
  settings: CanopySettings
  /** Folder to write; it appears when the self-check has passed. */
  output: string
  /** Put f0 into the folder, so that it refines by itself. */
  bundle?: boolean | undefined
  /** Held-out items for the self-check. */
  instances?: readonly CheckInstance[] | undefined
  /** What the adapter was trained on; goes into the folder, so that a later evaluation finds an overlap. */
  trainingData?: TrainingData | undefined
  /** Markdown of the measured table for the model card. */
  table?: string | undefined
  /** The toolkit's version. */
  version: string
  threads?: number | undefined
  /** Where the comparison runs; the CPU where absent. */
  device?: Device | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

/**
 * Merges the adapter, writes the encoder's folder and checks it against the trained encoder; only then does the folder get its
 * name.
 *
 * @returns how closely the written files give what was trained, and what became of the adapter
 * @throws InputError when the written files do not give what was trained, or cannot be written; when something stands at
 * `output` that is not an export, or that this one is made from
 */
export async function exportEncoder(options: ExportOptions): Promise<SelfCheck & Written> {
  const { encoder, adapter, queryEncoder, settings, onProgress, signal } = options
  const output = resolve(options.output)
  for (const source of [encoder, queryEncoder])
    if (await liesIn(output, source.folder))
      throw new InputError('The export would replace an encoder that it is made from. Choose another --output.', {
        file: output,
      })
  if (!(await mayBeReplaced(output)))
    throw new InputError(
      'What stands there is not an exported encoder, and is not replaced by one. Choose another --output.',
      { file: output },
    )

  return atomicFolder(output, async (temporary) => {
    onProgress?.({ phase: 'writing', done: 0, total: 1 })
    const written = await writeEncoderFolder(temporary, encoder, adapter, settings, options.version)
    if (options.bundle) await copyEncoder(queryEncoder, join(temporary, QUERY_FOLDER))
    if (options.trainingData !== undefined) await writeTrainingData(temporary, options.trainingData)
    onProgress?.({ phase: 'writing', done: 1, total: 1 })
    signal?.throwIfAborted()

    const check = { ...(await checkFolder(temporary, options)), ...written }
    const wrong = failures(check)
    if (wrong.length > 0)
      throw new InputError(`The exported encoder failed its self-check and was not kept: ${wrong.join('; ')}.`, {
        file: output,
      })
    const card = { profile: encoder, settings, check, table: options.table, bundled: options.bundle ?? false }
    await writeFile(join(temporary, 'README.md'), modelCard(card))
    signal?.throwIfAborted()
    return check
  })
}

async function liesIn(folder: string, path: string): Promise<boolean> {
  const real = (p: string): Promise<string> => realpath(p).catch(() => resolve(p))
  const inside = relative(await real(folder), await real(path))
  return inside !== '..' && !inside.startsWith(`..${sep}`) && !isAbsolute(inside)
}

/** Nothing, an empty folder, or an earlier export: canopy.json lies beside adapters too, but lists the weights only here. */
async function mayBeReplaced(output: string): Promise<boolean> {
  if (!(await exists(output))) return true
  const names = await readdir(output).catch(() => [''])
  if (names.length === 0) return true
  try {
    const canopy = JSON.parse(await readFile(join(output, CANOPY_FILE), 'utf8')) as Partial<CanopySettings> | null
    return canopy?.files !== undefined
  } catch {
    return false
  }
}

/** Compares a written folder with the trained encoder. */
export async function checkFolder(folder: string, options: ExportOptions): Promise<SelfCheck> {
  const { encoder, adapter, queryEncoder, threads, device, onProgress } = options
  const common = {
    ...(threads === undefined ? {} : { threads }),
    ...(device === undefined ? {} : { device }),
  }
  const opened: Embedder[] = []
  const open = async (profile: EncoderProfile, more: { adapter?: Adapter } = {}): Promise<Embedder> => {
    const embedder = await openEmbedder(profile, { ...common, ...more })
    opened.push(embedder)
    return embedder
  }
  onProgress?.({ phase: 'self-check', done: 0, total: 1 })
  try {
    // with an adapter that changes nothing a graph is computed as training does
    const noUpdate: Adapter = { targets: [], tensors: new Map(), baseFingerprint: undefined }
    const written = await readEncoder(folder, { kind: 'onnx' })
    const graph = encoder.kind === 'onnx' ? (await readImported(encoder)).original : undefined
    const rounds = graph !== undefined && arithmeticOf(graph) !== 'fp32'
    const check = await selfCheck({
      trained: await open(encoder, { adapter: adapter ?? noUpdate }),
      exported: await open(written),
      query: await open(queryEncoder),
      rounding: rounds
        ? {
            frozen: { file: await open(encoder), trained: await open(encoder, { adapter: noUpdate }) },
            exported: await open(written, { adapter: noUpdate }),
            weights: coarsestFloat(graph),
          }
        : undefined,
      instances: options.instances ?? [],
      rendering: options.settings,
      signal: options.signal,
    })
    onProgress?.({ phase: 'self-check', done: 1, total: 1 })
    return check
  } finally {
    for (const embedder of opened) await embedder.close()
  }
}

function coarsestFloat(graph: Graph): FloatType {
  const types = new Set([...graph.initializers.values()].map(({ dtype }) => dtype))
  return (['bfloat16', 'float16'] as const).find((type) => types.has(type)) ?? 'float32'
}

/** What an encoder's folder may hold beside its weights that {@link readEncoder} looks at. */
const SMALL_FILES = [
  'config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'vocab.txt',
  'sentence_bert_config.json',
  'config_sentence_transformers.json',
  'modules.json',
  '1_Pooling/config.json',
]

/** Copies an encoder file by file, so that its fingerprint stays the same. */
async function copyEncoder(profile: EncoderProfile, to: string): Promise<void> {
  if (profile.modelFolder !== profile.folder)
    throw new InputError('A query encoder whose model lies in a folder of its own cannot be bundled.', {
      file: profile.folder,
    })
  const weights = [...new Set([profile.weights, ...profile.weightFiles])]
  const names = [...SMALL_FILES, ...weights.map((file) => relative(profile.folder, file))]
  // whoever opens the copy looks for this graph
  const renamed = (name: string): string =>
    profile.kind === 'onnx' && join(profile.folder, name) === profile.weights ? MODEL_FILE : name
  for (const name of names) {
    if (name.startsWith('..'))
      throw new InputError(`${basename(name)} lies outside the encoder's folder.`, { file: name })
    const from = join(profile.folder, name)
    if (!(await exists(from))) continue
    await mkdir(dirname(join(to, renamed(name))), { recursive: true })
    await copyFile(from, join(to, renamed(name)))
  }
  if (!(await exists(join(to, 'modules.json')))) await writePooling(to, profile)
  const copied = await readEncoder(to)
  if (copied.fingerprint !== profile.fingerprint)
    throw new InputError('The copied query encoder differs from the original; its folder changed meanwhile.', {
      file: profile.folder,
    })
}

/** The Markdown summary of an evaluation beside the run's adapter; undefined where there is none. */
export async function measuredTable(run: string): Promise<string | undefined> {
  return readFile(join(run, 'eval', 'summary.md'), 'utf8').catch(() => undefined)
}

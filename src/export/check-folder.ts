import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import {
  type Adapter,
  arithmeticOf,
  type CanopySettings,
  type Embedder,
  type EmbedderOptions,
  type EncoderProfile,
  MAIN_PART,
  openEmbedder,
  PARTS,
  readEncoder,
  readImported,
  readsPictures,
} from '../encoder/index.ts'
import type { Device, Graph } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import type { Progress } from '../support/progress.ts'
import { type AccuracyLoss, accuracyLoss, MOST_LOST } from './accuracy-loss.ts'
import { adapterInputsDiffer, MATRICES, WITH_ADAPTER } from './adapter-graphs.ts'
import { type FloatType, MERGED_BOUNDS, TYPE_BOUNDS } from './closeness.ts'
import { withFloatGraphs } from './folder.ts'
import { withOverflowShown } from './overflow.ts'
import { withPicture } from './picture.ts'
import { type CheckInstance, comparison, type Rounding, referenceOf, type SelfCheck, selfCheck } from './self-check.ts'
import { type ExportType, variantFile } from './variants.ts'
import { dataFile } from './write-model.ts'

/** What was trained, and how it is compared with what was written. */
export interface CheckOptions {
  /** The checkpoint, or the ONNX folder. */
  encoder: EncoderProfile
  /** LoRA matrices to merge; without them the encoder itself is exported. */
  adapter?: Adapter | undefined
  /** f0. */
  queryEncoder: EncoderProfile
  settings: CanopySettings
  /** Types that the weights of a checkpoint are written in, each as a graph of its own; float32 by default. */
  types?: readonly ExportType[] | undefined
  /** Write graphs that take adapters, too, in the first type. */
  keepAdapter?: boolean | undefined
  /** Points of decision accuracy that a graph may lose, see `accuracyLoss`. */
  maxAccuracyLoss?: number | undefined
  /** Held-out items for the self-check. */
  instances?: readonly CheckInstance[] | undefined
  threads?: number | undefined
  /** Where the comparison runs; the CPU where absent. */
  device?: Device | undefined
  onProgress?: Progress | undefined
  signal?: AbortSignal | undefined
}

/**
 * Compares the graphs of a written folder with the trained encoder, one after the other. Where there are only weights in whole numbers,
 * the float32 graph that they are rounded from is written for the time of a comparison, too.
 *
 * @throws InputError for a graph in a smaller type that gives numbers that are not finite
 */
export function checkFolder(folder: string, options: CheckOptions): Promise<CheckedFolder> {
  return withPicture((picture) => checked(folder, picture, options))
}

/** A graph of an export, or the graphs of its parts: bytes with all weights, how closely it gives what was trained, what that costs. */
export interface CheckedVariant extends SelfCheck {
  /** The type of the weights, or what else sets the graph apart from others of the folder. */
  name: string
  bytes: number
  loss: AccuracyLoss
}

export interface CheckedFolder {
  types: Partial<Record<ExportType, CheckedVariant>>
  /** The graph that takes adapters and holds the exported one, and how far the graph that is fed it differs from that. */
  adapterGraph?: CheckedVariant & { fedDifference: number }
}

async function checked(folder: string, picture: string, options: CheckOptions): Promise<CheckedFolder> {
  const { encoder, adapter, queryEncoder, types = ['fp32'], threads, device, onProgress, keepAdapter } = options
  const common = {
    ...(threads === undefined ? {} : { threads }),
    ...(device === undefined ? {} : { device }),
  }
  const open = (profile: EncoderProfile, more: Pick<EmbedderOptions, 'adapter' | 'optimization'> = {}) => {
    return (): Promise<Embedder> => openEmbedder(profile, { ...common, ...more })
  }
  // with an adapter that changes nothing a graph is computed as training does
  const noUpdate: Adapter = { targets: [], tensors: new Map(), baseFingerprint: undefined }
  const graph = encoder.kind === 'onnx' ? (await readImported(encoder)).original : undefined
  const rounds = graph !== undefined && arithmeticOf(graph) !== 'fp32'
  const rounding = (written: EncoderProfile): Rounding | undefined =>
    rounds
      ? {
          frozen: { file: open(encoder), trained: open(encoder, { adapter: noUpdate }) },
          exported: open(written, { adapter: noUpdate }),
          weights: coarsestFloat(graph),
        }
      : undefined

  const roundsWeights = types.filter((type) => type === 'int8' || type === 'int4')
  const total = 1 + types.length + (keepAdapter ? 1 : 0)
  onProgress?.({ phase: 'self-check', done: 0, total })
  const reference = await referenceOf({
    trained: open(encoder, { adapter: adapter ?? noUpdate }),
    query: open(queryEncoder),
    instances: options.instances ?? [],
    rendering: options.settings,
    picture,
    signal: options.signal,
  })
  const [graphs, main] = readsPictures(encoder) ? [PARTS, MAIN_PART] : [['model'], 'model']
  const written = (file: string): Promise<EncoderProfile> => readEncoder(folder, { kind: 'onnx', onnxFile: file })
  const compared = async (name: string, names: readonly string[], type: ExportType): Promise<CheckedVariant> => {
    const opened = names.includes(MAIN_PART) ? MAIN_PART : (names[0] as string)
    const compare = async (file: string): Promise<SelfCheck> => {
      const profile = await written(file)
      // unoptimised, roundings between two float16 products stay
      const as = type === 'fp16' ? ({ optimization: 'disabled' } as const) : {}
      return selfCheck(reference, open(profile, as), { bounds: TYPE_BOUNDS[type], rounding: rounding(profile) })
    }
    const check = await (type === 'fp16'
      ? withOverflowShown(folder, names, (ending) => compare(opened + ending))
      : compare(variantFile(opened, type))
    ).catch((error: unknown) => {
      if (type === 'fp32' || !(error instanceof InputError)) throw error
      // its file is a copy, or goes with the folder
      const why = error.message.replace(`${error.file}: `, '')
      throw new InputError(`The graph in ${type} does not compute what was trained; export fp32. (${why})`, {}, error)
    })
    const files = [...names, ...(names.includes(WITH_ADAPTER) ? [MATRICES] : [])]
    const bytes = await bytesOf(
      folder,
      files.map((name) => variantFile(name, type)),
    )
    return { name, bytes, ...check, loss: accuracyLoss(check, options.maxAccuracyLoss ?? MOST_LOST) }
  }
  const checks: CheckedFolder['types'] = {}
  for (const [i, type] of types.entries()) {
    onProgress?.({ phase: 'self-check', done: 1 + i, total })
    checks[type] = await compared(rounds && type === 'fp32' ? 'own types' : type, graphs, type)
  }
  if (roundsWeights.length > 0 && !types.includes('fp32')) {
    const unrounded = await withFloatGraphs(folder, encoder, adapter, options.signal, async (ending) =>
      comparison(reference, open(await written(main + ending)), MERGED_BOUNDS.float32),
    )
    for (const type of roundsWeights) checks[type] = { ...(checks[type] as CheckedVariant), unrounded }
  }
  if (!keepAdapter || adapter === undefined) {
    onProgress?.({ phase: 'self-check', done: total, total })
    return { types: checks }
  }
  onProgress?.({ phase: 'self-check', done: total - 1, total })
  const [type = 'fp32'] = types
  const check = await compared('adapter beside', [WITH_ADAPTER], type)
  const fedDifference = await adapterInputsDiffer(folder, type, adapter, reference.cut.ids.slice(0, 24), threads)
  onProgress?.({ phase: 'self-check', done: total, total })
  return { types: checks, adapterGraph: { ...check, fedDifference } }
}

/** Bytes of files, and of those with weights beside them. */
async function bytesOf(folder: string, files: readonly string[]): Promise<number> {
  const sizes = files
    .flatMap((file) => [file, dataFile(file)])
    .map((file) =>
      stat(join(folder, 'onnx', file)).then(
        ({ size }) => size,
        () => 0,
      ),
    )
  return (await Promise.all(sizes)).reduce((a, b) => a + b, 0)
}

function coarsestFloat(graph: Graph): FloatType {
  const types = new Set([...graph.initializers.values()].map(({ dtype }) => dtype))
  return (['bfloat16', 'float16'] as const).find((type) => types.has(type)) ?? 'float32'
}

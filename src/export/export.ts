import { copyFile, lstat, mkdir, readdir, readFile, realpath, writeFile } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join, relative, resolve, sep } from 'node:path'
import {
  CANOPY_FILE,
  type CanopySettings,
  type EncoderProfile,
  PROCESSOR_FILES,
  partFiles,
  QUERY_FOLDER,
  readEncoder,
} from '../encoder/index.ts'
import { type TrainingData, writeTrainingData } from '../eval/index.ts'
import { InputError } from '../support/errors.ts'
import { atomicFolder, exists } from '../support/files.ts'
import { modelCard } from './card.ts'
import { type CheckedFolder, type CheckedVariant, type CheckOptions, checkFolder } from './check-folder.ts'
import type { Written } from './float-graphs.ts'
import { writeEncoderFolder } from './folder.ts'
import { writePooling } from './folder-files.ts'
import { failures, type SelfCheck } from './self-check.ts'
import { EXPORT_TYPES, type ExportType } from './variants.ts'
import { wrongWeights } from './written-weights.ts'

export interface ExportOptions extends CheckOptions {
  /** Folder to write; it appears when the self-check has passed. */
  output: string
  /** Folders that the export is made from beside those of its encoders, as the adapter's: it does not replace them either. */
  sources?: readonly string[] | undefined
  /** Put f0 into the folder, so that it refines by itself. */
  bundle?: boolean | undefined
  /** Keep a folder whose decision accuracy fell by more than is allowed. */
  force?: boolean | undefined
  /** Told what the self-check found, also where the folder is then not kept. */
  onChecked?: ((found: ExportedEncoder) => void) | undefined
  /** What the adapter was trained on; goes into the folder, so that a later evaluation finds an overlap. */
  trainingData?: TrainingData | undefined
  /** Markdown of the measured table for the model card. */
  table?: string | undefined
  /** The toolkit's version. */
  version: string
}

/** How closely the first of the written types gives what was trained, the others beside it, and what became of the adapter. */
export interface ExportedEncoder extends CheckedVariant, Written {
  type: ExportType
  others?: Partial<Record<ExportType, CheckedVariant>>
  adapterGraph?: CheckedFolder['adapterGraph']
}

/**
 * Merges the adapter, writes the encoder's folder and checks it against the trained encoder; only then does the folder get its
 * name.
 *
 * @returns how closely the written files give what was trained, and what became of the adapter
 * @throws InputError when the written files do not give what was trained, or cannot be written; when their decisions are worse by
 * more than is allowed, unless that is forced; when something stands at `output` that is not an export, or that this one is made from
 * @throws RangeError for types that there are none of, and a loss that is no number from 0 on
 */
export async function exportEncoder(options: ExportOptions): Promise<ExportedEncoder> {
  const { encoder, adapter, queryEncoder, settings, keepAdapter, onProgress, signal } = options
  const types = [...new Set<ExportType>(options.types ?? ['fp32'])]
  if (types.length === 0 || !types.every((type) => EXPORT_TYPES.includes(type)))
    throw new RangeError(`"types" has to name one or more of ${EXPORT_TYPES.join(', ')}, not ${JSON.stringify(types)}`)
  // negated, so that NaN, under which nothing would be too much, is refused
  if (options.maxAccuracyLoss !== undefined && !(options.maxAccuracyLoss >= 0))
    throw new RangeError(`"maxAccuracyLoss" has to be points, 0 or more, not ${options.maxAccuracyLoss}`)
  const output = resolve(options.output)
  for (const source of [encoder.folder, queryEncoder.folder, ...(options.sources ?? [])])
    if (await liesIn(output, source))
      throw new InputError(`The export would replace what it is made from, ${source}. Choose another --output.`, {
        file: output,
      })
  if ((await lstat(output).catch(() => undefined))?.isSymbolicLink())
    throw new InputError('A link stands there, which an export does not replace. Name the folder that it leads to.', {
      file: output,
    })
  if (!(await mayBeReplaced(output)))
    throw new InputError(
      'What stands there is not an exported encoder, and is not replaced by one. Choose another --output.',
      { file: output },
    )

  if (keepAdapter && adapter === undefined)
    throw new InputError('There is no adapter to keep (--keep-adapter): give one, or leave that out.')

  return atomicFolder(output, async (temporary) => {
    const how = { version: options.version, types, keepAdapter, signal, onProgress }
    const written = await writeEncoderFolder(temporary, encoder, adapter, settings, how)
    if (options.bundle) await copyEncoder(queryEncoder, join(temporary, QUERY_FOLDER))
    if (options.trainingData !== undefined) await writeTrainingData(temporary, options.trainingData)
    signal?.throwIfAborted()

    const { types: checks, adapterGraph } = await checkFolder(temporary, { ...options, types })
    const [type = 'fp32'] = types
    const { [type]: main, ...others } = checks
    const exported: ExportedEncoder = {
      ...{ type, ...(main as CheckedVariant), ...written },
      ...(types.length > 1 && { others }),
      ...(adapterGraph !== undefined && { adapterGraph }),
    }
    options.onChecked?.(exported)
    const wrong: string[] = []
    for (const type of types) {
      const found = failures(checks[type] as SelfCheck)
      found.push(...(await wrongWeights(temporary, encoder, adapter, type, signal)))
      wrong.push(...found.map((sentence) => (types.length > 1 ? `${type}: ${sentence}` : sentence)))
      signal?.throwIfAborted()
    }
    if (adapterGraph !== undefined) wrong.push(...adapterFailures(adapterGraph))
    if (wrong.length > 0)
      throw new InputError(`The exported encoder failed its self-check and was not kept: ${wrong.join('; ')}.`, {
        file: output,
      })
    const graphs = [...Object.values(checks), ...(adapterGraph === undefined ? [] : [adapterGraph])]
    const lost = graphs.filter(({ loss }) => loss.verdict === 'lost')
    if (lost.length > 0 && !options.force)
      throw new InputError(
        `The exported encoder decides worse than the trained one and was not kept: ${lost.map(({ name, loss }) => `${name}: ${loss.why}`).join('; ')}. Export another type, allow more (--max-accuracy-loss), or keep it all the same (--force).`,
        { file: output },
      )
    const card = {
      profile: encoder,
      settings,
      types,
      checks,
      adapterGraph,
      table: options.table,
      adapted: adapter !== undefined,
      bundled: options.bundle ?? false,
    }
    await writeFile(join(temporary, 'README.md'), modelCard(card))
    signal?.throwIfAborted()
    return exported
  })
}

/** How far outputs may differ that are computed by the same nodes from the same numbers. */
const SAME_NODES = 1e-6

function adapterFailures(check: NonNullable<CheckedFolder['adapterGraph']>): string[] {
  const found = failures(check).map((sentence) => `beside the weights: ${sentence}`)
  // negated, so that NaN fails
  if (!(check.fedDifference <= SAME_NODES))
    found.push(
      `fed to the graph that takes adapters, the adapter gives what is off by ${check.fedDifference.toExponential(1)} from the graph that holds it`,
    )
  return found
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

/** What lies beside a model in its folder that {@link readEncoder} looks at. */
const MODEL_FILES = [
  'config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'vocab.txt',
  'sentence_bert_config.json',
  ...PROCESSOR_FILES,
]

/** Copies an encoder file by file, so that its fingerprint stays the same; its model may lie in a folder of its own inside. */
async function copyEncoder(profile: EncoderProfile, to: string): Promise<void> {
  const inModel = (name: string): string => relative(profile.folder, join(profile.modelFolder, name))
  const weights = [...new Set([profile.weights, ...profile.weightFiles])]
  const names = [
    'modules.json',
    'config_sentence_transformers.json',
    ...(await moduleFolders(profile.folder)).map((folder) => join(folder, 'config.json')),
    ...MODEL_FILES.map(inModel),
    ...weights.map((file) => relative(profile.folder, file)),
  ]
  const renamed = plainName(profile)
  for (const name of names) {
    if (name.startsWith('..'))
      throw new InputError(`${basename(name)} lies outside the encoder's folder.`, { file: name })
    const from = join(profile.folder, name)
    if (!(await exists(from))) continue
    await mkdir(dirname(join(to, renamed(name))), { recursive: true })
    await copyFile(from, join(to, renamed(name)))
  }
  if (!(await exists(join(to, 'modules.json')))) await writePooling(to, profile)
  const copied = await readEncoder(to, profile.stated)
  if (copied.fingerprint !== profile.fingerprint)
    throw new InputError('The copied query encoder differs from the original; its folder changed meanwhile.', {
      file: profile.folder,
    })
}

/** The folders of an encoder's modules, as modules.json names them. */
async function moduleFolders(folder: string): Promise<string[]> {
  const file = join(folder, 'modules.json')
  if (!(await exists(file))) return []
  const modules = JSON.parse(await readFile(file, 'utf8')) as { path: string }[]
  return modules.map(({ path }) => path)
}

/** The names of an encoder's files in a copy: whoever opens that looks for graphs without an ending, `_fp16` say. */
function plainName(profile: EncoderProfile): (name: string) => string {
  if (profile.kind === 'checkpoint') return (name) => name
  const parts = partFiles(profile.weights) ?? { model: profile.weights }
  const graphs = new Map(Object.entries(parts).map(([graph, file]) => [relative(profile.folder, file), graph]))
  return (name) => (graphs.has(name) ? `onnx/${graphs.get(name)}.onnx` : name)
}

/** The Markdown summary of an evaluation beside the run's adapter; undefined where there is none. */
export async function measuredTable(run: string): Promise<string | undefined> {
  return readFile(join(run, 'eval', 'summary.md'), 'utf8').catch(() => undefined)
}

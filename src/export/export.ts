import { copyFile, mkdir, readdir, readFile, realpath, writeFile } from 'node:fs/promises'
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
import { type CheckOptions, checkFolder } from './check-folder.ts'
import { type Written, writeEncoderFolder } from './folder.ts'
import { writePooling } from './folder-files.ts'
import { failures, type SelfCheck } from './self-check.ts'
import type { ExportType } from './variants.ts'
import { wrongWeights } from './written-weights.ts'

export interface ExportOptions extends CheckOptions {
  /** Folder to write; it appears when the self-check has passed. */
  output: string
  /** Put f0 into the folder, so that it refines by itself. */
  bundle?: boolean | undefined
  /** What the adapter was trained on; goes into the folder, so that a later evaluation finds an overlap. */
  trainingData?: TrainingData | undefined
  /** Markdown of the measured table for the model card. */
  table?: string | undefined
  /** The toolkit's version. */
  version: string
}

/** How closely the first of the written types gives what was trained, the others beside it, and what became of the adapter. */
export interface ExportedEncoder extends SelfCheck, Written {
  type: ExportType
  others?: Partial<Record<ExportType, SelfCheck>>
}

/**
 * Merges the adapter, writes the encoder's folder and checks it against the trained encoder; only then does the folder get its
 * name.
 *
 * @returns how closely the written files give what was trained, and what became of the adapter
 * @throws InputError when the written files do not give what was trained, or cannot be written; when something stands at
 * `output` that is not an export, or that this one is made from
 */
export async function exportEncoder(options: ExportOptions): Promise<ExportedEncoder> {
  const { encoder, adapter, queryEncoder, settings, types = ['fp32'], onProgress, signal } = options
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
    const how = { version: options.version, types, signal, onProgress }
    const written = await writeEncoderFolder(temporary, encoder, adapter, settings, how)
    if (options.bundle) await copyEncoder(queryEncoder, join(temporary, QUERY_FOLDER))
    if (options.trainingData !== undefined) await writeTrainingData(temporary, options.trainingData)
    signal?.throwIfAborted()

    const checks = await checkFolder(temporary, options)
    const wrong: string[] = []
    for (const type of types) {
      const found = failures(checks[type] as SelfCheck)
      found.push(...(await wrongWeights(temporary, encoder, adapter, type, signal)))
      wrong.push(...found.map((sentence) => (types.length > 1 ? `${type}: ${sentence}` : sentence)))
      signal?.throwIfAborted()
    }
    if (wrong.length > 0)
      throw new InputError(`The exported encoder failed its self-check and was not kept: ${wrong.join('; ')}.`, {
        file: output,
      })
    const card = {
      profile: encoder,
      settings,
      types,
      checks,
      table: options.table,
      adapted: adapter !== undefined,
      bundled: options.bundle ?? false,
    }
    await writeFile(join(temporary, 'README.md'), modelCard(card))
    signal?.throwIfAborted()
    const [type = 'fp32'] = types
    const { [type]: main, ...others } = checks
    return {
      ...{ type, ...(main as SelfCheck), ...written },
      ...(types.length > 1 && { others }),
    }
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
  ...PROCESSOR_FILES,
]

/** Copies an encoder file by file, so that its fingerprint stays the same. */
async function copyEncoder(profile: EncoderProfile, to: string): Promise<void> {
  if (profile.modelFolder !== profile.folder)
    throw new InputError('A query encoder whose model lies in a folder of its own cannot be bundled.', {
      file: profile.folder,
    })
  const weights = [...new Set([profile.weights, ...profile.weightFiles])]
  const names = [...SMALL_FILES, ...weights.map((file) => relative(profile.folder, file))]
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

import { join } from 'node:path'
import { z } from 'zod'
import { openSafetensors, type Safetensors, type Tensor, writeSafetensors } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { atomicFolder, exists, writeFileAtomic } from '../../support/files.ts'
import { withinTime } from '../../support/time-limit.ts'
import { readOptional } from '../folder/json-files.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { type Adapter, type LinearModule, type LoraTarget, loraA, loraB, loraShapes } from './lora.ts'
import { innerPath } from './module-path.ts'
import { encoderModules } from './modules.ts'
import { type PeftConfig, peftConfig, plainAlpha, readPeftConfig } from './peft-config.ts'
import { isSelected, patternValue } from './peft-selection.ts'
import { firstOf, type Matched, matchKeys, PEFT_PREFIX } from './stored-matrices.ts'

const TENSORS = 'adapter_model.safetensors'
/** What PEFT wrote before safetensors, and still does when asked to. */
const PICKLE = 'adapter_model.bin'
const CONFIG = 'adapter_config.json'
/** What PEFT has no place for: the encoder's fingerprint, and what the caller wants to keep with the adapter. */
const SIDE_FILE = 'canopy_adapter.json'
/** The files of an adapter that {@link readAdapter} reads. */
export const ADAPTER_FILES: readonly string[] = [CONFIG, TENSORS, SIDE_FILE]
const SCHEMA = 'canopy-adapter/1'
/** How long the regular expressions of adapter_config.json may take, in milliseconds; real ones take a few. */
const PATTERNS_MS = 2000

/**
 * Writes an adapter as PEFT does (adapter_model.safetensors, adapter_config.json; keys are `base_model.model.` and the module
 * path in the class that AutoModel builds), with canopy_adapter.json beside: the base encoder's fingerprint, and `info`. The
 * folder appears whole or not at all.
 *
 * @param info JSON to keep with the adapter, returned by {@link readAdapterInfo}
 */
export async function writeAdapter(
  folder: string,
  adapter: Adapter,
  profile: EncoderProfile,
  info: Record<string, unknown> = {},
): Promise<void> {
  const tensors = new Map<string, Tensor>()
  for (const { name, shape } of loraShapes(adapter.targets)) {
    const data = adapter.tensors.get(name)
    if (data === undefined) throw new RangeError(`The adapter has no tensor "${name}"`)
    tensors.set(PEFT_PREFIX + name, { dtype: 'float32', shape, data })
  }
  const side = {
    schema: SCHEMA,
    base: { id: profile.id, revision: profile.revision ?? null, fingerprint: profile.fingerprint },
    info,
  }
  const modules = await encoderModules(profile)
  await atomicFolder(folder, async (temporary) => {
    await writeSafetensors(join(temporary, TENSORS), tensors, { format: 'pt' })
    await writeFileAtomic(join(temporary, CONFIG), json(peftConfig(adapter, profile, modules)))
    await writeFileAtomic(join(temporary, SIDE_FILE), json(side))
  })
}

const json = (value: unknown): string => `${JSON.stringify(value, null, 2)}\n`

/**
 * Reads a LoRA adapter in PEFT's format, this toolkit's or PEFT's own, for an encoder. Keys may carry `base_model.model.`, and
 * the names of the model inside a model with a head (`bert.`, `model.`, `language_model.`) or among the modules of
 * sentence-transformers (`0.model.`). Ranks, alphas and the adapted modules are those that PEFT makes of adapter_config.json.
 * Adapted heads and poolers, which embeddings do not come from, are left out and named.
 *
 * @throws InputError for a missing or malformed file, for settings that aren't supported, for keys that name no module of the
 * encoder, for a matrix under two keys, for wrong shapes, for numbers that are not finite, for a file that does not hold what
 * adapter_config.json adapts, for patterns that take seconds to match, and for an adapter that says it was trained over another
 * encoder
 */
export async function readAdapter(folder: string, profile: EncoderProfile): Promise<Adapter> {
  const configFile = join(folder, CONFIG)
  const tensorFile = join(folder, TENSORS)
  await checkFiles(folder)
  const config = await readPeftConfig(configFile)
  const side = (await readSide(folder))?.base
  const stored = await openSafetensors(tensorFile)
  const modules = await encoderModules(profile)
  const fitted = (): { targets: LoraTarget[]; matched: Matched } => {
    const matched = matchKeys(stored.tensors, modules, profile.id, tensorFile)
    const fitting = () => fittingTargets(modules, matched.matrices, stored, config, profile, folder)
    return { targets: withinTime(PATTERNS_MS, fitting, () => endless(configFile)), matched }
  }
  if (side !== undefined && side.fingerprint !== profile.fingerprint) throw otherEncoder(side, profile, folder, fitted)

  const { targets, matched } = fitted()
  const tensors = new Map<string, Float32Array>()
  for (const { module } of targets) {
    const { a, b } = matched.matrices.get(module)!
    for (const [name, key] of [
      [loraA(module), a],
      [loraB(module), b],
    ] as const) {
      const matrix = await stored.readTensor(key)
      if (!matrix.every(Number.isFinite))
        throw new InputError(`The matrix "${key}" holds numbers that are not finite: the adapter is damaged.`, {
          file: tensorFile,
        })
      tensors.set(name, matrix)
    }
  }
  return {
    ...{ targets, tensors, baseFingerprint: side?.fingerprint },
    ...(config.use_rslora && { rankStabilised: true }),
    ...(matched.leftOut.length > 0 && { leftOut: matched.leftOut }),
  }
}

const endless = (file: string): InputError =>
  new InputError(
    `The patterns in it (rank_pattern, alpha_pattern, target_modules and the like) took more than ${PATTERNS_MS / 1000} seconds to compare with the encoder's modules: there are very many, or one repeats what repeats by itself, as (a+)+ does. Name the modules by their paths instead.`,
    { file },
  )

/** Refuses a folder that is no adapter, or whose matrices are a pickle. */
async function checkFiles(folder: string): Promise<void> {
  const [config, tensors, pickle] = [CONFIG, TENSORS, PICKLE].map((name) => join(folder, name)) as [
    string,
    string,
    string,
  ]
  if ((await exists(config)) && !(await exists(tensors)) && (await exists(pickle)))
    throw new InputError(
      `The matrices are a pickle, which can run any code when it is read and so is not read here. In Python, PeftModel.from_pretrained(model, folder).save_pretrained(…) writes them again as ${TENSORS}.`,
      { file: pickle },
    )
  for (const file of [config, tensors])
    if (!(await exists(file)))
      throw new InputError(
        `There is no such file; an adapter is a folder with ${CONFIG} and ${TENSORS}, such as a run's adapter/.`,
        { file },
      )
}

/** Of an adapter that says it was trained over another encoder: which one, and what does not fit as far as it shows. */
function otherEncoder(
  side: NonNullable<Awaited<ReturnType<typeof readSide>>>['base'],
  profile: EncoderProfile,
  folder: string,
  fitted: () => unknown,
): InputError {
  let misfit = ''
  try {
    fitted()
  } catch (error) {
    if (!(error instanceof InputError)) throw error
    misfit = ` ${error.message}`
  }
  return new InputError(
    `The adapter was trained over the encoder "${side.id}" (fingerprint ${side.fingerprint.slice(0, 12)}…), not over "${profile.id}" (${profile.fingerprint.slice(0, 12)}…) as it stands in ${profile.folder}. Give the encoder it was trained over: a checkpoint and its ONNX graphs are different encoders, and so are two ONNX graphs of one folder (--onnx-file, in a program "onnxFile"), and one encoder with other instructions or dimensions.${misfit}`,
    { file: folder },
  )
}

/** The modules that an adapter's matrices are for, in the encoder's order, with the rank and alpha that PEFT gives each. */
function fittingTargets(
  modules: readonly LinearModule[],
  matrices: Matched['matrices'],
  { tensors }: Pick<Safetensors, 'tensors'>,
  config: PeftConfig,
  { id }: EncoderProfile,
  folder: string,
): LoraTarget[] {
  const [configFile, tensorFile] = [join(folder, CONFIG), join(folder, TENSORS)]
  const targets: LoraTarget[] = []
  const misfits: string[] = []
  for (const { module, inputs, outputs } of modules) {
    const found = matrices.get(module)
    if (found === undefined) continue
    const rank = patternValue(config.rank_pattern, found.path, configFile) ?? config.r
    const alpha = patternValue(config.alpha_pattern, found.path, configFile) ?? config.lora_alpha
    const wrong = [
      differentShape('lora_A', tensors.get(found.a)?.shape, [rank, inputs]),
      differentShape('lora_B', tensors.get(found.b)?.shape, [outputs, rank]),
    ].filter((text) => text !== undefined)
    if (wrong.length > 0) misfits.push(`${module} (${outputs} x ${inputs}): ${wrong.join(', ')}`)
    targets.push({ module, inputs, outputs, rank, alpha: config.use_rslora ? plainAlpha(alpha, rank) : alpha })
  }
  if (targets.length === 0)
    throw new InputError(`The adapter holds no LoRA matrices for the encoder "${id}".`, { file: tensorFile })
  if (misfits.length > 0)
    throw new InputError(
      `${misfits.length} of ${targets.length} modules of the adapter do not fit the encoder "${id}" with the ranks in ${CONFIG}, first ${misfits.slice(0, 3).join('; ')}. The adapter is for another model, or its ${CONFIG} is.`,
      { file: tensorFile },
    )
  checkSelection(modules, matrices, config, folder)
  return targets
}

function differentShape(
  name: string,
  shape: readonly number[] | undefined,
  wanted: readonly [number, number],
): string | undefined {
  if (shape?.length === 2 && shape[0] === wanted[0] && shape[1] === wanted[1]) return undefined
  return `${name} is [${shape?.join(', ')}] instead of [${wanted.join(', ')}]`
}

/** What the classes of transformers have in front of the paths of their models of text. */
const WRAPPERS = ['', 'model.', 'bert.', 'language_model.', 'model.language_model.', 'language_model.model.']

/**
 * Refuses a file that lacks matrices of modules that adapter_config.json adapts in this encoder, which then has more layers than the
 * one that was adapted, and one with matrices that PEFT would not load.
 */
function checkSelection(
  modules: readonly LinearModule[],
  matrices: Matched['matrices'],
  config: PeftConfig,
  folder: string,
): void {
  const [first] = matrices.values()
  const [module] = matrices.keys()
  const outer = first!.path.slice(0, first!.path.length - innerPath(module!).length)
  const missing: string[] = []
  const unasked: string[] = []
  for (const { module } of modules) {
    const found = matrices.get(module)
    const inner = innerPath(module)
    const selected = isSelected(config, found?.path ?? outer + inner)
    // keys may have been renamed for another class than the one that was adapted
    if (found !== undefined && selected === false && !WRAPPERS.some((wrapper) => isSelected(config, wrapper + inner)))
      unasked.push(module)
    // what stands outside of the layers need not be in the model that was adapted
    if (found === undefined && selected === true && /\.\d+\./.test(module)) missing.push(module)
  }
  if (missing.length > 0)
    throw new InputError(
      `The adapter has no matrices for ${missing.length} modules of the encoder that its ${CONFIG} adapts, first ${firstOf(missing)}: it is for a model of fewer layers, or its file is not whole.`,
      { file: join(folder, TENSORS) },
    )
  if (unasked.length > 0)
    throw new InputError(
      `The adapter has matrices for ${unasked.length} modules that "target_modules" and the other settings do not name, first ${firstOf(unasked)}; PEFT would leave them out. Name them there, or take their matrices out of ${TENSORS}.`,
      { file: join(folder, CONFIG) },
    )
}

/** The JSON that {@link writeAdapter} kept with an adapter; undefined for one that another program wrote. */
export async function readAdapterInfo(folder: string): Promise<Record<string, unknown> | undefined> {
  return (await readSide(folder))?.info
}

const sideFile = z.object({
  schema: z.literal(SCHEMA),
  base: z.object({ id: z.string(), revision: z.string().nullable(), fingerprint: z.string() }),
  info: z.record(z.string(), z.unknown()).default({}),
})

async function readSide(folder: string): Promise<z.output<typeof sideFile> | undefined> {
  return readOptional(join(folder, SIDE_FILE), sideFile)
}

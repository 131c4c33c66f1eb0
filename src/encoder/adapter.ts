import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { z } from 'zod'
import { openSafetensors, type StoredTensor, type Tensor, writeSafetensors } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { atomicFolder, exists, fileError, writeFileAtomic } from '../support/files.ts'
import type { EncoderProfile } from './checkpoint.ts'
import { type Adapter, type LinearModule, type LoraTarget, loraA, loraB, loraShapes } from './lora.ts'
import { encoderModules } from './modules.ts'

const TENSORS = 'adapter_model.safetensors'
const CONFIG = 'adapter_config.json'
/** What PEFT has no place for: the encoder's fingerprint, and what the caller wants to keep with the adapter. */
const SIDE_FILE = 'canopy_adapter.json'
const SCHEMA = 'canopy-adapter/1'
/** PEFT wraps the adapted model twice, and so begins every key. */
const PEFT_PREFIX = 'base_model.model.'

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
    await writeFileAtomic(join(temporary, CONFIG), json(peftConfig(adapter.targets, profile, modules)))
    await writeFileAtomic(join(temporary, SIDE_FILE), json(side))
  })
}

const json = (value: unknown): string => `${JSON.stringify(value, null, 2)}\n`

/** adapter_config.json as PEFT writes it for a LoraConfig, defaults left out; PEFT fills those in. */
function peftConfig(
  targets: readonly LoraTarget[],
  profile: EncoderProfile,
  modules: readonly LinearModule[],
): Record<string, unknown> {
  const rank = mostCommon(targets.map((t) => t.rank))
  const alpha = mostCommon(targets.map((t) => t.alpha))
  const differing = (key: 'rank' | 'alpha', usual: number) =>
    Object.fromEntries(targets.filter((t) => t[key] !== usual).map((t) => [t.module, t[key]]))
  return {
    alpha_pattern: differing('alpha', alpha),
    base_model_name_or_path: profile.id,
    bias: 'none',
    fan_in_fan_out: false,
    inference_mode: true,
    init_lora_weights: true,
    lora_alpha: alpha,
    lora_dropout: 0,
    modules_to_save: null,
    peft_type: 'LORA',
    r: rank,
    rank_pattern: differing('rank', rank),
    revision: profile.revision ?? null,
    target_modules: targetNames(targets, modules),
    task_type: 'FEATURE_EXTRACTION',
    use_dora: false,
    use_rslora: false,
  }
}

function mostCommon(values: readonly number[]): number {
  const counts = new Map<number, number>()
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1)
  return [...counts].reduce((best, entry) => (entry[1] > best[1] ? entry : best), [1, 0] as [number, number])[0]
}

/**
 * The targets as PEFT selects them: the shortest list of path endings that names exactly these modules, or else their full
 * paths. (The pooler, which BertModel has and an encoder does not use, ends in `pooler.dense`.)
 */
function targetNames(targets: readonly LoraTarget[], modules: readonly LinearModule[]): string[] {
  const chosen = new Set(targets.map((t) => t.module))
  const all = [...modules.map((m) => m.module), 'pooler.dense']
  const endings = [...new Set([...chosen].map((module) => module.replace(/^.*\.\d+\./, '')))]
  const exact = all.every(
    (module) => chosen.has(module) === endings.some((e) => module === e || module.endsWith(`.${e}`)),
  )
  return (exact ? endings : [...chosen]).sort()
}

const loraConfig = z.looseObject({
  peft_type: z.string(),
  r: z.number().int().positive().default(8),
  lora_alpha: z.number().min(-1e6).max(1e6).default(8),
  rank_pattern: z.record(z.string(), z.number().int().positive()).nullish(),
  alpha_pattern: z.record(z.string(), z.number().min(-1e6).max(1e6)).nullish(),
  use_rslora: z.boolean().nullish(),
})

/** Settings that change what an adapter computes, with the values under which it is the plain low-rank update. */
const unsupported: [string, (value: unknown) => boolean][] = [
  ['use_dora', (v) => !v],
  ['bias', (v) => v === undefined || v === null || v === 'none'],
  ['lora_bias', (v) => !v],
  ['fan_in_fan_out', (v) => !v],
  ['modules_to_save', empty],
  ['layer_replication', empty],
  ['target_parameters', empty],
  ['trainable_token_indices', empty],
  ['use_qalora', (v) => !v],
  ['use_bdlora', (v) => !v],
  ['alora_invocation_tokens', empty],
  ['megatron_config', empty],
  ['arrow_config', empty],
  ['kasa_config', empty],
  ['velora_config', empty],
  ['monteclora_config', empty],
]

function empty(value: unknown): boolean {
  return value === undefined || value === null || (Array.isArray(value) && value.length === 0) || value === false
}

/**
 * Reads a LoRA adapter in PEFT's format, this toolkit's or PEFT's own, for an encoder. Keys may carry `base_model.model.`, and
 * the name of the model inside a model with a head (`bert.`, `model.`).
 *
 * @throws InputError for a missing or malformed file, for settings that aren't supported, for keys that name no module of the
 * encoder, for wrong shapes, and for an adapter that says it was trained over another encoder
 */
export async function readAdapter(folder: string, profile: EncoderProfile): Promise<Adapter> {
  const configFile = join(folder, CONFIG)
  const tensorFile = join(folder, TENSORS)
  for (const file of [configFile, tensorFile])
    if (!(await exists(file)))
      throw new InputError(
        `There is no such file; an adapter is a folder with ${CONFIG} and ${TENSORS}, such as a run's adapter/.`,
        { file },
      )
  const raw = await readJson(configFile)
  const parsed = loraConfig.safeParse(raw)
  if (!parsed.success) {
    const issue = parsed.error.issues[0]
    throw new InputError(`"${issue?.path.join('.')}": ${issue?.message}.`, { file: configFile })
  }
  const config = parsed.data
  if (config.peft_type !== 'LORA')
    throw new InputError(`The adapter is of the type "${config.peft_type}"; only LORA is supported.`, {
      file: configFile,
    })
  for (const [key, plain] of unsupported)
    if (!plain(raw[key]))
      throw new InputError(`"${key}": ${JSON.stringify(raw[key])} is not supported.`, { file: configFile })

  const side = (await readSide(folder))?.base
  if (side !== undefined && side.fingerprint !== profile.fingerprint)
    throw new InputError(
      `The adapter was trained over the encoder "${side.id}" (fingerprint ${side.fingerprint.slice(0, 12)}…), not over "${profile.id}" (${profile.fingerprint.slice(0, 12)}…) as it stands in ${profile.folder}. Give the encoder it was trained over: a checkpoint and its ONNX graphs are different encoders, and so are two ONNX graphs of one folder (--onnx-file).`,
      { file: folder },
    )

  const stored = await openSafetensors(tensorFile)
  const modules = await encoderModules(profile)
  const keys = matchKeys([...stored.tensors.keys()], modules, tensorFile)
  const targets: LoraTarget[] = []
  const tensors = new Map<string, Float32Array>()
  for (const module of modules) {
    const a = keys.get(loraA(module.module))
    const b = keys.get(loraB(module.module))
    if (a === undefined && b === undefined) continue
    if (a === undefined || b === undefined)
      throw new InputError(
        `The module ${module.module} has lora_${a === undefined ? 'B' : 'A'} but no lora_${a === undefined ? 'A' : 'B'}.`,
        { file: tensorFile },
      )
    const rank = patterned(config.rank_pattern, module.module, configFile) ?? config.r
    const alpha = patterned(config.alpha_pattern, module.module, configFile) ?? config.lora_alpha
    checkShape(a, stored.tensors.get(a) as StoredTensor, [rank, module.inputs], tensorFile, profile)
    checkShape(b, stored.tensors.get(b) as StoredTensor, [module.outputs, rank], tensorFile, profile)
    tensors.set(loraA(module.module), await stored.readTensor(a))
    tensors.set(loraB(module.module), await stored.readTensor(b))
    // rank-stabilised LoRA scales by alpha / √r instead of alpha / r
    targets.push({
      module: module.module,
      inputs: module.inputs,
      outputs: module.outputs,
      rank,
      alpha: config.use_rslora ? alpha * Math.sqrt(rank) : alpha,
    })
  }
  if (targets.length === 0) throw new InputError('The adapter holds no LoRA matrices.', { file: tensorFile })
  return { targets, tensors, baseFingerprint: side?.fingerprint }
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
  const file = join(folder, SIDE_FILE)
  if (!(await exists(file))) return undefined
  const parsed = sideFile.safeParse(await readJson(file))
  if (!parsed.success) {
    const issue = parsed.error.issues[0]
    throw new InputError(`"${issue?.path.join('.')}": ${issue?.message}.`, { file })
  }
  return parsed.data
}

/** Stored keys by the names that graphs use. */
function matchKeys(stored: string[], modules: readonly LinearModule[], file: string): Map<string, string> {
  const known = new Set(modules.map((m) => m.module))
  const matched = new Map<string, string>()
  const strange: string[] = []
  for (const key of stored) {
    const bare = key.startsWith(PEFT_PREFIX) ? key.slice(PEFT_PREFIX.length) : key
    const parts = /^(.*)\.(lora_[AB])(?:\.[^.]+)?\.weight$/.exec(bare)
    const path = parts?.[1] ?? ''
    const module = [path, path.replace(/^(?:bert|model)\./, '')].find((p) => known.has(p))
    if (parts === null || module === undefined) strange.push(key)
    else matched.set(`${module}.${parts[2]}.weight`, key)
  }
  if (strange.length > 0)
    throw new InputError(
      `${strange.length} of ${stored.length} keys name no linear module of the encoder, first ${strange
        .slice(0, 3)
        .map((key) => `"${key}"`)
        .join(', ')}; its modules are called like "${modules[0]?.module}". The adapter is for another model.`,
      { file },
    )
  return matched
}

/** PEFT's rule: a pattern is matched against the end of the module path, from the start or after a dot. */
function patterned(
  patterns: Record<string, number> | null | undefined,
  module: string,
  file: string,
): number | undefined {
  for (const [pattern, value] of Object.entries(patterns ?? {})) {
    let expression: RegExp
    try {
      expression = new RegExp(`^(?:.*\\.)?(?:${pattern})$`)
    } catch (error) {
      throw new InputError(`The pattern "${pattern}" is no regular expression.`, { file }, error)
    }
    if (expression.test(module)) return value
  }
  return undefined
}

function checkShape(key: string, tensor: StoredTensor, shape: number[], file: string, profile: EncoderProfile): void {
  if (tensor.shape.length === shape.length && tensor.shape.every((d, i) => d === shape[i])) return
  throw new InputError(
    `The tensor "${key}" is [${tensor.shape.join(', ')}]; for the encoder "${profile.id}" and the rank in ${CONFIG} it would be [${shape.join(', ')}]. The adapter is for another model.`,
    { file },
  )
}

async function readJson(file: string): Promise<Record<string, unknown>> {
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    throw fileError(error, 'cannot read the file', file)
  })
  try {
    const value: unknown = JSON.parse(text)
    if (value !== null && typeof value === 'object' && !Array.isArray(value)) return value as Record<string, unknown>
  } catch (error) {
    throw new InputError(`The file is not valid JSON (${(error as Error).message}).`, { file }, error)
  }
  throw new InputError('a JSON object was expected.', { file })
}

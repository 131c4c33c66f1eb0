import { join } from 'node:path'
import { z } from 'zod'
import { openSafetensors, type StoredTensor, type Tensor, writeSafetensors } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { atomicFolder, exists, writeFileAtomic } from '../../support/files.ts'
import { readOptional } from '../folder/json-files.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import { type Adapter, type LinearModule, type LoraTarget, loraA, loraB, loraShapes } from './lora.ts'
import { innerPath } from './module-path.ts'
import { encoderModules } from './modules.ts'
import { patterned, peftConfig, readPeftConfig } from './peft-config.ts'

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

/**
 * Reads a LoRA adapter in PEFT's format, this toolkit's or PEFT's own, for an encoder. Keys may carry `base_model.model.`, and
 * the names of the model inside a model with a head (`bert.`, `model.`, `language_model.`).
 *
 * @throws InputError for a missing or malformed file, for settings that aren't supported, for keys that name no module of the
 * encoder, for a matrix under two keys, for wrong shapes, and for an adapter that says it was trained over another encoder
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
  const config = await readPeftConfig(configFile)
  const side = (await readSide(folder))?.base
  if (side !== undefined && side.fingerprint !== profile.fingerprint)
    throw new InputError(
      `The adapter was trained over the encoder "${side.id}" (fingerprint ${side.fingerprint.slice(0, 12)}…), not over "${profile.id}" (${profile.fingerprint.slice(0, 12)}…) as it stands in ${profile.folder}. Give the encoder it was trained over: a checkpoint and its ONNX graphs are different encoders, and so are two ONNX graphs of one folder (--onnx-file, in a program "onnxFile"), and one encoder with other instructions or dimensions.`,
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
    const paths = [a.path, module.module, `model.${module.module}`]
    const rank = patterned(config.rank_pattern, paths, configFile) ?? config.r
    const alpha = patterned(config.alpha_pattern, paths, configFile) ?? config.lora_alpha
    checkShape(a.key, stored.tensors.get(a.key) as StoredTensor, [rank, module.inputs], tensorFile, profile)
    checkShape(b.key, stored.tensors.get(b.key) as StoredTensor, [module.outputs, rank], tensorFile, profile)
    tensors.set(loraA(module.module), await stored.readTensor(a.key))
    tensors.set(loraB(module.module), await stored.readTensor(b.key))
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
  return readOptional(join(folder, SIDE_FILE), sideFile)
}

/** A matrix's key in the file, and the path that its module has in the model that it was trained in. */
interface StoredKey {
  key: string
  path: string
}

/** Stored keys by the names that graphs use. */
function matchKeys(stored: string[], modules: readonly LinearModule[], file: string): Map<string, StoredKey> {
  const known = new Map(modules.map(({ module }) => [innerPath(module), module]))
  const matched = new Map<string, StoredKey>()
  const strange: string[] = []
  for (const key of stored) {
    const bare = key.startsWith(PEFT_PREFIX) ? key.slice(PEFT_PREFIX.length) : key
    const parts = /^(.*)\.(lora_[AB])(?:\.[^.]+)?\.weight$/.exec(bare)
    const path = parts?.[1] ?? ''
    const module = known.get(innerPath(path))
    if (parts === null || module === undefined) {
      strange.push(key)
      continue
    }
    const name = `${module}.${parts[2]}.weight`
    const other = matched.get(name)
    if (other !== undefined)
      throw new InputError(
        `"${other.key}" and "${key}" are the same matrix of ${module}; the file holds more than one adapter. Save one alone.`,
        { file },
      )
    matched.set(name, { key, path })
  }
  if (strange.length > 0)
    throw new InputError(
      `${strange.length} of ${stored.length} keys name no linear module of the encoder, first ${strange
        .slice(0, 3)
        .map((key) => `"${key}"`)
        .join(', ')}; its modules are called like "${modules[0]?.module}". ${
        strange.some((key) => key.includes('visual.'))
          ? 'The vision tower stays as it is here; adapt the language model alone.'
          : 'The adapter is for another model.'
      }`,
      { file },
    )
  return matched
}

function checkShape(key: string, tensor: StoredTensor, shape: number[], file: string, profile: EncoderProfile): void {
  if (tensor.shape.length === shape.length && tensor.shape.every((d, i) => d === shape[i])) return
  throw new InputError(
    `The tensor "${key}" is [${tensor.shape.join(', ')}]; for the encoder "${profile.id}" and the rank in ${CONFIG} it would be [${shape.join(', ')}]. The adapter is for another model.`,
    { file },
  )
}

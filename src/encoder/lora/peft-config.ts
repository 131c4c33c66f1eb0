import { z } from 'zod'
import { InputError } from '../../support/errors.ts'
import { check, readJsonObject } from '../folder/json-files.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import type { Adapter, LinearModule, LoraTarget } from './lora.ts'
import { isHead } from './module-path.ts'

/** adapter_config.json as PEFT writes it for a LoraConfig, defaults left out; PEFT fills those in. */
export function peftConfig(
  { targets, rankStabilised = false }: Pick<Adapter, 'targets' | 'rankStabilised'>,
  profile: EncoderProfile,
  modules: readonly LinearModule[],
): Record<string, unknown> {
  const stated = targets.map(({ module, rank, alpha }) => ({
    module,
    rank,
    alpha: rankStabilised ? stabilisedAlpha(alpha, rank) : alpha,
  }))
  const rank = mostCommon(stated.map((t) => t.rank))
  const alpha = mostCommon(stated.map((t) => t.alpha))
  const differing = (key: 'rank' | 'alpha', usual: number) =>
    Object.fromEntries(
      stated.filter((t) => t[key] !== usual).map((t) => [pathPattern(t.module, targets), t[key]] as const),
    )
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
    use_rslora: rankStabilised,
  }
}

/**
 * The alpha that rank-stabilised LoRA scales by alpha / √rank, of one that is scaled by alpha / rank: the number with the fewest
 * digits that comes to the same.
 */
function stabilisedAlpha(alpha: number, rank: number): number {
  const exact = alpha / Math.sqrt(rank)
  const short = Number(exact.toPrecision(15))
  return plainAlpha(short, rank) === alpha ? short : exact
}

/** The alpha that is scaled by alpha / rank, of one of rank-stabilised LoRA, which scales by alpha / √rank. */
export const plainAlpha = (alpha: number, rank: number): number => alpha * Math.sqrt(rank)

/** A pattern of PEFT's that is matched by this module alone: its path, which is enough unless it ends another's. */
function pathPattern(module: string, targets: readonly LinearModule[]): string {
  const escaped = module.replace(/[\\^$*+?()[\]{}|]/g, '\\$&')
  return targets.some((other) => other.module.endsWith(`.${module}`)) ? `^${escaped}` : escaped
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

const names = z.union([z.string(), z.array(z.string())]).nullish()

const schema = z.looseObject({
  peft_type: z.string(),
  r: z.number().int().positive().default(8),
  lora_alpha: z.number().min(-1e6).max(1e6).default(8),
  rank_pattern: z.record(z.string(), z.number().int().positive()).nullish(),
  alpha_pattern: z.record(z.string(), z.number().min(-1e6).max(1e6)).nullish(),
  use_rslora: z.boolean().nullish(),
  target_modules: names,
  exclude_modules: names,
  layers_to_transform: z.union([z.number(), z.array(z.number())]).nullish(),
  layers_pattern: names,
  modules_to_save: z.array(z.string()).nullish(),
})

/** Settings that change what an adapter computes: the values under which it is the plain low-rank update, and what the others do. */
const unsupported: [string, (value: unknown) => boolean, string][] = [
  ['use_dora', (v) => !v, 'DoRA also learns the length of each row of the weight'],
  [
    'bias',
    (v) => v === undefined || v === null || v === 'none',
    'the adapter has biases of its own beside the matrices',
  ],
  ['lora_bias', (v) => !v, 'the adapter has biases of its own beside the matrices'],
  ['fan_in_fan_out', (v) => !v, 'the weights are stored the other way round'],
  ['layer_replication', empty, 'the model has layers twice'],
  ['target_parameters', empty, 'parameters are adapted that are no linear maps'],
  ['trainable_token_indices', empty, 'rows of the embedding table are trained, too'],
  [
    'init_lora_weights',
    (v) => typeof v !== 'string' || !/^(pissa|corda|olora|loftq|lora_ga)/i.test(v),
    'training began from a part of the weights, which PEFT takes away from the encoder whenever it loads the adapter; save_pretrained(…, path_initial_model_for_weight_conversion=…) makes a plain one of it',
  ],
  ['use_qalora', (v) => !v, 'it is made for quantised weights'],
  ['use_bdlora', (v) => !v, 'its matrices are made of blocks'],
  ['alora_invocation_tokens', empty, 'the update begins at certain tokens'],
  ['megatron_config', empty, 'the modules are spread over several devices'],
  ['arrow_config', empty, 'it mixes several adapters'],
  ['kasa_config', empty, 'it is no plain low-rank update'],
  ['velora_config', empty, 'it is no plain low-rank update'],
  ['monteclora_config', empty, 'it is no plain low-rank update'],
]

/** What a user can do with an adapter that is no plain low-rank update. */
export const MERGE_INSTEAD =
  'In Python, PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(…) makes an encoder of it that can be given here.'

function empty(value: unknown): boolean {
  return value === undefined || value === null || (Array.isArray(value) && value.length === 0) || value === false
}

/** What adapter_config.json says of a LoRA adapter. */
export type PeftConfig = z.output<typeof schema>

/**
 * Reads adapter_config.json.
 *
 * @throws InputError for a malformed file, for an adapter of another kind, and for settings that are not supported
 */
export async function readPeftConfig(file: string): Promise<PeftConfig> {
  const raw = await readJsonObject(file, '')
  const config = check(schema, raw, file)
  if (config.peft_type !== 'LORA')
    throw new InputError(`The adapter is of the type "${config.peft_type}"; only LORA is supported.`, { file })
  for (const [key, plain, what] of unsupported)
    if (!plain(raw[key]))
      throw new InputError(`"${key}": ${JSON.stringify(raw[key])} is not supported: ${what}. ${MERGE_INSTEAD}`, {
        file,
      })
  const whole = (config.modules_to_save ?? []).filter((name) => !isHead(name))
  if (whole.length > 0)
    throw new InputError(
      `"modules_to_save": ${JSON.stringify(whole)} is not supported: the adapter brings whole modules of the encoder with it. ${MERGE_INSTEAD}`,
      { file },
    )
  return config
}

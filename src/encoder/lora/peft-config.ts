import { z } from 'zod'
import { InputError } from '../../support/errors.ts'
import { check, readJsonObject } from '../folder/json-files.ts'
import type { EncoderProfile } from '../folder/profile.ts'
import type { LinearModule, LoraTarget } from './lora.ts'

/** adapter_config.json as PEFT writes it for a LoraConfig, defaults left out; PEFT fills those in. */
export function peftConfig(
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

const schema = z.looseObject({
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
  // these start from a part of the weight, which PEFT takes away from the encoder whenever it loads such an adapter
  ['init_lora_weights', (v) => typeof v !== 'string' || !/^(pissa|corda|olora|loftq|lora_ga)/i.test(v)],
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
  for (const [key, plain] of unsupported)
    if (!plain(raw[key])) throw new InputError(`"${key}": ${JSON.stringify(raw[key])} is not supported.`, { file })
  return config
}

/**
 * PEFT's rule: a pattern is matched against the end of the module path, from the start or after a dot.
 *
 * @param paths of the module: in the model that was adapted, in this encoder, and inside a model with a head
 */
export function patterned(
  patterns: Record<string, number> | null | undefined,
  paths: readonly string[],
  file: string,
): number | undefined {
  for (const [pattern, value] of Object.entries(patterns ?? {})) {
    let expression: RegExp
    try {
      expression = new RegExp(`^(?:.*\\.)?(?:${pattern})$`)
    } catch (error) {
      throw new InputError(`The pattern "${pattern}" is no regular expression.`, { file }, error)
    }
    if (paths.some((path) => expression.test(path))) return value
  }
  return undefined
}

import { join } from 'node:path'
import { z } from 'zod'
import { InputError } from '../../support/errors.ts'
import { resolveInside } from '../../support/files.ts'
import type { Standards } from '../architecture.ts'
import { check, readJsonObject, readOptional } from './json-files.ts'
import type { Pooling, ReadEncoderOptions, Side } from './profile.ts'

/** Where to get a file that is not there. */
export const HOW_TO_GET =
  'Download the whole model repository from huggingface.co (its files, not only the weights), or name the model by its Hugging Face id.'

/** sentence_bert_config.json */
export const sentenceConfig = z.looseObject({
  max_seq_length: z.number().int().min(3).nullish(),
  do_lower_case: z.boolean().nullish(),
  modality_config: z.unknown().optional(),
  processing_kwargs: z
    .looseObject({ chat_template: z.looseObject({ add_generation_prompt: z.boolean().nullish() }).nullish() })
    .nullish(),
})

const moduleList = z.array(z.looseObject({ path: z.string(), type: z.string() }))

export interface Modules {
  file: string
  transformer: string
  pooling: string
  normalize: boolean
}

/** modules.json: a Transformer, a Pooling and perhaps a Normalize; anything else computes something else. */
export async function readModules(root: string): Promise<Modules | undefined> {
  const file = join(root, 'modules.json')
  const list = await readOptional(file, moduleList)
  if (list === undefined) return undefined
  const kinds = list.map((module) => module.type.split('.').at(-1) ?? '')
  const wanted = ['Transformer', 'Pooling', 'Normalize']
  const strange = kinds.find((kind) => !wanted.includes(kind))
  if (strange !== undefined)
    throw new InputError(
      `The module "${strange}" is not supported; encoders here are a Transformer, a Pooling and optionally a Normalize module.`,
      { file },
    )
  if (
    kinds[0] !== 'Transformer' ||
    kinds[1] !== 'Pooling' ||
    kinds.length > 3 ||
    (kinds[2] ?? 'Normalize') !== 'Normalize'
  )
    throw new InputError(`The modules ${kinds.join(', ')} are not in the order Transformer, Pooling, Normalize.`, {
      file,
    })
  return {
    file,
    transformer: list[0]?.path ?? '',
    pooling: list[1]?.path ?? '1_Pooling',
    normalize: kinds[2] === 'Normalize',
  }
}

export function modulePath(root: string, path: string): string {
  return path === '' || path === '.' ? root : resolveInside(root, path)
}

const poolingConfig = z.looseObject({
  word_embedding_dimension: z.number().int().positive().optional(),
  embedding_dimension: z.number().int().positive().optional(),
  pooling_mode: z.union([z.string(), z.array(z.string())]).optional(),
  include_prompt: z.boolean().optional(),
})

const poolingNames: Record<string, Pooling> = { mean: 'mean', cls: 'cls', lasttoken: 'last' }
const poolingFlags: Record<string, string> = {
  pooling_mode_cls_token: 'cls',
  pooling_mode_max_tokens: 'max',
  pooling_mode_mean_tokens: 'mean',
  pooling_mode_mean_sqrt_len_tokens: 'mean_sqrt_len_tokens',
  pooling_mode_weightedmean_tokens: 'weightedmean',
  pooling_mode_lasttoken: 'lasttoken',
}

/**
 * How token vectors become one embedding: as stated, as 1_Pooling/config.json says, or as the architecture's own code does.
 *
 * @throws InputError where none of them says it, and for pooling that is not supported
 */
export async function readPooling(
  root: string,
  modules: Modules | undefined,
  options: Pick<ReadEncoderOptions, 'pooling' | 'normalize'>,
  standards: Standards | undefined,
): Promise<{
  pooling: Pooling
  normalize: boolean
  includePrompt: boolean
  dimension: number | undefined
  file: string
}> {
  if (modules === undefined) {
    const file = join(root, 'modules.json')
    const pooling = options.pooling ?? standards?.pooling
    if (pooling === undefined)
      throw new InputError(
        `There is no such file, so how token vectors become one embedding is not known. Take modules.json and 1_Pooling/config.json from the model's repository (for an ONNX conversion: from the original's), or state the pooling ("pooling", --pooling: mean, cls or last) and whether embeddings are normalised ("normalize", --normalize).`,
        { file },
      )
    return {
      pooling,
      normalize: options.normalize ?? standards?.normalize ?? false,
      includePrompt: true,
      dimension: undefined,
      file,
    }
  }
  const file = join(modulePath(root, modules.pooling), 'config.json')
  const raw = await readJsonObject(file, HOW_TO_GET)
  const config = check(poolingConfig, raw, file)
  const flagged = Object.entries(poolingFlags)
    .filter(([flag]) => raw[flag] === true)
    .map(([, mode]) => mode)
  const named = typeof config.pooling_mode === 'string' ? [config.pooling_mode] : config.pooling_mode
  const modes = named ?? (flagged.length > 0 ? flagged : ['mean'])
  const pooling = modes.length === 1 ? poolingNames[modes[0] as string] : undefined
  if (pooling === undefined)
    throw new InputError(
      `Pooling by ${modes.map((mode) => `"${mode}"`).join(' and ')} is not supported; mean, cls and lasttoken are, one at a time.`,
      { file },
    )
  return {
    pooling: options.pooling ?? pooling,
    normalize: options.normalize ?? modules.normalize,
    includePrompt: config.include_prompt ?? true,
    dimension: config.embedding_dimension ?? config.word_embedding_dimension,
    file,
  }
}

const promptConfig = z.looseObject({
  prompts: z.record(z.string(), z.string().nullable()).nullish(),
  default_prompt_name: z.string().nullish(),
  truncate_dim: z.number().int().positive().nullish(),
})

/**
 * config_sentence_transformers.json: prompts, and how many numbers of an embedding are kept (all of them where it does not say). The
 * query side takes the prompt saved as `query`, the node side the first non-empty one of `document`, `passage` and `corpus`. A
 * side without one takes the default prompt, unless that belongs to a side by its name.
 */
export async function readPrompts(
  root: string,
): Promise<{ prompts: Record<Side, string>; dimensions: number | undefined; file: string }> {
  const file = join(root, 'config_sentence_transformers.json')
  const config = await readOptional(file, promptConfig)
  const prompts = config?.prompts ?? {}
  const name = config?.default_prompt_name
  if (name !== null && name !== undefined && !Object.hasOwn(prompts, name))
    throw new InputError(`"default_prompt_name" is "${name}", but "prompts" has no such prompt.`, { file })
  const sided = ['query', 'document', 'passage', 'corpus']
  const otherwise = name !== null && name !== undefined && !sided.includes(name) ? (prompts[name] ?? '') : ''
  const first = (names: string[]): string => {
    const saved = names.filter((n) => Object.hasOwn(prompts, n))
    const text = saved.map((n) => prompts[n]).find((p) => p !== '' && p !== null)
    return text ?? (saved.length > 0 ? '' : otherwise)
  }
  return {
    prompts: { query: first(['query']), node: first(['document', 'passage', 'corpus']) },
    dimensions: config?.truncate_dim ?? undefined,
    file,
  }
}

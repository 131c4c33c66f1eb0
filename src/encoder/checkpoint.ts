import { createHash } from 'node:crypto'
import { readdir, readFile, realpath, stat } from 'node:fs/promises'
import { basename, join, resolve } from 'node:path'
import { z } from 'zod'
import { modelContents } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { exists, fileError, resolveInside, sha256File } from '../support/files.ts'
import { bertConfig } from './bert-config.ts'

export type Pooling = 'mean' | 'cls' | 'last'

/** The two kinds of text that an encoder embeds, each with its own prompt. */
export type Side = 'query' | 'node'

/** Everything about an encoder that is not a tensor: plain data, read from the files of its folder. */
export interface EncoderProfile {
  /** A `checkpoint` holds safetensors, over which graphs are built; an `onnx` folder holds a graph that is used as it stands. */
  kind: 'checkpoint' | 'onnx'
  /** Absolute path of the folder that was named. */
  folder: string
  /** Absolute path of the folder of `config.json` and the tokenizer: `folder`, or the first module's folder inside it. */
  modelFolder: string
  /** The model's name: its Hugging Face id where that is known, else the folder's name. */
  id: string
  /** The commit of the Hugging Face repository, where it is known. */
  revision: string | undefined
  /** `model_type` of config.json. */
  architecture: string
  /** config.json as it stands. */
  config: Record<string, unknown>
  pooling: Pooling
  /** Whether embeddings are scaled to length 1. */
  normalize: boolean
  /** Text put in front of every text of a side; '' for none. */
  prompts: Record<Side, string>
  /** Most tokens of one text, special tokens included; longer texts are cut. */
  maxLength: number
  /** Whether texts are lower-cased before tokenising, on top of what the tokenizer does. */
  lowerCase: boolean
  /** Length of an embedding. */
  dimension: number
  /** Absolute paths of the safetensors files, or of the .onnx file and those of its external data. */
  weightFiles: string[]
  /** The file to open for the weights: model.safetensors, its index for a sharded model, or the .onnx file. */
  weights: string
  /** canopy.json, where the folder has one. */
  canopy: Record<string, unknown> | undefined
  /** SHA-256 (hexadecimal) over weights, config, tokenizer, pooling, prompts and maximum length. */
  fingerprint: string
}

export interface ReadEncoderOptions {
  /** Used when the folder has both safetensors and an ONNX graph; the safetensors otherwise. */
  kind?: 'checkpoint' | 'onnx'
  /** File name inside `onnx/`; `model.onnx` by default. */
  onnxFile?: string
  /** The model's name and commit, when the caller knows them better than the folder does. */
  id?: string
  revision?: string
  /** For folders without modules.json, whose pooling cannot be known from their files. */
  pooling?: Pooling
  normalize?: boolean
}

/** What configurations of transformers call the width of a token's vector, DistilBERT and GPT-2 among them. */
const WIDTHS = ['hidden_size', 'dim', 'n_embd', 'd_model']

const HOW_TO_GET =
  'Download the whole model repository from huggingface.co (its files, not only the weights), or name the model by its Hugging Face id.'

/**
 * Reads what an encoder's own files say about it: architecture, pooling, normalisation, prompts and maximum length, as
 * sentence-transformers reads them (modules.json, 1_Pooling/config.json, config_sentence_transformers.json,
 * sentence_bert_config.json, tokenizer_config.json, config.json). The truncation settings inside tokenizer.json are ignored.
 *
 * @throws InputError naming the file that is missing, malformed or asks for something that isn't supported
 */
export async function readEncoder(folder: string, options: ReadEncoderOptions = {}): Promise<EncoderProfile> {
  const root = resolve(folder)
  const info = await stat(root).catch(() => undefined)
  if (info === undefined)
    throw new InputError(
      `The encoder's folder ${root} does not exist. Give the folder of a model, or a Hugging Face id.`,
    )
  if (!info.isDirectory())
    throw new InputError(`${root} is a file; an encoder is the folder that holds config.json and the weights.`)

  const modules = await readModules(root)
  const modelFolder = modules === undefined ? root : modulePath(root, modules.transformer)
  const configFile = join(modelFolder, 'config.json')
  const config = await readJsonObject(configFile, HOW_TO_GET)
  const architecture = config.model_type
  if (typeof architecture !== 'string')
    throw new InputError('"model_type" is missing, so the architecture is not known.', { file: configFile })

  const { kind, weights, weightFiles } = await findWeights(root, modelFolder, options)
  for (const name of ['tokenizer.json', 'tokenizer_config.json'])
    if (!(await exists(join(modelFolder, name))))
      throw new InputError(`No ${name} in ${modelFolder}: the tokenizer is part of an encoder. ${HOW_TO_GET}`)

  if (kind === 'checkpoint') {
    if (architecture !== 'bert')
      throw new InputError(
        `Checkpoints of the architecture "${architecture}" are not supported (supported: bert). A model exported to ONNX can be used instead: a folder with onnx/model.onnx.`,
        { file: configFile },
      )
    bertConfig(config, configFile)
  }

  const pool = await readPooling(root, modules, options)
  const hidden = WIDTHS.map((name) => config[name]).find((width) => width !== undefined)
  const dimension = pool.dimension ?? (typeof hidden === 'number' ? hidden : undefined)
  if (dimension === undefined) throw new InputError('"hidden_size" is missing.', { file: configFile })
  if (typeof hidden === 'number' && hidden !== dimension)
    throw new InputError(
      `Pooling is set up for vectors of ${dimension} numbers, but the model's have ${hidden} (config.json).`,
      { file: pool.file },
    )

  const sentence = await readOptional(join(modelFolder, 'sentence_bert_config.json'), sentenceConfig)
  const tokenizerConfig = await readJsonObject(join(modelFolder, 'tokenizer_config.json'), HOW_TO_GET)
  const prompts = await readPrompts(root)
  if (!pool.includePrompt && (prompts.query !== '' || prompts.node !== ''))
    throw new InputError('Pooling without the prompt ("include_prompt": false) is not supported.', { file: pool.file })
  const maxLength = maximumLength(sentence?.max_seq_length, tokenizerConfig.model_max_length, config)
  if (maxLength === undefined)
    throw new InputError(
      `The maximum length of a text is not known: give "max_seq_length" in sentence_bert_config.json or "model_max_length" in tokenizer_config.json.`,
      { file: modelFolder },
    )
  const canopyFile = join(root, 'canopy.json')
  const canopy = (await exists(canopyFile)) ? await readJsonObject(canopyFile, '') : undefined

  const known = hubPlace(await realpath(root), root)
  const profile: Omit<EncoderProfile, 'fingerprint'> = {
    kind,
    folder: root,
    modelFolder,
    id: options.id ?? known?.id ?? basename(root),
    revision: options.revision ?? known?.revision,
    architecture,
    config,
    pooling: pool.pooling,
    normalize: pool.normalize,
    prompts,
    maxLength,
    lowerCase: sentence?.do_lower_case ?? false,
    dimension,
    weightFiles,
    weights,
    canopy,
  }
  return { ...profile, fingerprint: await fingerprint(profile) }
}

/** Whether sentence-transformers, and so this toolkit, would cut a text at this many tokens. */
function maximumLength(
  sentence: number | null | undefined,
  tokenizer: unknown,
  config: Record<string, unknown>,
): number | undefined {
  const positions = config.max_position_embeddings ?? config.n_positions
  // RoBERTa's position numbers start after the padding index, so that two of its 514 positions are never used
  const offset = ['roberta', 'xlm-roberta', 'camembert', 'mpnet'].includes(String(config.model_type)) ? 2 : 0
  const limits = [
    sentence ?? (typeof tokenizer === 'number' ? tokenizer : undefined),
    typeof positions === 'number' && positions > 0 ? positions - offset : undefined,
  ].filter((n): n is number => n !== undefined && Number.isFinite(n) && n >= 1 && n < 1e9)
  return limits.length === 0 ? undefined : Math.floor(Math.min(...limits))
}

const sentenceConfig = z.looseObject({
  max_seq_length: z.number().int().min(3).nullish(),
  do_lower_case: z.boolean().nullish(),
})

const moduleList = z.array(z.looseObject({ path: z.string(), type: z.string() }))

interface Modules {
  file: string
  transformer: string
  pooling: string
  normalize: boolean
}

/** modules.json: a Transformer, a Pooling and perhaps a Normalize; anything else computes something else. */
async function readModules(root: string): Promise<Modules | undefined> {
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

function modulePath(root: string, path: string): string {
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

async function readPooling(
  root: string,
  modules: Modules | undefined,
  options: ReadEncoderOptions,
): Promise<{
  pooling: Pooling
  normalize: boolean
  includePrompt: boolean
  dimension: number | undefined
  file: string
}> {
  if (modules === undefined) {
    const file = join(root, 'modules.json')
    if (options.pooling === undefined)
      throw new InputError(
        `There is no such file, so how token vectors become one embedding is not known. Take modules.json and 1_Pooling/config.json from the model's repository (for an ONNX conversion: from the original's), or state the pooling (--pooling mean, cls or last) and whether embeddings are normalised (--normalize).`,
        { file },
      )
    return {
      pooling: options.pooling,
      normalize: options.normalize ?? false,
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
})

/**
 * The query side takes the prompt saved as `query`, the node side the first non-empty one of `document`, `passage` and `corpus`. A
 * side without one takes the default prompt, unless that belongs to a side by its name.
 */
async function readPrompts(root: string): Promise<Record<Side, string>> {
  const file = join(root, 'config_sentence_transformers.json')
  const config = await readOptional(file, promptConfig)
  const prompts = config?.prompts ?? {}
  const name = config?.default_prompt_name
  if (name !== null && name !== undefined && !(name in prompts))
    throw new InputError(`"default_prompt_name" is "${name}", but "prompts" has no such prompt.`, { file })
  const sided = ['query', 'document', 'passage', 'corpus']
  const otherwise = name !== null && name !== undefined && !sided.includes(name) ? (prompts[name] ?? '') : ''
  const first = (names: string[]): string => {
    const saved = names.filter((n) => n in prompts)
    const text = saved.map((n) => prompts[n]).find((p) => p !== '' && p !== null)
    return text ?? (saved.length > 0 ? '' : otherwise)
  }
  return { query: first(['query']), node: first(['document', 'passage', 'corpus']) }
}

interface FoundWeights {
  kind: 'checkpoint' | 'onnx'
  weights: string
  weightFiles: string[]
}

async function findWeights(root: string, modelFolder: string, options: ReadEncoderOptions): Promise<FoundWeights> {
  const single = join(modelFolder, 'model.safetensors')
  const index = join(modelFolder, 'model.safetensors.index.json')
  const onnx = join(root, 'onnx', options.onnxFile ?? 'model.onnx')
  if (options.kind !== 'onnx') {
    if (await exists(single)) return { kind: 'checkpoint', weights: single, weightFiles: [single] }
    if (await exists(index)) {
      const { weight_map } = check(
        z.looseObject({ weight_map: z.record(z.string(), z.string()) }),
        await readJsonObject(index, ''),
        index,
      )
      const names = [...new Set(Object.values(weight_map))].sort()
      const files = names.map((name) => resolveInside(modelFolder, name))
      for (const file of files)
        if (!(await exists(file)))
          throw new InputError(
            `The model's part ${basename(file)}, which ${basename(index)} names, is missing. ${HOW_TO_GET}`,
            { file },
          )
      return { kind: 'checkpoint', weights: index, weightFiles: files }
    }
    if (options.kind === 'checkpoint')
      throw new InputError(
        `Neither model.safetensors nor model.safetensors.index.json is in ${modelFolder}. ${HOW_TO_GET}`,
      )
  }
  if (await exists(onnx)) {
    const { externalFiles } = await modelContents(onnx)
    const data = externalFiles.map((name) => resolveInside(join(root, 'onnx'), name))
    for (const [i, file] of data.entries())
      if (!(await exists(file)))
        throw new InputError(
          `The weights of ${basename(onnx)} lie in ${externalFiles[i]}, which is missing. Download it from the model's repository and put it beside.`,
          { file },
        )
    return { kind: 'onnx', weights: onnx, weightFiles: [onnx, ...data] }
  }
  if (options.kind === 'onnx') {
    const graphs = (await readdir(join(root, 'onnx')).catch(() => [])).filter((name) => name.endsWith('.onnx')).sort()
    throw new InputError(
      `No ${onnx}. ${graphs.length === 0 ? HOW_TO_GET : `The graphs in that folder are ${graphs.join(', ')}.`}`,
    )
  }
  const pickled = await exists(join(modelFolder, 'pytorch_model.bin'))
  throw new InputError(
    `No weights in ${modelFolder}: looked for model.safetensors, model.safetensors.index.json and onnx/model.onnx. ${
      pickled ? 'pytorch_model.bin is not read, since it can run code: convert it to safetensors. ' : ''
    }${HOW_TO_GET}`,
  )
}

/** A snapshot in the Hugging Face cache says its id and revision by its path: models--org--name/snapshots/commit. */
function hubPlace(...paths: string[]): { id: string; revision: string } | undefined {
  for (const path of paths) {
    const match = /[\\/]models--([^\\/]+)[\\/]snapshots[\\/]([0-9a-f]{7,64})$/.exec(path)
    if (match !== null) return { id: (match[1] as string).split('--').join('/'), revision: match[2] as string }
  }
  return undefined
}

async function fingerprint(profile: Omit<EncoderProfile, 'fingerprint'>): Promise<string> {
  const files = [
    ...profile.weightFiles,
    join(profile.modelFolder, 'tokenizer.json'),
    join(profile.modelFolder, 'tokenizer_config.json'),
  ]
  const hashes: string[] = []
  for (const file of files) hashes.push(await hashOfFile(file))
  // what changes with the tool that saved the model and not with what the model computes
  const volatile = ['_name_or_path', 'transformers_version', 'architectures']
  const config = Object.entries(profile.config)
    .filter(([key]) => !volatile.includes(key))
    .sort(([a], [b]) => (a < b ? -1 : 1))
  const { kind, pooling, normalize, prompts, maxLength, lowerCase } = profile
  const content = [kind, hashes, config, pooling, normalize, prompts.query, prompts.node, maxLength, lowerCase]
  return createHash('sha256').update(JSON.stringify(content)).digest('hex')
}

const hashes = new Map<string, string>()

/** SHA-256 of a file, remembered while the process lives for the same path, size and time of change. */
async function hashOfFile(path: string): Promise<string> {
  const { size, mtimeNs } = await stat(path, { bigint: true }).catch((error: unknown) => {
    throw fileError(error, 'cannot read the file', path)
  })
  const key = `${path}\0${size}\0${mtimeNs}`
  const known = hashes.get(key)
  if (known !== undefined) return known
  const hash = await sha256File(path)
  hashes.set(key, hash)
  return hash
}

async function readJsonObject(file: string, howToGet: string): Promise<Record<string, unknown>> {
  const value = await readJson(file, howToGet)
  if (value === null || typeof value !== 'object' || Array.isArray(value))
    throw new InputError('a JSON object was expected.', { file })
  return value as Record<string, unknown>
}

async function readJson(file: string, howToGet: string): Promise<unknown> {
  const text = await readFile(file, 'utf8').catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT')
      throw new InputError(`There is no such file. ${howToGet}`.trim(), { file })
    throw fileError(error, 'cannot read the file', file)
  })
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new InputError(`The file is not valid JSON (${(error as Error).message}).`, { file }, error)
  }
}

async function readOptional<T>(file: string, schema: z.ZodType<T>): Promise<T | undefined> {
  return (await exists(file)) ? check(schema, await readJson(file, ''), file) : undefined
}

function check<T>(schema: z.ZodType<T>, value: unknown, file: string): T {
  const result = schema.safeParse(value)
  if (result.success) return result.data
  const issue = result.error.issues[0]
  throw new InputError(`${issue?.path.length ? `"${issue.path.join('.')}": ` : ''}${issue?.message ?? 'malformed'}.`, {
    file,
  })
}

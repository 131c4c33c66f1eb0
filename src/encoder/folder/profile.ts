import { realpath, stat } from 'node:fs/promises'
import { basename, join, resolve } from 'node:path'
import { InputError } from '../../support/errors.ts'
import { exists } from '../../support/files.ts'
import { checkArchitecture, readsPictures, type Standards, standardsOf } from '../architecture.ts'
import { fingerprint } from './fingerprint.ts'
import { readJsonObject, readOptional } from './json-files.ts'
import { languageConfig } from './language-config.ts'
import { readLengthLimit } from './length.ts'
import { refuseOtherFolders } from './other-folders.ts'
import { HOW_TO_GET, modulePath, readModules, readPooling, readPrompts, sentenceConfig } from './sentence-files.ts'
import { findWeights } from './weight-files.ts'
import { checkWeightsFit } from './weights-fit.ts'

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
  /** Text put in front of every text of a side, '' for none; for an encoder that takes conversations, the side's instruction. */
  prompts: Record<Side, string>
  /** Most tokens of one text, special tokens included; longer texts are cut. */
  maxLength: number
  /** Whether a conversation ends with the beginning of the answer, for an encoder that takes conversations. */
  opensAnswer: boolean
  /** Whether texts are lower-cased before tokenising, on top of what the tokenizer does. */
  lowerCase: boolean
  /** Length of an embedding, which is the first numbers of a token's vector or of several tokens' mean. */
  dimension: number
  /** Length of a token's vector. */
  width: number
  /** Absolute paths of the safetensors files, or of the .onnx file and those of its external data. */
  weightFiles: string[]
  /** The file to open for the weights: model.safetensors, its index for a sharded model, or the .onnx file. */
  weights: string
  /** canopy.json, where the folder has one. */
  canopy: Record<string, unknown> | undefined
  /** What was stated otherwise than the files have it, to state it again where the profile has to be the same. */
  stated: StatedSettings
  /** SHA-256 (hexadecimal) over weights, config, tokenizer, pooling, prompts, maximum length and dimension. */
  fingerprint: string
}

/** Settings of an encoder that change its embeddings and that a user may choose. */
export interface StatedSettings {
  /**
   * How many numbers an embedding has: the first ones, scaled to length 1 afterwards where the encoder's are (Kusupati et al. 2022,
   * arXiv 2205.13147). Meant for encoders that were trained for it.
   */
  dimensions?: number
  /** What an encoder of conversations is told to do with a question or a node. */
  instructions?: { query?: string | undefined; node?: string | undefined }
}

export interface ReadEncoderOptions extends StatedSettings {
  /** Used when the folder has both safetensors and an ONNX graph; the safetensors otherwise. */
  kind?: 'checkpoint' | 'onnx'
  /** File name inside `onnx/`; by default the one that canopy.json of an exported folder names, else `model.onnx`. */
  onnxFile?: string
  /** The model's name and commit, when the caller knows them better than the folder does. */
  id?: string
  revision?: string
  /** For folders without modules.json, whose pooling cannot be known from their files. */
  pooling?: Pooling
  normalize?: boolean
}

/**
 * Reads what an encoder's own files say about it: architecture, pooling, normalisation, prompts, maximum length and dimension, as
 * sentence-transformers reads them (modules.json, 1_Pooling/config.json, config_sentence_transformers.json,
 * sentence_bert_config.json, tokenizer_config.json, config.json). Where these are absent, the architecture's own code may say it
 * (`qwen3_vl`). The truncation settings inside tokenizer.json are ignored.
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

  await refuseOtherFolders(root)
  const modules = await readModules(root)
  const modelFolder = modules === undefined ? root : modulePath(root, modules.transformer)
  const configFile = join(modelFolder, 'config.json')
  const config = await readJsonObject(configFile, HOW_TO_GET)
  const architecture = config.model_type
  if (typeof architecture !== 'string')
    throw new InputError('"model_type" is missing, so the architecture is not known.', { file: configFile })

  const { kind, weights, weightFiles } = await findWeights(root, modelFolder, options, readsPictures({ architecture }))
  for (const name of ['tokenizer.json', 'tokenizer_config.json'])
    if (!(await exists(join(modelFolder, name))))
      throw new InputError(`No ${name} in ${modelFolder}: the tokenizer is part of an encoder. ${HOW_TO_GET}`)
  if (kind === 'checkpoint') {
    checkArchitecture(architecture, config, configFile)
    await checkWeightsFit(modelFolder, architecture, configFile)
  }

  const standards = standardsOf(architecture)
  const pool = await readPooling(root, modules, options, standards)
  const width = tokenWidth(config, configFile, pool)
  const saved = await readPrompts(root)
  const prompts = chosenPrompts(saved.prompts, options.instructions, standards, root)
  if (!pool.includePrompt && standards?.instruction === undefined && (prompts.query !== '' || prompts.node !== ''))
    throw new InputError('Pooling without the prompt ("include_prompt": false) is not supported.', { file: pool.file })
  const preparation = await readPreparation(modelFolder, config, standards)
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
    ...preparation,
    dimension: keptNumbers(width, options.dimensions, saved),
    width,
    weightFiles,
    weights,
    canopy,
    stated: statedIn(options),
  }
  return { ...profile, fingerprint: await fingerprint(profile) }
}

/** What is stated, without settings that are left open. */
export function statedIn(settings: {
  dimensions?: number | undefined
  instructions?: StatedSettings['instructions'] | undefined
}): StatedSettings {
  const { dimensions, instructions: { query, node } = {} } = settings
  const instructions = { ...(query !== undefined && { query }), ...(node !== undefined && { node }) }
  return {
    ...(dimensions !== undefined && { dimensions }),
    ...(Object.keys(instructions).length > 0 && { instructions }),
  }
}

/** What configurations of transformers call the width of a token's vector, DistilBERT and GPT-2 among them. */
const WIDTHS = ['hidden_size', 'dim', 'n_embd', 'd_model']

function tokenWidth(
  config: Record<string, unknown>,
  configFile: string,
  pool: { dimension: number | undefined; file: string },
): number {
  const language = languageConfig(config)
  const hidden = WIDTHS.map((name) => language[name]).find((width) => width !== undefined)
  const width = pool.dimension ?? (typeof hidden === 'number' ? hidden : undefined)
  if (width === undefined) throw new InputError('"hidden_size" is missing.', { file: configFile })
  if (typeof hidden === 'number' && hidden !== width)
    throw new InputError(
      `Pooling is set up for vectors of ${width} numbers, but the model's have ${hidden} (config.json).`,
      { file: pool.file },
    )
  return width
}

/** How many numbers an embedding has: as stated, as config_sentence_transformers.json says, or all. */
function keptNumbers(
  width: number,
  stated: number | undefined,
  saved: { dimensions: number | undefined; file: string },
): number {
  const dimension = stated ?? saved.dimensions ?? width
  if (Number.isInteger(dimension) && dimension >= 1 && dimension <= width) return dimension
  throw new InputError(
    `Embeddings of ${dimension} numbers cannot be cut from the encoder's, which have ${width}; give a whole number from 1 to ${width}.`,
    stated === undefined ? { file: saved.file } : {},
  )
}

/**
 * The prompts of an encoder, or the instructions of one that takes conversations: as stated, as its files say, or the architecture's
 * own.
 *
 * @throws InputError for an instruction without words, and for instructions to an encoder that takes none
 */
function chosenPrompts(
  saved: Record<Side, string>,
  stated: StatedSettings['instructions'],
  standards: Standards | undefined,
  folder: string,
): Record<Side, string> {
  if (standards?.instruction === undefined) {
    if (stated !== undefined && Object.values(stated).some((text) => text !== undefined))
      throw new InputError(
        `The encoder in ${folder} takes no instructions: leave "instructions" out of the configuration, and --query-instruction and --node-instruction. What is put in front of its texts stands in its config_sentence_transformers.json ("prompts").`,
      )
    return saved
  }
  const { instruction } = standards
  const chosen = (side: Side): string => {
    const given = stated?.[side]
    if (given !== undefined && given.trim() === '')
      throw new InputError(`The instruction for a ${side} is empty; leave it out for ${JSON.stringify(instruction)}.`)
    return given ?? (saved[side].trim() === '' ? instruction : saved[side])
  }
  return { query: chosen('query'), node: chosen('node') }
}

/** Where a text is cut, whether it is lower-cased first, and how a conversation ends. */
async function readPreparation(
  modelFolder: string,
  config: Record<string, unknown>,
  standards: Standards | undefined,
): Promise<Pick<EncoderProfile, 'maxLength' | 'lowerCase' | 'opensAnswer'>> {
  const sentence = await readOptional(join(modelFolder, 'sentence_bert_config.json'), sentenceConfig)
  // since 5.4 sentence-transformers saves how it writes conversations; before, only the released code says it, which opens the answer
  const opens = sentence?.processing_kwargs?.chat_template?.add_generation_prompt
  return {
    maxLength: (await readLengthLimit(modelFolder, config)).tokens,
    lowerCase: sentence?.do_lower_case ?? false,
    opensAnswer: standards === undefined || (opens ?? sentence?.modality_config === undefined),
  }
}

/** A snapshot in the Hugging Face cache says its id and revision by its path: models--org--name/snapshots/commit. */
function hubPlace(...paths: string[]): { id: string; revision: string } | undefined {
  for (const path of paths) {
    const match = /[\\/]models--([^\\/]+)[\\/]snapshots[\\/]([0-9a-f]{7,64})$/.exec(path)
    if (match !== null) return { id: (match[1] as string).split('--').join('/'), revision: match[2] as string }
  }
  return undefined
}

import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { type EncoderProfile, layoutOf, type Pooling, PROCESSOR_FILES, readsPictures } from '../encoder/index.ts'
import { InputError } from '../support/errors.ts'
import { exists } from '../support/files.ts'
import { type ExportType, transformersJsType } from './variants.ts'

/** Tokenizer files that are handed on as they are, where the encoder has them. */
const TOKENIZER_FILES = ['vocab.txt', 'special_tokens_map.json', 'added_tokens.json', 'merges.txt', 'vocab.json']

/**
 * Writes everything of an exported encoder's folder but its graphs and canopy.json: config, tokenizer, processor, and what
 * sentence-transformers reads of pooling, prompts and length.
 *
 * @param graphs names of the .onnx files, and which of them have their weights in a second file
 * @param types of the graphs' weights; undefined for a graph in its own types
 */
export async function writeFolderFiles(
  folder: string,
  profile: EncoderProfile,
  graphs: ReadonlyMap<string, { external: boolean }>,
  types: readonly ExportType[] | undefined,
): Promise<void> {
  await writeJson(join(folder, 'config.json'), configOf(profile, graphs, types))
  await writeTokenizer(folder, profile)
  const from = profile.modelFolder
  const copied = readsPictures(profile) ? [...TOKENIZER_FILES, ...PROCESSOR_FILES] : TOKENIZER_FILES
  for (const name of copied) if (await exists(join(from, name))) await copyFile(join(from, name), join(folder, name))
  await writeSentenceTransformersFiles(folder, profile)
}

/**
 * config.json, with what transformers.js asks of it: whose weights lie in a second file, which type to load where there is no
 * float32, and of no other graph.
 */
function configOf(
  profile: EncoderProfile,
  graphs: ReadonlyMap<string, { external: boolean }>,
  types: readonly ExportType[] | undefined,
): Record<string, unknown> {
  const { 'transformers.js_config': own, ...config } = profile.config
  const { use_external_data_format: _, dtype: __, ...rest } = (own ?? {}) as Record<string, unknown>
  const external = [...graphs].filter(([, graph]) => graph.external).map(([name]) => name)
  const [first] = types ?? []
  const forTransformersJs = {
    ...rest,
    ...(external.length > 0 && {
      use_external_data_format:
        external.length === graphs.size ? true : Object.fromEntries(external.map((name) => [name, true])),
    }),
    ...(first !== undefined && types?.includes('fp32') === false && { dtype: transformersJsType(first) }),
  }
  return {
    ...config,
    model_type: profile.architecture,
    ...(Object.keys(forTransformersJs).length > 0 && { 'transformers.js_config': forTransformersJs }),
  }
}

/** The tokenizer, cutting at the length the encoder was trained with: other programs read the limit from these files. */
async function writeTokenizer(folder: string, profile: EncoderProfile): Promise<void> {
  const from = profile.modelFolder
  const tokenizer = await readJson(join(from, 'tokenizer.json'))
  await writeJson(join(folder, 'tokenizer.json'), { ...tokenizer, truncation: null, padding: null })
  const config = await readJson(join(from, 'tokenizer_config.json'))
  const { name_or_path: _, tokenizer_file: __, ...kept } = config
  await writeJson(join(folder, 'tokenizer_config.json'), {
    ...kept,
    model_max_length: profile.maxLength,
    // transformers.js takes the last column for the last token, which it is where rows are filled up from the left; a token
    // that sees none after it and turns by distances alone gives the same there
    ...(profile.pooling === 'last' && isCausalText(profile) && { padding_side: 'left' }),
  })
}

const isCausalText = (profile: EncoderProfile): boolean =>
  profile.kind === 'checkpoint' && !readsPictures(profile) && layoutOf(profile) === 'causal'

const poolingNames: Record<Pooling, string> = { mean: 'mean_tokens', cls: 'cls_token', last: 'lasttoken' }

/** modules.json and the pooling that it names. */
export async function writePooling(folder: string, profile: EncoderProfile): Promise<void> {
  const modules = [
    { idx: 0, name: '0', path: '', type: 'sentence_transformers.models.Transformer' },
    { idx: 1, name: '1', path: '1_Pooling', type: 'sentence_transformers.models.Pooling' },
    ...(profile.normalize
      ? [{ idx: 2, name: '2', path: '2_Normalize', type: 'sentence_transformers.models.Normalize' }]
      : []),
  ]
  await writeJson(join(folder, 'modules.json'), modules)
  await writeJson(join(folder, '1_Pooling', 'config.json'), {
    word_embedding_dimension: profile.width,
    ...Object.fromEntries(
      Object.entries(poolingNames).map(([pooling, name]) => [`pooling_mode_${name}`, pooling === profile.pooling]),
    ),
    pooling_mode_max_tokens: false,
    pooling_mode_mean_sqrt_len_tokens: false,
    include_prompt: true,
  })
  if (profile.normalize) await mkdir(join(folder, '2_Normalize'), { recursive: true })
}

async function writeSentenceTransformersFiles(folder: string, profile: EncoderProfile): Promise<void> {
  await writePooling(folder, profile)
  await writeJson(join(folder, 'sentence_bert_config.json'), {
    max_seq_length: profile.maxLength,
    do_lower_case: profile.lowerCase,
    // how conversations are written; see `opensAnswer`
    ...(readsPictures(profile) && {
      processing_kwargs: { chat_template: { add_generation_prompt: profile.opensAnswer } },
    }),
  })
  await writeJson(join(folder, 'config_sentence_transformers.json'), {
    // the prompt of a node is the only one: queries belong to the frozen query encoder
    prompts: profile.prompts.node === '' ? {} : { document: profile.prompts.node },
    default_prompt_name: null,
    similarity_fn_name: 'cosine',
    ...(profile.dimension < profile.width && { truncate_dim: profile.dimension }),
  })
}

async function readJson(file: string): Promise<Record<string, unknown>> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as Record<string, unknown>
  } catch (error) {
    throw new InputError(`The file cannot be read as JSON (${(error as Error).message}).`, { file }, error)
  }
}

export async function writeJson(file: string, value: unknown): Promise<void> {
  await mkdir(dirname(file), { recursive: true })
  await writeFile(file, `${JSON.stringify(value, null, 2)}\n`)
}

import { copyFile, mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import {
  type Adapter,
  CANOPY_FILE,
  type CanopySettings,
  type EncoderProfile,
  type Pooling,
  plainEncoder,
} from '../encoder/index.ts'
import { InputError } from '../support/errors.ts'
import { exists, sha256File } from '../support/files.ts'
import { adaptedGraph } from './imported.ts'
import { mergedWeights } from './merge.ts'
import { writeModel } from './write-model.ts'

/** Tokenizer files that are handed on as they are, where the checkpoint has them. */
const TOKENIZER_FILES = ['vocab.txt', 'special_tokens_map.json', 'added_tokens.json', 'merges.txt', 'vocab.json']

/** Weight file inside the folder, where transformers.js and sentence-transformers look for it. */
export const MODEL_FILE = 'onnx/model.onnx'

/** What became of an adapter: modules whose weights were changed, and modules that got their update beside them. */
export interface Written {
  merged: number
  beside: number
  /** Quantised weights inside fused operators that became floats, so that updates could be merged into them. */
  dequantised: number
}

/**
 * Writes a merged node encoder into an existing, empty folder, in the layout that transformers.js, sentence-transformers
 * (`backend="onnx"`) and plain ONNX Runtime load: of a checkpoint the graph in fp32 (opset 17, no contrib operators), of an ONNX
 * folder its own graph in its own types; config, tokenizer, pooling, and canopy.json with the weights' hashes.
 */
export async function writeEncoderFolder(
  folder: string,
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  settings: CanopySettings,
  producerVersion: string,
): Promise<Written> {
  const made =
    profile.kind === 'onnx'
      ? await adaptedGraph(profile, adapter)
      : {
          graph: plainEncoder(profile, await mergedWeights(profile, adapter)),
          folder: undefined,
          merged: adapter?.targets ?? [],
          beside: [],
          dequantised: [],
        }
  const info = { name: 'node-encoder', producer: 'canopy-encoder', producerVersion }
  await mkdir(join(folder, 'onnx'))
  const files = await writeModel(join(folder, MODEL_FILE), made.graph, made.folder, info)

  await writeJson(join(folder, 'config.json'), configOf(profile, files.length > 1))
  await writeTokenizer(folder, profile)
  await writeSentenceTransformersFiles(folder, profile)
  const hashes: Record<string, string> = {}
  for (const file of files) hashes[`onnx/${file}`] = await sha256File(join(folder, 'onnx', file))
  await writeJson(join(folder, CANOPY_FILE), { ...settings, files: hashes })
  return { merged: made.merged.length, beside: made.beside.length, dequantised: made.dequantised.length }
}

/** config.json, with what transformers.js asks of it: whether the weights lie in a second file, and of no other graph. */
function configOf(profile: EncoderProfile, externalData: boolean): Record<string, unknown> {
  const { 'transformers.js_config': own, ...config } = profile.config
  const { use_external_data_format: _, dtype: __, ...rest } = (own ?? {}) as Record<string, unknown>
  const forTransformersJs = { ...rest, ...(externalData && { use_external_data_format: true }) }
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
  await writeJson(join(folder, 'tokenizer_config.json'), { ...kept, model_max_length: profile.maxLength })
  for (const name of TOKENIZER_FILES)
    if (await exists(join(from, name))) await copyFile(join(from, name), join(folder, name))
}

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
    word_embedding_dimension: profile.dimension,
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
  })
  await writeJson(join(folder, 'config_sentence_transformers.json'), {
    // the prompt of a node is the only one: queries belong to the frozen query encoder
    prompts: profile.prompts.node === '' ? {} : { document: profile.prompts.node },
    default_prompt_name: null,
    similarity_fn_name: 'cosine',
  })
}

async function readJson(file: string): Promise<Record<string, unknown>> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as Record<string, unknown>
  } catch (error) {
    throw new InputError(`The file cannot be read as JSON (${(error as Error).message}).`, { file }, error)
  }
}

async function writeJson(file: string, value: unknown): Promise<void> {
  await mkdir(join(file, '..'), { recursive: true })
  await writeFile(file, `${JSON.stringify(value, null, 2)}\n`)
}

import { mkdir, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { type Tensor, writeSafetensors } from '../../onnx/index.ts'
import { atomicFolder } from '../../support/files.ts'
import { type BertSizes, bertTensorShapes, checkBertSizes } from './shapes.ts'
import { SPECIAL_TOKENS } from './wordpiece.ts'
import { LONGEST_WORD } from './words.ts'

export interface BertFolder {
  sizes: BertSizes
  /** Tokens in id order, the special ones among them, each once; see wordPieceVocabulary. */
  vocabulary: readonly string[]
  /** float32 or float16, in the names and shapes of bertTensorShapes. */
  tensors: ReadonlyMap<string, Tensor>
  /** Text of further files, by name. */
  files?: Readonly<Record<string, string>>
}

/**
 * Writes an uncased BERT as a Hugging Face checkpoint folder in the layout of sentence-transformers: mean pooling, L2-normalised, no
 * prompts. Transformers, sentence-transformers and transformers.js load it. The folder is there once it is complete; the same
 * contents give the same bytes.
 *
 * @throws RangeError when sizes, vocabulary, tensors or files do not fit each other
 * @throws InputError when the folder cannot be written
 */
export async function writeBertFolder(folder: string, contents: BertFolder): Promise<void> {
  const { sizes, vocabulary, tensors, files = {} } = contents
  checkBertSizes(sizes)
  checkVocabulary(vocabulary)
  checkTensors(tensors, bertTensorShapes(sizes, vocabulary.length))
  const texts = textFiles(sizes, vocabulary)
  for (const [name, text] of Object.entries(files)) {
    if (texts.has(name) || name === WEIGHTS || name === POOLING)
      throw new RangeError(`The folder of a BERT has a ${name} of its own`)
    if (name !== basename(name)) throw new RangeError(`"${name}" is no name of a file beside the others`)
    texts.set(name, text)
  }
  await atomicFolder(folder, async (temporary) => {
    await mkdir(join(temporary, POOLING))
    for (const [name, text] of texts) await writeFile(join(temporary, name), text)
    await writeSafetensors(join(temporary, WEIGHTS), tensors, { format: 'pt' })
  })
}

const WEIGHTS = 'model.safetensors'
const POOLING = '1_Pooling'

function checkVocabulary(vocabulary: readonly string[]): void {
  const tokens = new Set(vocabulary)
  if (tokens.size < vocabulary.length) throw new RangeError('The vocabulary holds a token twice')
  for (const token of SPECIAL_TOKENS)
    if (!tokens.has(token)) throw new RangeError(`The vocabulary lacks the special token ${token}`)
}

function checkTensors(tensors: ReadonlyMap<string, Tensor>, shapes: ReadonlyMap<string, readonly number[]>): void {
  for (const [name, shape] of shapes) {
    const tensor = tensors.get(name)
    if (tensor === undefined) throw new RangeError(`The tensor "${name}" is missing`)
    if (tensor.shape.join() !== shape.join())
      throw new RangeError(
        `The tensor "${name}" must have the shape [${shape.join(', ')}], not [${tensor.shape.join(', ')}]`,
      )
    if (tensor.dtype !== 'float32' && tensor.dtype !== 'float16')
      throw new RangeError(`The tensor "${name}" must be float32 or float16, not ${tensor.dtype}`)
  }
  for (const name of tensors.keys())
    if (!shapes.has(name)) throw new RangeError(`A BERT of these sizes has no tensor "${name}"`)
}

/** The text files that every such folder has, by path. */
function textFiles({ hidden, layers, heads, intermediate, maxLength }: BertSizes, vocabulary: readonly string[]) {
  const files = new Map<string, string>()
  const json = (name: string, value: unknown): void => {
    files.set(name, `${JSON.stringify(value, null, 2)}\n`)
  }
  json('config.json', {
    architectures: ['BertModel'],
    model_type: 'bert',
    vocab_size: vocabulary.length,
    hidden_size: hidden,
    num_hidden_layers: layers,
    num_attention_heads: heads,
    intermediate_size: intermediate,
    hidden_act: 'gelu',
    max_position_embeddings: maxLength,
    type_vocab_size: 2,
    layer_norm_eps: 1e-12,
    initializer_range: 0.02,
    attention_probs_dropout_prob: 0.1,
    hidden_dropout_prob: 0.1,
    position_embedding_type: 'absolute',
    pad_token_id: vocabulary.indexOf('[PAD]'),
    use_cache: false,
    // what transformers computes in, whatever the weights are stored in; float16 is slow on a CPU
    dtype: 'float32',
  })
  json('tokenizer.json', tokenizerJson(vocabulary))
  json('tokenizer_config.json', {
    ...tokenNames(),
    do_lower_case: true,
    model_max_length: maxLength,
    strip_accents: null,
    tokenize_chinese_chars: true,
    tokenizer_class: 'BertTokenizer',
  })
  json('special_tokens_map.json', tokenNames())
  files.set('vocab.txt', vocabulary.map((token) => `${token}\n`).join(''))
  json('modules.json', [
    { idx: 0, name: '0', path: '', type: 'sentence_transformers.models.Transformer' },
    { idx: 1, name: '1', path: POOLING, type: 'sentence_transformers.models.Pooling' },
    { idx: 2, name: '2', path: '2_Normalize', type: 'sentence_transformers.models.Normalize' },
  ])
  json(join(POOLING, 'config.json'), {
    word_embedding_dimension: hidden,
    pooling_mode_cls_token: false,
    pooling_mode_mean_tokens: true,
    pooling_mode_max_tokens: false,
    pooling_mode_mean_sqrt_len_tokens: false,
  })
  json('sentence_bert_config.json', { max_seq_length: maxLength, do_lower_case: false })
  json('config_sentence_transformers.json', { prompts: {}, default_prompt_name: null, similarity_fn_name: 'cosine' })
  return files
}

function tokenNames(): Record<string, string> {
  const [pad, unk, cls, sep, mask] = SPECIAL_TOKENS
  return { cls_token: cls, mask_token: mask, pad_token: pad, sep_token: sep, unk_token: unk }
}

/** The pipeline of BERT's uncased tokenizer over `vocabulary`, in the format of Hugging Face tokenizers. */
function tokenizerJson(vocabulary: readonly string[]): unknown {
  const id = (token: string): number => vocabulary.indexOf(token)
  const special = (token: string, type: number): unknown => ({ SpecialToken: { id: token, type_id: type } })
  const sequence = (name: string, type: number): unknown => ({ Sequence: { id: name, type_id: type } })
  const single = [special('[CLS]', 0), sequence('A', 0), special('[SEP]', 0)]
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: SPECIAL_TOKENS.map((content) => ({
      id: id(content),
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: {
      type: 'BertNormalizer',
      clean_text: true,
      handle_chinese_chars: true,
      strip_accents: null,
      lowercase: true,
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: {
      type: 'TemplateProcessing',
      single,
      pair: [...single, sequence('B', 1), special('[SEP]', 1)],
      special_tokens: Object.fromEntries(
        ['[CLS]', '[SEP]'].map((token) => [token, { id: token, ids: [id(token)], tokens: [token] }]),
      ),
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      type: 'WordPiece',
      unk_token: '[UNK]',
      continuing_subword_prefix: '##',
      max_input_chars_per_word: LONGEST_WORD,
      vocab: Object.fromEntries(vocabulary.map((token, i) => [token, i])),
    },
  }
}

import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type Tensor, writeSafetensors } from '../../onnx/index.ts'
import { atomicFolder } from '../../support/files.ts'
import { createRandom } from '../../support/random.ts'
import { SPECIAL_TOKENS, wordPieceVocabulary } from './wordpiece.ts'

export interface RandomBertOptions {
  /** The same seed, sizes and texts give the same bytes. */
  seed: string | number
  /** The WordPiece vocabulary is learned from these. */
  vocabularyFrom: string[]
  /** Most tokens of the vocabulary. */
  vocabularySize?: number
  /** Width of the hidden states and of the embeddings. */
  hidden?: number
  layers?: number
  /** Attention heads; divides `hidden`. */
  heads?: number
  /** Width of the feed-forward layers. */
  intermediate?: number
  /** Most tokens of an encoded text; also the number of positions. */
  maxLength?: number
}

/** Standard deviation of the word vectors: each token goes its own way, so that shared words mean similar embeddings. */
const WORD_STD = 1
/** Everything else but positions: small, so that the layers leave the residual stream nearly as it is. */
const OTHER_STD = 0.02
/**
 * Amplitude of the positions, which are sinusoids. Their mean changes with a text's length, and so does its embedding: before
 * training, similarity is as much a matter of length as of words, and training has something to undo.
 */
const POSITION_AMPLITUDE = 0.7

/**
 * Writes a small, randomly initialised BERT as a Hugging Face checkpoint folder in the layout of sentence-transformers: mean
 * pooling, L2-normalised, no prompts. It has learned nothing: its embeddings are bags of random word vectors, bent by the length of
 * the text. It is there to try the toolkit where no trained model is at hand. Transformers, sentence-transformers and
 * transformers.js load it.
 *
 * @throws RangeError when the sizes do not fit each other
 * @throws InputError when the folder cannot be written
 */
export async function createRandomBert(folder: string, options: RandomBertOptions): Promise<void> {
  const { hidden = 128, layers = 2, heads = 4, intermediate = 2 * hidden, maxLength = 256 } = options
  for (const [name, value] of Object.entries({ hidden, layers, heads, intermediate, maxLength })) {
    if (!Number.isSafeInteger(value) || value < 1)
      throw new RangeError(`${name} must be a whole number of 1 or more, not ${value}`)
  }
  if (hidden % heads !== 0) throw new RangeError(`heads (${heads}) must divide hidden (${hidden})`)
  const vocabulary = wordPieceVocabulary(options.vocabularyFrom, options.vocabularySize ?? 2000)

  const config = {
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
    initializer_range: OTHER_STD,
    attention_probs_dropout_prob: 0.1,
    hidden_dropout_prob: 0.1,
    position_embedding_type: 'absolute',
    pad_token_id: vocabulary.indexOf('[PAD]'),
    use_cache: false,
  }
  const tensors = randomTensors(String(options.seed), vocabulary.length, { hidden, layers, intermediate, maxLength })

  await atomicFolder(folder, async (temporary) => {
    const json = (name: string, value: unknown): Promise<void> =>
      writeFile(join(temporary, name), `${JSON.stringify(value, null, 2)}\n`)
    await mkdir(join(temporary, '1_Pooling'))
    await json('config.json', config)
    await json('tokenizer.json', tokenizerJson(vocabulary))
    await json('tokenizer_config.json', {
      ...tokenNames(),
      do_lower_case: true,
      model_max_length: maxLength,
      strip_accents: null,
      tokenize_chinese_chars: true,
      tokenizer_class: 'BertTokenizer',
    })
    await json('special_tokens_map.json', tokenNames())
    await writeFile(join(temporary, 'vocab.txt'), vocabulary.map((token) => `${token}\n`).join(''))
    await json('modules.json', [
      { idx: 0, name: '0', path: '', type: 'sentence_transformers.models.Transformer' },
      { idx: 1, name: '1', path: '1_Pooling', type: 'sentence_transformers.models.Pooling' },
      { idx: 2, name: '2', path: '2_Normalize', type: 'sentence_transformers.models.Normalize' },
    ])
    await json(join('1_Pooling', 'config.json'), {
      word_embedding_dimension: hidden,
      pooling_mode_cls_token: false,
      pooling_mode_mean_tokens: true,
      pooling_mode_max_tokens: false,
      pooling_mode_mean_sqrt_len_tokens: false,
    })
    await json('sentence_bert_config.json', { max_seq_length: maxLength, do_lower_case: false })
    await json('config_sentence_transformers.json', {
      prompts: {},
      default_prompt_name: null,
      similarity_fn_name: 'cosine',
    })
    await writeSafetensors(join(temporary, 'model.safetensors'), tensors, { format: 'pt' })
  })
}

/** Every tensor of Hugging Face's BertModel, by its name there. Each draws from a generator of its own. */
function randomTensors(
  seed: string,
  vocabulary: number,
  {
    hidden,
    layers,
    intermediate,
    maxLength,
  }: { hidden: number; layers: number; intermediate: number; maxLength: number },
): Map<string, Tensor> {
  const tensors = new Map<string, Tensor>()
  const normal = (name: string, shape: number[], std: number): void => {
    const random = createRandom(`${seed}/${name}`)
    const data = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => std * random.normal())
    tensors.set(name, { dtype: 'float32', shape, data })
  }
  const filled = (name: string, length: number, value: number): void => {
    tensors.set(name, { dtype: 'float32', shape: [length], data: new Float32Array(length).fill(value) })
  }
  const linear = (module: string, inputs: number, outputs: number): void => {
    normal(`${module}.weight`, [outputs, inputs], OTHER_STD)
    filled(`${module}.bias`, outputs, 0)
  }
  const layerNorm = (module: string): void => {
    filled(`${module}.weight`, hidden, 1)
    filled(`${module}.bias`, hidden, 0)
  }

  normal('embeddings.word_embeddings.weight', [vocabulary, hidden], WORD_STD)
  tensors.set('embeddings.position_embeddings.weight', sinusoids(maxLength, hidden))
  normal('embeddings.token_type_embeddings.weight', [2, hidden], OTHER_STD)
  layerNorm('embeddings.LayerNorm')
  for (let layer = 0; layer < layers; layer++) {
    const module = `encoder.layer.${layer}`
    for (const part of ['query', 'key', 'value']) linear(`${module}.attention.self.${part}`, hidden, hidden)
    linear(`${module}.attention.output.dense`, hidden, hidden)
    layerNorm(`${module}.attention.output.LayerNorm`)
    linear(`${module}.intermediate.dense`, hidden, intermediate)
    linear(`${module}.output.dense`, intermediate, hidden)
    layerNorm(`${module}.output.LayerNorm`)
  }
  linear('pooler.dense', hidden, hidden)
  return tensors
}

/** [positions, width]: sin(p·ωᵢ) and cos(p·ωᵢ) in turn, ωᵢ = 10000^(-2i/width). Source: Vaswani et al. (2017), section 3.5. */
function sinusoids(positions: number, width: number): Tensor {
  const data = Float32Array.from({ length: positions * width }, (_, at) => {
    const [position, i] = [Math.floor(at / width), at % width]
    const angle = position / 10000 ** ((i - (i % 2)) / width)
    return POSITION_AMPLITUDE * (i % 2 === 0 ? Math.sin(angle) : Math.cos(angle))
  })
  return { dtype: 'float32', shape: [positions, width], data }
}

function tokenNames(): Record<string, string> {
  const [pad, unk, cls, sep, mask] = SPECIAL_TOKENS
  return { cls_token: cls, mask_token: mask, pad_token: pad, sep_token: sep, unk_token: unk }
}

/** The pipeline of BERT's uncased tokenizer over `vocabulary`, in the format of Hugging Face tokenizers. */
function tokenizerJson(vocabulary: string[]): unknown {
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
      max_input_chars_per_word: 100,
      vocab: Object.fromEntries(vocabulary.map((token, i) => [token, i])),
    },
  }
}

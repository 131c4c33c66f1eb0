import type { Tensor } from '../../onnx/index.ts'
import { createRandom } from '../../support/random.ts'
import { writeBertFolder } from './folder.ts'
import { type BertSizes, bertTensorShapes, checkBertSizes } from './shapes.ts'
import { wordPieceVocabulary } from './wordpiece.ts'
import { countWords } from './words.ts'

export interface RandomBertOptions extends Partial<BertSizes> {
  /** The same seed, sizes and texts give the same bytes. */
  seed: string | number
  /** The WordPiece vocabulary is learned from these. */
  vocabularyFrom: string[]
  /** Most tokens of the vocabulary. */
  vocabularySize?: number
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
  const sizes = { hidden, layers, heads, intermediate, maxLength }
  checkBertSizes(sizes)
  const vocabulary = wordPieceVocabulary(countWords(options.vocabularyFrom), {
    size: options.vocabularySize ?? 2000,
  })
  const tensors = randomTensors(String(options.seed), bertTensorShapes(sizes, vocabulary.length))
  await writeBertFolder(folder, { sizes, vocabulary, tensors })
}

/** Each tensor draws from a generator of its own. */
function randomTensors(seed: string, shapes: ReadonlyMap<string, number[]>): Map<string, Tensor> {
  const tensors = new Map<string, Tensor>()
  for (const [name, shape] of shapes) {
    const length = shape.reduce((a, b) => a * b, 1)
    if (name === 'embeddings.position_embeddings.weight') tensors.set(name, sinusoids(shape[0]!, shape[1]!))
    else if (shape.length === 1) {
      const isScale = name.endsWith('LayerNorm.weight')
      tensors.set(name, { dtype: 'float32', shape, data: new Float32Array(length).fill(isScale ? 1 : 0) })
    } else {
      const random = createRandom(`${seed}/${name}`)
      const std = name === 'embeddings.word_embeddings.weight' ? WORD_STD : OTHER_STD
      tensors.set(name, { dtype: 'float32', shape, data: Float32Array.from({ length }, () => std * random.normal()) })
    }
  }
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

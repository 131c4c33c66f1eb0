import type { Tensor, ValueType } from '../../onnx/index.ts'
import { float16ToFloat32 } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import type { TokenSequence } from '../input/sequence.ts'

/** What an encoder's graph may ask for. */
const TOKEN_INPUTS = ['input_ids', 'attention_mask', 'token_type_ids', 'position_ids'] as const
/** Keys and values of tokens before the text, which a decoder exported for generation takes; a text here has none. */
export const PAST = /^past_key_values?\.|^past_\d+$/

/** The outputs that embeddings are made of, the one that is looked for first in front. */
const TOKEN_OUTPUTS = ['last_hidden_state', 'token_embeddings', 'hidden_states']
const SENTENCE_OUTPUT = 'sentence_embedding'

/** The output that embeddings come from: vectors of tokens, or of whole texts where the graph pools them itself. */
export interface EncoderOutput {
  name: string
  pooled: boolean
}

/**
 * The output of an encoder's graph that embeddings are made of.
 *
 * @throws InputError for inputs that an encoder here cannot give, and where no output holds vectors
 */
export function encoderOutput(inputs: Iterable<string>, outputs: readonly string[], file: string): EncoderOutput {
  const names = [...inputs]
  const strange = names.find((name) => !(TOKEN_INPUTS as readonly string[]).includes(name) && !PAST.test(name))
  if (strange !== undefined)
    throw new InputError(
      `The graph asks for "${strange}"; encoders here take ${TOKEN_INPUTS.join(', ')} and empty past_key_values.`,
      { file },
    )
  if (!names.includes('input_ids')) throw new InputError('The graph has no input "input_ids".', { file })
  const tokens = TOKEN_OUTPUTS.find((name) => outputs.includes(name))
  if (tokens !== undefined) return { name: tokens, pooled: false }
  if (outputs.includes(SENTENCE_OUTPUT)) return { name: SENTENCE_OUTPUT, pooled: true }
  throw new InputError(
    `The graph has no output "last_hidden_state"; it has ${outputs.join(', ')}. Export the encoder as feature extraction.`,
    { file },
  )
}

/**
 * The inputs of a graph as its file has it, for sequences one to a row, padded to the longest.
 *
 * @param inputs the graph's inputs with their types
 */
export function paddedFeeds(
  inputs: ReadonlyMap<string, ValueType>,
  sequences: readonly TokenSequence[],
  padId: number,
): Record<string, Tensor> {
  const rows = sequences.length
  const length = sequences.reduce((longest, { ids }) => Math.max(longest, ids.length), 1)
  const shape = [rows, length]
  const fill: Record<string, (ids: Int32Array, i: number) => number> = {
    input_ids: (ids, i) => ids[i] ?? padId,
    attention_mask: (ids, i) => (i < ids.length ? 1 : 0),
    token_type_ids: () => 0,
    position_ids: (_, i) => i,
  }
  const feeds: Record<string, Tensor> = {}
  for (const [name, type] of inputs) {
    const value = fill[name]
    if (value === undefined) {
      feeds[name] = emptyPast(type, rows)
      continue
    }
    const data = new Int32Array(rows * length)
    sequences.forEach(({ ids }, row) => {
      for (let i = 0; i < length; i++) data[row * length + i] = value(ids, i)
    })
    feeds[name] =
      type.dtype === 'int32'
        ? { dtype: 'int32', shape, data }
        : { dtype: 'int64', shape, data: BigInt64Array.from(data, BigInt) }
  }
  return feeds
}

/** [rows, heads, 0, width] */
function emptyPast({ dtype, shape }: ValueType, rows: number): Tensor {
  const sizes = shape.map((d, axis) => (typeof d === 'number' ? d : axis === 0 ? rows : 0))
  return { dtype, shape: sizes, data: dtype === 'float16' ? new Uint16Array(0) : new Float32Array(0) }
}

/** A graph's float output as float32. */
export function asFloat32(tensor: Tensor): Float32Array {
  if (tensor.data instanceof Float32Array) return tensor.data
  if (tensor.dtype === 'float16') return float16ToFloat32(tensor.data as Uint16Array)
  throw new InputError(`The model's output is ${tensor.dtype}; float32 or float16 was expected.`)
}

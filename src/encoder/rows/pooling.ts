import type { GraphBuilder } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import type { EncoderProfile, Pooling } from '../folder/profile.ts'
import type { TokenSequence } from '../input/sequence.ts'

/**
 * Embeddings [nodes, dimension] from pooled token vectors [nodes, width]: their first numbers as they are, or x / max(‖x‖, 1e-12)
 * where the profile says so, as torch.nn.functional.normalize; written so that its derivative is finite at 0.
 */
export function pooledEmbeddings(
  g: GraphBuilder,
  { normalize, dimension, width }: Pick<EncoderProfile, 'normalize' | 'dimension' | 'width'>,
  pooled: string,
): string {
  const x = dimension < width ? g.slice(pooled, 1, 0, dimension) : pooled
  if (!normalize) return x
  const squares = g.reduceSum(g.mul(x, x), [1], true)
  return g.div(x, g.sqrt(g.max(squares, g.scalar(1e-24))))
}

/**
 * Embeddings [sequences, dimension] from vectors of padded rows, [sequences, length, width], or, where they are pooled already,
 * [sequences, width].
 *
 * @param pooling which tokens make an embedding; undefined where the vectors are pooled
 * @throws InputError where the vectors have another width than the configuration says
 */
export function poolRows(
  vectors: Float32Array,
  sequences: readonly TokenSequence[],
  pooling: Pooling | undefined,
  {
    normalize,
    dimension,
    width: expected,
    weights,
  }: Pick<EncoderProfile, 'normalize' | 'dimension' | 'width' | 'weights'>,
): Float32Array {
  const length = pooling === undefined ? 1 : sequences.reduce((longest, { ids }) => Math.max(longest, ids.length), 1)
  const width = vectors.length / (sequences.length * length)
  if (width !== expected)
    throw new InputError(`The model's vectors have ${width} numbers, its configuration says ${expected}.`, {
      file: weights,
    })
  const out = new Float32Array(sequences.length * dimension)
  sequences.forEach(({ ids }, row) => {
    const [from, to] = pooling === undefined ? [0, 1] : pooledRange(pooling, ids.length)
    const sum = new Float64Array(dimension)
    for (let token = from; token < to; token++) {
      const at = (row * length + token) * width
      for (let k = 0; k < dimension; k++) sum[k] = (sum[k] as number) + (vectors[at + k] as number)
    }
    let squares = 0
    for (let k = 0; k < dimension; k++) {
      sum[k] = (sum[k] as number) / (to - from)
      squares += (sum[k] as number) ** 2
    }
    const norm = normalize ? Math.max(Math.sqrt(squares), 1e-12) : 1
    for (let k = 0; k < dimension; k++) out[row * dimension + k] = (sum[k] as number) / norm
  })
  return out
}

function pooledRange(pooling: Pooling, length: number): [number, number] {
  if (pooling === 'mean') return [0, length]
  return pooling === 'cls' ? [0, 1] : [length - 1, length]
}

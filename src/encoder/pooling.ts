import type { GraphBuilder } from '../onnx/index.ts'
import type { EncoderProfile, Pooling } from './checkpoint.ts'

/**
 * Embeddings [nodes, dimension] from pooled token vectors: as they are, or x / max(‖x‖, 1e-12) where the profile says so, as
 * torch.nn.functional.normalize; written so that its derivative is finite at 0.
 */
export function pooledEmbeddings(g: GraphBuilder, profile: Pick<EncoderProfile, 'normalize'>, pooled: string): string {
  if (!profile.normalize) return pooled
  const squares = g.reduceSum(g.mul(pooled, pooled), [1], true)
  return g.div(pooled, g.sqrt(g.max(squares, g.scalar(1e-24))))
}

/**
 * Embeddings [sequences, dimension] from vectors of padded rows, [sequences, length, dimension], or, where they are pooled
 * already, [sequences, dimension].
 *
 * @param pooling which tokens make an embedding; undefined where the vectors are pooled
 */
export function poolRows(
  vectors: Float32Array,
  sequences: readonly Int32Array[],
  pooling: Pooling | undefined,
  normalize: boolean,
): Float32Array {
  const length = pooling === undefined ? 1 : sequences.reduce((longest, s) => Math.max(longest, s.length), 1)
  const dimension = vectors.length / (sequences.length * length)
  const out = new Float32Array(sequences.length * dimension)
  sequences.forEach((ids, row) => {
    const [from, to] = pooling === undefined ? [0, 1] : pooledRange(pooling, ids.length)
    const sum = new Float64Array(dimension)
    for (let token = from; token < to; token++) {
      const at = (row * length + token) * dimension
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

import { byteLength, bytesOfData, type DType, elementCount } from '../onnx/index.ts'

/** A float weight in its file, read some rows at a time. */
export interface WeightRows {
  readonly shape: readonly number[]
  /** Rows `from` to `to` (exclusive) of the first axis as float32, one behind the other. */
  rows(from: number, to: number): Promise<Float32Array>
  /** The matrix that this one is the other way round. */
  readonly turnedFrom?: WeightRows
}

/** A tensor whose bytes are made while they are written, a part after the other, so that only a part is ever in memory. */
export interface StreamedTensor {
  readonly dtype: DType
  readonly shape: readonly number[]
  /** The bytes, little-endian, from the first to the last. */
  parts(): AsyncIterable<Uint8Array>
}

/** Numbers of a weight that are in memory at once. */
const PART_ELEMENTS = 2 ** 21

/** Rows of the first axis, one for a scalar, and the numbers in each. */
export function rowsOf(shape: readonly number[]): { count: number; size: number } {
  const count = shape[0] ?? 1
  return { count, size: count === 0 ? 0 : elementCount(shape) / count }
}

/** A weight's rows from the first to the last, in blocks of some megabytes. */
export async function* blocksOf(weight: WeightRows): AsyncGenerator<Float32Array> {
  const { count, size } = rowsOf(weight.shape)
  const step = Math.max(1, Math.floor(PART_ELEMENTS / Math.max(1, size)))
  for (let from = 0; from < count; from += step) yield weight.rows(from, Math.min(count, from + step))
}

/** A matrix the other way round. Every block of its rows takes a pass over the whole matrix. */
export function transposed(matrix: WeightRows): WeightRows {
  if (matrix.turnedFrom !== undefined) return matrix.turnedFrom
  const [height = 0, width = 0] = matrix.shape
  return {
    shape: [width, height],
    turnedFrom: matrix,
    async rows(from, to) {
      const values = new Float32Array((to - from) * height)
      let row = 0
      for await (const block of blocksOf(matrix))
        for (let at = 0; at < block.length; at += width, row++)
          for (let column = from; column < to; column++)
            values[(column - from) * height + row] = block[at + column] as number
      return values
    },
  }
}

/** A weight as float32. */
export function asFloats(weight: WeightRows): StreamedTensor {
  return {
    dtype: 'float32',
    shape: weight.shape,
    async *parts() {
      for await (const block of blocksOf(weight)) yield bytesOfData(block)
    },
  }
}

/** All bytes of a tensor, in memory. */
export async function bytesOf({ dtype, shape, parts }: StreamedTensor): Promise<Uint8Array> {
  const bytes = new Uint8Array(byteLength(dtype, shape))
  let done = 0
  for await (const part of parts()) {
    bytes.set(part, done)
    done += part.length
  }
  if (done !== bytes.length) throw new RangeError(`A tensor of ${bytes.length} bytes came as ${done}`)
  return bytes
}

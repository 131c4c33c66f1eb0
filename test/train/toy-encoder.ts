import type { TokenSequence } from '../../src/encoder/index.ts'
import { GraphBuilder } from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { packUnits } from '../../src/train/data/sampler.ts'
import type { TrainableEncoder } from '../../src/train/engine/engine.ts'
import type { Tensors } from '../../src/train/step/optimizer.ts'

export const VOCABULARY = 12
export const DIMENSION = 6
const RANK = 3

/** A bag of words: embeddings = counts · (W + A'B'), with A and B trainable; not of unit length. */
export function toyEncoder(): TrainableEncoder {
  const g = new GraphBuilder()
  const bags = g.input('bags', 'float32', ['nodes', VOCABULARY])
  const a = g.input('toy.lora_A.weight', 'float32', [RANK, VOCABULARY])
  const b = g.input('toy.lora_B.weight', 'float32', [DIMENSION, RANK])
  const w = g.initializer('w', {
    dtype: 'float32',
    shape: [VOCABULARY, DIMENSION],
    data: normal('w', VOCABULARY * DIMENSION),
  })
  g.output(g.gemm(g.gemm(bags, a, null, { transB: true }), b, g.gemm(bags, w), { transB: true }), 'embeddings')
  return {
    graph: g.build(),
    externalFolder: undefined,
    unitLength: false,
    dimension: DIMENSION,
    trainable: new Map([
      ['toy.lora_A.weight', [RANK, VOCABULARY]],
      ['toy.lora_B.weight', [DIMENSION, RANK]],
    ]),
    feeds(sequences) {
      const data = new Float32Array(sequences.length * VOCABULARY)
      sequences.forEach(({ ids }, row) => {
        for (const id of ids) data[row * VOCABULARY + id]! += 1
      })
      return { bags: { dtype: 'float32', shape: [sequences.length, VOCABULARY], data } }
    },
    tokens,
    batches: (sequences, budget) =>
      packUnits(
        sequences.map(({ ids }) => ids.length),
        (group) => tokens(group.map((i) => sequences[i]!)),
        budget,
      ).map(({ units }) => units),
  }
}

const tokens = (sequences: TokenSequence[]): number => sequences.reduce((sum, { ids }) => sum + ids.length, 0)

export function toyTensors(seed = 'lora'): Tensors {
  return new Map([
    ['toy.lora_A.weight', normal(`${seed}/a`, RANK * VOCABULARY)],
    ['toy.lora_B.weight', normal(`${seed}/b`, DIMENSION * RANK)],
  ])
}

export function normal(seed: string, size: number): Float32Array {
  const random = createRandom(seed)
  return Float32Array.from({ length: size }, () => random.normal())
}

export function unitRows(rows: Float32Array, dimension: number): Float32Array {
  const unit = rows.slice()
  for (let start = 0; start < rows.length; start += dimension) {
    const length = Math.hypot(...rows.subarray(start, start + dimension))
    for (let i = 0; i < dimension; i++) unit[start + i]! /= length
  }
  return unit
}

/** The rows of a matrix by their number. */
export const rowsOf = (matrix: Float32Array, dimension: number) => (row: number) =>
  matrix.subarray(row * dimension, (row + 1) * dimension)

/** ||a - b|| / ||b||. */
export function relativeError(a: Float32Array, b: Float32Array): number {
  let difference = 0
  let size = 0
  b.forEach((x, i) => {
    difference += (a[i]! - x) ** 2
    size += x * x
  })
  return Math.sqrt(difference / size)
}

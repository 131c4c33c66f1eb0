import type { ExportType } from './variants.ts'

/** How close two encoders' embeddings of the same texts lie. */
export interface Closeness {
  /** Smallest cosine between the two embeddings of a text. */
  minCosine: number
  /** Largest difference of one number of the unit-length embeddings. */
  maxDifference: number
}

/** A closeness and what it has to keep. */
export interface Comparison extends Closeness {
  bounds: Closeness
}

/**
 * The least cosine and the largest difference that rounding explains when computing in float32, by the coarsest type that weights
 * with an update in them are stored in. Half a unit in the last place of merged weights is 2⁻¹², of bfloat16 2⁻⁹; measured with
 * all-MiniLM-L6-v2 are differences of 1.4e-7 and, with merged halves, 1.4e-4, and without one of the 36 modules of an adapter of
 * six steps 2.4e-4 to 4.4e-3.
 */
export const MERGED_BOUNDS: Record<FloatType, Closeness> = {
  float32: { minCosine: 0.999999, maxDifference: 1e-4 },
  float16: { minCosine: 0.99999, maxDifference: 1e-3 },
  bfloat16: { minCosine: 0.9994, maxDifference: 8e-3 },
}

export type FloatType = 'float32' | 'float16' | 'bfloat16'

/**
 * What is asked of weights that are stored in a smaller type. In whole numbers this tells only that their products are computed at all:
 * a random encoder of four layers loses 0.001 of the cosine to 8 bits and up to a half to 4. That the graph and the merged weights are
 * what was trained, the float32 graph tells that they are rounded from, which keeps float32's bounds; that they were rounded rightly,
 * `wrongWeights`; what rounding costs shows in the figures of refinement.
 */
export const TYPE_BOUNDS: Record<ExportType, Closeness> = {
  fp32: MERGED_BOUNDS.float32,
  fp16: { minCosine: 0.9999, maxDifference: 5e-3 },
  int8: { minCosine: 0.9, maxDifference: 0.3 },
  int4: { minCosine: 0.3, maxDifference: 1 },
}

/** How close rows of two matrices [n, dimension] lie, each scaled to length 1. */
export function compare(a: Float32Array, b: Float32Array, dimension: number): Closeness {
  let minCosine = 1
  let maxDifference = 0
  for (let i = 0; i < a.length / dimension; i++) {
    const c = cosine(a, i, b, i, dimension)
    minCosine = Number.isNaN(c) ? Number.NaN : Math.min(minCosine, c)
    const [na, nb] = [norm(a, i, dimension), norm(b, i, dimension)]
    for (let k = i * dimension; k < (i + 1) * dimension; k++)
      maxDifference = Math.max(maxDifference, Math.abs(a[k]! / na - b[k]! / nb))
  }
  return { minCosine, maxDifference }
}

function norm(rows: Float32Array, row: number, dimension: number): number {
  let squares = 0
  for (let k = row * dimension; k < (row + 1) * dimension; k++) squares += rows[k]! ** 2
  return Math.max(Math.sqrt(squares), 1e-12)
}

/** cos of row i of `a` and row j of `b`. */
export function cosine(a: Float32Array, i: number, b: Float32Array, j: number, dimension: number): number {
  let dot = 0
  for (let k = 0; k < dimension; k++) dot += a[i * dimension + k]! * b[j * dimension + k]!
  return dot / (norm(a, i, dimension) * norm(b, j, dimension))
}

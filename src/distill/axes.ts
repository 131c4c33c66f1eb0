import { EigenvalueDecomposition, Matrix } from 'ml-matrix'

/** Orthonormal axes of the teacher's space: row i is the axis of the i-th number of a student's embedding. */
export interface Axes {
  /** Numbers of the student's embeddings. */
  width: number
  /** Numbers of the teacher's. */
  dimension: number
  /** float32 [width, dimension]. */
  data: Float32Array
}

/**
 * The axes along which the teacher's embeddings say most: eigenvectors of Σ t tᵀ with the largest eigenvalues. The embeddings are not
 * centred, so that cosines mean the same in the student's space; among all projections to `width` numbers this one loses least of them
 * (Eckart & Young 1936). Each axis points to where its largest component is positive.
 *
 * @param rows float32 [texts, dimension]
 * @throws RangeError for more axes than dimensions
 */
export function principalAxes(rows: Float32Array, dimension: number, width: number): Axes {
  if (width > dimension) throw new RangeError(`${dimension} dimensions have no ${width} axes`)
  const moments = Matrix.zeros(dimension, dimension)
  for (let start = 0; start < rows.length; start += dimension) {
    for (let i = 0; i < dimension; i++) {
      const x = rows[start + i]!
      for (let j = 0; j <= i; j++) moments.set(i, j, moments.get(i, j) + x * rows[start + j]!)
    }
  }
  for (let i = 0; i < dimension; i++) for (let j = 0; j < i; j++) moments.set(j, i, moments.get(i, j))
  const { eigenvectorMatrix, realEigenvalues } = new EigenvalueDecomposition(moments, { assumeSymmetric: true })
  const order = [...realEigenvalues.keys()].sort((a, b) => realEigenvalues[b]! - realEigenvalues[a]! || a - b)
  const data = new Float32Array(width * dimension)
  for (let axis = 0; axis < width; axis++) {
    const vector = eigenvectorMatrix.getColumn(order[axis]!)
    const largest = vector.reduce((most, x) => (Math.abs(x) > Math.abs(most) ? x : most), 0)
    for (let k = 0; k < dimension; k++) data[axis * dimension + k] = vector[k]! * Math.sign(largest)
  }
  return { width, dimension, data }
}

/** Coordinates on the axes: float32 [texts, width] of [texts, dimension]. */
export function project(rows: Float32Array, { width, dimension, data }: Axes): Float32Array {
  const count = rows.length / dimension
  const projected = new Float32Array(count * width)
  for (let row = 0; row < count; row++) {
    const vector = rows.subarray(row * dimension, (row + 1) * dimension)
    for (let axis = 0; axis < width; axis++) {
      let sum = 0
      for (let k = 0, at = axis * dimension; k < dimension; k++, at++) sum += vector[k]! * data[at]!
      projected[row * width + axis] = sum
    }
  }
  return projected
}

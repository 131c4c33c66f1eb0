import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type Axes, principalAxes, project } from '../../src/distill/axes.ts'
import { toUnit } from '../../src/distill/teacher.ts'
import { createRandom } from '../../src/support/random.ts'

const normal = (seed: string, length: number): Float32Array => {
  const random = createRandom(seed)
  return Float32Array.from({ length }, () => random.normal())
}
const squares = (data: Float32Array): number => data.reduce((sum, x) => sum + x * x, 0)

function dot({ data, dimension }: Axes, i: number, j: number): number {
  let sum = 0
  for (let k = 0; k < dimension; k++) sum += data[i * dimension + k]! * data[j * dimension + k]!
  return sum
}

/** Orthonormal axes by Gram and Schmidt. */
function randomAxes(seed: string, dimension: number, width: number): Axes {
  const axes: Axes = { width, dimension, data: normal(seed, width * dimension) }
  for (let i = 0; i < width; i++) {
    for (let j = 0; j < i; j++) {
      const along = dot(axes, i, j)
      for (let k = 0; k < dimension; k++) axes.data[i * dimension + k]! -= along * axes.data[j * dimension + k]!
    }
    toUnit(axes.data.subarray(i * dimension, (i + 1) * dimension), dimension)
  }
  return axes
}

describe('principal axes', () => {
  it('are orthonormal, also where there are fewer texts than axes', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 12 }),
        fc.integer({ min: 2, max: 8 }),
        fc.nat(),
        (texts, dimension, seed) => {
          const axes = principalAxes(normal(`${seed}`, texts * dimension), dimension, dimension - 1)
          for (let i = 0; i < axes.width; i++)
            for (let j = 0; j <= i; j++) expect(dot(axes, i, j)).toBeCloseTo(i === j ? 1 : 0, 5)
        },
      ),
      { numRuns: 40 },
    )
  })

  it('keep more of the rows than any other projection', () => {
    const rows = normal('rows', 50 * 10).map((x, i) => x * (1 + (i % 10)))
    const kept = squares(project(rows, principalAxes(rows, 10, 3)))
    for (let seed = 0; seed < 50; seed++)
      expect(squares(project(rows, randomAxes(`${seed}`, 10, 3)))).toBeLessThan(kept)
  })

  it('lose nothing of rows that lie on as few axes, and so no cosine', () => {
    const low = normal('low', 30 * 3)
    const basis = randomAxes('basis', 9, 3)
    const rows = new Float32Array(30 * 9)
    for (let row = 0; row < 30; row++)
      for (let a = 0; a < 3; a++)
        for (let k = 0; k < 9; k++) rows[row * 9 + k]! += low[row * 3 + a]! * basis.data[a * 9 + k]!
    const projected = project(rows, principalAxes(rows, 9, 3))
    expect(squares(projected)).toBeCloseTo(squares(rows), 3)
    const product = (data: Float32Array, width: number, i: number, j: number): number =>
      Array.from({ length: width }, (_, k) => data[i * width + k]! * data[j * width + k]!).reduce((a, b) => a + b)
    expect(product(projected, 3, 0, 7)).toBeCloseTo(product(rows, 9, 0, 7), 4)
  })

  it('do not depend on the sign that a solver gives an axis', () => {
    const axes = principalAxes(normal('signs', 40 * 6), 6, 6)
    for (let i = 0; i < 6; i++) {
      const axis = axes.data.subarray(i * 6, (i + 1) * 6)
      expect(axis.reduce((most, x) => (Math.abs(x) > Math.abs(most) ? x : most))).toBeGreaterThan(0)
    }
    expect(() => principalAxes(new Float32Array(6), 6, 7)).toThrow(RangeError)
  })

  it('rows are brought to length 1, a row of zeros stays', () => {
    const rows = Float32Array.of(3, 4, 0, 0, -2, 0)
    toUnit(rows, 2)
    expect([...rows]).toEqual([0.6, 0.8, 0, 0, -1, 0].map(Math.fround))
  })
})

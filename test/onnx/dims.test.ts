import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  addDims,
  type Dim,
  divideDims,
  multiplyDims,
  productOfDims,
  sizeOfDim,
  subtractDims,
} from '../../src/onnx/index.ts'
import { sizeOf } from './shape-cases/sizes.ts'

const sizes = { batch: 3, past: 5, seq: 7 }
const value = (d: Dim) => sizeOf(d, new Map(Object.entries(sizes))) as number
const operations = { add: addDims, subtract: subtractDims, multiply: multiplyDims }

describe('arithmetic of dimensions', () => {
  test('texts are worth what the arithmetic on their symbols is, and equal values are equal texts', () => {
    const leaf = fc.oneof(fc.integer({ min: 0, max: 9 }), fc.constantFrom(...Object.keys(sizes)))
    const step = fc.tuple(fc.constantFrom(...(Object.keys(operations) as (keyof typeof operations)[])), leaf)
    fc.assert(
      fc.property(leaf, fc.array(step, { maxLength: 4 }), (first, steps) => {
        let d: Dim | undefined = first
        let expected = value(first)
        for (const [name, by] of steps) {
          d = operations[name](d, by)
          if (d === undefined) return
          const b = value(by)
          expected = name === 'add' ? expected + b : name === 'subtract' ? expected - b : expected * b
        }
        expect(value(d) - expected, String(d)).toBe(0)
        expect(addDims(d, 0)).toBe(d)
        expect(subtractDims(d, d)).toBe(0)
        expect(divideDims(multiplyDims(d, 'batch') as Dim, 'batch')).toBe(d)
      }),
      { numRuns: 500 },
    )
  })

  test('one order whatever the order of the operands', () => {
    expect(multiplyDims('seq', 'batch')).toBe('batch*seq')
    expect(productOfDims(['seq', 4, 'batch', 3])).toBe('12*batch*seq')
    expect(addDims('seq', multiplyDims('seq', 'batch') as Dim)).toBe('batch*seq + seq')
    expect(subtractDims('seq', 1)).toBe('seq - 1')
    expect(addDims(1, 'past_sequence_length')).toBe('past_sequence_length + 1')
  })

  test('division is exact or none', () => {
    expect(divideDims('12*batch*seq', '4*seq')).toBe('3*batch')
    expect(divideDims('12*batch + 8', 4)).toBe('3*batch + 2')
    expect(divideDims('seq + 1', 'seq')).toBeUndefined()
    expect(divideDims('3*seq', 2)).toBeUndefined()
    expect(divideDims('seq', 0)).toBeUndefined()
  })

  test('names that are no sums are symbols as they are', () => {
    for (const name of ['/encoder/Reshape dim 1', 'a+b', 'Max(1, s0)', '3d', 'é'])
      expect(divideDims(multiplyDims(name, 6) as Dim, 6), name).toBe(name)
  })

  test('numbers and texts stay within bounds', () => {
    expect(multiplyDims(2 ** 40, 2 ** 40)).toBeUndefined()
    expect(multiplyDims('a'.repeat(100), 'b'.repeat(100))).toBeUndefined()
  })

  test('sizes are known where those of all symbols are', () => {
    expect(sizeOfDim(12, {})).toBe(12)
    expect(sizeOfDim('3*batch*seq + past - 1', sizes)).toBe(67)
    expect(sizeOfDim('batch*other', sizes)).toBeUndefined()
    expect(sizeOfDim('constructor', sizes)).toBeUndefined()
  })
})

import type { Dim, DType, Tensor } from './graph.ts'
import { bfloat16ToFloat32, elementCount, float16ToFloat32, float32ToBfloat16, float32ToFloat16 } from './tensor.ts'

/**
 * A small tensor of which something is known before the graph runs: numbers (booleans as 0 and 1), sizes by their
 * symbols, and `undefined` for elements of which nothing is known.
 */
export interface Known {
  dtype: DType
  shape: number[]
  elements: (Dim | undefined)[]
}

export type Element = Dim | undefined

/** Larger tensors are data, and no shape depends on them. */
export const MAX_ELEMENTS = 1024

export const floats = new Set<DType>(['float32', 'float64', 'float16', 'bfloat16'])
export const integers = new Set<DType>([
  'int64',
  'int32',
  'int16',
  'int8',
  'uint8',
  'uint16',
  'uint32',
  'uint64',
  'bool',
])

/** What is known of a constant; undefined for large ones and for 4-bit ones. */
export function knownTensor(tensor: Tensor): Known | undefined {
  const { dtype, shape, data } = tensor
  if (elementCount(shape) > MAX_ELEMENTS || !(floats.has(dtype) || integers.has(dtype))) return undefined
  const values =
    dtype === 'float16'
      ? float16ToFloat32(data as Uint16Array)
      : dtype === 'bfloat16'
        ? bfloat16ToFloat32(data as Uint16Array)
        : data
  return { dtype, shape, elements: Array.from(values as ArrayLike<number | bigint>, Number) }
}

/** The tensor, where every element is a number. */
export function tensorOf({ dtype, shape, elements }: Known): Tensor | undefined {
  if (!elements.every((e) => typeof e === 'number')) return undefined
  return { dtype, shape, data: dataOf(dtype, elements) }
}

function dataOf(dtype: DType, numbers: number[]): Tensor['data'] {
  switch (dtype) {
    case 'float32':
      return Float32Array.from(numbers)
    case 'float64':
      return Float64Array.from(numbers)
    case 'float16':
      return float32ToFloat16(Float32Array.from(numbers))
    case 'bfloat16':
      return float32ToBfloat16(Float32Array.from(numbers))
    case 'int64':
      return BigInt64Array.from(numbers, int64)
    case 'uint64':
      return BigUint64Array.from(numbers, (n) => BigInt(n))
    case 'int32':
      return Int32Array.from(numbers)
    case 'uint32':
      return Uint32Array.from(numbers)
    case 'int16':
      return Int16Array.from(numbers)
    case 'uint16':
      return Uint16Array.from(numbers)
    case 'int8':
      return Int8Array.from(numbers)
    default:
      return Uint8Array.from(numbers)
  }
}

/** Numbers beyond int64, such as the largest int64 read as a double, become its bounds. */
export function int64(n: number): bigint {
  if (n >= 2 ** 63) return 2n ** 63n - 1n
  if (n < -(2 ** 63)) return -(2n ** 63n)
  return BigInt(n)
}

/** The least and largest number of the integer types that are narrower than a double's integers. */
const ranges: Partial<Record<DType, readonly [number, number]>> = {
  bool: [0, 1],
  int8: [-(2 ** 7), 2 ** 7 - 1],
  uint8: [0, 2 ** 8 - 1],
  int16: [-(2 ** 15), 2 ** 15 - 1],
  uint16: [0, 2 ** 16 - 1],
  int32: [-(2 ** 31), 2 ** 31 - 1],
  uint32: [0, 2 ** 32 - 1],
  uint64: [0, Number.MAX_SAFE_INTEGER],
}

/** A number as the element type holds it; undefined for what it cannot: kernels differ in what they make of it. */
export function held(dtype: DType, n: number): Element {
  if (dtype === 'float32') return Math.fround(n)
  if (dtype === 'float64') return n
  if (dtype === 'float16') return float16ToFloat32(float32ToFloat16(Float32Array.of(n)))[0]
  if (dtype === 'bfloat16') return bfloat16ToFloat32(float32ToBfloat16(Float32Array.of(n)))[0]
  const [least, largest] = ranges[dtype] ?? [Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER]
  return Number.isSafeInteger(n) && n >= least && n <= largest ? n : undefined
}

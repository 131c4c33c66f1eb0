import type { DType, ExternalTensor, Tensor, TensorData } from './graph.ts'

const sizes: Record<DType, number> = {
  float32: 4,
  float16: 2,
  bfloat16: 2,
  float64: 8,
  int4: 0.5,
  uint4: 0.5,
  int8: 1,
  uint8: 1,
  int16: 2,
  uint16: 2,
  int32: 4,
  uint32: 4,
  int64: 8,
  uint64: 8,
  bool: 1,
}

/** Bytes that one element takes: half a byte for int4 and uint4. */
export function elementSize(dtype: DType): number {
  return sizes[dtype]
}

/** Bytes that a tensor takes; two 4-bit elements share one, the last perhaps alone. */
export function byteLength(dtype: DType, shape: readonly number[]): number {
  return Math.ceil(elementCount(shape) * sizes[dtype])
}

/** How many elements a shape holds; 1 for a scalar's empty shape. */
export function elementCount(shape: readonly number[]): number {
  return shape.reduce((a, b) => a * b, 1)
}

/** Whether the tensor's data stays in a file. */
export function isExternal(tensor: Tensor | ExternalTensor): tensor is ExternalTensor {
  return 'external' in tensor
}

/** Checks that a tensor's array is of its element type and as long as its shape says; the message starts with `name`. */
export function checkTensor(name: string, tensor: Tensor): void {
  const { dtype, shape, data } = tensor
  if (!shape.every((d) => Number.isSafeInteger(d) && d >= 0))
    throw new RangeError(`${name}: [${shape.join(', ')}] is no shape`)
  if (!(data instanceof arrayOf[dtype]))
    throw new TypeError(`${name}: data of ${dtype} belongs in a ${arrayOf[dtype].name}, not ${data.constructor.name}`)
  if (data.byteLength !== byteLength(dtype, shape))
    throw new RangeError(
      `${name}: shape [${shape.join(', ')}] holds ${elementCount(shape)} elements, the data has ${data.byteLength / sizes[dtype]}`,
    )
}

const arrayOf = {
  float32: Float32Array,
  float16: Uint16Array,
  bfloat16: Uint16Array,
  float64: Float64Array,
  int4: Uint8Array,
  uint4: Uint8Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
} satisfies Record<DType, unknown>

/** The elements that lie, little-endian, in `bytes` (copied, so that any alignment is fine). */
export function dataFromBytes(dtype: DType, bytes: Uint8Array): TensorData {
  if (bytes.byteLength % arrayOf[dtype].BYTES_PER_ELEMENT !== 0)
    throw new RangeError(`${bytes.byteLength} bytes are no whole number of ${dtype} elements`)
  // Not slice(): a Buffer's slice shares its memory.
  return new arrayOf[dtype](new Uint8Array(bytes).buffer)
}

/** The bytes of a tensor's data, little-endian, as a view of the same memory. */
export function bytesOfData(data: TensorData): Uint8Array<ArrayBuffer> {
  return new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength)
}

const scratch = new DataView(new ArrayBuffer(4))

/** bfloat16 bits to float32: the upper half of the float32's bits. */
export function bfloat16ToFloat32(bits: Uint16Array): Float32Array {
  const wide = new Uint32Array(bits.length)
  for (let i = 0; i < bits.length; i++) wide[i] = (bits[i] as number) << 16
  return new Float32Array(wide.buffer)
}

/** float32 to bfloat16 bits, rounded to nearest, ties to even; NaN stays NaN. */
export function float32ToBfloat16(values: Float32Array): Uint16Array {
  const wide = new Uint32Array(values.buffer, values.byteOffset, values.length)
  const out = new Uint16Array(values.length)
  for (let i = 0; i < out.length; i++) {
    const u = wide[i] as number
    const nan = (u & 0x7fffffff) > 0x7f800000
    out[i] = nan ? (u >>> 16) | 0x40 : (u + 0x7fff + ((u >>> 16) & 1)) >>> 16
  }
  return out
}

/** IEEE 754 binary16 bits to float32 (exact). */
export function float16ToFloat32(bits: Uint16Array): Float32Array {
  const table = halfTable()
  const out = new Float32Array(bits.length)
  for (let i = 0; i < bits.length; i++) out[i] = table[bits[i] as number] as number
  return out
}

/** float32 to IEEE 754 binary16 bits, rounded to nearest, ties to even; what is too large becomes infinity. */
export function float32ToFloat16(values: Float32Array): Uint16Array {
  const out = new Uint16Array(values.length)
  for (let i = 0; i < out.length; i++) out[i] = halfBits(values[i] as number)
  return out
}

let table: Float32Array | undefined

function halfTable(): Float32Array {
  if (table !== undefined) return table
  table = new Float32Array(65536)
  for (let h = 0; h < 65536; h++) {
    const sign = h & 0x8000 ? -1 : 1
    const exponent = (h >> 10) & 31
    const fraction = h & 1023
    if (exponent === 31) table[h] = fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN
    else if (exponent === 0) table[h] = sign * fraction * 2 ** -24
    else table[h] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15)
  }
  return table
}

function halfBits(value: number): number {
  scratch.setFloat32(0, value)
  const u = scratch.getUint32(0)
  const sign = (u >>> 16) & 0x8000
  const magnitude = u & 0x7fffffff
  if (magnitude > 0x7f800000) return sign | 0x7e00
  // 65520 and above round to infinity
  if (magnitude >= 0x477ff000) return sign | 0x7c00
  if (magnitude < 0x38800000) {
    // below 2^-14: a multiple of 2^-24, which float32 arithmetic at this offset rounds to even by itself
    return sign | roundEven(Math.abs(value) * 2 ** 24)
  }
  return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13)
}

function roundEven(x: number): number {
  const floor = Math.floor(x)
  const rest = x - floor
  return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor
}

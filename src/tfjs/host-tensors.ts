import {
  bfloat16ToFloat32,
  type DType,
  dataFromBytes,
  elementCount,
  elementSize,
  float16ToFloat32,
  float32ToBfloat16,
  float32ToFloat16,
  type Tensor,
  type TensorData,
} from '../onnx/index.ts'
import type { IndexMap } from './index-maps.ts'
import type { NodeContext } from './values.ts'

/** An operator on tensors that stay here: integers, truth values, and floats that the backend does not hold. */
export type HostOperator = (ctx: NodeContext & { x: (Tensor | undefined)[] }) => Tensor | Tensor[]

/** Numbers of any element type as their arrays take them; those of int64 are BigInts. */
export type Numbers = { [i: number]: number | bigint; readonly length: number }

export function emptyTensor(dtype: DType, shape: number[]): Tensor {
  return { dtype, shape, data: dataFromBytes(dtype, new Uint8Array(elementCount(shape) * elementSize(dtype))) }
}

/** Whether the elements are BigInts: int64 and uint64. */
export const isBig = ({ dtype }: Tensor): boolean => dtype === 'int64' || dtype === 'uint64'

/** int4 and uint4 are stored two to the byte; here they are int8 and uint8. */
export function unpacked(tensor: Tensor): Tensor {
  const { dtype, shape } = tensor
  if (dtype !== 'int4' && dtype !== 'uint4') return tensor
  const out = emptyTensor(dtype === 'int4' ? 'int8' : 'uint8', shape)
  const [bytes, target] = [tensor.data as Uint8Array, out.data as Int8Array | Uint8Array]
  for (let i = 0; i < target.length; i++) {
    const half = (bytes[i >> 1]! >> (4 * (i & 1))) & 15
    target[i] = dtype === 'int4' && half > 7 ? half - 16 : half
  }
  return out
}

/** Input `i`, which the operator cannot do without. */
export function need(x: (Tensor | undefined)[], i: number): Tensor {
  const tensor = x[i]
  if (tensor === undefined) throw new TypeError(`input ${i} is missing`)
  return tensor
}

/** The elements of `x` in the order of the map. */
export function moved(x: Tensor, { shape, from }: IndexMap): Tensor {
  const out = emptyTensor(x.dtype, shape)
  const [source, target] = [x.data as Numbers, out.data as Numbers]
  for (let i = 0; i < from.length; i++) target[i] = source[from[i]!]!
  return out
}

/** x as another element type; halves and int64 are converted, not reinterpreted. */
export function castTensor(x: Tensor, to: DType): Tensor {
  if (x.dtype === to) return x
  const values =
    x.dtype === 'float16'
      ? float16ToFloat32(x.data as Uint16Array)
      : x.dtype === 'bfloat16'
        ? bfloat16ToFloat32(x.data as Uint16Array)
        : x.data
  return { dtype: to, shape: x.shape, data: converted(values, to) }
}

function converted(values: TensorData, to: DType): TensorData {
  if (to === 'float16' || to === 'bfloat16') {
    const floats = values instanceof Float32Array ? values : Float32Array.from(values as ArrayLike<number>, Number)
    return to === 'float16' ? float32ToFloat16(floats) : float32ToBfloat16(floats)
  }
  if (to === 'bool') return Uint8Array.from(values as ArrayLike<number>, (v) => (Number(v) !== 0 ? 1 : 0))
  const out = emptyTensor(to, [values.length]).data as Numbers
  const big = to === 'int64' || to === 'uint64'
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!
    out[i] = !big ? Number(value) : typeof value === 'bigint' ? value : BigInt(Math.trunc(value))
  }
  return out as TensorData
}

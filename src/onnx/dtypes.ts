import type { DType } from './graph.ts'

/** ONNX's TensorProto.DataType, by number; `undefined` for what graphs here do not hold. */
const dtypes: (DType | undefined)[] = [
  undefined,
  'float32',
  'uint8',
  'int8',
  'uint16',
  'int16',
  'int32',
  'int64',
  undefined,
  'bool',
  'float16',
  'float64',
  'uint32',
  'uint64',
  undefined,
  undefined,
  'bfloat16',
  undefined,
  undefined,
  undefined,
  undefined,
  'uint4',
  'int4',
]

/** Element types of ONNX that are refused, by name. */
const refused: Record<number, string> = {
  8: 'string',
  14: 'complex64',
  15: 'complex128',
  17: 'float8e4m3fn',
  18: 'float8e4m3fnuz',
  19: 'float8e5m2',
  20: 'float8e5m2fnuz',
  23: 'float4e2m1',
  24: 'float8e8m0',
  25: 'uint2',
  26: 'int2',
}

/** The number by which ONNX's TensorProto.DataType names an element type. */
export function dtypeNumber(dtype: DType): number {
  return dtypes.indexOf(dtype)
}

/** The element type behind a TensorProto.DataType number; an error for one that graphs here do not use. */
export function dtypeFromNumber(n: number): DType {
  const dtype = dtypes[n]
  if (dtype === undefined) throw new TypeError(`ONNX element type ${refused[n] ?? n} is not supported`)
  return dtype
}

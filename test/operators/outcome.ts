import {
  type DType,
  float16ToFloat32,
  type Graph,
  openSession,
  type Session,
  type Tensor,
} from '../../src/onnx/index.ts'

/** What came of one part of a case. */
export type Outcome =
  | { kind: 'agrees'; error: number; note?: string }
  | { kind: 'fails'; why: string }
  | { kind: 'skipped'; why: string }

const floats = new Set<DType>(['float32', 'float64', 'float16', 'bfloat16'])
export const isFloat = (dtype: DType | undefined): boolean => dtype !== undefined && floats.has(dtype)

export const settings = { threads: 1, optimization: 'disabled' } as const

/** ONNX Runtime's refusals by kind. */
export function refusal(message: string): string {
  if (/Unsupported data type|(in|out)put "[^"]*" is .* which (is not supported|ONNX)/.test(message))
    return "ONNX Runtime's Node binding does not pass on the element type"
  if (/NOT_IMPLEMENTED|NotImplemented|Could not find an implementation/.test(message))
    return 'ONNX Runtime has no kernel for it on the CPU'
  if (/is not a registered function|is under development|No opset import|opset/i.test(message))
    return 'ONNX Runtime does not know this version of the operator'
  return `ONNX Runtime refuses it: ${message.slice(0, 100)}`
}

export async function runOnce(
  source: Graph | Uint8Array,
  feeds: Record<string, Tensor>,
): Promise<Record<string, Tensor>> {
  const session = await openSession(source, settings)
  try {
    return await session.run(feeds)
  } finally {
    await session.release()
  }
}

export const numbers = ({ dtype, data }: Tensor): Float64Array =>
  Float64Array.from(
    (dtype === 'float16' ? float16ToFloat32(data as Uint16Array) : data) as ArrayLike<number | bigint>,
    Number,
  )

/** The same numbers as another float type. */
export function converted(tensor: Tensor, dtype: 'float64' | 'float32'): Tensor {
  const values = numbers(tensor)
  return { dtype, shape: tensor.shape, data: dtype === 'float64' ? values : Float32Array.from(values) }
}

/** The feeds that a session asks for: pruning leaves out inputs that nothing reads. */
export const feedsOf = ({ inputs }: Session, feeds: Record<string, Tensor>): Record<string, Tensor> =>
  Object.fromEntries([...inputs.keys()].map((name) => [name, feeds[name] as Tensor]))

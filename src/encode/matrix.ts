import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { float16ToFloat32, float32ToFloat16, openSafetensors } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'
import { fileError } from '../support/files.ts'
import type { Description, Rounding } from './description.ts'

/**
 * The matrix of embeddings as a safetensors file of one tensor, `embeddings` [rows, dimension]. Its header has a fixed length,
 * padded with blanks as the format allows, so that rows can be written before their number is known.
 */
export const HEADER_BYTES = 512

/** Name of the tensor. */
export const TENSOR = 'embeddings'

type Shape = Pick<Description, 'side' | 'space' | 'dtype'>

/** Bytes of one row. */
export const rowBytes = ({ space, dtype }: Pick<Shape, 'space' | 'dtype'>): number =>
  space.dimension * (dtype === 'float32' ? 4 : 2)

/** The file's first bytes. */
export function matrixHeader(shape: Shape, rows: number): Buffer {
  const { side, space, dtype } = shape
  const json = JSON.stringify({
    __metadata__: { format: 'canopy-embeddings/1', fingerprint: space.fingerprint, side },
    [TENSOR]: {
      dtype: dtype === 'float32' ? 'F32' : 'F16',
      shape: [rows, space.dimension],
      data_offsets: [0, rows * rowBytes(shape)],
    },
  })
  const header = Buffer.alloc(HEADER_BYTES, ' ')
  header.writeBigUInt64LE(BigInt(HEADER_BYTES - 8))
  // numbers are what its length varies in: at most 16 digits each
  header.write(json, 8)
  return header
}

/** Rows as bytes of the file, little endian. */
export function bytesOfRows(embeddings: Float32Array, dtype: Description['dtype']): Uint8Array {
  const data = dtype === 'float32' ? embeddings : float32ToFloat16(embeddings)
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
}

/** Bytes of the file as float32. */
export function rowsOfBytes(bytes: Uint8Array, dtype: Description['dtype']): Float32Array {
  // a copy, so that it begins where the type of its elements may
  const { buffer } = new Uint8Array(bytes)
  return dtype === 'float32' ? new Float32Array(buffer) : float16ToFloat32(new Uint16Array(buffer))
}

export const NO_ROUNDING: Rounding = { leastCosine: 1, largestDifference: 0 }

/** What storing rows in float16 loses, together with what was lost before. */
export function roundingOf(embeddings: Float32Array, dimension: number, before: Rounding): Rounding {
  const rounded = float16ToFloat32(float32ToFloat16(embeddings))
  if (!rounded.every(Number.isFinite))
    throw new InputError('An embedding has numbers beyond 65 504, which float16 cannot hold; store float32 (--dtype).')
  let { leastCosine, largestDifference } = before
  for (let row = 0; row < embeddings.length; row += dimension) {
    let [dot, aa, bb] = [0, 0, 0]
    for (let i = row; i < row + dimension; i++) {
      const a = embeddings[i] as number
      const b = rounded[i] as number
      dot += a * b
      aa += a * a
      bb += b * b
      largestDifference = Math.max(largestDifference, Math.abs(a - b))
    }
    leastCosine = Math.min(leastCosine, dot / Math.max(Math.sqrt(aa * bb), 1e-24))
  }
  return { leastCosine, largestDifference }
}

/** A finished matrix, open for reading. */
export interface Matrix {
  /** float32 [dimension]. */
  row(at: number): Float32Array
  /** float32 [to - from, dimension]. */
  rows(from: number, to: number): Float32Array
  close(): void
}

/**
 * Opens a matrix that has to be of this kind and have so many rows.
 *
 * @throws InputError for a file that is missing, cut short, no safetensors, of another type, shape or fingerprint; on reading for
 *   numbers that are not finite
 */
export async function openMatrix(file: string, shape: Shape, rows: number): Promise<Matrix> {
  const { metadata, tensors } = await openSafetensors(file)
  const place = { file }
  const tensor = tensors.get(TENSOR)
  const wanted = [rows, shape.space.dimension]
  if (tensors.size !== 1 || tensor === undefined)
    throw new InputError(`one tensor "${TENSOR}" was expected, it has ${[...tensors.keys()].join(', ')}`, place)
  if (tensor.dtype !== (shape.dtype === 'float32' ? 'F32' : 'F16'))
    throw new InputError(`the tensor is ${tensor.dtype}, encode.json says ${shape.dtype}`, place)
  if (JSON.stringify(tensor.shape) !== JSON.stringify(wanted))
    throw new InputError(`the tensor is [${tensor.shape.join(', ')}], encode.json says [${wanted.join(', ')}]`, place)
  if (metadata.get('fingerprint') !== shape.space.fingerprint || metadata.get('side') !== shape.side)
    throw new InputError('the matrix belongs to other embeddings than encode.json beside it', place)
  const size = rowBytes(shape)
  const { dimension } = shape.space
  let fd: number
  try {
    fd = openSync(tensor.file, 'r')
    if (fstatSync(fd).size !== tensor.offset + rows * size)
      throw new InputError('the file changed while it was opened', place)
  } catch (error) {
    throw fileError(error, 'cannot read the embeddings', file)
  }
  let open = true
  const read = (from: number, to: number): Float32Array => {
    if (!open) throw new Error('The embeddings are closed.')
    if (!(from >= 0 && from <= to && to <= rows))
      throw new RangeError(`There are ${rows} rows; [${from}, ${to}) are none.`)
    const bytes = Buffer.alloc((to - from) * size)
    try {
      for (let done = 0; done < bytes.length; ) {
        const n = readSync(fd, bytes, done, bytes.length - done, tensor.offset + from * size + done)
        if (n === 0) throw new InputError('the file was cut short while it was open', place)
        done += n
      }
    } catch (error) {
      throw fileError(error, 'cannot read the embeddings', file)
    }
    const values = rowsOfBytes(bytes, shape.dtype)
    const bad = values.findIndex((x) => !Number.isFinite(x))
    if (bad >= 0)
      throw new InputError(
        `row ${from + Math.floor(bad / dimension)} has a number that is not finite; the file is damaged`,
        place,
      )
    return values
  }
  return {
    row: (at) => read(at, at + 1),
    rows: read,
    close() {
      if (open) closeSync(fd)
      open = false
    },
  }
}

import { bytesOfData } from '../onnx/index.ts'
import { blocksOf, rowsOf, type StreamedTensor, type WeightRows } from './streams.ts'

/** A weight as whole numbers, and the scales that multiply them. */
export interface QuantisedWeight {
  values: StreamedTensor
  scales: StreamedTensor
}

/** A scale below this, the smallest normal float32, would be rounded itself: such numbers are zeros beside any other. */
const LEAST_SCALE = 2 ** -126

/** int8 [rows, columns] and float32 [rows]: w = scale · q with q in ±127, the largest of a row being ±127. */
export function byRows(weight: WeightRows): QuantisedWeight {
  const { count, size } = rowsOf(weight.shape)
  return streamed(weight, { dtype: 'int8', shape: [count, size] }, [count], (block, scales) => {
    const values = new Int8Array(block.length)
    for (let row = 0; row < scales.length; row++) {
      let largest = 0
      for (let i = row * size; i < (row + 1) * size; i++) largest = Math.max(largest, Math.abs(block[i] as number))
      scales[row] = scaleOf(largest / 127)
      for (let i = row * size; i < (row + 1) * size; i++)
        values[i] = nearest((block[i] as number) / (scales[row] as number), -127, 127)
    }
    return bytesOfData(values)
  })
}

/** int8 [rows, columns] and float32 [columns]: the same with a scale to a column. The weight is read twice. */
export function byColumns(weight: WeightRows): QuantisedWeight {
  const { count, size } = rowsOf(weight.shape)
  const scales = once(async () => {
    const largest = new Float32Array(size)
    for await (const block of blocksOf(weight))
      for (let i = 0; i < block.length; i++)
        largest[i % size] = Math.max(largest[i % size] as number, Math.abs(block[i] as number))
    return largest.map((x) => scaleOf(x / 127))
  })
  return {
    values: {
      ...{ dtype: 'int8', shape: [count, size] },
      async *parts() {
        const found = await scales()
        for await (const block of blocksOf(weight))
          yield bytesOfData(Int8Array.from(block, (x, i) => nearest(x / (found[i % size] as number), -127, 127)))
      },
    },
    scales: {
      ...{ dtype: 'float32', shape: [size] },
      async *parts() {
        yield bytesOfData(await scales())
      },
    },
  }
}

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined
  return () => {
    made ??= make()
    return made
  }
}

/**
 * What MatMulNBits reads: uint8 [rows, blocks, length / 2], two numbers to a byte, the first in its lower half, and float32 [rows,
 * blocks]: w = scale · (q - 8) with q in 0 … 15. The number of a block that is largest by magnitude becomes -8, whose scale may be
 * negative: 8.6 % of the norm of normal random numbers is lost, 9.7 % with ±7.
 *
 * @param length numbers in a block, even; a row's last block is filled up with zeros
 */
export function byBlocks(weight: WeightRows, length: number): QuantisedWeight {
  const { count, size } = rowsOf(weight.shape)
  const blocks = Math.ceil(size / length)
  const shape = [count, blocks, length / 2]
  return streamed(weight, { dtype: 'uint8', shape }, [count, blocks], (part, scales) => {
    const bytes = new Uint8Array((scales.length * length) / 2)
    for (let block = 0; block < scales.length; block++) {
      const row = Math.floor(block / blocks)
      const from = row * size + (block % blocks) * length
      const to = Math.min(from + length, (row + 1) * size)
      let largest = 0
      for (let i = from; i < to; i++) if (Math.abs(part[i] as number) > Math.abs(largest)) largest = part[i] as number
      scales[block] = scaleOf(largest / -8)
      for (let i = 0; i < length; i++) {
        const q = from + i < to ? nearest((part[from + i] as number) / (scales[block] as number), -8, 7) + 8 : 8
        const at = (block * length + i) >> 1
        bytes[at] = (bytes[at] as number) | (i % 2 === 0 ? q : q << 4)
      }
    }
    return bytes
  })
}

/**
 * The largest distance of some rows' weights from what their whole numbers stand for, in steps: half a step for rows of {@link byRows}
 * and {@link byColumns}, a step in blocks of {@link byBlocks}, whose number 8 there is none for.
 *
 * @param values as these make them, with their `scales`
 * @param scaled what has a scale of its own in 8 bits
 * @returns NaN where any of them is none
 */
export function stepsOff(
  weights: Float32Array,
  size: number,
  values: Int8Array | Uint8Array,
  scales: Float32Array,
  scaled: 'rows' | 'columns' = 'rows',
): number {
  const rows = weights.length / size
  const perRow = scales.length / rows
  const length = values.length / scales.length
  let largest = 0
  for (let i = 0; i < weights.length; i++) {
    const row = Math.floor(i / size)
    const column = i % size
    const own = scaled === 'rows' ? row : column
    const block = values instanceof Int8Array ? own : row * perRow + Math.floor(column / (2 * length))
    const scale = scales[block] as number
    const off = Math.abs(
      (weights[i] as number) / scale -
        numberAt(values, values instanceof Int8Array ? i : block * 2 * length + (column % (2 * length))),
    )
    if (Number.isNaN(off)) return off
    if (off > largest) largest = off
  }
  return largest
}

function numberAt(values: Int8Array | Uint8Array, at: number): number {
  if (values instanceof Int8Array) return values[at] as number
  const pair = values[at >> 1] as number
  return (at % 2 === 0 ? pair & 15 : pair >> 4) - 8
}

const scaleOf = (scale: number): number => (Math.abs(scale) < LEAST_SCALE ? 1 : Math.fround(scale))

const nearest = (x: number, least: number, most: number): number => Math.max(least, Math.min(most, Math.round(x)))

/**
 * Both tensors of a quantised weight. The scales are found while the values are written, and kept until theirs are.
 *
 * @param quantise the bytes of some rows' values; fills in their scales
 */
function streamed(
  weight: WeightRows,
  values: Pick<StreamedTensor, 'dtype' | 'shape'>,
  scales: number[],
  quantise: (block: Float32Array, scales: Float32Array) => Uint8Array,
): QuantisedWeight {
  const { size } = rowsOf(weight.shape)
  const perRow = scales.slice(1).reduce((a, b) => a * b, 1)
  let found: Float32Array | undefined
  async function* parts(): AsyncGenerator<Uint8Array> {
    const all = new Float32Array((scales[0] as number) * perRow)
    let done = 0
    for await (const block of blocksOf(weight)) {
      const rows = block.length / size
      yield quantise(block, all.subarray(done * perRow, (done + rows) * perRow))
      done += rows
    }
    found = all
  }
  return {
    values: { ...values, parts },
    scales: {
      ...{ dtype: 'float32', shape: scales },
      async *parts() {
        if (found === undefined) for await (const _ of parts());
        yield bytesOfData(found as Float32Array)
        found = undefined
      },
    },
  }
}

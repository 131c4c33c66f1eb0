import { broadcast, elementCount, normalAxis, sliceLength } from '../onnx/index.ts'

/**
 * Where the elements of a moved tensor come from: the operators that only move elements (Transpose, Slice, Gather, Expand …)
 * as an index into the input, row by row, for every element of the output.
 */
export interface IndexMap {
  shape: number[]
  from: Int32Array
}

/** How far apart neighbours along each axis lie. */
export function stridesOf(shape: readonly number[]): number[] {
  const strides = shape.map(() => 1)
  for (let i = shape.length - 2; i >= 0; i--) strides[i] = strides[i + 1]! * shape[i + 1]!
  return strides
}

/** The index map onto `shape` that starts at `offset` and goes on by `steps[axis]` elements along each axis. */
export function strided(shape: number[], steps: readonly number[], offset = 0): IndexMap {
  const from = new Int32Array(elementCount(shape))
  const place = shape.map(() => 0)
  let at = offset
  for (let i = 0; i < from.length; i++) {
    from[i] = at
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      at += steps[axis]!
      if (++place[axis]! < shape[axis]!) break
      at -= steps[axis]! * shape[axis]!
      place[axis] = 0
    }
  }
  return { shape, from }
}

/** The shape that both broadcast to. */
export const broadcastShape = (a: number[], b: number[]): number[] => broadcast(a, b) as number[]

/** Broadcasts to `shape`: axes of size 1 stand still. */
export function expandMap(from: readonly number[], shape: number[]): IndexMap {
  const own = stridesOf(from)
  const lead = shape.length - from.length
  return strided(
    shape,
    shape.map((_, axis) => (axis < lead || from[axis - lead] === 1 ? 0 : own[axis - lead]!)),
  )
}

/** Axis i of the output is axis `perm[i]` of the input. */
export function transposeMap(from: readonly number[], perm: readonly number[]): IndexMap {
  const own = stridesOf(from)
  return strided(
    perm.map((axis) => from[axis]!),
    perm.map((axis) => own[axis]!),
  )
}

/** One axis of a slice, its bounds counted from 0 and inside the axis. */
export interface SliceRange {
  start: number
  length: number
  step: number
}

/** ONNX Slice's bounds, which may be negative or past the end, for every axis of `shape`. */
export function sliceRanges(
  shape: readonly number[],
  starts: readonly number[],
  ends: readonly number[],
  axes: readonly number[] | undefined,
  steps: readonly number[] | undefined,
): SliceRange[] {
  const ranges = shape.map((length): SliceRange => ({ start: 0, length, step: 1 }))
  starts.forEach((first, i) => {
    const axis = normalAxis(axes?.[i] ?? i, shape.length)
    const size = shape[axis]!
    const step = steps?.[i] ?? 1
    const start = first < 0 ? first + size : first
    ranges[axis] = {
      start: step > 0 ? Math.min(size, Math.max(0, start)) : Math.min(size - 1, Math.max(-1, start)),
      length: sliceLength(size, first, ends[i]!, step),
      step,
    }
  })
  return ranges
}

export function sliceMap(from: readonly number[], ranges: readonly SliceRange[]): IndexMap {
  const own = stridesOf(from)
  return strided(
    ranges.map(({ length }) => length),
    ranges.map(({ step }, axis) => step * own[axis]!),
    ranges.reduce((sum, { start }, axis) => sum + start * own[axis]!, 0),
  )
}

/** An index that may count from the end, as one from 0. */
function inside(index: number, size: number): number {
  const normal = index < 0 ? index + size : index
  if (!(normal >= 0 && normal < size)) throw new RangeError(`index ${index} is outside an axis of ${size}`)
  return normal
}

/** The rows that Gather takes along an axis of `size`, counted from 0. */
export function rowsOf(indices: ArrayLike<number | bigint>, size: number): Int32Array {
  return Int32Array.from(indices as ArrayLike<number>, (index) => inside(Number(index), size))
}

/** Gather: axis `axis` is replaced by the axes of `indices`. */
export function gatherMap(
  from: readonly number[],
  indices: { shape: number[]; data: ArrayLike<number | bigint> },
  axis: number,
): IndexMap {
  const rows = rowsOf(indices.data, from[axis]!)
  const inner = elementCount(from.slice(axis + 1))
  const outer = elementCount(from.slice(0, axis))
  const map = new Int32Array(outer * rows.length * inner)
  let i = 0
  for (let o = 0; o < outer; o++)
    for (const row of rows) {
      const start = (o * from[axis]! + row) * inner
      for (let k = 0; k < inner; k++) map[i++] = start + k
    }
  return { shape: [...from.slice(0, axis), ...indices.shape, ...from.slice(axis + 1)], from: map }
}

/** GatherElements, and where ScatterElements puts its updates: `indices` replace the place along one axis. */
export function elementsMap(
  from: readonly number[],
  indices: { shape: number[]; data: ArrayLike<number | bigint> },
  axis: number,
): IndexMap {
  const own = stridesOf(from)
  const { shape } = indices
  const along = strided(
    shape,
    own.map((stride, i) => (i === axis ? 0 : stride)),
  )
  return {
    shape,
    from: along.from.map((at, i) => at + inside(Number(indices.data[i]), from[axis]!) * own[axis]!),
  }
}

/** GatherND without batch axes, and where ScatterND puts its updates: the last axis of `indices` holds places. */
export function placesMap(
  from: readonly number[],
  indices: { shape: number[]; data: ArrayLike<number | bigint> },
): IndexMap {
  const own = stridesOf(from)
  const depth = indices.shape.at(-1)!
  const inner = elementCount(from.slice(depth))
  const count = elementCount(indices.shape.slice(0, -1))
  const map = new Int32Array(count * inner)
  for (let n = 0; n < count; n++) {
    let start = 0
    for (let d = 0; d < depth; d++) start += inside(Number(indices.data[n * depth + d]), from[d]!) * own[d]!
    for (let k = 0; k < inner; k++) map[n * inner + k] = start + k
  }
  return { shape: [...indices.shape.slice(0, -1), ...from.slice(depth)], from: map }
}

/** Tile: the whole tensor `repeats[axis]` times along each axis. */
export function tileMap(from: readonly number[], repeats: readonly number[]): IndexMap {
  const own = stridesOf(from)
  const shape = from.map((size, axis) => size * repeats[axis]!)
  const places = strided(shape, stridesOf(shape))
  const outer = stridesOf(shape)
  return {
    shape,
    from: places.from.map((at) =>
      own.reduce((sum, stride, axis) => sum + (Math.floor(at / outer[axis]!) % from[axis]!) * stride, 0),
    ),
  }
}

/** Trilu: whether an element lies in the triangle of its matrix that is kept. */
export function triangle(shape: readonly number[], upper: boolean, k: number): Uint8Array {
  const [rows, columns] = [shape.at(-2)!, shape.at(-1)!]
  const matrix = new Uint8Array(rows * columns)
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) matrix[r * columns + c] = (upper ? c - r >= k : c - r <= k) ? 1 : 0
  const all = new Uint8Array(elementCount(shape))
  for (let start = 0; start < all.length; start += matrix.length) all.set(matrix, start)
  return all
}

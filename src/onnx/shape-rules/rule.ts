import { addDims, atLeast, subtractDims } from '../dims.ts'
import type { Attribute, Dim, ValueType } from '../graph.ts'

/** What a shape rule may look at: the node's attributes, the types of its inputs, and what is known of their values. */
export interface ShapeContext {
  op: string
  attributes: Record<string, Attribute>
  inputs: (ValueType | undefined)[]
  /** The numbers of input `i` where it is a small constant. */
  constant(i: number): number[] | undefined
  /** The elements of input `i` where something is known of them: numbers, and sizes by their symbols. */
  dims(i: number): (Dim | undefined)[] | undefined
  /** A name for a dimension that nothing known equals. */
  fresh(): string
  /** How many outputs the node has. */
  outputs: number
}

export type ShapeRule = (ctx: ShapeContext) => ValueType[]

/** The type of input `i`, which must be known. */
export function need(ctx: ShapeContext, i: number): ValueType {
  const type = ctx.inputs[i]
  if (type === undefined) throw new TypeError(`${ctx.op}: the type of input ${i} is not known`)
  return type
}

/** The type of the first input. */
export const same: ShapeRule = (ctx) => [need(ctx, 0)]

/** One rule for several operators. */
export const all = (ops: string[], rule: ShapeRule): Record<string, ShapeRule> =>
  Object.fromEntries(ops.map((op) => [op, rule]))

/**
 * Numpy broadcasting over shapes whose equal symbols are equal sizes; a symbol wins over 1, a number over a symbol, the larger
 * of two symbols over the other, which must be 1 then. Symbols that cannot be compared are taken to be equal.
 */
export function broadcast(a: Dim[], b: Dim[]): Dim[] {
  const rank = Math.max(a.length, b.length)
  const out: Dim[] = []
  for (let i = 0; i < rank; i++) {
    const x = a[i - rank + a.length] ?? 1
    const y = b[i - rank + b.length] ?? 1
    if (x === y || y === 1) out.push(x)
    else if (x === 1) out.push(y)
    else if (typeof x === 'number' && typeof y === 'number')
      throw new RangeError(`shapes [${a.join(', ')}] and [${b.join(', ')}] do not broadcast`)
    else out.push(typeof x === 'number' || (typeof y === 'string' && atLeast(x, y)) ? x : y)
  }
  return out
}

/** The sizes that the vector behind input `i` gives, new names where it does not say. */
export function sizesFrom(ctx: ShapeContext, i: number): Dim[] {
  const known = ctx.dims(i)
  const rank = known?.length ?? need(ctx, i).shape[0]
  if (typeof rank !== 'number') throw new TypeError(`${ctx.op}: the number of dimensions is not known`)
  return Array.from({ length: rank }, (_, axis) => known?.[axis] ?? ctx.fresh())
}

export function sliceBound(bound: number, size: number): number {
  return Math.min(size, Math.max(0, bound < 0 ? bound + size : bound))
}

/** How many elements `[start, end)` in steps of `step` takes of a dimension; bounds as ONNX's Slice reads them. */
export function sliceLength(size: number, start: number, end: number, step = 1): number {
  const indices = sliceRange(size, start, end, step)
  return Math.max(0, Math.ceil((indices.end - indices.start) / step))
}

/** Slice's bounds as indices of a dimension; the end is exclusive, -1 for a backward slice to the first element. */
export function sliceRange(size: number, start: number, end: number, step: number): { start: number; end: number } {
  if (step > 0) return { start: sliceBound(start, size), end: sliceBound(end, size) }
  const down = (bound: number) => Math.min(size - 1, Math.max(-1, bound < 0 ? bound + size : bound))
  return { start: down(start), end: down(end) }
}

/** Bounds from here on mean "to the end", whatever the size. */
const OPEN_END = 2 ** 31 - 1

/**
 * The length of the slice `[start, end)` of a dimension that, or whose bounds, symbols give. A bound that is a symbol is
 * taken to lie within the dimension, counted from its end where it is a negative number of symbols, and a symbol's size to
 * be at least 1, as they are wherever positions are cut to a sequence's length. Undefined where that does not settle it.
 */
export function symbolicSliceLength(size: Dim, start: Dim, end: Dim): Dim | undefined {
  const place = (bound: Dim): Dim | undefined => {
    if (typeof bound !== 'number') {
      const index = atLeast(0, bound) ? addDims(size, bound) : bound
      return index !== undefined && (typeof size === 'number' || atLeast(size, index)) ? index : undefined
    }
    if (bound >= OPEN_END) return size
    if (bound === 0) return 0
    if (bound < 0 && typeof size === 'number') return Math.max(0, size + bound)
    if (bound === -1) return subtractDims(size, 1)
    return bound === 1 || (typeof size === 'number' && bound <= size) ? bound : undefined
  }
  const [from, to] = [place(start), place(end)]
  if (from === undefined || to === undefined) return undefined
  return atLeast(from, to) ? 0 : subtractDims(to, from)
}

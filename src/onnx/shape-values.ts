import { intAttribute, intsAttribute, normalAxis } from './attributes.ts'
import {
  addDims,
  atLeast,
  compareDims,
  divideDims,
  floorDivideDims,
  multiplyDims,
  productOfDims,
  subtractDims,
} from './dims.ts'
import type { Dim, DType, Node, ValueType } from './graph.ts'
import { type Element, floats, held, integers, type Known, knownTensor, MAX_ELEMENTS } from './known.ts'
import { sliceBound, sliceRange } from './shape-rules/rule.ts'
import { elementCount } from './tensor.ts'

interface ValueContext {
  node: Node
  /** What is known of the inputs; an input of which nothing is known is undefined. */
  x: (Known | undefined)[]
  /** The inputs' types. */
  types: (ValueType | undefined)[]
  /** The outputs' types, from the shape rules. */
  out: (ValueType | undefined)[]
}

type ValueRule = (ctx: ValueContext) => (Known | undefined)[] | undefined

/** The number of elements and their places, where every size is a number and they are few. */
function sizes(type: ValueType | undefined): number[] | undefined {
  const shape = type?.shape
  if (shape === undefined || !shape.every((d) => typeof d === 'number')) return undefined
  return elementCount(shape) <= MAX_ELEMENTS ? shape : undefined
}

/** Row-major coordinates of each element of a shape. */
function* places(shape: number[]): Generator<number[]> {
  const at = shape.map(() => 0)
  for (let n = elementCount(shape); n > 0; n--) {
    yield at
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      at[axis] = (at[axis] as number) + 1
      if ((at[axis] as number) < (shape[axis] as number)) break
      at[axis] = 0
    }
  }
}

/** The element of `x` at coordinates of a shape that `x` broadcasts to. */
function at(x: Known, place: number[]): Element {
  const lead = place.length - x.shape.length
  let index = 0
  x.shape.forEach((size, axis) => {
    index = index * size + (size === 1 ? 0 : (place[axis + lead] as number))
  })
  return x.elements[index]
}

/** A rule for operators that map elements to elements, over numpy broadcasting. */
const elementwise =
  (f: (dtype: DType, ...e: Element[]) => Element): ValueRule =>
  ({ x, out }) => {
    const shape = sizes(out[0])
    const dtype = out[0]?.dtype
    if (shape === undefined || dtype === undefined || !x.every((v) => v !== undefined)) return undefined
    const elements: Element[] = []
    for (const place of places(shape)) {
      const e = f((x[0] as Known).dtype, ...x.map((v) => at(v, place)))
      elements.push(typeof e === 'number' ? held(dtype, e) : e)
    }
    return [{ dtype, shape, elements }]
  }

const unary = (f: (n: number) => number): ValueRule => elementwise((_, e) => (typeof e === 'number' ? f(e) : undefined))

/** Two elements to one: numbers by `f`, sizes by `g`. */
const binary = (f: (a: number, b: number) => number, g?: (a: Dim, b: Dim) => Element): ValueRule =>
  elementwise((_, ...e) =>
    e.reduce((a, b) => {
      if (a === undefined || b === undefined) return undefined
      return typeof a === 'number' && typeof b === 'number' ? f(a, b) : g?.(a, b)
    }),
  )

const comparison = (holds: (order: -1 | 0 | 1) => boolean): ValueRule =>
  elementwise((_, a, b) => {
    if (a === undefined || b === undefined) return undefined
    const order = typeof a === 'number' && typeof b === 'number' ? (Math.sign(a - b) as -1 | 0 | 1) : compareDims(a, b)
    if (order !== undefined) return holds(order) ? 1 : 0
    // one of two orders is possible: both hold, or neither
    const possible = ([-1, 0, 1] as const).filter((o) => !(o === -1 && atLeast(a, b)) && !(o === 1 && atLeast(b, a)))
    return possible.every(holds) ? 1 : possible.some(holds) ? undefined : 0
  })

const both = (a: Element, b: Element): boolean => a !== undefined && b !== undefined

const logical = (f: (a: Element, b: Element) => boolean | undefined): ValueRule =>
  elementwise((_, a, b) => {
    const result = f(a, b)
    return result === undefined ? undefined : result ? 1 : 0
  })

/** The elements of the first input in the output's shape. */
const sameElements: ValueRule = ({ x: [x], out: [out] }) => {
  const shape = sizes(out)
  return x === undefined || shape === undefined ? undefined : [{ ...x, shape }]
}

/** A whole vector reduced to one element. */
const reduction =
  (f: (a: Dim, b: Dim) => Element): ValueRule =>
  ({ x: [x], out: [out] }) => {
    const shape = sizes(out)
    if (x === undefined || shape === undefined || elementCount(shape) !== 1 || x.elements.length === 0) return undefined
    const element = x.elements.reduce((a, b) => (a === undefined || b === undefined ? undefined : f(a, b)))
    return [{ dtype: x.dtype, shape, elements: [typeof element === 'number' ? held(x.dtype, element) : element] }]
  }

const numbersOf = (x: Known | undefined): number[] | undefined =>
  x?.elements.every((e) => typeof e === 'number') ? (x.elements as number[]) : undefined

const larger = (a: Dim, b: Dim): Element => (atLeast(a, b) ? a : atLeast(b, a) ? b : undefined)
const smaller = (a: Dim, b: Dim): Element => (atLeast(a, b) ? b : atLeast(b, a) ? a : undefined)

/** Picks elements of `x` by their places. */
function pick(x: Known, shape: number[], from: (place: number[]) => number[] | undefined): Known {
  const elements: Element[] = []
  for (const place of places(shape)) {
    const source = from(place)
    elements.push(source === undefined ? undefined : at(x, source))
  }
  return { dtype: x.dtype, shape, elements }
}

/** Operator -> what is known of its outputs. */
const rules: Record<string, ValueRule> = {
  Shape: ({ types: [type], node, out: [out] }) => {
    const length = out?.shape[0]
    if (type === undefined || typeof length !== 'number') return undefined
    const rank = type.shape.length
    const start = sliceBound(intAttribute(node.attributes, 'start', 0), rank)
    return [{ dtype: 'int64', shape: [length], elements: type.shape.slice(start, start + length) }]
  },
  Size: ({ types: [type] }) => {
    const size = type === undefined ? undefined : productOfDims(type.shape)
    return [{ dtype: 'int64', shape: [], elements: [size] }]
  },
  Cast: ({ x: [x], out: [out] }) => {
    if (x === undefined || out === undefined) return undefined
    const elements = x.elements.map((e) =>
      typeof e === 'number' ? castNumber(x.dtype, out.dtype, e) : e === undefined ? e : castSize(out.dtype, e),
    )
    return [{ dtype: out.dtype, shape: x.shape, elements }]
  },
  ConstantOfShape: ({ node, out: [out] }) => {
    const shape = sizes(out)
    const value = node.attributes.value
    const fill = value !== undefined && 't' in value ? knownTensor(value.t)?.elements[0] : 0
    return shape === undefined || out === undefined
      ? undefined
      : [{ dtype: out.dtype, shape, elements: Array<Element>(elementCount(shape)).fill(fill) }]
  },
  Range: ({ x: [start, , delta], out: [out] }) => {
    const shape = sizes(out)
    const [from, step] = [start?.elements[0], delta?.elements[0]]
    if (shape === undefined || typeof from !== 'number' || typeof step !== 'number' || !integers.has(start!.dtype))
      return undefined
    return [
      { dtype: start!.dtype, shape, elements: Array.from({ length: shape[0] as number }, (_, i) => from + i * step) },
    ]
  },

  Identity: sameElements,
  Reshape: sameElements,
  Flatten: sameElements,
  Squeeze: sameElements,
  Unsqueeze: sameElements,
  Expand: ({ x: [x], out: [out] }) => {
    const shape = sizes(out)
    return x === undefined || shape === undefined ? undefined : [pick(x, shape, (place) => place)]
  },
  Tile: ({ x: [x], out: [out] }) => {
    const shape = sizes(out)
    if (x === undefined || shape === undefined) return undefined
    return [pick(x, shape, (place) => place.map((i, axis) => i % (x.shape[axis] as number)))]
  },
  Transpose: ({ node, x: [x], out: [out] }) => {
    const shape = sizes(out)
    if (x === undefined || shape === undefined) return undefined
    const perm = intsAttribute(node.attributes, 'perm') ?? shape.map((_, i) => shape.length - 1 - i)
    return [pick(x, shape, (place) => x.shape.map((_, axis) => place[perm.indexOf(axis)] as number))]
  },
  Gather: ({ node, x: [x, index], out: [out] }) => {
    const shape = sizes(out)
    if (x === undefined || index === undefined || shape === undefined) return undefined
    const axis = normalAxis(intAttribute(node.attributes, 'axis', 0), x.shape.length)
    const size = x.shape[axis] as number
    const rank = index.shape.length
    const source = (place: number[]) => {
      const i = at(index, place.slice(axis, axis + rank))
      if (typeof i !== 'number' || i < -size || i >= size) return undefined
      return [...place.slice(0, axis), i < 0 ? i + size : i, ...place.slice(axis + rank)]
    }
    return [pick(x, shape, source)]
  },
  Slice: ({ x: [x, ...bounds], out: [out] }) => {
    const shape = sizes(out)
    const [starts, ends, given, by] = bounds.map(numbersOf)
    if (x === undefined || shape === undefined || starts === undefined || ends === undefined) return undefined
    if ((bounds[2] !== undefined) !== (given !== undefined) || (bounds[3] !== undefined) !== (by !== undefined))
      return undefined
    const from = x.shape.map(() => ({ start: 0, step: 1 }))
    ;(given ?? starts.map((_, i) => i)).forEach((axis, i) => {
      const at = normalAxis(axis, x.shape.length)
      const step = by?.[i] ?? 1
      from[at] = { start: sliceRange(x.shape[at] as number, starts[i] as number, ends[i] as number, step).start, step }
    })
    return [pick(x, shape, (place) => place.map((i, axis) => from[axis]!.start + i * from[axis]!.step))]
  },
  Split: ({ node, x: [x], out }) => {
    if (x === undefined) return undefined
    const axis = normalAxis(intAttribute(node.attributes, 'axis', 0), x.shape.length)
    let start = 0
    return out.map((type) => {
      const shape = sizes(type)
      if (shape === undefined || !Number.isFinite(start)) {
        start = Number.NaN
        return undefined
      }
      const from = start
      start += shape[axis] as number
      return pick(x, shape, (place) => place.map((i, a) => (a === axis ? i + from : i)))
    })
  },
  Concat: ({ node, x, types, out: [out] }) => {
    const shape = sizes(out)
    if (shape === undefined || out === undefined) return undefined
    const axis = normalAxis(intAttribute(node.attributes, 'axis', 0), shape.length)
    const parts = types.map((type, i) => x[i] ?? unknownElements(type))
    if (!parts.every((part) => part !== undefined)) return undefined
    const elements: Element[] = []
    for (const place of places(shape)) {
      let i = place[axis] as number
      let part = 0
      while (i >= (parts[part]!.shape[axis] as number)) i -= parts[part++]!.shape[axis] as number
      elements.push(
        at(
          parts[part]!,
          place.map((p, a) => (a === axis ? i : p)),
        ),
      )
    }
    return [{ dtype: out.dtype, shape, elements }]
  },

  Add: binary((a, b) => a + b, addDims),
  Sub: binary((a, b) => a - b, subtractDims),
  Mul: binary((a, b) => a * b, multiplyDims),
  Div: elementwise((dtype, a, b) => {
    if (a === undefined || b === undefined) return undefined
    if (floats.has(dtype)) return typeof a === 'number' && typeof b === 'number' ? a / b : divideDims(a, b)
    if (typeof a === 'number' && typeof b === 'number') return b === 0 ? undefined : Math.trunc(a / b)
    // towards 0, as ONNX divides, is down for sizes only
    return atLeast(a, 0) && atLeast(b, 0) ? floorDivideDims(a, b) : divideDims(a, b)
  }),
  Mod: elementwise((_, a, b) =>
    typeof a === 'number' && typeof b === 'number' && b > 0 && a >= 0 && Number.isInteger(a) ? a % b : undefined,
  ),
  Pow: binary((a, b) => a ** b),
  Max: binary(Math.max, larger),
  Min: binary(Math.min, smaller),
  Neg: elementwise((_, e) => (e === undefined ? undefined : typeof e === 'number' ? -e : subtractDims(0, e))),
  Abs: elementwise((_, e) => (typeof e === 'number' ? Math.abs(e) : e !== undefined && atLeast(e, 0) ? e : undefined)),
  Sqrt: unary(Math.sqrt),
  Reciprocal: unary((n) => 1 / n),
  Floor: unary(Math.floor),
  Ceil: unary(Math.ceil),
  Sign: unary(Math.sign),
  Not: unary((n) => (n === 0 ? 1 : 0)),
  And: logical((a, b) => (a === 0 || b === 0 ? false : both(a, b) ? true : undefined)),
  Or: logical((a, b) => (a === 1 || b === 1 ? true : both(a, b) ? false : undefined)),
  Xor: logical((a, b) => (both(a, b) ? a !== b : undefined)),
  Equal: comparison((order) => order === 0),
  Less: comparison((order) => order < 0),
  LessOrEqual: comparison((order) => order <= 0),
  Greater: comparison((order) => order > 0),
  GreaterOrEqual: comparison((order) => order >= 0),
  Where: ({ x: [c, a, b], out: [out] }) => {
    const shape = sizes(out)
    if (c === undefined || out === undefined || shape === undefined) return undefined
    const elements: Element[] = []
    for (const place of places(shape)) {
      const condition = at(c, place)
      const [yes, no] = [a, b].map((v) => (v === undefined ? undefined : at(v, place)))
      elements.push(condition === undefined ? (yes === no ? yes : undefined) : condition === 0 ? no : yes)
    }
    return [{ dtype: out.dtype, shape, elements }]
  },
  ReduceProd: reduction(multiplyDims),
  ReduceSum: reduction(addDims),
  ReduceMax: reduction(larger),
  ReduceMin: reduction(smaller),
}

function unknownElements(type: ValueType | undefined): Known | undefined {
  const shape = sizes(type)
  return shape === undefined || type === undefined
    ? undefined
    : { dtype: type.dtype, shape, elements: Array<Element>(elementCount(shape)).fill(undefined) }
}

/** A number in another element type: towards 0 for integers, not 0 is true for booleans. */
function castNumber(from: DType, to: DType, n: number): Element {
  if (to === 'bool') return n === 0 ? 0 : 1
  return floats.has(from) && integers.has(to) ? held(to, Math.trunc(n)) : held(to, n)
}

/** A size in another element type: itself where the type holds it, true where it cannot be 0. */
function castSize(to: DType, size: Dim): Element {
  if (to === 'bool') return atLeast(size, 1) ? 1 : undefined
  return wide.has(to) ? size : undefined
}

/** Element types that hold every size there is. */
const wide = new Set<DType>(['int64', 'uint64', 'int32', 'uint32', 'float32', 'float64'])

/** What is known of a node's outputs, from what is known of its inputs; undefined for outputs of which nothing is. */
export function nodeValues(
  node: Node,
  values: ReadonlyMap<string, Known>,
  types: ReadonlyMap<string, ValueType>,
): (Known | undefined)[] {
  const rule = node.domain === '' && Object.hasOwn(rules, node.op) ? rules[node.op] : undefined
  const found = rule?.({
    node,
    x: node.inputs.map((name) => values.get(name)),
    types: node.inputs.map((name) => types.get(name)),
    out: node.outputs.map((name) => types.get(name)),
  })
  return node.outputs.map((_, i) => (found?.[i]?.elements.some((e) => e !== undefined) ? found[i] : undefined))
}

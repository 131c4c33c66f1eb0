import fc from 'fast-check'
import type { Attribute, Tensor } from '../../../src/onnx/index.ts'
import { type Case, i } from './draw.ts'

/** Operators that move and pick elements, or are about sizes. */
export const layoutCases: Record<string, Case> = {
  Gather: (d) => {
    const shape = d.shape()
    const indices = d.shape(0, 2)
    const zeros = Array(indices.reduce((a, b) => a * b, 1)).fill(0)
    return [d.g.gather(d.input(shape), d.input(indices, 'int64', zeros), d.axis(shape.length))]
  },
  GatherElements: (d) => {
    const shape = d.shape()
    const axis = d.axis(shape.length)
    const indices = shape.map((size) => d.int(1, size))
    const zeros = Array(indices.reduce((a, b) => a * b, 1)).fill(0)
    return d.g.node('GatherElements', [d.input(shape), d.input(indices, 'int64', zeros)], {
      attributes: { axis: i(axis) },
    })
  },
  ScatterElements: (d) => {
    const shape = d.shape()
    const part = shape.map((size) => d.int(1, size))
    const zeros = Array(part.reduce((a, b) => a * b, 1)).fill(0)
    return d.g.node('ScatterElements', [d.input(shape), d.input(part, 'int64', zeros), d.input(part)], {
      attributes: { axis: i(d.axis(shape.length)), reduction: { s: 'add' } },
    })
  },
  ScatterND: (d) => {
    const shape = d.shape()
    return d.g.node('ScatterND', [d.input(shape), d.input([1, 1], 'int64', [0]), d.input([1, ...shape.slice(1)])])
  },
  CumSum: (d) => {
    const shape = d.shape()
    return d.g.node('CumSum', [d.input(shape), d.g.constant([d.axis(shape.length)], 'int64', [])])
  },
  ReverseSequence: (d) => {
    const shape = d.shape(2)
    const lengths = Array(shape[1]).fill(1)
    return d.g.node('ReverseSequence', [d.input(shape), d.input([shape[1] as number], 'int64', lengths)])
  },
  GatherND: (d) => {
    const shape = d.shape(2)
    const batch = d.int(0, 1)
    const depth = d.int(1, shape.length - batch)
    const index = [...shape.slice(0, batch), ...d.shape(batch === 1 ? 0 : 1, 2), depth]
    const zeros = Array(index.reduce((a, b) => a * b, 1)).fill(0)
    const indices = d.g.constant(zeros, 'int64', index)
    return d.g.node('GatherND', [d.input(shape), indices], {
      attributes: { batch_dims: i(batch) },
    })
  },
  Compress: (d) => {
    const shape = d.shape()
    const keep = d.input([2], 'bool', [1, 0])
    return d.g.node(
      'Compress',
      [d.input(shape), keep],
      d.flag() ? { attributes: { axis: i(d.axis(shape.length)) } } : {},
    )
  },
  Flatten: (d) => {
    const shape = d.shape()
    const axis = d.int(-shape.length, shape.length)
    return d.g.node('Flatten', [d.input(shape)], d.flag() ? { attributes: { axis: i(axis) } } : {})
  },
  Tile: (d) => {
    const shape = d.shape()
    const repeats = shape.map(() => d.int(1, 3))
    return d.g.node('Tile', [d.input(shape), d.flag() ? d.ints(repeats) : d.vector(repeats)])
  },
  Pad: (d) => {
    const shape = d.shape()
    const axes = d.axes(shape.length)
    const some = d.flag() && axes.length > 0
    const pads = Array.from({ length: 2 * (some ? axes.length : shape.length) }, () => d.int(0, 2))
    const x = d.input(shape)
    const given = d.flag() ? d.ints(pads) : d.vector(pads)
    return d.g.node('Pad', some ? [x, given, '', d.ints(axes)] : [x, given])
  },
  DepthToSpace: (d) => {
    const [n, c, h, w] = d.shape(4) as [number, number, number, number]
    return d.g.node('DepthToSpace', [d.input([n, 4 * c, h, w])], { attributes: { blocksize: i(2) } })
  },
  SpaceToDepth: (d) => {
    const [n, c, h, w] = d.shape(4) as [number, number, number, number]
    return d.g.node('SpaceToDepth', [d.input([n, c, 2 * h, 2 * w])], { attributes: { blocksize: i(2) } })
  },
  Trilu: (d) => d.g.node('Trilu', [d.input(d.shape(2))], { attributes: { upper: i(d.int(0, 1)) } }),
  Concat: (d) => {
    const shape = d.shape()
    const axis = d.axis(shape.length)
    const at = axis < 0 ? axis + shape.length : axis
    const parts = Array.from({ length: d.int(1, 3) }, () => shape.map((size, j) => (j === at ? d.int(1, 3) : size)))
    return [
      d.g.concat(
        parts.map((part) => d.input(part)),
        axis,
      ),
    ]
  },
  Unsqueeze: (d) => {
    const shape = d.shape(0, 3)
    const axes = d.axes(shape.length + 2).slice(0, 2)
    // two new axes at any of the places of the result's rank
    const unique = axes.length === 2 ? axes : [0, -1]
    return [d.g.unsqueeze(d.input(shape), unique)]
  },
  Squeeze: (d) => {
    const shape = d.shape(2)
    const at = d.int(0, shape.length - 1)
    shape[at] = 1
    const x = d.input(shape)
    return d.flag() ? [d.g.squeeze(x, [d.flag() ? at : at - shape.length])] : d.g.node('Squeeze', [x])
  },
  Shape: (d) => {
    const shape = d.shape(0)
    const attributes: Record<string, Attribute> = {}
    if (d.flag()) attributes.start = i(d.int(-5, 5))
    if (d.flag()) attributes.end = i(d.int(-5, 5))
    return d.g.node('Shape', [d.input(shape)], { attributes })
  },
  Reshape: (d) => {
    const shape = d.shape()
    const x = d.input(shape)
    const total = shape.reduce((a, b) => a * b, 1)
    const target = d.pick(
      [-1],
      [0, -1],
      [total, 1],
      [1, -1, 1],
      shape.map(() => 0),
      [...shape.slice(0, -1).map(() => 0), -1],
    )
    if (!d.flag()) return d.g.node('Reshape', [x, d.ints(target)])
    // a shape known only at run time: so many unknown sizes
    return d.g.node('Reshape', [x, d.vector(target)])
  },
  Expand: (d) => {
    const full = d.shape()
    const x = d.input(d.broadcastable(full))
    return d.g.node('Expand', [x, d.ints(full)])
  },
  Slice: (d) => {
    const shape = d.shape()
    const count = d.int(1, shape.length)
    const many = (draw: () => number) => d.ints(Array.from({ length: count }, draw))
    const [starts, ends] = [many(() => d.int(-6, 6)), many(() => d.int(-6, 6))]
    const x = d.input(shape)
    if (d.flag()) return d.g.node('Slice', [x, starts, ends])
    const axes = d.gen(() =>
      fc.shuffledSubarray(
        shape.map((_, at) => at),
        { minLength: count, maxLength: count },
      ),
    )
    const steps = d.flag() ? [many(() => d.pick(-2, -1, 1, 2, 3))] : []
    return d.g.node('Slice', [x, starts, ends, d.ints(axes), ...steps])
  },
  Split: (d) => {
    const shape = d.shape()
    const at = d.int(0, shape.length - 1)
    const parts = d.int(1, 3)
    const attributes = { axis: i(d.flag() ? at : at - shape.length) }
    if (d.flag()) {
      const sizes = Array.from({ length: parts }, () => d.int(1, 3))
      shape[at] = sizes.reduce((a, b) => a + b, 0)
      return d.g.node('Split', [d.input(shape), d.ints(sizes)], { outputs: parts, attributes })
    }
    shape[at] = 2 * parts - (parts > 1 ? d.int(0, 1) : 0)
    return d.g.node('Split', [d.input(shape)], {
      outputs: parts,
      attributes: { ...attributes, num_outputs: i(parts) },
    })
  },
  Size: (d) => d.g.node('Size', [d.input(d.shape(0))]),
  NonZero: (d) => d.g.node('NonZero', [d.input(d.shape())]),
  EyeLike: (d) => d.g.node('EyeLike', [d.input(d.shape(2, 2))], d.flag() ? { attributes: { dtype: i(7) } } : {}),
  OneHot: (d) => {
    const shape = d.shape()
    const depth = d.flag() ? d.ints([5]) : d.vector([5])
    const values = d.g.constant([0, 1], 'float32')
    return d.g.node('OneHot', [d.input(shape, 'int64'), depth, values], {
      attributes: { axis: i(d.int(-1, shape.length)) },
    })
  },
  ConstantOfShape: (d) => {
    const value: Tensor = { dtype: 'int64', shape: [1], data: BigInt64Array.of(3n) }
    return d.g.node('ConstantOfShape', [d.ints(d.shape())], d.flag() ? { attributes: { value: { t: value } } } : {})
  },
  Range: (d) => {
    const [start, delta] = [d.int(-3, 3), d.pick(-2, -1, 1, 2, 3)]
    const limit = start + delta * d.int(0, 3) + d.int(0, 1)
    return d.g.node(
      'Range',
      [start, limit, delta].map((v) => d.g.constant([v], 'int64', [])),
    )
  },
}

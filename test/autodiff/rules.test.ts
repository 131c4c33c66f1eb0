import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Dim, GraphBuilder } from '../../src/onnx/index.ts'
import { compareGradients, type Input, type Options } from './finite-differences.ts'

type Build = (g: GraphBuilder, x: string[], dim: (size: number) => Dim) => string | string[]

const count = (shape: number[]) => shape.reduce((a, b) => a * b, 1)

/** Numbers in [low, high], from a seed. */
function uniform(shape: number[], seed: number, low = -2, high = 2): number[] {
  return Array.from({ length: count(shape) }, (_, i) => {
    const u = Math.sin((i + 1) * 12.9898 + (seed % 9973) * 78.233) * 43758.5453
    return low + (high - low) * (u - Math.floor(u))
  })
}

/** Distinct numbers at least `gap` from each other and from 0: no difference quotient crosses a kink. */
function apart(shape: number[], seed: number, gap = 0.25, offset = 0): number[] {
  const n = count(shape)
  const order = uniform([n], seed).map((key, i) => ({ key, i }))
  order.sort((a, b) => a.key - b.key)
  return order.map(({ i }) => (i - n / 2 + (n % 2 === 0 ? 0.5 : 0) + 0.25) * gap + offset)
}

const shapes = (min: number, max: number, size = 3) =>
  fc.array(fc.integer({ min: 1, max: size }), { minLength: min, maxLength: max })

/** `n` shapes that broadcast together. */
const broadcasting = (n: number) =>
  shapes(0, 3).chain((shape) =>
    fc.tuple(
      ...Array.from({ length: n }, () =>
        fc
          .tuple(fc.integer({ min: 0, max: shape.length }), fc.array(fc.boolean(), { minLength: 3, maxLength: 3 }))
          .map(([drop, ones]) => shape.slice(drop).map((d, i) => (ones[i] ? 1 : d))),
      ),
    ),
  )

function broadcastShape(a: number[], b: number[]): number[] {
  return Array.from({ length: Math.max(a.length, b.length) }, (_, i, n = Math.max(a.length, b.length)) =>
    Math.max(a[i - n + a.length] ?? 1, b[i - n + b.length] ?? 1),
  )
}

const seeds = fc.nat(1e6)

async function agree(build: Build, inputs: Input[], options: Options = {}): Promise<void> {
  const tolerance = options.dtype === 'float32' ? 2e-3 : 1e-6
  for (const c of await compareGradients(build, inputs, options)) {
    expect(c.shape, `shape of the gradient of input ${c.input}`).toEqual(inputs[c.input]!.shape)
    expect(
      c.error,
      `input ${c.input}: ${c.analytic.join(' ')} against differences ${c.numeric.join(' ')}`,
    ).toBeLessThan(tolerance)
  }
}

const runs = { numRuns: 25 }

function property<T>(arbitrary: fc.Arbitrary<T>, check: (value: T, symbolic: boolean) => Promise<void>): Promise<void> {
  return fc.assert(fc.asyncProperty(arbitrary, fc.boolean(), check), runs)
}

describe('elementwise operators of one input', () => {
  const unary: [string, { domain?: string; dtype?: 'float32'; low?: number; kinks?: true; opset?: number }][] = [
    ['Neg', {}],
    ['Identity', {}],
    ['Sqrt', { low: 0.5 }],
    ['Exp', {}],
    ['Log', { low: 0.5 }],
    ['Sin', {}],
    ['Cos', { dtype: 'float32' }],
    ['Erf', { dtype: 'float32' }],
    ['Tanh', {}],
    ['Sigmoid', {}],
    ['Softplus', { dtype: 'float32' }],
    ['Relu', { kinks: true }],
    ['Abs', { kinks: true }],
    ['Reciprocal', { low: 0.5 }],
    ['Gelu', { domain: 'com.microsoft', dtype: 'float32' }],
    ['Gelu', { dtype: 'float32', opset: 20 }],
    ['FastGelu', { domain: 'com.microsoft', dtype: 'float32' }],
    ['QuickGelu', { domain: 'com.microsoft', dtype: 'float32' }],
  ]
  for (const [op, { domain = '', dtype, low = -2, kinks, opset }] of unary)
    it(`${domain === '' ? '' : `${domain} `}${op}`, () =>
      property(fc.tuple(shapes(op === 'FastGelu' ? 1 : 0, 3), seeds), ([shape, seed], symbolic) =>
        agree(
          (g, [x]) => g.one(op, [x!], { domain }),
          [{ shape, values: kinks ? apart(shape, seed) : uniform(shape, seed, low, low + 3) }],
          { symbolic, ...(dtype ? { dtype } : {}), ...(opset ? { opset } : {}) },
        ),
      ))
})

describe('elementwise operators of several inputs, broadcast', () => {
  const two = fc.tuple(broadcasting(2), seeds)
  for (const op of ['Add', 'Sub', 'Mul'])
    it(op, () =>
      property(two, ([[a, b], seed], symbolic) =>
        agree(
          (g, [x, y]) => g.one(op, [x!, y!]),
          [
            { shape: a!, values: uniform(a!, seed) },
            { shape: b!, values: uniform(b!, seed + 1) },
          ],
          { symbolic },
        ),
      ),
    )

  it('Div', () =>
    property(two, ([[a, b], seed], symbolic) =>
      agree(
        (g, [x, y]) => g.div(x!, y!),
        [
          { shape: a!, values: uniform(a!, seed) },
          { shape: b!, values: uniform(b!, seed + 1, 0.5, 2) },
        ],
        { symbolic },
      ),
    ))

  it('Pow', () =>
    property(two, ([[a, b], seed], symbolic) =>
      agree(
        (g, [x, y]) => g.pow(x!, y!),
        [
          { shape: a!, values: uniform(a!, seed, 0.5, 2) },
          { shape: b!, values: uniform(b!, seed + 1, -2, 3) },
        ],
        { symbolic },
      ),
    ))

  it('Pow with constant exponents, negative bases included', () =>
    property(fc.tuple(shapes(0, 3), seeds, fc.integer({ min: 1, max: 4 })), ([shape, seed, exponent], symbolic) =>
      agree((g, [x]) => g.pow(x!, g.scalar(exponent, 'float64')), [{ shape, values: uniform(shape, seed) }], {
        symbolic,
      }),
    ))

  for (const op of ['Max', 'Min'])
    it(`${op} of three`, () =>
      property(fc.tuple(broadcasting(3), seeds), ([three, seed], symbolic) =>
        agree(
          (g, x) => g.one(op, x),
          // three grids, shifted against each other: no two values are equal
          three.map((shape, i) => ({ shape, values: apart(shape, seed + i, 0.3, i * 0.1) })),
          { symbolic },
        ),
      ))

  it('Sum of three', () =>
    property(fc.tuple(broadcasting(3), seeds), ([three, seed], symbolic) =>
      agree(
        (g, x) => g.one('Sum', x),
        three.map((shape, i) => ({ shape, values: uniform(shape, seed + i) })),
        { symbolic },
      ),
    ))

  it('Where', () =>
    property(fc.tuple(broadcasting(3), seeds), ([[c, a, b], seed], symbolic) =>
      agree(
        (g, [condition, x, y]) => g.where(condition!, x!, y!),
        [
          { shape: c!, values: uniform(c!, seed).map((v) => (v > 0 ? 1 : 0)), dtype: 'bool' },
          { shape: a!, values: uniform(a!, seed + 1) },
          { shape: b!, values: uniform(b!, seed + 2) },
        ],
        { symbolic },
      ),
    ))

  it('Clip, its bounds included', () =>
    property(fc.tuple(shapes(0, 3), seeds), ([shape, seed], symbolic) =>
      agree(
        (g, [x, low, high]) => g.one('Clip', [x!, low!, high!]),
        [
          { shape, values: apart(shape, seed) },
          { shape: [], values: [-0.5] },
          { shape: [], values: [0.75] },
        ],
        { symbolic },
      ),
    ))

  it('Clip with one bound', () =>
    property(fc.tuple(shapes(0, 3), seeds), ([shape, seed], symbolic) =>
      agree((g, [x]) => g.one('Clip', [x!, '', g.scalar(0.5, 'float64')]), [{ shape, values: apart(shape, seed) }], {
        symbolic,
      }),
    ))

  it('BiasGelu and FastGelu with a bias', () =>
    property(fc.tuple(shapes(1, 3), seeds, fc.constantFrom('BiasGelu', 'FastGelu')), ([shape, seed, op], symbolic) =>
      agree(
        (g, [x, b]) => g.one(op, [x!, b!], { domain: 'com.microsoft' }),
        [
          { shape, values: uniform(shape, seed) },
          { shape: shape.slice(-1), values: uniform(shape.slice(-1), seed + 1) },
        ],
        { symbolic, dtype: 'float32' },
      ),
    ))

  it('Cast takes the gradient back to the element type of its input', () =>
    property(fc.tuple(shapes(0, 3), seeds), ([shape, seed], symbolic) =>
      agree(
        (g, [x]) => g.cast(g.exp(g.cast(x!, 'float64')), 'float32'),
        [{ shape, values: uniform(shape, seed, -1, 1) }],
        { symbolic, dtype: 'float32' },
      ),
    ))
})

/** Shapes of op(A) and op(B): batch axes that broadcast, ranks 1 to 4. */
const factors = fc
  .tuple(broadcasting(2), shapes(3, 3), fc.boolean(), fc.boolean())
  .map(([[batchA, batchB], [m, k, n], vectorA, vectorB]) => ({
    a: vectorA ? [k!] : [...batchA!.slice(-2), m!, k!],
    b: vectorB ? [k!] : [...batchB!.slice(-2), k!, n!],
  }))

const swapped = (shape: number[], swap: boolean) =>
  swap ? [...shape.slice(0, -2), shape.at(-1)!, shape.at(-2)!] : shape

describe('products', () => {
  for (const dtype of ['float32', 'float64'] as const)
    it(`MatMul ${dtype}, vectors and broadcast batches included`, () =>
      property(fc.tuple(factors, seeds), ([{ a, b }, seed], symbolic) =>
        agree(
          (g, [x, y]) => g.matmul(x!, y!),
          [
            { shape: a, values: uniform(a, seed) },
            { shape: b, values: uniform(b, seed + 1) },
          ],
          { symbolic, dtype },
        ),
      ))

  it('FusedMatMul with transA, transB and alpha', () =>
    property(
      fc.tuple(factors, seeds, fc.boolean(), fc.boolean(), fc.constantFrom(1, 0.5, -1.5)),
      ([{ a, b }, seed, transA, transB, alpha], symbolic) => {
        fc.pre(a.length > 1 && b.length > 1)
        const [shapeA, shapeB] = [swapped(a, transA), swapped(b, transB)]
        return agree(
          (g, [x, y]) => g.fusedMatmul(x!, y!, { transA, transB, alpha }),
          [
            { shape: shapeA, values: uniform(shapeA, seed) },
            { shape: shapeB, values: uniform(shapeB, seed + 1) },
          ],
          { symbolic, dtype: 'float32' },
        )
      },
    ))

  it('Gemm with transA, transB, alpha, beta and a broadcast C', () =>
    property(
      fc.tuple(
        shapes(3, 3),
        seeds,
        fc.boolean(),
        fc.boolean(),
        fc.constantFrom(1, 0.5),
        fc.constantFrom(1, -2),
        fc.nat(5),
      ),
      ([[m, k, n], seed, transA, transB, alpha, beta, form], symbolic) => {
        const [a, b] = [swapped([m!, k!], transA), swapped([k!, n!], transB)]
        const c = [undefined, [], [n!], [1, n!], [m!, 1], [m!, n!]][form]
        return agree(
          (g, [x, y, z]) => g.gemm(x!, y!, z ?? null, { transA, transB, alpha, beta }),
          [a, b, ...(c ? [c] : [])].map((shape, i) => ({ shape, values: uniform(shape, seed + i) })),
          { symbolic },
        )
      },
    ))
})

describe('operators that move elements', () => {
  it('Transpose', () =>
    property(
      shapes(1, 4).chain((shape) =>
        fc.tuple(
          fc.constant(shape),
          fc.shuffledSubarray(
            shape.map((_, i) => i),
            { minLength: shape.length },
          ),
          seeds,
        ),
      ),
      ([shape, perm, seed], symbolic) =>
        agree((g, [x]) => g.transpose(g.exp(x!), perm), [{ shape, values: uniform(shape, seed) }], { symbolic }),
    ))

  it('Transpose without perm', () =>
    agree((g, [x]) => g.one('Transpose', [x!]), [{ shape: [2, 3, 4], values: uniform([2, 3, 4], 1) }]))

  it('Reshape, Unsqueeze, Squeeze', () =>
    property(fc.tuple(shapes(2, 3), seeds), ([shape, seed], symbolic) =>
      agree(
        (g, [x], dim) => {
          const flat = g.reshape(g.one('Sin', [x!]), [count(shape.slice(0, 2)), ...shape.slice(2).map(dim)])
          return g.squeeze(g.unsqueeze(flat, [0, 2]), [0])
        },
        [{ shape, values: uniform(shape, seed) }],
        { symbolic },
      ),
    ))

  it('Expand', () =>
    property(fc.tuple(broadcasting(2), seeds), ([[from, to], seed], symbolic) =>
      agree(
        (g, [x, like], dim) =>
          g.one('Expand', [g.exp(x!), g.one('Shape', [like!])], {
            types: [{ dtype: 'float64', shape: broadcastShape(from!, to!).map(dim) }],
          }),
        [
          { shape: from!, values: uniform(from!, seed) },
          { shape: to!, values: uniform(to!, seed), fixed: true },
        ],
        { symbolic },
      ),
    ))

  it('Concat', () =>
    property(
      fc.tuple(
        shapes(1, 3),
        fc.nat(2),
        fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 1, maxLength: 3 }),
        seeds,
      ),
      ([shape, at, sizes, seed], symbolic) => {
        const axis = at % shape.length
        return agree(
          (g, x) =>
            g.concat(
              x.map((input) => g.exp(input)),
              axis,
            ),
          sizes.map((size, i) => {
            const own = shape.map((d, j) => (j === axis ? size : d))
            return { shape: own, values: uniform(own, seed + i) }
          }),
          { symbolic },
        )
      },
    ))

  it('Split, through all or some of its outputs', () =>
    property(
      fc.tuple(
        shapes(1, 3),
        fc.nat(2),
        fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 2, maxLength: 3 }),
        seeds,
      ),
      ([rest, at, sizes, seed]) => {
        const axis = at % rest.length
        const shape = rest.map((d, i) => (i === axis ? count([sizes.reduce((a, b) => a + b)]) : d))
        return agree(
          (g, [x]) => {
            const parts = g.node('Split', [g.exp(x!), g.constant(sizes, 'int64')], {
              attributes: { axis: { i: axis } },
              outputs: sizes.length,
            })
            return parts.filter((_, i) => i !== seed % 3).map((part) => g.exp(part))
          },
          [{ shape, values: uniform(shape, seed, -1, 1) }],
        )
      },
    ))

  it('Slice with constant bounds, negative ones included', () =>
    property(
      fc.tuple(shapes(1, 3, 4), fc.nat(2), fc.integer({ min: -5, max: 4 }), fc.integer({ min: -4, max: 9 }), seeds),
      ([shape, at, start, end, seed], symbolic) =>
        agree(
          (g, [x]) => g.exp(g.slice(x!, at % shape.length, start, end)),
          [{ shape, values: uniform(shape, seed) }],
          { symbolic },
        ),
    ))

  it('Slice along two axes', () =>
    agree(
      (g, [x]) => {
        const vector = (values: number[]) => g.constant(values, 'int64')
        return g.one('Slice', [g.exp(x!), vector([1, -2]), vector([9, -1]), vector([2, 0])])
      },
      [{ shape: [3, 2, 4], values: uniform([3, 2, 4], 5) }],
    ))

  it('Gather, rows taken several times, negative indices, any axis', () =>
    property(
      fc.tuple(shapes(1, 3), fc.nat(2), shapes(0, 2), seeds, fc.constantFrom('int32' as const, 'int64' as const)),
      ([shape, at, indexShape, seed, dtype], symbolic) => {
        const axis = at % shape.length
        const size = shape[axis]!
        const index = uniform(indexShape, seed, -size, size - 1e-9).map(Math.floor)
        return agree(
          (g, [x, i]) => g.exp(g.gather(x!, i!, axis)),
          [
            { shape, values: uniform(shape, seed) },
            { shape: indexShape, values: index, dtype },
          ],
          { symbolic },
        )
      },
    ))

  it('GatherElements', () =>
    property(fc.tuple(shapes(1, 3), fc.nat(2), seeds), ([shape, at, seed], symbolic) => {
      const axis = at % shape.length
      const index = uniform(shape, seed, 0, shape[axis]! - 1e-9).map(Math.floor)
      return agree(
        (g, [x, i]) => g.exp(g.one('GatherElements', [x!, i!], { attributes: { axis: { i: axis } } })),
        [
          { shape, values: uniform(shape, seed) },
          { shape, values: index, dtype: 'int64' },
        ],
        { symbolic },
      )
    }))
})

describe('reductions', () => {
  const reduction = fc.tuple(
    shapes(1, 3).chain((shape) => fc.tuple(fc.constant(shape), fc.subarray(shape.map((_, i) => i)))),
    fc.boolean(),
    seeds,
  )
  for (const [op, low, opset] of [
    ['ReduceSum', -2, 17],
    ['ReduceMean', -2, 17],
    ['ReduceMean', -2, 18],
    ['ReduceMax', 0, 17],
    ['ReduceMin', 0, 18],
    ['ReduceL2', -2, 17],
    ['ReduceL2', -2, 18],
    ['ReduceSumSquare', -2, 17],
  ] as const)
    it(`${op}, opset ${opset}`, () =>
      property(reduction, ([[shape, axes], keep, seed], symbolic) => {
        const input = op === 'ReduceSum' || opset > 17
        // no axes: all of them
        const dtype = op === 'ReduceL2' ? 'float32' : 'float64'
        return agree(
          (g, [x]) =>
            g.exp(
              g.one(
                op,
                [g.mul(x!, g.scalar(0.5, dtype)), ...(input && axes.length > 0 ? [g.constant(axes, 'int64')] : [])],
                {
                  attributes: {
                    keepdims: { i: keep ? 1 : 0 },
                    ...(!input && axes.length > 0 ? { axes: { ints: axes } } : {}),
                  },
                },
              ),
            ),
          [
            {
              shape,
              values:
                op === 'ReduceMax' || op === 'ReduceMin'
                  ? apart(shape, seed)
                  : uniform(shape, seed, low, 2).map((v) => v / 4 + (op === 'ReduceL2' ? 0.6 : 0)),
            },
          ],
          { symbolic, dtype, opset },
        )
      }))

  it('ReduceSum over no axes is the identity when asked to be', () =>
    agree(
      (g, [x]) => g.exp(g.one('ReduceSum', [x!], { attributes: { noop_with_empty_axes: { i: 1 } } })),
      [{ shape: [2, 3], values: uniform([2, 3], 3) }],
    ))
})

describe('Softmax and normalisations', () => {
  const axis = fc.tuple(shapes(1, 3, 4), fc.nat(2), seeds)
  for (const op of ['Softmax', 'LogSoftmax'])
    it(op, () =>
      property(axis, ([shape, at, seed], symbolic) =>
        agree(
          (g, [x]) => g.one(op, [x!], { attributes: { axis: { i: (at % shape.length) - shape.length } } }),
          [{ shape, values: uniform(shape, seed) }],
          { symbolic },
        ),
      ),
    )

  it('Softmax in attention, where the product with V gives the row sums', () =>
    property(
      fc.tuple(shapes(3, 3), shapes(0, 2), seeds, fc.boolean(), fc.constantFrom(1, 0.5)),
      ([[rows, columns, width], batch, seed, transB, alpha], symbolic) => {
        const scores = [...batch, rows!, columns!]
        const values = [...batch, ...swapped([columns!, width!], transB)]
        return agree(
          (g, [s, v]) => g.fusedMatmul(g.softmax(s!), v!, { transB, alpha }),
          [
            { shape: scores, values: uniform(scores, seed) },
            { shape: values, values: uniform(values, seed + 1) },
          ],
          { symbolic, dtype: 'float32' },
        )
      },
    ))

  it('Softmax whose probabilities are multiplied by themselves', () =>
    agree(
      (g, [s]) => {
        const p = g.softmax(s!)
        return g.matmul(p, p)
      },
      [{ shape: [3, 3], values: uniform([3, 3], 1) }],
    ))

  it('Softmax whose probabilities are also read otherwise', () =>
    agree(
      (g, [s, v]) => {
        const p = g.softmax(s!)
        return [g.matmul(p, v!), g.exp(p)]
      },
      [
        { shape: [3, 4], values: uniform([3, 4], 1) },
        { shape: [4, 2], values: uniform([4, 2], 2) },
      ],
    ))

  it('Softmax whose probabilities are seeded too', () =>
    agree(
      (g, [s, v]) => {
        const p = g.softmax(s!)
        return [g.matmul(p, v!), p]
      },
      [
        { shape: [3, 4], values: uniform([3, 4], 1) },
        { shape: [4, 2], values: uniform([4, 2], 2) },
      ],
    ))

  const normalisations = [
    { op: 'LayerNormalization', bias: true },
    { op: 'SimplifiedLayerNormalization', bias: false },
    { op: 'RMSNormalization', bias: false, opset: 23 },
  ]
  for (const { op, bias, opset = 17 } of normalisations)
    it(`${op}, scale and bias included`, () =>
      property(axis, ([shape, at, seed], symbolic) => {
        const first = at % shape.length
        const affine = shape.slice(first)
        return agree(
          (g, x) => g.one(op, x, { attributes: { axis: { i: first }, epsilon: { f: 0.1 } } }),
          [
            { shape, values: uniform(shape, seed) },
            { shape: affine, values: uniform(affine, seed + 1) },
            ...(bias ? [{ shape: affine, values: uniform(affine, seed + 2) }] : []),
          ],
          { symbolic, opset, dtype: 'float32' },
        )
      }))
})

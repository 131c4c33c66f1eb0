import { expect, test } from 'vitest'
import { addGradients } from '../../src/autodiff/index.ts'
import { type Attribute, GraphBuilder, openSession, prune, type Tensor } from '../../src/onnx/index.ts'
import { compareGradients } from './finite-differences.ts'

const i = (n: number): Attribute => ({ i: n })
const ints = (g: GraphBuilder, ...n: number[]) => g.constant(n, 'int64')

/** The gradient of Σ y at x. */
async function gradientAt(x: Tensor, build: (g: GraphBuilder, x: string) => string): Promise<number[]> {
  const g = new GraphBuilder(18)
  const y = build(g, g.input('x', x.dtype, x.shape))
  g.output(y)
  const { graph, gradients } = addGradients(g.build(), { [y]: 1 }, ['x'])
  const dx = gradients.get('x') as string
  const session = await openSession(prune({ ...graph, outputs: [dx] }), { threads: 1 })
  try {
    const found = (await session.run({ x }))[dx] as Tensor
    expect(found.shape).toEqual(x.shape)
    return Array.from(found.data, Number)
  } finally {
    await session.release()
  }
}
const vector = (...values: number[]): Tensor => ({
  dtype: 'float32',
  shape: [values.length],
  data: Float32Array.from(values),
})

test('x⁰ has slope 0, also at 0', async () => {
  expect(await gradientAt(vector(0, 2), (g, x) => g.pow(x, g.scalar(0)))).toEqual([0, 0])
  expect(await gradientAt(vector(0, 2, 0, 3), (g, x) => g.pow(x, g.constant([0, 0, 1, 2], 'float32')))).toEqual([
    0, 0, 1, 6,
  ])
})

test('a part of a Split that nothing asks for, by name even, has gradient 0', async () => {
  const part = (g: GraphBuilder, x: string) =>
    g.node('Split', [x, ints(g, 1, 2)], { outputs: ['', 'second'] })[1] as string
  expect(await gradientAt(vector(1, 2, 3), (g, x) => g.mul(part(g, x), g.scalar(2)))).toEqual([0, 2, 2])
})

test('a backward slice from the largest int64 on begins at the last element', async () => {
  const comparisons = await compareGradients(
    (g, [x = '']) =>
      g.one('Slice', [x, ints(g, 2 ** 63), ints(g, -(2 ** 63)), ints(g, 0), ints(g, -2)], {
        types: [{ dtype: 'float64', shape: [2] }],
      }),
    [{ shape: [4], values: [1, 2, 3, 4] }],
  )
  for (const { error } of comparisons) expect(error).toBeLessThan(1e-6)
})

test('empty tensors have empty gradients', async () => {
  const empty: Tensor = { dtype: 'float32', shape: [0, 3], data: new Float32Array(0) }
  const view = (g: GraphBuilder, x: string, allowzero: number) =>
    g.one('Reshape', [x, ints(g, 3, 0)], {
      attributes: { allowzero: i(allowzero) },
      types: [{ dtype: 'float32', shape: [3, 0] }],
    })
  expect(await gradientAt(empty, (g, x) => g.exp(view(g, x, 1)))).toEqual([])
  expect(await gradientAt(empty, (g, x) => g.reduceSum(x, [0]))).toEqual([])
  expect(await gradientAt(empty, (g, x) => g.reduceSum(x, [1]))).toEqual([])
  expect(await gradientAt(empty, (g, x) => g.concat([x, g.exp(x)], 0))).toEqual([])
  expect(
    await gradientAt(empty, (g, x) => g.transpose(g.one('Flatten', [x], { attributes: { axis: i(1) } }), [1, 0])),
  ).toEqual([])
  const w = (g: GraphBuilder) => g.constant([1, 2, 3, 4, 5, 6], 'float32', [3, 2])
  expect(await gradientAt(empty, (g, x) => g.matmul(x, w(g)))).toEqual([])
})

test('empty reshape of a matrix with rows', async () => {
  const g = new GraphBuilder(18)
  const x = g.input('x', 'float32', ['rows', 3])
  const y = g.exp(g.reshape(x, ['cells']))
  g.output(y)
  const { graph, gradients } = addGradients(g.build(), { [y]: 1 }, ['x'])
  const dx = gradients.get('x') as string
  const session = await openSession(prune({ ...graph, outputs: [dx] }), { threads: 1 })
  for (const rows of [2, 0]) {
    const found = (await session.run({ x: { dtype: 'float32', shape: [rows, 3], data: new Float32Array(rows * 3) } }))[
      dx
    ]
    expect(found?.shape).toEqual([rows, 3])
  }
})

test('an initializer, an input and a value inside as outputs and seeds at once; inputs that nothing reads', async () => {
  const g = new GraphBuilder(18)
  const [x, unused] = [g.input('x', 'float32', [2]), g.input('unused', 'float32', [2])]
  const w = g.initializer('w', vector(3, 4))
  const inner = g.mul(x, w)
  const y = g.mul(inner, inner)
  for (const v of [x, w, inner, y]) g.output(v)
  const { graph, gradients } = addGradients(g.build(), { [x]: 1, [w]: 1, [inner]: 1, [y]: 1 }, [x, w, unused])
  expect([...gradients.keys()].sort()).toEqual(['w', 'x'])
  const wanted = [gradients.get('x') as string, gradients.get('w') as string]
  const session = await openSession(prune({ ...graph, outputs: wanted }, { unusedInputs: false }), { threads: 1 })
  const found = await session.run({ x: vector(1, 2) })
  await session.release()
  // dx = 1 + w + 2xw², dw = 1 + x + 2x²w
  expect(Array.from(found[wanted[0] as string]!.data, Number)).toEqual([1 + 3 + 18, 1 + 4 + 64])
  expect(Array.from(found[wanted[1] as string]!.data, Number)).toEqual([1 + 1 + 6, 1 + 2 + 32])
})

test('a value reaches the loss over float64 and float32 at once', async () => {
  const gradient = await gradientAt(vector(1, 2), (g, x) => {
    const wide = g.cast(x, 'float64')
    return g.add(g.cast(g.mul(wide, wide), 'float32'), g.mul(x, x))
  })
  expect(gradient).toEqual([4, 8])
})

import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { variant } from '../../src/export/variants.ts'
import { writeModel } from '../../src/export/write-model.ts'
import { GraphBuilder, openSession, type Tensor } from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'
import { temporaryFolder } from '../support/temporary.ts'

const [TOKENS, OUTPUTS] = [3, 5]
const random = createRandom('quantised graphs')
const whole = (least: number, most: number): number => least + Math.floor((most - least + 1) * random.next())

/** Rows of whole numbers, of which one of each `block` is `first`, so that a scale is the `step` that they are multiplied with. */
const rows = (
  count: number,
  columns: number,
  block: number,
  least: number,
  most: number,
  first: number,
  step: number,
) =>
  Float32Array.from(
    { length: count * columns },
    (_, i) => step * ((i % columns) % block === 0 ? first : whole(least, most)),
  )

/** y = 0.5 · x Wᵀ + 2 · c and t = table[ids], their weights as references. */
async function outputs(w: Float32Array, table: Float32Array, columns: number, x: Float32Array, type: 'int8' | 'int4') {
  const g = new GraphBuilder(17)
  const reference = (name: string, shape: number[]): string =>
    g.initializer(name, { dtype: 'float32', shape, external: { file: name, offset: 0, length: 0 } })
  const input = g.input('x', 'float32', ['tokens', columns])
  const ids = g.input('ids', 'int64', ['tokens'])
  const c = g.constant([1, 2, 3, 4, 5], 'float32', [OUTPUTS])
  g.output(g.gemm(input, reference('w', [OUTPUTS, columns]), c, { transB: true, alpha: 0.5, beta: 2 }), 'y')
  g.output(g.gather(reference('table', [4, columns]), ids), 't')
  const numbers: Record<string, Float32Array> = { w, table }
  const written = variant(
    g.build(),
    ({ shape, external }) => ({
      shape,
      rows: async (from, to) => (numbers[external.file] as Float32Array).subarray(from * columns, to * columns),
    }),
    type,
  )
  const file = join(temporaryFolder(), 'model.onnx')
  await writeModel(file, written, {})
  const session = await openSession(file, { threads: 1 })
  onTestFinished(() => session.release())
  return session.run({
    x: { dtype: 'float32', shape: [TOKENS, columns], data: x },
    ids: { dtype: 'int64', shape: [TOKENS], data: BigInt64Array.of(3n, 0n, 3n) },
  })
}

// with whole numbers in weights and activations nothing is rounded, so that what is left is what the graph computes
describe.each([
  ['int8', 64],
  ['int8', 41],
  ['int4', 64],
  ['int4', 40],
  ['int4', 41],
] as const)('a graph in %s, with rows of %i numbers', (type, columns) => {
  it('computes the products and finds the rows of its float32 graph', async () => {
    const w =
      type === 'int8'
        ? rows(OUTPUTS, columns, columns, -127, 127, 127, 0.25)
        : rows(OUTPUTS, columns, 32, -7, 7, -8, 0.25)
    const table = rows(4, columns, columns, -127, 127, 127, 0.5)
    const x = rows(TOKENS, columns, 32, -127, 127, 127, 1)
    const { y, t } = await outputs(w, table, columns, x, type)
    const wanted = Float32Array.from({ length: TOKENS * OUTPUTS }, (_, i) => {
      const [token, output] = [Math.floor(i / OUTPUTS), i % OUTPUTS]
      let sum = 0
      for (let k = 0; k < columns; k++) sum += (x[token * columns + k] as number) * (w[output * columns + k] as number)
      return 0.5 * sum + 2 * (output + 1)
    })
    expect((y as Tensor).shape).toEqual([TOKENS, OUTPUTS])
    for (const [i, value] of wanted.entries()) expect((y as Tensor).data[i]).toBeCloseTo(value, 1)
    const found = [3, 0, 3].flatMap((id) => Array.from(table.subarray(id * columns, (id + 1) * columns)))
    expect(Array.from((t as Tensor).data as Float32Array)).toEqual(found)
  })
})

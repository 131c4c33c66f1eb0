import fc from 'fast-check'
import { expect, test } from 'vitest'
import { type Dim, decodeModel, encodeModel, GraphBuilder, inferTypes } from '../../src/onnx/index.ts'
import { DrawnGraph } from '../autodiff/drawn-graph.ts'
import { sizeOf } from './shape-cases/sizes.ts'

test('types of graphs drawn at random follow from the types of their inputs', () => {
  const symbols = new Map(Array.from({ length: 100 }, (_, n) => [`n${n}`, n]))
  let [known, unknown] = [0, 0]
  fc.assert(
    fc.property(fc.gen(), (gen) => {
      const int = (min: number, max: number) => gen(fc.integer, { min, max })
      const symbolic = int(0, 1) === 1
      const dim = (size: number): Dim => (symbolic && size > 1 ? `n${size}` : size)
      const shapes = [0, 1].map(() => Array.from({ length: int(0, 3) }, () => int(1, 4)))
      const g = new GraphBuilder(18)
      const x = shapes.map((shape, k) => g.input(`x${k}`, 'float32', shape.map(dim)))
      const inputs = shapes.map((shape) => ({ shape, values: [] }))
      const drawn = new DrawnGraph(g, x, inputs, dim, gen)
      for (let n = int(2, 12); n > 0; n--) drawn.step()
      g.output(drawn.values.at(-1)!.value)
      const types = new Map(x.map((name) => [name, g.type(name)]))
      const typed = inferTypes({ ...decodeModel(encodeModel(g.build())), types })
      for (const { value, shape } of drawn.values) {
        const type = typed.types.get(value)
        // a name that another one is read for
        if (type === undefined) continue
        expect(type.shape.length, value).toBe(shape.length)
        type.shape.forEach((d, axis) => {
          const size = sizeOf(d, symbols)
          if (size === undefined) unknown++
          else {
            known++
            expect(size, `${value} [${type.shape.join(', ')}] is [${shape.join(', ')}]`).toBe(shape[axis])
          }
        })
      }
    }),
    { numRuns: 500, seed: 4 },
  )
  expect(known).toBeGreaterThan(20 * unknown)
})

import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { openSession, shapeRules, type Tensor } from '../../src/onnx/index.ts'
import { computingCases } from './shape-cases/computing.ts'
import { Draw } from './shape-cases/draw.ts'
import { fusedCases } from './shape-cases/fused.ts'
import { layoutCases } from './shape-cases/layout.ts'
import { sizeOf } from './shape-cases/sizes.ts'

const cases = { ...computingCases, ...layoutCases, ...fusedCases }

describe('shape rules', () => {
  test('every rule has a case here', () => {
    expect(Object.keys(shapeRules).sort()).toEqual(Object.keys(cases).sort())
  })

  for (const [op, build] of Object.entries(cases))
    test(`${op}: the shape that the rule gives is the shape that ONNX Runtime returns`, async () => {
      await fc.assert(
        fc.asyncProperty(fc.gen(), async (gen) => {
          const d = new Draw(gen)
          const outputs = build(d)
          for (const output of outputs) d.g.output(output)
          const session = await openSession(d.g.build(), { threads: 1 })
          try {
            const results = await session.run(d.feeds)
            // the symbols that `Draw.input` declares
            const sizes = new Map(Array.from({ length: 100 }, (_, n) => [`s${n}`, n]))
            for (const output of outputs) {
              const declared = d.g.type(output)
              const found = results[output] as Tensor
              expect(found.dtype).toBe(declared.dtype)
              expect(found.shape.length, `rank of [${declared.shape.join()}]`).toBe(declared.shape.length)
              declared.shape.forEach((dim, axis) => {
                const size = found.shape[axis] as number
                if (typeof dim === 'number') expect(size, `${declared.shape.join()} is ${found.shape.join()}`).toBe(dim)
                else expect(sizeOf(dim, sizes) ?? size, `${declared.shape.join()} at ${axis}`).toBe(size)
                if (typeof dim === 'string') sizes.set(dim, size)
              })
            }
          } finally {
            await session.release()
          }
        }),
        { numRuns: 16, seed: 20 },
      )
    })
})

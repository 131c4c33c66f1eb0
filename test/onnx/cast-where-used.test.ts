import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import {
  castWhereUsed,
  checkGraph,
  float32ToBfloat16,
  type Graph,
  GraphBuilder,
  openSession,
} from '../../src/onnx/index.ts'
import { createRandom } from '../../src/support/random.ts'

const folder = mkdtempSync(join(tmpdir(), 'canopy-cast-'))
afterAll(() => rmSync(folder, { recursive: true }))

const random = createRandom('cast where used')
const normal = (size: number): Float32Array => Float32Array.from({ length: size }, () => random.normal())

/** A table of 5 rows and a map, in bfloat16 in a file; `gradient` reads the map again, as a backward pass does. */
function graph(): Graph {
  const g = new GraphBuilder()
  const bits = float32ToBfloat16(normal(5 * 4 + 3 * 4))
  writeFileSync(join(folder, 'weights'), new Uint8Array(bits.buffer))
  const stored = (name: string, shape: [number, number], offset: number): string => {
    const external = { file: 'weights', offset, length: 2 * shape[0] * shape[1] }
    return g.cast(g.initializer(name, { dtype: 'bfloat16', shape, external }), 'float32')
  }
  const rows = g.gather(stored('table', [5, 4], 0), g.input('ids', 'int32', ['tokens']))
  const map = stored('map', [3, 4], 40)
  const y = g.gemm(rows, map, null, { transB: true, name: 'forward' })
  g.output(y, 'y')
  g.output(g.gemm(y, map, null, { name: 'backward' }), 'gradient')
  return g.build()
}

const given = graph()
const changed = castWhereUsed(given)
const casts = (g: Graph) => g.nodes.filter(({ op }) => op === 'Cast')

describe('casting weights where they are used', () => {
  it('changes no result', async () => {
    const ids = { dtype: 'int32' as const, shape: [3], data: Int32Array.of(4, 0, 2) }
    const run = async (g: Graph) => {
      const session = await openSession(g, { externalFolder: folder, optimization: 'disabled' })
      const { y, gradient } = await session.run({ ids })
      await session.release()
      return [...(y?.data ?? []), ...(gradient?.data ?? [])]
    }
    const [before, after] = [await run(given), await run(changed)]
    expect(after).toEqual(before)
    expect(new Set(after).size).toBeGreaterThan(10)
  })

  it('gives every reader a cast of its own, before all other nodes', () => {
    expect(casts(given)).toHaveLength(2)
    const own = casts(changed).filter(({ inputs }) => inputs[0] === 'map')
    expect(own).toHaveLength(2)
    expect(changed.nodes.slice(0, 2)).toEqual(own)
    const readers = changed.nodes.filter(({ inputs }) => inputs.includes(own[0]?.outputs[0] as string))
    expect(readers.map(({ name }) => name)).toEqual(['forward'])
  })

  it('needs no names of nodes, which imported graphs may lack', () => {
    const graph = castWhereUsed({ ...given, nodes: given.nodes.map((node) => ({ ...node, name: '' })) })
    expect(() => checkGraph(graph)).not.toThrow()
    expect(casts(graph)).toHaveLength(3)
  })

  it('casts the rows of a table and not the table', () => {
    const gather = changed.nodes.find(({ op }) => op === 'Gather')
    expect(gather?.inputs[0]).toBe('table')
    expect(changed.types.get(gather?.outputs[0] as string)).toEqual({ dtype: 'bfloat16', shape: ['tokens', 4] })
  })

  it('leaves casts alone that a branch reads, by their names', () => {
    const g = new GraphBuilder()
    const half = { dtype: 'float16' as const, shape: [2], data: Uint16Array.of(0, 15360) }
    const w = g.cast(g.initializer('w', half), 'float32')
    const inner = new GraphBuilder()
    const branch = { ...inner.build(), outputs: [w] }
    g.output(
      g.one('If', [g.input('which', 'bool', [])], {
        attributes: { then_branch: { g: branch }, else_branch: { g: branch } },
        types: [{ dtype: 'float32', shape: [2] }],
      }),
    )
    expect(castWhereUsed(g.build())).toBe(g.build())
  })

  it('leaves casts that are outputs, and graphs without such weights, as they are', () => {
    const g = new GraphBuilder()
    const half = { dtype: 'float16' as const, shape: [2], data: Uint16Array.of(0, 15360) }
    g.output(g.cast(g.initializer('w', half), 'float32'))
    expect(castWhereUsed(g.build())).toBe(g.build())
  })
})

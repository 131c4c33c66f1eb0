import { describe, expect, it } from 'vitest'
import { linearMaps } from '../../src/encoder/imported/modules.ts'
import { type Graph, GraphBuilder } from '../../src/onnx/index.ts'

const matrix = (rows: number, columns: number) => ({
  dtype: 'float32' as const,
  shape: [rows, columns],
  data: Float32Array.from({ length: rows * columns }, (_, i) => Math.sin(i)),
})

/** Vectors of tokens [rows, length, 4], and what `make` computes of them. */
function graphOf(make: (g: GraphBuilder, hidden: string) => string): Graph {
  const g = new GraphBuilder()
  const ids = g.input('input_ids', 'int64', ['rows', 'length'])
  g.output(make(g, g.gather(g.initializer('embeddings.words.weight', matrix(9, 4)), ids)), 'last_hidden_state')
  return g.build()
}
const mapsOf = (graph: Graph) => linearMaps(graph, graph)

describe('the linear maps of a graph', () => {
  it('are one where products share a weight, also one with what follows from no token', () => {
    const graph = graphOf((g, hidden) => {
      const weight = g.initializer('layers.0.key.weight', matrix(4, 4))
      const table = g.initializer('places', matrix(2, 4))
      const keys = g.matmul(hidden, weight)
      return g.add(g.matmul(keys, weight), g.reduceSum(g.matmul(table, weight), [0]))
    })
    const [key, ...others] = mapsOf(graph)
    expect(others).toEqual([])
    expect(key).toMatchObject({ module: 'layers.0.key', weight: 'layers.0.key.weight', plain: true, transposed: false })
    expect(key?.uses).toHaveLength(3)
  })

  it('do not include products of the file’s own tables', () => {
    const graph = graphOf((g, hidden) => {
      const table = g.matmul(
        g.initializer('places', matrix(4, 4)),
        g.initializer('layers.0.places.weight', matrix(4, 4)),
      )
      return g.add(hidden, g.reduceSum(table, [0]))
    })
    expect(mapsOf(graph)).toEqual([])
  })

  it('know a transposed weight, through casts and Gemm too', () => {
    const graph = graphOf((g, hidden) => {
      const turned = g.transpose(g.initializer('layers.0.up.weight', matrix(6, 4)), [1, 0])
      const up = g.reshape(g.matmul(hidden, turned), ['tokens', 6])
      const down = g.gemm(up, g.initializer('layers.0.down.weight', matrix(4, 6)), null, { transB: true, alpha: 0.5 })
      return g.reshape(down, ['rows', 'length', 4])
    })
    const [up, down] = mapsOf(graph)
    expect(up).toMatchObject({ module: 'layers.0.up', inputs: 4, outputs: 6, transposed: true, plain: true })
    expect(down).toMatchObject({ module: 'layers.0.down', inputs: 6, outputs: 4, transposed: true, plain: true })
    expect([up?.uses[0]?.scale, down?.uses[0]?.scale]).toEqual([1, 0.5])
  })

  it('know that a weight behind arithmetic cannot be changed in its place', () => {
    const graph = graphOf((g, hidden) => {
      const stored = { dtype: 'int8' as const, shape: [4, 4], data: Int8Array.from({ length: 16 }, (_, i) => i - 8) }
      const floats = g.cast(g.initializer('layers.0.key.weight_quantized', stored), 'float32')
      return g.matmul(hidden, g.mul(floats, g.scalar(0.1)))
    })
    expect(mapsOf(graph)).toMatchObject([{ module: 'layers.0.key', plain: false, storage: 'int8' }])
  })

  it('are numbered where nothing names them', () => {
    const graph = graphOf((g, hidden) =>
      g.matmul(g.matmul(hidden, g.initializer('val_1', matrix(4, 4))), g.initializer('val_2', matrix(4, 4))),
    )
    expect(mapsOf(graph).map(({ module, standard }) => [module, standard])).toEqual([
      ['linear.0', true],
      ['linear.1', true],
    ])
  })
})

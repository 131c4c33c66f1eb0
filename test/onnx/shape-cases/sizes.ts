import type { Dim } from '../../../src/onnx/index.ts'

/** The number that a dimension is where its symbols have these sizes; undefined where one has none. */
export function sizeOf(dim: Dim, sizes: ReadonlyMap<string, number>): number | undefined {
  if (typeof dim === 'number') return dim
  const known = sizes.get(dim)
  if (known !== undefined) return known
  const floor = /^floor\((.*)\/([^/]*)\)$/.exec(dim)
  if (floor !== null) return undefined
  const terms = dim.replaceAll(' - ', ' + -').split(' + ')
  let sum = 0
  for (const term of terms) {
    const factors = term.replace(/^-/, '').split('*')
    const values = factors.map((f) => (/^\d+$/.test(f) ? Number(f) : sizes.get(f)))
    if (!values.every((v) => v !== undefined)) return undefined
    sum += values.reduce((p, v) => p * v, term.startsWith('-') ? -1 : 1)
  }
  return sum
}

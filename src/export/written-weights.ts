import { readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { Adapter, EncoderProfile } from '../encoder/index.ts'
import { decodeModel, type Graph, isExternal } from '../onnx/index.ts'
import { floatGraphs, tensorRows } from './float-graphs.ts'
import { namesOf } from './quantise.ts'
import { rowsOf, transposed } from './streams.ts'
import { type ExportType, variantFile } from './variants.ts'
import { stepsOff } from './whole-numbers.ts'

/** Numbers of a weight that are compared at once. */
const PART_ELEMENTS = 2 ** 21

/** Half a step by which a row's numbers are rounded, a whole one in blocks, and what float32 adds. */
const MOST_STEPS: Partial<Record<ExportType, number>> = { int8: 0.501, int4: 1.001 }

/**
 * Reads the whole numbers of a written folder back and compares them with the merged weights.
 *
 * An encoder may be sensitive to the rounding of its weights: how close its embeddings stay does not tell whether all of them, and the
 * adapter in them, were written. This does.
 *
 * @returns sentences about weights that are not what was trained; none where all are, or the type has no whole numbers
 */
export async function wrongWeights(
  folder: string,
  profile: EncoderProfile,
  adapter: Adapter | undefined,
  type: ExportType,
  signal?: AbortSignal,
): Promise<string[]> {
  const most = MOST_STEPS[type]
  if (most === undefined) return []
  const { graphs, of } = await floatGraphs(profile, adapter, signal)
  const wrong: string[] = []
  for (const [graph, { initializers }] of graphs) {
    const file = join(folder, 'onnx', variantFile(graph, type))
    const written = decodeModel(await readFile(file), file).initializers
    for (const [name, reference] of initializers) {
      const how = isExternal(reference) ? storedAs(name, written) : undefined
      if (how === undefined || !isExternal(reference)) continue
      const [values, scales] = [written.get(how.values), written.get(how.scales)]
      if (values === undefined || scales === undefined) continue
      const weight = how.turned ? transposed(of(reference)) : of(reference)
      const { count, size } = rowsOf(weight.shape)
      const step = Math.max(1, Math.floor(PART_ELEMENTS / size))
      let off = 0
      for (let from = 0; from < count; from += step) {
        const to = Math.min(count, from + step)
        const part = (of: typeof values, begin = from, end = to) =>
          tensorRows(name, of, begin, end, dirname(file)).then(({ data }) => data)
        const found = stepsOff(
          await weight.rows(from, to),
          size,
          (await part(values)) as Int8Array | Uint8Array,
          (await (how.columns ? part(scales, 0, size) : part(scales))) as Float32Array,
          how.columns ? 'columns' : 'rows',
        )
        off = Number.isNaN(found) ? found : Math.max(off, found)
      }
      if (!(off <= most))
        wrong.push(`${graph}: the numbers of ${name} are ${off.toFixed(2)} steps off what was trained, above ${most}`)
    }
  }
  return wrong
}

/** The form that a matrix has in a written graph; undefined where it is stored as floats. */
function storedAs(name: string, written: Graph['initializers']) {
  return [
    { turned: false, columns: false },
    { turned: false, columns: true },
    { turned: true, columns: false },
  ]
    .map((how) => ({ ...how, ...namesOf(name, how) }))
    .find(({ scales }) => written.has(scales))
}

import { readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { Adapter, EncoderProfile } from '../encoder/index.ts'
import {
  byteLength,
  dataFromBytes,
  decodeModel,
  type ExternalTensor,
  isExternal,
  loadTensor,
  type Tensor,
} from '../onnx/index.ts'
import { floatGraphs } from './folder.ts'
import { rowsOf } from './streams.ts'
import { type ExportType, variantFile } from './variants.ts'
import { stepsOff } from './whole-numbers.ts'

/** Numbers of a weight that are compared at once. */
const PART_ELEMENTS = 2 ** 21

/** Half a step by which a row's numbers are rounded, a whole one in blocks, and what float32 adds. */
const MOST_STEPS: Partial<Record<ExportType, number>> = { int8: 0.501, int4: 1.001 }

/**
 * Reads the whole numbers of a written folder back and compares them with the checkpoint's merged weights.
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
  if (most === undefined || profile.kind === 'onnx') return []
  const { graphs, of } = await floatGraphs(profile, adapter, signal)
  const wrong: string[] = []
  for (const [graph, { initializers }] of graphs) {
    const file = join(folder, 'onnx', variantFile(graph, type))
    const written = decodeModel(await readFile(file), file).initializers
    for (const [name, reference] of initializers) {
      const values = written.get(`${name}/quantised`)
      const scales = written.get(`${name}/scales`)
      if (values === undefined || scales === undefined || !isExternal(reference)) continue
      const { count, size } = rowsOf(reference.shape)
      const weight = of(reference)
      const step = Math.max(1, Math.floor(PART_ELEMENTS / size))
      let off = 0
      for (let from = 0; from < count; from += step) {
        const to = Math.min(count, from + step)
        const part = (tensor: Tensor | ExternalTensor) => someRows(name, tensor, from, to, dirname(file))
        const [q, s] = [await part(values), await part(scales)]
        const found = stepsOff(
          await weight.rows(from, to),
          size,
          q.data as Int8Array | Uint8Array,
          s.data as Float32Array,
        )
        off = Number.isNaN(found) ? found : Math.max(off, found)
      }
      if (!(off <= most))
        wrong.push(`${graph}: the numbers of ${name} are ${off.toFixed(2)} steps off what was trained, above ${most}`)
    }
  }
  return wrong
}

/** Rows `from` to `to` of a written tensor's first axis. */
async function someRows(
  name: string,
  tensor: Tensor | ExternalTensor,
  from: number,
  to: number,
  folder: string,
): Promise<Tensor> {
  const { dtype, shape } = tensor
  const rest = shape.slice(1)
  const row = byteLength(dtype, rest)
  if (isExternal(tensor)) {
    const { file, offset } = tensor.external
    const external = { file, offset: offset + from * row, length: (to - from) * row }
    return loadTensor(name, { dtype, shape: [to - from, ...rest], external }, folder)
  }
  const bytes = new Uint8Array(tensor.data.buffer, tensor.data.byteOffset + from * row, (to - from) * row)
  return { dtype, shape: [to - from, ...rest], data: dataFromBytes(dtype, bytes) }
}

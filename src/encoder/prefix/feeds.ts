import type { Tensor } from '../../onnx/index.ts'
import type { FeatureStore } from '../input/sequence.ts'
import type { CausalRows } from './layout.ts'

/** Sizes of the visual features that a graph takes. */
export interface VisualSizes {
  /** The merged features, and one matrix for every DeepStack level. */
  levels: number
  width: number
}

/**
 * Rows as inputs of the causal graph, adapters aside: `input_ids` and `ends`, int32 [rows, length]; `last`, int32 [sequences];
 * `position_ids`, int32 [rows, length] for text. With `visual`: `position_ids` [3, rows, length]; `visual_rows`, int32 [rows,
 * length]; and `visual`, float32 [levels, 1 + features, width], each distinct feature once after a row of zeros.
 *
 * @throws RangeError for features of other sizes
 * @throws InputError where the store has none, or a damaged file
 */
export function causalFeeds(
  rows: CausalRows,
  visual?: VisualSizes & { features: FeatureStore | undefined },
): Record<string, Tensor> {
  const shape = [rows.rows, rows.length]
  const size = rows.rows * rows.length
  const int32 = (data: Int32Array, dims: number[]): Tensor => ({ dtype: 'int32', shape: dims, data })
  const text = {
    input_ids: int32(rows.inputIds, shape),
    ends: int32(rows.ends, shape),
    last: int32(rows.last, [rows.last.length]),
  }
  if (visual === undefined) {
    if (rows.visuals.length > 0)
      throw new RangeError('Sequences have visual features, but the encoder reads text alone')
    return { ...text, position_ids: int32(rows.positionIds.subarray(0, size), shape) }
  }
  return {
    ...text,
    position_ids: int32(rows.positionIds, [3, ...shape]),
    visual_rows: int32(rows.visualRows, shape),
    visual: visualTensor(rows, visual),
  }
}

/** The features of a run, float32 [levels, 1 + features, width]; row 0 is zeros. */
function visualTensor(
  { visuals }: CausalRows,
  { levels, width, features }: VisualSizes & { features: FeatureStore | undefined },
): Tensor {
  const count = visuals.reduce((sum, { rows }) => sum + rows, 1)
  const data = new Float32Array(levels * count * width)
  for (const { key, first, rows } of visuals) {
    if (features === undefined) throw new RangeError('Sequences have visual features, but there is no store of them')
    const block = features.get(key)
    if (block.length !== levels * rows * width)
      throw new RangeError(
        `The visual features "${key}" are ${block.length} numbers, not ${levels} times ${rows} rows of ${width}`,
      )
    for (let level = 0; level < levels; level++) {
      const from = level * rows * width
      data.set(block.subarray(from, from + rows * width), (level * count + first) * width)
    }
  }
  return { dtype: 'float32', shape: [levels, count, width], data }
}

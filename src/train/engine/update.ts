import type { LoraOptions, LoraTarget } from '../../encoder/index.ts'
import type { Precision } from '../../onnx/index.ts'

/**
 * Updates are merged into weights of up to this many bytes. Merging saves about 5 % of a step and keeps a second copy of the
 * adapted weights through it.
 */
const MAX_MERGED_BYTES = 2 ** 29

/** How a training run computes the updates of these maps. */
export function chosenUpdate(targets: readonly LoraTarget[], precision: Precision): NonNullable<LoraOptions['update']> {
  const adapted = targets.reduce((bytes, { inputs, outputs }) => bytes + 4 * inputs * outputs, 0)
  return precision === 'fp32' && adapted <= MAX_MERGED_BYTES ? 'merged' : 'beside'
}

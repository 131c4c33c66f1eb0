import { type Adapter, type EncoderProfile, mergedWeight, openWeights, type Weights } from '../encoder/index.ts'
import type { Tensor } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'

/**
 * The checkpoint's tensors as float32 in memory, an adapter's updates added in: W + (alpha / rank) B A, accumulated in double
 * precision (PEFT calls this `merge_and_unload`).
 *
 * @throws InputError for an adapter whose module has no weight in the checkpoint
 */
export async function mergedWeights(profile: EncoderProfile, adapter: Adapter | undefined): Promise<Weights> {
  const { weights, stored } = await openWeights(profile)
  const merged = new Map<string, Tensor>()
  for (const [name, { shape }] of weights)
    merged.set(name, { dtype: 'float32', shape: [...shape], data: await stored.readTensor(name) })
  for (const target of adapter?.targets ?? []) {
    const end = `${target.module}.weight`
    const name = [...merged.keys()].find((key) => key === end || key.endsWith(`.${end}`))
    const tensor = name === undefined ? undefined : merged.get(name)
    if (name === undefined || tensor === undefined)
      throw new InputError(`The adapter changes ${target.module}, which the checkpoint does not have.`, {
        file: profile.weights,
      })
    merged.set(name, {
      ...tensor,
      data: mergedWeight(tensor.data as Float32Array, adapter as Adapter, target),
    })
  }
  return merged
}

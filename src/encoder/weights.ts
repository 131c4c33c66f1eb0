import type { ExternalTensor, Tensor } from '../onnx/index.ts'
import { InputError } from '../support/errors.ts'

/** A checkpoint's tensors by their names there, in memory or still in their files. */
export type Weights = ReadonlyMap<string, Tensor | ExternalTensor>

/**
 * What a checkpoint puts before the module paths of a model: nothing, or where the model is within another, as in `bert.`.
 *
 * @param end a tensor that every such model has, by its name there
 * @param unknown the sentence for a checkpoint without it, after "There is no tensor ..., "
 * @throws InputError naming the file
 */
export function weightPrefix(names: Iterable<string>, end: string, file: string, unknown: string): string {
  for (const name of names) if (name === end || name.endsWith(`.${end}`)) return name.slice(0, -end.length)
  throw new InputError(`There is no tensor "${end}", ${unknown}`, { file })
}

/**
 * The tensor that goes by the first of some names that is there.
 *
 * @param names full ones; an error about a missing tensor names the first
 * @param incomplete what follows from its absence, as in "the file is no complete BERT encoder."
 * @throws InputError for a tensor that is missing or of another shape than config.json says
 */
export function storedWeight(
  weights: Weights,
  names: readonly string[],
  shape: readonly number[],
  file: string,
  incomplete: string,
): Tensor | ExternalTensor {
  const name = names.find((n) => weights.has(n)) ?? names[0]
  const tensor = weights.get(name as string)
  if (tensor === undefined) throw new InputError(`The tensor "${name}" is missing; ${incomplete}`, { file })
  if (tensor.shape.length !== shape.length || tensor.shape.some((d, i) => d !== shape[i]))
    throw new InputError(
      `The tensor "${name}" is [${tensor.shape.join(', ')}], but config.json makes it [${shape.join(', ')}]. Weights and configuration are of different models.`,
      { file },
    )
  return tensor
}

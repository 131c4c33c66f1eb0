import { openSafetensors } from '../../onnx/index.ts'
import { InputError } from '../../support/errors.ts'
import { HOW_TO_GET } from './sentence-files.ts'

/** Names that tensors of one architecture's checkpoints have and those of the others have not, most telling first. */
const MARKS: readonly [architecture: string, name: RegExp][] = [
  ['qwen3_vl', /(^|\.)visual\./],
  ['qwen3', /(^|\.)layers\.\d+\.self_attn\.q_norm\.weight$/],
  ['bert', /(^|\.)encoder\.layer\.\d+\.attention\.self\.query\.weight$/],
]

/**
 * Refuses a checkpoint whose config.json is of another architecture than its weights, as far as their names tell.
 *
 * @param folder of the safetensors files, of which only the headers are read
 * @param file config.json, for the message
 * @throws InputError naming both
 */
export async function checkWeightsFit(folder: string, architecture: string, file: string): Promise<void> {
  const names = [...(await openSafetensors(folder)).tensors.keys()]
  const found = MARKS.find(([, mark]) => names.some((name) => mark.test(name)))?.[0]
  if (found === undefined || found === architecture) return
  throw new InputError(
    `"model_type" is ${JSON.stringify(architecture)}, but the weights beside it are those of a ${JSON.stringify(found)}: these are files of different models. ${HOW_TO_GET}`,
    { file },
  )
}

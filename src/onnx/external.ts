import { open } from 'node:fs/promises'
import { join } from 'node:path'
import { InputError } from '../support/errors.ts'
import type { ExternalTensor, Tensor } from './graph.ts'
import { dataFromBytes, isExternal } from './tensor.ts'

/**
 * A tensor in memory, read from its file if it lies in one.
 *
 * @param folder of the files that the graph's external tensors name
 * @throws InputError for a file that is missing or shorter than the tensor needs
 */
export async function loadTensor(
  name: string,
  tensor: Tensor | ExternalTensor,
  folder: string | undefined,
): Promise<Tensor> {
  if (!isExternal(tensor)) return tensor
  const { file, offset, length } = tensor.external
  if (folder === undefined) throw new Error(`The initializer "${name}" lies in the file "${file}": give its folder`)
  const path = join(folder, file)
  const handle = await open(path, 'r').catch((e: Error) => {
    throw new InputError(`the weights of "${name}" cannot be read: ${e.message}`, { file: path }, e)
  })
  try {
    const short = () =>
      new InputError(`the file ends before the ${length} bytes of "${name}" at ${offset}`, { file: path })
    // before the memory is taken: the length is whatever the model says
    if ((await handle.stat()).size < offset + length) throw short()
    const bytes = new Uint8Array(length)
    let done = 0
    while (done < length) {
      const { bytesRead } = await handle.read(bytes, done, length - done, offset + done)
      if (bytesRead === 0) throw short()
      done += bytesRead
    }
    return { dtype: tensor.dtype, shape: [...tensor.shape], data: dataFromBytes(tensor.dtype, bytes) }
  } finally {
    await handle.close()
  }
}

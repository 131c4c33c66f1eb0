import { type FileHandle, open, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import {
  byteLength,
  bytesOfData,
  type ExternalTensor,
  encodeModel,
  type Graph,
  isExternal,
  type ModelInfo,
  type Tensor,
} from '../onnx/index.ts'

/** A protobuf message of more bytes is not read everywhere; beyond it weights go into a file of their own. */
const MOST_BYTES = 2 ** 31 - 1 - 64 * 2 ** 20
/** Smaller tensors stay in the model: shapes and constants are looked at while a graph is optimised. */
const SMALL_BYTES = 1024
/** Tensors begin at multiples of this in a file of weights, so that it can be mapped into memory. */
const ALIGNMENT = 4096
const COPY_BYTES = 16 * 2 ** 20

/**
 * Writes a graph as an ONNX file. Weights stay in it, unless some lie in files already or all are more than 2 GiB: then they
 * go into a second file, the first one's name and `_data`.
 *
 * @param folder of the files that the graph's external tensors name
 * @returns the names of the files that were written
 */
export async function writeModel(
  file: string,
  graph: Graph,
  folder: string | undefined,
  info: ModelInfo,
): Promise<string[]> {
  const tensors = [...graph.initializers.values()]
  const bytes = tensors.reduce((sum, { dtype, shape }) => sum + byteLength(dtype, shape), 0)
  if (!tensors.some(isExternal) && bytes <= MOST_BYTES) {
    await writeFile(file, encodeModel(graph, info))
    return [basename(file)]
  }
  const data = `${file}_data`
  const initializers = await writeData(data, graph.initializers, folder)
  await writeFile(file, encodeModel({ ...graph, initializers }, info))
  return [basename(file), basename(data)]
}

/** Writes the larger tensors one behind the other, and returns all with references in their place. */
async function writeData(
  file: string,
  tensors: Graph['initializers'],
  folder: string | undefined,
): Promise<Graph['initializers']> {
  const references = new Map<string, Tensor | ExternalTensor>()
  const sources = new Map<string, FileHandle>()
  const out = await open(file, 'w')
  try {
    let offset = 0
    for (const [name, tensor] of tensors) {
      const { dtype, shape } = tensor
      const length = byteLength(dtype, shape)
      if (!isExternal(tensor) && length < SMALL_BYTES) {
        references.set(name, tensor)
        continue
      }
      offset = Math.ceil(offset / ALIGNMENT) * ALIGNMENT
      if (isExternal(tensor)) {
        const path = join(folder ?? '', tensor.external.file)
        const source = sources.get(path) ?? (await open(path, 'r'))
        sources.set(path, source)
        await copy(source, tensor.external.offset, out, offset, length)
      } else await writeAll(out, bytesOfData(tensor.data), offset)
      references.set(name, { dtype, shape, external: { file: basename(file), offset, length } })
      offset += length
    }
    await out.sync()
    return references
  } finally {
    for (const handle of [out, ...sources.values()]) await handle.close()
  }
}

async function copy(from: FileHandle, at: number, to: FileHandle, offset: number, length: number): Promise<void> {
  const buffer = new Uint8Array(Math.min(length, COPY_BYTES))
  for (let done = 0; done < length; ) {
    const { bytesRead } = await from.read(buffer, 0, Math.min(buffer.length, length - done), at + done)
    if (bytesRead === 0) throw new RangeError(`A file of weights ends before byte ${at + length}`)
    await writeAll(to, buffer.subarray(0, bytesRead), offset + done)
    done += bytesRead
  }
}

async function writeAll(to: FileHandle, bytes: Uint8Array, offset: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const most = Math.min(bytes.length - done, 2 ** 30)
    done += (await to.write(bytes, done, most, offset + done)).bytesWritten
  }
}

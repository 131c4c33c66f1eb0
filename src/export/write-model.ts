import { type FileHandle, open, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import {
  byteLength,
  bytesOfData,
  dataFromBytes,
  type ExternalTensor,
  encodeModel,
  type Graph,
  isExternal,
  type ModelInfo,
  type Tensor,
} from '../onnx/index.ts'
import { bytesOf, type StreamedTensor } from './streams.ts'

/** A protobuf message of more bytes is not read everywhere; beyond it weights go into a file of their own. */
const MOST_BYTES = 2 ** 31 - 1 - 64 * 2 ** 20
/** Smaller tensors stay in the model: shapes and constants are looked at while a graph is optimised. */
const SMALL_BYTES = 1024
/** Tensors begin at multiples of this in a file of weights, so that it can be mapped into memory. */
const ALIGNMENT = 4096
const COPY_BYTES = 16 * 2 ** 20

/** The second file of a graph's weights. */
export const dataFile = (file: string): string => `${file}_data`

/** A graph and the bytes of those of its initializers that are references. */
export interface Writable {
  graph: Graph
  /** The tensor that an external initializer stands for. */
  stream(name: string, tensor: ExternalTensor): StreamedTensor
}

/**
 * Writes a graph as an ONNX file. Weights stay in it up to `inside` bytes (by default: 2 GiB); where there are more, they go into
 * a second file, the first one's name and `_data`, each written while it is read or made.
 *
 * @returns the names of the files that were written
 */
export async function writeModel(
  file: string,
  { graph, stream }: Writable,
  info: ModelInfo,
  inside = MOST_BYTES,
): Promise<string[]> {
  const tensors = [...graph.initializers.values()]
  const bytes = tensors.reduce((sum, { dtype, shape }) => sum + byteLength(dtype, shape), 0)
  const data = dataFile(file)
  const initializers = bytes <= inside ? await inMemory(graph, stream) : await writeWeights(data, { graph, stream })
  await writeFile(file, encodeModel({ ...graph, initializers }, info))
  return bytes <= inside ? [basename(file)] : [basename(file), basename(data)]
}

async function inMemory(graph: Graph, stream: Writable['stream']): Promise<Graph['initializers']> {
  const tensors = new Map<string, Tensor>()
  for (const [name, tensor] of graph.initializers) {
    const { dtype, shape } = tensor
    const data = isExternal(tensor) ? dataFromBytes(dtype, await bytesOf(stream(name, tensor))) : tensor.data
    tensors.set(name, { dtype, shape, data })
  }
  return tensors
}

/**
 * Writes the larger tensors one behind the other into a file, those that are named `apart` into one beside it.
 *
 * @returns all tensors of the graph, with references in the place of those that were written
 */
export async function writeWeights(
  file: string,
  { graph, stream }: Writable,
  apart: { file: string; names: ReadonlySet<string> } = { file: '', names: new Set() },
): Promise<Graph['initializers']> {
  const references = new Map<string, Tensor | ExternalTensor>()
  const rest = await openData(file)
  const own = apart.names.size === 0 ? undefined : await openData(join(dirname(file), apart.file))
  try {
    for (const [name, tensor] of graph.initializers) {
      const { dtype, shape } = tensor
      const length = byteLength(dtype, shape)
      const out = apart.names.has(name) ? own : length < SMALL_BYTES ? undefined : rest
      if (out === undefined) {
        const data = isExternal(tensor) ? dataFromBytes(dtype, await bytesOf(stream(name, tensor))) : tensor.data
        references.set(name, { dtype, shape, data })
        continue
      }
      const parts = isExternal(tensor) ? stream(name, tensor).parts() : [bytesOfData(tensor.data)]
      references.set(name, { dtype, shape, external: await out.append(name, parts, length) })
    }
    await rest.sync()
    await own?.sync()
    return references
  } finally {
    await rest.close()
    await own?.close()
  }
}

/** A file that tensors are written into, one behind the other. */
async function openData(file: string) {
  const out = await open(file, 'w')
  let end = 0
  return {
    async append(
      name: string,
      parts: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
      length: number,
    ): Promise<ExternalTensor['external']> {
      const offset = Math.ceil(end / ALIGNMENT) * ALIGNMENT
      let done = 0
      for await (const part of parts) {
        await writeAll(out, part, offset + done)
        done += part.length
      }
      if (done !== length) throw new RangeError(`"${name}" has ${length} bytes, ${done} came`)
      end = offset + length
      return { file: basename(file), offset, length }
    },
    sync: () => out.sync(),
    close: () => out.close(),
  }
}

/** The tensors of a graph that lie in files of a folder, byte by byte as they are there. */
export function fromFiles(folder: string): Writable['stream'] {
  return (_, { dtype, shape, external: { file, offset, length } }) => ({
    dtype,
    shape,
    async *parts() {
      const handle = await open(join(folder, file), 'r')
      try {
        for (let done = 0; done < length; ) {
          const buffer = new Uint8Array(Math.min(length - done, COPY_BYTES))
          const { bytesRead } = await handle.read(buffer, 0, buffer.length, offset + done)
          if (bytesRead === 0) throw new RangeError(`${file} ends before byte ${offset + length}`)
          yield buffer.subarray(0, bytesRead)
          done += bytesRead
        }
      } finally {
        await handle.close()
      }
    },
  })
}

async function writeAll(to: FileHandle, bytes: Uint8Array, offset: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const most = Math.min(bytes.length - done, 2 ** 30)
    done += (await to.write(bytes, done, most, offset + done)).bytesWritten
  }
}

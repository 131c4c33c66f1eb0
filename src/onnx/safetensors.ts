import { open, readFile, realpath, stat } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { InputError } from '../support/errors.ts'
import { writeFileAtomic } from '../support/files.ts'
import type { DType, ExternalTensor, Tensor } from './graph.ts'
import {
  bfloat16ToFloat32,
  bytesOfData,
  checkTensor,
  dataFromBytes,
  elementCount,
  elementSize,
  float16ToFloat32,
} from './tensor.ts'

/** Bytes an element takes, by safetensors' name of its type. */
const elementBytes = new Map<string, number>([
  ['BOOL', 1],
  ['U8', 1],
  ['I8', 1],
  ['F8_E4M3', 1],
  ['F8_E5M2', 1],
  ['I16', 2],
  ['U16', 2],
  ['F16', 2],
  ['BF16', 2],
  ['I32', 4],
  ['U32', 4],
  ['F32', 4],
  ['I64', 8],
  ['U64', 8],
  ['F64', 8],
])

const dtypes = new Map<string, DType>([
  ['F32', 'float32'],
  ['F16', 'float16'],
  ['BF16', 'bfloat16'],
  ['F64', 'float64'],
  ['I8', 'int8'],
  ['U8', 'uint8'],
  ['I32', 'int32'],
  ['I64', 'int64'],
  ['BOOL', 'bool'],
])

const storedNames = new Map([...dtypes].map(([stored, dtype]) => [dtype, stored]))

/** Longest header the format allows. */
const MAX_HEADER_BYTES = 100_000_000
const MAX_INDEX_BYTES = 100_000_000

/** One tensor of a safetensors file: its type by the format's own name, and its bytes' place in the file. */
export interface StoredTensor {
  dtype: string
  shape: number[]
  /** Full path of the file, symbolic links resolved. */
  file: string
  /** In bytes from the start of the file. */
  offset: number
  length: number
}

/** A checkpoint's tensors: one safetensors file, or several that an index joins. Nothing is held open. */
export interface Safetensors {
  /** Full paths of the files, symbolic links resolved, in the order of their names. */
  readonly files: string[]
  /** The folder that holds all of them, to give to a session as the place of external data. */
  readonly folder: string
  readonly metadata: ReadonlyMap<string, string>
  readonly tensors: ReadonlyMap<string, StoredTensor>
  /** The tensor as a reference into its file, for a graph's initializer. */
  external(name: string): ExternalTensor
  /** The tensor as it is stored. */
  read(name: string): Promise<Tensor>
  /** The tensor's values as float32, whatever its type. */
  readTensor(name: string): Promise<Float32Array>
}

/**
 * Opens a safetensors file, or a checkpoint folder with `model.safetensors` or `model.safetensors.index.json`. Only headers
 * are read. They are checked in full before anything is believed: length, JSON, types, shapes, byte counts, and that the
 * tensors cover the file without overlap or gap (the format's own rule, github.com/huggingface/safetensors).
 *
 * @throws InputError naming the file, the tensor and the numbers that disagree.
 */
export async function openSafetensors(path: string): Promise<Safetensors> {
  const info = await stat(path).catch((e: Error) => {
    throw new InputError('there is no safetensors file or checkpoint folder here', { file: path }, e)
  })
  const parts = info.isDirectory() ? await openFolder(path) : [await openFile(path)]
  const tensors = new Map<string, StoredTensor>()
  for (const part of parts)
    for (const [name, tensor] of part.tensors) {
      const other = tensors.get(name)
      if (other !== undefined)
        throw new InputError(`the tensor "${name}" is also in ${basename(other.file)}`, { file: part.file })
      tensors.set(name, tensor)
    }
  const files = parts.map((part) => part.file)
  const folders = new Set(files.map((file) => dirname(file)))
  if (folders.size > 1)
    throw new InputError(
      `the files of this checkpoint lie in different folders (${[...folders].join(', ')}); put them into one`,
      { file: path },
    )
  const find = (name: string): StoredTensor => {
    const tensor = tensors.get(name)
    if (tensor === undefined) throw new InputError(`there is no tensor "${name}"`, { file: path })
    return tensor
  }
  const typed = (name: string, tensor: StoredTensor): DType => {
    const dtype = dtypes.get(tensor.dtype)
    if (dtype === undefined)
      throw new InputError(`the tensor "${name}" is ${tensor.dtype}, which is not supported`, { file: tensor.file })
    return dtype
  }
  const read = async (name: string): Promise<Tensor> => {
    const tensor = find(name)
    const dtype = typed(name, tensor)
    return { dtype, shape: [...tensor.shape], data: dataFromBytes(dtype, await readRange(tensor)) }
  }
  return {
    files,
    folder: dirname(files[0] as string),
    metadata: new Map(parts.flatMap((part) => [...part.metadata])),
    tensors,
    external(name) {
      const tensor = find(name)
      const { file, offset, length } = tensor
      return {
        dtype: typed(name, tensor),
        shape: [...tensor.shape],
        external: { file: basename(file), offset, length },
      }
    },
    read,
    async readTensor(name) {
      const { dtype, data } = await read(name)
      if (data instanceof Float32Array) return data
      if (dtype === 'bfloat16') return bfloat16ToFloat32(data as Uint16Array)
      if (dtype === 'float16') return float16ToFloat32(data as Uint16Array)
      return Float32Array.from(data as ArrayLike<number | bigint>, Number)
    },
  }
}

interface Part {
  file: string
  metadata: Map<string, string>
  tensors: Map<string, StoredTensor>
}

async function openFolder(folder: string): Promise<Part[]> {
  const single = join(folder, 'model.safetensors')
  if (await isThere(single)) return [await openFile(single)]
  const index = join(folder, 'model.safetensors.index.json')
  if (!(await isThere(index)))
    throw new InputError(
      'neither model.safetensors nor model.safetensors.index.json is here; the checkpoint must be in safetensors format ' +
        '(pytorch_model.bin is not read)',
      { file: folder },
    )
  const place = { file: index }
  if ((await stat(index)).size > MAX_INDEX_BYTES) throw new InputError('the index is too large to be one', place)
  const map = field(parseObject(await readFile(index), place, 'the index'), 'weight_map')
  if (!isRecord(map)) throw new InputError('the index has no "weight_map"', place)
  const shards = new Map<string, string[]>()
  for (const [tensor, shard] of Object.entries(map)) {
    if (typeof shard !== 'string' || !/^[\w.-]+\.safetensors$/.test(shard))
      throw new InputError(
        `the index places "${tensor}" in ${JSON.stringify(shard)}, which is no file name in this folder`,
        place,
      )
    const names = shards.get(shard)
    if (names === undefined) shards.set(shard, [tensor])
    else names.push(tensor)
  }
  if (shards.size === 0) throw new InputError('the index names no tensors', place)
  const parts: Part[] = []
  for (const [shard, names] of [...shards].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const file = join(folder, shard)
    if (!(await isThere(file))) throw new InputError(`the index names this file, which is missing`, { file })
    const part = await openFile(file)
    for (const name of names)
      if (!part.tensors.has(name))
        throw new InputError(`the index places "${name}" in this file, which lacks it`, { file })
    parts.push(part)
  }
  return parts
}

async function openFile(path: string): Promise<Part> {
  const file = await realpath(path)
  const place = { file: path }
  const handle = await open(file, 'r')
  try {
    const { size } = await handle.stat()
    if (size < 8) throw new InputError(`a safetensors file has at least 8 bytes, this one ${size}`, place)
    const prefix = Buffer.alloc(8)
    await handle.read(prefix, 0, 8, 0)
    const length = prefix.readBigUInt64LE()
    if (length > BigInt(MAX_HEADER_BYTES))
      throw new InputError(
        `not a safetensors file: its header would take ${length} bytes; download it again, for a page or a Git LFS pointer may stand in its place`,
        place,
      )
    const start = 8 + Number(length)
    if (start > size)
      throw new InputError(`the file is cut short: its header ends at byte ${start}, the file at ${size}`, place)
    const header = Buffer.alloc(Number(length))
    const { bytesRead } = await handle.read(header, 0, header.length, 8)
    if (bytesRead < header.length) throw new InputError('the header could not be read in full', place)
    return { file, ...readHeader(header, { path, file, start, size }) }
  } finally {
    await handle.close()
  }
}

function readHeader(
  bytes: Uint8Array,
  at: { path: string; file: string; start: number; size: number },
): Pick<Part, 'metadata' | 'tensors'> {
  const place = { file: at.path }
  const header = parseObject(bytes, place, 'the header')
  const metadata = new Map<string, string>()
  const tensors = new Map<string, StoredTensor>()
  for (const [name, entry] of Object.entries(header)) {
    if (!isRecord(entry)) throw new InputError(`the header's entry "${name}" is no object`, place)
    if (name === '__metadata__') {
      for (const [key, value] of Object.entries(entry)) {
        if (typeof value !== 'string') throw new InputError(`the metadata "${key}" is no string`, place)
        metadata.set(key, value)
      }
      continue
    }
    tensors.set(name, readEntry(name, entry, at))
  }
  // In the order of their offsets the tensors follow each other exactly, from the header's end to the file's.
  const inOrder = [...tensors].sort(([, a], [, b]) => a.offset - b.offset || a.length - b.length)
  let next = at.start
  for (const [name, { offset, length }] of inOrder) {
    if (offset !== next)
      throw new InputError(
        `the tensor "${name}" starts at byte ${offset}; the one before it ends at ${next} (tensors may neither overlap nor leave gaps)`,
        place,
      )
    next = offset + length
  }
  if (next > at.size)
    throw new InputError(
      `the file is cut short: its tensors end at byte ${next}, the file at ${at.size}; copy or download it again`,
      place,
    )
  if (next < at.size) throw new InputError(`the file has ${at.size} bytes, but its tensors end at byte ${next}`, place)
  return { metadata, tensors }
}

function readEntry(
  name: string,
  entry: Record<string, unknown>,
  at: { path: string; file: string; start: number },
): StoredTensor {
  const fail = (message: string): never => {
    throw new InputError(`the tensor "${name}" ${message}`, { file: at.path })
  }
  const dtype = field(entry, 'dtype')
  const bytes = typeof dtype === 'string' ? elementBytes.get(dtype) : undefined
  if (typeof dtype !== 'string' || bytes === undefined)
    return fail(`has the element type ${JSON.stringify(dtype)}, which is unknown`)
  const shape = sizes(field(entry, 'shape'))
  if (shape === undefined) return fail('has no shape of whole numbers')
  const offsets = sizes(field(entry, 'data_offsets'))
  if (offsets?.length !== 2) return fail('has no pair of data offsets')
  const [begin, end] = offsets as [number, number]
  const length = elementCount(shape) * bytes
  if (!Number.isSafeInteger(length)) return fail(`has the shape [${shape.join(', ')}], which is too large`)
  if (end - begin !== length)
    return fail(
      `is ${dtype} [${shape.join(', ')}] of ${length} bytes, but its offsets [${begin}, ${end}] hold ${end - begin}`,
    )
  if (!Number.isSafeInteger(at.start + end)) return fail(`ends at byte ${end}, which no file reaches`)
  return { dtype, shape, file: at.file, offset: at.start + begin, length }
}

function sizes(value: unknown): number[] | undefined {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && (n as number) >= 0)
    ? (value as number[])
    : undefined
}

/** JSON.parse makes own properties even of keys such as `__proto__`; only own ones are looked at. */
function parseObject(bytes: Uint8Array, place: { file: string }, what: string): Record<string, unknown> {
  let value: unknown
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch (e) {
    throw new InputError(`${what} is no JSON text in UTF-8`, place, e)
  }
  if (!isRecord(value)) throw new InputError(`${what} is no JSON object`, place)
  return value
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function field(record: Record<string, unknown>, name: string): unknown {
  return Object.hasOwn(record, name) ? record[name] : undefined
}

async function isThere(path: string): Promise<boolean> {
  return stat(path).then(
    (info) => info.isFile(),
    () => false,
  )
}

async function readRange({ file, offset, length }: StoredTensor): Promise<Uint8Array> {
  const bytes = new Uint8Array(length)
  const handle = await open(file, 'r')
  try {
    let done = 0
    while (done < length) {
      // One read call takes at most 2 GiB.
      const { bytesRead } = await handle.read(bytes, done, Math.min(length - done, 2 ** 30), offset + done)
      if (bytesRead === 0) throw new InputError(`the file ended at byte ${offset + done} while it was read`, { file })
      done += bytesRead
    }
  } finally {
    await handle.close()
  }
  return bytes
}

/**
 * Writes tensors and string metadata as a safetensors file, under its final name only once complete. Equal content gives
 * equal bytes: tensors lie by element size (larger first), then by name, as the reference implementation lays them out,
 * metadata keys are sorted, and the header is padded to 8 bytes.
 */
export async function writeSafetensors(
  path: string,
  tensors: ReadonlyMap<string, Tensor>,
  metadata: Record<string, string> = {},
): Promise<void> {
  const byName = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0)
  const order = [...tensors].sort(([a, x], [b, y]) => elementSize(y.dtype) - elementSize(x.dtype) || byName(a, b))
  const header: [string, unknown][] = []
  const keys = Object.keys(metadata).sort(byName)
  if (keys.length > 0) header.push(['__metadata__', Object.fromEntries(keys.map((key) => [key, metadata[key]]))])
  let end = 0
  for (const [name, tensor] of order) {
    if (name === '__metadata__') throw new RangeError('A tensor cannot be named "__metadata__"')
    checkTensor(`tensor "${name}"`, tensor)
    const begin = end
    end += tensor.data.byteLength
    header.push([name, { dtype: storedNames.get(tensor.dtype), shape: tensor.shape, data_offsets: [begin, end] }])
  }
  const json = Buffer.from(
    `{${header.map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`).join()}}`,
  )
  const padded = Math.ceil(json.length / 8) * 8
  const head = Buffer.alloc(8 + padded, ' ')
  head.writeBigUInt64LE(BigInt(padded))
  json.copy(head, 8)
  await writeFileAtomic(path, Buffer.concat([head, ...order.map(([, tensor]) => bytesOfData(tensor.data))]))
}

import type { ColumnMetaData, Compressors, SchemaElement } from 'hyparquet'
import { InputError } from '../support/errors.ts'

/** The most that one page may hold, unpacked. */
const PAGE_BYTES = 256 * 1024 * 1024
const PAGE_VALUES = 1 << 24

const ENCODINGS = new Set([
  'PLAIN',
  'PLAIN_DICTIONARY',
  'RLE',
  'RLE_DICTIONARY',
  'DELTA_BINARY_PACKED',
  'DELTA_LENGTH_BYTE_ARRAY',
  'BYTE_STREAM_SPLIT',
])

/**
 * Goes through the pages of a column chunk and compares what they say with what is there, so that decoding them afterwards takes
 * no more memory than they have bytes and values: sizes, counts, and the lengths of runs, which a decoder would follow blindly.
 *
 * @param path the schema's elements from the root to the column
 * @returns bytes of all pages, unpacked, and the number of values
 * @throws InputError saying what is wrong; another Error where headers or packed bytes are broken
 */
export async function checkPages(
  chunk: ArrayBuffer,
  column: ColumnMetaData,
  path: readonly SchemaElement[],
  compressors: Compressors,
): Promise<{ bytes: number; values: number }> {
  const { parquetHeader } = await import('hyparquet/src/column.js')
  const name = `the column "${column.path_in_schema.join('.')}"`
  const depth = (count: (element: SchemaElement) => boolean): number => path.slice(1).filter(count).length
  const repetitions = depth((element) => element.repetition_type === 'REPEATED')
  const definitions = depth((element) => element.repetition_type !== 'REQUIRED')
  const reader = { view: new DataView(chunk), offset: 0 }
  let bytes = 0
  let values = 0
  while (reader.offset < chunk.byteLength - 1) {
    const page = parquetHeader(reader)
    const { uncompressed_page_size: size, compressed_page_size: length } = page
    if (!(length >= 0 && reader.offset + length <= chunk.byteLength))
      throw new InputError(`the file is damaged: a page of ${name} ends behind its column`)
    if (!(size >= 0 && size <= PAGE_BYTES))
      throw new InputError(`a page of ${name} is said to have ${size} bytes unpacked, more than are read at once`)
    const packed = new Uint8Array(chunk, reader.offset, length)
    reader.offset += length
    bytes += size
    const data = page.data_page_header ?? page.data_page_header_v2
    const count = data?.num_values ?? page.dictionary_page_header?.num_values ?? 0
    if (!(count >= 0 && count <= PAGE_VALUES))
      throw new InputError(`a page of ${name} is said to hold ${count} values, more than are read at once`)
    if (data === undefined) continue
    values += count
    if (!ENCODINGS.has(data.encoding)) throw new InputError(`${name} is encoded as ${data.encoding}, which is not read`)

    const v2 = page.data_page_header_v2
    const levels = v2 === undefined ? 0 : v2.repetition_levels_byte_length + v2.definition_levels_byte_length
    if (!(levels >= 0 && levels <= length)) throw new InputError(`the file is damaged: a page of ${name} is too short`)
    const unpacked = unpack(packed.subarray(levels), size - levels, v2?.is_compressed === false, column, compressors)
    let at = 0
    for (const level of [repetitions, definitions]) {
      if (level === 0) continue
      const width = Math.ceil(Math.log2(level + 1))
      if (v2 === undefined) {
        const end = at + 4 + viewOf(unpacked).getUint32(at, true)
        checkRuns(unpacked.subarray(at + 4, end), width, count, name)
        at = end
      } else {
        const end = level === repetitions && at === 0 ? v2.repetition_levels_byte_length : levels
        checkRuns(packed.subarray(at, end), width, count, name)
        at = end
      }
    }
    const content = v2 === undefined ? unpacked.subarray(at) : unpacked
    if (data.encoding.endsWith('DICTIONARY') && content.length > 0)
      checkRuns(content.subarray(1), content[0]!, count, name)
    else if (data.encoding === 'RLE') checkRuns(content.subarray(4), 1, count, name)
  }
  return { bytes, values }
}

const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)

function unpack(
  packed: Uint8Array,
  size: number,
  plain: boolean,
  { codec }: ColumnMetaData,
  compressors: Compressors,
): Uint8Array {
  if (plain || codec === 'UNCOMPRESSED' || size === 0) return packed
  const decompress = compressors[codec]
  if (decompress === undefined) throw new InputError(`it is packed with ${codec}, which is not read`)
  return decompress(packed, size)
}

/** Runs of equal values (RLE) may not be longer than the values that are left; packed ones are as long as their bytes. */
function checkRuns(bytes: Uint8Array, width: number, count: number, name: string): void {
  let at = 0
  for (let seen = 0; seen < count && at < bytes.length; ) {
    let header = 0
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[at++]
      if (byte === undefined || shift > 28) throw new InputError(`the file is damaged: a run of ${name} is broken`)
      header = (header | ((byte & 0x7f) << shift)) >>> 0
      if (byte < 0x80) break
    }
    const length = header & 1 ? (header >>> 1) * 8 : header >>> 1
    at += header & 1 ? (header >>> 1) * width : (width + 7) >> 3
    if (header & 1 ? at > bytes.length + 8 * width : seen + length > count)
      throw new InputError(`the file is damaged: a run of ${name} is said to hold ${length} values`)
    seen += length
  }
}

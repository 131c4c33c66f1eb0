import { createReadStream } from 'node:fs'
import { join } from 'node:path'
import { fileError } from '../support/files.ts'
import { type Dataset, ITEMS_NAME } from './dataset.ts'

/** How the modalities of pictures and videos stand in a line of JSON; inside a text, quotation marks have a backslash. */
const MODALITIES = ['"image"', '"video"'].map((name) => Buffer.from(name))

/**
 * Whether a dataset can hold images or videos at all: a look over the bytes of its items, which takes a thousandth of the time of
 * reading them one by one. True for some that hold none, as a table with a cell "video".
 *
 * @throws InputError when the file cannot be read
 */
export async function mayHoldMedia({ folder }: Pick<Dataset, 'folder'>): Promise<boolean> {
  const file = join(folder, ITEMS_NAME)
  let end = Buffer.alloc(0)
  try {
    for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 })) {
      const bytes = Buffer.concat([end, chunk as Buffer])
      if (MODALITIES.some((name) => bytes.includes(name))) return true
      end = bytes.subarray(Math.max(0, bytes.length - 6))
    }
  } catch (error) {
    throw fileError(error, 'cannot read the items', file)
  }
  return false
}

import { KEY_BYTES } from '../store/index.ts'

/** The first row that has a key: open addressing over keys that are hashes already, 8 to 16 bytes a row besides the keys. */
export interface KeyRows {
  /** Notes that a row has the key that stands at its place. */
  add(row: number): void
  /** undefined where no row has it. */
  find(key: Uint8Array): number | undefined
}

/** @param keys 16 bytes a row, row after row; filled in by the time a row is added */
export function createKeyRows(keys: Buffer): KeyRows {
  const rows = keys.length / KEY_BYTES
  const slots = new Int32Array(2 ** Math.ceil(Math.log2(Math.max(2, 2 * rows)))).fill(-1)
  const mask = slots.length - 1
  /** The slot that has the key, or the empty one where it would be. */
  const slotOf = (key: Buffer, at: number): number => {
    for (let slot = key.readUInt32LE(at) & mask; ; slot = (slot + 1) & mask) {
      const row = slots[slot] as number
      if (row < 0 || keys.compare(key, at, at + KEY_BYTES, row * KEY_BYTES, (row + 1) * KEY_BYTES) === 0) return slot
    }
  }
  return {
    add(row) {
      const slot = slotOf(keys, row * KEY_BYTES)
      if ((slots[slot] as number) < 0) slots[slot] = row
    },
    find({ buffer, byteOffset, length }) {
      if (length !== KEY_BYTES) throw new RangeError(`A key has ${KEY_BYTES} bytes, this one has ${length}.`)
      const row = slots[slotOf(Buffer.from(buffer, byteOffset, length), 0)] as number
      return row < 0 ? undefined : row
    },
  }
}

import type { Item } from '../hierarchy/index.ts'
import { hashedKey, KEY_BYTES, sha256 } from './hashes.ts'
import { canonicalJson } from './json.ts'

type DistributiveOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never

/** An item before it has an id. */
export type ItemContent = DistributiveOmit<Item, 'id'>

/**
 * The id that importers give an item: the first 32 hexadecimal digits of the SHA-256 of its canonical JSON. Items of equal
 * content have equal ids, whichever file they come from.
 */
export function contentId(content: ItemContent): string {
  return sha256(canonicalJson(content)).toString('hex').slice(0, 32)
}

/**
 * A set of strings that numbers them 0, 1, 2, … in the order of their arrival and holds 16 bytes of hash for each instead of the
 * string: about 30 bytes an entry, so that millions of ids fit in memory.
 */
export interface KeyTable {
  readonly size: number
  /** The key's number; a new key gets the next one. */
  add(key: string): { entry: number; isNew: boolean }
  /** The key's number, -1 when it is not there. */
  find(key: string): number
  /** The hash of the entry, as a view. */
  hash(entry: number): Uint8Array
}

export function createKeyTable(): KeyTable {
  let capacity = 1024
  let keys = Buffer.alloc(capacity * KEY_BYTES)
  let slots = new Int32Array(capacity * 2).fill(-1)
  let size = 0

  const slotOf = (key: Buffer): number => {
    const mask = slots.length - 1
    for (let slot = key.readUInt32LE(0) & mask; ; slot = (slot + 1) & mask) {
      const entry = slots[slot]!
      if (entry < 0) return slot
      const at = entry * KEY_BYTES
      if (keys.compare(key, 0, KEY_BYTES, at, at + KEY_BYTES) === 0) return slot
    }
  }
  const grow = (): void => {
    capacity *= 2
    const larger = Buffer.alloc(capacity * KEY_BYTES)
    keys.copy(larger)
    keys = larger
    slots = new Int32Array(capacity * 2).fill(-1)
    for (let entry = 0; entry < size; entry++) {
      slots[slotOf(keys.subarray(entry * KEY_BYTES, (entry + 1) * KEY_BYTES))] = entry
    }
  }
  return {
    get size() {
      return size
    },
    add(key) {
      const hash = hashedKey(key)
      const slot = slotOf(hash)
      const found = slots[slot]!
      if (found >= 0) return { entry: found, isNew: false }
      const entry = size++
      hash.copy(keys, entry * KEY_BYTES)
      slots[slot] = entry
      if (size === capacity) grow()
      return { entry, isNew: true }
    },
    find: (key) => slots[slotOf(hashedKey(key))]!,
    hash: (entry) => keys.subarray(entry * KEY_BYTES, (entry + 1) * KEY_BYTES),
  }
}

/** Numbers that belong to the entries of a {@link KeyTable}, eight bytes each. */
export interface Column {
  get(entry: number): number
  set(entry: number, value: number): void
}

export function createColumn(initial: number): Column {
  let values = new Float64Array(1024).fill(initial)
  return {
    get: (entry) => values[entry] ?? initial,
    set(entry, value) {
      if (entry >= values.length) {
        const larger = new Float64Array(Math.max(entry + 1, values.length * 2)).fill(initial)
        larger.set(values)
        values = larger
      }
      values[entry] = value
    },
  }
}
